/*
 * The frames between kvstore and its clients, kinds 32 to 47; part of wire/wire.h, which includes this.
 *
 * They are sent over a Unix socket with a length prefix, as on a pipe, without hello and bye: kv_open replaces hello. A
 * request has a tag other than 0, which its response repeats; kv_no is the response to a refused request. Frames with
 * tag 0 are notifications. The descriptor of the arena is passed with the first byte of kv_arena (or of a kv_open that
 * brings an arena).
 */
#ifndef WIRE_STORE_H
#define WIRE_STORE_H

#define WIRE_KV_BLOCKS_MAX (1u << 20)      /* blocks of a frame */
#define WIRE_KV_EVENT_BYTES_MAX (1u << 20) /* digests of an event */

/* The identity of a client and of its KV. Without the kv section the client can only read statistics and events. */
struct wire_kv_open {
    uint64_t tag;
    struct wire_str from;
    uint64_t client, key; /* of an earlier kv_arena, to keep the sequences and slots of that client; 0: a new client */
    bool brings_arena;    /* the descriptor of the arena that it maps is passed with this frame */
    bool has_kv;
    struct wire_bytes model_fp; /* 32 */
    struct wire_str kv_type, arith, layout;
    uint32_t n_layer, n_kv_head, head_dim;
    struct wire_extra kv_extra;
    struct wire_extra extra;
};

struct wire_kv_arena { /* the response to kv_open */
    uint64_t tag;
    uint64_t client, key;
    uint64_t arena; /* its id; 0: none, for a client without a kv section */
    uint64_t bytes;
    uint64_t lease_ms;
    bool kept; /* the client still has its sequences and slots */
    struct wire_extra extra;
};

/* A new sequence that holds the longest cached prefix of these ids. */
struct wire_kv_lease {
    uint64_t tag;
    const uint32_t *ids;
    uint32_t n_id;
    struct wire_bytes digests; /* 32 a block, of the first blocks of ids */
    bool wait;                 /* wait for blocks that another client is computing */
    struct wire_extra extra;
};

struct wire_kv_seq { /* the state of a sequence; as a notification (tag 0): a waiting sequence has grown */
    uint64_t tag;
    uint64_t seq, gen;
    uint64_t n_block; /* whole blocks in its table */
    bool has_tail;
    uint32_t tail;   /* slot of the half-filled block */
    uint32_t n_tail; /* tokens in it */
    bool pending;    /* another client is computing the next block: wait for the next kv_seq */
    struct wire_extra extra;
};

struct wire_kv_credit { /* reserves slots to write into */
    uint64_t tag;
    uint64_t n;
    bool some; /* fewer are accepted; otherwise all or none */
    struct wire_extra extra;
};

struct wire_kv_slots { /* the response to kv_credit: the slots; to kv_publish: the slots in the table of the sequence */
    uint64_t tag;
    const uint32_t *slot;
    uint32_t n_slot;
    struct wire_extra extra;
};

struct wire_kv_block {
    uint32_t slot;
    uint64_t sum; /* XXH3-64 of its layers */
};

/* Adds full blocks to a sequence, and the tail after them. */
struct wire_kv_publish {
    uint64_t tag;
    uint64_t seq, gen;
    uint64_t at; /* index of the first block in the sequence: the number of blocks that it has */
    const struct wire_kv_block *block;
    uint32_t n_block;
    struct wire_bytes digests; /* 32 a block */
    const uint32_t *ids;       /* 32 a block, then those of the tail */
    uint32_t n_id;
    bool has_tail;
    uint32_t tail; /* slot of the tail */
    struct wire_extra extra;
};

struct wire_kv_handle { /* kv_hand, kv_take */
    uint64_t tag;
    uint64_t seq, gen;
    struct wire_extra extra;
};

/* Releases a sequence (gen 0: none) and reserved slots of the sender; or, from any client, a sequence in transfer,
 * which is identified by its handle alone. The response has the same kind. */
struct wire_kv_free {
    uint64_t tag;
    uint64_t seq, gen;
    struct wire_bytes handle;
    const uint32_t *slot;
    uint32_t n_slot;
    struct wire_extra extra;
};

struct wire_kv_tag { /* kv_watch; kv_renew, which with tag 0 gets no response */
    uint64_t tag;
    struct wire_extra extra;
};

struct wire_kv_stat { /* the request (only the tag), and the response */
    uint64_t tag;
    uint64_t total, free, cached, leased, quarantined, credited; /* slots; total is the sum of the others */
    uint64_t seqs, clients, waiting;
    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted; /* since the start */
    uint64_t disk_total, disk_used, disk_hits, disk_bad;             /* blocks of the file tier */
    uint64_t slot_bytes, huge_bytes;
    struct wire_extra extra;
};

struct wire_kv_event {                 /* to watchers */
    bool reset;                        /* resync: discards all earlier events; this and later ones list all blocks */
    struct wire_bytes stored, evicted; /* digests, 32 bytes each */
    struct wire_extra extra;
};

enum wire_kv_why {                       /* explicit, never renumbered */
                   WIRE_KV_REFUSED = 1,  /* the request is invalid */
                   WIRE_KV_NEVER = 2,    /* it exceeds the capacity of this store */
                   WIRE_KV_NOT_NOW = 3,  /* it does not fit now */
                   WIRE_KV_STALE = 4,    /* the sequence was released or belongs to another client */
                   WIRE_KV_EXPIRED = 5,  /* the lease has expired: the client has lost all, and must open again */
                   WIRE_KV_DRAINING = 6, /* the store is shutting down */
};

struct wire_kv_no { /* a refusal; as a notification (tag 0): the lease has expired */
    uint64_t tag;
    uint32_t why;
    uint32_t code; /* err.h */
    struct wire_str text;
    struct wire_extra extra;
};

#endif
