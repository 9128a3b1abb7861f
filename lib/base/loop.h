/*
 * Event loop: epoll, descriptors with callbacks, timers, and events raised by other threads. One thread owns a loop and
 * everything in it: it alone adds, changes and removes, and all callbacks run in it, within loop_step. Other threads
 * may call only loop_event_raise and loop_wake, signal handlers only loop_wake.
 *
 * The structs below are members of the caller's own structs. Their addresses must not change while they are in the
 * loop; the loop stores pointers to them and allocates nothing. A callback may add, change, remove and free anything,
 * including what it was called for: nothing that was removed is called afterwards.
 *
 * Loops nest: loop_epoll_fd is readable while loop_step has something to do, timers included.
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
/* Everything must have been removed from the loop, or not be used any more; no other thread may be raising events. */
void loop_free(struct loop *l);

/*
 * One iteration: waits until a descriptor is ready, a timer is due or an event was raised, at most timeout_ms (-1: no
 * limit, 0: does not wait), then runs the callbacks of all that is ready: descriptors, events, timers. *did (may be
 * NULL): true if a callback was run or the loop was woken. A signal ends the wait and is not an error.
 */
int loop_step(struct err *e, struct loop *l, bool *did, int timeout_ms);

/* Ends the wait of the current loop_step, or of the next one if none waits. May be called from any thread or signal
 * handler. */
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

/* Calls fn(arg, ready events) while the descriptor is ready for `events`: EPOLLIN, EPOLLOUT, EPOLLRDHUP, EPOLLET;
 * EPOLLERR and EPOLLHUP are always reported. The caller keeps ownership of the descriptor. */
int loop_fd_add(struct err *e, struct loop *l, struct loop_fd *d, int fd, uint32_t events,
                void (*fn)(void *arg, uint32_t events), void *arg);
int loop_fd_set(struct err *e, struct loop_fd *d, uint32_t events); /* no system call if unchanged */
void loop_fd_remove(struct loop_fd *d); /* call before closing the descriptor; no effect if in no loop */

/* ---- timers ---- */

struct loop_timer { /* loop_timer_init before use */
    struct loop *loop;
    uint64_t at_ns; /* UINT64_MAX: not set */
    void (*fn)(void *arg);
    void *arg;
    struct loop_timer *child, *next, *prev; /* of the heap */
};

void loop_timer_init(struct loop *l, struct loop_timer *t, void (*fn)(void *arg), void *arg);
/* Calls fn(arg) once, in the first step after CLOCK_MONOTONIC at_ns; replaces an earlier deadline. A deadline in the
 * past that a callback sets is due in the next step. UINT64_MAX: never. O(1), or O(log n) if it was set before. */
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
/* Calls fn(arg) once in the loop's thread, in the current or the next step. Several raises before that call are one
 * call; a raise after it is another. May be called from any thread; the event must not be freed meanwhile. */
void loop_event_raise(struct loop_event *v);
/* The event is not called unless it is raised again. Called by the loop's thread. */
void loop_event_cancel(struct loop_event *v);

#endif
