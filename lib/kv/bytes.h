/*
 * The bytes of a pool's slots in host memory. For lib/kv and lib/engine alone: other areas use engine_kv_read and
 * engine_kv_write (engine/engine.h), which also work for the memory of a device.
 */
#ifndef KV_BYTES_H
#define KV_BYTES_H

#include "kv/kv.h"

struct kv_pool_head { /* the first member of struct kv_pool */
    uint8_t *arena;
    struct kv_layout layout;
};

/* The (layer, head) tile. */
static inline uint8_t *kv_tile(const struct kv_pool *p, int32_t slot, int64_t layer, int head)
{
    const struct kv_pool_head *h = (const struct kv_pool_head *)(const void *)p;
    return h->arena + (size_t)slot * h->layout.slot_bytes + (size_t)layer * h->layout.layer_bytes +
           (size_t)head * h->layout.tile_bytes;
}

/* The first byte of a layer of a slot: layer_bytes of it, then the next layer. */
static inline uint8_t *kv_layer(const struct kv_pool *p, int32_t slot, int64_t layer)
{
    return kv_tile(p, slot, layer, 0);
}

/* Convert between the layers of a slot and the packed form (kv_packed_bytes). */
void kv_pack(uint8_t *dst, const struct kv_layout *l, const uint8_t *layers, int64_t n_layer, int n_token);
void kv_unpack(uint8_t *layers, const struct kv_layout *l, const uint8_t *src, int64_t n_layer, int n_token);

#endif
