/*
 * Packs weights: an exact rearrangement of GGUF blocks (the formats of GGML) into the groups of kernels.h. Four
 * neighbouring columns of a row are processed as one 32-bit word, as they are stored in the group.
 */
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kernels/layout.h"

static uint32_t load32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

static void store32(uint8_t *p, uint32_t u)
{
    memcpy(p, &u, 4);
}

/* Stores the 32 values q of row r in the quants of one block. */
static void put_quants(uint8_t *dst, const struct layout *l, int r, const uint8_t q[32])
{
    uint8_t *lane = dst + 4 * r;
    if (l->hi == 8) {
        for (int i = 0; i < 8; i++)
            store32(lane + i * 64, load32(q + 4 * i));
        return;
    }
    for (int j = 0; j < 4; j++) {
        uint32_t lo = load32(q + 4 * j) & 0x0f0f0f0f, hi = load32(q + 16 + 4 * j) & 0x0f0f0f0f;
        store32(lane + j * 64, lo | hi << 4);
    }
    if (l->hi == 1) {
        uint32_t bits = 0;
        for (int i = 0; i < 8; i++)
            bits |= (load32(q + 4 * i) >> 4 & 0x01010101) << i;
        store32(lane + 256, bits);
    }
    for (int v = 0; v < 2 && l->hi == 2; v++) {
        uint32_t bits = 0;
        for (int p = 0; p < 4; p++)
            bits |= (load32(q + 16 * v + 4 * p) >> 4 & 0x03030303) << 2 * p;
        store32(lane + 256 + 64 * v, bits);
    }
}

/* Reads the 32 stored values of one block of a type with f16 scales: [d][m if has_min][u32 fifth bits][quants]. */
static void unpack_block(uint8_t q[32], const struct layout *l, const uint8_t *src)
{
    src += l->has_min ? 4 : 2;
    if (l->hi == 8) {
        for (int i = 0; i < 32; i++)
            q[i] = src[i] ^ 0x80;
        return;
    }
    uint32_t fifth = 0;
    if (l->hi == 1) {
        fifth = load32(src);
        src += 4;
    }
    for (int i = 0; i < 16; i++) {
        q[i] = src[i] & 15;
        q[i + 16] = src[i] >> 4;
    }
    for (int i = 0; i < 32 && l->hi == 1; i++)
        q[i] |= (uint8_t)((fifth >> i & 1) << 4);
}

static void pack_row_simple(uint8_t *dst, const struct layout *l, int r, const uint8_t *src, int64_t n_block)
{
    for (int64_t b = 0; b < n_block; b++, src += l->src_bytes) {
        uint8_t q[32], *scale = dst + layout_scale_at(l, b) + 2 * r;
        unpack_block(q, l, src);
        put_quants(dst + layout_quant_at(l, b), l, r, q);
        memcpy(scale, src, 2);
        if (l->has_min)
            memcpy(scale + 32, src + 2, 2);
    }
}

/* Scale and minimum j of the eight 6-bit pairs in 12 bytes: the first four are stored whole, the others in 4 + 2
 * bits. */
