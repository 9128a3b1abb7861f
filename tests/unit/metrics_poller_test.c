/*
 * The stats poller with a fake scheduler and a fake store over real sockets, and the resulting page. A Prometheus
 * counter never falls while its process lives, even if the polled processes restart.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "api/metrics.h"
#include "api/stats_poller.h"
#include "base/loop.h"
#include "exposition.h"
#include "link/server.h"
#include "link/session.h"
#include "request/ask.h"
#include "unit/asserts.h"

#define WAIT_MS 5000
#define PERIOD_MS 250 /* of the watch; a quarter of that of the service */

static struct err e;
static struct expo page;

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

struct world {
    char sched_url[64], store_url[64];
    struct loop *loop; /* of the fake store */
    struct session_hub *hub, *tokenize_hub;
    struct session_listener *l;
    struct link_server *store;
    struct wire_stat stat; /* response of the scheduler */
    struct wire_worker worker[80];
    size_t n_worker;
    const uint8_t *garbage; /* sent instead */
    size_t n_garbage;
    bool silent;
    char tokenize_url[64];
    struct session_listener *tokenize; /* NULL: none */
    unsigned n_line;                   /* requests to it that were answered */
    bool deaf;                         /* it does not respond */
    struct session *held;              /* session whose request is not answered */
    struct wire_kv_stat kv;            /* response of the store */
    unsigned n_asked, n_kv_asked;
    struct stats_poller *w;
    struct metrics *m;
};

static void on_kv_frame(void *arg, struct link_conn *c, const struct wire_frame *f)
{
    struct world *x = arg;
    struct wire_frame a;
    if (f->kind == WIRE_KV_OPEN) {
        assert_false(f->kv_open.has_kv);
        a = (struct wire_frame){.kind = WIRE_KV_ARENA, .kv_arena = {.tag = f->kv_open.tag, .lease_ms = 5000}};
    } else {
        assert_int_equal(f->kind, WIRE_KV_STAT);
        a = (struct wire_frame){.kind = WIRE_KV_STAT, .kv_stat = x->kv};
        a.kv_stat.tag = f->kv_tag.tag;
        x->n_kv_asked++;
    }
    link_send(c, &a, NULL);
}

static void on_kv_bad(void *arg, struct link_conn *c, const struct err *bad)
{
    (void)arg;
    (void)c;
    fail_msg("the store was sent: %s", bad->text);
}

static void on_kv_closed(void *arg, struct link_conn *c)
{
    (void)arg;
    (void)c;
}

static void world_of(struct world *x, const char *name, bool store, bool tokenize)
{
    static const struct link_ops ops = {on_kv_frame, on_kv_bad, on_kv_closed};
    bool stale;
    *x = (struct world){.n_worker = 0};
    snprintf(x->sched_url, sizeof x->sched_url, "ipc:///tmp/mw-%d-%s", (int)getpid(), name);
    snprintf(x->store_url, sizeof x->store_url, "unix:/tmp/mw-%d-%s.kv", (int)getpid(), name);
    snprintf(x->tokenize_url, sizeof x->tokenize_url, "ipc:///tmp/mw-%d-%s.tok", (int)getpid(), name);
    OK(session_hub_new(&e, &x->hub, &(struct session_hub_opts){.self = {.role = "sched"}}));
    OK(session_hub_new(&e, &x->tokenize_hub, &(struct session_hub_opts){.self = {.role = "tokenize"}}));
    OK(session_listen(&e, &x->l, x->hub, x->sched_url, "monitor", NULL));
    if (store)
        OK(loop_new(&e, &x->loop));
    if (store)
        OK(link_server_new(&e, &x->store, &stale, x->loop, x->store_url, &ops, x));
    OK(metrics_new(&e, &x->m, "m", 8192));
    if (tokenize)
        OK(session_listen(&e, &x->tokenize, x->tokenize_hub, x->tokenize_url, "monitor", NULL));
    OK(poller_open(&e, &x->w, x->sched_url, tokenize ? x->tokenize_url : NULL, store ? x->store_url : NULL,
                   &(struct session_security){0}, PERIOD_MS));
}

