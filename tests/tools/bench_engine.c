/*
 * Times the engine: a prompt of --pp tokens, or --tg decode steps of --batch sequences that are --depth tokens deep. A
 * line of JSON a repetition, with what a share of the machine's limits needs: multiply-adds, and bytes of a step.
 *
 *     bench_engine -m MODEL --pp N | --tg N [--depth N] [--batch N] [--threads N] [--kv-cache-dtype T] [--reps N]
 *     bench_engine -m MODEL --lines < jobs
 *
 * With --lines the model stays open, and every line of stdin is a job in the same words, "pp 512 threads 2" or "tg 64
 * depth 2048 batch 4 kv f16"; what it does not mention is as on the command line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "cli/cli.h"
#include "engine/engine.h"
#include "kv/bytes.h"

#define WARM_ROWS 64 /* of a prompt before the one that is timed: every weight is read once */
#define WARM_STEPS 2

struct job {
    uint64_t pp, tg, depth, batch, threads, rows, reps;
    const char *kv;
};

struct bench {
    struct model *m;
    const char *isa;
    struct engine *g; /* of threads, rows and kv */
    uint64_t threads, rows;
    enum kern_kv type;
    struct kv_pool *pool; /* of n_kv tables of n_block blocks */
    struct kv_table *kv;
    int64_t n_kv, n_block;
    int64_t filled;         /* tokens that every table holds: those of `ids` */
    uint32_t *ids;          /* [32 * n_block] */
    uint32_t *next;         /* [n_kv] */
    struct engine_row *row; /* [n_kv] */
};

static enum kern_kv kv_of(const char *name)
{
    return !strcmp(name, "int8") ? KERN_KV_INT8 : !strcmp(name, "bf16") ? KERN_KV_BF16 : KERN_KV_F16;
}

static void bench_close(struct bench *b)
{
    for (int64_t i = 0; b->kv && i < b->n_kv; i++)
        kv_table_release(&b->kv[i], b->pool);
    free(b->kv);
    free(b->ids);
    free(b->next);
    free(b->row);
    engine_free(b->g);
    kv_pool_free(b->pool);
    *b = (struct bench){.m = b->m, .isa = b->isa};
}

/* Any ids will do for time; these are spread over the vocabulary. */
static void fill(struct bench *b)
{
    uint32_t x = 12345;
    for (int64_t i = 0; i < 32 * b->n_block; i++) {
        x = x * 1664525u + 1013904223u;
        b->ids[i] = x % (uint32_t)b->m->c.vocab;
    }
}

/* An engine and tables that hold a job; those of the job before are kept where they do. *fresh: they are new. */
static int bench_open(struct err *e, struct bench *b, bool *fresh, const struct job *j)
{
    int64_t deep = (int64_t)(j->pp > j->depth + j->tg + WARM_STEPS ? j->pp : j->depth + j->tg + WARM_STEPS);
    int64_t n_block = (deep + 31) / 32, n_kv = (int64_t)j->batch;
    enum kern_kv type = kv_of(j->kv);
    *fresh = !b->g || b->threads != j->threads || b->rows != j->rows || b->type != type || n_block > b->n_block ||
             n_kv > b->n_kv;
    if (!*fresh)
        return 0;
    bench_close(b);
    struct kv_layout l;
    kv_layout_init(&l, type, b->m->c.n_layer, b->m->c.n_kv_head, b->m->c.head_dim);
    int rc = kv_pool_new(e, &b->pool, &l, (uint64_t)(n_block * n_kv) * l.slot_bytes);
    struct engine_opts eo = {.isa = b->isa, .threads = (int)j->threads, .kv = type, .row_max = (int64_t)j->rows};
    if (!rc)
        rc = engine_open(e, &b->g, b->m, b->pool, &eo);
    if (rc)
        return rc;
    b->threads = j->threads;
    b->rows = j->rows;
    b->type = type;
    b->kv = calloc((size_t)n_kv, sizeof *b->kv);
    b->ids = malloc((size_t)(32 * n_block) * sizeof *b->ids);
    b->next = calloc((size_t)n_kv, sizeof *b->next);
    b->row = calloc((size_t)n_kv, sizeof *b->row);
    if (!b->kv || !b->ids || !b->next || !b->row)
        return err_nomem(e, "the benchmark", 0);
    b->n_kv = n_kv;
    b->n_block = n_block;
    for (int64_t i = 0; !rc && i < n_kv; i++)
        rc = kv_table_grow(e, &b->kv[i], b->pool, n_block);
    fill(b);
    return rc;
}

