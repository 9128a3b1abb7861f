/* A small kind of KV, prompts of it, and input bytes, for the harnesses of the store. */
#ifndef STORE_KIND_H
#define STORE_KIND_H

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kv/store.h"

static const uint8_t *in;
static size_t n_in;

static inline unsigned byte(void)
{
    return n_in ? n_in--, *in++ : 0;
}

static inline struct kv_kind small_kind(void)
{
    struct kv_kind k = {.type = KERN_KV_INT8, .n_layer = 1, .n_kv_head = 1, .head_dim = 16};
    memset(k.model, 7, sizeof k.model);
    strcpy(k.arith, "pp1");
    strcpy(k.layout, "cpu-hl1");
    return k;
}

static inline struct kv_arena *small_arena(uint64_t n_slot)
{
    struct err e;
    struct kv_kind k = small_kind();
    struct kv_layout l;
    struct kv_arena *a;
    int rc = kv_kind_layout(&e, &l, &k);
    rc = rc ? rc : kv_arena_new(&e, &a, &k, n_slot * l.slot_bytes);
    if (rc)
        abort();
    return a;
}

/* A prompt of a tree with two branches at each of its eight blocks: the bits of `path`. */
#define PROMPT_BLOCKS 8
static uint32_t prompt_ids[PROMPT_BLOCKS * KV_BLOCK + KV_BLOCK];
static uint8_t prompt_digests[PROMPT_BLOCKS * KV_DIGEST];

static inline void prompt_of(unsigned path)
{
    memset(prompt_digests, 0, sizeof prompt_digests);
    for (unsigned d = 0; d < PROMPT_BLOCKS; d++) {
        for (unsigned i = 0; i < KV_BLOCK; i++)
            prompt_ids[d * KV_BLOCK + i] = (path >> d & 1) * 1000 + d * KV_BLOCK + i;
        if (d)
            memcpy(prompt_digests + d * KV_DIGEST, prompt_digests + (d - 1) * KV_DIGEST, KV_DIGEST);
        prompt_digests[d * KV_DIGEST + d] = (uint8_t)(1 + (path >> d & 1));
    }
}

#endif