static void world_new(struct world *x, const char *name, bool store)
{
    world_of(x, name, store, false);
}

static void world_free(struct world *x)
{
    poller_close(x->w);
    metrics_free(x->m);
    link_server_free(x->store);
    loop_free(x->loop);
    session_hub_free(x->tokenize_hub);
    session_hub_free(x->hub);
    expo_free(&page);
}

static void answer(struct world *x, struct session *to)
{
    struct wire_frame f = {.kind = WIRE_STAT, .stat = x->stat};
    f.stat.workers = (uint32_t)x->n_worker;
    x->n_asked++;
    if (x->garbage) {
        OK(session_send_bytes(&e, to, x->garbage, x->n_garbage));
        return;
    }
    OK(session_send(&e, to, &f));
    for (size_t i = 0; i < x->n_worker; i++) {
        f = (struct wire_frame){.kind = WIRE_WORKER, .worker = x->worker[i]};
        OK(session_send(&e, to, &f));
    }
}

static void release(struct world *x)
{
    OK(session_send(&e, x->held, &(struct wire_frame){.kind = WIRE_ERR, .error = {.code = 1, .text = {"no", 2}}}));
    x->held = NULL;
    x->n_line++;
}

/* The health check must be a request that tokenize can parse; only that it responds counts. */
static void answer_line(struct world *x, const struct session_event *v)
{
    struct wire_frame f;
    struct wire_arena *a = wire_arena_new();
    OK(session_frame(&e, &f, a, v));
    if (f.kind == WIRE_STAT) {
        f.stat = (struct wire_stat){.bytes = 1234, .bytes_max = 5678};
        if (!x->deaf)
            OK(session_send(&e, v->s, &f));
        wire_arena_free(a);
        return;
    }
    assert_int_equal(f.kind, WIRE_ASK);
    assert_int_equal(f.ask.what.n, 4);
    assert_memory_equal(f.ask.what.p, "line", 4);
    struct ask base, q;
    ask_default(&base);
    OK(ask_read(&e, &q, &base, f.ask.text.p, f.ask.text.n));
    ask_free(&q);
    wire_arena_free(a);
    assert_null(x->held); /* at most one is in flight */
    x->held = v->s;
    if (!x->deaf)
        release(x);
}

static void on_line(struct world *x, const struct session_event *v)
{
    struct wire_frame hello = {.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = {"tokenize", 8}}};
    if (v->type == SESSION_UP)
        OK(session_send(&e, v->s, &hello));
    else if (v->type == SESSION_FRAME)
        answer_line(x, v);
}

static void serve(struct world *x)
{
    struct session_event v;
    session_hub_wait(x->hub, 5);
    while (session_hub_next(x->hub, &v))
        if (v.type == SESSION_FRAME && !x->silent)
            answer(x, v.s);
    while (session_hub_next(x->tokenize_hub, &v))
        on_line(x, &v);
    if (x->store)
        OK(loop_step(&e, x->loop, NULL, 0));
    uint64_t before = now_ms();
    poller_step(x->w);
    assert_true(now_ms() - before < 100); /* it never blocks */
    assert_true(poller_next_ms(x->w) <= PERIOD_MS);
}

/* Runs until n more requests were answered and the responses have arrived. */
static void rounds(struct world *x, unsigned n)
{
    unsigned in_flight = x->n_asked + n, kv = x->n_kv_asked + (x->store ? n : 0);
    uint64_t end = now_ms() + WAIT_MS;
    while ((x->n_asked < in_flight || x->n_kv_asked < kv) && now_ms() < end)
        serve(x);
    assert_true(x->n_asked >= in_flight && x->n_kv_asked >= kv);
    for (uint64_t rest = now_ms() + 60; now_ms() < rest;)
        serve(x);
}

static void look(struct world *x)
{
    const struct metrics_now now = {.running = 77, .waiting = 88};
    char *text;
    size_t n;
    expo_free(&page);
    OK(metrics_text(&e, &text, &n, x->m, &now, x->w));
    expo_read(&page, text, n);
    free(text);
}

