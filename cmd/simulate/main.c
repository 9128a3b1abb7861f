/* simulate: runs a real policy on a simulated cluster in virtual time. */
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/simulate/simulate.h"
#include "sched/exec.h"

/* OPT-13B on one A100, as published with DistServe. Prefill: ms, ms a token, ms a token squared; decode: ms, ms a token
 * of context, ms a request of the batch. */
#define PREFILL_COEFS "18.1,0.1019,7.122e-6"
#define DECODE_COEFS "19.93,0.000627,0.0385"

struct flags {
    const char *policy, *command, *record, *pre, *dec;
    uint64_t prefill, decode, both, seqs, chunk, blocks, cache, limit, max_len;
    double scale, transfer_us, rtt_us, ttft_ms, tpot_ms;
    bool shared, json;
    struct cli_list settings;
};

static int parse_coefs(struct err *e, double out[3], const char *what, const char *text)
{
    char copy[120];
    snprintf(copy, sizeof copy, "%s", text);
    char *at = copy;
    for (int i = 0; i < 3; i++) {
        char *part = strsep(&at, ",");
        int rc = part ? cli_f64(e, what, part, &out[i], 0, 1e9)
                      : err_set(e, ERR_USAGE, "%s: must be three numbers A,B,C", what);
        if (rc)
            return rc;
        out[i] *= 1e6;
    }
    return at ? err_set(e, ERR_USAGE, "%s: must be three numbers A,B,C", what) : 0;
}

static const struct sched_policy *policy_of(const char *name)
{
    static const struct sched_policy *const all[] = {&sched_policy_kv, &sched_policy_fcfs, &sched_policy_colocate,
                                                     &sched_policy_exec};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->name, name))
            return all[i];
    return NULL;
}

static int set_settings(struct err *e, struct sched *s, const struct flags *f)
{
    struct err unknown;
    sched_set(&unknown, s, "transfer_us",
              f->transfer_us); /* an error is ignored: not every policy has these settings */
    sched_set(&unknown, s, "slo_ttft_ms", f->ttft_ms);
    sched_set(&unknown, s, "slo_tpot_ms", f->tpot_ms);
    int rc = 0;
    for (size_t i = 0; i < f->settings.n && !rc; i++) {
        char name[64];
        double v;
        const char *eq = strchr(f->settings.v[i], '=');
        if (!eq || (size_t)(eq - f->settings.v[i]) >= sizeof name)
            return err_set(e, ERR_USAGE, "--knob %.80s: must be NAME=VALUE", f->settings.v[i]);
        snprintf(name, sizeof name, "%.*s", (int)(eq - f->settings.v[i]), f->settings.v[i]);
        rc = cli_f64(e, name, eq + 1, &v, 0, 1e15);
        rc = rc ? rc : sched_set(e, s, name, v);
    }
    return rc;
}

static json_t *percentiles_json(const double v[4])
{
    return json_pack("{s:f, s:f, s:f, s:f}", "p50", v[0], "p90", v[1], "p99", v[2], "mean", v[3]);
}

static int print_report(struct err *e, const struct flags *f, const struct report *r, const struct wire_stat *st)
{
    if (!f->json) {
        printf("policy    %s\nrequests  %zu: %zu done, %zu refused, %zu failed in %.1f s\n", f->policy, r->n, r->n_done,
               r->n_refused, r->n_failed, r->seconds);
        if (f->ttft_ms || f->tpot_ms)
            printf(
                "goodput   %.3f a second, %.2f %% of all within %g ms to the first token and %g ms a token (0: any)\n",
                r->goodput, 100 * r->attained, f->ttft_ms, f->tpot_ms);
        else
            printf("goodput   %.3f a second, without a service level\n", r->goodput);
        printf("TTFT ms   p50 %.1f  p90 %.1f  p99 %.1f  mean %.1f\n", r->ttft_ms[0], r->ttft_ms[1], r->ttft_ms[2],
               r->ttft_ms[3]);
        printf("TPOT ms   p50 %.2f  p90 %.2f  p99 %.2f  mean %.2f\n", r->tpot_ms[0], r->tpot_ms[1], r->tpot_ms[2],
               r->tpot_ms[3]);
        printf("cached    %.2f %% of the prompts' tokens\nplaced    %llu work items, preempted %llu, retried %llu\n",
               100 * r->hit, (unsigned long long)st->placed, (unsigned long long)st->preempted,
               (unsigned long long)st->retried);
        return 0;
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:f, s:I, s:I}", "policy", f->policy,
                          "requests", (json_int_t)r->n, "done", (json_int_t)r->n_done, "refused",
                          (json_int_t)r->n_refused, "failed", (json_int_t)r->n_failed, "good", (json_int_t)r->n_good,
                          "seconds", r->seconds, "goodput", r->goodput, "attained", r->attained, "ttft_ms",
                          percentiles_json(r->ttft_ms), "tpot_ms", percentiles_json(r->tpot_ms), "cached", r->hit,
                          "work_items", (json_int_t)st->placed, "preempted", (json_int_t)st->preempted);
    char *line = json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(j);
    if (!line)
        return err_nomem(e, "the report", 0);
    puts(line);
    free(line);
    return 0;
}

