/*
 * Rotary frequencies. Pair i of n_rot/2 turns by base^(-2i/n_rot) radians a token; a file can name scalings of it.
 * linear: divided by the factor. yarn: fast pairs are unchanged, slow ones divided, with a ramp between, and cos and
 * sin are multiplied by 1 + 0.1·ln(factor) (Peng et al., https://arxiv.org/abs/2309.00071). rope_freqs.weight (Llama
 * 3): a divisor for each pair, computed by the author of the file.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_impl.h"

#define TWO_PI 6.283185307179586

struct scaling {
    bool yarn;
    double base, factor;
    double context;    /* context length as trained, before scaling */
    double fast, slow; /* turns over that context above which a pair is fast, and below which it is slow */
    double mix, attn, log_mul;
};

static int read_f64_or(struct err *e, double *out, const struct model_config *c, const struct gguf *g, const char *key,
                       double lo, double hi, double absent)
{
    struct arch_key k = arch_key(c, key);
    *out = absent;
    if (!gguf_has(g, k.s))
        return 0;
    int rc = gguf_f64(e, g, k.s, out);
    if (rc)
        return rc;
    if (!(*out >= lo && *out <= hi))
        return err_set(e, ERR_NO, "%s: key %s is %g, outside %g to %g", gguf_path(g), k.s, *out, lo, hi);
    return 0;
}

static bool is(struct gguf_str s, const char *name)
{
    return s.n == strlen(name) && memcmp(s.p, name, s.n) == 0;
}

/* A factor without a type is linear, as in older files; a factor of 0 means no scaling. */
static int read_kind(struct err *e, struct scaling *s, const struct model_config *c, const struct gguf *g)
{
    struct gguf_str kind = {"linear", 6};
    struct arch_key type = arch_key(c, "rope.scaling.type");
    int rc = gguf_has(g, type.s) ? gguf_string(e, g, type.s, &kind) : 0;
    if (!rc)
        rc = read_f64_or(e, &s->factor, c, g, "rope.scale_linear", 0, 1e6, 0);
    if (!rc)
        rc = read_f64_or(e, &s->factor, c, g, "rope.scaling.factor", 0, 1e6, s->factor);
    if (rc)
        return rc;
    if (s->factor == 0 || is(kind, "none"))
        s->factor = 1;
    if (s->factor < 1e-3)
        return err_set(e, ERR_NO, "%s: key %s is %g, outside 0.001 to 1e6", gguf_path(g),
                       arch_key(c, "rope.scaling.factor").s, s->factor);
    s->yarn = is(kind, "yarn");
    if (!s->yarn && !is(kind, "linear") && !is(kind, "none"))
        return err_set(e, ERR_NO, "%s: rope scaling %s is not supported; supported: none, linear, yarn", gguf_path(g),
                       gguf_show(kind).s);
    return 0;
}

static int read_scaling(struct err *e, struct scaling *s, const struct model_config *c, const struct gguf *g)
{
    uint64_t context = (uint64_t)c->context;
    struct arch_key original = arch_key(c, "rope.scaling.original_context_length");
    int rc = read_f64_or(e, &s->base, c, g, "rope.freq_base", 1.0 + 1e-6, 1e15, 10000);
    if (!rc)
        rc = read_kind(e, s, c, g);
    if (!rc && gguf_has(g, original.s))
        rc = gguf_u64(e, g, original.s, &context, 1, MODEL_CONTEXT_MAX);
    s->context = (double)context;
    if (!rc)
        rc = read_f64_or(e, &s->fast, c, g, "rope.scaling.yarn_beta_fast", 1e-6, 1e6, 32);
    if (!rc)
        rc = read_f64_or(e, &s->slow, c, g, "rope.scaling.yarn_beta_slow", 1e-6, 1e6, 1);
    if (!rc)
        rc = read_f64_or(e, &s->mix, c, g, "rope.scaling.yarn_ext_factor", 0, 1, 1);
    if (!rc)
        rc = read_f64_or(e, &s->log_mul, c, g, "rope.scaling.yarn_log_multiplier", 0, 100, 0);
    if (!rc)
        rc = read_f64_or(e, &s->attn, c, g, "rope.scaling.yarn_attn_factor", 1e-3, 1e3, 1);
    if (!rc)
        rc = read_f64_or(e, &s->attn, c, g, "rope.scaling.attn_factor", 1e-3, 1e3, s->attn);
    return rc;
}