static void unpack_6bit(uint8_t *sc, uint8_t *mn, const uint8_t s[12], int j)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *mn = s[j + 4] & 63;
    } else {
        *sc = (uint8_t)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        *mn = (uint8_t)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* Q4_K, Q5_K: {d, dmin, scales[12], (qh[32],) qs[128]}; sub-blocks 2c and 2c+1 are the nibbles of qs[32c …]. */
static void pack_row_k45(uint8_t *dst, const struct layout *l, int r, const uint8_t *src, int64_t n_block)
{
    for (int64_t b = 0; b < n_block; b++) {
        const uint8_t *blk = src + b / 8 * l->src_bytes, *qh = blk + 16, *qs = blk + 16 + (l->hi ? 32 : 0);
        int j = (int)(b % 8);
        uint8_t q[32], *scale = dst + layout_scale_at(l, b) + r;
        for (int i = 0; i < 32; i++) {
            q[i] = qs[32 * (j / 2) + i] >> 4 * (j & 1) & 15;
            if (l->hi)
                q[i] |= (uint8_t)((qh[i] >> j & 1) << 4);
        }
        put_quants(dst + layout_quant_at(l, b), l, r, q);
        unpack_6bit(scale, scale + 16, blk + 4, j);
        if (j == 0) {
            memcpy(dst + layout_head_at(l, b) + 2 * r, blk, 2);
            memcpy(dst + layout_head_at(l, b) + 32 + 2 * r, blk + 2, 2);
        }
    }
}

/* Q6_K: {ql[128], qh[64], i8 scales[16], d}; block j is in half j/4, quarter j%4 of it. */
static void pack_row_k6(uint8_t *dst, const struct layout *l, int r, const uint8_t *src, int64_t n_block)
{
    for (int64_t b = 0; b < n_block; b++) {
        const uint8_t *blk = src + b / 8 * l->src_bytes;
        int j = (int)(b % 8), part = j % 4;
        const uint8_t *ql = blk + 64 * (j / 4) + 32 * (part & 1), *qh = blk + 128 + 32 * (j / 4);
        uint8_t q[32], *scale = dst + layout_scale_at(l, b) + r;
        for (int i = 0; i < 32; i++)
            q[i] = (uint8_t)((ql[i] >> 4 * (part / 2) & 15) | (qh[i] >> 2 * part & 3) << 4);
        put_quants(dst + layout_quant_at(l, b), l, r, q);
        scale[0] = blk[192 + 2 * j];
        scale[16] = blk[192 + 2 * j + 1];
        if (j == 0)
            memcpy(dst + layout_head_at(l, b) + 2 * r, blk + 208, 2);
    }
}

/* A value of F32, F16 or BF16 as f32 bits. */
static uint32_t float_bits(enum kern_type t, const uint8_t *row, int64_t k)
{
    uint16_t h;
    if (t == KERN_F32)
        return load32(row + 4 * k);
    memcpy(&h, row + 2 * k, 2);
    return t == KERN_BF16 ? (uint32_t)h << 16 : bits_of_f32(f32_of_f16(h));
}

static void pack_row_float(uint8_t *dst, enum kern_type dst_type, enum kern_type src_type, int r, const uint8_t *src,
                           int64_t cols)
{
    for (int64_t k = 0; k < cols; k++) {
        if (dst_type == KERN_F32) {
            memcpy(dst + (k * 16 + r) * 4, src + 4 * k, 4);
        } else if (dst_type == KERN_F16) {
            memcpy(dst + (k * 16 + r) * 2, src + 2 * k, 2);
        } else {
            uint16_t h = (uint16_t)(float_bits(src_type, src, k) >> 16);
            memcpy(dst + ((k / 2 * 16 + r) * 2 + k % 2) * 2, &h, 2);
        }
    }
}

void kern_pack_group(uint8_t *dst, enum kern_type dst_type, enum kern_type src_type, const uint8_t *const rows[16],
                     int64_t cols)
{
    const struct layout *l = kern_layout(dst_type);
    memset(dst, 0, kern_group_bytes(dst_type, cols));
    for (int r = 0; r < 16; r++) {
        if (!rows[r])
            continue;
        if (!l->unit_blocks)
            pack_row_float(dst, dst_type, src_type, r, rows[r], cols);
        else if (dst_type == KERN_Q6_K)
            pack_row_k6(dst, l, r, rows[r], cols / 32);
        else if (l->block == 256)
            pack_row_k45(dst, l, r, rows[r], cols / 32);
        else
            pack_row_simple(dst, l, r, rows[r], cols / 32);
    }
}

/* ---- values that are no numbers ---- */

/* The first of n values of 16 bits that has all bits of the exponent `exp`; n: none has. The first loop has no exit, so
 * that the compiler can use vectors. */
static int64_t first_with16(const uint8_t *p, int64_t n, uint16_t exp)
{
    uint16_t any = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        any |= (uint16_t) - ((h & exp) == exp);
    }
    for (int64_t i = 0; any && i < n; i++) {
        uint16_t h;
        memcpy(&h, p + 2 * i, 2);
        if ((h & exp) == exp)
            return i;
    }
    return n;
}

static int64_t first_with32(const uint8_t *p, int64_t n, uint32_t exp)
{
    uint32_t any = 0;
    for (int64_t i = 0; i < n; i++)
        any |= -(uint32_t)((load32(p + 4 * i) & exp) == exp);
    for (int64_t i = 0; any && i < n; i++)
        if ((load32(p + 4 * i) & exp) == exp)
            return i;
    return n;
}

/* f16 scales of each block: `n_scale` of them, `at` bytes after its start. */
static int64_t first_scale(const struct layout *l, const uint8_t *row, int64_t n_block, int at, int n_scale)
{
    for (int64_t b = 0; b < n_block; b++)
        if (first_with16(row + b * l->src_bytes + at, n_scale, 0x7c00) < n_scale)
            return b;
    return n_block;
}

int64_t kern_row_not_finite(enum kern_type src_type, const uint8_t *row, int64_t cols)
{
    const struct layout *l = kern_layout(src_type);
    int64_t at, n = cols / l->block;
    if (src_type == KERN_F32)
        at = first_with32(row, n, 0x7f800000);
    else if (!l->unit_blocks)
        at = first_with16(row, n, src_type == KERN_BF16 ? 0x7f80 : 0x7c00);
    else
        at = first_scale(l, row, n, src_type == KERN_Q6_K ? 208 : 0, l->has_min ? 2 : 1);
    return at < n ? at * l->block : -1;
}

bool kern_is_bf16(enum kern_type src_type, const uint8_t *row, int64_t cols)
{
    uint32_t low = 0;
    for (int64_t k = 0; k < cols; k++)
        low |= float_bits(src_type, row, k);
    return !(low & 0xffff);
}
