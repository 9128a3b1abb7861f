/*
 * The shape of a model from its file: golden values, head geometry, tied embeddings, padded vocabularies, rope
 * scalings, and exp, log, sin and cos. Authorities: the published configuration of the default model, libm in long
 * double, and the formulas of the papers, written in long double here.
 */
#include "unit/model_build.h"

#include <math.h>

#include "model/model.h"

static char dir[] = "/tmp/model_test.XXXXXX";
static char path[64];

static int config_of(struct err *e, struct model_config *c, struct gguf_build *b)
{
    build_write(b, path);
    build_free(b);
    struct gguf *g = NULL;
    int rc = gguf_open(e, &g, path);
    if (!rc)
        rc = model_config_read(e, c, g);
    gguf_free(g);
    return rc;
}

static struct model_config config_ok(struct gguf_build *b)
{
    struct err e = {0};
    struct model_config c;
    if (config_of(&e, &c, b))
        fail_msg("%s", e.text);
    return c;
}

static void config_refused(struct gguf_build *b, const char *part)
{
    struct err e = {0};
    struct model_config c;
    assert_int_equal(config_of(&e, &c, b), ERR_NO);
    assert_text_has(e.text, path);
    assert_text_has(e.text, part);
}

static void open_refused(const struct shape *s, const char *part)
{
    struct gguf_build b = llama(s);
    build_write(&b, path);
    build_free(&b);
    struct err e = {0};
    struct model *m = NULL;
    assert_int_equal(model_open(&e, &m, &(struct model_opts){.path = path}), ERR_NO);
    assert_null(m);
    assert_text_has(e.text, path);
    assert_text_has(e.text, part);
}

/* ---- mathematics ---- */

static void near(double have, long double want, long double bound)
{
    long double off = fabsl(have - want);
    if (!(off <= bound))
        fail_msg("%.17g is %Lg away from %.20Lg", have, off, want);
}

static void test_exp_and_log_are_near(void **state)
{
    (void)state;
    for (double x = -700; x < 709; x += 0.37)
        near(model_exp(x), expl(x), 4e-16L * expl(x));
    for (double x = 1e-300; x < 1e300; x *= 1.9)
        near(model_log(x), logl(x), 4e-16L * fabsl(logl(x)));
    for (double x = 0.5; x < 2; x += 0.000977)
        near(model_log(x), logl(x), 4e-16L * fabsl(logl(x)) + 1e-19L);
    assert_true(model_exp(0) == 1 && model_log(1) == 0);
    assert_true(isinf(model_exp(1000)) && model_exp(-1000) == 0 && isnan(model_exp(NAN)));
    assert_true(isnan(model_log(-1)) && isinf(model_log(0)) && isinf(model_log(INFINITY)));
    near(model_log(0x1p-1074), -1074 * logl(2), 4e-13L);
}

static void near_sincos(double x)
{
    double s, c;
    model_sincos(&s, &c, x);
    near(s, sinl(x), 4e-16L);
    near(c, cosl(x), 4e-16L);
}

static void test_sin_and_cos_are_near(void **state)
{
    (void)state;
    for (double x = -2097152; x <= 2097152; x += 13.37)
        near_sincos(x);
    for (double x = -8; x <= 8; x += 0.00123)
        near_sincos(x);
    /* Near multiples of pi/2, where the subtraction cancels. */
    for (int n = 1; n < 1300000; n += 997) {
        double x = n * 1.5707963267948966;
        near_sincos(x);
        near_sincos(nextafter(x, 1e9));
    }
    near_sincos(0);
}

/* ---- the shape ---- */

