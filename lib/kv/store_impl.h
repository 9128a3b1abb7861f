/*
 * Private to lib/kv: how the store keeps what it knows beside the arena. All of it can be made again from the arena:
 * store_adopt.c does.
 */
#ifndef KV_STORE_IMPL_H
#define KV_STORE_IMPL_H

#include "base/list.h"
#include "kv/store.h"
#include "kv/tier.h"

struct claim { /* a block that a sequence's owner computes, or that comes from the file tier */
    uint8_t digest[KV_DIGEST];
    struct claim *hash_next;
    struct list node;               /* of the same sequence; of all that come from the file tier, oldest first */
    uint32_t seq;                   /* KV_NONE: from the file tier */
    uint64_t end_ns;                /* then: when it counts as missing */
    uint32_t first_wait, last_wait; /* sequences that wait for it */
};

struct slot_side {            /* of a slot */
    uint32_t refs;            /* sequences that hold it */
    uint32_t n_child, parent; /* named blocks behind it; the one before it, or KV_NONE */
    uint32_t hash_next;
    uint32_t heap_at;                /* KV_NONE: not evictable now */
    uint32_t prev, next;             /* of the same writer */
    uint32_t dirty_prev, dirty_next; /* not in the file tier yet */
    bool dirty, on_disk;
    uint64_t prio; /* in the heap: least first */
    uint64_t mark;
};

struct seq_side {
    uint32_t prev, next; /* of the same owner, or of those handed over, oldest first */
    uint64_t end_ns;     /* handed over: when it is dropped */
    struct list claims;
    /* What it wants: prefix look-up goes on from here when a block it waits for is there. */
    uint32_t *ids;
    uint8_t *digests;
    uint64_t n_want;
    bool wait;
    bool no_tier; /* what it asked the file tier for did not come: it asks no more */
    bool untold;  /* it has grown by blocks of the file tier, and its owner was not told yet */
    struct claim *waits_for;
    uint32_t wait_prev, wait_next;
};

enum client_state { CLIENT_NONE, CLIENT_HERE, CLIENT_ABSENT, CLIENT_SILENT };

struct client_side {
    enum client_state state;
    bool absent; /* with CLIENT_SILENT: it never came back either */
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
    uint64_t n_cached, n_leased, n_quarantined, n_credited;

    uint32_t *bucket; /* [n_bucket] slots by digest */
    uint64_t n_bucket;
    uint32_t *heap; /* evictable slots */
    uint64_t n_heap;
    uint64_t aged; /* priority of the last one evicted */
    uint64_t mark;
    uint32_t first_dirty, last_dirty;

    struct seq_side *seq;
    uint32_t *free_seq, *free_page;
    uint64_t n_free_seq, n_free_page;
    uint32_t first_handed, last_handed;
    uint64_t n_waiting;

    struct claim **claim_bucket; /* [n_bucket] */
    struct list reads;           /* claims of the file tier */
    bool tier_late;              /* it is not asked until it has answered */
    bool tier_behind;            /* blocks left memory that it had no time for: said once */
    uint64_t now_ns;             /* the newest clock there was */
    struct client_side *client;
    uint64_t n_here;
    uint64_t n_id; /* of ids dealt out */

    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted;
};

