/*
 * Adoption of an arena whose metadata, head included, were changed at random: the new store refuses it, or works on
 * with what is consistent. Input: triples of an offset (two bytes, times 8, plus a third) and a byte; then operations.
 */
#include <sys/stat.h>

#include "fuzz/store_kind.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define SLOTS 24
#define CLIENTS 3

static void publish(struct kv_store *s, struct kv_arena *a, uint32_t client, unsigned path, uint64_t to)
{
    struct err e;
    struct kv_seq_info q;
    uint32_t slot[PROMPT_BLOCKS + 1], out[PROMPT_BLOCKS + 1];
    uint64_t sum[PROMPT_BLOCKS + 1], got;
    prompt_of(path);
    if (kv_store_lease(&e, s, client, &q, prompt_ids, PROMPT_BLOCKS * KV_BLOCK, prompt_digests, PROMPT_BLOCKS, false) ||
        q.n_block >= to || kv_store_reserve(&e, s, client, slot, &got, to - q.n_block + 1, false))
        return;
    for (uint64_t k = 0; k < got; k++)
        sum[k] = kv_arena_sum(a, slot[k]);
    struct kv_publish u = {.seq = q.seq,
                           .gen = q.gen,
                           .at = q.n_block,
                           .slot = slot,
                           .sum = sum,
                           .n_block = got - 1,
                           .digests = prompt_digests + q.n_block * KV_DIGEST,
                           .ids = prompt_ids + q.n_block * KV_BLOCK,
                           .n_tail = 5,
                           .tail = slot[got - 1]};
    (void)kv_store_publish(&e, s, client, out, &u);
}

static void work(struct kv_store *s, struct kv_arena *a)
{
    struct err e;
    struct kv_seq_info q;
    uint32_t c, all[2 * SLOTS], absent = KV_NONE;
    uint64_t got, pid_start;
    int64_t pid;
    while (kv_store_absent(s, &absent, &pid, &pid_start))
        ;
    if (kv_store_join(&e, s, &c, 1, 1, 0))
        return;
    for (uint64_t i = 0; i < 8; i++) {
        publish(s, a, c, byte(), 1 + byte() % PROMPT_BLOCKS);
        (void)kv_store_transfer_in(&e, s, c, &q, byte() % 8, byte());
        (void)kv_store_transfer_out(&e, s, c, &q, byte() % 8, byte(), i);
        (void)kv_store_release(&e, s, c, byte() % 8, byte());
    }
    kv_store_tick(s, 100);
    for (uint32_t i = 0; i < CLIENTS + 1; i++)
        kv_store_leave(s, i, 100);
    kv_store_tick(s, UINT64_MAX - 1);
    if (!kv_store_join(&e, s, &c, 1, 1, 0))
        (void)kv_store_reserve(&e, s, c, all, &got, SLOTS, true);
}

/* The copy that a client reads: any table of it lies in the arena. */
static void read_tables(const struct kv_arena *a)
{
    int32_t table[2 * SLOTS];
    struct err e;
    for (uint64_t i = 0; i < kv_arena_head(a)->n_seq && i < 64; i++)
        for (uint64_t k = 1; k < 2 * SLOTS; k += 7)
            if (!kv_arena_table(&e, a, table, k, i, kv_arena_seq(a, i)->gen))
                for (uint64_t j = 0; j < k; j++)
                    assert(table[j] >= 0 && (uint64_t)table[j] < kv_arena_head(a)->n_slot);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    struct stat st;
    struct kv_arena *a = small_arena(SLOTS), *b;
    struct kv_store_opts o = {.lease_ns = 10, .transfer_ns = 10, .verify = KV_VERIFY_FIRST};
    struct kv_store *s;
    struct kv_seq_info h;
    uint32_t c;
    in = p;
    n_in = n;
    if (kv_store_new(&e, &s, a, &o, 0))
        abort();
    for (unsigned i = 0; i < CLIENTS; i++)
        if (!kv_store_join(&e, s, &c, 1, 1, 0))
            publish(s, a, c, i * 5, 3 + i);
    (void)kv_store_transfer_out(&e, s, 0, &h, 0, kv_arena_seq(a, 0)->gen, 0);
    kv_store_free(s);
    if (fstat(kv_arena_fds(a)[0], &st))
        abort();
    for (unsigned i = byte() % 32; i > 0; i--) {
        uint64_t at = (uint64_t)(byte() << 8 | byte()) * 8 + byte() % 8;
        ((uint8_t *)kv_arena_head_mut(a))[at % (uint64_t)st.st_size] = (uint8_t)byte();
    }
    int fd[KV_ARENA_FDS] = {dup(kv_arena_fds(a)[0]), dup(kv_arena_fds(a)[1])};
    kv_arena_free(a);
    if (kv_arena_adopt(&e, &b, fd, NULL))
        return 0;
    read_tables(b);
    if (!kv_store_new(&e, &s, b, &o, 0)) {
        work(s, b);
        kv_store_free(s);
    }
    kv_arena_free(b);
    return 0;
}
