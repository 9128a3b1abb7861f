/* A small kind of KV, arenas of it, and prompts as paths in a tree, for the tests of the store. */
#ifndef KV_BUILD_H
#define KV_BUILD_H

#include <string.h>

#include "kv/arena.h"
#include "unit/asserts.h"

static inline struct kv_kind small_kind(void)
{
    struct kv_kind k = {.type = KERN_KV_INT8, .n_layer = 1, .n_kv_head = 1, .head_dim = 16};
    memset(k.model, 7, sizeof k.model);
    strncpy(k.arith, "pp1", sizeof k.arith - 1);
    strncpy(k.layout, "cpu-hl1", sizeof k.layout - 1);
    return k;
}

static inline struct kv_arena *small_arena(uint64_t n_slot)
{
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_layout l;
    struct kv_arena *a;
    OK(kv_kind_layout(&e, &l, &k));
    OK(kv_arena_new(&e, &a, &k, n_slot * l.slot_bytes));
    return a;
}

/* Block d of a prompt that takes branch path[d] at each block: ids, and a digest of the path so far. */
#define DEPTH_MAX 64
struct prompt {
    uint32_t ids[DEPTH_MAX * KV_BLOCK];
    uint8_t digests[DEPTH_MAX * KV_DIGEST];
    uint64_t n;
};

static inline void prompt_of(struct prompt *p, const uint8_t *path, uint64_t n)
{
    p->n = n;
    memset(p->digests, 0, sizeof p->digests);
    for (uint64_t d = 0; d < n; d++) {
        for (int i = 0; i < KV_BLOCK; i++)
            p->ids[d * KV_BLOCK + i] = path[d] * 1000u + (uint32_t)(d * 32 + i);
        uint8_t *digest = p->digests + d * KV_DIGEST;
        if (d)
            memcpy(digest, digest - KV_DIGEST, KV_DIGEST);
        digest[d % KV_DIGEST] = (uint8_t)(digest[d % KV_DIGEST] + path[d] + 1);
    }
}

#endif