/* The next id of each of n sequences of `pos` tokens: the best one. */
static int choose(struct err *e, struct bench *b, int64_t n, int64_t pos)
{
    static const struct sample_params greedy = {
        .top_p = 1, .typical_p = 1, .repetition_penalty = 1, .penalty_last_n = -1, .logprobs = -1};
    for (int64_t i = 0; i < n; i++)
        b->row[i] = (struct engine_row){.use = ENGINE_CHOOSE, .position = pos, .params = &greedy};
    int rc = engine_sample(e, b->g, b->row, 0, n);
    for (int64_t i = 0; !rc && i < n; i++) {
        if (b->row[i].err.code)
            *e = b->row[i].err;
        rc = b->row[i].err.code;
        b->next[i] = b->row[i].out.id;
    }
    return rc;
}

static int prefill(struct err *e, struct bench *b, int64_t n)
{
    int64_t row_max = (int64_t)b->rows;
    for (int64_t pos = 0; pos < n; pos += row_max) {
        int64_t rows = n - pos < row_max ? n - pos : row_max;
        struct engine_chunk c = {&b->kv[0], b->ids + pos, rows, pos, pos + rows == n ? ENGINE_LAST : ENGINE_NONE, n};
        int rc = engine_step(e, b->g, &c, 1, NULL, NULL);
        if (rc)
            return rc;
    }
    return choose(e, b, 1, n);
}

/* The KV of the first sequence, computed, and copied into the others: what the same prompt gives, in memory of its own.
 */
static int deepen(struct err *e, struct bench *b, int64_t depth)
{
    if (b->filled >= depth)
        return 0;
    int rc = prefill(e, b, depth);
    size_t slot = kv_pool_layout(b->pool)->slot_bytes;
    for (int64_t i = 1; !rc && i < b->n_kv; i++)
        for (int64_t k = 0; k < (depth + 31) / 32; k++)
            memcpy(kv_layer(b->pool, b->kv[i].slot[k], 0), kv_layer(b->pool, b->kv[0].slot[k], 0), slot);
    b->filled = depth;
    return rc;
}

static int decode(struct err *e, struct bench *b, struct engine_chunk *c, int64_t batch, int64_t pos)
{
    for (int64_t i = 0; i < batch; i++)
        c[i] = (struct engine_chunk){&b->kv[i], b->next + i, 1, pos, ENGINE_LAST, pos};
    int rc = engine_step(e, b->g, c, batch, NULL, NULL);
    return rc ? rc : choose(e, b, batch, pos + 1);
}

/* ---- what was computed and read ---- */

static double mat_bytes(const struct kern_mat *w)
{
    return (double)((w->rows + 15) / 16) * (double)w->group_bytes;
}

struct load {
    double row_macs;     /* linears of a row through all layers but the last */
    double keys_macs;    /* of the last layer: q, k and v, which every row has */
    double rest_macs;    /* and what comes after, for rows whose logits are wanted */
    double head_macs;    /* of such a row */
    double key_macs;     /* of a key that a row sees, all heads of a layer: 2·head_dim each; planes are not counted */
    double key_bytes;    /* of a token's KV, all layers */
    double weight_bytes; /* of a decode step, as packed: matrices and head; of the embedding a row is read */
};

static struct load load_of(const struct bench *b)
{
    const struct model_config *c = &b->m->c;
    struct load l = {.weight_bytes = mat_bytes(&b->m->output), .head_macs = (double)c->vocab * (double)c->hidden};
    for (int64_t i = 0; i < c->n_layer; i++) {
        const struct model_layer *y = &b->m->layer[i];
        const struct kern_mat *w[] = {&y->wq, &y->wk, &y->wv, &y->wo, &y->gate, &y->up, &y->down};
        for (size_t k = 0; k < sizeof w / sizeof *w; k++) {
            double macs = (double)w[k]->rows * (double)w[k]->cols;
            l.weight_bytes += mat_bytes(w[k]);
            *(i < c->n_layer - 1 ? &l.row_macs : k < 3 ? &l.keys_macs : &l.rest_macs) += macs;
        }
    }
    l.key_macs = 2.0 * c->n_head * c->head_dim;
    l.key_bytes = (double)c->n_layer * c->n_kv_head * (double)kern_kv_tile_bytes(b->type, c->head_dim) / 32;
    return l;
}

