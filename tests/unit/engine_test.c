/*
 * The engine on models of odd head geometry (heads, KV heads and head size that do not follow from each other): its
 * logits against full attention in double, computed here, and the determinism promise at the level of steps. Weights
 * are F32 with bits that bf16 lacks.
 */
#include "unit/model_build.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "engine/engine.h"
#include "kv/bytes.h"
#include "proc/cores.h"

#define N 300 /* tokens: two partitions */

static char dir[] = "/tmp/engine_test.XXXXXX";
static char path[64];
static uint32_t ids[N];

/* ---- the reference ---- */

static double weight(const struct shape *s, uint64_t row, uint64_t col, uint64_t cols)
{
    return (double)value_at(row * cols + col, s->fine);
}

static void mul(double *out, const struct shape *s, const double *x, uint64_t cols, uint64_t rows)
{
    for (uint64_t r = 0; r < rows; r++) {
        out[r] = 0;
        for (uint64_t c = 0; c < cols; c++)
            out[r] += weight(s, r, c, cols) * x[c];
    }
}

static void norm(double *out, const double *x, uint64_t n)
{
    double sum = 0;
    for (uint64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    for (uint64_t i = 0; i < n; i++)
        out[i] = x[i] / sqrt(sum / (double)n + (double)1e-5f) * 1.5;
}

static void rotate(double *x, uint64_t heads, uint64_t hd, int64_t pos)
{
    for (uint64_t h = 0; h < heads; h++)
        for (uint64_t i = 0; i < hd / 2; i++) {
            double a = (double)pos * pow(10000, -2.0 * (double)i / (double)hd), c = cos(a), sn = sin(a);
            double *p = x + h * hd + 2 * i, x0 = p[0], x1 = p[1];
            p[0] = x0 * c - x1 * sn;
            p[1] = x0 * sn + x1 * c;
        }
}

/* Rounds to f16, as K and V are stored: the scores here are some hundreds, so the rounding is visible. */
static void to_f16(double *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        x[i] = (double)(_Float16)x[i];
}

/* Logits of the last of n tokens. All layers of the test models hold the same numbers, but have their own K and V. */
static void reference(double *logits, const struct shape *s, int64_t n)
{
    uint64_t nq = s->heads * s->head_dim, nk = s->kv * s->head_dim;
    double *x = calloc((size_t)n * s->hidden, sizeof *x), *k = calloc((size_t)n * nk, sizeof *k);
    double *v = calloc((size_t)n * nk, sizeof *v), h[512], q[512], o[512], g[512], u[512];
    assert_true(x && k && v);
    for (int64_t t = 0; t < n; t++)
        for (uint64_t i = 0; i < s->hidden; i++)
            x[(uint64_t)t * s->hidden + i] = weight(s, ids[t], i, s->hidden);
    for (uint64_t l = 0; l < s->layers; l++) {
        for (int64_t t = 0; t < n; t++) {
            norm(h, x + (uint64_t)t * s->hidden, s->hidden);
            mul(k + (uint64_t)t * nk, s, h, s->hidden, nk);
            mul(v + (uint64_t)t * nk, s, h, s->hidden, nk);
            rotate(k + (uint64_t)t * nk, s->kv, s->head_dim, t);
            to_f16(k + (uint64_t)t * nk, nk);
            to_f16(v + (uint64_t)t * nk, nk);
        }
        for (int64_t t = 0; t < n; t++) {
            double *xt = x + (uint64_t)t * s->hidden, p[N];
            norm(h, xt, s->hidden);
            mul(q, s, h, s->hidden, nq);
            rotate(q, s->heads, s->head_dim, t);
            for (uint64_t head = 0; head < s->heads; head++) {
                uint64_t kh = head / (s->heads / s->kv);
                double max = -INFINITY, sum = 0;
                for (int64_t j = 0; j <= t; j++) {
                    p[j] = 0;
                    for (uint64_t i = 0; i < s->head_dim; i++)
                        p[j] += q[head * s->head_dim + i] * k[(uint64_t)j * nk + kh * s->head_dim + i];
                    p[j] /= sqrt((double)s->head_dim);
                    max = fmax(max, p[j]);
                }
                for (int64_t j = 0; j <= t; j++)
                    sum += p[j] = exp(p[j] - max);
                for (uint64_t i = 0; i < s->head_dim; i++) {
                    double a = 0;
                    for (int64_t j = 0; j <= t; j++)
                        a += p[j] / sum * v[(uint64_t)j * nk + kh * s->head_dim + i];
                    o[head * s->head_dim + i] = a;
                }
            }
            mul(h, s, o, nq, s->hidden);
            for (uint64_t i = 0; i < s->hidden; i++)
                xt[i] += h[i];
            norm(h, xt, s->hidden);
            mul(g, s, h, s->hidden, s->ffn);
            mul(u, s, h, s->hidden, s->ffn);
            for (uint64_t i = 0; i < s->ffn; i++)
                g[i] = g[i] / (1 + exp(-g[i])) * u[i];
            mul(h, s, g, s->ffn, s->hidden);
            for (uint64_t i = 0; i < s->hidden; i++)
                xt[i] += h[i];
        }
    }
    norm(h, x + (uint64_t)(n - 1) * s->hidden, s->hidden);
    mul(logits, s, h, s->hidden, s->vocab);
    free(x);
    free(k);
    free(v);
}

/* ---- the engine ---- */

struct config {
    const char *isa;
    enum kern_kv kv;
    int threads;
    int64_t chunk, stale; /* stale: fills the pool with 0xff first */
    uint64_t delay;
    bool mate; /* with another sequence at another position in the step */
    int lent;  /* instead of `threads`: threads on borrowed cores, and one on its own core */
};

/* ---- cores that their owner lends and reclaims at random times ---- */

static const int mine[] = {0}, lent[] = {1, 2, 3};

static cpu_set_t all;

struct lender {
    struct cores *owner, *guest;
    atomic_bool stop;
    pthread_t thread;
};

static void *lend(void *arg)
{
    struct lender *l = arg;
    for (uint32_t x = 7; !l->stop;) {
        x = x * 1664525u + 1013904223u;
        struct timespec busy = {0, (long)(x >> 15)}, rest = {0, (long)(x * 5 >> 13)};
        cores_work(l->owner);
        nanosleep(&busy, NULL);
        cores_rest(l->owner);
        nanosleep(&rest, NULL);
    }
    return NULL;
}

static void lender_start(struct lender *l, int n)
{
    struct err e = {0};
    char file[96];
    snprintf(file, sizeof file, "%s.cores", path);
    struct cores_opts o = {.cpu = lent, .n = n, .path = file},
                      g = {.cpu = mine, .n = 1, .borrow = lent, .n_borrow = n, .path = file, .rest_ns = 1};
    if (cores_open(&e, &l->owner, &o) || cores_open(&e, &l->guest, &g))
        fail_msg("%s", e.text);
    l->stop = false;
    assert_int_equal(pthread_create(&l->thread, NULL, lend, l), 0);
}

static void lender_end(struct lender *l)
{
    l->stop = true;
    pthread_join(l->thread, NULL);
    cores_close(l->guest);
    cores_close(l->owner);
    sched_setaffinity(0, sizeof all, &all); /* later tests must not be pinned to a core */
}

static struct model *model_of(const struct shape *s)
{
    struct gguf_build b = llama(s);
    build_write(&b, path);
    build_free(&b);
    struct err e = {0};
    struct model *m = NULL;
    if (model_open(&e, &m, &(struct model_opts){.path = path}))
        fail_msg("%s", e.text);
    return m;
}

/* Logits of the last of n tokens, by steps of h->chunk. */
static void run(float *out, const struct model *m, const struct config *h, int64_t n)
{
    struct err e = {0};
    struct kv_layout l;
    struct kv_pool *pool = NULL;
    struct engine *g = NULL;
    struct lender lender = {0};
    kv_layout_init(&l, h->kv, m->c.n_layer, m->c.n_kv_head, m->c.head_dim);
    assert_int_equal(kv_pool_new(&e, &pool, &l, 32 * l.slot_bytes), 0);
    if (h->lent)
        lender_start(&lender, h->lent);
    struct engine_opts o = {.isa = h->isa,
                            .threads = h->threads,
                            .cores = lender.guest,
                            .kv = h->kv,
                            .row_max = 512,
                            .delay_seed = h->delay};
    if (engine_open(&e, &g, m, pool, &o))
        fail_msg("%s", e.text);
    struct kv_table kv = {0}, mate = {0};
    assert_int_equal(kv_table_grow(&e, &kv, pool, (n + 31) / 32), 0);
    assert_int_equal(kv_table_grow(&e, &mate, pool, (n + 31) / 32), 0);
    if (h->stale)
        for (int64_t i = 0; i < kv.n; i++)
            memset(kv_layer(pool, kv.slot[i], 0), 0xff, l.layer_bytes * (size_t)l.n_layer);
    for (int64_t pos = 0; pos < n; pos += h->chunk) {
        int64_t rows = n - pos < h->chunk ? n - pos : h->chunk;
        struct engine_chunk c[2] = {{&mate, ids, 1, pos / h->chunk, ENGINE_ALL, 0},
                                    {&kv, ids + pos, rows, pos, ENGINE_LAST, 0}};
        bool beside = h->mate && pos / h->chunk < n;
        assert_int_equal(engine_step(&e, g, beside ? c : c + 1, beside ? 2 : 1, NULL, NULL), 0);
        if (pos + rows < n)
            continue;
        float *x = aligned_alloc(64, 8 * (size_t)engine_logits_ld(g) * sizeof *x);
        assert_non_null(x);
        assert_int_equal(engine_logits(&e, g, x, 0, beside ? 2 : 1), 0);
        memcpy(out, x + (beside ? engine_logits_ld(g) : 0), (size_t)m->c.vocab * sizeof *x);
        free(x);
    }
    kv_table_release(&kv, pool);
    kv_table_release(&mate, pool);
    engine_free(g);
    if (h->lent)
        lender_end(&lender);
    kv_pool_free(pool);
}

static const struct shape shapes[] = {
    {.hidden = 64, .heads = 4, .kv = 4, .head_dim = 16, .layers = 2, .ffn = 96, .vocab = 40, .fine = true},
    {.hidden = 96, .heads = 6, .kv = 2, .head_dim = 32, .layers = 2, .ffn = 128, .vocab = 50, .fine = true},
    {.hidden = 112, .heads = 7, .kv = 1, .head_dim = 16, .layers = 2, .ffn = 72, .vocab = 33, .fine = true},
    {.hidden = 64,
     .heads = 8,
     .kv = 2,
     .head_dim = 32,
     .layers = 2,
     .ffn = 64,
     .vocab = 48,
     .fine = true,
     .untied = true},
};

#ifdef __SANITIZE_THREAD__ /* slow with the sanitizer, and other instruction sets have the same synchronization */
static const char *const isas[] = {"avx512", "avx2"};
#else
static const char *const isas[] = {"c", "avx2", "avx512", "avx512-fma", "avx512-dot"};
#endif

static bool supported(const char *isa)
{
    struct err e;
    const struct kern_ops *k;
    return kern_select(&e, &k, isa) == 0;
}

static void matches_the_reference(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        struct model *m = model_of(s);
        for (int64_t n = 1; n <= 33; n += 16) {
            double want[64], scale = 0;
            float have[64];
            reference(want, s, n);
            run(have, m, &(struct config){.kv = KERN_KV_F16, .threads = 1, .chunk = 512}, n);
            for (uint64_t j = 0; j < s->vocab; j++)
                scale = fmax(scale, fabs(want[j]));
            for (uint64_t j = 0; j < s->vocab; j++)
                if (!(fabs((double)have[j] - want[j]) <= 1e-3 * scale))
                    fail_msg("shape %zu, %d tokens, logit %d: %g, reference %g", i, (int)n, (int)j, (double)have[j],
                             want[j]);
        }
        model_free(m);
    }
}

