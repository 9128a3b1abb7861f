/* Requests by (seq, index): a hash table with open addressing, doubled when half full. */
#include <stdlib.h>

#include "cmd/frames/frames.h"

struct slot {
    uint64_t seq;
    uint32_t index;
    uint32_t owner;
    bool used, failed;
};

struct owners {
    struct slot *slot;
    size_t size, n; /* size is a power of two */
};

struct owners *owners_new(void)
{
    struct owners *o = calloc(1, sizeof *o);
    if (!o)
        return NULL;
    o->size = 64;
    o->slot = calloc(o->size, sizeof *o->slot);
    if (o->slot)
        return o;
    free(o);
    return NULL;
}

void owners_free(struct owners *o)
{
    if (!o)
        return;
    free(o->slot);
    free(o);
}

static struct slot *find(const struct owners *o, uint64_t seq, uint32_t index)
{
    uint64_t key[2] = {seq, index};
    size_t i = (size_t)wire_sum(key, sizeof key);
    for (;; i++) {
        struct slot *s = &o->slot[i & (o->size - 1)];
        if (!s->used || (s->seq == seq && s->index == index))
            return s;
    }
}

static int grow(struct err *e, struct owners *o)
{
    struct owners bigger = {calloc(2 * o->size, sizeof *o->slot), 2 * o->size, o->n};
    if (!bigger.slot)
        return err_nomem(e, "the table of requests", 2 * o->size * sizeof *o->slot);
    for (size_t i = 0; i < o->size; i++)
        if (o->slot[i].used)
            *find(&bigger, o->slot[i].seq, o->slot[i].index) = o->slot[i];
    free(o->slot);
    *o = bigger;
    return 0;
}

int owners_get(struct err *e, uint32_t *found, bool *is_new, struct owners *o, uint64_t seq, uint32_t index,
               uint32_t owner)
{
    struct slot *s = find(o, seq, index);
    *is_new = !s->used;
    if (!s->used && 2 * o->n >= o->size) {
        int rc = grow(e, o);
        if (rc)
            return rc;
        s = find(o, seq, index);
    }
    if (!s->used) {
        *s = (struct slot){.seq = seq, .index = index, .owner = owner, .used = true};
        o->n++;
    }
    *found = s->owner;
    return 0;
}

void owners_fail(struct owners *o, uint64_t seq, uint32_t index)
{
    find(o, seq, index)->failed = true; /* no effect if the request is unknown: the slot is free */
}

void owners_count(const struct owners *o, uint32_t owner, uint64_t *n_ok, uint64_t *n_error)
{
    *n_ok = *n_error = 0;
    for (size_t i = 0; i < o->size; i++)
        if (o->slot[i].used && o->slot[i].owner == owner)
            ++*(o->slot[i].failed ? n_error : n_ok);
}