static double value(const char *name, const char *labels)
{
    return expo_value(&page, name, labels);
}

static struct wire_worker worker(const char *name, const char *role)
{
    return (struct wire_worker){.name = wire_str_of(name),
                                .role = wire_str_of(role),
                                .compat = wire_str_of("model 00, vocabulary 11, int8, cpu-1, cpu-1"),
                                .seqs = 3,
                                .seqs_all = 8,
                                .blocks = 75,
                                .blocks_all = 100,
                                .n_prefill = 1,
                                .n_decode = 2,
                                .step_ns = 2000000,
                                .batch = 5,
                                .context = 100,
                                .bytes = 31,
                                .bytes_max = 32,
                                .out_bytes = 33,
                                .out_bytes_max = 34};
}

/* ---- tests ---- */

static void statistics_of_scheduler_and_store_are_shown(void **state)
{
    (void)state;
    struct world x;
    size_t n;
    world_new(&x, "say", true);
    assert_null(poller_stat(x.w));
    assert_null(poller_store(x.w));
    assert_null(poller_workers(x.w, &n));
    assert_int_equal(n, 0);
    x.stat = (struct wire_stat){.submitted = 100,
                                .running = 4,
                                .waiting = 6,
                                .stop = 50,
                                .length = 30,
                                .refused = 10,
                                .placed = 200,
                                .retried = 2,
                                .preempted = 3,
                                .stale = 1,
                                .bytes = 1000,
                                .bytes_max = 2000,
                                .workers = 3,
                                .ttft_p50_ns = 5000000};
    x.worker[0] = worker("p0", "prefill");
    x.worker[1] = worker("d \"0\"", "decode");
    x.worker[2] = worker("odd", "a role of tomorrow");
    x.n_worker = 3;
    x.kv = (struct wire_kv_stat){.total = 1000,
                                 .free = 500,
                                 .cached = 200,
                                 .leased = 200,
                                 .credited = 60,
                                 .quarantined = 40,
                                 .slot_bytes = 4096,
                                 .hit_blocks = 7,
                                 .miss_blocks = 9,
                                 .disk_total = 50,
                                 .disk_used = 20,
                                 .disk_hits = 3};
    rounds(&x, 1);
    assert_int_equal(poller_stat(x.w)->running, 4);
    assert_non_null(poller_workers(x.w, &n));
    assert_int_equal(n, 3);
    assert_int_equal(poller_store(x.w)->total, 1000);
    look(&x);
    assert_int_equal(value("vllm:num_requests_running", ""), 4);
    assert_int_equal(value("vllm:num_requests_waiting", ""), 6);
    assert_int_equal(value("vllm:num_requests_waiting_by_reason", "reason=capacity"), 6);
    assert_int_equal(value("vllm:num_preemptions_total", ""), 3);
    assert_true(value("vllm:kv_cache_usage_perc", "model_name=m") == 0.3); /* leased, reserved and quarantined */
    assert_non_null(expo_find(&page, "vllm:cache_config_info", "num_gpu_blocks=1000,block_size=32,cache_dtype=int8"));
    assert_int_equal(value("phasepipe:sched_ended_total", "reason=refused"), 10);
    assert_int_equal(value("phasepipe:sched_placed_total", ""), 200);
    assert_true(value("phasepipe:sched_ttft_seconds", "percentile=50") == 0.005);
    assert_null(expo_find(&page, "phasepipe:sched_ttft_seconds", "percentile=99")); /* not sent */
    assert_int_equal(value("phasepipe:sched_up", ""), 1);
    assert_int_equal(value("phasepipe:store_up", ""), 1);
    assert_int_equal(value("phasepipe:store_blocks", "state=credited"), 60);
    assert_int_equal(value("phasepipe:store_tier_bytes", "tier=memory"), 4096000);
    assert_int_equal(value("phasepipe:store_tier_used_bytes", "tier=memory"), 500 * 4096);
    assert_int_equal(value("phasepipe:store_tier_used_bytes", "tier=disk"), 20 * 4096);
    assert_int_equal(value("phasepipe:store_disk_hit_blocks_total", ""), 3);
    assert_int_equal(value("phasepipe:worker_running", "worker=d \"0\",role=decode"), 3);
    assert_int_equal(value("phasepipe:worker_orders", "worker=p0,role=prefill,phase=decode"), 2);
    assert_true(value("phasepipe:worker_step_seconds", "worker=p0") == 0.002);
    assert_int_equal(value("phasepipe:worker_sequences_free", "worker=odd,role=other"), 3);
    assert_int_equal(value("phasepipe:workers_not_shown", ""), 0);
    assert_int_equal(value("phasepipe:sched_request_bytes", ""), 1000);
    assert_int_equal(value("phasepipe:sched_request_limit_bytes", ""), 2000);
    assert_int_equal(value("phasepipe:worker_request_bytes", "worker=p0,role=prefill"), 31);
    assert_int_equal(value("phasepipe:worker_request_limit_bytes", "worker=p0"), 32);
    assert_int_equal(value("phasepipe:worker_output_bytes", "worker=p0"), 33);
    assert_int_equal(value("phasepipe:worker_output_limit_bytes", "worker=p0"), 34);
    assert_null(expo_find(&page, "phasepipe:tokenize_queued_bytes", "")); /* it is not polled */
    world_free(&x);
}

