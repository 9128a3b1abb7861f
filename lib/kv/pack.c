#include <string.h>

#include "kv/bytes.h"

/* The layout of a tile: K [hd/ku][32][ku] and V [32/vw][hd][vw] elements of `size` bytes, f32 scales if `scaled`. */
struct form {
    size_t size, ku, vw;
    int scaled;
};

static struct form form_of(enum kern_kv type)
{
    switch (type) {
    case KERN_KV_INT8:
        return (struct form){1, 4, 4, 1};
    case KERN_KV_BF16:
        return (struct form){2, 2, 2, 0};
    case KERN_KV_F16:
        break;
    }
    return (struct form){2, 1, 1, 0};
}

static size_t packed_tile(const struct form *f, size_t hd, size_t n)
{
    return f->size * (hd * n + (n + f->vw - 1) / f->vw * f->vw * hd) + (f->scaled ? 2 * n * sizeof(float) : 0);
}

size_t kv_packed_bytes(const struct kv_layout *l, int64_t n_layer, int n_token)
{
    if (n_token == KV_BLOCK)
        return l->layer_bytes * (size_t)n_layer;
    struct form f = form_of(l->type);
    return packed_tile(&f, (size_t)l->head_dim, (size_t)n_token) * (size_t)l->n_kv_head * (size_t)n_layer;
}

/* Both directions share one traversal. `tile` is the source and `flat` the destination, or the reverse. */
enum way { TO_FLAT, TO_TILE };

static uint8_t *move(enum way way, uint8_t *tile, uint8_t *flat, size_t bytes)
{
    if (way == TO_FLAT)
        memcpy(flat, tile, bytes);
    else
        memcpy(tile, flat, bytes);
    return flat + bytes;
}

static uint8_t *walk_tile(enum way way, const struct form *f, size_t hd, uint8_t *tile, uint8_t *flat, size_t n)
{
    size_t run = n * f->ku * f->size, stride = KV_BLOCK * f->ku * f->size;
    for (size_t i = 0; i < hd / f->ku; i++)
        flat = move(way, tile + i * stride, flat, run);
    tile += hd * KV_BLOCK * f->size;
    if (f->scaled) {
        flat = move(way, tile, flat, n * sizeof(float));
        tile += KV_BLOCK * sizeof(float);
    }
    for (size_t t = 0; t < n; t += f->vw) {
        size_t row = hd * f->vw * f->size, live = n - t < f->vw ? n - t : f->vw;
        uint8_t *v = tile + t / f->vw * row;
        if (live == f->vw) {
            flat = move(way, v, flat, row);
            continue;
        }
        for (size_t j = 0; j < hd; j++, flat += f->vw * f->size) { /* stale bytes past the tail are never sent */
            if (way == TO_FLAT)
                memset(flat, 0, f->vw * f->size);
            move(way, v + j * f->vw * f->size, flat, live * f->size);
        }
    }
    tile += hd * KV_BLOCK * f->size;
    return f->scaled ? move(way, tile, flat, n * sizeof(float)) : flat;
}

static void walk(enum way way, const struct kv_layout *l, uint8_t *layers, uint8_t *flat, int64_t n_layer, int n_token)
{
    struct form f = form_of(l->type);
    for (int64_t i = 0; i < n_layer * l->n_kv_head; i++)
        flat = walk_tile(way, &f, (size_t)l->head_dim, layers + (size_t)i * l->tile_bytes, flat, (size_t)n_token);
}

void kv_pack(uint8_t *dst, const struct kv_layout *l, const uint8_t *layers, int64_t n_layer, int n_token)
{
    if (n_token == KV_BLOCK)
        memcpy(dst, layers, l->layer_bytes * (size_t)n_layer);
    else
        walk(TO_FLAT, l, (uint8_t *)(uintptr_t)layers, dst, n_layer, n_token);
}

void kv_unpack(uint8_t *layers, const struct kv_layout *l, const uint8_t *src, int64_t n_layer, int n_token)
{
    if (n_token == KV_BLOCK)
        memcpy(layers, src, l->layer_bytes * (size_t)n_layer);
    else
        walk(TO_TILE, l, layers, (uint8_t *)(uintptr_t)src, n_layer, n_token);
}