/* https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct/blob/main/config.json */
static void test_default_model_has_its_published_shape(void **state)
{
    (void)state;
    struct err e = {0};
    struct gguf *g = NULL;
    struct model_config c;
    assert_int_equal(gguf_open(&e, &g, default_model()), 0);
    assert_int_equal(model_config_read(&e, &c, g), 0);
    gguf_free(g);
    assert_string_equal(c.family->arch, "llama");
    assert_false(c.family->neox);
    assert_int_equal(c.n_layer, 30);
    assert_int_equal(c.hidden, 576);
    assert_int_equal(c.ffn, 1536);
    assert_int_equal(c.vocab, 49152);
    assert_int_equal(c.n_head, 9);
    assert_int_equal(c.n_kv_head, 3);
    assert_int_equal(c.head_dim, 64);
    assert_int_equal(c.n_rot, 64);
    assert_int_equal(c.context, 8192);
    assert_true(c.eps == 1e-5f);
    assert_true(c.tied);
    assert_true(c.rope_attn_factor == 1);
    for (int i = 0; i < 32; i++) {
        long double want = powl(100000, -2.0L * i / 64);
        near(c.rope_freq[i], want, 4e-15L * want);
    }
}

/* Heads, KV heads and head size are three independent numbers of the file. */
static void test_head_geometry_is_read(void **state)
{
    (void)state;
    static const uint64_t shapes[][4] = {{64, 4, 4, 16}, {96, 6, 2, 32}, {112, 7, 1, 16}, {64, 8, 2, 32}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct shape s = plain_shape;
        s.hidden = shapes[i][0];
        s.heads = shapes[i][1];
        s.kv = shapes[i][2];
        s.head_dim = shapes[i][3];
        struct gguf_build b = llama(&s);
        build_write(&b, path);
        build_free(&b);
        struct err e = {0};
        struct model *m = NULL;
        if (model_open(&e, &m, &(struct model_opts){.path = path}))
            fail_msg("%s", e.text);
        assert_int_equal(m->c.n_head, s.heads);
        assert_int_equal(m->c.n_kv_head, s.kv);
        assert_int_equal(m->c.head_dim, s.head_dim);
        assert_int_equal(m->c.n_rot, s.head_dim);
        assert_int_equal(m->layer[1].wq.rows, s.heads * s.head_dim);
        assert_int_equal(m->layer[1].wk.rows, s.kv * s.head_dim);
        assert_int_equal(m->layer[1].wv.rows, s.kv * s.head_dim);
        assert_int_equal(m->layer[1].wo.cols, s.heads * s.head_dim);
        assert_int_equal(m->layer[1].wo.rows, s.hidden);
        model_free(m);
    }
}

static void test_bad_head_geometry_is_refused(void **state)
{
    (void)state;
    struct shape s = plain_shape;
    s.heads = 6;
    s.kv = 4;
    struct gguf_build b = llama(&s);
    config_refused(&b, "6 heads are not divisible by 4 KV heads");
    s = plain_shape;
    b = llama(&s);
    add_u32(&b, "llama.attention.key_length", 16);
    add_u32(&b, "llama.attention.value_length", 32);
    config_refused(&b, "keys of 16 and values of 32");
    s.heads = 5;
    s.kv = 5;
    s.head_dim = 64;
    s.hidden = 320;
    b = llama(&s);
    add_u32(&b, "llama.rope.dimension_count", 66);
    config_refused(&b, "66 rotated dimensions");
    s = plain_shape;
    s.head_dim = 12;
    b = llama(&s);
    config_refused(&b, "12 is not a multiple of 8");
    s = plain_shape;
    s.widen = "blk.1.attn_k.weight";
    open_refused(&s, "blk.1.attn_k.weight is [64, 33], not [64, 32]");
    s.widen = "blk.0.ffn_norm.weight";
    open_refused(&s, "blk.0.ffn_norm.weight is [65], not [64]");
}

