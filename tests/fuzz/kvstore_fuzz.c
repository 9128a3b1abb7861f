/*
 * kvstore's state machine for the connections of its clients: random valid and invalid frames from several clients,
 * broken connections, ended leases, and restarts over the same arena. After each operation the store is sound, and no
 * connection has two descriptors or responses with the tag of nobody. Input: operations of a few bytes.
 */
#include "fuzz/store_kind.h"

/* Its source, because a program's functions are in no library. Huge pages are counted in a file that is slow to read.
 */
#define kv_arena_huge_bytes(a) ((uint64_t)((a) == NULL))
#include "cmd/kvstore/peers.c"
#include "cmd/kvstore/serve.c"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define SLOTS 24
#define CONNS 5

struct link_conn {
    void *data;
    bool up, closing;
    uint64_t client, key; /* of its last kv_arena */
    struct wire_kv_seq seq;
    uint32_t slot[SLOTS];
    uint32_t n_slot;
};

static struct link_conn conns[CONNS];
static struct kvstore k;
static struct wire_arena *memory;
static bool link_is_up;

/* ---- the server, without a socket ---- */

void link_send(struct link_conn *c, const struct wire_frame *f, const int *fd)
{
    struct err e;
    uint8_t *p;
    size_t n;
    int rc = wire_encode(&e, &p, &n, f);
    assert(!rc && (!fd || f->kind == WIRE_KV_ARENA));
    free(p);
    if (f->kind == WIRE_KV_ARENA) {
        c->client = f->kv_arena.client;
        c->key = f->kv_arena.key;
    }
    if (f->kind == WIRE_KV_SEQ)
        c->seq = f->kv_seq;
    if (f->kind != WIRE_KV_SLOTS)
        return;
    assert(f->kv_slots.n_slot <= SLOTS);
    c->n_slot = f->kv_slots.n_slot;
    if (c->n_slot)
        memcpy(c->slot, f->kv_slots.slot, c->n_slot * sizeof *c->slot);
}

uint64_t link_queued(const struct link_conn *c)
{
    return c->closing;
}

void link_close(struct link_conn *c)
{
    c->closing = true;
}

void link_take_fds(struct link_conn *c, int *fd)
{
    (void)c;
    fd[0] = fd[1] = -1;
}

int64_t link_pid(const struct link_conn *c)
{
    return c - conns + 1;
}

void link_set_data(struct link_conn *c, void *data)
{
    c->data = data;
}

void *link_data(const struct link_conn *c)
{
    return c->data;
}

void kvstore_report_arena(const struct kvstore *store, const char *what)
{
    (void)store;
    (void)what;
}

/* ---- frames ---- */

/* Mostly a number of the connection, sometimes that of another one, or any. */
static const struct link_conn *some(const struct link_conn *c)
{
    unsigned x = byte();
    return x < 200 ? c : &conns[x % CONNS];
}

static void open_frame(struct wire_frame *f, const struct link_conn *c)
{
    const struct link_conn *like = some(c);
    unsigned x = byte();
    f->kv_open = (struct wire_kv_open){.from = wire_str_of("fuzz"),
                                       .has_kv = x % 16 != 0,
                                       .model_fp = {k.kind.model, 32},
                                       .kv_type = wire_str_of(kern_kv_name(k.kind.type)),
                                       .arith = wire_str_of(k.kind.arith),
                                       .layout = wire_str_of(k.kind.layout),
                                       .n_layer = k.kind.n_layer,
                                       .n_kv_head = k.kind.n_kv_head,
                                       .head_dim = k.kind.head_dim + (x % 32 == 1)};
    if (x & 64) {
        f->kv_open.client = like->client;
        f->kv_open.key = like->key + (x % 32 == 2);
        f->kv_open.brings_arena = x & 128;
    }
}