/* Both restart, one right after its counters grew, the other with smaller ones. */
static void counters_never_fall_over_restarts(void **state)
{
    (void)state;
    struct world x;
    world_new(&x, "fall", true);
    x.stat = (struct wire_stat){.submitted = 100, .preempted = 3, .stop = 90, .placed = 150};
    x.kv = (struct wire_kv_stat){.total = 10, .free = 10, .hit_blocks = 50, .evicted = 20};
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("phasepipe:sched_submitted_total", ""), 100);
    x.stat = (struct wire_stat){.submitted = 5, .preempted = 4, .stop = 2, .placed = 5};
    x.kv = (struct wire_kv_stat){.total = 10, .free = 10, .hit_blocks = 60, .evicted = 1};
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("phasepipe:sched_submitted_total", ""), 105);
    assert_int_equal(value("vllm:num_preemptions_total", ""), 7);
    assert_int_equal(value("phasepipe:sched_ended_total", "reason=stop"), 92);
    assert_int_equal(value("phasepipe:store_hit_blocks_total", ""), 110);
    assert_int_equal(value("phasepipe:store_evicted_blocks_total", ""), 21);
    x.stat.submitted = 8;
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("phasepipe:sched_submitted_total", ""), 108);
    assert_int_equal(value("phasepipe:store_hit_blocks_total", ""), 110);
    world_free(&x);
}

static double steps(const char *le)
{
    return value("vllm:iteration_tokens_total_bucket", le);
}

