/*
 * The store: kvstore without its socket. It is the only allocator and the index of the blocks of an arena. The clock is
 * an argument. One thread uses a store, and no call blocks: the file tier has its own thread.
 *
 * A client owns reserved slots, which it may write, and sequences. A sequence references the blocks of its table; a
 * block can have many references, and is not evicted while it has one. A sequence is identified by its number and
 * generation, which changes with the owner. This pair is the handle that prefill sends to decode, so the cost of a
 * transfer does not depend on the length of the sequence.
 *
 * Nothing is owned without a time limit. When the lease of a client ends without renewal, its sequences are released,
 * and the slots that it may still write are quarantined until it has left. A client that has left owns nothing. A
 * transfer that no client completes ends after `transfer_ns`, also if the sender has left, or before that by
 * kv_store_end_transfer.
 *
 * Each slot is always one of: free, cached (full, indexed, no references), leased (referenced by a sequence),
 * quarantined, reserved. kv_store_check verifies that.
 */
#ifndef KV_STORE_H
#define KV_STORE_H

#include "kv/arena.h"

#define KV_HANDLE_BYTES 16

struct kv_store;
struct kv_tier;

enum kv_why { /* the reason of a refusal, in addition to the error code; same numbers as enum wire_kv_why */
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
    bool pending;          /* the next block is being computed or read; KV_EVENT_SEQ follows */
};

enum kv_event_kind {
    KV_EVENT_SEQ,     /* a pending sequence has grown, or its owner must compute the next block now */
    KV_EVENT_EXPIRED, /* the client's lease has ended */
    KV_EVENT_STORED,  /* a block is cached, in memory or in the file tier */
    KV_EVENT_EVICTED, /* a block is no longer cached in either */
    KV_EVENT_DAMAGED, /* a block has changed since it was published, for the log: text */
    KV_EVENT_TIER,    /* a failure or recovery of the file tier, for the log: text */
};

struct kv_event {
    enum kv_event_kind kind;
    uint32_t client;
    struct kv_seq_info seq;
    const uint8_t *digest;
    const char *text;
};

enum kv_verify { /* when the bytes of a block are compared with its checksum; each includes the one before */
                 KV_VERIFY_NONE,
                 KV_VERIFY_PUBLISH, /* when it is published */
                 KV_VERIFY_FIRST,   /* at its first lease, and at a sample of the later ones */
                 KV_VERIFY_ALWAYS,  /* at each lease */
};

struct kv_store_opts {
    uint64_t lease_ns, transfer_ns;
    uint64_t tier_ns; /* time limit of a read from the file tier, after which the block counts as missing */
    enum kv_verify verify;
    struct kv_tier *tier;                                  /* borrowed; NULL: none */
    void (*on_event)(void *arg, const struct kv_event *n); /* must not call the store; may be NULL */
    void *event_arg;
};

struct kv_store_stat {
    uint64_t total, free, cached, leased, quarantined, reserved;
    uint64_t seqs, clients, waiting;
    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted;
    uint64_t damaged; /* blocks that were dropped, since the start, because they or a block before them had changed */
    uint64_t disk_total, disk_used, disk_hits, disk_bad;
};

/* Creates a store over a new arena, or over that of an earlier store, whose state it adopts: the clients of that store
 * are absent, and own what they had until a lease has passed. The arena is borrowed. */
int kv_store_new(struct err *e, struct kv_store **out, struct kv_arena *a, const struct kv_store_opts *o,
                 uint64_t now_ns);
void kv_store_free(struct kv_store *s); /* does not change the arena, so that another store can adopt it */

/* The reason of the last call on this store that failed. */
enum kv_why kv_store_why(const struct kv_store *s);

/* ---- clients ---- */

/* Adds a client; *client is its number. pid and pid_start identify its process, 0: unknown. */
int kv_store_join(struct err *e, struct kv_store *s, uint32_t *client, int64_t pid, uint64_t pid_start,
                  uint64_t now_ns);
/* A client of an earlier store, or one whose connection broke, continues with what it owns. ERR_NO: it is unknown. */
int kv_store_rejoin(struct err *e, struct kv_store *s, uint32_t *client, uint64_t id, uint64_t key, uint64_t now_ns);
/* Emits KV_EVENT_SEQ for sequences of the client that were pending when an earlier store ended: the client computes the
 * missing blocks. Called after kv_store_rejoin. */
