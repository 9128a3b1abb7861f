/* Builds Llama models in memory for tests: any geometry, artificial weights, every key and tensor can be changed. */
#ifndef TESTS_MODEL_BUILD_H
#define TESTS_MODEL_BUILD_H

#include "unit/gguf_build.h"

struct shape {
    uint64_t hidden, heads, kv, head_dim, layers, ffn, vocab;
    bool untied; /* has an output matrix, equal to the embedding */
    bool f16_norms;
    bool fine;         /* values that are not exact in bf16 */
    const char *leave; /* a tensor that is omitted */
    const char *widen; /* a tensor with an additional row */
};

static const struct shape plain_shape = {
    .hidden = 64, .heads = 4, .kv = 2, .head_dim = 16, .layers = 2, .ffn = 96, .vocab = 40};

/* Values that depend on the position: small multiples of 1/128, exact in bf16 and f16; `fine` adds bits that bf16
 * lacks. */
static inline float value_at(uint64_t i, bool fine)
{
    return (float)((int)(i * 7 % 255) - 127) / 128.0f + (fine ? 0x1p-20f : 0.0f);
}

static inline void add_mat(struct gguf_build *g, const struct shape *s, const char *name, uint64_t cols, uint64_t rows)
{
    if (s->leave && strcmp(s->leave, name) == 0)
        return;
    uint64_t more = s->widen && strcmp(s->widen, name) == 0;
    uint64_t n = rows ? cols * (rows + more) : cols + more;
    float *f = malloc(n * sizeof *f);
    uint16_t *h = malloc(n * sizeof *h);
    assert_true(f && h);
    for (uint64_t i = 0; i < n; i++) {
        f[i] = rows ? value_at(i, s->fine) : 1.5f;
        h[i] = 0x3e00; /* 1.5 as f16 */
    }
    if (!rows && s->f16_norms)
        add_tensor(g, name, 1, n, 0, h, n * sizeof *h);
    else
        add_tensor(g, name, 0, rows ? cols : n, rows ? rows + more : 0, f, n * sizeof *f);
    free(f);
    free(h);
}

static inline void add_layers(struct gguf_build *g, const struct shape *s)
{
    const struct {
        const char *name;
        uint64_t cols, rows;
    } part[] = {
        {"attn_norm", s->hidden, 0},
        {"attn_q", s->hidden, s->heads * s->head_dim},
        {"attn_k", s->hidden, s->kv * s->head_dim},
        {"attn_v", s->hidden, s->kv * s->head_dim},
        {"attn_output", s->heads * s->head_dim, s->hidden},
        {"ffn_norm", s->hidden, 0},
        {"ffn_gate", s->hidden, s->ffn},
        {"ffn_up", s->hidden, s->ffn},
        {"ffn_down", s->ffn, s->hidden},
    };
    for (unsigned l = 0; l < s->layers; l++)
        for (size_t i = 0; i < sizeof part / sizeof part[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%u.%s.weight", l, part[i].name);
            add_mat(g, s, name, part[i].cols, part[i].rows);
        }
}

/* The file has the key of head_dim only if it differs from hidden / heads. */
static inline struct gguf_build llama(const struct shape *s)
{
    struct gguf_build g = {0};
    add_string(&g, "general.architecture", "llama");
    add_u32(&g, "llama.block_count", (uint32_t)s->layers);
    add_u32(&g, "llama.context_length", 2048);
    add_u32(&g, "llama.embedding_length", (uint32_t)s->hidden);
    add_u32(&g, "llama.feed_forward_length", (uint32_t)s->ffn);
    add_u32(&g, "llama.attention.head_count", (uint32_t)s->heads);
    add_u32(&g, "llama.attention.head_count_kv", (uint32_t)s->kv);
    add_f32(&g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    if (s->head_dim * s->heads != s->hidden) {
        add_u32(&g, "llama.attention.key_length", (uint32_t)s->head_dim);
        add_u32(&g, "llama.attention.value_length", (uint32_t)s->head_dim);
    }
    add_mat(&g, s, "token_embd.weight", s->hidden, s->vocab);
    add_mat(&g, s, "output_norm.weight", s->hidden, 0);
    if (s->untied)
        add_mat(&g, s, "output.weight", s->hidden, s->vocab);
    add_layers(&g, s);
    return g;
}

#endif
