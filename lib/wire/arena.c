#include "wire/schema.h"

#include <stdlib.h>

#define CHUNK_BYTES_MIN ((size_t)64 << 10)
/* A reset frees a larger chunk, so that one huge frame does not pin memory. */
#define KEEP_BYTES_MAX ((size_t)1 << 20)

struct chunk {
    struct chunk *next;
    size_t size, used;
    _Alignas(16) uint8_t mem[];
};

struct wire_arena {
    struct chunk *top;
};

struct wire_arena *wire_arena_new(void)
{
    return calloc(1, sizeof(struct wire_arena));
}

static void free_chunks(struct chunk *c)
{
    while (c) {
        struct chunk *next = c->next;
        free(c);
        c = next;
    }
}

void wire_arena_free(struct wire_arena *a)
{
    if (!a)
        return;
    free_chunks(a->top);
    free(a);
}

void wire_arena_reset(struct wire_arena *a)
{
    struct chunk *c = a->top;
    if (!c)
        return;
    free_chunks(c->next);
    c->next = NULL;
    c->used = 0;
    if (c->size > KEEP_BYTES_MAX) {
        free(c);
        a->top = NULL;
    }
}

void *wire_arena_alloc(struct err *e, struct wire_arena *a, size_t n_bytes, const char *what)
{
    size_t n = (n_bytes + 15) & ~(size_t)15;
    struct chunk *c = a->top;
    if (!c || c->size - c->used < n) {
        size_t size = n > CHUNK_BYTES_MIN ? n : CHUNK_BYTES_MIN;
        c = malloc(sizeof *c + size);
        if (!c) {
            err_nomem(e, what, size);
            return NULL;
        }
        c->size = size;
        c->used = 0;
        c->next = a->top;
        a->top = c;
    }
    void *p = c->mem + c->used;
    c->used += n;
    return p;
}
