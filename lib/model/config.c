/* The shape of a model, from the keys of its file. What the engine does not support is refused here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_impl.h"

struct arch_key arch_key(const struct model_config *c, const char *key)
{
    struct arch_key k;
    snprintf(k.s, sizeof k.s, "%s.%s", c->family->arch, key);
    return k;
}

static int read_int(struct err *e, int64_t *out, const struct model_config *c, const struct gguf *g, const char *key,
                    int64_t hi)
{
    uint64_t v;
    int rc = gguf_u64(e, g, arch_key(c, key).s, &v, 1, (uint64_t)hi);
    if (!rc)
        *out = (int64_t)v;
    return rc;
}

static int read_int_or(struct err *e, int64_t *out, const struct model_config *c, const struct gguf *g, const char *key,
                       int64_t hi, int64_t absent)
{
    *out = absent;
    return gguf_has(g, arch_key(c, key).s) ? read_int(e, out, c, g, key, hi) : 0;
}

static int read_family(struct err *e, struct model_config *c, const struct gguf *g)
{
    struct gguf_str arch;
    int rc = gguf_string(e, g, "general.architecture", &arch);
    if (rc)
        return rc;
    c->family = model_family_find(arch);
    if (c->family)
        return 0;
    char known[256];
    model_family_names(known, sizeof known);
    return err_set(e, ERR_NO, "%s: architecture %s is not supported; supported: %s", gguf_path(g), gguf_show(arch).s,
                   known);
}

/* Keys that change the arithmetic of a family in ways the engine does not implement. Ignoring them would give wrong
 * text. */
static int refuse_extras(struct err *e, const struct model_config *c, const struct gguf *g)
{
    static const char *const extra[] = {"attention.scale",         "attention.logit_softcapping",
                                        "attention.clamp_kqv",     "attn_logit_softcapping",
                                        "final_logit_softcapping", "logit_scale",
                                        "residual_scale",          "embedding_scale",
                                        "attention.max_alibi_bias"};
    for (size_t i = 0; i < sizeof extra / sizeof extra[0]; i++)
        if (gguf_has(g, arch_key(c, extra[i]).s))
            return err_set(e, ERR_NO, "%s: key %s is not supported for architecture %s", gguf_path(g),
                           arch_key(c, extra[i]).s, c->family->arch);
    struct arch_key experts = arch_key(c, "expert_count");
    uint64_t n = 0;
    int rc = gguf_has(g, experts.s) ? gguf_u64(e, g, experts.s, &n, 0, UINT64_MAX) : 0;
    if (!rc && n)
        return err_set(e, ERR_NO, "%s: mixture of %" PRIu64 " experts: not supported", gguf_path(g), n);
    return rc;
}

static int read_sizes(struct err *e, struct model_config *c, const struct gguf *g)
{
    int rc = read_int(e, &c->n_layer, c, g, "block_count", MODEL_LAYERS_MAX);
    if (!rc)
        rc = read_int(e, &c->hidden, c, g, "embedding_length", MODEL_HIDDEN_MAX);
    if (!rc)
        rc = read_int(e, &c->ffn, c, g, "feed_forward_length", MODEL_FFN_MAX);
    if (!rc)
        rc = read_int(e, &c->context, c, g, "context_length", MODEL_CONTEXT_MAX);
    double eps = 0;
    if (!rc)
        rc = gguf_f64(e, g, arch_key(c, "attention.layer_norm_rms_epsilon").s, &eps);
    if (rc)
        return rc;
    if (!(eps >= 0 && eps < 1))
        return err_set(e, ERR_NO, "%s: key %s is %g, outside 0 to 1", gguf_path(g),
                       arch_key(c, "attention.layer_norm_rms_epsilon").s, eps);
    c->eps = (float)eps;
    return 0;
}

/* The head size is the one in the file; hidden / heads is the default if the key is absent. */
static int read_heads(struct err *e, struct model_config *c, const struct gguf *g)
{
    int64_t n_head, n_kv, k_dim, v_dim, n_rot;
    int rc = read_int(e, &n_head, c, g, "attention.head_count", MODEL_HEADS_MAX);
    if (!rc)
        rc = read_int_or(e, &n_kv, c, g, "attention.head_count_kv", MODEL_HEADS_MAX, n_head);
    if (rc)
        return rc;
    if (n_head % n_kv)
        return err_set(e, ERR_NO, "%s: %" PRId64 " heads are not divisible by %" PRId64 " KV heads", gguf_path(g),
                       n_head, n_kv);
    if (!gguf_has(g, arch_key(c, "attention.key_length").s) && c->hidden % n_head)
        return err_set(e, ERR_NO, "%s: no %s, and embedding length %" PRId64 " is not divisible by %" PRId64 " heads",
                       gguf_path(g), arch_key(c, "attention.key_length").s, c->hidden, n_head);
    rc = read_int_or(e, &k_dim, c, g, "attention.key_length", MODEL_HEAD_DIM_MAX, c->hidden / n_head);
    if (!rc)
        rc = read_int_or(e, &v_dim, c, g, "attention.value_length", MODEL_HEAD_DIM_MAX, c->hidden / n_head);
    if (!rc)
        rc = read_int_or(e, &n_rot, c, g, "rope.dimension_count", MODEL_HEAD_DIM_MAX, k_dim);
    if (rc)
        return rc;
    if (k_dim != v_dim)
        return err_set(e, ERR_NO,
                       "%s: keys of %" PRId64 " and values of %" PRId64 " a head; different sizes are not supported",
                       gguf_path(g), k_dim, v_dim);
    if (k_dim % 8 || k_dim > MODEL_HEAD_DIM_MAX)
        return err_set(e, ERR_NO, "%s: a head size of %" PRId64 " is not a multiple of 8 up to %d", gguf_path(g), k_dim,
                       MODEL_HEAD_DIM_MAX);
    if (n_rot % 2 || n_rot > k_dim)
        return err_set(e, ERR_NO, "%s: %" PRId64 " rotated dimensions: odd, or more than the head size %" PRId64,
                       gguf_path(g), n_rot, k_dim);
    c->n_head = (int)n_head;
    c->n_kv_head = (int)n_kv;
    c->head_dim = (int)k_dim;
    c->n_rot = (int)n_rot;
    return 0;
}

/* The same rule for all families: without an output matrix the embedding is used as output (tied). */
static int read_vocab(struct err *e, struct model_config *c, const struct gguf *g)
{
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    if (!t)
        return err_set(e, ERR_NO, "%s: tensor token_embd.weight is missing", gguf_path(g));
    if (t->dim[1] > MODEL_VOCAB_MAX)
        return err_set(e, ERR_NO, "%s: tensor token_embd.weight has %" PRIu64 " rows, the limit is %d", gguf_path(g),
                       t->dim[1], MODEL_VOCAB_MAX);
    c->vocab = (int64_t)t->dim[1];
    c->tied = !gguf_tensor_find(g, "output.weight");
    return 0;
}

int model_config_read(struct err *e, struct model_config *out, const struct gguf *g)
{
    struct model_config *c = out;
    memset(c, 0, sizeof *c);
    int rc = read_family(e, c, g);
    if (!rc)
        rc = refuse_extras(e, c, g);
    if (!rc)
        rc = read_sizes(e, c, g);
    if (!rc)
        rc = read_heads(e, c, g);
    if (!rc)
        rc = read_vocab(e, c, g);
    return rc ? rc : rope_read(e, c, g);
}
