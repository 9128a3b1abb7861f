/*
 * One partition of attention. Rows are processed in tiles of ATTN_ROWS, each tile in three steps over the partition:
 * scores with their maxima, exp2 with its sums, values. Lanes are tokens in the first two steps and head columns in the
 * last, so stale bytes of a token never reach a row that does not attend to it: scores outside a row's range become
 * -inf, their weights exactly 0.
 */
#ifndef VEC_ATTN_H
#define VEC_ATTN_H

#include <math.h>

#include "kernels/cpu/vec_float.h"
#include "kernels/cpu/vec_ops.h"

#define ATTN_ROWS 4
#define BLOCK_REGS (KV_BLOCK / LANES)

/* The blocks that the caller reads next, prefetched line by line. */
struct attn_ahead {
    const uint8_t *const *tile;
    int n_tile, bytes;
    int at_tile, at;
    int step; /* lines per step, so that the steps of a partition reach the end */
};

/* State of a tile of rows between the steps: scores, then exp2 (float KV) or two planes of weights (int8 KV). */
struct attn_tile {
    float e[ATTN_ROWS][KERN_KV_PARTITION];
    uint8_t hi[ATTN_ROWS][KERN_KV_PARTITION], lo[ATTN_ROWS][KERN_KV_PARTITION];
    float q[ATTN_ROWS][KERN_HEAD_MAX];           /* bf16 queries widened */
    uint16_t pair[ATTN_ROWS][KERN_KV_PARTITION]; /* weights as bf16, for vf_pair_dot */
    const uint8_t *row[ATTN_ROWS];               /* prepared queries */
    int from[ATTN_ROWS], to[ATTN_ROWS];
    int32_t seed[ATTN_ROWS][2]; /* of the int8 scores: -128·Σhi, -128·Σlo if keys are stored plus 128 */
    float dq[ATTN_ROWS];
    float max[ATTN_ROWS], sum[ATTN_ROWS], back[ATTN_ROWS];
    int first, end;       /* blocks that any row attends to */
    int all_from, all_to; /* tokens that every row attends to */
    bool fetch;           /* this tile is the first to read the blocks */
    const uint8_t *at;    /* prepared query of the next row, */
    int left;             /* rows left in its run, */
    size_t q_bytes, jump; /* bytes from row to row; additional bytes from run to run */
    struct attn_ahead ahead;
};

INLINE float attn_float(const uint8_t *p)
{
    float x;

    memcpy(&x, p, 4);
    return x;
}

INLINE int32_t attn_int(const uint8_t *p)
{
    int32_t x;

    memcpy(&x, p, 4);
    return x;
}

/* Sets the number of lines per step, for `steps` steps. */
INLINE void ahead_begin(struct attn_ahead *f, const struct kern_attn *a, int steps)
{
    f->tile = a->next;
    f->n_tile = a->n_next;
    f->bytes = (int)(kern_kv_tile_bytes(a->type, a->hd) / 64 * 64);
    f->at_tile = f->at = 0;
    f->step = steps ? (f->n_tile * (f->bytes / 64) + steps - 1) / steps : 0;
}

/*
 * Prefetches the next blocks into the second-level cache, line by line, spread over the arithmetic. On Zen 4 that reads
 * up to twice as fast from memory as no prefetch, or as prefetch into the first level. For blocks of this partition a
 * prefetch would be too late: they take less time than a line from memory.
 */
INLINE void ahead_step(struct attn_ahead *f)
{
    for (int i = 0; i < f->step && f->at_tile < f->n_tile; i++) {
        _mm_prefetch((const char *)(f->tile[f->at_tile] + f->at), _MM_HINT_T1);
        f->at += 64;
        if (f->at == f->bytes) {
            f->at = 0;
            f->at_tile++;
        }
    }
}

/* Stores scores of LANES·n tokens from token t on, scaled; -inf outside a row's range. Updates the running maxima. */
INLINE void scores_keep(struct attn_tile *w, vf max[], int rows, int t, const vf s[], int n)
{
    foreach (r, rows)
        foreach (j, n) {
            const int first = t + j * LANES;
            vf v = s[r * n + j];

            if (first < w->all_from || first + LANES > w->all_to)
                v = vf_select(vm_range(first, w->from[r], w->to[r]), v, vf_set(-INFINITY));
            max[r] = vf_max(v, max[r]);
            vf_store(&w->e[r][first], v);
        }
}