/* int8 KV is coarser, but must stay near the same reference. */
static void int8_kv_is_close_to_the_reference(void **state)
{
    (void)state;
    const struct shape *s = &shapes[1];
    struct model *m = model_of(s);
    double want[64], scale = 0;
    float have[64];
    reference(want, s, 33);
    run(have, m, &(struct config){.kv = KERN_KV_INT8, .threads = 1, .chunk = 512}, 33);
    for (uint64_t j = 0; j < s->vocab; j++)
        scale = fmax(scale, fabs(want[j]));
    for (uint64_t j = 0; j < s->vocab; j++)
        assert_true(fabs((double)have[j] - want[j]) <= 3e-2 * scale);
    model_free(m);
}

static void every_configuration_gives_the_same_bits(void **state)
{
    (void)state;
    static const enum kern_kv types[] = {KERN_KV_INT8, KERN_KV_BF16, KERN_KV_F16};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct model *m = model_of(&shapes[i]);
        size_t bytes = shapes[i].vocab * sizeof(float);
        for (int t = 0; t < 3; t++) {
            float want[64], have[64];
            run(want, m, &(struct config){.isa = "c", .kv = types[t], .threads = 1, .chunk = 512}, N);
            const struct config configs[] = {
                {.kv = types[t], .threads = 1, .chunk = 1, .stale = 1},
                {.kv = types[t], .threads = 2, .chunk = 7, .stale = 1},
                {.kv = types[t], .threads = 3, .chunk = 32, .stale = 1, .mate = true},
                {.kv = types[t], .threads = 4, .chunk = 100, .stale = 1, .mate = true},
                {.kv = types[t], .threads = 2, .chunk = 299, .stale = 1},
                {.kv = types[t], .threads = 2, .chunk = 64, .delay = 99},
                {.kv = types[t], .threads = 3, .chunk = 250, .stale = 1, .delay = 7, .mate = true},
                {.kv = types[t], .threads = 2, .chunk = 150, .delay = 5, .mate = true},
                {.kv = types[t], .lent = 1, .chunk = 3, .stale = 1},
                {.kv = types[t], .lent = 1, .chunk = 300, .stale = 1},
                {.kv = types[t], .lent = 3, .chunk = 60, .stale = 1, .mate = true},
                {.kv = types[t], .lent = 2, .chunk = 270, .delay = 3, .mate = true},
            };
            for (size_t w = 0; w < sizeof configs / sizeof *configs; w++)
                for (size_t a = 0; a < sizeof isas / sizeof *isas; a++) {
                    if (!supported(isas[a]) || (configs[w].chunk == 1 && a == 1))
                        continue;
                    struct config h = configs[w];
                    h.isa = isas[a];
                    run(have, m, &h, N);
                    if (memcmp(want, have, bytes))
                        fail_msg("shape %zu, KV %s, configuration %zu, %s: bits differ", i, kern_kv_name(types[t]), w,
                                 isas[a]);
                }
        }
        model_free(m);
    }
}

