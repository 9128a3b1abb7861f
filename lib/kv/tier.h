/*
 * The file tier: blocks on disk below those in memory, in one file of equal records that is written anew when it is
 * full, oldest first. A block survives the end of kvstore; one that was torn or has rotted is found by its checksums
 * and dropped: what is given out is always what its checksum says.
 *
 * Calls do not wait for the disk, but kv_tier_open, _wait and _free do: a thread reads and writes. What is put is found
 * at once, and written when its turn comes; what is asked for comes by kv_tier_next. One caller's thread.
 */
#ifndef KV_TIER_H
#define KV_TIER_H

#include "kv/arena.h"

#define KV_TIER_QUEUE_BYTES ((uint64_t)32 << 20) /* of blocks that wait to be written; two in any case */

struct kv_tier;

/* Opens or makes the file, of at most `bytes`. ERR_NO: not one block fits, another kvstore has it; ERR_PROTO: it holds
 * blocks of another kind, or is no such file; ERR_SYS. Records whose head is broken are counted and dropped. */
int kv_tier_open(struct err *e, struct kv_tier **out, const char *path, uint64_t bytes, const struct kv_kind *k);
/* What waits to be written is lost: kv_tier_wait before. A disk that does not answer is waited for a second. */
void kv_tier_free(struct kv_tier *t);

struct kv_tier_block {
    uint8_t digest[KV_DIGEST], parent[KV_DIGEST];
    uint32_t ids[KV_BLOCK];
    uint64_t sum;
};

bool kv_tier_has(const struct kv_tier *t, const uint8_t *digest);
/* What is said of a block, without its bytes; false: not there. */
bool kv_tier_find(const struct kv_tier *t, struct kv_tier_block *out, const uint8_t *digest);
/* Asks for its bytes. ERR_NO: not there. */
int kv_tier_get(struct err *e, struct kv_tier *t, const uint8_t *digest);
/* Keeps a block, whose bytes are copied; *dropped (KV_DIGEST bytes) and *has_dropped tell of the one whose place it
 * took. ERR_NO: too much waits to be written already: see kv_tier_room. */
int kv_tier_put(struct err *e, struct kv_tier *t, uint8_t *dropped, bool *has_dropped, const struct kv_tier_block *b,
                const uint8_t *bytes);
bool kv_tier_room(const struct kv_tier *t);
void kv_tier_each(const struct kv_tier *t, void (*fn)(void *arg, const uint8_t *digest), void *arg);

enum kv_tier_what {
    KV_TIER_READ = 1, /* a block that was asked for */
    KV_TIER_MISSING,  /* one that was asked for is not to be had: where text says so it was damaged, and is dropped */
    KV_TIER_LOST,     /* one that was put could not be written, and is dropped. A full disk is told once in text */
};
struct kv_tier_done {
    enum kv_tier_what what;
    struct kv_tier_block b;
    const uint8_t *bytes; /* READ; until the next call of kv_tier_next */
    const char *text;     /* or NULL; as long */
};
bool kv_tier_next(struct kv_tier *t, struct kv_tier_done *out); /* false: nothing more yet */
int kv_tier_fd(const struct kv_tier *t);                        /* readable while there is something to take */
/* Waits until kv_tier_next has something to look at. False: all is done, or nothing came in time. */
bool kv_tier_wait(struct kv_tier *t, int timeout_ms);

struct kv_tier_stat {
    uint64_t total, used, hits, bad; /* blocks; bad: dropped as broken since the file was opened */
};
void kv_tier_stat(const struct kv_tier *t, struct kv_tier_stat *out);

#endif
