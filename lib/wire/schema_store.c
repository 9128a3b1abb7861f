/* The kinds between kvstore and its clients: wire/store.h. */
#include "wire/fields.h"

static const struct wire_field block_fields[] = {
    U32(wire_kv_block, "slot", slot, REQ),
    U64(wire_kv_block, "sum", sum, REQ),
};
const struct wire_rec wire_kv_block_rec = {"kv_block", block_fields, N_OF(block_fields), sizeof(struct wire_kv_block),
                                           true,       FIELD_ALONE};

static const struct wire_field kind_fields[] = {
    KV_KIND(wire_kv_open),
};
const struct wire_rec wire_kv_kind_rec = {"kv_kind", kind_fields, N_OF(kind_fields),
                                          0,         false,       offsetof(struct wire_kv_open, kv_extra)};

static const struct wire_field open_fields[] = {
    U64(wire_kv_open, "tag", tag, REQ),
    NAME(wire_kv_open, "from", from, REQ),
    U64(wire_kv_open, "client", client),
    U64(wire_kv_open, "key", key),
    BOOL(wire_kv_open, "brings_arena", brings_arena),
    SECTION(wire_kv_open, "kv", has_kv, &wire_kv_kind_rec),
};

static const struct wire_field arena_fields[] = {
    U64(wire_kv_arena, "tag", tag, REQ), U64(wire_kv_arena, "client", client, REQ),
    U64(wire_kv_arena, "key", key, REQ), U64(wire_kv_arena, "arena", arena),
    U64(wire_kv_arena, "bytes", bytes),  U64(wire_kv_arena, "lease_ms", lease_ms),
    BOOL(wire_kv_arena, "kept", kept),
};

static const struct wire_field lease_fields[] = {
    U64(wire_kv_lease, "tag", tag, REQ),
    LIST(wire_kv_lease, "ids", TY_IDS, ids, n_id, WIRE_IDS_MAX, REQ),
    BIN(wire_kv_lease, "digests", digests, 0, WIRE_IDS_MAX),
    BOOL(wire_kv_lease, "wait", wait),
};

static const struct wire_field seq_fields[] = {
    U64(wire_kv_seq, "tag", tag, REQ),
    U64(wire_kv_seq, "seq", seq, REQ),
    U64(wire_kv_seq, "gen", gen, REQ),
    U64(wire_kv_seq, "n_block", n_block),
    {.name = "tail", .type = TY_U32, AT(wire_kv_seq, tail), COUNTED(wire_kv_seq, has_tail), .hi = UINT32_MAX},
    INT(wire_kv_seq, "n_tail", TY_U32, n_tail, 0, 31),
    BOOL(wire_kv_seq, "pending", pending),
};

static const struct wire_field credit_fields[] = {
    U64(wire_kv_credit, "tag", tag, REQ),
    U64(wire_kv_credit, "n", n, REQ),
    BOOL(wire_kv_credit, "some", some),
};

static const struct wire_field slots_fields[] = {
    U64(wire_kv_slots, "tag", tag, REQ),
    LIST(wire_kv_slots, "slots", TY_IDS, slot, n_slot, WIRE_KV_BLOCKS_MAX, REQ),
};

static const struct wire_field publish_fields[] = {
    U64(wire_kv_publish, "tag", tag, REQ),
    U64(wire_kv_publish, "seq", seq, REQ),
    U64(wire_kv_publish, "gen", gen, REQ),
    U64(wire_kv_publish, "at", at),
    LIST(wire_kv_publish, "blocks", TY_TUPLES, block, n_block, WIRE_KV_BLOCKS_MAX, .rec = &wire_kv_block_rec),
    BIN(wire_kv_publish, "digests", digests, 0, WIRE_IDS_MAX),
    LIST(wire_kv_publish, "ids", TY_IDS, ids, n_id, WIRE_IDS_MAX),
    {.name = "tail", .type = TY_U32, AT(wire_kv_publish, tail), COUNTED(wire_kv_publish, has_tail), .hi = UINT32_MAX},
};

static const struct wire_field handle_fields[] = {
    U64(wire_kv_handle, "tag", tag, REQ),
    U64(wire_kv_handle, "seq", seq, REQ),
    U64(wire_kv_handle, "gen", gen, REQ),
};

static const struct wire_field free_fields[] = {
    U64(wire_kv_free, "tag", tag, REQ),
    U64(wire_kv_free, "seq", seq),
    U64(wire_kv_free, "gen", gen),
    BIN(wire_kv_free, "handle", handle, 0, WIRE_HANDLE_BYTES_MAX),
    LIST(wire_kv_free, "slots", TY_IDS, slot, n_slot, WIRE_KV_BLOCKS_MAX),
};

