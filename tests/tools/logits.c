/*
 * Logits of every position of a text, for the quality tests. ids: decimal numbers in white space.
 *
 *     logits -m MODEL [--kv-cache-dtype T] [--chunk N] [--threads N] [--isa I] < ids > raw f32 logits [n, vocab]
 *     logits -m MODEL --perplexity WINDOW … < ids     a line of JSON: n, the ids judged, and their mean -log p
 *
 * For a perplexity the text is cut in windows, each with a context of its own; every id but the first of each is
 * judged. The last, incomplete window is left out.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "cli/cli.h"
#include "engine/engine.h"

static int read_ids(struct err *e, uint32_t **ids, int64_t *n, int64_t vocab)
{
    size_t cap = 0;
    char word[32];
    while (scanf("%31s", word) == 1) {
        uint64_t v;
        int rc = cli_u64(e, "id", word, &v, 0, (uint64_t)vocab - 1);
        rc = rc ? rc : vec_reserve(e, ids, &cap, (size_t)*n + 1, sizeof **ids, "ids");
        if (rc)
            return rc;
        (*ids)[(*n)++] = (uint32_t)v;
    }
    return 0;
}

/* Where the logits of position pos … pos+rows-1 go: x is [rows][ld]. */
struct sink {
    const uint32_t *ids; /* of a perplexity; NULL: raw logits to stdout */
    int64_t n_id;        /* of the window */
    int64_t vocab, ld;
    int64_t n; /* judged */
    double nll;
};

/* -log p of `id`, in double, by nothing of the engine's. */
static double surprise(const float *x, int64_t n, uint32_t id)
{
    double max = x[0], sum = 0;
    for (int64_t i = 1; i < n; i++)
        max = x[i] > max ? x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return log(sum) + max - (double)x[id];
}

static int take_rows(struct err *e, struct sink *s, const float *x, int64_t pos, int64_t rows)
{
    for (int64_t r = 0; r < rows; r++) {
        const float *row = x + r * s->ld;
        if (!s->ids) {
            if (fwrite(row, sizeof *row, (size_t)s->vocab, stdout) != (size_t)s->vocab)
                return err_sys(e, "stdout");
        } else if (pos + r + 1 < s->n_id) {
            s->nll += surprise(row, s->vocab, s->ids[pos + r + 1]);
            s->n++;
        }
    }
    return 0;
}

static int run(struct err *e, struct sink *s, struct engine *g, struct kv_pool *pool, const uint32_t *ids, int64_t n,
               int64_t chunk)
{
    struct kv_table kv = {0};
    float *x = aligned_alloc(64, 32 * (size_t)s->ld * sizeof *x);
    int rc = x ? kv_table_grow(e, &kv, pool, (n + 31) / 32) : err_nomem(e, "logits", 32 * (size_t)s->ld * sizeof *x);
    for (int64_t pos = 0; !rc && pos < n; pos += chunk) {
        struct engine_chunk c = {&kv, ids + pos, n - pos < chunk ? n - pos : chunk, pos, ENGINE_ALL, 0};
        rc = engine_step(e, g, &c, 1, NULL, NULL);
        for (int64_t i = 0; !rc && i < c.n; i += 32) {
            int64_t rows = c.n - i < 32 ? c.n - i : 32;
            rc = engine_logits(e, g, x, i, rows);
            rc = rc ? rc : take_rows(e, s, x, pos + i, rows);
        }
    }
    kv_table_release(&kv, pool);
    free(x);
    return rc;
}

static int perplexity(struct err *e, struct sink *s, struct engine *g, struct kv_pool *pool, const uint32_t *ids,
                      int64_t n, int64_t chunk, int64_t window)
{
    int rc = 0;
    s->n_id = window;
    for (int64_t at = 0; !rc && at + window <= n; at += window) {
        s->ids = ids + at;
        rc = run(e, s, g, pool, s->ids, window, chunk);
    }
    if (!rc && !s->n)
        rc = err_set(e, ERR_USAGE, "%lld ids: no window of %lld", (long long)n, (long long)window);
    if (!rc)
        printf("{\"n\":%lld,\"nll\":%.9f,\"perplexity\":%.6f}\n", (long long)s->n, s->nll / (double)s->n,
               exp(s->nll / (double)s->n));
    return rc;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *path = NULL, *kv = "int8", *isa = NULL;
    uint64_t threads = 1, chunk = 512, window = 0;
    const struct cli_opt opts[] = {
        {'m', "model", CLI_STR, &path, "MODEL", "GGUF file", .lo = 0},
        {0, "kv-cache-dtype", CLI_CHOICE, &kv, "T", "int8, bf16 or f16", .choices = "int8|bf16|f16"},
        {0, "chunk", CLI_U64, &chunk, "N", "rows of a step", .lo = 1, .hi = 65536},
        {0, "threads", CLI_U64, &threads, "N", "threads", .lo = 1, .hi = 64},
        {0, "isa", CLI_STR, &isa, "I", "c, avx2 or avx512", .lo = 0},
        {0, "perplexity", CLI_U64, &window, "WINDOW", "ids of a window", .lo = 2, .hi = 1 << 20},
    };
    const struct cli_prog p = {"logits", "-m MODEL < ids > logits",  "logits of every position",
                               opts,     sizeof opts / sizeof *opts, 0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc)
        return rc == CLI_DONE ? 0 : cli_fail("logits", &e);
    enum kern_kv type = !strcmp(kv, "int8") ? KERN_KV_INT8 : !strcmp(kv, "bf16") ? KERN_KV_BF16 : KERN_KV_F16;
    struct model *m = NULL;
    struct kv_pool *pool = NULL;
    struct engine *g = NULL;
    struct sink s;
    uint32_t *ids = NULL;
    int64_t n = 0;
    struct model_opts mo = {.path = path};
    struct kv_layout l;
    rc = model_open(&e, &m, &mo);
    if (!rc)
        rc = read_ids(&e, &ids, &n, m->c.vocab);
    if (!rc) {
        kv_layout_init(&l, type, m->c.n_layer, m->c.n_kv_head, m->c.head_dim);
        rc = kv_pool_new(&e, &pool, &l, (uint64_t)(n / 32 + 1) * l.slot_bytes);
    }
    struct engine_opts eo = {.isa = isa, .threads = (int)threads, .kv = type, .row_max = (int64_t)chunk};
    if (!rc)
        rc = engine_open(&e, &g, m, pool, &eo);
    if (!rc)
        s = (struct sink){.vocab = m->c.vocab, .ld = engine_logits_ld(g)};
    if (!rc)
        rc = window ? perplexity(&e, &s, g, pool, ids, n, (int64_t)chunk, (int64_t)window)
                    : run(&e, &s, g, pool, ids, n, (int64_t)chunk);
    free(ids);
    engine_free(g);
    kv_pool_free(pool);
    model_free(m);
    return rc ? cli_fail("logits", &e) : cli_close_stdout(&e) ? cli_fail("logits", &e) : 0;
}
