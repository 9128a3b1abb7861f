/* The tensors that a model needs, their shapes, and their positions in the packed file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model_impl.h"

static bool kern_type_of(enum kern_type *out, uint32_t ggml)
{
    static const struct {
        uint32_t ggml;
        enum kern_type kern;
    } map[] = {{0, KERN_F32},  {1, KERN_F16},  {30, KERN_BF16}, {8, KERN_Q8_0},  {2, KERN_Q4_0}, {3, KERN_Q4_1},
               {6, KERN_Q5_0}, {7, KERN_Q5_1}, {12, KERN_Q4_K}, {13, KERN_Q5_K}, {14, KERN_Q6_K}};
    for (size_t i = 0; i < sizeof map / sizeof map[0]; i++)
        if (map[i].ggml == ggml) {
            *out = map[i].kern;
            return true;
        }
    return false;
}

struct maker {
    struct pack_plan *p;
    const struct model_config *c;
    const struct gguf *g;
    bool *used; /* [tensors of the file] */
};

static int check_shape(struct err *e, const struct maker *mk, const struct gguf_tensor *t, const char *name,
                       const struct pack_item *it)
{
    uint64_t cols = (uint64_t)it->cols, rows = (uint64_t)it->rows;
    if (t->dim[0] == cols && t->dim[1] == rows && t->dim[2] == 1 && t->dim[3] == 1)
        return 0;
    char have[96], want[48];
    int n = snprintf(have, sizeof have, "%" PRIu64, t->dim[0]);
    for (int i = 1; i < t->n_dim; i++)
        n += snprintf(have + n, sizeof have - (size_t)n, ", %" PRIu64, t->dim[i]);
    if (it->vec)
        snprintf(want, sizeof want, "%" PRIu64, cols);
    else
        snprintf(want, sizeof want, "%" PRIu64 ", %" PRIu64, cols, rows);
    return err_set(e, ERR_NO, "%s: tensor %s is [%s], not [%s]", gguf_path(mk->g), name, have, want);
}

static int add(struct err *e, const struct maker *mk, struct pack_item *it, const char *name, bool optional)
{
    const struct gguf_tensor *t = gguf_tensor_find(mk->g, name);
    if (!t && optional) {
        *it = (struct pack_item){0};
        return 0;
    }
    if (!t)
        return err_set(e, ERR_NO, "%s: tensor %s is missing", gguf_path(mk->g), name);
    int rc = check_shape(e, mk, t, name, it);
    if (rc)
        return rc;
    if (!kern_type_of(&it->src_type, t->type))
        return err_set(e, ERR_NO, "%s: tensor %s is of type %s, which is not supported", gguf_path(mk->g), name,
                       gguf_type_name(t->type));
    if (it->vec && it->src_type != KERN_F32 && it->src_type != KERN_F16 && it->src_type != KERN_BF16)
        return err_set(e, ERR_NO, "%s: tensor %s is of type %s, not F32, F16 or BF16", gguf_path(mk->g), name,
                       gguf_type_name(t->type));
    it->src = t;
    it->dst_type = it->vec ? KERN_F32 : it->src_type;
    mk->used[t - gguf_tensor_at(mk->g, 0)] = true;
    return 0;
}

static int add_top(struct err *e, const struct maker *mk)
{
    const struct model_config *c = mk->c;
    struct pack_item *it = mk->p->item;
    it[PACK_EMBED] = it[PACK_OUTPUT] = (struct pack_item){.rows = c->vocab, .cols = c->hidden};
    it[PACK_OUTPUT_NORM] = (struct pack_item){.vec = true, .rows = 1, .cols = c->hidden};
    int rc = add(e, mk, &it[PACK_EMBED], "token_embd.weight", false);
    if (!rc)
        rc = add(e, mk, &it[PACK_OUTPUT_NORM], "output_norm.weight", false);
    return rc ? rc : add(e, mk, &it[PACK_OUTPUT], "output.weight", true);
}

static int add_layer(struct err *e, const struct maker *mk, int64_t layer)
{
    const struct model_config *c = mk->c;
    int64_t q = (int64_t)c->n_head * c->head_dim, kv = (int64_t)c->n_kv_head * c->head_dim;
    bool bias = !c->family->qkv_bias;
    const struct {
        enum pack_layer_slot slot;
        const char *name;
        int64_t rows, cols; /* rows 0: a vector */
        bool optional;
    } want[PACK_LAYER] = {
        {PACK_ATTN_NORM, "attn_norm.weight", 0, c->hidden, false},
        {PACK_Q, "attn_q.weight", q, c->hidden, false},
        {PACK_K, "attn_k.weight", kv, c->hidden, false},
        {PACK_V, "attn_v.weight", kv, c->hidden, false},
        {PACK_O, "attn_output.weight", c->hidden, q, false},
        {PACK_BQ, "attn_q.bias", 0, q, bias},
        {PACK_BK, "attn_k.bias", 0, kv, bias},
        {PACK_BV, "attn_v.bias", 0, kv, bias},
        {PACK_FFN_NORM, "ffn_norm.weight", 0, c->hidden, false},
        {PACK_GATE, "ffn_gate.weight", c->ffn, c->hidden, false},
        {PACK_UP, "ffn_up.weight", c->ffn, c->hidden, false},
        {PACK_DOWN, "ffn_down.weight", c->hidden, c->ffn, false},
    };
    for (int i = 0; i < PACK_LAYER; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%" PRId64 ".%s", layer, want[i].name);
        struct pack_item *it = &mk->p->item[PACK_TOP + layer * PACK_LAYER + want[i].slot];
        *it = (struct pack_item){.vec = !want[i].rows, .rows = want[i].rows ? want[i].rows : 1, .cols = want[i].cols};
        int rc = add(e, mk, it, name, want[i].optional);
        if (rc)
            return rc;
    }
    return 0;
}