#define LONG 560 /* tokens: three partitions */
#define MATES 8

/* Logits of one more token for MATES sequences of different lengths, in one step or one after another. */
static void decode_batch(float *out, const struct model *m, const char *isa, enum kern_kv kv, int threads,
                         bool together)
{
    struct err e = {0};
    struct kv_layout l;
    struct kv_pool *pool = NULL;
    struct engine *g = NULL;
    struct kv_table t[MATES] = {{0}};
    struct engine_chunk c[MATES];
    uint32_t text[LONG + 1];
    kv_layout_init(&l, kv, m->c.n_layer, m->c.n_kv_head, m->c.head_dim);
    assert_int_equal(kv_pool_new(&e, &pool, &l, (LONG / 32 + 2) * MATES * l.slot_bytes), 0);
    struct engine_opts o = {.isa = isa, .threads = threads, .kv = kv, .row_max = LONG, .delay_seed = together};
    assert_int_equal(engine_open(&e, &g, m, pool, &o), 0);
    float *x = aligned_alloc(64, MATES * (size_t)engine_logits_ld(g) * sizeof *x);
    assert_non_null(x);
    for (int i = 0; i <= LONG; i++)
        text[i] = ids[i % N];
    for (int i = 0; i < MATES; i++) {
        int64_t n = LONG - 6 * i;
        assert_int_equal(kv_table_grow(&e, &t[i], pool, n / 32 + 1), 0);
        c[i] = (struct engine_chunk){&t[i], text + i % 3, n, 0, ENGINE_NONE, 0};
        assert_int_equal(engine_step(&e, g, &c[i], 1, NULL, NULL), 0);
        c[i] = (struct engine_chunk){&t[i], text + i, 1, n, ENGINE_LAST, 0};
    }
    for (int i = 0; i < MATES; i += together ? MATES : 1) {
        int n = together ? MATES : 1;
        assert_int_equal(engine_step(&e, g, c + i, n, NULL, NULL), 0);
        assert_int_equal(engine_logits(&e, g, x, 0, n), 0);
        for (int j = 0; j < n; j++)
            memcpy(out + (i + j) * m->c.vocab, x + j * engine_logits_ld(g), (size_t)m->c.vocab * sizeof *x);
    }
    for (int i = 0; i < MATES; i++)
        kv_table_release(&t[i], pool);
    free(x);
    engine_free(g);
    kv_pool_free(pool);
}

