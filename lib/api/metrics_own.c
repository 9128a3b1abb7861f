/* The phasepipe: families: stages, HTTP, scheduler, workers, store. */
#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"

static const char *const dialects[METRICS_DIALECTS] = {"openai", "ollama"};

static void stage_family(struct page *p, const char *name, const char *help, const struct histogram *h)
{
    page_family(p, name, "histogram", help);
    page_histogram(p, NULL, 0, h);
}

void metrics_stages(struct page *p, const struct metrics *m)
{
    stage_family(p, "phasepipe:tokenize_seconds", "Time to tokenize a prompt.", &m->stage_tokenize);
    stage_family(p, "phasepipe:queue_seconds", "Time a request waited, summed over its stages.", &m->stage_queue);
    stage_family(p, "phasepipe:prefill_seconds", "Time to compute the prompt.", &m->stage_prefill);
    stage_family(p, "phasepipe:transfer_seconds",
                 "If prefill and decode were two processes: from the end of the prompt to the first token.",
                 &m->stage_transfer);
    stage_family(p, "phasepipe:handover_seconds",
                 "If a sequence was transferred: from the end of the prompt until the other worker has it.",
                 &m->stage_transfer_in);
    stage_family(p, "phasepipe:decode_seconds", "From the first token to the last.", &m->stage_decode);
}

/* ---- HTTP ---- */

static void http_row(struct page *p, const struct http_row *r, size_t dialect)
{
    static const char digits[] = "0123456789";
    for (size_t i = 0; i < METRICS_CODES; i++) {
        int c = metrics_code(i);
        char code[6] = {digits[c / 100], digits[c / 10 % 10], digits[c % 10], 0};
        const struct label l[] = {label_of("surface", dialects[dialect]), label_of("route", r->route),
                                  label_of("code", c == 0   ? "gone"
                                                   : c == 1 ? "other"
                                                            : code)};
        if (r->n[dialect][i] || r->shown[dialect] >> i & 1)
            page_u64(p, l, 3, r->n[dialect][i]);
    }
}

static void counter(struct page *p, const char *name, const char *help, uint64_t v)
{
    page_family(p, name, "counter", help);
    page_u64(p, NULL, 0, v);
}

static void gauge(struct page *p, const char *name, const char *help, bool known, double v)
{
    page_family(p, name, "gauge", help);
    if (known)
        page_number(p, NULL, 0, v);
}

/* What the limits of connections and memory apply to. */
static void http_limits(struct page *p, const struct metrics_now *now)
{
    const struct http_stats *s = &now->http;
    gauge(p, "phasepipe:http_connections", "Open connections of clients.", true, s->connections);
    gauge(p, "phasepipe:http_idle_connections", "Those without a complete request head; new ones may replace them.",
          true, s->idle);
    gauge(p, "phasepipe:http_body_bytes", "Received bytes of request bodies that are not parsed yet.", true,
          (double)s->body_bytes);
    gauge(p, "phasepipe:http_queued_bytes", "Bytes of responses that clients have not read.", true,
          (double)s->queued_bytes);
    gauge(p, "phasepipe:response_bytes", "Bytes of responses that are collected before they are sent.", true,
          (double)now->held_bytes);
    gauge(p, "phasepipe:prompt_bytes", "Bytes of the prompts of requests whose answers have not ended.", true,
          (double)now->prompt_bytes);
    gauge(p, "phasepipe:http_body_limit_bytes", "Limit of http_body_bytes.", true, (double)now->body_limit_bytes);
    gauge(p, "phasepipe:http_queued_limit_bytes", "Limit of http_queued_bytes, and of response_bytes.", true,
          (double)now->output_limit_bytes);
    gauge(p, "phasepipe:prompt_limit_bytes", "Limit of prompt_bytes.", true, (double)now->prompt_limit_bytes);
    counter(p, "phasepipe:http_replaced_connections_total", "Idle connections closed for a new one.", s->replaced);
    counter(p, "phasepipe:http_refused_connections_total",
            "Connections refused because of a limit or for lack of descriptors.", s->refused);
    counter(p, "phasepipe:http_timeouts_total", "Incomplete requests and unread responses that timed out.",
            s->timed_out);
}