/* Both planes of the int8 scores of one block: exact sums, combined, then scaled. */
INLINE void scores_int8(struct attn_tile *w, vf max[], int rows, int hd, const uint8_t *tile, int t)
{
    const int n = SCORE_REGS;
    const float *scale = (const float *)(tile + 32 * hd);

    for (int j = 0; j < BLOCK_REGS; j += n) {
        vdot hi[ATTN_ROWS * SCORE_REGS], lo[ATTN_ROWS * SCORE_REGS];
        vf s[ATTN_ROWS * SCORE_REGS];

        foreach (r, rows)
            foreach (i, n) {
                hi[r * n + i] = dot_begin(vi_bcast4(&w->seed[r][0]));
                lo[r * n + i] = dot_begin(vi_bcast4(&w->seed[r][1]));
            }
        for (int d = 0; d < hd; d += 4) {
            vi k[SCORE_REGS];

            if (w->fetch && j == 0)
                ahead_step(&w->ahead);
            foreach (i, n)
                k[i] = vi_load(tile + d * 32 + (j + i) * 4 * LANES);
            foreach (r, rows) {
                vi a = vi_bcast4(w->row[r] + d), b = vi_bcast4(w->row[r] + hd + d);

                foreach (i, n) {
                    hi[r * n + i] = dot_step(hi[r * n + i], k[i], a, 8, 0);
                    lo[r * n + i] = dot_step(lo[r * n + i], k[i], b, 8, 0);
                }
            }
        }
        foreach (r, rows) {
            vf dq = vf_set(w->dq[r]);

            foreach (i, n) {
                vi joined = vi_add(vi_shl(dot_end(hi[r * n + i]), 7), dot_end(lo[r * n + i]));
                s[r * n + i] = vf_mul(vf_from_i(joined), vf_mul(vf_load(scale + (j + i) * LANES), dq));
            }
        }
        scores_keep(w, max, rows, t + j * LANES, s, n);
    }
}

/* Two columns of SCORE_REGS registers of bf16 keys, by vf_pair_dot. */
INLINE void score_pair_dot(vf s[], const struct attn_tile *w, int rows, int d, const uint8_t *keys)
{
    vi k[SCORE_REGS];

    foreach (i, SCORE_REGS)
        k[i] = vi_load(keys + i * 4 * LANES);
    foreach (r, rows) {
        vi q = vi_bcast4(w->row[r] + 2 * d);

        foreach (i, SCORE_REGS)
            s[r * SCORE_REGS + i] = vf_pair_dot(k[i], q, s[r * SCORE_REGS + i]);
    }
}

/* bf16: pairs of columns, the odd one first. f16: columns ascending. */
INLINE void scores_float(struct attn_tile *w, vf max[], enum kern_kv type, bool dot, int rows, int hd,
                         const uint8_t *tile, int t)
{
    const int n = SCORE_REGS;
    const size_t q_end = type == KERN_KV_BF16 ? 2 * (size_t)hd : 4 * (size_t)hd;
    const vi high = vi_set((int32_t)0xffff0000u);

    for (int j = 0; j < BLOCK_REGS; j += n) {
        vf s[ATTN_ROWS * SCORE_REGS];

        foreach (i, rows * n)
            s[i] = vf_zero();
        for (int d = 0; d < hd; d += 2) {
            vf k0[SCORE_REGS], k1[SCORE_REGS];

            if (w->fetch && j == 0 && d % 4 == 0)
                ahead_step(&w->ahead);
            if (dot) {
                score_pair_dot(s, w, rows, d, tile + d * 64 + j * 4 * LANES);
                continue;
            }
            foreach (i, n) {
                if (type == KERN_KV_BF16) {
                    vi pair = vi_load(tile + d * 64 + (j + i) * 4 * LANES);
                    k0[i] = vf_bits(vi_shl(pair, 16));
                    k1[i] = vf_bits(vi_and(pair, high));
                } else {
                    k0[i] = vf_load_f16(tile + d * 64 + (j + i) * 2 * LANES);
                    k1[i] = vf_load_f16(tile + (d + 1) * 64 + (j + i) * 2 * LANES);
                }
            }
            foreach (r, rows) {
                vf a = vf_set(w->q[r][d]), b = vf_set(w->q[r][d + 1]);

                foreach (i, n) {
                    vf *x = &s[r * n + i];
                    *x = type == KERN_KV_BF16 ? vf_fma(k0[i], a, vf_fma(k1[i], b, *x))
                                              : vf_fma(k1[i], b, vf_fma(k0[i], a, *x));
                }
            }
        }
        foreach (r, rows)
            foreach (i, n)
                s[r * n + i] = vf_mul(s[r * n + i], vf_set(attn_float(w->row[r] + q_end)));
        scores_keep(w, max, rows, t + j * LANES, s, n);
    }
}