/* A row has the counts of a worker's whole life; only those since the poller started are shown. */
static void worker_steps_are_counted_from_our_start(void **state)
{
    (void)state;
    struct world x;
    uint32_t a[WIRE_STEPS_MAX] = {[0] = 100, [2] = 7, [13] = UINT32_MAX};
    uint32_t b[WIRE_STEPS_MAX] = {[1] = 4, [12] = 2};
    world_new(&x, "steps", false);
    x.worker[0] = worker("a", "decode");
    x.worker[0].inc = 5;
    x.worker[0].steps = a;
    x.worker[0].n_steps = WIRE_STEPS_MAX;
    x.worker[0].step_tokens = 1000;
    x.worker[1] = worker("c", "both"); /* also alive at our start, but the scheduler has no counts yet */
    x.worker[1].inc = 3;
    x.n_worker = 2;
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("vllm:iteration_tokens_total_count", ""), 0); /* all counts are from before our start */
    a[0] += 3;
    a[13] += 2; /* the 32-bit count has wrapped */
    x.worker[0].step_tokens += 40003;
    x.worker[2] = x.worker[1];
    x.worker[2].steps = b;
    x.worker[2].n_steps = WIRE_STEPS_MAX;
    x.worker[2].step_tokens = 20032;
    x.worker[1] = worker("b", "prefill");
    x.worker[1].inc = 9;
    x.worker[1].steps = b;
    x.worker[1].n_steps = WIRE_STEPS_MAX;
    x.worker[1].step_tokens = 20032;
    x.n_worker = 3;
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("vllm:iteration_tokens_total_count", ""), 3 + 2 + 4 + 2);
    assert_int_equal(value("vllm:iteration_tokens_total_sum", ""), 40003 + 20032);
    assert_int_equal(steps("le=1.0"), 3);
    assert_int_equal(steps("le=8.0"), 7);
    assert_int_equal(steps("le=8192.0"), 7);
    assert_int_equal(steps("le=16384.0"), 9);
    assert_int_equal(steps("le=+Inf"), 11);
    rounds(&x, 1); /* nothing new; a scheduler without counts; older counts of the worker */
    x.worker[0].n_steps = 0;
    x.worker[1].step_tokens--;
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("vllm:iteration_tokens_total_count", ""), 11);
    x.worker[0].n_steps = WIRE_STEPS_MAX; /* the same again, at another index */
    struct wire_worker swap = x.worker[0];
    x.worker[0] = x.worker[1];
    x.worker[1] = swap;
    uint32_t fresh[WIRE_STEPS_MAX] = {[1] = 1};
    x.worker[0].inc++; /* restarted */
    x.worker[0].steps = fresh;
    x.worker[0].step_tokens = 6;
    rounds(&x, 1);
    look(&x);
    assert_int_equal(value("vllm:iteration_tokens_total_count", ""), 12);
    assert_int_equal(value("vllm:iteration_tokens_total_sum", ""), 40003 + 20032 + 6);
    assert_int_equal(steps("le=8.0"), 8);
    assert_true(value("phasepipe:loop_lag_seconds_count", "") >= 3);
    assert_true(value("phasepipe:loop_lag_seconds_bucket", "le=0.1") >= 3);
    world_free(&x);
}

/* Rows are bounded and vanish with their workers; without a store the pool of the fullest worker counts. */
static void rows_of_workers_are_bounded(void **state)
{
    (void)state;
    static char name[80][16];
    struct world x;
    size_t n;
    world_new(&x, "many", false);
    for (x.n_worker = 0; x.n_worker < 80; x.n_worker++) {
        snprintf(name[x.n_worker], sizeof *name, "w%02zu", x.n_worker);
        x.worker[x.n_worker] = worker(name[x.n_worker], x.n_worker % 2 ? "decode" : "both");
    }
    x.worker[79].blocks = 60;
    rounds(&x, 1);
    look(&x);
    size_t rows = 0;
    for (size_t i = 0; i < page.n_sample; i++)
        rows += !strcmp(page.s[i].name, "phasepipe:worker_running");
    assert_int_equal(rows, 64);
    assert_int_equal(value("phasepipe:workers_not_shown", ""), 16);
    assert_non_null(poller_workers(x.w, &n));
    assert_int_equal(n, 80);
    assert_true(value("vllm:kv_cache_usage_perc", "") == 0.4);
    x.n_worker = 1;
    x.worker[0].blocks = 1000; /* more than the total */
    rounds(&x, 1);
    look(&x);
    rows = 0;
    for (size_t i = 0; i < page.n_sample; i++)
        rows += !strcmp(page.s[i].name, "phasepipe:worker_running");
    assert_int_equal(rows, 1);
    assert_int_equal(value("phasepipe:workers_not_shown", ""), 0);
    assert_true(value("vllm:kv_cache_usage_perc", "") == 0);
    world_free(&x);
}

