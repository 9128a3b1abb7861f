/* Names and sizes of weight types, activation forms and KV tiles. */
#include "kernels/kernels.h"
#include "kernels/layout.h"

static const struct layout layouts[KERN_TYPES] = {
    [KERN_F32] = {"F32", 4, 1, 0, 0, 0, 0, 0, 0, 0},
    [KERN_F16] = {"F16", 2, 1, 0, 0, 0, 0, 0, 0, 0},
    [KERN_BF16] = {"BF16", 2, 1, 0, 0, 0, 0, 0, 0, 0},
    [KERN_Q8_0] = {"Q8_0", 34, 32, 2, 0, 512, 32, 128, 0, 8},
    [KERN_Q4_0] = {"Q4_0", 18, 32, 2, 0, 256, 32, 8, 0, 0},
    [KERN_Q4_1] = {"Q4_1", 20, 32, 2, 0, 256, 64, 0, 1, 0},
    [KERN_Q5_0] = {"Q5_0", 22, 32, 2, 0, 320, 32, 16, 0, 1},
    [KERN_Q5_1] = {"Q5_1", 24, 32, 2, 0, 320, 64, 0, 1, 1},
    [KERN_Q4_K] = {"Q4_K", 144, 256, 8, 64, 256, 32, 0, 1, 0},
    [KERN_Q5_K] = {"Q5_K", 176, 256, 8, 64, 320, 32, 0, 1, 1},
    [KERN_Q6_K] = {"Q6_K", 210, 256, 8, 64, 384, 32, 32, 0, 2},
};

const struct layout *kern_layout(enum kern_type t)
{
    return &layouts[t];
}

static size_t up64(size_t n)
{
    return (n + 63) & ~(size_t)63;
}

const char *kern_type_name(enum kern_type t)
{
    return (unsigned)t < KERN_TYPES ? layouts[t].name : "unknown";
}

bool kern_type_is_quant(enum kern_type t)
{
    return layouts[t].unit_blocks != 0;
}

int64_t kern_type_block(enum kern_type t)
{
    return layouts[t].block;
}

size_t kern_type_row_bytes(enum kern_type t, int64_t cols)
{
    return (size_t)(cols / layouts[t].block) * layouts[t].src_bytes;
}

size_t kern_group_bytes(enum kern_type t, int64_t cols)
{
    const struct layout *l = &layouts[t];
    if (t == KERN_BF16)
        return (size_t)((cols + 1) / 2) * 64;
    if (!l->unit_blocks)
        return up64((size_t)cols * 16 * l->src_bytes);
    int64_t n_block = cols / 32;
    return (size_t)((n_block + l->unit_blocks - 1) / l->unit_blocks * layout_unit_bytes(l));
}

int kern_type_form(enum kern_type t)
{
    return kern_type_is_quant(t) ? KERN_FORM_Q : t == KERN_BF16 ? KERN_FORM_B : KERN_FORM_F;
}

/* Returns the next n bytes of mem; if mem is NULL, only counts them. */
static void *allot(uint8_t *mem, size_t *used, size_t n)
{
    void *at = mem ? mem + *used : NULL;
    *used += up64(n);
    return at;
}

static size_t place(struct kern_act *a, uint8_t *mem, int64_t n_row, int64_t k, int forms)
{
    size_t n_tile = (size_t)(n_row + KERN_TILE - 1) / KERN_TILE, cols = (size_t)k, used = 0;
    *a = (struct kern_act){.n_row = n_row, .k = k};
    if (forms & KERN_FORM_Q) {
        size_t n_block = n_tile * (cols / 32);
        a->q = allot(mem, &used, n_block * KERN_TILE * 32);
        a->d = allot(mem, &used, n_block * KERN_TILE * sizeof(float));
        a->z = allot(mem, &used, n_block * KERN_TILE * sizeof(float));
        a->s = allot(mem, &used, n_block * KERN_TILE * 2 * sizeof(int32_t));
    }
    if (forms & KERN_FORM_B)
        a->b = allot(mem, &used, n_tile * ((cols + 1) / 2) * KERN_TILE * 2 * sizeof(uint16_t));
    if (forms & KERN_FORM_F)
        a->f = allot(mem, &used, n_tile * cols * KERN_TILE * sizeof(float));
    return used;
}

size_t kern_act_bytes(int64_t n_row, int64_t k, int forms)
{
    struct kern_act a;
    return place(&a, NULL, n_row, k, forms);
}

void kern_act_place(struct kern_act *a, void *mem, int64_t n_row, int64_t k, int forms)
{
    place(a, mem, n_row, k, forms);
}

const char *kern_kv_name(enum kern_kv type)
{
    return type == KERN_KV_INT8 ? "int8" : type == KERN_KV_BF16 ? "bf16" : "f16";
}

size_t kern_kv_tile_bytes(enum kern_kv type, int hd)
{
    size_t n = (size_t)KV_BLOCK * (size_t)hd;
    return type == KERN_KV_INT8 ? 2 * (n + KV_BLOCK * sizeof(float)) : 2 * n * sizeof(uint16_t);
}

size_t kern_q_bytes(enum kern_kv type, int hd)
{
    size_t n = (size_t)hd;
    if (type == KERN_KV_INT8)
        return up64(2 * n + 12);
    return up64((type == KERN_KV_BF16 ? 2 : 4) * n + 4);
}

/* For at most 64 rows at once: scores and weights of a partition, two planes of each, and outputs. Plain C uses
 * none. */
size_t kern_attn_scratch(enum kern_kv type, int hd, int n_row_max)
{
    size_t n = n_row_max < 64 ? ((size_t)n_row_max + 15) / 16 * 16 : 64;
    (void)type;
    return up64(n * (KERN_KV_PARTITION * 8 + (size_t)hd * 8 + 64) + 16384);
}

/* Two groups unpacked to bytes, with two f32 scales and one f32 minimum a row and block. Plain C uses none. */
size_t kern_matmul_scratch(int64_t cols_max)
{
    size_t n = ((size_t)cols_max + 63) / 64 * 64;
    return n * 48 + 16384;
}
