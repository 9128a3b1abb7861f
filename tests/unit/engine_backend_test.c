/*
 * The contract of all backends of the engine, tested on cpu and fake: rows are sampled or scored as by
 * lib/engine/sample, KV can be copied to another engine, and an error affects only its row.
 */
#include "unit/model_build.h"

#include "engine/engine.h"
#include "kv/bytes.h"
#include "text/text.h"

#define N 75 /* tokens: two full blocks and a tail */
#define FAKE "fake:0,0,0,0,0,0"

static char dir[] = "/tmp/engine_backend_test.XXXXXX";
static char path[64], default_path[4096]; /* a tiny model; the default one, which has a vocabulary */
static uint32_t ids[N + 1];
static struct gguf *gguf; /* of the default model; text borrows from it */
static struct text *text;

static const struct sample_params warm = {.seed = 7,
                                          .temperature = 0.9f,
                                          .top_k = 12,
                                          .top_p = 0.95f,
                                          .typical_p = 1,
                                          .repetition_penalty = 1.3f,
                                          .penalty_last_n = -1,
                                          .logprobs = 3};

struct rig {
    struct model *m;
    struct kv_pool *pool;
    struct engine *g;
    struct kv_table kv;
    struct engine_chunk chunk; /* of the last step */
};

static void rig_open(struct rig *r, const char *backend, enum kern_kv kv, int threads)
{
    struct err e = {0};
    struct kv_layout l;
    *r = (struct rig){0};
    if (engine_model(&e, &r->m, backend, &(struct model_opts){.path = backend ? default_path : path}))
        fail_msg("%s", e.text);
    kv_layout_init(&l, kv, r->m->c.n_layer, r->m->c.n_kv_head, r->m->c.head_dim);
    assert_int_equal(kv_pool_new(&e, &r->pool, &l, 8 * l.slot_bytes), 0);
    struct engine_opts o = {
        .backend = backend, .text = backend ? text : NULL, .threads = threads, .kv = kv, .row_max = 128};
    if (engine_open(&e, &r->g, r->m, r->pool, &o))
        fail_msg("%s", e.text);
    assert_int_equal(kv_table_grow(&e, &r->kv, r->pool, (N + 32) / 32), 0);
}

static void rig_close(struct rig *r)
{
    kv_table_release(&r->kv, r->pool);
    engine_free(r->g);
    kv_pool_free(r->pool);
    model_free(r->m);
}

static void step(struct rig *r, int64_t from, int64_t to, enum engine_want want)
{
    struct err e = {0};
    r->chunk = (struct engine_chunk){&r->kv, ids + from, to - from, from, want, N};
    assert_int_equal(engine_step(&e, r->g, &r->chunk, 1, NULL, NULL), 0);
}

/* The token after the first n. */
static struct engine_row next(struct rig *r, int64_t n)
{
    struct err e = {0};
    struct engine_row w = {.use = ENGINE_CHOOSE, .position = n, .prompt = ids, .n_prompt = n, .params = &warm};
    assert_int_equal(engine_sample(&e, r->g, &w, 0, 1), 0);
    return w;
}

/* Compared with lib/engine/sample on the logits, one row after another. */
static void samples_rows_as_lib_engine_sample_does(void **state)
{
    (void)state;
    struct rig r;
    struct err e = {0};
    const struct kern_ops *k;
    struct sampler *s;
    struct engine_row w[N];
    rig_open(&r, NULL, KERN_KV_INT8, 3);
    int64_t ld = engine_logits_ld(r.g), vocab = r.m->c.vocab;
    float *x = aligned_alloc(64, 80 * (size_t)ld * sizeof *x);
    assert_non_null(x);
    assert_int_equal(kern_select(&e, &k, NULL), 0);
    assert_int_equal(sampler_new(&e, &s, k, vocab), 0);
    step(&r, 0, N, ENGINE_ALL);
    for (int64_t i = 0; i < N; i++)
        w[i] = (struct engine_row){.use = i == 40 ? ENGINE_UNUSED
                                          : i % 3 ? ENGINE_SCORE
                                                  : ENGINE_CHOOSE,
                                   .position = i + 1,
                                   .prompt = ids,
                                   .n_prompt = i % 3 ? N + 1 : i + 1,
                                   .params = &warm,
                                   .n_top = 5};
    assert_int_equal(engine_sample(&e, r.g, w, 0, N), 0);
    assert_int_equal(engine_logits(&e, r.g, x, 0, N), 0);
    for (int64_t i = 0; i < N; i++) {
        struct sample_result want = {0};
        if (w[i].use == ENGINE_SCORE)
            assert_int_equal(sample_logprob(&e, s, &want, x + i * ld, ids[i + 1], 5), 0);
        else if (w[i].use == ENGINE_CHOOSE)
            assert_int_equal(
                sample(&e, s, &want, x + i * ld, vocab, &warm, ids, i + 1, NULL, 0, NULL, 0, (uint64_t)i + 1), 0);
        assert_int_equal(w[i].err.code, 0);
        assert_memory_equal(&w[i].out, &want, sizeof want);
    }
    free(x);
    sampler_free(s);
    rig_close(&r);
}

