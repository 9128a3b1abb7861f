/* The connections of a worker: the calls of the computing thread, and the thread that runs the sessions. */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "link/worker_impl.h"

#define LEASES_MS 100 /* period of lease checks */

static int wait_ms(const struct worker_link *w)
{
    int ms = time_left_ms(sched_link_next_ns(w), time_now_ns()), hub = session_hub_timeout_ms(w->hub);
    if (w->n_item && w->state != WORKER_JOINED && ms > LEASES_MS)
        ms = LEASES_MS;
    return hub >= 0 && hub < ms ? hub : ms;
}

/* One turn of the thread; returns how many ms it may wait. After events it is 0, because they may permit sending. */
static int turn(struct worker_link *w)
{
    struct session_event ev;
    uint64_t now = time_now_ns();
    bool again = false;
    outlet_pump(w, now);
    sched_link_pump(w, now);
    while (session_hub_next(w->hub, &ev)) {
        struct outlet *t = session_arg(ev.s);
        again = true;
        if (t)
            outlet_event(w, t, &ev);
        else
            sched_link_event(w, &ev);
    }
    item_leases(w, now);
    return again ? 0 : wait_ms(w);
}

static void *run(void *arg)
{
    struct worker_link *w = arg;
    pthread_mutex_lock(&w->lock);
    while (!w->stop) {
        int ms = turn(w);
        pthread_mutex_unlock(&w->lock);
        session_hub_wait(w->hub, ms);
        pthread_mutex_lock(&w->lock);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* The thread blocks all signals: they go to the computing thread. */
static int start_thread(struct err *e, struct worker_link *w)
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
    if (!w->o.out_bytes_max)
        w->o.out_bytes_max = WORKER_OUT_BYTES_MAX;
    w->mem = wire_arena_new();
    if (!w->mem)
        return err_nomem(e, "a worker", sizeof *w);
    if (strlen(o->role) >= sizeof w->role)
        return err_set(e, ERR_USAGE, "'%.80s' is not a role: prefill, decode or both", o->role);
    memcpy(w->role, o->role, strlen(o->role) + 1);
    while (!w->inc)
        if (getrandom(&w->inc, sizeof w->inc, 0) < 0)
            return err_sys(e, "random bytes");
    return 0;
}

int worker_link_open(struct err *e, struct worker_link **out, const struct worker_link_opts *o)
{
    struct worker_link *w = calloc(1, sizeof *w);
    if (!w)
        return err_nomem(e, "a worker", sizeof *w);
    pthread_mutex_init(&w->lock, NULL);
    list_init(&w->items);
    list_init(&w->item_events);
    list_init(&w->reports);
    list_init(&w->outlets);
    w->lost_ns = time_now_ns();
    w->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = w->fd < 0 ? err_sys(e, "a descriptor") : copy_opts(e, w, o);
    rc = rc ? rc : sched_open(e, w);
    rc = rc ? rc : start_thread(e, w);
    if (rc) {
        worker_link_close(w);
        return rc;
    }
    *out = w;
    return 0;
}

static void free_lists(struct worker_link *w)
{
    struct worker_event ev;
    while (worker_link_take(w, &ev))
        worker_order_release(ev.assigned);
    list_each_safe (struct work_item, item, &w->items, node)
        item_remove(w, item);
    outlet_free_all(w);
    list_for_each_safe (n, &w->reports)
        free(list_entry(n, struct message, node));
}

void worker_link_close(struct worker_link *w)
{
    if (!w)
        return;
    if (w->has_thread) {
        pthread_mutex_lock(&w->lock);
        w->stop = true;
        pthread_mutex_unlock(&w->lock);
        session_hub_wake(w->hub);
        pthread_join(w->thread, NULL);
    }
    session_free(w->sched);
    free_lists(w);
    session_hub_free(w->hub);
    if (w->fd >= 0)
        close(w->fd);
    pthread_mutex_destroy(&w->lock);
    wire_arena_free(w->mem);
    free(w);
}

enum worker_link_state worker_link_state(struct worker_link *w, struct err *reason)
{
    pthread_mutex_lock(&w->lock);
    enum worker_link_state s = w->state;
    if (reason)
        *reason = w->reason;
    pthread_mutex_unlock(&w->lock);
    return s;
}

void worker_link_drain(struct worker_link *w, bool on)
{
    pthread_mutex_lock(&w->lock);
    w->drain = on;
    pthread_mutex_unlock(&w->lock);
    session_hub_wake(w->hub);
}

int worker_link_fd(const struct worker_link *w)
{
    return w->fd;
}

bool worker_link_idle(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    bool idle = list_empty(&w->reports) && !w->queued;
    pthread_mutex_unlock(&w->lock);
    return idle;
}
