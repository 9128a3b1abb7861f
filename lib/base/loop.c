/* One epoll set. The wake-up (an eventfd) and the timers (a timerfd) are descriptors in it, so that loops nest. */
#include "base/loop.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/loop_heap.h"
#include "base/time.h"

#define EVENTS 64 /* of one epoll_wait */

struct loop {
    int epoll;
    struct loop_fd wake, timer;
    struct epoll_event ready[EVENTS]; /* of the current step; data.ptr is NULL if it was removed meanwhile */
    int n_ready;
    struct loop_timer *first; /* heap by at_ns */
    uint64_t now_ns;          /* time of the current timer run; 0: none */
    uint64_t armed_ns;        /* setting of the timerfd, at most the first deadline; UINT64_MAX: not set */
    pthread_mutex_t lock;
    struct list raised; /* loop_event.node, protected by the lock */
};

/* ---- descriptors ---- */

static int control(struct err *e, struct loop_fd *d, int op, uint32_t events)
{
    struct epoll_event v = {.events = events, .data.ptr = d};
    if (epoll_ctl(d->loop->epoll, op, d->fd, &v))
        return err_sys(e, "epoll: descriptor %d", d->fd);
    d->events = events;
    return 0;
}

int loop_fd_add(struct err *e, struct loop *l, struct loop_fd *d, int fd, uint32_t events,
                void (*fn)(void *arg, uint32_t events), void *arg)
{
    *d = (struct loop_fd){.loop = l, .fd = fd, .fn = fn, .arg = arg};
    int rc = control(e, d, EPOLL_CTL_ADD, events);
    if (rc)
        d->loop = NULL;
    return rc;
}

int loop_fd_set(struct err *e, struct loop_fd *d, uint32_t events)
{
    return events == d->events ? 0 : control(e, d, EPOLL_CTL_MOD, events);
}

void loop_fd_remove(struct loop_fd *d)
{
    struct loop *l = d->loop;
    if (!l)
        return;
    epoll_ctl(l->epoll, EPOLL_CTL_DEL, d->fd, NULL);
    for (int i = 0; i < l->n_ready; i++)
        if (l->ready[i].data.ptr == d)
            l->ready[i].data.ptr = NULL;
    d->loop = NULL;
}

/* ---- timers ---- */

/* The timerfd is set again only for an earlier deadline. It may fire too early; then the next deadline is set. */
static void arm(struct loop *l)
{
    uint64_t at = loop_next_ns(l);
    if (at >= l->armed_ns)
        return;
    struct itimerspec t = {.it_value = time_spec(at ? at : 1)}; /* 0 would disarm it */
    if (!timerfd_settime(l->timer.fd, TFD_TIMER_ABSTIME, &t, NULL))
        l->armed_ns = at;
}

static void timer_fired(void *arg, uint32_t events)
{
    struct loop *l = arg;
    uint64_t count;
    (void)events;
    if (read(l->timer.fd, &count, sizeof count) == (ssize_t)sizeof count)
        l->armed_ns = UINT64_MAX;
}

void loop_timer_init(struct loop *l, struct loop_timer *t, void (*fn)(void *arg), void *arg)
{
    *t = (struct loop_timer){.loop = l, .at_ns = UINT64_MAX, .fn = fn, .arg = arg};
}

void loop_timer_set(struct loop_timer *t, uint64_t at_ns)
{
    struct loop *l = t->loop;
    loop_timer_stop(t);
    if (at_ns == UINT64_MAX)
        return;
    t->at_ns = at_ns > l->now_ns ? at_ns : l->now_ns + 1; /* later than now_ns, so that a timer run ends */
    l->first = loop_heap_add(l->first, t);
    arm(l);
}

void loop_timer_stop(struct loop_timer *t)
{
    if (t->at_ns == UINT64_MAX)
        return;
    t->loop->first = loop_heap_remove(t->loop->first, t);
    t->at_ns = UINT64_MAX;
}

uint64_t loop_next_ns(const struct loop *l)
{
    return l->first ? l->first->at_ns : UINT64_MAX;
}