/*
 * e = exp2(s - max) and its sums in 16 lanes; a score of -inf gives 0. For int8 KV e becomes e·vs, with its maximum.
 * NaN (0 times a stale scale) never counts in the maximum, and weights_int8 masks it.
 */
INLINE void weigh(struct attn_tile *w, const struct kern_attn *a, bool int8, int rows)
{
    vf sum[ATTN_ROWS][LANE_REGS], top[ATTN_ROWS], max[ATTN_ROWS];
    const size_t scales = (size_t)64 * (size_t)a->hd + 128;

    foreach (r, rows) {
        foreach (j, LANE_REGS)
            sum[r][j] = vf_zero();
        top[r] = vf_zero();
        max[r] = vf_set(w->max[r]);
    }
    for (int b = w->first; b < w->end; b++) {
        const float *vs = int8 ? (const float *)(a->tile[b] + scales) : NULL;

        foreach (j, BLOCK_REGS) {
            const int t = b * KV_BLOCK + j * LANES;

            foreach (r, rows) {
                vf e = vf_exp2(vf_sub(vf_load(&w->e[r][t]), max[r]));

                sum[r][j % LANE_REGS] = vf_add(sum[r][j % LANE_REGS], e);
                if (int8) {
                    e = vf_mul(e, vf_load(vs + j * LANES));
                    top[r] = vf_max(e, top[r]);
                }
                vf_store(&w->e[r][t], e);
            }
        }
    }
    foreach (r, rows) {
        w->sum[r] = vf_fold16(sum[r]);
        if (int8)
            w->back[r] = vf_max_lane(top[r]);
    }
}

/* Weights of LANES tokens from token t on as 14 bits; 0 outside a row's range and in unused rows. */
INLINE vi weights_at(const struct attn_tile *w, int r, int t, vf inv)
{
    if (t < w->first * KV_BLOCK || t >= w->end * KV_BLOCK)
        return vi_zero();
    vi p = vi_from_f(vf_min(vf_mul(vf_load(&w->e[r][t]), inv), vf_set(16383.0f)));

    if (t < w->all_from || t + LANES > w->all_to)
        p = vi_select(vm_range(t, w->from[r], w->to[r]), p, vi_zero());
    return p;
}

/* Weights as 14 bits in two planes of 7, packed; `back` becomes the scale of their sums. */
INLINE void weights_int8(struct attn_tile *w, int rows)
{
    const int begin = w->first * KV_BLOCK / (4 * LANES) * (4 * LANES);

    foreach (r, rows) {
        const float c = w->back[r];
        const vf inv = vf_set(c < SCALE_MIN ? 0.0f : 16383.0f / c);
        const vi low = vi_set(127);

        for (int t = begin; t < w->end * KV_BLOCK; t += 4 * LANES) {
            vi p[4];

            foreach (i, 4)
                p[i] = weights_at(w, r, t + i * LANES, inv);
            vi_store_packed(&w->hi[r][t], vi_shr(p[0], 7), vi_shr(p[1], 7), vi_shr(p[2], 7), vi_shr(p[3], 7));
            vi_store_packed(&w->lo[r][t], vi_and(p[0], low), vi_and(p[1], low), vi_and(p[2], low), vi_and(p[3], low));
        }
        w->back[r] = c * (1 / 16383.0f);
    }
}

/* Position of the packed weights of tokens t … t+3 in a plane. */
INLINE int packed_at(int t)
{
    return t / (4 * LANES) * (4 * LANES) + PACKED_AT(t / 4 % LANES);
}

