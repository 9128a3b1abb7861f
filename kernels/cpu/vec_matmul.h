/*
 * Matrix multiplication of a vector instruction set: selects the kernel by type and number of rows. There is one copy
 * of the direct kernel for each type, number of columns and number of groups, and one of the panel kernel for each
 * type.
 */
#ifndef VEC_MATMUL_H
#define VEC_MATMUL_H

#include "kernels/cpu/vec_matmul_float.h"
#include "kernels/cpu/vec_matmul_quant.h"
#include "kernels/cpu/vec_ops.h"

typedef void direct_fn(float *out, size_t ld, int n, const uint8_t *w, struct group_stride stride, int64_t steps,
                       const struct kern_act *x, int64_t tile);
typedef void panel_fn(float *out, size_t ld, const struct kern_mat *w, int64_t g, const struct kern_act *x, int64_t r0,
                      int64_t r1, void *scratch);

#define DIRECT(T, NAME, GROUPS, COLS)                                                                                  \
    static void direct_##T##_##NAME##_##COLS(float *out, size_t ld, int n, const uint8_t *w,                           \
                                             struct group_stride stride, int64_t steps, const struct kern_act *x,      \
                                             int64_t tile)                                                             \
    {                                                                                                                  \
        direct_tile(out, ld, KERN_##T, GROUPS, COLS, n, w, stride, steps, quant_tile_at(x, tile, 0));                  \
    }
#define DIRECT_FLOAT(T, TYPE, DOT, NAME, GROUPS, COLS, X)                                                              \
    static void direct_##T##_##NAME##_##COLS(float *out, size_t ld, int n, const uint8_t *w,                           \
                                             struct group_stride stride, int64_t steps, const struct kern_act *x,      \
                                             int64_t tile)                                                             \
    {                                                                                                                  \
        float_tile(out, ld, TYPE, DOT, GROUPS, COLS, n, w, stride, steps, X);                                          \
    }

/* Whole panels of PANEL_GROUPS groups from group g on, or one group alone; tiles of x from row r0 on, a multiple of
 * 8. */
INLINE void panel_rows(float *out, size_t ld, enum kern_type t, int groups, const struct kern_mat *w, int64_t g,
                       const struct kern_act *x, int64_t r0, int64_t r1, uint8_t *panel)
{
    const int64_t blocks = w->cols / 32, tiles = (r1 - r0 + PANEL_COLS - 1) / PANEL_COLS;

    for (int64_t b = 0; b < blocks; b += PANEL_BLOCKS) {
        const int64_t n = blocks - b < PANEL_BLOCKS ? blocks - b : PANEL_BLOCKS;
        const uint8_t *group = w->data + (size_t)g * w->group_bytes;
        struct panel_ahead ahead = panel_ahead(t, groups, group, w->group_bytes, blocks, b + n, tiles);

        panel_unpack(panel, t, groups, group, w->group_bytes, b, n);
        for (int64_t r = r0; r < r1; r += PANEL_COLS) {
            panel_fetch(&ahead);
            struct quant_tile tile = quant_tile_at(x, r / 8, b);
            const int c = (int)(r % 8);

            tile.q += 32 * c, tile.d += c, tile.z += c, tile.s += c;
            panel_tile(out + (size_t)(r - r0) * ld, ld, t, groups, (int)(r1 - r < PANEL_COLS ? r1 - r : PANEL_COLS),
                       panel, n, b > 0, tile);
        }
    }
}

#define PANEL(T, NAME, GROUPS)                                                                                         \
    static void panel_##T##_##NAME(float *out, size_t ld, const struct kern_mat *w, int64_t g,                         \
                                   const struct kern_act *x, int64_t r0, int64_t r1, void *scratch)                    \
    {                                                                                                                  \
        panel_rows(out, ld, KERN_##T, GROUPS, w, g, x, r0, r1, scratch);                                               \
    }

#define QUANT_TYPE(T)                                                                                                  \
    DIRECT(T, one, 1, 1)                                                                                               \
    DIRECT(T, one, 1, 2)                                                                                               \
    DIRECT(T, one, 1, 4)                                                                                               \
    DIRECT(T, one, 1, 8)                                                                                               \
    DIRECT(T, many, DIRECT_GROUPS, 1)                                                                                  \
    DIRECT(T, many, DIRECT_GROUPS, 2)                                                                                  \
    DIRECT(T, many, DIRECT_GROUPS, 3)                                                                                  \
    DIRECT(T, many, DIRECT_GROUPS, 4)                                                                                  \
    DIRECT(T, many, DIRECT_GROUPS, 6)                                                                                  \
    DIRECT(T, many, DIRECT_GROUPS, 8)                                                                                  \
    PANEL(T, one, 1)                                                                                                   \
    PANEL(T, many, PANEL_GROUPS)

#define FLOAT_TYPE(T, TYPE, DOT, X)                                                                                    \
    DIRECT_FLOAT(T, TYPE, DOT, one, 1, 1, X)                                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, one, 1, 2, X)                                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, one, 1, 4, X)                                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, one, 1, 8, X)                                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS_FEW, 1, X)                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS_FEW, 2, X)                                                           \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS, 3, X)                                                               \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS, 4, X)                                                               \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS, 6, X)                                                               \
    DIRECT_FLOAT(T, TYPE, DOT, many, FLOAT_GROUPS, 8, X)

/* The direct kernels of one type by number of columns, 1 … 8 rounded up to a compiled one: over one group and over
 * many. */
