/*
 * Private to lib/kv: the state of the store outside the arena. All of it can be rebuilt from the arena (store_adopt.c).
 */
#ifndef KV_STORE_IMPL_H
#define KV_STORE_IMPL_H

#include "base/list.h"
#include "kv/store.h"
#include "kv/tier.h"

struct claim { /* a missing block that the owner of a sequence computes, or that is read from the file tier */
    uint8_t digest[KV_DIGEST];
    struct claim *hash_next;
    struct list node;               /* seq_side.claims; or kv_store.reads, oldest first */
    uint32_t seq;                   /* the sequence that computes it; KV_NONE: from the file tier */
    uint64_t end_ns;                /* of a read: when the block counts as missing */
    uint32_t first_wait, last_wait; /* sequences that wait for it */
};

struct slot_side {            /* state of a slot outside the arena */
    uint32_t refs;            /* reference count: sequences with it in their table */
    uint32_t n_child, parent; /* indexed blocks that follow it; the block before it, or KV_NONE */
    uint32_t hash_next;
    uint32_t heap_at;                /* position in the heap; KV_NONE: not evictable */
    uint32_t prev, next;             /* list of slots of the same writer */
    uint32_t dirty_prev, dirty_next; /* list of blocks that are not in the file tier yet */
    bool dirty, on_disk;
    uint64_t prio; /* the heap is ordered by it, lowest first */
    uint64_t mark;
    uint64_t verified; /* the epoch in which its checksum was last compared at a lease */
};

struct seq_side {
    uint32_t prev, next; /* list of the same owner, or of transfers, oldest first */
    uint64_t end_ns;     /* in a transfer: when it is dropped */
    struct list claims;
    /* The wanted blocks, for the prefix look-up to continue when a pending block is cached. */
    uint32_t *ids;
    uint8_t *digests;
    uint64_t n_want;
    bool wait;
    bool no_tier;    /* a read from the file tier failed: no further reads there */
    bool unreported; /* it has grown by blocks of the file tier, and no event was emitted yet */
    struct claim *waits_for;
    uint32_t wait_prev, wait_next;
};

enum client_state { CLIENT_NONE, CLIENT_CONNECTED, CLIENT_ABSENT, CLIENT_EXPIRED };

struct client_side {
    enum client_state state;
    bool absent;  /* with CLIENT_EXPIRED: it was absent before, and has not connected */
    uint64_t key; /* of a connected client */
    uint64_t end_ns;
    uint32_t first_seq, first_slot;
};

struct kv_store {
    struct kv_arena *a;
    struct kv_store_opts o;
    uint64_t n_slot, n_seq, n_page, n_client;
    size_t slot_bytes;
    enum kv_why why;

    struct slot_side *slot;
    uint32_t *free_slot; /* [n] stack */
    uint64_t n_free;
    uint64_t n_cached, n_leased, n_quarantined, n_reserved;

    uint32_t *bucket; /* [n_bucket] slots by digest */
    uint64_t n_bucket;
    uint32_t *heap; /* evictable slots */
    uint64_t n_heap;
    uint64_t aged; /* priority of the last evicted block */
    uint64_t mark;
    uint32_t first_dirty, last_dirty;

    struct seq_side *seq;
    uint32_t *free_seq, *free_page;
    uint64_t n_free_seq, n_free_page;
    uint32_t first_transfer, last_transfer;
    uint64_t n_waiting;

    struct claim **claim_bucket; /* [n_bucket] */
    struct list reads;           /* claims of reads from the file tier, oldest first */
    bool tier_stalled;           /* a read is overdue: no new reads until one completes */
    bool tier_overloaded;        /* blocks were evicted while its queue was full; reported once */
    uint64_t now_ns;             /* the last time that a call passed */
    struct client_side *client;
    uint64_t n_connected;
    uint64_t n_id; /* of ids assigned */

    uint64_t epoch; /* number of damaged blocks that were found, plus 1 */
    uint64_t dice;  /* random; chooses the sample of verified leases */
    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted, damaged;
};

