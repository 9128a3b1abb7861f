/* bench_engine -m MODEL [--pp N] [--tg N --depth N --batch N] [--threads N] [--kv-cache-dtype T] [--reps N]: times
 * prefill of
 * --pp tokens, or --tg decode steps of --batch sequences that are --depth tokens deep. One JSON line a repetition. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "engine/engine.h"
#include "proc/proc.h"

struct bench {
    struct engine *g;
    struct kv_pool *pool;
    struct kv_table *kv; /* [batch] */
    uint32_t *ids;
    float *logits;
    int64_t batch, vocab, row_max;
};

/* Any ids will do for time; these are spread over the vocabulary. */
static void fill(struct bench *b, int64_t n)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < n; i++) {
        x = x * 1664525u + 1013904223u;
        b->ids[i] = x % (uint32_t)b->vocab;
    }
}

static int prefill(struct err *e, struct bench *b, struct kv_table *kv, int64_t n)
{
    for (int64_t pos = 0; pos < n; pos += b->row_max) {
        int64_t rows = n - pos < b->row_max ? n - pos : b->row_max;
        struct engine_chunk c = {kv, b->ids + pos, rows, pos, pos + rows == n ? ENGINE_LAST : ENGINE_NONE};
        int rc = engine_step(e, b->g, &c, 1, NULL, NULL);
        if (rc)
            return rc;
    }
    engine_logits(b->g, b->logits, 0, 1);
    return 0;
}

static int decode(struct err *e, struct bench *b, int64_t pos)
{
    struct engine_chunk *c = calloc((size_t)b->batch, sizeof *c);
    if (!c)
        return err_nomem(e, "a batch", (size_t)b->batch * sizeof *c);
    for (int64_t i = 0; i < b->batch; i++)
        c[i] = (struct engine_chunk){&b->kv[i], b->ids + i, 1, pos, ENGINE_LAST};
    int rc = engine_step(e, b->g, c, b->batch, NULL, NULL);
    if (!rc)
        engine_logits(b->g, b->logits, 0, b->batch);
    for (int64_t i = 0; !rc && i < b->batch; i++) {
        float max;
        b->ids[i] = (uint32_t)engine_ops(b->g)->argmax(b->logits + i * engine_logits_ld(b->g), b->vocab, &max);
    }
    free(c);
    return rc;
}

static void report(struct bench *b, const char *what, int64_t tokens, uint64_t ns, uint64_t before[PART_N])
{
    uint64_t now[PART_N];
    engine_times(b->g, now);
    printf("{\"test\":\"%s\",\"tokens\":%lld,\"ns\":%llu,\"tokens_per_s\":%.2f,\"isa\":\"%s\",\"parts_ms\":{", what,
           (long long)tokens, (unsigned long long)ns, (double)tokens * 1e9 / (double)ns, engine_isa(b->g));
    for (int i = 0; i < PART_N; i++)
        printf("%s\"%s\":%.3f", i ? "," : "", engine_part_name((enum engine_part)i),
               (double)(now[i] - before[i]) / 1e6);
    printf("}}\n");
    fflush(stdout);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *path = NULL, *kv = "int8", *isa = NULL;
    uint64_t threads = 1, pp = 0, tg = 0, depth = 64, batch = 1, reps = 5, rows = 512;
    const struct cli_opt opts[] = {
        {'m', "model", CLI_STR, &path, "MODEL", "GGUF file", .lo = 0},
        {0, "kv-cache-dtype", CLI_CHOICE, &kv, "T", "int8, bf16 or f16", .choices = "int8|bf16|f16"},
        {0, "pp", CLI_U64, &pp, "N", "prompt tokens", .lo = 0, .hi = 1 << 20},
        {0, "tg", CLI_U64, &tg, "N", "decode steps", .lo = 0, .hi = 1 << 20},
        {0, "depth", CLI_U64, &depth, "N", "tokens before the first step", .lo = 1, .hi = 1 << 20},
        {0, "batch", CLI_U64, &batch, "N", "sequences", .lo = 1, .hi = 256},
        {0, "rows", CLI_U64, &rows, "N", "rows of a prefill step", .lo = 8, .hi = 65536},
        {0, "reps", CLI_U64, &reps, "N", "repetitions", .lo = 1, .hi = 1000},
        {0, "threads", CLI_U64, &threads, "N", "threads", .lo = 1, .hi = 64},
        {0, "isa", CLI_STR, &isa, "I", "c, avx2 or avx512", .lo = 0},
    };
    const struct cli_prog p = {"bench_engine", "-m MODEL --pp N | --tg N", "times the engine",
                               opts,           sizeof opts / sizeof *opts, 0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc)
        return rc == CLI_DONE ? 0 : cli_fail("bench_engine", &e);
    enum kern_kv type = !strcmp(kv, "int8") ? KERN_KV_INT8 : !strcmp(kv, "bf16") ? KERN_KV_BF16 : KERN_KV_F16;
    struct model *m = NULL;
    struct model_opts mo = {.path = path};
    struct bench b = {.batch = (int64_t)batch, .row_max = (int64_t)rows};
    struct kv_layout l;
    int64_t deep = (int64_t)(pp > depth + tg ? pp : depth + tg), blocks = (deep + 31) / 32;
    rc = model_open(&e, &m, &mo);
    if (!rc) {
        b.vocab = m->c.vocab;
        engine_layout(&l, m, type);
        rc = kv_pool_new(&e, &b.pool, &l, (uint64_t)(blocks * b.batch) * l.slot_bytes);
    }
    struct engine_opts eo = {.isa = isa, .threads = (int)threads, .kv = type, .row_max = b.row_max};
    if (!rc)
        rc = engine_open(&e, &b.g, m, b.pool, &eo);
    if (!rc) {
        b.kv = calloc(batch, sizeof *b.kv);
        b.ids = malloc((size_t)(deep + b.batch) * sizeof *b.ids);
        b.logits = aligned_alloc(64, batch * (size_t)engine_logits_ld(b.g) * sizeof *b.logits);
        if (!b.kv || !b.ids || !b.logits)
            rc = err_nomem(&e, "the benchmark", 0);
    }
    for (uint64_t i = 0; !rc && i < batch; i++)
        rc = kv_table_grow(&e, &b.kv[i], b.pool, blocks);
    uint64_t before[PART_N];
    if (!rc)
        fill(&b, deep);
    for (uint64_t i = 0; !rc && pp && i < reps + 1; i++) {
        engine_times(b.g, before);
        uint64_t t = proc_now_ns();
        rc = prefill(&e, &b, &b.kv[0], (int64_t)pp);
        if (!rc && i) /* the first one warms up */
            report(&b, "prefill", (int64_t)pp, proc_now_ns() - t, before);
    }
    for (uint64_t i = 0; !rc && tg && i < batch; i++)
        rc = prefill(&e, &b, &b.kv[i], (int64_t)depth);
    for (uint64_t i = 0; !rc && tg && i < reps; i++) {
        engine_times(b.g, before);
        uint64_t t = proc_now_ns();
        for (uint64_t k = 0; !rc && k < tg; k++)
            rc = decode(&e, &b, (int64_t)(depth + k));
        if (!rc)
            report(&b, "decode", (int64_t)(tg * batch), proc_now_ns() - t, before);
    }
    for (uint64_t i = 0; b.kv && i < batch; i++)
        kv_table_release(&b.kv[i], b.pool);
    free(b.kv);
    free(b.ids);
    free(b.logits);
    engine_free(b.g);
    kv_pool_free(b.pool);
    model_free(m);
    return rc ? cli_fail("bench_engine", &e) : 0;
}
