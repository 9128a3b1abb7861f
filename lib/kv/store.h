/*
 * The store: what kvstore does, without its sockets. The only allocator and index of the blocks of an arena. The clock
 * is an argument; one thread; nothing blocks: the file tier has a thread of its own.
 *
 * A client holds credit (slots it may write) and sequences. A sequence holds the blocks of its table, each of which may
 * be held by many; nothing that is held is evicted. A sequence is known by its number and generation, which changes
 * with its owner: this pair is the handle that passes from prefill to decode, so that handing over costs the same
 * whatever its length.
 *
 * Every hold has an end. A client's holds end when its lease does, unless renewed: its sequences are dropped, slots it
 * might still write go into quarantine until it is gone. A client that is gone leaves nothing behind. A sequence that
 * was handed over and not taken ends after `handed_ns`, whether the one who gave it lives or not, or before, when
 * somebody who has the handle ends it (kv_store_let_go).
 *
 * Each slot is at any time one of: free, cached (whole, named, not held), leased (held by a sequence), quarantined,
 * credited. kv_store_check proves it.
 */
#ifndef KV_STORE_H
#define KV_STORE_H

#include "kv/arena.h"

#define KV_HANDLE_BYTES 16

struct kv_store;
struct kv_tier;

enum kv_why { /* beside the error's code; the numbers are those of enum wire_kv_why */
              KV_WHY_REFUSED = 1,
              KV_WHY_NEVER = 2,
              KV_WHY_NOT_NOW = 3,
              KV_WHY_STALE = 4,
              KV_WHY_EXPIRED = 5,
              KV_WHY_DRAINING = 6,
};

struct kv_seq_info {
    uint64_t seq, gen, n_block;
    uint32_t tail, n_tail; /* slot, or KV_NONE; tokens in it */
    bool pending;          /* another computes the next block, or it is being read; news come when that is decided */
};

enum kv_news_kind {
    KV_NEWS_SEQ,     /* a sequence that waited has grown, or is to be computed by its owner now */
    KV_NEWS_EXPIRED, /* the client's lease has ended */
    KV_NEWS_STORED,  /* a block is there, in memory or in the file tier */
    KV_NEWS_EVICTED, /* it is in neither any more */
    KV_NEWS_TIER,    /* the file tier has failed in a way to be said: text */
};

struct kv_news {
    enum kv_news_kind kind;
    uint32_t client;
    struct kv_seq_info seq;
    const uint8_t *digest;
    const char *text;
};

struct kv_store_opts {
    uint64_t lease_ns, handed_ns;
    uint64_t tier_ns;     /* a block that the file tier does not give in so long counts as missing */
    bool verify;          /* compare each published block with its checksum */
    struct kv_tier *tier; /* borrowed; NULL: none */
    void (*tell)(void *arg, const struct kv_news *n); /* must not call the store; may be NULL */
    void *tell_arg;
};

struct kv_store_stat {
    uint64_t total, free, cached, leased, quarantined, credited;
    uint64_t seqs, clients, waiting;
    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted;
    uint64_t disk_total, disk_used, disk_hits, disk_bad;
};

/* Over a new arena, or one that a store before left, whose state it takes over: the clients of then are known as absent
 * ones, who keep what they hold for a lease. The arena is borrowed. ERR_PROTO where the arena is damaged beyond use. */
int kv_store_new(struct err *e, struct kv_store **out, struct kv_arena *a, const struct kv_store_opts *o,
                 uint64_t now_ns);
void kv_store_free(struct kv_store *s); /* leaves the arena as it is, for the next one */

/* Why the last failed call on this store failed. */
enum kv_why kv_store_why(const struct kv_store *s);

/* ---- clients ---- */

/* *client: its number from here on. pid and pid_start of its process, 0 where unknown. */
int kv_store_join(struct err *e, struct kv_store *s, uint32_t *client, int64_t pid, uint64_t pid_start,
                  uint64_t now_ns);
