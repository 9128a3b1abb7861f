/*
 * What the scheduler reports of itself: the frame `stat` that it sends in response to `stat`, and the frames `worker`
 * that follow it, one a worker. They arrive one by one; here they are put together.
 */
#ifndef LINK_STAT_H
#define LINK_STAT_H

#include "base/buf.h"
#include "link/session.h"

#define LINK_STAT_WORKERS_MAX 65536

struct link_stat {
    struct wire_stat stat;
    struct wire_worker *worker; /* n; both borrow from what follows, until the next link_stat_add */
    size_t n;

    size_t cap;
    struct buf bytes; /* the frames, whole, one after the other */
    uint64_t n_left;  /* frames that are still to come */
    struct wire_arena *arena;
};

/* A frame of a session with the scheduler. *whole: it was the last one, and stat, worker and n are set. ERR_PROTO: it
 * is no part of a response; what came so far is dropped. */
int link_stat_add(struct err *e, struct link_stat *s, bool *whole, const struct session_event *ev);
void link_stat_free(struct link_stat *s);

#endif
