/*
 * The statistics of the scheduler. It responds to a frame `stat` with one frame `stat` and then a frame `worker` for
 * each worker; link_stat collects them into one response.
 */
#ifndef LINK_STAT_H
#define LINK_STAT_H

#include "base/buf.h"
#include "link/session.h"

#define LINK_STAT_WORKERS_MAX 65536

struct link_stat {
    struct wire_stat stat;
    struct wire_worker *worker; /* n entries. Stat and worker borrow from the fields below until the next call */
    size_t n;

    size_t cap;
    struct buf bytes; /* the encoded frames, one after the other */
    uint64_t n_left;  /* missing frames of the response */
    struct wire_arena *arena;
};

/* Adds a frame of a session with the scheduler. *whole: the response is complete, and stat, worker and n are set.
 * ERR_PROTO: the frame does not belong to a response; the frames collected so far are dropped. */
int link_stat_add(struct err *e, struct link_stat *s, bool *whole, const struct session_event *ev);
void link_stat_free(struct link_stat *s);

#endif
