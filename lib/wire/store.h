/*
 * The frames between kvstore and its clients, kinds 32 to 47; part of wire/wire.h, which includes this.
 *
 * They pass over a Unix socket, each with its length before it as on a pipe, without hello and bye: kv_open takes the
 * place of hello. A request has a tag, not 0, which its answer carries; kv_no answers what is refused. Frames of tag 0
 * come unasked. The descriptor of the arena goes beside the first byte of kv_arena (or of a kv_open that brings one).
 */
#ifndef WIRE_STORE_H
#define WIRE_STORE_H

#define WIRE_KV_BLOCKS_MAX (1u << 20)      /* blocks of a frame */
#define WIRE_KV_EVENT_BYTES_MAX (1u << 20) /* digests of an event */

/* Who comes, and what its KV is. Without the kv section: a client that only asks and watches. */
struct wire_kv_open {
    uint64_t tag;
    struct wire_str from;
    uint64_t client, key; /* of an earlier kv_arena, to go on with what it held; 0: new */
    bool brings_arena;    /* the descriptor of the arena it maps comes along */
    bool has_kv;
    struct wire_bytes model_fp; /* 32 */
    struct wire_str kv_type, arith, layout;
    uint32_t n_layer, n_kv_head, head_dim;
    struct wire_extra kv_extra;
    struct wire_extra extra;
};

struct wire_kv_arena { /* the answer to kv_open */
    uint64_t tag;
    uint64_t client, key;
    uint64_t arena; /* its id; 0: none, the client only watches */
    uint64_t bytes;
    uint64_t lease_ms;
    bool kept; /* what the client held it still holds */
    struct wire_extra extra;
};

/* A new sequence that holds the longest prefix there is of these ids. */
struct wire_kv_lease {
    uint64_t tag;
    const uint32_t *ids;
    uint32_t n_id;
    struct wire_bytes digests; /* 32 a block, of the first blocks of ids */
    bool wait;                 /* what another client computes is waited for */
    struct wire_extra extra;
};

struct wire_kv_seq { /* a sequence as it now is; unasked (tag 0) where one that waited has grown */
    uint64_t tag;
    uint64_t seq, gen;
    uint64_t n_block; /* whole blocks in its table */
    bool has_tail;
    uint32_t tail;   /* slot of the half-filled block */
    uint32_t n_tail; /* tokens in it */
    bool pending;    /* another client computes the next block: wait for the next kv_seq */
    struct wire_extra extra;
};

struct wire_kv_credit { /* slots to write into */
    uint64_t tag;
    uint64_t n;
    bool some; /* fewer will do; otherwise all or none */
    struct wire_extra extra;
};

struct wire_kv_slots { /* the answer to kv_credit: slots; to kv_publish: those the table has now */
    uint64_t tag;
    const uint32_t *slot;
    uint32_t n_slot;
    struct wire_extra extra;
};

struct wire_kv_block {
    uint32_t slot;
    uint64_t sum; /* XXH3-64 of its layers */
};

/* Blocks that are whole, and the tail behind them. */
struct wire_kv_publish {
    uint64_t tag;
    uint64_t seq, gen;
    uint64_t at; /* place of the first block in the sequence: those it has */
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

/* A sequence (gen 0: none) and slots of the sender's own, or, from anybody, a sequence that was handed over, named by
 * its handle alone. The response has the same kind. */
struct wire_kv_free {
    uint64_t tag;
    uint64_t seq, gen;
    struct wire_bytes handle;
    const uint32_t *slot;
    uint32_t n_slot;
    struct wire_extra extra;
};

struct wire_kv_tag { /* kv_watch; kv_renew, to which with tag 0 there is no response */
    uint64_t tag;
    struct wire_extra extra;
};

struct wire_kv_stat { /* asked for with the tag alone */
    uint64_t tag;
    uint64_t total, free, cached, leased, quarantined, credited; /* slots; total is the sum of the others */
    uint64_t seqs, clients, waiting;
    uint64_t hit_blocks, miss_blocks, published, duplicate, evicted; /* since the start */
    uint64_t disk_total, disk_used, disk_hits, disk_bad;             /* blocks of the file tier */
    uint64_t slot_bytes, huge_bytes;
    struct wire_extra extra;
};

struct wire_kv_event {                 /* to watchers */
    bool reset;                        /* forget all that was said before; what is there follows */
    struct wire_bytes stored, evicted; /* digests, 32 bytes each */
    struct wire_extra extra;
};

enum wire_kv_why {                       /* explicit, never renumbered */
                   WIRE_KV_REFUSED = 1,  /* the request is wrong */
                   WIRE_KV_NEVER = 2,    /* it never fits into this store */
                   WIRE_KV_NOT_NOW = 3,  /* it does not fit now */
                   WIRE_KV_STALE = 4,    /* the sequence is another's or gone */
                   WIRE_KV_EXPIRED = 5,  /* the client's lease has ended: all it held is gone; open anew */
                   WIRE_KV_DRAINING = 6, /* the store is ending */
};

struct wire_kv_no { /* unasked (tag 0) where a lease has ended */
    uint64_t tag;
    uint32_t why;
    uint32_t code; /* err.h */
    struct wire_str text;
    struct wire_extra extra;
};

#endif
