/*
 * The file tier: blocks on disk below those in memory, in one file of equal records that is written anew when it is
 * full, oldest first. A block survives the end of kvstore; one that was torn or has rotted is found by its checksums
 * and dropped. One thread; calls read and write the file.
 */
#ifndef KV_TIER_H
#define KV_TIER_H

#include "kv/arena.h"

struct kv_tier;

/* Opens or makes the file, of at most `bytes`. ERR_NO: not one block fits, another kvstore has it; ERR_PROTO: it holds
 * blocks of another kind, or is no such file; ERR_SYS. Records whose head is broken are counted and dropped. */
int kv_tier_open(struct err *e, struct kv_tier **out, const char *path, uint64_t bytes, const struct kv_kind *k);
void kv_tier_free(struct kv_tier *t);

struct kv_tier_block {
    uint8_t digest[KV_DIGEST], parent[KV_DIGEST];
    uint32_t ids[KERN_KV_BLOCK];
    uint64_t sum;
};

bool kv_tier_has(const struct kv_tier *t, const uint8_t *digest);
/* What is said of a block, without its bytes; false: not there. */
bool kv_tier_find(const struct kv_tier *t, struct kv_tier_block *out, const uint8_t *digest);
/* Its bytes into dst. ERR_NO: not there, or broken, and then dropped from the file. */
int kv_tier_get(struct err *e, struct kv_tier *t, uint8_t *dst, const uint8_t *digest);
/* Keeps a block; *dropped (KV_DIGEST bytes) and *has_dropped tell of the one whose place it took. ERR_SYS: the disk is
 * full, or the file fails: the block is not kept, the others are. */
int kv_tier_put(struct err *e, struct kv_tier *t, uint8_t *dropped, bool *has_dropped, const struct kv_tier_block *b,
                const uint8_t *bytes);
void kv_tier_each(const struct kv_tier *t, void (*fn)(void *arg, const uint8_t *digest), void *arg);

struct kv_tier_stat {
    uint64_t total, used, hits, bad; /* blocks; bad: dropped as broken since the file was opened */
};
void kv_tier_stat(const struct kv_tier *t, struct kv_tier_stat *out);

#endif