static bool run_timers(struct loop *l)
{
    bool did = false;
    if (!l->first)
        return false;
    l->now_ns = time_now_ns();
    while (l->first && l->first->at_ns <= l->now_ns) {
        struct loop_timer *t = l->first;
        loop_timer_stop(t);
        t->fn(t->arg);
        did = true;
    }
    l->now_ns = 0;
    arm(l);
    return did;
}

/* ---- events ---- */

/* If the counter is full, the eventfd is readable too, so EAGAIN needs no handling. */
void loop_wake(struct loop *l)
{
    int was = errno;
    const uint64_t one = 1;
    ssize_t put = write(l->wake.fd, &one, sizeof one);
    (void)put;
    errno = was;
}

void loop_event_init(struct loop *l, struct loop_event *v, void (*fn)(void *arg), void *arg)
{
    *v = (struct loop_event){.loop = l, .fn = fn, .arg = arg};
    list_init(&v->node);
}

void loop_event_raise(struct loop_event *v)
{
    struct loop *l = v->loop;
    pthread_mutex_lock(&l->lock);
    bool first = !v->raised && list_empty(&l->raised);
    if (!v->raised)
        list_push_back(&l->raised, &v->node);
    v->raised = true;
    if (first) /* within the lock: the loop is not freed before its thread has taken the event */
        loop_wake(l);
    pthread_mutex_unlock(&l->lock);
}

void loop_event_cancel(struct loop_event *v)
{
    pthread_mutex_lock(&v->loop->lock);
    list_remove(&v->node);
    v->raised = false;
    pthread_mutex_unlock(&v->loop->lock);
}

/* Calls the events that are raised at the start, one at a time, because each callback may cancel any other. */
static void woken(void *arg, uint32_t events)
{
    struct loop *l = arg;
    struct list turn;
    uint64_t count;
    (void)events;
    list_init(&turn);
    pthread_mutex_lock(&l->lock);
    (void)!read(l->wake.fd, &count, sizeof count);
    list_append(&turn, &l->raised);
    while (!list_empty(&turn)) {
        struct loop_event *v = list_entry(list_pop_front(&turn), struct loop_event, node);
        v->raised = false;
        pthread_mutex_unlock(&l->lock);
        v->fn(v->arg);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---- the loop ---- */

int loop_new(struct err *e, struct loop **out)
{
    struct loop *l = calloc(1, sizeof *l);
    *out = NULL;
    if (!l)
        return err_nomem(e, "an event loop", sizeof *l);
    l->armed_ns = UINT64_MAX;
    list_init(&l->raised);
    pthread_mutex_init(&l->lock, NULL);
    int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    int rc = wake < 0 || timer < 0 || l->epoll < 0 ? err_sys(e, "cannot make an event loop") : 0;
    rc = rc ? rc : loop_fd_add(e, l, &l->wake, wake, EPOLLIN, woken, l);
    rc = rc ? rc : loop_fd_add(e, l, &l->timer, timer, EPOLLIN, timer_fired, l);
    l->wake.fd = wake;
    l->timer.fd = timer;
    if (rc)
        loop_free(l);
    else
        *out = l;
    return rc;
}

void loop_free(struct loop *l)
{
    if (!l)
        return;
    const int fds[] = {l->epoll, l->wake.fd, l->timer.fd};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    pthread_mutex_lock(&l->lock); /* waits for a loop_event_raise that is still in progress */
    pthread_mutex_unlock(&l->lock);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

int loop_epoll_fd(const struct loop *l)
{
    return l->epoll;
}

int loop_step(struct err *e, struct loop *l, bool *did, int timeout_ms)
{
    bool any = false;
    int n = epoll_wait(l->epoll, l->ready, EVENTS, timeout_ms);
    if (did)
        *did = false;
    if (n < 0 && errno != EINTR)
        return err_sys(e, "epoll");
    l->n_ready = n > 0 ? n : 0;
    for (int i = 0; i < l->n_ready; i++) {
        struct loop_fd *d = l->ready[i].data.ptr;
        if (!d)
            continue;
        any = any || d != &l->timer;
        d->fn(d->arg, l->ready[i].events);
    }
    l->n_ready = 0;
    any = run_timers(l) || any;
    if (did)
        *did = any;
    return 0;
}
