/*
 * Measures throughput and latency of the decisions of a scheduler service. A gateway and workers run in this process,
 * each with its own session; the workers compute nothing.
 *
 *     bench_sched URL < runs                           a line of stdin is a run, a line of stdout its result in JSON
 *
 *     workers 64 seqs 4 queued 1000 rate 0 hold 0 seconds 5
 *
 * rate: requests a second; 0: the gateway keeps `queued` requests waiting. hold: ms for which a worker has a request.
 * The result has the work items a second, and the time from sending a request to receiving its work item.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "link/session.h"
#include "proc/proc.h"

#define WORKERS_MAX 256
#define JOBS_MAX (1u << 22)
#define PROMPT 64

struct held {
    struct held *next;
    uint64_t job, order, end_ns;
    uint32_t attempt;
};

struct fake {
    char name[48];
    struct session_hub *hub; /* a hub has one name, so each peer needs its own */
    struct session *to;
    uint64_t n_order; /* work items since its join */
    uint32_t held;
    struct held *first, **last; /* work items by end_ns */
    bool changed;               /* its capacity must be sent */
};

static struct err e;
static struct wire_arena *arena;
static struct fake *fakes;
static struct fake gateway;
static uint64_t *sent_ns;
static uint32_t *latency_us;
static uint64_t n_sent, n_order, n_done, n_refused, inc;
static unsigned long n_worker, seqs, queued, rate, hold;
static char name[32];

static void must(int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "bench_sched: %s\n", e.text);
    exit(rc);
}

static void send_frame(const struct fake *w, const struct wire_frame *f)
{
    must(session_send(&e, w->to, f));
}

static struct wire_frame join_of(const struct fake *w)
{
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = wire_str_of(w->name),
                                .inc = inc,
                                .role = wire_str_of("both"),
                                .compat = wire_str_of("bench"),
                                .seqs = (uint32_t)seqs,
                                .blocks = 1 << 20,
                                .max_len = 4096,
                                .chunk = 512,
                                .pre_a = 1e6f,
                                .pre_b = 1e4f,
                                .dec_a = 1e6f,
                                .dec_b = 1,
                                .dec_c = 1e4f};
    return f;
}

static struct wire_frame capacity_of(const struct fake *w)
{
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){.worker = wire_str_of(w->name),
                                        .inc = inc,
                                        .orders = w->n_order,
                                        .seqs = (uint32_t)seqs - w->held,
                                        .tokens = 1 << 20,
                                        .blocks = 1 << 20};
    return f;
}

static struct wire_frame submit_of(uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of(name),
                                    .job = job,
                                    .n_prompt = PROMPT,
                                    .max_tokens = 16,
                                    .reply = wire_str_of("ipc:///nowhere")};
    return f;
}

/* ---- workers ---- */

/* Reports the work items that have ended, and the free capacity. */
static void report(struct fake *w, uint64_t now)
{
    while (w->first && w->first->end_ns <= now) {
        struct held *h = w->first;
        w->first = h->next;
        if (!w->first)
            w->last = &w->first;
        w->held--;
        w->changed = true;
        struct wire_frame f = {.kind = WIRE_REPORT};
        f.report = (struct wire_report){.worker = wire_str_of(w->name),
                                        .inc = inc,
                                        .gw = wire_str_of(name),
                                        .job = h->job,
                                        .order = h->order,
                                        .attempt = h->attempt,
                                        .what = wire_str_of("ended"),
                                        .n_done = PROMPT,
                                        .n_out = 16,
                                        .reason = WIRE_LENGTH};
        send_frame(w, &f);
        free(h);
    }
    if (!w->changed)
        return;
    struct wire_frame f = capacity_of(w);
    send_frame(w, &f);
    w->changed = false;
}

static void take_order(struct fake *w, const struct wire_order *o, uint64_t now)
{
    struct held *h = calloc(1, sizeof *h);
    if (!h || o->job > n_sent)
        must(err_set(&e, ERR_PROTO, "a work item of a request that was not sent"));
    *h = (struct held){.job = o->job, .order = o->order, .attempt = o->attempt, .end_ns = now + hold * NS_MS};
    *w->last = h;
    w->last = &h->next;
    w->held++;
    w->n_order++;
    w->changed = true;
    latency_us[n_order++] = (uint32_t)((now - sent_ns[o->job]) / 1000);
}

/* ---- events ---- */

static void take_frame(struct fake *w, const struct wire_frame *f, uint64_t now)
{
    if (f->kind == WIRE_ORDER)
        take_order(w, &f->order, now);
    n_done += f->kind == WIRE_DONE;
    n_refused += f->kind == WIRE_REFUSE;
}

static void take_all(struct fake *w)
{
    struct session_event v;
    struct wire_frame f;
    uint64_t now = time_now_ns();
    while (session_hub_next(w->hub, &v)) {
        if (v.type == SESSION_DOWN || v.type == SESSION_REFUSED)
            must(err_set(&e, ERR_SYS, "%s", v.err.text));
        if (v.type != SESSION_FRAME)
            continue;
        wire_arena_reset(arena);
        must(session_frame(&e, &f, arena, &v));
        take_frame(w, &f, now);
    }
}

static void submit_some(uint64_t n)
{
    for (uint64_t i = 0; i < n && n_sent + 1 < JOBS_MAX; i++) {
        struct wire_frame f = submit_of(++n_sent);
        send_frame(&gateway, &f);
        sent_ns[n_sent] = time_now_ns();
    }
}

