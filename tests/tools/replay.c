/*
 * Plays requests at running services at their times, through a gateway of its own, and counts those within their
 * service levels.
 *
 *     replay --sched URL --tokenize URL --slo-ttft-ms MS --slo-tpot-ms MS < requests
 *
 * A line of stdin is the time of a request in ms from the beginning, a blank, and the request in JSON; times do not
 * fall. One that is refused is not asked again. One line of JSON is the result: how many there were, were answered, and
 * were answered within their service levels, and the same a second of the times of the requests (goodput); times to the
 * first token, and of a further token on average, as the gateway sees them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "cli/cli.h"
#include "gateway/gateway.h"
#include "proc/proc.h"

#define STEP_MS 1000
#define MS 1000000.0

struct played {
    char *line; /* owned */
    size_t n_line;
    double at_ms;
    uint64_t asked, first, last, n;
    bool ended, failed;
};

struct replay {
    struct gateway *g;
    struct played *v;
    size_t n, cap, n_cached, n_prompt;
    double ttft_ms, tpot_ms;
};

static int read_one(struct err *e, struct replay *r, char *line, size_t n)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? 2 * r->cap : 256;
        struct played *p = realloc(r->v, cap * sizeof *p);
        if (!p)
            return err_nomem(e, "requests", cap * sizeof *p);
        r->v = p;
        r->cap = cap;
    }
    char *end;
    double at = strtod(line, &end);
    if (end == line || *end != ' ' || !(at >= (r->n ? r->v[r->n - 1].at_ms : 0)) || !(at < 1e9))
        return err_set(e, ERR_NO, "line %zu: a time in ms that does not fall, and a request", r->n + 1);
    size_t skip = (size_t)(end + 1 - line);
    char *own = malloc(n - skip + 1);
    if (!own)
        return err_nomem(e, "a request", n);
    memcpy(own, line + skip, n - skip + 1);
    r->v[r->n++] = (struct played){.line = own, .n_line = n - skip, .at_ms = at};
    return 0;
}

static int read_all(struct err *e, struct replay *r)
{
    char *line = NULL;
    size_t size = 0;
    ssize_t n;
    int rc = 0;
    while (!rc && (n = getline(&line, &size, stdin)) > 0)
        rc = read_one(e, r, line, (size_t)n - (line[n - 1] == '\n'));
    free(line);
    return rc ? rc : r->n ? 0 : err_set(e, ERR_NO, "no requests");
}

static void came(void *arg, const struct wire_frame *f)
{
    struct replay *r = arg;
    uint64_t seq = f->kind == WIRE_OUT ? f->out.seq : f->kind == WIRE_END ? f->end.seq : f->error.seq;
    if (f->kind == WIRE_HELLO || seq >= r->n)
        return;
    struct played *p = &r->v[seq];
    uint64_t now = time_now_ns();
    if (f->kind == WIRE_OUT && f->out.n_id) {
        p->first = p->first ? p->first : now;
        p->last = now;
        p->n += f->out.n_id;
    } else if (f->kind == WIRE_END || f->kind == WIRE_ERR) {
        p->ended = true;
        p->failed = f->kind == WIRE_ERR;
        if (f->kind == WIRE_END) {
            r->n_cached += f->end.cached_tokens;
            r->n_prompt += f->end.prompt_tokens;
        }
    }
}

static bool any_hope(const struct replay *r, uint64_t now)
{
    for (const struct played *p = r->v; p < r->v + r->n; p++)
        if (!p->ended && (!p->asked || (double)((p->first ? p->first : now) - p->asked) / MS <= r->ttft_ms))
            return true;
    return false;
}

