/* An LRU cache of blocks. A prompt is touched from its last block to its first, so that its end is evicted first. */
#include <stdlib.h>

#include "cmd/simulate/simulate.h"

struct entry {
    uint64_t block; /* 0: free */
    uint32_t prev, next;
};

struct store {
    struct entry *v; /* 0 is the head of the list */
    uint32_t *slot;  /* open addressing: places in v */
    uint32_t n, max, mask;
};

struct store *store_new(uint64_t n_block)
{
    struct store *s = calloc(1, sizeof *s);
    uint32_t size = 64;
    if (!s)
        return NULL;
    s->max = n_block < 1u << 26 ? (uint32_t)n_block : 1u << 26;
    while (size < 2 * s->max)
        size *= 2;
    s->mask = size - 1;
    s->v = calloc((size_t)s->max + 2, sizeof *s->v);
    s->slot = calloc(size, sizeof *s->slot);
    if (!s->v || !s->slot) {
        store_free(s);
        return NULL;
    }
    return s;
}

void store_free(struct store *s)
{
    if (!s)
        return;
    free(s->v);
    free(s->slot);
    free(s);
}

static uint32_t *find(const struct store *s, uint64_t block)
{
    uint32_t i = (uint32_t)block & s->mask;
    while (s->slot[i] && s->v[s->slot[i]].block != block)
        i = (i + 1) & s->mask;
    return &s->slot[i];
}

uint32_t store_prefix(const struct store *s, const uint64_t *block, uint32_t n)
{
    uint32_t lo = 0, hi = n + 1; /* the first lo blocks are cached */
    while (lo + 1 < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if (*find(s, block[mid - 1]))
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static void unlink_entry(struct store *s, uint32_t i)
{
    s->v[s->v[i].prev].next = s->v[i].next;
    s->v[s->v[i].next].prev = s->v[i].prev;
}

static void to_front(struct store *s, uint32_t i)
{
    s->v[i].next = s->v[0].next;
    s->v[i].prev = 0;
    s->v[s->v[0].next].prev = i;
    s->v[0].next = i;
}

static void remove_slot(struct store *s, uint32_t *slot)
{
    uint32_t hole = (uint32_t)(slot - s->slot);
    for (uint32_t i = hole;;) {
        i = (i + 1) & s->mask;
        if (!s->slot[i])
            break;
        uint32_t home = (uint32_t)s->v[s->slot[i]].block & s->mask;
        if (((i - home) & s->mask) >= ((i - hole) & s->mask)) {
            s->slot[hole] = s->slot[i];
            hole = i;
        }
    }
    s->slot[hole] = 0;
}

void store_add(struct store *s, const uint64_t *block, uint32_t n,
               void (*on_change)(void *arg, uint64_t block, bool stored), void *arg)
{
    n = n < s->max ? n : s->max;
    for (uint32_t k = n; k-- > 0;) {
        uint32_t *slot = find(s, block[k]), i = *slot;
        if (i) {
            unlink_entry(s, i);
            to_front(s, i);
            continue;
        }
        if (s->n == s->max) {
            i = s->v[0].prev;
            unlink_entry(s, i);
            remove_slot(s, find(s, s->v[i].block));
            on_change(arg, s->v[i].block, false);
            slot = find(s, block[k]);
        } else {
            i = ++s->n;
        }
        s->v[i].block = block[k];
        *slot = i;
        to_front(s, i);
        on_change(arg, block[k], true);
    }
}