int store_refuse(struct err *e, struct kv_store *s, enum kv_why why, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void store_emit(struct kv_store *s, const struct kv_event *n);

/* ---- store_blocks.c: slots, index, eviction ---- */

static inline struct kv_slot *slot_of(const struct kv_store *s, uint32_t i)
{
    return kv_arena_slot(s->a, i);
}

/* Adds `by` to the counter of the class of a slot: -1 before each change of its state or refs, 1 after it. */
void slot_count(struct kv_store *s, uint32_t i, int by);
void slot_set(struct kv_store *s, uint32_t i, enum kv_slot_state state, uint32_t writer); /* writer: client + 1 */
void slot_free(struct kv_store *s, uint32_t i);
uint32_t slot_find(const struct kv_store *s, const uint8_t *digest); /* KV_NONE */
/* Whether a slot found by digest really has these ids after this parent. */
bool slot_is(const struct kv_store *s, uint32_t i, struct kv_ids_hash ids, uint32_t parent);
void slot_name(struct kv_store *s, uint32_t i, const uint8_t *digest, const uint8_t *parent, uint32_t parent_slot,
               struct kv_ids_hash ids, uint64_t sum);
void slot_index(struct kv_store *s, uint32_t i); /* adds it to the index only */
void slot_adopt_child(struct kv_store *s, uint32_t i, uint32_t parent);
void slot_ref(struct kv_store *s, uint32_t i); /* increments the reference count */
/* Decrements it. At 0 the block is cached, last used at this tick, or the slot is free. */
void slot_unref(struct kv_store *s, uint32_t i, uint64_t tick);
void slot_evictable(struct kv_store *s, uint32_t i); /* adds it to the heap if it may be evicted */
uint64_t slots_available(const struct kv_store *s);
uint32_t slot_get(struct kv_store *s); /* a free slot; evicts a block if none is free; KV_NONE: all are in use */
void slot_link_writer(struct kv_store *s, uint32_t i, uint32_t client);
void slot_released(struct kv_store *s, uint32_t i, uint64_t tick); /* without references: it may be evicted */

/* Removes a block from the index, and emits that it is no longer cached. Its slot is free, or private to the sequences
 * that use it. The caller removes the blocks that follow it likewise. */
void slot_forget(struct kv_store *s, uint32_t i);

/* ---- store_verify.c ---- */

/* Compares an indexed block with its checksum, if it is due. False: it has changed, and it is dropped with all blocks
 * that follow it. */
bool slot_verify(struct kv_store *s, uint32_t i);

/* ---- store_tier.c: the file tier below the slots ---- */

void slot_dirty(struct kv_store *s, uint32_t i);
void slot_undirty(struct kv_store *s, uint32_t i);
void slot_to_tier(struct kv_store *s, uint32_t i); /* if its queue has room */
/* Requests block n of a sequence from the file tier. NULL: the tier does not have it, or must not be used now. */
struct claim *tier_claim(struct kv_store *s, uint32_t i, uint64_t n);
/* Ends reads that are overdue. Returns when the next one is. */
uint64_t tier_tick(struct kv_store *s);

/* ---- store_seq.c ---- */

static inline struct kv_seq *seq_of(const struct kv_store *s, uint64_t i)
{
    return kv_arena_seq(s->a, i);
}

void seq_link(struct kv_store *s, uint32_t *first, uint32_t i);
void seq_drop(struct kv_store *s, uint32_t i, bool quarantine); /* the slot of the tail is quarantined, or freed */
bool seq_append(struct kv_store *s, uint32_t i, uint32_t slot); /* adds a reference; false: no page is free */
void seq_info(const struct kv_store *s, struct kv_seq_info *out, uint32_t i);
int store_client(struct err *e, struct kv_store *s,
                 uint32_t client); /* fails if it is unknown, or its lease has ended */
void transfer_link(struct kv_store *s, uint32_t i, uint64_t now_ns);
uint32_t seq_block(const struct kv_store *s, uint32_t i, uint64_t n); /* slot of block n; fast for the last one */

/* ---- store_reserve.c: reserved slots ---- */

/* Fails unless each slot is reserved for the client, or is or_tail, and none occurs twice. The caller increments
 * s->mark. */
int check_reserved(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n,
                   uint32_t or_tail);

/* ---- store_claim.c: claims and the sequences that wait for them ---- */

struct claim *claim_find(const struct kv_store *s, const uint8_t *digest);
struct claim *claim_read(struct kv_store *s, const uint8_t *digest, uint64_t end_ns); /* NULL: no memory */
/* Ends a claim; appends the sequences that waited for it to the list *first … *last (linked by wait_next). */
void claim_end(struct kv_store *s, struct claim *c, uint32_t *first, uint32_t *last);
void claims_wake(struct kv_store *s,
                 uint32_t first);              /* continues the look-up of each, and emits events to their owners */
void seq_grow(struct kv_store *s, uint32_t i); /* continues the look-up */

/* Ends its wait and its claims; appends the sequences that waited for these as claim_end does. */
void seq_stop(struct kv_store *s, uint32_t i, uint32_t *first, uint32_t *last);

/* ---- store_adopt.c ---- */

int store_adopt(struct err *e, struct kv_store *s, uint64_t now_ns);

#endif
