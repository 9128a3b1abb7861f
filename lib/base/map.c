/* Open addressing with linear probing. A removal moves later entries back, so that it leaves no markers. */
#include "base/map.h"

#include <stdlib.h>

uint64_t map_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

static void *probe(const struct map *m, uint64_t hash, size_t *at)
{
    for (; m->slot[*at].p; *at = (*at + 1) & m->mask)
        if (m->slot[*at].hash == hash)
            return m->slot[*at].p;
    return NULL;
}

void *map_first(const struct map *m, uint64_t hash, size_t *at)
{
    if (!m->n)
        return NULL;
    *at = (size_t)hash & m->mask;
    return probe(m, hash, at);
}

void *map_next(const struct map *m, uint64_t hash, size_t *at)
{
    *at = (*at + 1) & m->mask;
    return probe(m, hash, at);
}

static void put(struct map *m, uint64_t hash, void *p)
{
    size_t i = (size_t)hash & m->mask;
    while (m->slot[i].p)
        i = (i + 1) & m->mask;
    m->slot[i] = (struct map_slot){hash, p};
    m->n++;
}

int map_put(struct err *e, struct map *m, uint64_t hash, void *p)
{
    if (!m->slot || 2 * (m->n + 1) > m->mask + 1) {
        size_t size = m->slot ? 2 * (m->mask + 1) : 64;
        struct map bigger = {calloc(size, sizeof *bigger.slot), 0, size - 1};
        if (!bigger.slot)
            return err_nomem(e, "a hash table", size * sizeof *bigger.slot);
        for (size_t i = 0; m->slot && i <= m->mask; i++)
            if (m->slot[i].p)
                put(&bigger, m->slot[i].hash, m->slot[i].p);
        free(m->slot);
        *m = bigger;
    }
    put(m, hash, p);
    return 0;
}

void map_drop(struct map *m, uint64_t hash, const void *p)
{
    size_t hole = 0;
    void *q = map_first(m, hash, &hole);
    while (q && q != p)
        q = map_next(m, hash, &hole);
    if (!q)
        return;
    m->n--;
    for (size_t i = hole;;) {
        i = (i + 1) & m->mask;
        if (!m->slot[i].p)
            break;
        size_t home = (size_t)m->slot[i].hash & m->mask;
        if (((i - home) & m->mask) >= ((i - hole) & m->mask)) { /* its home is not after the hole */
            m->slot[hole] = m->slot[i];
            hole = i;
        }
    }
    m->slot[hole] = (struct map_slot){0, NULL};
}

void map_free(struct map *m)
{
    free(m->slot);
    *m = (struct map){NULL, 0, 0};
}