static uint64_t due(uint64_t begin, uint64_t now)
{
    if (rate)
        return (uint64_t)((double)(now - begin) / NS_S * (double)rate) - n_sent;
    uint64_t waiting = n_sent - n_order - n_refused;
    return waiting < queued ? queued - waiting : 0;
}

static void turn(uint64_t begin, bool more)
{
    struct pollfd p[WORKERS_MAX + 1];
    for (unsigned long i = 0; i < n_worker; i++)
        p[i] = (struct pollfd){.fd = session_hub_fd(fakes[i].hub), .events = POLLIN};
    p[n_worker] = (struct pollfd){.fd = session_hub_fd(gateway.hub), .events = POLLIN};
    poll(p, n_worker + 1, 1);
    take_all(&gateway);
    uint64_t now = time_now_ns();
    for (unsigned long i = 0; i < n_worker; i++) {
        take_all(&fakes[i]);
        report(&fakes[i], now);
        take_all(&fakes[i]); /* sends the reports */
    }
    uint64_t n = more ? due(begin, now) : 0;
    if (n >= (rate ? 1 : 16))
        submit_some(n);
}

static int by_value(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print(uint64_t from, double seconds)
{
    uint64_t n = n_order - from;
    uint32_t *v = latency_us + from;
    qsort(v, n, sizeof *v, by_value);
    printf("{\"orders_s\":%.1f,\"orders\":%llu,\"refused\":%llu,\"p50_ms\":%.3f,\"p99_ms\":%.3f,\"max_ms\":%.3f}\n",
           (double)n / seconds, (unsigned long long)n, (unsigned long long)n_refused, n ? v[(n + 1) / 2 - 1] / 1e3 : 0,
           n ? v[(n * 99 + 99) / 100 - 1] / 1e3 : 0, n ? v[n - 1] / 1e3 : 0);
    fflush(stdout);
}

static void connect_one(struct fake *w, const char *url, const char *role)
{
    const struct session_hub_opts o = {.self = {.role = role, .name = w->name, .inc = inc}};
    must(session_hub_new(&e, &w->hub, &o));
    must(session_dial(&e, &w->to, w->hub, url, "sched", NULL));
    w->last = &w->first;
    while (!session_is_up(w->to)) {
        take_all(w);
        session_hub_wait(w->hub, 10);
    }
}

static void connect_all(const char *url)
{
    for (unsigned long i = 0; i < n_worker; i++) {
        struct fake *w = &fakes[i];
        *w = (struct fake){.changed = true};
        snprintf(w->name, sizeof w->name, "f%lu.%llu", i, (unsigned long long)(inc % 100000));
        connect_one(w, url, "worker");
        struct wire_frame f = join_of(w);
        send_frame(w, &f);
    }
    gateway = (struct fake){0};
    snprintf(gateway.name, sizeof gateway.name, "%s", name);
    connect_one(&gateway, url, "gateway");
}

static void close_one(struct fake *w)
{
    session_free(w->to);
    session_hub_free(w->hub);
    while (w->first) {
        struct held *h = w->first;
        w->first = h->next;
        free(h);
    }
}

static void measure(const char *url, double seconds)
{
    inc = time_now_ns();
    snprintf(name, sizeof name, "bench.%llu", (unsigned long long)inc);
    n_sent = n_order = n_done = n_refused = 0;
    connect_all(url);
    uint64_t begin = time_now_ns();
    while (time_now_ns() < begin + NS_S / 2) /* until all workers have joined */
        turn(begin, false);
    begin = time_now_ns();
    while (time_now_ns() < begin + NS_S / 2)
        turn(begin, true);
    uint64_t from = n_order, start = time_now_ns(), end = start + (uint64_t)(seconds * NS_S);
    while (time_now_ns() < end)
        turn(begin, true);
    double took = (double)(time_now_ns() - start) / NS_S;
    for (unsigned long i = 0; i < n_worker; i++)
        close_one(&fakes[i]);
    close_one(&gateway);
    print(from, took);
}

static double field(const char *line, const char *key)
{
    const char *at = strstr(line, key);
    return at ? strtod(at + strlen(key), NULL) : 0;
}

static unsigned long count(const char *line, const char *key, unsigned long max)
{
    double x = field(line, key);
    return x > 0 ? (x < (double)max ? (unsigned long)x : max) : 0;
}

static void set(const char *line)
{
    n_worker = count(line, "workers ", WORKERS_MAX);
    seqs = count(line, "seqs ", 4096);
    queued = count(line, "queued ", 100000);
    rate = count(line, "rate ", 1000000);
    hold = count(line, "hold ", 60000);
}

int main(int argc, char **argv)
{
    char line[256];
    fakes = calloc(WORKERS_MAX, sizeof *fakes);
    sent_ns = calloc(JOBS_MAX, sizeof *sent_ns);
    latency_us = calloc(JOBS_MAX, sizeof *latency_us);
    arena = wire_arena_new();
    if (!fakes || !sent_ns || !latency_us || !arena || argc < 2)
        return ERR_USAGE;
    proc_write_errors();
    while (fgets(line, sizeof line, stdin)) {
        set(line);
        measure(argv[1], field(line, "seconds "));
    }
    wire_arena_free(arena);
    free(fakes);
    free(sent_ns);
    free(latency_us);
    return 0;
}