/* Malformed responses change nothing, and the next valid one counts. */
static void malformed_responses_are_ignored(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0xce, 0, 0, 0, 3, 0xc1, 2, 3}, tick[] = {0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 56};
    struct world x;
    world_new(&x, "garbage", false);
    x.stat = (struct wire_stat){.running = 4};
    rounds(&x, 1);
    x.garbage = bytes;
    x.n_garbage = sizeof bytes;
    rounds(&x, 1);
    assert_int_equal(poller_stat(x.w)->running, 4);
    x.garbage = tick;
    x.n_garbage = sizeof tick;
    rounds(&x, 1);
    assert_int_equal(poller_stat(x.w)->running, 4);
    x.garbage = NULL;
    x.stat.running = 5;
    rounds(&x, 1);
    assert_int_equal(poller_stat(x.w)->running, 5);
    world_free(&x);
}

/* A store that accepts and never responds, and a scheduler that never responds, block neither the loop nor the
 * shutdown. */
static void silent_peers_do_not_block_the_loop(void **state)
{
    (void)state;
    struct world x;
    world_new(&x, "silent", true);
    x.silent = true;
    struct link_server *store = x.store;
    x.store = NULL; /* not running */
    for (uint64_t end = now_ms() + 1500; now_ms() < end;)
        serve(&x);
    look(&x);
    assert_int_equal(value("vllm:num_requests_running", ""), 77); /* counted by this gateway */
    assert_int_equal(value("vllm:num_requests_waiting", ""), 88);
    assert_int_equal(value("phasepipe:sched_up", ""), 0);
    assert_int_equal(value("phasepipe:store_up", ""), 0);
    assert_null(expo_find(&page, "vllm:kv_cache_usage_perc", ""));
    uint64_t before = now_ms();
    x.store = store;
    poller_close(x.w);
    x.w = NULL;
    assert_true(now_ms() - before < 1000);
    world_free(&x);
}

/* A stopped tokenize is detected by its silence; time in which the poller itself was stopped does not count. */
static void a_stopped_tokenize_is_detected(void **state)
{
    (void)state;
    struct world x;
    world_of(&x, "stops", false, true);
    for (uint64_t end = now_ms() + WAIT_MS; x.n_line < 2 && now_ms() < end;)
        serve(&x);
    assert_int_equal(x.n_line, 2);
    look(&x);
    assert_int_equal(value("phasepipe:tokenize_queued_bytes", ""), 1234);
    assert_int_equal(value("phasepipe:tokenize_queued_limit_bytes", ""), 5678);
    assert_true(poller_silent_ns(x.w) == 0);
    x.deaf = true;
    for (uint64_t end = now_ms() + WAIT_MS; !x.held && now_ms() < end;)
        serve(&x);
    assert_non_null(x.held);
    uint64_t in_flight = now_ms();
    nanosleep(&(struct timespec){.tv_sec = 6 * PERIOD_MS / 1000, .tv_nsec = 6 * PERIOD_MS % 1000 * 1000000}, NULL);
    serve(&x);
    uint64_t stood = now_ms() - in_flight;
    assert_true(stood >= 6 * PERIOD_MS);
    assert_true(poller_silent_ns(x.w) == 0);
    for (uint64_t end = in_flight + 20000; !poller_silent_ns(x.w) && now_ms() < end;)
        serve(&x);
    uint64_t since = poller_silent_ns(x.w) / 1000000;
    assert_true(since > 0 && now_ms() - since >= 5 * PERIOD_MS);
    assert_in_range(since, in_flight + 5 * PERIOD_MS - 100, in_flight + stood);
    x.deaf = false;
    unsigned n = x.n_line + 1;
    release(&x); /* it continues */
    for (uint64_t end = now_ms() + WAIT_MS; x.n_line == n && now_ms() < end;)
        serve(&x);
    assert_true(poller_silent_ns(x.w) == 0);
    world_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(statistics_of_scheduler_and_store_are_shown),
        cmocka_unit_test(counters_never_fall_over_restarts),
        cmocka_unit_test(worker_steps_are_counted_from_our_start),
        cmocka_unit_test(rows_of_workers_are_bounded),
        cmocka_unit_test(malformed_responses_are_ignored),
        cmocka_unit_test(silent_peers_do_not_block_the_loop),
        cmocka_unit_test(a_stopped_tokenize_is_detected),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
