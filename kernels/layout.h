/*
 * Positions of the parts of a packed group for every weight type: the layout in kernels.h as numbers.
 */
#ifndef KERNELS_LAYOUT_H
#define KERNELS_LAYOUT_H

#include <stdint.h>

#include "kernels/kernels.h"

/* A unit is the pattern that repeats along the columns of a group: a pair of blocks, or the 8 blocks of a K type. */
struct layout {
    const char *name;
    uint16_t src_bytes;   /* bytes of one block of a row in GGUF: 1, 32 or 256 columns */
    uint16_t block;       /* columns of that block */
    uint16_t unit_blocks; /* 32-column blocks of a unit; 0: not quantised */
    uint16_t head;        /* bytes before the quants of a unit: the f16 scales of a K type */
    uint16_t quant;       /* bytes of quants of one 32-column block of 16 rows */
    uint16_t scale;       /* bytes of scales of one 32-column block of 16 rows */
    uint8_t zero;         /* stored value that represents 0 */
    uint8_t has_min;
    uint8_t hi; /* bits above the nibble: 0, 1, 2; 8: whole bytes */
};

const struct layout *kern_layout(enum kern_type t);

static inline int64_t layout_unit_bytes(const struct layout *l)
{
    return l->head + (int64_t)l->unit_blocks * (l->quant + l->scale);
}

static inline int64_t layout_head_at(const struct layout *l, int64_t block)
{
    return block / l->unit_blocks * layout_unit_bytes(l);
}

static inline int64_t layout_quant_at(const struct layout *l, int64_t block)
{
    return layout_head_at(l, block) + l->head + block % l->unit_blocks * l->quant;
}

static inline int64_t layout_scale_at(const struct layout *l, int64_t block)
{
    return layout_head_at(l, block) + l->head + (int64_t)l->unit_blocks * l->quant + block % l->unit_blocks * l->scale;
}

#endif