static int open_record(struct err *e, struct wire_writer **w, int *fd, const char *name)
{
    struct wire_frame hello = {.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = {PROG, 8}}};
    *fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = *fd < 0 ? err_sys(e, "%s", name) : wire_writer_new(e, w, *fd, name);
    return rc ? rc : wire_write(e, *w, &hello);
}

static int close_record(struct err *e, struct wire_writer *w, int fd, size_t n)
{
    struct wire_frame bye = {.kind = WIRE_BYE, .bye = {.from = {PROG, 8}, .n_ok = n}};
    int rc = wire_write(e, w, &bye);
    if (close(fd) && !rc)
        rc = err_sys(e, "the record");
    return rc;
}

static int simulate(struct err *e, struct trace *t, const struct flags *f, struct cluster_options *o)
{
    struct sched *s = NULL;
    struct report r;
    struct wire_stat st;
    uint64_t end_ns;
    int fd = -1;
    struct sched_policy policy = *policy_of(f->policy);
    policy.arg = f->command;
    int rc = sched_new(e, &s, &policy, NULL);
    if (rc)
        return rc;
    rc = set_settings(e, s, f);
    if (!rc && f->record)
        rc = open_record(e, &o->record, &fd, f->record);
    rc = rc ? rc : cluster_run(e, s, t, o, &end_ns);
    if (!rc && o->record)
        rc = close_record(e, o->record, fd, t->n);
    sched_stat(s, &st);
    rc = rc ? rc : report_make(e, &r, t, o->slo_ttft_ns, o->slo_tpot_ns, end_ns);
    rc = rc ? rc : print_report(e, f, &r, &st);
    wire_writer_free(o->record);
    sched_free(s);
    return rc;
}

static int run(struct err *e, char **args, size_t n_arg, const struct flags *f)
{
    struct trace t = {0};
    struct cluster_options o = {.n_prefill = (uint32_t)f->prefill,
                                .n_decode = (uint32_t)f->decode,
                                .n_both = (uint32_t)f->both,
                                .seqs = (uint32_t)f->seqs,
                                .chunk = (uint32_t)f->chunk,
                                .max_len = (uint32_t)f->max_len,
                                .blocks = f->blocks,
                                .cache_blocks = f->cache,
                                .shared = f->shared,
                                .transfer_ns = f->transfer_us * 1e3,
                                .rtt_ns = f->rtt_us * 1e3,
                                .slo_ttft_ns = (uint64_t)(f->ttft_ms * 1e6),
                                .slo_tpot_ns = (uint64_t)(f->tpot_ms * 1e6)};
    int rc = n_arg ? 0 : err_set(e, ERR_USAGE, "TRACE is missing: FILE, or gen:KEY=VALUE,...");
    uint64_t n_worker = f->prefill + f->decode + f->both;
    if (!rc && (!n_worker || n_worker > SCHED_STORES_MAX))
        rc = err_set(e, ERR_USAGE, "%llu workers: must be 1 to %d", (unsigned long long)n_worker, SCHED_STORES_MAX);
    if (!rc && !strcmp(f->policy, "exec") != !!f->command)
        rc = err_set(e, ERR_USAGE, "--command and --policy exec need each other");
    rc = rc ? rc : parse_coefs(e, o.cost.prefill, "--coefs-prefill", f->pre);
    rc = rc ? rc : parse_coefs(e, o.cost.decode, "--coefs-decode", f->dec);
    for (size_t i = 0; i < n_arg && !rc; i++)
        rc = trace_read(e, &t, args[i], f->limit);
    for (size_t i = 0; i < t.n; i++)
        t.v[i].at_ns = (uint64_t)((double)t.v[i].at_ns / f->scale);
    rc = rc ? rc : simulate(e, &t, f, &o);
    trace_free(&t);
    return rc;
}

