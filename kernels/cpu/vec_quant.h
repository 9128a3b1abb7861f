/*
 * Positions of the parts of a packed quantised group (layout in kernels.h), and reading of a strip's bytes and scales.
 * Every function gets the type as a constant and is inlined into its caller.
 *
 * A strip is LANES output rows: strip h of a group starts 4·LANES·h bytes into each 64-byte vector and LANES·h into
 * each run of 16 scales.
 */
#ifndef VEC_QUANT_H
#define VEC_QUANT_H

#include "kernels/kernels.h"

#define GROUP_STRIPS (16 / LANES)
#define STRIP_BYTES (4 * LANES)

/* Bits of a stored weight. */
INLINE int quant_bits(enum kern_type t)
{
    switch (t) {
    case KERN_Q8_0:
        return 8;
    case KERN_Q6_K:
        return 6;
    case KERN_Q5_0:
    case KERN_Q5_1:
    case KERN_Q5_K:
        return 5;
    default:
        return 4;
    }
}

INLINE bool quant_is_k(enum kern_type t)
{
    return t == KERN_Q4_K || t == KERN_Q5_K || t == KERN_Q6_K;
}

INLINE bool quant_has_min(enum kern_type t)
{
    return t == KERN_Q4_1 || t == KERN_Q5_1 || t == KERN_Q4_K || t == KERN_Q5_K;
}

/* Offset of a stored value: the seed of a dot product is -zero·Σa. */
INLINE int quant_zero(enum kern_type t)
{
    switch (t) {
    case KERN_Q8_0:
        return DOT_TAKES_128_OFF ? 0 : 128;
    case KERN_Q4_0:
        return 8;
    case KERN_Q5_0:
        return 16;
    case KERN_Q6_K:
        return 32;
    default:
        return 0;
    }
}

/* Blocks that share a super-block, bytes of a block's weights, bytes of its scales, bytes before the first block. */
INLINE int quant_super(enum kern_type t)
{
    return quant_is_k(t) ? 8 : 2;
}

INLINE size_t quant_weight_bytes(enum kern_type t)
{
    return t == KERN_Q8_0 ? 512 : t == KERN_Q6_K ? 384 : quant_bits(t) == 5 ? 320 : 256;
}

INLINE size_t quant_scale_bytes(enum kern_type t)
{
    return quant_is_k(t) || !quant_has_min(t) ? 32 : 64;
}

INLINE size_t quant_head_bytes(enum kern_type t)
{
    return quant_is_k(t) ? 64 : 0;
}

INLINE size_t quant_super_bytes(enum kern_type t)
{
    return quant_head_bytes(t) + (size_t)quant_super(t) * (quant_weight_bytes(t) + quant_scale_bytes(t));
}

/* The vector of quad q of a strip; w is the block's weights, already at the strip. */
INLINE vi quant_quad(enum kern_type t, const uint8_t *w, int q)
{
    const vi low = vi_set(0x0f0f0f0f);
    vi v, h;

    if (t == KERN_Q8_0)
        return vi_load(w + q * 64);
    v = vi_load(w + (q & 3) * 64);
    v = vi_and(q < 4 ? v : vi_shr(v, 4), low);
    if (quant_bits(t) == 5) {
        h = vi_load(w + 256);
        h = q < 4 ? vi_shl(h, 4 - q) : vi_shr(h, q - 4);
        v = vi_or(v, vi_and(h, vi_set(0x10101010)));
    } else if (t == KERN_Q6_K) {
        h = vi_load(w + 256 + (q >> 2) * 64);
        h = (q & 3) == 0 ? vi_shl(h, 4) : (q & 3) == 1 ? vi_shl(h, 2) : (q & 3) == 2 ? h : vi_shr(h, 2);
        v = vi_or(v, vi_and(h, vi_set(0x30303030)));
    }
    return v;
}

/*
 * A block's scales for one strip: acc gets a·(d·s) + m·z; Q6_K has a scale per half instead, d for the first, m for the
 * second. The products of K types are exact in f32.
 */
struct quant_scale {
    vf d, m;
};

/* super: the super-block at its first byte; b: the block in it; h: the strip in the group. */
INLINE struct quant_scale quant_scales(enum kern_type t, const uint8_t *super, int b, int h)
{
    const uint8_t *sc =
        super + quant_head_bytes(t) + (size_t)quant_super(t) * quant_weight_bytes(t) + (size_t)b * quant_scale_bytes(t);
    struct quant_scale s = {vf_zero(), vf_zero()};

    if (!quant_is_k(t)) {
        s.d = vf_load_f16(sc + 2 * LANES * h);
        if (quant_has_min(t))
            s.m = vf_load_f16(sc + 32 + 2 * LANES * h);
        return s;
    }
    s.d = vf_load_f16(super + 2 * LANES * h);
    if (t == KERN_Q6_K) {
        s.m = vf_mul(s.d, vf_from_i(vi_load_s8(sc + 16 + LANES * h)));
        s.d = vf_mul(s.d, vf_from_i(vi_load_s8(sc + LANES * h)));
    } else {
        s.m = vf_load_f16(super + 32 + 2 * LANES * h);
        s.m = vf_neg(vf_mul(s.m, vf_from_i(vi_load_u8(sc + 16 + LANES * h))));
        s.d = vf_mul(s.d, vf_from_i(vi_load_u8(sc + LANES * h)));
    }
    return s;
}

#endif