static bool ends_with(struct gguf_str s, const char *end)
{
    size_t n = strlen(end);
    return s.n >= n && memcmp(s.p + s.n - n, end, n) == 0;
}

/* A tensor that nothing reads means that the file is of a kind that its family's row does not describe: it would give
 * wrong text, not an error. Exceptions: tensors read elsewhere, and tables that other programs added. */
static int refuse_unused(struct err *e, const struct maker *mk)
{
    for (uint64_t i = 0; i < gguf_tensor_count(mk->g); i++) {
        struct gguf_str name = gguf_tensor_at(mk->g, i)->name;
        if (!mk->used[i] && !ends_with(name, "rope_freqs.weight") && !ends_with(name, "rot_embd.weight") &&
            !ends_with(name, "rotary_emb.inv_freq"))
            return err_set(e, ERR_NO, "%s: tensor %s is not part of a %s model of %" PRId64 " layers", gguf_path(mk->g),
                           gguf_show(name).s, mk->c->family->arch, mk->c->n_layer);
    }
    return 0;
}

int plan_make(struct err *e, struct pack_plan *p, const struct model_config *c, const struct gguf *g)
{
    *p = (struct pack_plan){.n = PACK_TOP + (uint64_t)c->n_layer * PACK_LAYER};
    p->item = calloc(p->n, sizeof *p->item);
    struct maker mk = {p, c, g, calloc(gguf_tensor_count(g) + 1, sizeof(bool))};
    int rc = p->item && mk.used ? add_top(e, &mk) : err_nomem(e, "a plan of weights", p->n * sizeof *p->item);
    for (int64_t layer = 0; !rc && layer < c->n_layer; layer++)
        rc = add_layer(e, &mk, layer);
    if (!rc)
        rc = refuse_unused(e, &mk);
    free(mk.used);
    if (rc)
        plan_free(p);
    else
        plan_place(p);
    return rc;
}

void plan_free(struct pack_plan *p)
{
    free(p->item);
    *p = (struct pack_plan){0};
}

/* Reads a matrix until it finds a value that is not exact in bf16. */
static int all_bf16(struct err *e, bool *out, const struct pack_item *it, const struct gguf *g)
{
    size_t row = kern_type_row_bytes(it->src_type, it->cols);
    int64_t step = (int64_t)((1u << 20) / row);
    step = step < 1 ? 1 : step > it->rows ? it->rows : step;
    uint8_t *buf = malloc((size_t)step * row);
    if (!buf)
        return err_nomem(e, "rows of a matrix", (size_t)step * row);
    int rc = 0;
    bool all = true;
    for (int64_t r = 0; !rc && all && r < it->rows; r += step) {
        int64_t n = it->rows - r < step ? it->rows - r : step;
        rc = gguf_read(e, g, it->src, (uint64_t)r * row, buf, (uint64_t)n * row);
        for (int64_t i = 0; !rc && all && i < n; i++)
            all = kern_is_bf16(it->src_type, buf + (size_t)i * row, it->cols);
    }
    free(buf);
    *out = all;
    return rc;
}

int plan_narrow(struct err *e, struct pack_plan *p, const struct gguf *g)
{
    for (uint64_t i = 0; i < p->n; i++) {
        struct pack_item *it = &p->item[i];
        if (!it->src || it->vec || (it->src_type != KERN_F32 && it->src_type != KERN_F16))
            continue;
        bool narrow = false;
        int rc = all_bf16(e, &narrow, it, g);
        if (rc)
            return rc;
        it->dst_type = narrow ? KERN_BF16 : it->src_type;
    }
    plan_place(p);
    return 0;
}

static uint64_t up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Sizes cannot overflow: the limits of a shape keep a matrix below 2^47 bytes, and its tensor is within the file. */
void plan_place(struct pack_plan *p)
{
    uint64_t at = up(pack_header_bytes(p->n), 4096);
    for (uint64_t i = 0; i < p->n; i++) {
        struct pack_item *it = &p->item[i];
        it->offset = at;
        it->bytes = 0;
        if (it->src)
            it->bytes = it->vec ? (uint64_t)it->cols * sizeof(float)
                                : (uint64_t)((it->rows + 15) / 16) * kern_group_bytes(it->dst_type, it->cols);
        at = up(at + it->bytes, 64);
    }
    p->total_bytes = up(at, PACK_PAD_BYTES);
}