static const struct wire_field tag_fields[] = {U64(wire_kv_tag, "tag", tag, REQ)};

static const struct wire_field stat_fields[] = {
    U64(wire_kv_stat, "tag", tag, REQ),
    U64(wire_kv_stat, "total", total),
    U64(wire_kv_stat, "free", free),
    U64(wire_kv_stat, "cached", cached),
    U64(wire_kv_stat, "leased", leased),
    U64(wire_kv_stat, "quarantined", quarantined),
    U64(wire_kv_stat, "credited", credited),
    U64(wire_kv_stat, "seqs", seqs),
    U64(wire_kv_stat, "clients", clients),
    U64(wire_kv_stat, "waiting", waiting),
    U64(wire_kv_stat, "hit_blocks", hit_blocks),
    U64(wire_kv_stat, "miss_blocks", miss_blocks),
    U64(wire_kv_stat, "published", published),
    U64(wire_kv_stat, "duplicate", duplicate),
    U64(wire_kv_stat, "evicted", evicted),
    U64(wire_kv_stat, "disk_total", disk_total),
    U64(wire_kv_stat, "disk_used", disk_used),
    U64(wire_kv_stat, "disk_hits", disk_hits),
    U64(wire_kv_stat, "disk_bad", disk_bad),
    U64(wire_kv_stat, "slot_bytes", slot_bytes),
    U64(wire_kv_stat, "huge_bytes", huge_bytes),
};

static const struct wire_field event_fields[] = {
    BOOL(wire_kv_event, "reset", reset),
    BIN(wire_kv_event, "stored", stored, 0, WIRE_KV_EVENT_BYTES_MAX),
    BIN(wire_kv_event, "evicted", evicted, 0, WIRE_KV_EVENT_BYTES_MAX),
};

static const struct wire_field no_fields[] = {
    U64(wire_kv_no, "tag", tag, REQ),
    INT(wire_kv_no, "why", TY_U32, why, 1, 255, REQ),
    INT(wire_kv_no, "code", TY_U32, code, 1, 255, REQ),
    STR(wire_kv_no, "text", text, WIRE_ERROR_BYTES_MAX, REQ),
};

static const struct wire_rec kinds[] = {
    [WIRE_KV_OPEN - WIRE_STORE_FIRST] = KIND("kv_open", open_fields, wire_kv_open),
    [WIRE_KV_ARENA - WIRE_STORE_FIRST] = KIND("kv_arena", arena_fields, wire_kv_arena),
    [WIRE_KV_LEASE - WIRE_STORE_FIRST] = KIND("kv_lease", lease_fields, wire_kv_lease),
    [WIRE_KV_SEQ - WIRE_STORE_FIRST] = KIND("kv_seq", seq_fields, wire_kv_seq),
    [WIRE_KV_CREDIT - WIRE_STORE_FIRST] = KIND("kv_credit", credit_fields, wire_kv_credit),
    [WIRE_KV_SLOTS - WIRE_STORE_FIRST] = KIND("kv_slots", slots_fields, wire_kv_slots),
    [WIRE_KV_PUBLISH - WIRE_STORE_FIRST] = KIND("kv_publish", publish_fields, wire_kv_publish),
    [WIRE_KV_HAND - WIRE_STORE_FIRST] = KIND("kv_hand", handle_fields, wire_kv_handle),
    [WIRE_KV_TAKE - WIRE_STORE_FIRST] = KIND("kv_take", handle_fields, wire_kv_handle),
    [WIRE_KV_FREE - WIRE_STORE_FIRST] = KIND("kv_free", free_fields, wire_kv_free),
    [WIRE_KV_RENEW - WIRE_STORE_FIRST] = KIND("kv_renew", tag_fields, wire_kv_tag),
    [WIRE_KV_STAT - WIRE_STORE_FIRST] = KIND("kv_stat", stat_fields, wire_kv_stat),
    [WIRE_KV_WATCH - WIRE_STORE_FIRST] = KIND("kv_watch", tag_fields, wire_kv_tag),
    [WIRE_KV_EVENT - WIRE_STORE_FIRST] = KIND("kv_event", event_fields, wire_kv_event),
    [WIRE_KV_NO - WIRE_STORE_FIRST] = KIND("kv_no", no_fields, wire_kv_no),
};

const struct wire_rec *wire_store_rec(uint64_t kind)
{
    const struct wire_rec *r = &kinds[kind - WIRE_STORE_FIRST];
    return r->name ? r : NULL; /* NULL: an unused number */
}