struct direct {
    direct_fn *one[8], *many[8];
};
#define FNS(T)                                                                                                         \
    {                                                                                                                  \
        {direct_##T##_one_1, direct_##T##_one_2, direct_##T##_one_4, direct_##T##_one_4,                               \
         direct_##T##_one_8, direct_##T##_one_8, direct_##T##_one_8, direct_##T##_one_8},                              \
        {                                                                                                              \
            direct_##T##_many_1, direct_##T##_many_2, direct_##T##_many_3, direct_##T##_many_4, direct_##T##_many_6,   \
                direct_##T##_many_6, direct_##T##_many_8, direct_##T##_many_8                                          \
        }                                                                                                              \
    }

QUANT_TYPE(Q8_0)
QUANT_TYPE(Q4_0)
QUANT_TYPE(Q4_1)
QUANT_TYPE(Q5_0)
QUANT_TYPE(Q5_1)
QUANT_TYPE(Q4_K)
QUANT_TYPE(Q5_K)
QUANT_TYPE(Q6_K)
FLOAT_TYPE(F32, KERN_F32, false, x->f + tile * x->k * 8)
FLOAT_TYPE(F16, KERN_F16, false, x->f + tile * x->k * 8)
#define BF16_TILE x->b + tile *((x->k + 1) / 2) * 16
FLOAT_TYPE(BF16, KERN_BF16, false, BF16_TILE)

static const struct direct direct[KERN_TYPES] = {
    [KERN_F32] = FNS(F32),   [KERN_F16] = FNS(F16),   [KERN_BF16] = FNS(BF16), [KERN_Q8_0] = FNS(Q8_0),
    [KERN_Q4_0] = FNS(Q4_0), [KERN_Q4_1] = FNS(Q4_1), [KERN_Q5_0] = FNS(Q5_0), [KERN_Q5_1] = FNS(Q5_1),
    [KERN_Q4_K] = FNS(Q4_K), [KERN_Q5_K] = FNS(Q5_K), [KERN_Q6_K] = FNS(Q6_K),
};

#define PANELS(T)                                                                                                      \
    [KERN_##T] = {                                                                                                     \
        panel_##T##_one,                                                                                               \
        panel_##T##_many,                                                                                              \
    }
static panel_fn *const panels[KERN_TYPES][2] = {
    PANELS(Q8_0), PANELS(Q4_0), PANELS(Q4_1), PANELS(Q5_0), PANELS(Q5_1), PANELS(Q4_K), PANELS(Q5_K), PANELS(Q6_K),
};

/* Groups that the kernel for n columns walks at once. */
static int direct_groups(enum kern_type t, int64_t n)
{
    if (kern_type_is_quant(t) && n >= (quant_is_k(t) ? ONE_COLS_K : ONE_COLS))
        return 1;
    return kern_type_is_quant(t) ? DIRECT_GROUPS : n <= 2 ? FLOAT_GROUPS_FEW : FLOAT_GROUPS;
}

/* Multiplies all tiles by the groups walked at once, which stay in cache from tile to tile. */
static void direct_walk(float *out, size_t ld, const struct direct *fns, const struct kern_mat *w, int64_t g, bool many,
                        struct group_stride stride, const struct kern_act *x, int64_t r0, int64_t r1)
{
    const int64_t steps = kern_type_is_quant(w->type) ? w->cols / 32
                          : w->type == KERN_BF16      ? (w->cols + 1) / 2
                                                      : w->cols;

    for (int64_t r = r0; r < r1; r += 8) {
        const int n = (int)(r1 - r < 8 ? r1 - r : 8);
        /* A narrow last tile walks as many groups as the full tiles before it. */
        const int cols = r1 - r0 > 8 && n <= 2 && many ? 3 : n;

        (many ? fns->many : fns->one)[cols - 1](out + (size_t)(r - r0) * ld, ld, n,
                                                w->data + (size_t)g * w->group_bytes, stride, steps, x, r / 8);
    }
}

static void matmul_direct(float *out, size_t ld, const struct direct *fns, const struct kern_mat *w, int64_t g0,
                          int64_t g1, const struct kern_act *x, int64_t r0, int64_t r1)
{
    const int many = direct_groups(w->type, r1 - r0);
    const int64_t part = (g1 - g0) / many;
    const struct group_stride stride = {(size_t)part * w->group_bytes, (size_t)part * 16};

    for (int64_t g = g0; g < g0 + part; g++)
        direct_walk(out + (g - g0) * 16, ld, fns, w, g, many > 1, stride, x, r0, r1);
    for (int64_t g = g0 + part * many; g < g1; g++)
        direct_walk(out + (g - g0) * 16, ld, fns, w, g, false, stride, x, r0, r1);
}

void VF(vec_matmul)(float *out, size_t ld, const struct kern_mat *w, int64_t g0, int64_t g1, const struct kern_act *x,
                    int64_t r0, int64_t r1, void *scratch)
{
    if (!kern_type_is_quant(w->type) || r1 - r0 <= DIRECT_ROWS) {
        matmul_direct(out, ld, &direct[w->type], w, g0, g1, x, r0, r1);
        return;
    }
    for (int64_t g = g0; g < g1;) {
        const bool whole = g1 - g >= PANEL_GROUPS;

        panels[w->type][whole](out + (g - g0) * 16, ld, w, g, x, r0, r1, scratch);
        g += whole ? PANEL_GROUPS : 1;
    }
}

#endif