static void publish_frame(struct wire_frame *f, const struct link_conn *c)
{
    static struct wire_kv_block block[SLOTS];
    const struct link_conn *of = some(c);
    uint32_t n = byte() % 5, n_tail = byte() % 34;
    for (uint32_t i = 0; i < n; i++) {
        unsigned x = byte();
        block[i].slot = x < 240 && of->n_slot ? of->slot[(x + i) % of->n_slot] : x % (SLOTS + 2);
        block[i].sum = block[i].slot < SLOTS && x != 7 ? kv_arena_sum(k.arena, block[i].slot) : x;
    }
    uint64_t at = of->seq.n_block % PROMPT_BLOCKS;
    n = at + n > PROMPT_BLOCKS ? 0 : n;
    f->kv_publish =
        (struct wire_kv_publish){.seq = of->seq.seq,
                                 .gen = of->seq.gen,
                                 .at = of->seq.n_block + (n_tail == 33),
                                 .block = block,
                                 .n_block = n,
                                 .digests = {prompt_digests + at * KV_DIGEST, byte() % 8 ? n * KV_DIGEST : 0},
                                 .ids = prompt_ids + at * KV_BLOCK,
                                 .n_id = n * KV_BLOCK + (n_tail < 32 && byte() % 2 ? n_tail : 0),
                                 .has_tail = n_tail < 32 && byte() % 2,
                                 .tail = of->n_slot ? of->slot[byte() % of->n_slot] : 0};
    if (f->kv_publish.n_id > (PROMPT_BLOCKS - at) * KV_BLOCK + KV_BLOCK - 1)
        f->kv_publish.n_id = n * KV_BLOCK;
}

static void free_frame(struct wire_frame *f, const struct link_conn *c)
{
    static uint8_t handle[24];
    const struct link_conn *of = some(c);
    unsigned x = byte();
    memcpy(handle, &of->seq.seq, 8);
    memcpy(handle + 8, &of->seq.gen, 8);
    if (x & 1)
        f->kv_free.handle = (struct wire_bytes){handle, x % 24};
    if (x & 2) {
        f->kv_free.seq = of->seq.seq;
        f->kv_free.gen = of->seq.gen;
    }
    if (x & 4) {
        f->kv_free.slot = of->slot;
        f->kv_free.n_slot = of->n_slot;
    }
}

/* False: the bytes are not a frame. */
static bool make_frame(struct wire_frame *f, const struct link_conn *c)
{
    static const enum wire_kind kinds[] = {WIRE_KV_OPEN,    WIRE_KV_LEASE, WIRE_KV_CREDIT, WIRE_KV_PUBLISH,
                                           WIRE_KV_PUBLISH, WIRE_KV_HAND,  WIRE_KV_TAKE,   WIRE_KV_FREE,
                                           WIRE_KV_RENEW,   WIRE_KV_STAT,  WIRE_KV_WATCH};
    struct err e;
    unsigned x = byte();
    if (x >= 250) {
        size_t n = byte() < n_in ? byte() : n_in;
        n = n < n_in ? n : n_in;
        bool is = !wire_decode(&e, f, memory, in, n);
        in += n;
        n_in -= n;
        return is;
    }
    *f = (struct wire_frame){.kind = kinds[x % (sizeof kinds / sizeof *kinds)]};
    prompt_of(byte());
    switch ((int)f->kind) {
    case WIRE_KV_OPEN:
        open_frame(f, c);
        break;
    case WIRE_KV_LEASE:
        x = byte();
        f->kv_lease =
            (struct wire_kv_lease){.ids = prompt_ids,
                                   .n_id = (x % (PROMPT_BLOCKS + 1)) * KV_BLOCK,
                                   .digests = {prompt_digests, (x / 2 % (PROMPT_BLOCKS + 1)) * KV_DIGEST - (x == 9)},
                                   .wait = x & 128};
        if (x == 9)
            f->kv_lease.digests.n = 31;
        break;
    case WIRE_KV_CREDIT:
        f->kv_credit.n = byte() % (SLOTS + 2);
        f->kv_credit.some = byte() & 1;
        break;
    case WIRE_KV_PUBLISH:
        publish_frame(f, c);
        break;
    case WIRE_KV_HAND:
    case WIRE_KV_TAKE:
        f->kv_handle.seq = some(c)->seq.seq;
        f->kv_handle.gen = some(c)->seq.gen;
        break;
    case WIRE_KV_FREE:
        free_frame(f, c);
        break;
    }
    f->kv_tag.tag = 1 + byte();
    return true;
}

