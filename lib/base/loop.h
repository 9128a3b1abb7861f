/*
 * The event loop: epoll, descriptors with callbacks, timers, and events that other threads raise. One thread owns a
 * loop and everything in it: it alone adds, changes and removes, and all callbacks run in it, within loop_step. Only
 * loop_event_raise and loop_wake may be called from other threads, and only loop_wake from a signal handler.
 *
 * The structs below are members of the caller's own and stay where they are while they are in the loop; the loop keeps
 * pointers to them and allocates nothing. A callback may add, change, remove and free anything, also what it was called
 * for: nothing that was removed is called afterwards.
 *
 * Loops nest: loop_epoll_fd is readable while loop_step would have something to do, timers included.
 */
#ifndef BASE_LOOP_H
#define BASE_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "base/list.h"
#include "err/err.h"

struct loop;

int loop_new(struct err *e, struct loop **out);
/* Everything must have been removed from it, or not be used any more; other threads must have ended their raises. */
void loop_free(struct loop *l);

/*
 * One turn: waits until a descriptor is ready, a timer is due or an event was raised, at most timeout_ms (-1: without a
 * limit, 0: does not wait), then runs the callbacks of all that is ready: descriptors, events, timers. *did (may be
 * NULL): a callback was run or the loop was woken. A signal ends the wait and is no failure.
 */
int loop_step(struct err *e, struct loop *l, bool *did, int timeout_ms);

/* Ends the wait of the present loop_step, or of the next one if none waits. From any thread or signal handler. */
void loop_wake(struct loop *l);

int loop_epoll_fd(const struct loop *l);

/* ---- descriptors ---- */

struct loop_fd {       /* zeroed: in no loop */
    struct loop *loop; /* NULL: in no loop */
    int fd;
    uint32_t events; /* as set last */
    void (*fn)(void *arg, uint32_t events);
    void *arg;
};

/* Calls fn(arg, what is ready) while the descriptor is ready for `events`: EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLET;
 * EPOLLERR and EPOLLHUP come unasked. The descriptor stays the caller's. */
int loop_fd_add(struct err *e, struct loop *l, struct loop_fd *d, int fd, uint32_t events,
                void (*fn)(void *arg, uint32_t events), void *arg);
int loop_fd_set(struct err *e, struct loop_fd *d, uint32_t events); /* no system call if they are as set last */
void loop_fd_remove(struct loop_fd *d); /* before the descriptor is closed; without effect if in no loop */

/* ---- timers ---- */

struct loop_timer { /* loop_timer_init before use */
    struct loop *loop;
    uint64_t at_ns; /* UINT64_MAX: not set */
    void (*fn)(void *arg);
    void *arg;
    struct loop_timer *child, *next, *prev; /* of the heap */
};

void loop_timer_init(struct loop *l, struct loop_timer *t, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) once, in the first step after CLOCK_MONOTONIC at_ns; replaces an earlier deadline. A deadline that a
 * callback sets into the past is met in the next step. UINT64_MAX: never. O(1), or O(log n) if it was set before. */
void loop_timer_set(struct loop_timer *t, uint64_t at_ns);
void loop_timer_stop(struct loop_timer *t);
/* The next deadline; UINT64_MAX: no timer is set. */
uint64_t loop_next_ns(const struct loop *l);

/* ---- events from other threads ---- */

struct loop_event { /* loop_event_init before use */
    struct loop *loop;
    struct list node;
    bool raised;
    void (*fn)(void *arg);
    void *arg;
};

void loop_event_init(struct loop *l, struct loop_event *v, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) once in the loop's thread, in the present or the next step. Raised again before that it is still called
 * once; raised from then on, once more. From any thread; the event must not be freed meanwhile. */
void loop_event_raise(struct loop_event *v);
/* It is not called any more unless raised again. By the loop's thread. */
void loop_event_cancel(struct loop_event *v);

#endif