static void test_unknown_settings_are_refused(void **state)
{
    (void)state;
    struct gguf_build b = {0};
    add_string(&b, "general.architecture", "mamba");
    config_refused(&b, "architecture mamba is not supported; supported: llama");
    b = llama(&plain_shape);
    add_u32(&b, "llama.expert_count", 8);
    config_refused(&b, "mixture of 8 experts: not supported");
    b = llama(&plain_shape);
    add_f32(&b, "llama.attention.scale", 0.5f);
    config_refused(&b, "llama.attention.scale is not supported");
    b = llama(&plain_shape);
    add_string(&b, "llama.rope.scaling.type", "longrope");
    add_f32(&b, "llama.rope.scaling.factor", 2);
    config_refused(&b, "rope scaling longrope is not supported");
    b = llama(&plain_shape);
    add_f32(&b, "llama.rope.freq_base", NAN);
    config_refused(&b, "llama.rope.freq_base is nan");
    b = llama(&plain_shape);
    add_f32(&b, "llama.rope.freq_base", -10);
    config_refused(&b, "llama.rope.freq_base is -10");
    /* A tensor that the family does not know would silently change the text. */
    struct err e = {0};
    struct model *m = NULL;
    b = llama(&plain_shape);
    float f[64] = {0};
    add_tensor(&b, "blk.1.attn_q_norm.weight", 0, 16, 0, f, 64);
    build_write(&b, path);
    build_free(&b);
    assert_int_equal(model_open(&e, &m, &(struct model_opts){.path = path}), ERR_NO);
    assert_text_has(e.text, "blk.1.attn_q_norm.weight is not part of a llama model");
    struct shape s = plain_shape;
    s.leave = "blk.1.ffn_up.weight";
    b = llama(&s);
    uint8_t q[64 * 96] = {0};
    add_tensor(&b, s.leave, 20, 64, 96, q, 96 * 36); /* IQ4_NL: known, not supported */
    build_write(&b, path);
    build_free(&b);
    assert_int_equal(model_open(&e, &m, &(struct model_opts){.path = path}), ERR_NO);
    assert_text_has(e.text, "blk.1.ffn_up.weight is of type IQ4_NL");
}

/* A missing tensor is named, whichever it is. */
static void test_missing_tensors_are_named(void **state)
{
    (void)state;
    static const char *const names[] = {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight",
                                        "blk.1.ffn_down.weight", "blk.1.attn_v.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        struct shape s = plain_shape;
        s.leave = names[i];
        char part[80];
        snprintf(part, sizeof part, "tensor %s is missing", names[i]);
        open_refused(&s, part);
    }
    struct shape s = plain_shape;
    s.layers = 3;
    s.leave = "blk.2.attn_q.weight";
    open_refused(&s, "tensor blk.2.attn_q.weight is missing");
}

/* Without an output matrix the embedding is used, with one it is used, and equal bytes pack to equal bytes. */
static void test_missing_output_is_the_embedding(void **state)
{
    (void)state;
    struct model *m[2];
    for (int i = 0; i < 2; i++) {
        struct shape s = plain_shape;
        s.untied = i == 1;
        struct gguf_build b = llama(&s);
        build_write(&b, path);
        build_free(&b);
        struct err e = {0};
        if (model_open(&e, &m[i], &(struct model_opts){.path = path}))
            fail_msg("%s", e.text);
    }
    assert_true(m[0]->c.tied && m[0]->output.data == m[0]->embed.data);
    assert_false(m[1]->c.tied);
    assert_ptr_not_equal(m[1]->output.data, m[1]->embed.data);
    assert_int_equal(m[1]->output.rows, 40);
    assert_int_equal(m[0]->output.type, m[1]->output.type);
    assert_memory_equal(m[0]->output.data, m[1]->output.data, 3 * m[0]->output.group_bytes);
    model_free(m[0]);
    model_free(m[1]);
}

/* The number of rows of the embedding counts, not the key vocab_size. */
static void test_rows_of_the_embedding_count(void **state)
{
    (void)state;
    struct shape s = plain_shape;
    s.vocab = 77;
    struct gguf_build b = llama(&s);
    add_u32(&b, "llama.vocab_size", 60);
    assert_int_equal(config_ok(&b).vocab, 77);
}

/* ---- rope ---- */