/* VALUE_REGS registers of head columns from column i on: exact sums over the partition. */
INLINE void values_int8(float *o, struct attn_tile *w, const struct kern_attn *a, int rows, int i, int n)
{
    const int hd = a->hd;
    vdot hi[ATTN_ROWS * VALUE_REGS], lo[ATTN_ROWS * VALUE_REGS];

    foreach (j, rows * n)
        hi[j] = lo[j] = dot_begin(vi_zero());
    for (int b = w->first; b < w->end; b++) {
        const uint8_t *v = a->tile[b] + 32 * hd + 128 + 4 * i;
        const int at = packed_at(b * KV_BLOCK);

        for (int t = 0; t < KV_BLOCK; t += 4, v += 4 * hd) {
            vi x[VALUE_REGS];

            if (w->fetch)
                ahead_step(&w->ahead);
            foreach (j, n)
                x[j] = vi_load(v + j * 4 * LANES);
            foreach (r, rows) {
                vi p = vi_bcast4(&w->hi[r][at + PACKED_AT(t / 4)]), q = vi_bcast4(&w->lo[r][at + PACKED_AT(t / 4)]);

                foreach (j, n) {
                    hi[r * n + j] = dot_step(hi[r * n + j], p, x[j], 7, 0);
                    lo[r * n + j] = dot_step(lo[r * n + j], q, x[j], 7, 0);
                }
            }
        }
    }
    foreach (r, rows)
        foreach (j, n) {
            vi joined = vi_add(vi_shl(dot_end(hi[r * n + j]), 7), dot_end(lo[r * n + j]));
            vf x = vf_add(vf_mul(vf_from_i(joined), vf_set(w->back[r])), vf_zero());
            const int at = i + j * LANES;

            vf_store_n(o + r * hd + at, x, hd - at);
        }
}

/* acc += weights times values of tokens t … t+1 (bf16) or token t (f16), for n_row rows from `row` on. */
INLINE void value_step(vf acc[], const struct attn_tile *w, const struct kern_attn *a, enum kern_kv type, bool dot,
                       int row, int n_row, int t, int i, int n)
{
    const int hd = a->hd;
    const uint8_t *v = a->tile[t / KV_BLOCK] + (size_t)64 * hd + (size_t)(t % KV_BLOCK) * hd * 2;
    const vi high = vi_set((int32_t)0xffff0000u);

    if (type == KERN_KV_F16) {
        foreach (j, n) {
            vf x = vf_load_f16_n(v + (i + j * LANES) * 2, hd - i - j * LANES);

            foreach (r, n_row)
                acc[(row + r) * n + j] = vf_fma(vf_set(w->e[row + r][t]), x, acc[(row + r) * n + j]);
        }
        return;
    }
    foreach (j, n) {
        vi pair = vi_load_n(v + (i + j * LANES) * 4, hd - i - j * LANES);
        vf even = vf_bits(vi_shl(pair, 16)), odd = vf_bits(vi_and(pair, high));

        foreach (r, n_row) {
            const float *e = &w->e[row + r][t];
            vf *sum = &acc[(row + r) * n + j];

            if (dot)
                *sum = vf_pair_dot(pair, vi_bcast4(&w->pair[row + r][t]), *sum);
            else
                *sum = vf_fma(vf_set(e[0]), even, vf_fma(vf_set(e[1]), odd, *sum));
        }
    }
}

/* Tokens t0 <= t < t1 of one row. If only one token of a bf16 pair is in range, the other counts as zeros. */
INLINE void value_edge(vf acc[], const struct attn_tile *w, const struct kern_attn *a, enum kern_kv type, bool dot,
                       int row, int t0, int t1, int i, int n)
{
    const int step = type == KERN_KV_F16 ? 1 : 2;

    for (int t = t0; t < t1; t += step) {
        const bool whole = step == 1 || (t >= w->from[row] && t + 1 < w->to[row]);

        if (whole) {
            value_step(acc, w, a, type, dot, row, 1, t, i, n);
            continue;
        }
        const uint8_t *v = a->tile[t / KV_BLOCK] + (size_t)64 * a->hd + (size_t)(t % KV_BLOCK) * a->hd * 2;
        const bool first = t >= w->from[row];

        foreach (j, n) {
            vi pair = vi_load_n(v + (i + j * LANES) * 4, a->hd - i - j * LANES);
            vf seen = vf_bits(first ? vi_shl(pair, 16) : vi_and(pair, vi_set((int32_t)0xffff0000u)));

            acc[row * n + j] = vf_fma(vf_set(w->e[row][first ? t : t + 1]), seen, acc[row * n + j]);
        }
    }
}

/* bf16 and f16 values, tokens ascending: the range that all rows share together, the rest of each row's range
 * separately. */