void metrics_http_rows(struct page *p, const struct metrics *m, const struct metrics_now *now)
{
    page_family(p, "phasepipe:http_requests_total", "counter",
                "HTTP requests by API dialect, route and status; gone: the client disconnected before the end.");
    for (size_t s = 0; s < METRICS_DIALECTS; s++)
        for (size_t i = 0; i < m->n_http; i++)
            http_row(p, &m->http[i], s);
    page_family(p, "phasepipe:http_request_seconds", "histogram",
                "From the arrival of a request to the end of its response.");
    for (size_t s = 0; s < METRICS_DIALECTS; s++) {
        const struct label l = label_of("surface", dialects[s]);
        page_histogram(p, &l, 1, &m->http_seconds[s]);
    }
    http_limits(p, now);
    page_family(p, "phasepipe:client_gone_total", "counter",
                "Requests whose client disconnected before the end of the response.");
    page_u64(p, NULL, 0, m->client_disconnected);
    page_family(p, "phasepipe:answers_running", "gauge", "Choices of this gateway with a first token.");
    page_u64(p, NULL, 0, now->running);
    page_family(p, "phasepipe:answers_waiting", "gauge", "Choices of this gateway without a first token.");
    page_u64(p, NULL, 0, now->waiting);
}

/* ---- the scheduler ---- */

static void percentiles(struct page *p, const char *name, const char *help, uint64_t p50, uint64_t p99)
{
    const struct label l[] = {label_of("percentile", "50"), label_of("percentile", "99")};
    page_family(p, name, "gauge", help);
    if (p50)
        page_number(p, &l[0], 1, (double)p50 / 1e9);
    if (p99)
        page_number(p, &l[1], 1, (double)p99 / 1e9);
}

static void sched_counters(struct page *p, const struct wire_stat *c)
{
    counter(p, "phasepipe:sched_submitted_total", "Requests that gateways submitted.", c->submitted);
    counter(p, "phasepipe:sched_placed_total", "Work items sent to workers.", c->placed);
    counter(p, "phasepipe:sched_retried_total", "Requests sent to another worker after a failure.", c->retried);
    counter(p, "phasepipe:sched_preempted_total", "Requests that were preempted and continued later.", c->preempted);
    counter(p, "phasepipe:sched_stale_total", "Reports of workers about requests no longer assigned to them.",
            c->stale);
    static const char *const reasons[] = {"stop", "length", "cancelled", "expired", "error", "refused"};
    const uint64_t n[] = {c->stop, c->length, c->cancelled, c->expired, c->error, c->refused};
    page_family(p, "phasepipe:sched_ended_total", "counter",
                "Requests that ended, by reason; expired: past their deadline; refused: by admission control.");
    for (size_t i = 0; i < sizeof n / sizeof *n; i++) {
        const struct label l = label_of("reason", reasons[i]);
        page_u64(p, &l, 1, n[i]);
    }
}

/* ---- its workers ---- */

struct row {
    const struct wire_worker *w;
    struct label l[2];
};

static const char *role_of(const struct wire_worker *w)
{
    static const char *const roles[] = {"prefill", "decode", "both"};
    for (size_t i = 0; i < 3; i++)
        if (w->role.n == strlen(roles[i]) && !memcmp(w->role.p, roles[i], w->role.n))
            return roles[i];
    return "other";
}

static void worker_gauge(struct page *p, const struct row *r, size_t n, const char *name, const char *help,
                         double (*value)(const struct wire_worker *w))
{
    page_family(p, name, "gauge", help);
    for (size_t i = 0; i < n; i++)
        page_number(p, r[i].l, 2, value(r[i].w));
}

static double of_draining(const struct wire_worker *w)
{
    return w->draining;
}

static double of_running(const struct wire_worker *w)
{
    return (double)((uint64_t)w->n_prefill + w->n_decode + w->n_whole);
}

static double of_seqs(const struct wire_worker *w)
{
    return w->seqs_all;
}

static double of_seqs_free(const struct wire_worker *w)
{
    return w->seqs;
}

static double of_blocks(const struct wire_worker *w)
{
    return (double)w->blocks_all;
}

static double of_blocks_free(const struct wire_worker *w)
{
    return (double)w->blocks;
}

static double of_bytes(const struct wire_worker *w)
{
    return (double)w->bytes;
}

static double of_bytes_max(const struct wire_worker *w)
{
    return (double)w->bytes_max;
}

static double of_out_bytes(const struct wire_worker *w)
{
    return (double)w->out_bytes;
}

static double of_out_bytes_max(const struct wire_worker *w)
{
    return (double)w->out_bytes_max;
}

static double of_step(const struct wire_worker *w)
{
    return (double)w->step_ns / 1e9;
}

static double of_batch(const struct wire_worker *w)
{
    return w->batch;
}

