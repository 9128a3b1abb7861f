/*
 * The file tier: a second level of the block cache, on disk. One file of equal records; when it is full, the least
 * recently used record is overwritten. Blocks survive the end of kvstore. Checksums detect torn and damaged records,
 * which are dropped, so a block that the tier returns always matches its checksum.
 *
 * A background thread reads and writes, so calls do not block, except kv_tier_open, _wait and _free. A block that was
 * put can be found at once, and is written later; kv_tier_next returns the blocks that were requested. One thread uses
 * a tier.
 */
#ifndef KV_TIER_H
#define KV_TIER_H

#include "kv/arena.h"

#define KV_TIER_QUEUE_BYTES ((uint64_t)32 << 20) /* limit of blocks queued for writing; two blocks in any case */

struct kv_tier;

/* Opens or creates the file, of at most `bytes`. ERR_NO: not even one block fits, another kvstore uses it, or
 * the path cannot be opened (a missing folder, a directory, no permission);
 * ERR_PROTO: it has blocks of another kind, or is another type of file; ERR_SYS. Records with a damaged head are
 * counted and dropped. */
int kv_tier_open(struct err *e, struct kv_tier **out, const char *path, uint64_t bytes, const struct kv_kind *k);
/* Blocks that are not written yet are lost: call kv_tier_wait before. Waits at most a second for the disk. */
void kv_tier_free(struct kv_tier *t);

struct kv_tier_block {
    uint8_t digest[KV_DIGEST], parent[KV_DIGEST];
    struct kv_ids_hash ids;
    uint64_t sum;
};

bool kv_tier_has(const struct kv_tier *t, const uint8_t *digest);
/* The metadata of a block; false: the tier does not have it. */
bool kv_tier_find(const struct kv_tier *t, struct kv_tier_block *out, const uint8_t *digest);
/* Requests its bytes, which kv_tier_next returns. ERR_NO: the tier does not have it. */
int kv_tier_get(struct err *e, struct kv_tier *t, const uint8_t *digest);
/* Adds a block; its bytes are copied. If another block was dropped for it, *has_dropped is set, and its digest is
 * copied to dropped (KV_DIGEST bytes). ERR_NO: the write queue is full, see kv_tier_room. */
int kv_tier_put(struct err *e, struct kv_tier *t, uint8_t *dropped, bool *has_dropped, const struct kv_tier_block *b,
                const uint8_t *bytes);
/* Removes a block that must not be read again. */
void kv_tier_drop(struct kv_tier *t, const uint8_t *digest);
bool kv_tier_room(const struct kv_tier *t); /* the write queue has room */
void kv_tier_each(const struct kv_tier *t, void (*fn)(void *arg, const uint8_t *digest), void *arg);

enum kv_tier_what {
    KV_TIER_READ = 1, /* a requested block */
    KV_TIER_MISSING,  /* a requested block cannot be read; if it was damaged, text describes that, and it is dropped */
    KV_TIER_LOST,     /* a block could not be written, and is dropped; a full disk sets text the first time only */
};
struct kv_tier_done {
    enum kv_tier_what what;
    struct kv_tier_block b;
    const uint8_t *bytes; /* of KV_TIER_READ; borrowed until the next call of kv_tier_next */
    const char *text;     /* or NULL; borrowed likewise */
};
bool kv_tier_next(struct kv_tier *t, struct kv_tier_done *out); /* false: no completion yet */
int kv_tier_fd(const struct kv_tier *t);                        /* readable while kv_tier_next has a completion */
/* Blocks until kv_tier_next has a completion. False: nothing is in flight, or the timeout has passed. */
bool kv_tier_wait(struct kv_tier *t, int timeout_ms);

struct kv_tier_stat {
    uint64_t total, used, hits, bad; /* blocks; bad: damaged and dropped since the file was opened */
};
void kv_tier_stat(const struct kv_tier *t, struct kv_tier_stat *out);

#endif