int main(int argc, char **argv)
{
    struct flags f = {.policy = "kv",
                      .pre = PREFILL_COEFS,
                      .dec = DECODE_COEFS,
                      .prefill = 2,
                      .decode = 2,
                      .seqs = 64,
                      .chunk = 2048,
                      .blocks = 16384,
                      .cache = 16384,
                      .limit = UINT64_MAX,
                      .max_len = 1u << 20,
                      .scale = 1,
                      .transfer_us = 2,
                      .rtt_us = 200};
    const struct cli_opt opts[] = {
        {'P', "prefill", CLI_U64, &f.prefill, "N", "workers that prefill (2)", .hi = SCHED_STORES_MAX},
        {'D', "decode", CLI_U64, &f.decode, "N", "workers that decode (2)", .hi = SCHED_STORES_MAX},
        {'B', "both", CLI_U64, &f.both, "N", "workers of both roles (0)", .hi = SCHED_STORES_MAX},
        {0, "policy", CLI_CHOICE, &f.policy, "NAME", "kv, fcfs, colocate or exec (kv)",
         .choices = "kv|fcfs|colocate|exec"},
        {0, "command", CLI_STR, &f.command, "COMMAND", "the policy of --policy exec", .lo = 0},
        {'k', "knob", CLI_LIST, &f.settings, "NAME=VALUE", "change a setting of scheduler or policy", .lo = 0},
        {0, "slo-ttft-ms", CLI_F64, &f.ttft_ms, "MS", "service level: time to the first token (0: none)", .fhi = 1e9},
        {0, "slo-tpot-ms", CLI_F64, &f.tpot_ms, "MS", "service level: time a further token (0: none)", .fhi = 1e9},
        {0, "coefs-prefill", CLI_STR, &f.pre, "A,B,C", "ms of a prefill: A + B L + C L^2 (OPT-13B, A100)", .lo = 0},
        {0, "coefs-decode", CLI_STR, &f.dec, "A,B,C", "ms of a step: A + B context + C batch (OPT-13B, A100)", .lo = 0},
        {0, "max-num-seqs", CLI_U64, &f.seqs, "N", "sequences of a worker (64)", .lo = 1, .hi = 4096},
        {0, "max-num-batched-tokens", CLI_U64, &f.chunk, "N", "tokens of a step (2048)", .lo = 1, .hi = 1 << 20},
        {0, "max-model-len", CLI_U64, &f.max_len, "N", "tokens of a sequence (1048576)", .lo = 2, .hi = 1u << 30},
        {0, "blocks", CLI_U64, &f.blocks, "N", "slots of a worker's pool (16384)", .lo = 1, .hi = 1u << 30},
        {0, "cache-blocks", CLI_U64, &f.cache, "N", "blocks that a store caches (16384)", .lo = 1, .hi = 1u << 26},
        {0, "shared", CLI_FLAG, &f.shared, NULL, "one store for all workers, as on one host", .lo = 0},
        {0, "transfer-us", CLI_F64, &f.transfer_us, "US", "transfer of a token's KV between stores (2)", .fhi = 1e6},
        {0, "rtt-us", CLI_F64, &f.rtt_us, "US", "a message to the scheduler and back (200)", .fhi = 1e6},
        {0, "scale", CLI_F64, &f.scale, "X", "requests arrive X times as fast (1)", .flo = 1e-6, .fhi = 1e6},
        {'n', "limit", CLI_U64, &f.limit, "N", "use the first N requests of each trace", .lo = 1, .hi = UINT64_MAX},
        {0, "record", CLI_STR, &f.record, "FILE", "write the events as frames, the input of sched", .lo = 0},
        {0, "json", CLI_FLAG, &f.json, NULL, "write the report as a JSON object", .lo = 0},
    };
    const struct cli_prog p = {
        PROG, "[options] TRACE ...",      "a cluster of fake workers in virtual time, under a real policy",
        opts, sizeof opts / sizeof *opts, 64};
    struct err e = {0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : run(&e, argv + 1, n_arg, &f);
    cli_list_free(&f.settings);
    rc = rc ? rc : cli_close_stdout(&e);
    return rc ? cli_fail(PROG, &e) : 0;
}
