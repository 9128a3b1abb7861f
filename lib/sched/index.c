/*
 * Maps the digest of a block to the stores that cache it. Only 16 bytes of a digest are kept: the index is a hint,
 * since a store compares ids before it uses a block.
 */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define HUGE_BYTES ((size_t)2 << 20)

static void key_of(uint64_t key[2], const uint8_t *digest)
{
    memcpy(key, digest, 16);
    if (!key[0] && !key[1])
        key[0] = 1;
}

static bool is_free(const struct block *b)
{
    return !b->key[0] && !b->key[1];
}

/* The slot of a key, or the free slot for it. Digests may come from a hostile client, so the hash is mixed. */
static struct block *find(const struct index *x, const uint64_t key[2])
{
    size_t i = (size_t)map_mix(key[0] ^ map_mix(key[1])) & x->mask;
    while (!is_free(&x->slot[i]) && (x->slot[i].key[0] != key[0] || x->slot[i].key[1] != key[1]))
        i = (i + 1) & x->mask;
    return &x->slot[i];
}

/* Huge pages for a large table: it is accessed at random, so small pages would cost a page fault every few blocks. */
static struct block *new_slots(size_t n)
{
    size_t bytes = n * sizeof(struct block);
    if (bytes < 2 * HUGE_BYTES)
        return calloc(n, sizeof(struct block));
    bytes = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    struct block *p = aligned_alloc(HUGE_BYTES, bytes);
    if (p) {
        (void)madvise(p, bytes, MADV_HUGEPAGE);
        memset(p, 0, bytes);
    }
    return p;
}

static int grow(struct err *e, struct index *x)
{
    size_t size = x->slot ? 2 * (x->mask + 1) : 1024;
    struct index bigger = {new_slots(size), x->n, size - 1};
    if (!bigger.slot)
        return err_nomem(e, "the index of blocks", size * sizeof *bigger.slot);
    for (size_t i = 0; x->slot && i <= x->mask; i++)
        if (!is_free(&x->slot[i]))
            *find(&bigger, x->slot[i].key) = x->slot[i];
    free(x->slot);
    *x = bigger;
    return 0;
}

int index_set(struct err *e, struct index *x, const uint8_t *digest, uint32_t store)
{
    uint64_t key[2];
    key_of(key, digest);
    if (!x->slot || 2 * (x->n + 1) > x->mask + 1) {
        int rc = grow(e, x);
        if (rc)
            return rc;
    }
    struct block *b = find(x, key);
    if (is_free(b)) {
        memcpy(b->key, key, sizeof key);
        x->n++;
    }
    b->stores[store / 64] |= (uint64_t)1 << store % 64;
    return 0;
}

static size_t home_of(const struct index *x, const struct block *b)
{
    return (size_t)map_mix(b->key[0] ^ map_mix(b->key[1])) & x->mask;
}

static void remove_slot(struct index *x, struct block *b)
{
    size_t hole = (size_t)(b - x->slot);
    x->n--;
    for (size_t i = hole;;) {
        i = (i + 1) & x->mask;
        if (is_free(&x->slot[i]))
            break;
        if (((i - home_of(x, &x->slot[i])) & x->mask) >= ((i - hole) & x->mask)) {
            x->slot[hole] = x->slot[i];
            hole = i;
        }
    }
    memset(&x->slot[hole], 0, sizeof x->slot[hole]);
}

static bool no_store(const struct block *b)
{
    for (size_t i = 0; i < SCHED_STORES_MAX / 64; i++)
        if (b->stores[i])
            return false;
    return true;
}

void index_clear(struct index *x, const uint8_t *digest, uint32_t store)
{
    uint64_t key[2];
    key_of(key, digest);
    struct block *b = x->slot ? find(x, key) : NULL;
    if (!b || is_free(b))
        return;
    b->stores[store / 64] &= ~((uint64_t)1 << store % 64);
    if (no_store(b))
        remove_slot(x, b);
}

void index_clear_store(struct index *x, uint32_t store)
{
    for (size_t i = 0; x->slot && i <= x->mask;) {
        struct block *b = &x->slot[i];
        b->stores[store / 64] &= ~((uint64_t)1 << store % 64);
        if (!is_free(b) && no_store(b))
            remove_slot(x, b); /* may move another block to this slot, so i stays */
        else
            i++;
    }
}

void index_prefetch(const struct index *x, const uint8_t *digest)
{
    uint64_t key[2];
    key_of(key, digest);
    if (x->slot)
        __builtin_prefetch(&x->slot[map_mix(key[0] ^ map_mix(key[1])) & x->mask], 1);
}

const struct block *index_get(const struct index *x, const uint8_t *digest)
{
    uint64_t key[2];
    key_of(key, digest);
    const struct block *b = x->slot ? find(x, key) : NULL;
    return b && !is_free(b) ? b : NULL;
}

void index_free(struct index *x)
{
    free(x->slot);
    *x = (struct index){NULL, 0, 0};
}