static double of_context(const struct wire_worker *w)
{
    return (double)w->context;
}

static void orders(struct page *p, const struct row *r, size_t n)
{
    page_family(p, "phasepipe:worker_orders", "gauge", "Work items assigned to a worker, by phase.");
    for (size_t i = 0; i < n; i++) {
        static const char *const phases[] = {"prefill", "decode", "whole"};
        const uint32_t v[] = {r[i].w->n_prefill, r[i].w->n_decode, r[i].w->n_whole};
        for (size_t k = 0; k < 3; k++) {
            const struct label l[] = {r[i].l[0], r[i].l[1], label_of("phase", phases[k])};
            page_u64(p, l, 3, v[k]);
        }
    }
}

static void worker_rows(struct page *p, const struct row *r, size_t n)
{
    orders(p, r, n);
    worker_gauge(p, r, n, "phasepipe:worker_running", "Work items assigned to a worker.", of_running);
    worker_gauge(p, r, n, "phasepipe:worker_draining", "1: it gets no new work.", of_draining);
    worker_gauge(p, r, n, "phasepipe:worker_sequences", "Its capacity in sequences.", of_seqs);
    worker_gauge(p, r, n, "phasepipe:worker_sequences_free", "Its free capacity in sequences.", of_seqs_free);
    worker_gauge(p, r, n, "phasepipe:worker_blocks", "KV blocks of its pool, which workers of a host share.",
                 of_blocks);
    worker_gauge(p, r, n, "phasepipe:worker_blocks_free", "KV blocks that are free or cached without a lease.",
                 of_blocks_free);
    worker_gauge(p, r, n, "phasepipe:worker_request_bytes", "Bytes of the requests assigned to it.", of_bytes);
    worker_gauge(p, r, n, "phasepipe:worker_request_limit_bytes", "Limit of worker_request_bytes.", of_bytes_max);
    worker_gauge(p, r, n, "phasepipe:worker_output_bytes", "Bytes of answers that gateways have not acknowledged.",
                 of_out_bytes);
    worker_gauge(p, r, n, "phasepipe:worker_output_limit_bytes", "Limit of worker_output_bytes.", of_out_bytes_max);
    worker_gauge(p, r, n, "phasepipe:worker_step_seconds", "Its newest step without prompts: duration.", of_step);
    worker_gauge(p, r, n, "phasepipe:worker_step_sequences", "The same step: sequences.", of_batch);
    worker_gauge(p, r, n, "phasepipe:worker_step_context_tokens", "The same step: tokens of context.", of_context);
}

