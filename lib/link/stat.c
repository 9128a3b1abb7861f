#include "link/stat.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

/* Decodes all frames again: each borrows from `bytes`, which may have moved since. */
static int decode(struct err *e, struct link_stat *s)
{
    struct wire_frame f;
    const uint8_t *p = buf_front(&s->bytes);
    size_t n = buf_left(&s->bytes);
    int rc = 0;
    wire_arena_reset(s->arena);
    for (s->n = 0; n && !rc;) {
        rc = wire_decode_next(e, &f, s->arena, &p, &n);
        if (!rc && f.kind == WIRE_STAT)
            s->stat = f.stat;
        else if (!rc)
            s->worker[s->n++] = f.worker;
    }
    return rc;
}

static int begin(struct err *e, struct link_stat *s, uint32_t workers)
{
    s->bytes.n = 0;
    s->n_left = (uint64_t)workers + 1;
    return vec_reserve(e, &s->worker, &s->cap, workers, sizeof *s->worker, "workers");
}

int link_stat_add(struct err *e, struct link_stat *s, bool *whole, const struct session_event *ev)
{
    struct wire_frame f;
    *whole = false;
    s->arena = s->arena ? s->arena : wire_arena_new();
    if (!s->arena)
        return err_nomem(e, "the statistics of the scheduler", 0);
    wire_arena_reset(s->arena);
    int rc = session_frame(e, &f, s->arena, ev);
    if (!rc && f.kind == WIRE_STAT && f.stat.workers <= LINK_STAT_WORKERS_MAX)
        rc = begin(e, s, f.stat.workers);
    else if (!rc && (f.kind != WIRE_WORKER || s->n_left < 1))
        rc = err_set(e, ERR_PROTO, "the scheduler sent a %s frame, not its statistics", wire_kind_name(f.kind));
    if (!rc && !buf_reserve(&s->bytes, ev->n))
        rc = err_nomem(e, "the statistics of the scheduler", ev->n);
    if (rc) {
        s->n_left = 0;
        return rc;
    }
    memcpy(s->bytes.p + s->bytes.n, ev->p, ev->n);
    s->bytes.n += ev->n;
    *whole = --s->n_left == 0;
    return *whole ? decode(e, s) : 0;
}

void link_stat_free(struct link_stat *s)
{
    free(s->worker);
    free(s->bytes.p);
    wire_arena_free(s->arena);
    *s = (struct link_stat){0};
}
