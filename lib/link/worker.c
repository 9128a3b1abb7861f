/* A worker's side of the scheduler: the calls of its owner, and the thread that does everything else. */
#include "link/worker_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#define LEASE_LOOK_MS 100 /* leases are looked at this often */

uint64_t worker_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void event(struct worker_link *w, const struct link_event *ev)
{
    bool socket = ev->what == LINK_UP || ev->what == LINK_DOWN;
    if (socket ? ev->arg != NULL && outlet_event(w, ev) : outlet_event(w, ev))
        return;
    if (!socket || !ev->arg)
        sched_link_event(w, ev, worker_now_ns());
}

/* Events first: a process that was stopped may find in the box that it has been heard of. */
static int turn(struct worker_link *w)
{
    struct link_event ev;
    while (link_box_take(w->box, &ev))
        event(w, &ev);
    uint64_t now = worker_now_ns();
    if (now >= w->lease_look_ns) {
        w->lease_look_ns = now + LEASE_LOOK_MS * WORKER_MS;
        order_leases(w, now);
    }
    uint64_t again = outlet_pump(w, now);
    sched_link_pump(w, now);
    uint64_t next = sched_link_next_ns(w, now);
    next = again < next ? again : next;
    if (w->n_order && w->lease_look_ns < next)
        next = w->lease_look_ns;
    return next > now ? (int)((next - now) / WORKER_MS + 1) : 0;
}

static void *run(void *arg)
{
    struct worker_link *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        int wait_ms = turn(w);
        struct outlet *retired = w->retired;
        w->retired = NULL;
        pthread_mutex_unlock(&w->lock);
        outlet_free_list(retired);
        link_box_wait(w->box, wait_ms);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Signals are for the thread that computes. */
static int begin(struct err *e, struct worker_link *w)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (rc) {
        errno = rc;
        return err_sys(e, "a thread for the scheduler");
    }
    w->has_thread = true;
    return 0;
}

static int copy_opts(struct err *e, struct worker_link *w, const struct worker_link_opts *o)
{
    w->o = *o;
    w->name = strdup(o->name);
    w->store = strdup(o->store ? o->store : "");
    w->compat = strdup(o->compat ? o->compat : "");
    if (!w->name || !w->store || !w->compat)
        return err_nomem(e, "a worker", sizeof *w);
    if (strlen(o->role) >= sizeof w->role)
        return err_set(e, ERR_USAGE, "'%.80s' is no role", o->role);
    memcpy(w->role, o->role, strlen(o->role) + 1);
    w->o.sched = w->o.name = w->o.role = w->o.store = w->o.compat = NULL;
    while (!w->inc)
        if (getrandom(&w->inc, sizeof w->inc, 0) < 0)
            return err_sys(e, "random bytes");
    struct link_msg m = {0};
    int rc = sched_join_message(e, &m, w); /* names that cannot be written are found out now */
    link_msg_free(&m);
    return rc;
}

int worker_link_open(struct err *e, struct worker_link **out, const struct worker_link_opts *o)
{
    struct worker_link *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, "a worker", sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    w->end = &w->first;
    w->reports_end = &w->reports;
    w->heard_ns = worker_now_ns();
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = w->fd < 0 ? err_sys(e, "a descriptor") : copy_opts(e, w, o);
    rc = rc ? rc : link_box_new(e, &w->box);
    rc = rc ? rc : link_dial(e, &w->dialer, w->box, o->sched, NULL);
    rc = rc ? rc : begin(e, w);
    if (rc) {
        worker_link_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void free_orders(struct worker_link *w)
{
    for (uint32_t i = 0; i < WORKER_BUCKETS; i++)
        while (w->order[i]) {
            struct order *o = w->order[i];
            w->order[i] = o->next;
            free(o);
        }
}

static void free_reports(struct worker_link *w)
{
    while (w->reports) {
        struct report *r = w->reports;
        w->reports = r->next;
        free(r);
    }
}

void worker_link_close(struct worker_link *w)
{
    if (!w)
        return;
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_mutex_unlock(&w->lock);
        link_box_wake(w->box);
        pthread_join(w->thread, NULL);
    }
    outlet_free_all(w);
    free_orders(w);
    free_reports(w);
    order_untell(w);
    link_dialer_free(w->dialer);
    link_box_free(w->box);
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->lock);
    free(w->name);
    free(w->store);
    free(w->compat);
    free(w);
}

enum worker_link_state worker_link_state(struct worker_link *w, struct err *why)
{
    pthread_mutex_lock(&w->lock);
    enum worker_link_state s = w->state == WORKER_JOINED && !link_dialer_up(w->dialer) ? WORKER_JOINING : w->state;
    if (why)
        *why = w->why;
    pthread_mutex_unlock(&w->lock);
    return s;
}

void worker_link_drain(struct worker_link *w, bool on)
{
    pthread_mutex_lock(&w->lock);
    w->drain = on;
    pthread_mutex_unlock(&w->lock);
    link_box_wake(w->box);
}

int worker_link_fd(const struct worker_link *w)
{
    return w->fd;
}

bool worker_link_idle(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    bool idle = !w->reports && !w->queued;
    pthread_mutex_unlock(&w->lock);
    return idle;
}
