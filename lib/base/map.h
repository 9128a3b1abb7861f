/*
 * A hash table of pointers. The caller computes the hash; several entries may have the same one, so a look-up compares
 * what it finds:
 *
 *     size_t at;
 *     struct thing *t = map_first(&m, hash, &at);
 *     while (t && !is_it(t))
 *         t = map_next(&m, hash, &at);
 *
 * A zeroed `struct map` is empty. The map owns its slots, not what they point to. If keys come from outside, the hash
 * must depend on all of their bits (map_mix), or many keys could be made to share a slot.
 */
#ifndef BASE_MAP_H
#define BASE_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

struct map_slot {
    uint64_t hash;
    void *p; /* NULL: free */
};
struct map {
    struct map_slot *slot;
    size_t n, mask;
};

/* The first entry with this hash, NULL: none. *at is for map_next. No entry may be added or removed in between. */
void *map_first(const struct map *m, uint64_t hash, size_t *at);
void *map_next(const struct map *m, uint64_t hash, size_t *at);
/* Adds p, which is not NULL. ERR_SYS: no memory, and nothing has changed. */
int map_put(struct err *e, struct map *m, uint64_t hash, void *p);
/* Removes the entry of p, if there is one. */
void map_drop(struct map *m, uint64_t hash, const void *p);
void map_free(struct map *m);

/* Spreads the bits of a number: the finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA 2014), a bijection. */
uint64_t map_mix(uint64_t x);

#endif
