/*
 * The arena: one memfd that holds the KV slots of a host, what is known of each of them, and the sequences made of
 * them. kvstore makes it and alone writes what is known; workers map it, read and write the slots that are theirs, and
 * read the tables of their sequences. A new kvstore adopts the arena of the one before, from its descriptor alone.
 *
 * In the file: the head, clients, slots (what is known of them), sequences, pages of block tables, then the bytes of
 * the slots. All sizes are 64-bit. Fields are written in an order that a reader, or a kvstore that takes over after a
 * kill, can live with: what is said of a slot before its state, the entries of a table before their number.
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

#define KV_ARENA_VERSION 1
#define KV_NONE UINT32_MAX /* no slot, no page */

/* 0, or ERR_PROTO that says in words what differs; `whose` names the other side ("prefill"). */
int kv_kind_check(struct err *e, const struct kv_kind *have, const struct kv_kind *theirs, const char *whose);
/* Checks the numbers of a kind that came from outside, and gives its layout. */
int kv_kind_layout(struct err *e, struct kv_layout *out, const struct kv_kind *k);

enum kv_slot_state { /* as they lie in the arena: never renumbered */
                     KV_FREE = 0,
                     KV_CREDIT = 1,     /* a client may write it */
                     KV_NAMED = 2,      /* a whole block under its digest; cached, or leased by sequences */
                     KV_PRIVATE = 3,    /* of one sequence: the tail, or a whole block without a name */
                     KV_QUARANTINE = 4, /* its client lost it, but may still write it */
};

struct kv_slot {
    _Atomic uint64_t gen; /* grows whenever the slot is given away */
    uint32_t state;       /* enum kv_slot_state */
    uint32_t writer;      /* client that may write it, + 1; 0: none */
    uint8_t digest[KV_DIGEST], parent[KV_DIGEST];
    uint32_t ids[KV_BLOCK];
    uint32_t n_id;  /* tokens it holds */
    uint32_t n_use; /* times it was leased */
    uint64_t sum;   /* XXH3-64 of its layers */
    uint64_t tick;  /* when it was used last, in uses of all slots */
};

enum kv_seq_state { KV_SEQ_NONE = 0, KV_SEQ_OWNED = 1, KV_SEQ_HANDED = 2 };

struct kv_seq {
    _Atomic uint64_t gen;  /* grows whenever its owner changes: a reader's handle is of one generation */
    uint32_t state, owner; /* enum kv_seq_state; client + 1, of one handed over: who gave it, 0: gone */
    _Atomic uint64_t n_block;
    uint32_t first_page, last_page;
    uint32_t tail, n_tail; /* slot of the half-filled block, its tokens; KV_NONE */
    uint32_t waits, pad;   /* another computes its next block: its owner is owed news */
};

#define KV_PAGE_SLOTS 254
struct kv_page { /* a piece of a block table */
    uint32_t next, pad;
    uint32_t slot[KV_PAGE_SLOTS];
};

struct kv_client {
    uint64_t id, key; /* id 0: none */
    int64_t pid;
    uint64_t pid_start; /* of /proc/PID/stat, so that another process with its number is told apart */
};

struct kv_arena_head {
    char magic[8];
    uint32_t version, type;
    uint64_t id; /* random */
    uint64_t bytes;
    uint8_t model[32];
    char arith[KV_NAME_BYTES], layout[KV_NAME_BYTES];
    uint32_t n_layer, n_kv_head, head_dim, block_tokens;
    uint64_t slot_bytes;
    uint64_t n_client, n_slot, n_seq, n_page;
    uint64_t tick;
};

struct kv_arena;

/* As many slots as fit into slot_bytes bytes, populated; what is known of them comes on top. ERR_NO where not one fits;
 * ERR_SYS where memory is refused. */
int kv_arena_new(struct err *e, struct kv_arena **out, const struct kv_kind *k, uint64_t slot_bytes);
/* Maps the arena behind fd, which is taken in any case. want: NULL takes any kind. ERR_PROTO: it is of another kind, no
 * arena, or damaged. */
int kv_arena_adopt(struct err *e, struct kv_arena **out, int fd, const struct kv_kind *want);
void kv_arena_free(struct kv_arena *a); /* unmaps; the memory goes with the last process that has it */

int kv_arena_fd(const struct kv_arena *a); /* borrowed */
const struct kv_arena_head *kv_arena_head(const struct kv_arena *a);
const struct kv_layout *kv_arena_layout(const struct kv_arena *a);

/* Bytes of this process's mapping that lie in huge pages; why not all do, or "". */
uint64_t kv_arena_huge_bytes(const struct kv_arena *a);
const char *kv_arena_small_why(const struct kv_arena *a);

/* i below the number in the head. Written by kvstore only. */
struct kv_client *kv_arena_client(const struct kv_arena *a, uint64_t i);
struct kv_slot *kv_arena_slot(const struct kv_arena *a, uint64_t i);
struct kv_seq *kv_arena_seq(const struct kv_arena *a, uint64_t i);
struct kv_page *kv_arena_page(const struct kv_arena *a, uint64_t i);
struct kv_arena_head *kv_arena_head_mut(const struct kv_arena *a);

uint8_t *kv_arena_bytes(const struct kv_arena *a, uint64_t slot); /* slot_bytes of them */
uint64_t kv_arena_sum(const struct kv_arena *a, uint64_t slot);   /* XXH3-64 of its layers */

/* The first n blocks of a sequence as a table, out of an arena that may be damaged: ERR_NO where the sequence has not
 * so many, or is not of this generation. */
int kv_arena_table(struct err *e, const struct kv_arena *a, int32_t *out, uint64_t n, uint64_t seq, uint64_t gen);
/* A reader asks after each step, before it shows what it made of them: are the sequence's blocks still its own? */
bool kv_arena_valid(const struct kv_arena *a, uint64_t seq, uint64_t gen);

/*
 * The engine's view of an arena: a pool whose idle slots are a client's credit. kv_pool_put adds slots to them,
 * kv_pool_get takes up to n away (for giving credit back) and says how many.
 */
int kv_pool_of_arena(struct err *e, struct kv_pool **out, struct kv_arena *a); /* a is borrowed */
void kv_pool_put(struct kv_pool *p, const int32_t *slot, int64_t n);
int64_t kv_pool_get(struct kv_pool *p, int32_t *slot, int64_t n);

#endif
