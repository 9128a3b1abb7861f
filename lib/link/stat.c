#include "link/stat.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

static int reserve(struct err *e, struct link_stat *s, size_t n)
{
    s->arena = s->arena ? s->arena : wire_arena_new();
    int rc = vec_reserve(e, &s->bytes, &s->cap_bytes, s->n_bytes + n, 1, "the state of the scheduler");
    return rc ? rc : s->arena ? 0 : err_nomem(e, "the state of the scheduler", 0);
}

/* All frames are here: decoded again, since each borrows from its bytes. */
static int decode(struct err *e, struct link_stat *s)
{
    struct wire_frame f;
    size_t size = 0;
    int rc = 0;
    wire_arena_reset(s->arena);
    s->n = 0;
    for (size_t at = 0; at < s->n_bytes && !rc; at += size) {
        rc = wire_frame_size(e, &size, s->bytes + at, s->n_bytes - at, SESSION_FRAME_BYTES_MAX);
        struct session_event ev = {.type = SESSION_FRAME, .p = s->bytes + at, .n = size};
        rc = rc ? rc : session_frame(e, &f, s->arena, &ev);
        if (!rc && f.kind == WIRE_STAT)
            s->stat = f.stat;
        else if (!rc)
            s->worker[s->n++] = f.worker;
    }
    return rc;
}

static int begin(struct err *e, struct link_stat *s, const struct wire_stat *stat)
{
    s->n_bytes = 0;
    int rc = vec_reserve(e, &s->worker, &s->cap, stat->workers, sizeof *s->worker, "workers");
    if (rc)
        return rc;
    s->n_left = (uint64_t)stat->workers + 1;
    return 0;
}

int link_stat_add(struct err *e, struct link_stat *s, bool *whole, const struct session_event *ev)
{
    struct wire_frame f;
    *whole = false;
    int rc = reserve(e, s, ev->n);
    if (!rc)
        wire_arena_reset(s->arena);
    rc = rc ? rc : session_frame(e, &f, s->arena, ev);
    if (!rc && f.kind == WIRE_STAT && f.stat.workers <= LINK_STAT_WORKERS_MAX)
        rc = begin(e, s, &f.stat);
    else if (!rc && (f.kind != WIRE_WORKER || s->n_left < 1))
        rc = err_set(e, ERR_PROTO, "a %s frame in place of the state of the scheduler", wire_kind_name(f.kind));
    if (rc) {
        s->n_left = 0;
        return rc;
    }
    memcpy(s->bytes + s->n_bytes, ev->p, ev->n);
    s->n_bytes += ev->n;
    *whole = --s->n_left == 0;
    return *whole ? decode(e, s) : 0;
}

void link_stat_free(struct link_stat *s)
{
    free(s->worker);
    free(s->bytes);
    wire_arena_free(s->arena);
    *s = (struct link_stat){0};
}