/*
 * What a job needs, which is never more than the engine does: the last layer and the head serve the rows whose logits
 * are wanted, the last one of a prompt. The rate of attention takes the time of the caller's thread, which does an
 * equal share, for that of all.
 */
static void report(struct bench *b, const struct job *j, uint64_t ns, const uint64_t before[PART_N])
{
    uint64_t now[PART_N];
    struct load l = load_of(b);
    double n = (double)j->pp, batch = (double)j->batch, steps = (double)j->tg, above = (double)b->m->c.n_layer - 1;
    double rows = j->pp ? n : batch * steps, wanted = j->pp ? 1 : rows;
    double keys = j->pp ? n * (n + 1) / 2 : rows * ((double)j->depth + (steps + 1) / 2 + WARM_STEPS);
    double attn = l.key_macs * (above * keys + (j->pp ? n : keys));
    double linear = rows * (l.row_macs + l.keys_macs) + wanted * (l.rest_macs + l.head_macs);
    engine_times(b->g, now);
    double attn_ns = (double)(now[PART_ATTN] - before[PART_ATTN]);
    printf("{\"test\":\"%s\",\"tokens\":%.0f,\"ns\":%llu,\"tokens_per_s\":%.2f,\"isa\":\"%s\",\"threads\":%llu,"
           "\"kv\":\"%s\",\"linear_macs\":%.0f,\"attn_macs\":%.0f,\"attn_gmacs\":%.2f,\"model_bytes\":%llu,"
           "\"key_bytes\":%.1f",
           j->pp ? "prefill" : "decode", rows, (unsigned long long)ns, rows * 1e9 / (double)ns, engine_isa(b->g),
           (unsigned long long)b->threads, kern_kv_name(b->type), linear, attn, attn_ns > 0 ? attn / attn_ns : 0,
           (unsigned long long)b->m->weight_bytes, l.key_bytes);
    if (!j->pp)
        printf(",\"batch\":%llu,\"depth\":%llu,\"steps\":%llu,\"weight_bytes\":%.0f,\"kv_bytes\":%.0f",
               (unsigned long long)j->batch, (unsigned long long)j->depth, (unsigned long long)j->tg, l.weight_bytes,
               keys / steps * l.key_bytes);
    printf(",\"parts_ms\":{");
    for (int i = 0; i < PART_N; i++)
        printf("%s\"%s\":%.3f", i ? "," : "", engine_part_name((enum engine_part)i),
               (double)(now[i] - before[i]) / 1e6);
    printf("}}\n");
}

/* ---- jobs ---- */

static int run_prefill(struct err *e, struct bench *b, const struct job *j, bool fresh)
{
    uint64_t before[PART_N], warm = fresh ? j->rows : WARM_ROWS;
    int rc = prefill(e, b, (int64_t)(j->pp < warm ? j->pp : warm));
    for (uint64_t i = 0; !rc && i < j->reps; i++) {
        engine_times(b->g, before);
        uint64_t t = time_now_ns();
        rc = prefill(e, b, (int64_t)j->pp);
        t = time_now_ns() - t;
        if (!rc)
            report(b, j, t, before);
    }
    return rc;
}

static int run_decode(struct err *e, struct bench *b, const struct job *j)
{
    int64_t depth = (int64_t)j->depth;
    struct engine_chunk *c = calloc(j->batch, sizeof *c);
    int rc = c ? deepen(e, b, depth) : err_nomem(e, "a batch", j->batch * sizeof *c);
    for (uint64_t i = 0; !rc && i < j->reps; i++) {
        uint64_t before[PART_N], t = 0;
        b->filled = depth; /* the steps write other tokens after these */
        for (int64_t k = 0; k < (int64_t)j->batch; k++)
            b->next[k] = b->ids[k];
        for (int64_t k = 0; !rc && k < (int64_t)j->tg + WARM_STEPS; k++) {
            if (k == WARM_STEPS) {
                engine_times(b->g, before);
                t = time_now_ns();
            }
            rc = decode(e, b, c, (int64_t)j->batch, depth + k);
        }
        t = time_now_ns() - t;
        if (!rc)
            report(b, j, t, before);
    }
    free(c);
    return rc;
}