/* ---- operations ---- */

static void disconnect(struct link_conn *c)
{
    if (c->up)
        kvstore_ops.closed(&k, c);
    c->up = c->closing = false;
    c->data = NULL;
}

static void open_store(void)
{
    struct err e;
    if (kvstore_open_store(&e, &k, k.arena))
        abort();
}

/* A kvstore that was killed: its successor has the arena, and the clients are absent. */
static void restart(void)
{
    struct err e;
    struct kv_arena *next, *old = k.arena;
    link_is_up = false;
    k.server = NULL; /* nothing is released */
    for (int i = 0; i < CONNS; i++)
        disconnect(&conns[i]);
    kv_store_free(k.store);
    free(k.of_client);
    int fd[KV_ARENA_FDS] = {dup(kv_arena_fds(old)[0]), dup(kv_arena_fds(old)[1])};
    if (kv_arena_adopt(&e, &next, fd, &k.kind))
        abort();
    kv_arena_free(old);
    k.arena = next;
    k.server = (struct link_server *)&link_is_up; /* not NULL; it is never used */
    open_store();
}

static void operate(void)
{
    struct err e;
    struct wire_frame f;
    unsigned x = byte();
    struct link_conn *c = &conns[x % CONNS];
    if (x >= 246 && x < 250) {
        disconnect(c);
    } else if (x == 250) {
        restart();
    } else if (x == 251) {
        kv_store_tick(k.store, time_now_ns() + 2 * k.o.lease_ns);
    } else if (x == 252) {
        k.draining = !k.draining;
    } else if (x == 253) {
        kvstore_reap_absent(&k);
    } else if (x == 254) {
        kv_arena_bytes(k.arena, byte() % SLOTS)[byte()] ^= 1; /* a worker that writes anywhere */
    } else {
        wire_arena_reset(memory);
        c->up = true;
        if (c->closing)
            disconnect(c);
        else if (make_frame(&f, c))
            kvstore_ops.frame(&k, c, &f);
        else
            c->up = c->data != NULL;
    }
    kvstore_notify_watchers(&k);
    if (kv_store_check(&e, k.store)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct kv_store_stat s;
    memset(conns, 0, sizeof conns);
    memory = memory ? memory : wire_arena_new();
    k = (struct kvstore){.kind = small_kind()};
    k.o = (struct kv_store_opts){.lease_ns = 3600 * NS_S,
                                 .transfer_ns = 3600 * NS_S,
                                 .verify = KV_VERIFY_FIRST,
                                 .on_event = kvstore_event,
                                 .event_arg = &k};
    list_init(&k.watchers);
    k.server = (struct link_server *)&link_is_up;
    k.arena = small_arena(SLOTS);
    open_store();
    in = p;
    n_in = n;
    while (n_in)
        operate();
    for (int i = 0; i < CONNS; i++)
        disconnect(&conns[i]);
    kv_store_tick(k.store, UINT64_MAX - 1); /* transfers */
    for (uint32_t i = 0; i < kv_arena_head(k.arena)->n_client; i++)
        kv_store_leave(k.store, i, 0);
    kv_store_stat(k.store, &s);
    assert(s.free + s.cached == s.total && !s.seqs && !s.waiting && !s.clients);
    kv_store_free(k.store);
    kv_arena_free(k.arena);
    free(k.of_client);
    free(k.stored.p);
    free(k.evicted.p);
    return 0;
}