static void test_rope_plain_and_linear(void **state)
{
    (void)state;
    struct gguf_build b = llama(&plain_shape);
    struct model_config c = config_ok(&b);
    for (int i = 0; i < 8; i++)
        near(c.rope_freq[i], powl(10000, -i / 8.0L), 4e-15L);
    b = llama(&plain_shape);
    add_u32(&b, "llama.rope.dimension_count", 8);
    add_string(&b, "llama.rope.scaling.type", "linear");
    add_f32(&b, "llama.rope.scaling.factor", 4);
    c = config_ok(&b);
    assert_int_equal(c.n_rot, 8);
    for (int i = 0; i < 4; i++)
        near(c.rope_freq[i], powl(10000, -i / 4.0L) / 4, 4e-15L);
    assert_true(c.rope_attn_factor == 1);
    b = llama(&plain_shape);
    add_string(&b, "llama.rope.scaling.type", "none");
    add_f32(&b, "llama.rope.scaling.factor", 4);
    c = config_ok(&b);
    near(c.rope_freq[0], 1, 0);
}

/* YaRN as transformers' modeling_rope_utils.py computes it (_compute_yarn_parameters), in long double. */
static void test_rope_yarn_is_as_in_transformers(void **state)
{
    (void)state;
    struct shape s = plain_shape;
    s.head_dim = 64;
    struct gguf_build b = llama(&s);
    add_string(&b, "llama.rope.scaling.type", "yarn");
    add_f32(&b, "llama.rope.scaling.factor", 8);
    add_u32(&b, "llama.rope.scaling.original_context_length", 1024);
    add_f32(&b, "llama.rope.freq_base", 500000);
    struct model_config c = config_ok(&b);
    const long double base = 500000, dim = 64, original = 1024, factor = 8, pi = 3.14159265358979323846L;
    long double low = floorl(dim * logl(original / (32 * 2 * pi)) / (2 * logl(base)));
    long double high = ceill(dim * logl(original / (1 * 2 * pi)) / (2 * logl(base)));
    assert_true(low > 0 && high < 31 && high > low);
    for (int i = 0; i < 32; i++) {
        long double freq = 1 / powl(base, 2 * i / dim);
        long double ramp = fminl(fmaxl((i - low) / (high - low), 0), 1);
        long double want = freq / factor * ramp + freq * (1 - ramp);
        near(c.rope_freq[i], want, 8e-15L * want);
    }
    near(c.rope_attn_factor, 0.1L * logl(8) + 1, 1e-7L);
}

/* Llama 3: divisors in a tensor. */
static void test_rope_factors_divide(void **state)
{
    (void)state;
    static const float by[8] = {1, 1, 1.5f, 2, 4, 8, 8, 8};
    struct gguf_build b = llama(&plain_shape);
    add_tensor(&b, "rope_freqs.weight", 0, 8, 0, by, sizeof by);
    struct model_config c = config_ok(&b);
    for (int i = 0; i < 8; i++)
        near(c.rope_freq[i], powl(10000, -i / 8.0L) / by[i], 4e-15L);
    static const float zero[8] = {0};
    b = llama(&plain_shape);
    add_tensor(&b, "rope_freqs.weight", 0, 8, 0, zero, sizeof zero);
    config_refused(&b, "rope_freqs.weight: factor 0 is 0");
    b = llama(&plain_shape);
    add_tensor(&b, "rope_freqs.weight", 0, 7, 0, by, 28);
    config_refused(&b, "rope_freqs.weight is F32 [7], not F32 [8]");
}

static int setup(void **state)
{
    (void)state;
    default_model();
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    return setenv("PHASEPIPE_TEST_MODEL", default_model(), 1) || setenv("XDG_CACHE_HOME", dir, 1);
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_and_log_are_near),
        cmocka_unit_test(test_sin_and_cos_are_near),
        cmocka_unit_test(test_default_model_has_its_published_shape),
        cmocka_unit_test(test_head_geometry_is_read),
        cmocka_unit_test(test_bad_head_geometry_is_refused),
        cmocka_unit_test(test_unknown_settings_are_refused),
        cmocka_unit_test(test_missing_tensors_are_named),
        cmocka_unit_test(test_missing_output_is_the_embedding),
        cmocka_unit_test(test_rows_of_the_embedding_count),
        cmocka_unit_test(test_rope_plain_and_linear),
        cmocka_unit_test(test_rope_yarn_is_as_in_transformers),
        cmocka_unit_test(test_rope_factors_divide),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