static int play(struct err *e, struct replay *r)
{
    uint64_t begin = time_now_ns();
    size_t next = 0;
    int rc = 0;
    while (!rc && any_hope(r, time_now_ns())) {
        double now_ms = (double)(time_now_ns() - begin) / MS;
        while (next < r->n && r->v[next].at_ms <= now_ms && !rc) {
            struct played *p = &r->v[next];
            p->asked = begin + (uint64_t)(p->at_ms * MS); /* what this program is late by counts */
            rc = gateway_submit(e, r->g, next++, (struct wire_str){0}, p->line, p->n_line);
        }
        double wait = next < r->n ? r->v[next].at_ms - now_ms : r->ttft_ms;
        rc = rc ? rc : gateway_step(e, r->g, wait < 0 ? 0 : wait < STEP_MS ? (int)wait + 1 : STEP_MS);
    }
    return rc;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at_share(double *v, size_t n, double share)
{
    if (!n)
        return 0;
    qsort(v, n, sizeof *v, by_value);
    return v[(size_t)(share * (double)(n - 1) + 0.5)];
}

static int report(struct err *e, const struct replay *r)
{
    size_t good = 0, n_ttft = 0, n_tpot = 0;
    double *ttft = malloc(2 * r->n * sizeof *ttft), *tpot = ttft + r->n;
    if (!ttft)
        return err_nomem(e, "times", 2 * r->n * sizeof *ttft);
    for (const struct played *p = r->v; p < r->v + r->n; p++) {
        if (!p->n)
            continue;
        double first = (double)(p->first - p->asked) / MS, more = 0;
        ttft[n_ttft++] = first;
        if (p->n > 1)
            tpot[n_tpot++] = more = (double)(p->last - p->first) / MS / (double)(p->n - 1);
        good += p->ended && !p->failed && first <= r->ttft_ms && more <= r->tpot_ms;
    }
    double span = (r->v[r->n - 1].at_ms - r->v[0].at_ms) / 1e3;
    printf("{\"requests\":%zu,\"first\":%zu,\"good\":%zu,\"goodput\":%.6f,\"cached\":%.6f,\"ttft_ms\":{\"p50\":%.3f,"
           "\"p90\":%.3f},\"tpot_ms\":{\"p50\":%.3f,\"p90\":%.3f}}\n",
           r->n, n_ttft, good, span > 0 ? (double)good / span : 0,
           r->n_prompt ? (double)r->n_cached / (double)r->n_prompt : 0, at_share(ttft, n_ttft, 0.5),
           at_share(ttft, n_ttft, 0.9), at_share(tpot, n_tpot, 0.5), at_share(tpot, n_tpot, 0.9));
    free(ttft);
    return fflush(stdout) ? err_sys(e, "stdout") : 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct replay r = {0};
    struct gateway_opts o = {.frame = came, .arg = &r};
    const struct cli_opt opts[] = {
        {0, "sched", CLI_STR, &o.sched, "URL", "the scheduler", .lo = 0},
        {0, "tokenize", CLI_STR, &o.tokenize, "URL", "tokenize as a service", .lo = 0},
        {0, "slo-ttft-ms", CLI_F64, &r.ttft_ms, "MS", "service level: time to the first token", .fhi = 1e9},
        {0, "slo-tpot-ms", CLI_F64, &r.tpot_ms, "MS", "service level: time a further token", .fhi = 1e9},
    };
    const struct cli_prog p = {"replay",
                               "--sched URL --tokenize URL < requests",
                               "plays requests at their times",
                               opts,
                               sizeof opts / sizeof *opts,
                               0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    if (!rc && (!o.sched || !o.tokenize || !(r.ttft_ms > 0) || !(r.tpot_ms > 0)))
        rc = err_set(&e, ERR_USAGE, "--sched, --tokenize and both service levels are needed");
    o.slo_ttft_ns = (uint64_t)(r.ttft_ms * MS);
    o.slo_tpot_ns = (uint64_t)(r.tpot_ms * MS);
    proc_wake_soon(true);
    rc = rc ? rc : read_all(&e, &r);
    rc = rc ? rc : gateway_open(&e, &r.g, &o);
    rc = rc ? rc : play(&e, &r);
    rc = rc ? rc : report(&e, &r);
    gateway_close(r.g);
    for (size_t i = 0; i < r.n; i++)
        free(r.v[i].line);
    free(r.v);
    return rc ? cli_fail(p.name, &e) : 0;
}