INLINE void values_float(float *o, struct attn_tile *w, const struct kern_attn *a, enum kern_kv type, bool dot,
                         int rows, int i, int n)
{
    const int step = type == KERN_KV_F16 ? 1 : 2;
    int t0 = (w->all_from + step - 1) / step * step, t1 = w->all_to / step * step;
    vf acc[ATTN_ROWS * VALUE_REGS];

    /* No common range: each row separately. */
    if (t1 <= t0)
        t0 = t1 = 0;
    foreach (j, rows * n)
        acc[j] = vf_zero();
    if (t1 > t0)
        foreach (r, rows)
            value_edge(acc, w, a, type, dot, r, w->from[r] / step * step, t0, i, n);
    for (int t = t0; t < t1; t += step) {
        if (w->fetch && t % 4 == 0)
            ahead_step(&w->ahead);
        value_step(acc, w, a, type, dot, 0, rows, t, i, n);
    }
    foreach (r, rows)
        value_edge(acc, w, a, type, dot, r, t1 > t0 ? t1 : w->from[r] / step * step, w->to[r], i, n);
    foreach (r, rows)
        foreach (j, n) {
            const int at = i + j * LANES;

            vf_store_n(o + r * a->hd + at, vf_add(acc[r * n + j], vf_zero()), a->hd - at);
        }
}

/* Sets up ranges, prepared queries and blocks of a tile of rows; false if no row attends to a token. */
INLINE bool tile_begin(struct attn_tile *w, const struct kern_attn *a, int row, int rows)
{
    int first = KERN_KV_PARTITION, end = 0;

    w->all_from = 0;
    w->all_to = KERN_KV_PARTITION;
    for (int r = 0; r < rows; r++) {
        bool none = a->from[row + r] >= a->to[row + r];

        w->row[r] = w->at;
        w->at += w->q_bytes;
        if (--w->left == 0) {
            w->left = a->run;
            w->at += w->jump;
        }
        w->from[r] = none ? 0 : a->from[row + r];
        w->to[r] = none ? 0 : a->to[row + r];
        if (!none && w->from[r] < first)
            first = w->from[r];
        if (w->to[r] > end)
            end = w->to[r];
        if (w->from[r] > w->all_from)
            w->all_from = w->from[r];
        if (w->to[r] < w->all_to)
            w->all_to = w->to[r];
        if (a->type == KERN_KV_INT8) {
            const uint8_t *sums = w->row[r] + 2 * a->hd;
            const int32_t zero = DOT_TAKES_128_OFF ? 0 : -128;

            w->dq[r] = attn_float(sums);
            w->seed[r][0] = zero * attn_int(sums + 4);
            w->seed[r][1] = zero * attn_int(sums + 8);
        } else if (a->type == KERN_KV_BF16) {
            for (int i = 0; i < a->hd; i += LANES)
                vf_store(&w->q[r][i], vf_bits(vi_shl(vi_load_u16((const uint16_t *)(const void *)w->row[r] + i), 16)));
        } else if (a->type == KERN_KV_F16) {
            memcpy(w->q[r], w->row[r], (size_t)a->hd * 4);
        }
    }
    w->first = first / KV_BLOCK;
    w->end = (end + KV_BLOCK - 1) / KV_BLOCK;
    return end > 0;
}

/* Rounds weights to bf16: as f32, and if vf_pair_dot reads them also as bf16. */
INLINE void weights_bf16(struct attn_tile *w, bool dot, int rows)
{
    for (int r = 0; r < rows; r++)
        for (int t = w->first * KV_BLOCK; t < w->end * KV_BLOCK; t += LANES) {
            vi p = bf16_bits(vf_load(&w->e[r][t]));

            vf_store(&w->e[r][t], vf_bits(vi_shl(p, 16)));
            if (dot)
                vi_store_16(&w->pair[r][t], p);
        }
}

