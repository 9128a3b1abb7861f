/* Deep copies by the table, for requests that outlive their frames. */
#include "wire/schema.h"

#include <stdlib.h>
#include <string.h>

/* req must be first: wire_req_free casts its address. */
struct owned_req {
    struct wire_req req;
    struct wire_arena *arena;
};

static int dup(struct err *e, struct wire_arena *a, const void **p, size_t n)
{
    if (!n) {
        *p = NULL;
        return 0;
    }
    void *mem = wire_arena_alloc(e, a, n, "a request");
    if (!mem)
        return ERR_SYS;
    memcpy(mem, *p, n);
    *p = mem;
    return 0;
}

static int dup_str(struct err *e, struct wire_arena *a, struct wire_str *s)
{
    const void *p = s->p;
    int rc = dup(e, a, &p, s->n);
    s->p = p;
    return rc;
}

static int dup_bytes(struct err *e, struct wire_arena *a, struct wire_bytes *b)
{
    const void *p = b->p;
    int rc = dup(e, a, &p, b->n);
    b->p = p;
    return rc;
}

static int dup_fields(struct err *e, struct wire_arena *a, const struct wire_rec *rec, char *base);

static size_t elem_bytes(const struct wire_field *f)
{
    return f->type == TY_IDS ? sizeof(uint32_t) : f->type == TY_STRS ? sizeof(struct wire_str) : f->rec->size;
}

static int dup_array(struct err *e, struct wire_arena *a, const struct wire_field *f, char *base)
{
    uint32_t n = *(uint32_t *)(base + f->n_off);
    const void **p = (const void **)(base + f->off);
    int rc = dup(e, a, p, n * elem_bytes(f));
    char *elem = (char *)*p;
    for (uint32_t i = 0; i < n && !rc && f->type != TY_IDS; i++, elem += elem_bytes(f))
        rc = f->type == TY_STRS ? dup_str(e, a, (struct wire_str *)elem) : dup_fields(e, a, f->rec, elem);
    return rc;
}

static int dup_fields(struct err *e, struct wire_arena *a, const struct wire_rec *rec, char *base)
{
    int rc = 0;
    for (uint32_t i = 0; i < rec->n && !rc; i++) {
        const struct wire_field *f = &rec->f[i];
        char *p = base + f->off;
        if (f->type == TY_STR || f->type == TY_NAME)
            rc = dup_str(e, a, (struct wire_str *)p);
        else if (f->type == TY_BIN)
            rc = dup_bytes(e, a, (struct wire_bytes *)p);
        else if (f->type == TY_IDS || f->type == TY_STRS || f->type == TY_TUPLES || f->type == TY_MAPS)
            rc = dup_array(e, a, f, base);
        else if (f->type == TY_SECTION)
            rc = dup_fields(e, a, f->rec, base);
        else if (f->type == TY_TUPLE)
            rc = dup_fields(e, a, f->rec, p);
    }
    if (!rc && rec->extra_off != FIELD_ALONE)
        rc = dup_bytes(e, a, &((struct wire_extra *)(base + rec->extra_off))->raw);
    return rc;
}

int wire_req_copy(struct err *e, struct wire_req **out, const struct wire_req *r)
{
    struct owned_req *o = malloc(sizeof *o);
    if (!o)
        return err_nomem(e, "a request", sizeof *o);
    o->req = *r;
    o->arena = wire_arena_new();
    int rc = o->arena ? dup_fields(e, o->arena, wire_rec_of(WIRE_TOK), (char *)&o->req)
                      : err_nomem(e, "a request", sizeof o->arena);
    if (rc) {
        wire_req_free(&o->req);
        return rc;
    }
    *out = &o->req;
    return 0;
}

void wire_req_free(struct wire_req *r)
{
    if (!r)
        return;
    struct owned_req *o = (struct owned_req *)r;
    wire_arena_free(o->arena);
    free(o);
}