/* Only the row without a candidate fails. */
static void an_error_affects_one_row(void **state)
{
    (void)state;
    struct rig r;
    struct err e = {0};
    struct engine_row w[4];
    uint32_t all[64];
    rig_open(&r, NULL, KERN_KV_INT8, 2);
    for (uint32_t i = 0; i < 64; i++)
        all[i] = i;
    step(&r, 0, 4, ENGINE_ALL);
    for (int64_t i = 0; i < 4; i++)
        w[i] = (struct engine_row){.use = ENGINE_CHOOSE,
                                   .position = i + 1,
                                   .prompt = ids,
                                   .n_prompt = i + 1,
                                   .params = &warm,
                                   .ban = all,
                                   .n_ban = i == 2 ? r.m->c.vocab : 0};
    assert_int_equal(engine_sample(&e, r.g, w, 0, 4), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(w[i].err.code, i == 2 ? ERR_NO : 0);
    rig_close(&r);
}

/* Copies the KV of the first n tokens of `a` into the blocks of `b`, layer range by layer range. */
static void copy_kv(struct rig *a, struct rig *b, int64_t n)
{
    const struct kv_layout *l = kv_pool_layout(a->pool);
    struct err e = {0};
    size_t most = kv_packed_bytes(l, l->n_layer, KV_BLOCK);
    uint8_t *out_room = malloc(most), *in_room = malloc(most);
    assert_true(out_room && in_room);
    for (int64_t block = 0; block * KV_BLOCK < n; block++)
        for (int64_t layer = 0; layer < l->n_layer; layer++) {
            int n_token = (int)(n - block * KV_BLOCK < KV_BLOCK ? n - block * KV_BLOCK : KV_BLOCK);
            struct kv_part from = {a->kv.slot[block], layer, 1, n_token}, to = from;
            const uint8_t *bytes;
            to.slot = b->kv.slot[block];
            assert_int_equal(engine_kv_read(&e, a->g, &bytes, &from, out_room), 0);
            uint8_t *at = engine_kv_place(b->g, &to, in_room);
            memcpy(at, bytes, kv_packed_bytes(l, 1, n_token));
            assert_int_equal(engine_kv_write(&e, b->g, &to, at), 0);
        }
    free(out_room);
    free(in_room);
}

static void continue_in_another_engine(const char *backend, enum kern_kv kv)
{
    struct rig a, b;
    rig_open(&a, backend, kv, 1);
    rig_open(&b, backend, kv, 2);
    for (int32_t i = 0; i < b.kv.n; i++) /* earlier bytes in the slots must not matter */
        memset(kv_layer(b.pool, b.kv.slot[i], 0), 0xff, kv_pool_layout(b.pool)->slot_bytes);
    step(&a, 0, 50, ENGINE_NONE);
    step(&a, 50, N - 1, ENGINE_LAST);
    copy_kv(&a, &b, N - 1);
    step(&a, N - 1, N, ENGINE_LAST);
    step(&b, N - 1, N, ENGINE_LAST);
    struct engine_row x = next(&a, N), y = next(&b, N);
    assert_int_equal(x.err.code, 0);
    assert_int_equal(y.err.code, 0);
    assert_memory_equal(&x.out, &y.out, sizeof x.out);
    rig_close(&a);
    rig_close(&b);
}

static void continues_with_kv_of_another_engine(void **state)
{
    (void)state;
    continue_in_another_engine(NULL, KERN_KV_INT8);
    continue_in_another_engine(NULL, KERN_KV_BF16);
    continue_in_another_engine(NULL, KERN_KV_F16);
    continue_in_another_engine(FAKE, KERN_KV_INT8);
}

/* The fake engine gives the same token for any division into steps, and an error for other KV. */
static void fake_engine_checks_its_kv(void **state)
{
    (void)state;
    struct rig r;
    uint32_t want = 0;
    rig_open(&r, FAKE, KERN_KV_INT8, 1);
    for (int64_t cut = 1; cut < N; cut += 9) {
        step(&r, 0, cut, ENGINE_NONE);
        step(&r, cut, N, ENGINE_LAST);
        struct engine_row w = next(&r, N);
        assert_int_equal(w.err.code, 0);
        assert_false(text_is_control(text, w.out.id));
        if (cut > 1)
            assert_int_equal(w.out.id, want);
        want = w.out.id;
    }
    for (int block = 0; block < 3; block++) {
        step(&r, 0, N - 1, ENGINE_NONE);
        for (int half = 0; half < 2; half++) /* of the last computed token of the block */
            kv_layer(r.pool, r.kv.slot[block], 0)[half * 128 + (block < 2 ? 31 : (N - 2) % 32) * 4] ^= 1;
        step(&r, N - 1, N, ENGINE_LAST);
        struct engine_row w = next(&r, N);
        assert_int_equal(w.err.code, ERR_NO);
        assert_non_null(strstr(w.err.text, "was changed"));
    }
    rig_close(&r);
}

static void fake_engine_has_costs_and_its_own_kv_kind(void **state)
{
    (void)state;
    struct rig r;
    struct err e = {0};
    struct kv_kind cpu, fake;
    struct model *m;
    struct engine_cost cost;
    float x[8];
    rig_open(&r, "fake:1,2,3,4,5,6", KERN_KV_INT8, 1);
    assert_true(engine_cost(r.g, &cost));
    for (int i = 0; i < 3; i++)
        assert_true(cost.prefill[i] == (double)(i + 1) && cost.decode[i] == (double)(i + 4));
    /* 1 + 2·(7 - 3) + 3·(7² - 3²), 5·10 + 6·2 */
    assert_true(engine_prefill_ns(&cost, cost.prefill[0], 3, 7) == 129 && engine_decode_ns(&cost, 10, 2) == 62);
    assert_int_equal(engine_logits(&e, r.g, x, 0, 1), ERR_NO);
    assert_int_equal(engine_kv_kind(&e, &fake, FAKE, r.m, KERN_KV_INT8), 0);
    assert_int_equal(engine_kv_kind(&e, &cpu, NULL, r.m, KERN_KV_INT8), 0);
    assert_string_not_equal(cpu.arith, fake.arith);
    assert_int_equal(engine_kv_kind(&e, &fake, FAKE, r.m, KERN_KV_F16), ERR_USAGE);
    rig_close(&r);
    static const char *const wrong[] = {"cpu", "fake:", "fake:1,2,3", "fake:1,2,3,4,5,-6", "fake:1,2,3,4,5,6,7",
                                        "fake"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(engine_model(&e, &m, wrong[i], &(struct model_opts){.path = path}), ERR_USAGE);
}

static int set_up(void **state)
{
    (void)state;
    struct err e;
    struct shape s = plain_shape;
    if (!mkdtemp(dir))
        return -1;
    snprintf(default_path, sizeof default_path, "%s", default_model()); /* before XDG_CACHE_HOME changes */
    if (gguf_open(&e, &gguf, default_path) || text_open(&e, &text, gguf))
        return -1;
    setenv("XDG_CACHE_HOME", dir, 1);
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    struct gguf_build b = llama(&s);
    build_write(&b, path);
    build_free(&b);
    for (int i = 0; i <= N; i++)
        ids[i] = (uint32_t)(i * 11 + i / 7) % 40;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    char cmd[128];
    text_free(text);
    gguf_free(gguf);
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(samples_rows_as_lib_engine_sample_does),    cmocka_unit_test(an_error_affects_one_row),
        cmocka_unit_test(continues_with_kv_of_another_engine),       cmocka_unit_test(fake_engine_checks_its_kv),
        cmocka_unit_test(fake_engine_has_costs_and_its_own_kv_kind),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