/* Computes a tile of rows of which some attend to a token. Rows without tokens get -inf, 0, 0 without a computation. */
INLINE void attn_rows(float *m, float *l, float *o, struct attn_tile *w, const struct kern_attn *a, enum kern_kv type,
                      bool dot, int rows)
{
    const int hd = a->hd;
    vf max[ATTN_ROWS];

    if (w->fetch)
        ahead_begin(&w->ahead, a,
                    (w->end - w->first) * (hd / 4 + (hd + VALUE_REGS * LANES - 1) / (VALUE_REGS * LANES) * 8));
    foreach (r, rows)
        max[r] = vf_set(-INFINITY);
    for (int b = w->first; b < w->end; b++) {
        if (type == KERN_KV_INT8)
            scores_int8(w, max, rows, hd, a->tile[b], b * KV_BLOCK);
        else
            scores_float(w, max, type, dot, rows, hd, a->tile[b], b * KV_BLOCK);
    }
    foreach (r, rows)
        w->max[r] = vf_max_lane(max[r]);
    weigh(w, a, type == KERN_KV_INT8, rows);
    if (type == KERN_KV_INT8)
        weights_int8(w, rows);
    if (type == KERN_KV_BF16)
        weights_bf16(w, dot, rows);
    for (int i = 0; i < hd;) {
        const int left = (hd - i + LANES - 1) / LANES;

        if (left >= VALUE_REGS && type == KERN_KV_INT8)
            values_int8(o, w, a, rows, i, VALUE_REGS);
        else if (type == KERN_KV_INT8)
            values_int8(o, w, a, rows, i, 1);
        else if (left >= VALUE_REGS)
            values_float(o, w, a, type, dot, rows, i, VALUE_REGS);
        else
            values_float(o, w, a, type, dot, rows, i, 1);
        i += (left >= VALUE_REGS ? VALUE_REGS : 1) * LANES;
    }
    for (int r = 0; r < rows; r++) {
        const bool none = w->from[r] >= w->to[r];

        m[r] = none ? -INFINITY : w->max[r];
        l[r] = none ? 0.0f : w->sum[r];
        if (none)
            memset(o + (size_t)r * hd, 0, (size_t)hd * sizeof(float));
    }
}

#define ATTN(NAME, TYPE, DOT, ROWS)                                                                                    \
    static void attn_##NAME##_##ROWS(float *m, float *l, float *o, struct attn_tile *w, const struct kern_attn *a)     \
    {                                                                                                                  \
        attn_rows(m, l, o, w, a, TYPE, DOT, ROWS);                                                                     \
    }
#define ATTN_TYPE(NAME, TYPE, DOT)                                                                                     \
    ATTN(NAME, TYPE, DOT, 1)                                                                                           \
    ATTN(NAME, TYPE, DOT, 2)                                                                                           \
    ATTN(NAME, TYPE, DOT, 3)                                                                                           \
    ATTN(NAME, TYPE, DOT, 4)

ATTN_TYPE(int8, KERN_KV_INT8, false)
ATTN_TYPE(bf16, KERN_KV_BF16, false)
ATTN_TYPE(f16, KERN_KV_F16, false)

typedef void attn_fn(float *m, float *l, float *o, struct attn_tile *w, const struct kern_attn *a);
static attn_fn *const attn_fns[3][ATTN_ROWS] = {
    [KERN_KV_INT8] = {attn_int8_1, attn_int8_2, attn_int8_3, attn_int8_4},
    [KERN_KV_BF16] = {attn_bf16_1, attn_bf16_2, attn_bf16_3, attn_bf16_4},
    [KERN_KV_F16] = {attn_f16_1, attn_f16_2, attn_f16_3, attn_f16_4},
};

static void attn_walk(float *m, float *l, float *o, attn_fn *const fns[ATTN_ROWS], const struct kern_attn *a)
{
    struct attn_tile *w = a->scratch;

    w->fetch = true;
    w->at = a->q;
    w->left = a->run; /* 0: one run without an end */
    w->q_bytes = kern_q_bytes(a->type, a->hd);
    w->jump = a->step - (size_t)a->run * w->q_bytes;
    for (int row = 0; row < a->n_row; row += ATTN_ROWS) {
        const int rows = a->n_row - row < ATTN_ROWS ? a->n_row - row : ATTN_ROWS;
        float *out = o + (size_t)row * a->hd;

        if (tile_begin(w, a, row, rows)) {
            fns[rows - 1](m + row, l + row, out, w, a);
            w->fetch = false;
            continue;
        }
        for (int r = row; r < row + rows; r++) {
            m[r] = -INFINITY;
            l[r] = 0.0f;
        }
        memset(out, 0, (size_t)rows * a->hd * sizeof(float));
    }
}

void VF(vec_attn)(float *m, float *l, float *o, const struct kern_attn *a)
{
    attn_walk(m, l, o, attn_fns[a->type], a);
}

#endif