void kv_store_resend(struct kv_store *s, uint32_t client);
void kv_store_identity(const struct kv_store *s, uint32_t client, uint64_t *id, uint64_t *key);
/* The connection of the client is closed: releases all that it owns. */
void kv_store_leave(struct kv_store *s, uint32_t client, uint64_t now_ns);
int kv_store_renew(struct err *e, struct kv_store *s, uint32_t client, uint64_t now_ns);
/* Ends leases, transfers and reads whose time is over. Returns the time of the next call, at the latest. */
uint64_t kv_store_tick(struct kv_store *s, uint64_t now_ns);
/* Iterates over absent clients (of an earlier store, not connected again): sets *client to the next one, or returns
 * false. Start with KV_NONE. The caller checks whether the process exists, and calls kv_store_leave if not. */
bool kv_store_absent(const struct kv_store *s, uint32_t *client, int64_t *pid, uint64_t *pid_start);

/* ---- sequences and slots, of a client ---- */

/* Reserves n slots for the client to write, all or none; with `some`, fewer if n are not available. slot has room for
 * n, *got is set to the number of slots. */
int kv_store_reserve(struct err *e, struct kv_store *s, uint32_t client, uint32_t *slot, uint64_t *got, uint64_t n,
                     bool some);
int kv_store_release_slots(struct err *e, struct kv_store *s, uint32_t client, const uint32_t *slot, uint64_t n);

/* Creates a sequence over the longest cached prefix of ids. digests: one for each of the first n_block blocks of ids.
 * With wait, the sequence also waits for blocks that other clients compute (info->pending); it always waits for blocks
 * of the file tier. Of the missing blocks, the client claims those that no other client computes. */
int kv_store_lease(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, const uint32_t *ids,
                   uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait);

struct kv_publish {
    uint64_t seq, gen, at; /* at: number of blocks that the sequence has */
    const uint32_t *slot;  /* [n_block] reserved for the client, or the tail of its sequence */
    const uint64_t *sum;
    uint64_t n_block;
    const uint8_t *digests; /* [n_block][32]; NULL: do not index the blocks */
    const uint32_t *ids;    /* [32·n_block + n_tail] */
    uint32_t n_tail, tail;  /* the new tail; 0 and KV_NONE: none */
};
/* Appends written blocks to a sequence, all or none. out [n_block]: the slots in the table. If a block was cached
 * already, that is the cached one, and the slot that the client wrote is reserved for it again. */
int kv_store_publish(struct err *e, struct kv_store *s, uint32_t client, uint32_t *out, const struct kv_publish *p);

/* Begins a transfer: the client no longer owns the sequence. The first client that calls kv_store_transfer_in with the
 * number and generation in *info owns it. Until then the sender may end it with kv_store_release. */
int kv_store_transfer_out(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                          uint64_t gen, uint64_t now_ns);
int kv_store_transfer_in(struct err *e, struct kv_store *s, uint32_t client, struct kv_seq_info *info, uint64_t seq,
                         uint64_t gen);
int kv_store_release(struct err *e, struct kv_store *s, uint32_t client, uint64_t seq, uint64_t gen);
/* Ends a transfer that no client will complete; its full blocks stay cached. The first KV_HANDLE_BYTES of the handle
 * are seq and gen, little endian; the rest is ignored. Needs no client, only the handle. ERR_NO with KV_WHY_REFUSED:
 * fewer bytes; with KV_WHY_STALE: the transfer is complete, or has ended. */
int kv_store_end_transfer(struct err *e, struct kv_store *s, const uint8_t *handle, size_t n);

/* ---- state and upkeep ---- */

void kv_store_stat(const struct kv_store *s, struct kv_store_stat *out);
/* Calls fn for each cached block, for a new watcher. */
void kv_store_each(const struct kv_store *s, void (*fn)(void *arg, const uint8_t *digest), void *arg);
/* A client owns a sequence, or a client exists that may take one in a transfer. */
bool kv_store_busy(const struct kv_store *s);
/* Queues one block for the file tier that it does not have; to be called when idle. False: nothing is left, or the
 * queue of the tier is full. */
bool kv_store_flush(struct kv_store *s);
/* Processes the completions of the file tier; to be called when its descriptor is readable. */
void kv_store_tier(struct kv_store *s);
/* Verifies all invariants: ERR_NO names the first that is violated. For tests; visits every slot and sequence. */
int kv_store_check(struct err *e, const struct kv_store *s);

#endif