static int by_name(const void *a, const void *b)
{
    const struct wire_str *x = &((const struct row *)a)->w->name, *y = &((const struct row *)b)->w->name;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

/* Rows of live workers by name, as many as fit, and the number of the others. */
static void workers(struct page *p, const struct stats_poller *w)
{
    size_t n = 0, n_row = 0, most = 0;
    const struct wire_worker *x = poller_workers(w, &n);
    struct row *row = malloc((n + 1) * sizeof *row);
    if (!row) {
        p->out.failed = true;
        return;
    }
    for (size_t i = 0; i < n; i++)
        if (x[i].name.n)
            row[n_row++] = (struct row){&x[i], {label_str("worker", x[i].name), label_of("role", role_of(&x[i]))}};
    qsort(row, n_row, sizeof *row, by_name);
    most = n_row < METRICS_WORKERS_MAX ? n_row : METRICS_WORKERS_MAX;
    worker_rows(p, row, most);
    page_family(p, "phasepipe:workers_not_shown", "gauge", "Live workers beyond the limit of rows.");
    page_u64(p, NULL, 0, n_row - most);
    free(row);
}

void metrics_sched(struct page *p, const struct stats_poller *w)
{
    const struct wire_stat *s = poller_stat(w);
    sched_counters(p, poller_stat_sum(w));
    gauge(p, "phasepipe:sched_up", "1: the scheduler responded within 5 s.", true, s != NULL);
    gauge(p, "phasepipe:sched_running", "Requests assigned to workers.", s, s ? (double)s->running : 0);
    gauge(p, "phasepipe:sched_waiting", "Requests that wait for a worker.", s, s ? (double)s->waiting : 0);
    gauge(p, "phasepipe:sched_request_bytes", "Bytes of the requests that it has.", s, s ? (double)s->bytes : 0);
    gauge(p, "phasepipe:sched_request_limit_bytes", "Limit of sched_request_bytes.", s, s ? (double)s->bytes_max : 0);
    uint64_t bytes, bytes_max;
    bool known = poller_tokenize(w, &bytes, &bytes_max);
    gauge(p, "phasepipe:tokenize_queued_bytes", "Bytes of prompts that wait in tokenize.", known, (double)bytes);
    gauge(p, "phasepipe:tokenize_queued_limit_bytes", "Limit of tokenize_queued_bytes.", known, (double)bytes_max);
    gauge(p, "phasepipe:sched_workers", "Workers known to the scheduler.", s, s ? s->workers : 0);
    gauge(p, "phasepipe:sched_gateways", "Gateways known to the scheduler.", s, s ? s->gateways : 0);
    gauge(p, "phasepipe:sched_stores", "Stores whose events it reads.", s, s ? s->stores : 0);
    percentiles(p, "phasepipe:sched_ttft_seconds", "From submit to first token, of the last thousand requests.",
                s ? s->ttft_p50_ns : 0, s ? s->ttft_p99_ns : 0);
    percentiles(p, "phasepipe:sched_step_seconds", "Duration of decode steps, of the last thousand.",
                s ? s->itl_p50_ns : 0, s ? s->itl_p99_ns : 0);
    workers(p, w);
    page_family(p, "phasepipe:loop_lag_seconds", "histogram",
                "Delay of the gateway's event loop, measured once a second.");
    page_histogram(p, NULL, 0, poller_lag(w));
}

/* ---- the store ---- */

static void by(struct page *p, const char *label, const char *value, uint64_t v)
{
    const struct label l = label_of(label, value);
    page_u64(p, &l, 1, v);
}

static void tiers(struct page *p, const struct wire_kv_stat *s)
{
    page_family(p, "phasepipe:store_tier_bytes", "gauge", "Size of a tier of the store.");
    if (s) {
        by(p, "tier", "memory", s->total * s->slot_bytes);
        by(p, "tier", "disk", s->disk_total * s->slot_bytes);
    }
    page_family(p, "phasepipe:store_tier_used_bytes", "gauge", "Part of a tier that holds KV, leased or cached.");
    if (s) {
        by(p, "tier", "memory", (s->total - (s->free < s->total ? s->free : s->total)) * s->slot_bytes);
        by(p, "tier", "disk", s->disk_used * s->slot_bytes);
    }
    gauge(p, "phasepipe:store_huge_page_bytes", "Part of the memory tier in huge pages.", s,
          s ? (double)s->huge_bytes : 0);
}

/* Writes no store families if no store is polled. */
void metrics_store(struct page *p, const struct stats_poller *w)
{
    if (!poller_has_store(w))
        return;
    const struct wire_kv_stat *s = poller_store(w), *c = poller_store_sum(w);
    gauge(p, "phasepipe:store_up", "1: the store responded within 5 s.", true, s != NULL);
    page_family(p, "phasepipe:store_blocks", "gauge",
                "KV blocks of the memory tier by state. free; cached: unreferenced; leased: of sequences that run or "
                "wait for their transfer; credited: reserved to be written; quarantined: of a client that died.");
    if (s) {
        by(p, "state", "free", s->free);
        by(p, "state", "cached", s->cached);
        by(p, "state", "leased", s->leased);
        by(p, "state", "credited", s->credited);
        by(p, "state", "quarantined", s->quarantined);
    }
    tiers(p, s);
    gauge(p, "phasepipe:store_sequences", "Sequences with a lease.", s, s ? (double)s->seqs : 0);
    gauge(p, "phasepipe:store_clients", "Connected workers.", s, s ? (double)s->clients : 0);
    gauge(p, "phasepipe:store_waiting", "Sequences that wait for a block that another one computes.", s,
          s ? (double)s->waiting : 0);
    counter(p, "phasepipe:store_hit_blocks_total", "Blocks looked up and found.", c->hit_blocks);
    counter(p, "phasepipe:store_miss_blocks_total", "Blocks looked up and not found, to be computed.", c->miss_blocks);
    counter(p, "phasepipe:store_published_blocks_total", "Blocks that workers computed and published.", c->published);
    counter(p, "phasepipe:store_duplicate_blocks_total", "Published blocks that were cached already.", c->duplicate);
    counter(p, "phasepipe:store_evicted_blocks_total", "Blocks evicted for new ones.", c->evicted);
    counter(p, "phasepipe:store_disk_hit_blocks_total", "Blocks read from the disk tier.", c->disk_hits);
    counter(p, "phasepipe:store_disk_bad_blocks_total", "Damaged blocks of the disk tier.", c->disk_bad);
}
