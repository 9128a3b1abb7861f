/*
 * The arena of a host: two memfds. One has the metadata: the head, clients, slots, sequences, pages of block tables.
 * Only the kvstore that created it can write it: F_SEAL_FUTURE_WRITE is set after its own mapping, so that no other
 * process can, whatever descriptor it holds. It has no token ids and no keys, only hashes of them. The other memfd has
 * the bytes of the slots, which every worker can read and write, after a copy of the generations of all sequences. A
 * kvstore writes that copy and never reads it.
 *
 * Workers read the tables of their sequences. A new kvstore adopts the arena of the previous one from its descriptors
 * alone: it copies the metadata into a memfd of its own, checks that copy, and passes it to each client that
 * reconnects. Until then a client has the former metadata, which nobody can write any more. Generations that have
 * changed since are seen in the copy beside the slots. A client that still has the former metadata when that kvstore is
 * killed cannot hand them to a third one: their epoch is not that of the slots.
 *
 * All sizes are 64-bit. kvstore writes fields in an order that keeps the file consistent for readers and for a
 * kvstore that adopts it after a kill: the metadata of a slot before its state, the entries of a table before their
 * number.
 */
#ifndef KV_ARENA_H
#define KV_ARENA_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kv_block.h"
#include "err/err.h"
#include "kv/kv.h"

#define KV_ARENA_VERSION 3
#define KV_ARENA_FDS 2     /* descriptors of an arena: metadata, slots */
#define KV_NONE UINT32_MAX /* no slot, no page */

/* Compares two kinds. ERR_PROTO: the text names the difference; `whose` is the name of the peer ("prefill"). */
int kv_kind_check(struct err *e, const struct kv_kind *have, const struct kv_kind *theirs, const char *whose);
/* Checks the numbers of a kind that came from outside, and computes its layout. */
int kv_kind_layout(struct err *e, struct kv_layout *out, const struct kv_kind *k);

enum kv_slot_state { /* stored in the arena: never renumber */
                     KV_FREE = 0,
                     KV_RESERVED = 1,   /* a client may write it */
                     KV_NAMED = 2,      /* a full block, indexed by its digest: cached, or leased by sequences */
                     KV_PRIVATE = 3,    /* of one sequence: the tail, or a full block that is not in the index */
                     KV_QUARANTINE = 4, /* its client has lost it, but may still write it */
};

/* XXH3-128 of the ids of a block. Two blocks with one digest and other ids differ in it, and it does not show the ids.
 */
struct kv_ids_hash {
    uint64_t lo, hi;
};
struct kv_ids_hash kv_ids_hash(const uint32_t *ids); /* [KV_BLOCK] */

struct kv_slot {
    _Atomic uint64_t gen; /* grows when the slot is freed */
    uint32_t state;       /* enum kv_slot_state */
    uint32_t writer;      /* number of the client that may write it, plus 1; 0: none */
    uint8_t digest[KV_DIGEST], parent[KV_DIGEST];
    struct kv_ids_hash ids; /* of a full block */
    uint32_t n_id;          /* tokens it holds */
    uint32_t n_use;         /* how often it was leased */
    uint64_t sum;           /* XXH3-64 of its layers */
    uint64_t tick;          /* time of its last use, counted in uses of all slots */
};

enum kv_seq_state { KV_SEQ_NONE = 0, KV_SEQ_OWNED = 1, KV_SEQ_TRANSFER = 2 };

struct kv_seq {
    _Atomic uint64_t gen;  /* grows when the owner changes (kv_arena_new_gen); a handle is valid for one generation */
    uint32_t state, owner; /* enum kv_seq_state; client + 1, in a transfer the sender, 0: it has left */
    _Atomic uint64_t n_block;
    uint32_t first_page, last_page;
    uint32_t tail, n_tail; /* slot of the partial last block, or KV_NONE; its tokens */
    uint32_t waits, pad;   /* another client computes its next block; the owner expects an event */
};

#define KV_PAGE_SLOTS 254
struct kv_page { /* part of a block table */
    uint32_t next, pad;
    uint32_t slot[KV_PAGE_SLOTS];
};

struct kv_client {
    uint64_t id;     /* 0: none */
    uint8_t key[32]; /* BLAKE2b of its key */
    int64_t pid;
    uint64_t pid_start; /* start time in /proc/PID/stat, which detects a reused pid */
};