/* A client of the store before, or one whose connection broke: goes on with what it holds. ERR_NO: it is not known. */
int kv_store_rejoin(struct err *e, struct kv_store *s, uint32_t *client, uint64_t id, uint64_t key, uint64_t now_ns);
/* Tells a client that came back of its sequences that waited when the store before ended: what is missing is its own to
 * compute now. */
void kv_store_retell(struct kv_store *s, uint32_t client);
void kv_store_identity(const struct kv_store *s, uint32_t client, uint64_t *id, uint64_t *key);
void kv_store_gone(struct kv_store *s, uint32_t client,
                   uint64_t now_ns); /* its socket is closed: all it held is free */
int kv_store_renew(struct err *e, struct kv_store *s, uint32_t client, uint64_t now_ns);
/* Ends what is due. Returns when to call it again, at the latest. */
uint64_t kv_store_tick(struct kv_store *s, uint64_t now_ns);
/* Absent clients (those of the store before who have not come back): next one after *client, or false. The caller finds
 * out whether their processes live, and calls kv_store_gone if not. Begin with KV_NONE. */
bool kv_store_absent(const struct kv_store *s, uint32_t *client, int64_t *pid, uint64_t *pid_start);

/* ---- sequences and slots, of a client ---- */

/* Slots to write: n or, with some, fewer. slot: room for n. */
int kv_store_credit(struct err *e, struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t *got, uint64_t n,
                    bool some);
int kv_store_uncredit(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n);

/* A new sequence over the longest prefix there is of ids; digests: one for each of the n_block first blocks of them.
 * With wait, blocks that another client is computing are waited for: info->pending. Blocks of the file tier are waited
 * for in any case. What is not there and computed by nobody is from here on computed by this one. */
int kv_store_lease(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, const uint32_t *ids,
                   uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait);

struct kv_publish {
    uint64_t seq, gen, at; /* at: blocks the sequence has */
    const uint32_t *slot;  /* [n_block] of the client's credit, or its sequence's tail */
    const uint64_t *sum;
    uint64_t n_block;
    const uint8_t *digests; /* [n_block][32]; NULL: without a name */
    const uint32_t *ids;    /* [32·n_block + n_tail] */
    uint32_t n_tail, tail;  /* the tail from here on; KV_NONE and 0: none */
};
/* All or nothing. out [n_block]: the slots that the table has now: where a block was there already under its digest,
 * that one's, and the slot given is the client's credit again. */
int kv_store_publish(struct err *e, struct kv_store *s, uint32_t client, uint32_t *out, const struct kv_publish *p);

/* Gives the sequence away: whoever takes it by this number and generation first owns it. As long as nobody has, the
 * client may release it by them. */
int kv_store_hand(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                  uint64_t gen, uint64_t now_ns);
int kv_store_take(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                  uint64_t gen);
int kv_store_release(struct err *e, struct kv_store *s, uint32_t client, uint64_t seq, uint64_t gen);
/* Ends a sequence that was handed over and that nobody will take: its blocks stay cached. From anybody who has the
 * handle: its first KV_HANDLE_BYTES are seq and gen, little endian, and the store ignores what follows. ERR_NO with
 * KV_WHY_REFUSED: fewer bytes; with KV_WHY_STALE: the sequence was taken, or has ended. */
int kv_store_let_go(struct err *e, struct kv_store *s, const uint8_t *handle, size_t n);

/* ---- about it ---- */

void kv_store_stat(const struct kv_store *s, struct kv_store_stat *out);
/* All blocks there are, for a watcher that begins. */
void kv_store_each(const struct kv_store *s, void (*fn)(void *arg, const uint8_t *digest), void *arg);
bool kv_store_busy(const struct kv_store *s); /* a client holds something, or a handed sequence waits */
/* Gives the file tier one block that it has not yet: to be called while there is nothing else to do. False: there is
 * none, or no room for more before some are written. */
bool kv_store_flush(struct kv_store *s);
/* Takes in what the file tier has done: to be called when its descriptor is readable. */
void kv_store_tier(struct kv_store *s);
/* Everything that must hold, from scratch: ERR_NO naming what does not. For tests; walks all. */
int kv_store_check(struct err *e, const struct kv_store *s);

#endif