/* The pair, as a real number, that makes `turns` turns over the context length. */
static double pair_of_turns(const struct scaling *s, int n_rot, double turns)
{
    return n_rot * model_log(s->context / (turns * TWO_PI)) / (2.0 * model_log(s->base));
}

static double whole_below(double x)
{
    double w = (double)(int64_t)x;
    return w > x ? w - 1.0 : w;
}

static void scale_yarn(struct model_config *c, const struct scaling *s)
{
    double last = c->n_rot - 1;
    double low = whole_below(pair_of_turns(s, c->n_rot, s->fast));
    double high = -whole_below(-pair_of_turns(s, c->n_rot, s->slow));
    low = low < 0 ? 0 : low;
    high = high > last ? last : high;
    double span = high - low < 0.001 ? 0.001 : high - low;
    for (int i = 0; i < c->n_rot / 2; i++) {
        double ramp = (i - low) / span;
        ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
        double keep = (1.0 - ramp) * s->mix;
        c->rope_freq[i] = c->rope_freq[i] / s->factor * (1.0 - keep) + c->rope_freq[i] * keep;
    }
    double grow = s->factor > 1 ? model_log(s->factor) * 0.1 : 0;
    c->rope_attn_factor = (float)(s->attn * (s->mix > 0 ? (1.0 + grow) / (1.0 + grow * s->log_mul) : 1.0));
}

/* Divides by the factors of rope_freqs.weight, if the file has it. */
static int divide(struct err *e, struct model_config *c, const struct gguf *g)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, "rope_freqs.weight");
    if (!t)
        return 0;
    uint64_t n = (uint64_t)c->n_rot / 2;
    if (t->type != 0 || t->dim[0] != n || t->bytes != 4 * n)
        return err_set(e, ERR_NO, "%s: tensor rope_freqs.weight is %s [%" PRIu64 "], not F32 [%" PRIu64 "]",
                       gguf_path(g), gguf_type_name(t->type), t->dim[0], n);
    float f[MODEL_HEAD_DIM_MAX / 2];
    int rc = gguf_read(e, g, t, 0, f, t->bytes);
    if (rc)
        return rc;
    for (uint64_t i = 0; i < n; i++) {
        if (!(f[i] >= 1e-3f && f[i] <= 1e6f))
            return err_set(e, ERR_NO, "%s: tensor rope_freqs.weight: factor %" PRIu64 " is %g, outside 0.001 to 1e6",
                           gguf_path(g), i, (double)f[i]);
        c->rope_freq[i] /= f[i];
    }
    return 0;
}

int rope_read(struct err *e, struct model_config *c, const struct gguf *g)
{
    struct scaling s;
    int rc = read_scaling(e, &s, c, g);
    if (rc)
        return rc;
    double log_base = model_log(s.base);
    for (int i = 0; i < c->n_rot / 2; i++)
        c->rope_freq[i] = model_exp(-(2.0 * i / c->n_rot) * log_base);
    rc = divide(e, c, g);
    if (rc)
        return rc;
    c->rope_attn_factor = (float)s.attn;
    if (s.yarn)
        scale_yarn(c, &s);
    else
        for (int i = 0; s.factor != 1 && i < c->n_rot / 2; i++)
            c->rope_freq[i] /= s.factor;
    /* model_sincos, which makes the tables, is exact up to 2^21 radians. */
    for (int i = 0; i < c->n_rot / 2; i++)
        if (c->rope_freq[i] * (double)c->context > 0x1p21)
            return err_set(e, ERR_NO,
                           "%s: rope pair %d turns %g radians a token: too fast for the limit of 2^21 radians over a "
                           "context of %" PRId64,
                           gguf_path(g), i, c->rope_freq[i], c->context);
    return 0;
}