struct kv_arena_head {
    char magic[8];
    uint32_t version, type;
    uint64_t id;    /* random */
    uint64_t bytes; /* of the file of the slots */
    uint8_t model[32];
    char arith[KV_NAME_BYTES], layout[KV_NAME_BYTES];
    uint32_t n_layer, n_kv_head, head_dim, block_tokens;
    uint64_t slot_bytes;
    uint64_t n_client, n_slot, n_seq, n_page;
    uint64_t epoch; /* grows with each adoption; a copy beside the slots distinguishes the latest metadata from former
                       ones */
    uint64_t tick;
};

struct kv_arena;

/* Creates an arena of as many slots as fit into slot_bytes bytes, and populates all its pages; metadata needs memory
 * beyond that. ERR_NO: not even one slot fits; ERR_SYS: the system refuses the memory. */
int kv_arena_new(struct err *e, struct kv_arena **out, const struct kv_kind *k, uint64_t slot_bytes);
/* The arena of an earlier kvstore, for a new one: with a copy of its metadata, so that nobody can change it after it
 * was checked. fd [KV_ARENA_FDS] are closed on failure and owned by the arena otherwise. want: NULL accepts any kind.
 * ERR_PROTO: another kind, not an arena, damaged, or metadata that another kvstore has replaced since. */
int kv_arena_adopt(struct err *e, struct kv_arena **out, const int *fd, const struct kv_kind *want);
/* The same for a client: the metadata is mapped for reading only. */
int kv_arena_open(struct err *e, struct kv_arena **out, const int *fd, const struct kv_kind *want);
/* Replaces the metadata of a client's arena with those of the kvstore that has adopted it. Other threads may read it
 * meanwhile. fd [KV_ARENA_FDS] are owned by this function. */
int kv_arena_replace(struct err *e, struct kv_arena *a, const int *fd);
void kv_arena_free(struct kv_arena *a); /* unmaps; the memory is freed when no process maps it */

const int *kv_arena_fds(const struct kv_arena *a); /* [KV_ARENA_FDS], borrowed */
const struct kv_arena_head *kv_arena_head(const struct kv_arena *a);
const struct kv_layout *kv_arena_layout(const struct kv_arena *a);

/* Bytes of the slots' mapping of this process that are in huge pages; the reason if not all are, or "". */
uint64_t kv_arena_huge_bytes(const struct kv_arena *a);
const char *kv_arena_huge_reason(const struct kv_arena *a);

/* Entries of the tables of the arena: i must be less than the number in its header. Only kvstore writes them. */
struct kv_client *kv_arena_client(const struct kv_arena *a, uint64_t i);
struct kv_slot *kv_arena_slot(const struct kv_arena *a, uint64_t i);
struct kv_seq *kv_arena_seq(const struct kv_arena *a, uint64_t i);
struct kv_page *kv_arena_page(const struct kv_arena *a, uint64_t i);
struct kv_arena_head *kv_arena_head_mut(const struct kv_arena *a);
/* Changes the generation of a sequence, or copies the present one to where clients read it. */
void kv_arena_new_gen(const struct kv_arena *a, uint64_t seq);
void kv_arena_copy_gen(const struct kv_arena *a, uint64_t seq);

uint8_t *kv_arena_bytes(const struct kv_arena *a, uint64_t slot); /* [slot_bytes] */
uint64_t kv_arena_sum(const struct kv_arena *a, uint64_t slot);   /* XXH3-64 of its layers */

/* Copies the slots of the first n blocks of a sequence to out, from an arena that may be damaged. ERR_NO: the sequence
 * has fewer blocks, or another generation. */
int kv_arena_table(struct err *e, const struct kv_arena *a, int32_t *out, uint64_t n, uint64_t seq, uint64_t gen);
/* Whether the sequence still has this generation. A reader checks it after each step, before it outputs what it
 * computed from the blocks. */
bool kv_arena_valid(const struct kv_arena *a, uint64_t seq, uint64_t gen);

/*
 * The engine's view of an arena: a pool whose idle slots are the reserved slots of a client. kv_pool_put adds slots;
 * kv_pool_get removes up to n (to release them to the store) and returns how many.
 */
int kv_pool_of_arena(struct err *e, struct kv_pool **out, struct kv_arena *a); /* a is borrowed */
void kv_pool_put(struct kv_pool *p, const int32_t *slot, int64_t n);
int64_t kv_pool_get(struct kv_pool *p, int32_t *slot, int64_t n);

#endif
