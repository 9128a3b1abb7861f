/* Hash table from spelling to id, with open addressing. Of equal spellings the first id is found. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "text/text_private.h"

int text_entry_map_build(struct err *e, struct text_entry_map *map, const struct text_entry_row *row, uint32_t n)
{
    size_t n_slot = 16;
    while (n_slot < 2 * (size_t)n)
        n_slot *= 2;
    map->slot = malloc(n_slot * sizeof *map->slot);
    if (!map->slot)
        return err_nomem(e, "vocabulary index", n_slot * sizeof *map->slot);
    map->n_slot = n_slot;
    memset(map->slot, 0xff, n_slot * sizeof *map->slot);
    for (uint32_t id = 0; id < n; id++) {
        if (text_entry_find(map, row, row[id].entry, row[id].n_entry) != TEXT_NONE)
            continue;
        size_t i = XXH3_64bits(row[id].entry, row[id].n_entry) & (n_slot - 1);
        while (map->slot[i] != TEXT_NONE)
            i = (i + 1) & (n_slot - 1);
        map->slot[i] = id;
    }
    return 0;
}

uint32_t text_entry_find(const struct text_entry_map *map, const struct text_entry_row *row, const char *s, size_t n)
{
    size_t i = XXH3_64bits(s, n) & (map->n_slot - 1);
    for (; map->slot[i] != TEXT_NONE; i = (i + 1) & (map->n_slot - 1)) {
        const struct text_entry_row *r = &row[map->slot[i]];
        if (r->n_entry == n && memcmp(r->entry, s, n) == 0)
            return map->slot[i];
    }
    return TEXT_NONE;
}