/* Many sequences with long contexts divide attention into other work units than one. */
static void long_batches_give_the_same_bits(void **state)
{
    (void)state;
    static const enum kern_kv types[] = {KERN_KV_INT8, KERN_KV_BF16, KERN_KV_F16};
    struct model *m = model_of(&shapes[1]);
    float want[MATES * 64], have[MATES * 64];
    for (int t = 0; t < 3; t++) {
        decode_batch(want, m, "c", types[t], 1, false);
        for (int threads = 1; threads <= 3; threads++)
            for (size_t a = 1; a < sizeof isas / sizeof *isas; a++) {
                if (!supported(isas[a]))
                    continue;
                decode_batch(have, m, isas[a], types[t], threads, true);
                if (memcmp(want, have, MATES * (size_t)m->c.vocab * sizeof *want))
                    fail_msg("KV %s, %d threads, %s: bits differ", kern_kv_name(types[t]), threads, isas[a]);
            }
    }
    model_free(m);
}

static void layer_is_next(void *arg, int64_t layer)
{
    int64_t *next = arg;
    assert_int_equal(layer, *next);
    ++*next;
}

/* layer_done is called once for each layer, in order, for any division of the step. */
static void reports_each_layer_once_in_order(void **state)
{
    (void)state;
    struct err e = {0};
    struct model *m = model_of(&shapes[1]);
    for (int threads = 1; threads <= 3; threads++)
        for (int64_t n = 1; n <= N; n += 23) {
            struct kv_layout l;
            struct kv_pool *pool = NULL;
            struct engine *g = NULL;
            struct kv_table kv = {0};
            int64_t next = 0;
            kv_layout_init(&l, KERN_KV_INT8, m->c.n_layer, m->c.n_kv_head, m->c.head_dim);
            assert_int_equal(kv_pool_new(&e, &pool, &l, 16 * l.slot_bytes), 0);
            struct engine_opts o = {.threads = threads, .kv = KERN_KV_INT8, .row_max = 512, .delay_seed = (uint64_t)n};
            assert_int_equal(engine_open(&e, &g, m, pool, &o), 0);
            assert_int_equal(kv_table_grow(&e, &kv, pool, (n + 31) / 32), 0);
            struct engine_chunk c = {&kv, ids, n, 0, ENGINE_NONE, 0};
            assert_int_equal(engine_step(&e, g, &c, 1, layer_is_next, &next), 0);
            assert_int_equal(next, m->c.n_layer);
            kv_table_release(&kv, pool);
            engine_free(g);
            kv_pool_free(pool);
        }
    model_free(m);
}

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    setenv("XDG_CACHE_HOME", dir, 1);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    sched_getaffinity(0, sizeof all, &all);
    for (int i = 0; i < N; i++)
        ids[i] = (uint32_t)(i * 11 + i / 7) % 33;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_reference),
        cmocka_unit_test(int8_kv_is_close_to_the_reference),
        cmocka_unit_test(every_configuration_gives_the_same_bits),
        cmocka_unit_test(long_batches_give_the_same_bits),
        cmocka_unit_test(reports_each_layer_once_in_order),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