static int run(struct err *e, struct bench *b, const struct job *j)
{
    bool fresh;
    if (!j->pp == !j->tg)
        return err_set(e, ERR_USAGE, "a job is a prompt (pp) or decode steps (tg)");
    int rc = bench_open(e, b, &fresh, j);
    if (!rc)
        rc = j->pp ? run_prefill(e, b, j, fresh) : run_decode(e, b, j);
    return rc ? rc : fflush(stdout) ? err_sys(e, "stdout") : 0;
}

static int parse_job(struct err *e, struct job *j, char *line)
{
    struct {
        const char *name;
        uint64_t *value, lo, hi;
    } word[] = {{"pp", &j->pp, 1, 1 << 20},     {"tg", &j->tg, 1, 1 << 20},   {"depth", &j->depth, 1, 1 << 20},
                {"batch", &j->batch, 1, 256},   {"rows", &j->rows, 8, 65536}, {"reps", &j->reps, 1, 1000},
                {"threads", &j->threads, 1, 64}};
    char *save, *name = strtok_r(line, " \n", &save);
    for (; name; name = strtok_r(NULL, " \n", &save)) {
        char *value = strtok_r(NULL, " \n", &save);
        size_t i = 0, n = sizeof word / sizeof *word;
        if (!value)
            return err_set(e, ERR_USAGE, "%s: without a value", name);
        if (!strcmp(name, "kv")) {
            j->kv = !strcmp(value, "int8")   ? "int8"
                    : !strcmp(value, "bf16") ? "bf16"
                    : !strcmp(value, "f16")  ? "f16"
                                             : NULL;
            if (!j->kv)
                return err_set(e, ERR_USAGE, "kv %s: int8, bf16 or f16", value);
            continue;
        }
        while (i < n && strcmp(name, word[i].name) != 0)
            i++;
        if (i == n)
            return err_set(e, ERR_USAGE, "%s: not a word of a job", name);
        int rc = cli_u64(e, name, value, word[i].value, word[i].lo, word[i].hi);
        if (rc)
            return rc;
    }
    return 0;
}

static int run_lines(struct err *e, struct bench *b, const struct job *base)
{
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        struct job j = *base;
        int rc = parse_job(e, &j, line);
        if (!rc)
            rc = run(e, b, &j);
        if (rc)
            return rc;
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    const char *path = NULL, *isa = NULL;
    struct job j = {.depth = 64, .batch = 1, .threads = 1, .rows = 512, .reps = 5, .kv = "int8"};
    bool lines = false;
    const struct cli_opt opts[] = {
        {'m', "model", CLI_STR, &path, "MODEL", "GGUF file", .lo = 0},
        {0, "kv-cache-dtype", CLI_CHOICE, &j.kv, "T", "int8, bf16 or f16", .choices = "int8|bf16|f16"},
        {0, "pp", CLI_U64, &j.pp, "N", "prompt tokens", .lo = 0, .hi = 1 << 20},
        {0, "tg", CLI_U64, &j.tg, "N", "decode steps", .lo = 0, .hi = 1 << 20},
        {0, "depth", CLI_U64, &j.depth, "N", "tokens before the first step", .lo = 1, .hi = 1 << 20},
        {0, "batch", CLI_U64, &j.batch, "N", "sequences", .lo = 1, .hi = 256},
        {0, "rows", CLI_U64, &j.rows, "N", "rows of a prefill step", .lo = 8, .hi = 65536},
        {0, "reps", CLI_U64, &j.reps, "N", "repetitions", .lo = 1, .hi = 1000},
        {0, "threads", CLI_U64, &j.threads, "N", "threads", .lo = 1, .hi = 64},
        {0, "isa", CLI_STR, &isa, "I", "c, avx2 or avx512", .lo = 0},
        {0, "lines", CLI_FLAG, &lines, NULL, "jobs from stdin, one a line", .lo = 0},
    };
    const struct cli_prog p = {"bench_engine",
                               "-m MODEL --pp N | --tg N | --lines < jobs",
                               "times the engine",
                               opts,
                               sizeof opts / sizeof *opts,
                               0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc)
        return rc == CLI_DONE ? 0 : cli_fail("bench_engine", &e);
    struct bench b = {.isa = isa};
    struct model_opts mo = {.path = path};
    rc = model_open(&e, &b.m, &mo);
    if (!rc)
        rc = lines ? run_lines(&e, &b, &j) : run(&e, &b, &j);
    bench_close(&b);
    model_free(b.m);
    return rc ? cli_fail("bench_engine", &e) : 0;
}