int store_no(struct err *e, struct kv_store *s, enum kv_why why, int code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
void store_tell(struct kv_store *s, const struct kv_news *n);

/* ---- store_blocks.c: slots, index, eviction ---- */

static inline struct kv_slot *slot_of(const struct kv_store *s, uint32_t i)
{
    return kv_arena_slot(s->a, i);
}

/* Brackets every change of a slot's state or of its refs. */
void slot_count(struct kv_store *s, uint32_t i, int by);
void slot_set(struct kv_store *s, uint32_t i, enum kv_slot_state state, uint32_t writer); /* writer: client + 1 */
void slot_free(struct kv_store *s, uint32_t i);
uint32_t slot_find(const struct kv_store *s, const uint8_t *digest); /* KV_NONE */
/* Digests only find: is it the block of these ids behind this parent? */
bool slot_is(const struct kv_store *s, uint32_t i, const uint32_t *ids, uint32_t parent);
void slot_name(struct kv_store *s, uint32_t i, const uint8_t *digest, const uint8_t *parent, uint32_t parent_slot,
               const uint32_t *ids, uint64_t sum);
void slot_index(struct kv_store *s, uint32_t i); /* hash only */
void slot_adopt_child(struct kv_store *s, uint32_t i, uint32_t parent);
void slot_hold(struct kv_store *s, uint32_t i); /* one sequence more */
/* One less: then cached, as used at this tick, or free. */
void slot_unhold(struct kv_store *s, uint32_t i, uint64_t tick);
void slot_evictable(struct kv_store *s, uint32_t i); /* into the heap, where it may be */
uint64_t slots_available(const struct kv_store *s);
uint32_t slot_get(struct kv_store *s); /* a free one, evicting for it; KV_NONE */
void slot_link_writer(struct kv_store *s, uint32_t i, uint32_t client);
void slot_released(struct kv_store *s, uint32_t i, uint64_t tick); /* nobody holds it: it may be evicted */

/* ---- store_tier.c: the file tier below the slots ---- */

void slot_dirty(struct kv_store *s, uint32_t i);
void slot_undirty(struct kv_store *s, uint32_t i);
void slot_to_tier(struct kv_store *s, uint32_t i); /* where it has room */
/* Asks the file tier for block n of what a sequence wants. NULL: it is not there, or not to be waited for. */
struct claim *tier_claim(struct kv_store *s, uint32_t i, uint64_t n);
/* Those that wait for longer than they should wait no more. Returns when the next one is due. */
uint64_t tier_tick(struct kv_store *s);

/* ---- store_seq.c ---- */

static inline struct kv_seq *seq_of(const struct kv_store *s, uint64_t i)
{
    return kv_arena_seq(s->a, i);
}

void seq_link(struct kv_store *s, uint32_t *first, uint32_t i);
void seq_drop(struct kv_store *s, uint32_t i, bool quarantine); /* the tail into quarantine, or free */
bool seq_append(struct kv_store *s, uint32_t i, uint32_t slot); /* holds it too; false: no page is left */
void seq_info(const struct kv_store *s, struct kv_seq_info *out, uint32_t i);
int store_client(struct err *e, struct kv_store *s, uint32_t client); /* is it one, and has it its lease? */
void seq_hand_link(struct kv_store *s, uint32_t i, uint64_t now_ns);
uint32_t seq_block(const struct kv_store *s, uint32_t i, uint64_t n); /* slot of block n: the last one fast */

/* ---- store_credit.c: slots to write ---- */

/* Is each of these the client's credit, or the one tail named, and none there twice? */
int check_credit(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n,
                 uint32_t or_tail);

/* ---- store_claim.c: who computes what, and who waits for it ---- */

struct claim *claim_find(const struct kv_store *s, const uint8_t *digest);
struct claim *claim_read(struct kv_store *s, const uint8_t *digest, uint64_t end_ns); /* NULL: no memory */
/* Ends a claim; those that waited are added to the list that begins at *first, *last (by wait_next). */
void claim_end(struct kv_store *s, struct claim *c, uint32_t *first, uint32_t *last);
void claims_wake(struct kv_store *s, uint32_t first); /* goes on with the look-up of each, and tells their owners */
void seq_grow(struct kv_store *s, uint32_t i);        /* the look-up */

/* Ends its waiting and its claims; those that waited for these: as above. */
void seq_stop(struct kv_store *s, uint32_t i, uint32_t *first, uint32_t *last);

/* ---- store_adopt.c ---- */

int store_adopt(struct err *e, struct kv_store *s, uint64_t now_ns);

#endif
