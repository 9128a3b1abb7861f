#include "engine/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "kernels/kernels.h"
#include "proc/proc.h"

#define LINE 64
#define SPIN 4000 /* about 40 µs of pauses: longer than a phase's imbalance, shorter than a scheduler's slice */

struct phase {
    _Alignas(LINE) _Atomic int64_t next; /* first unit that nobody has taken */
    _Atomic int64_t done;
};

/* One thread. Those with a core of their own wait for `job` of the team, a borrower for its own. */
struct member {
    _Alignas(LINE) _Atomic uint32_t job; /* borrower: bumped for each run it is asked to join */
    _Atomic uint32_t asleep;
    struct team *t;
    pthread_t thread;
    int tid;
    bool asked; /* thread 0: to join the present run */
    bool gone;  /* the thread: its core was asked for in this run */
    struct cores_hold hold;
};

struct team {
    int n, n_own; /* threads; those that never leave, which come first */
    int n_thread; /* threads that were started: 1 … n_thread */
    struct cores *cores;
    const int *own; /* [n_own] where there are cores */
    uint64_t delay_seed;
    struct member *member; /* [n] */
    pthread_t caller;      /* thread 0, once it has been taken in */
    bool has_caller;
    void (*fn)(void *, int);
    void *arg;
    atomic_bool stop;
    _Alignas(LINE) _Atomic uint32_t job;   /* bumped for each run; threads wait on it */
    _Alignas(LINE) _Atomic uint32_t open;  /* the run may be entered */
    _Atomic uint32_t inside;               /* threads that have entered and not left */
    _Alignas(LINE) _Atomic uint32_t event; /* bumped when a phase is over or a thread leaves; waits sleep on it */
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Alignas(LINE) uint64_t waited; /* thread 0 */
    struct phase phase[TEAM_PHASES];
};

static void futex_wait(_Atomic uint32_t *p, uint32_t v)
{
    syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, v, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *p)
{
    syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The sleeper count lets the waker skip the system call. */
static void sleep_on(struct team *t, _Atomic uint32_t *p, uint32_t v)
{
    atomic_fetch_add(&t->sleepers, 1);
    if (atomic_load(p) == v)
        futex_wait(p, v);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void bump(struct team *t, _Atomic uint32_t *p)
{
    atomic_fetch_add(p, 1);
    if (atomic_load(&t->sleepers))
        futex_wake_all(p);
}

static void delay(struct team *t, int tid)
{
    static _Thread_local uint64_t state;
    if (!state)
        state = t->delay_seed * 0x9e3779b97f4a7c15u + (uint64_t)tid + 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    struct timespec ts = {0, (long)(state % 64 ? state % 3000 : state % 200000)};
    nanosleep(&ts, NULL);
}

/* Enters before the look at `open`, as the caller closes before it looks at `inside`. */
static void enter(struct member *m)
{
    struct team *t = m->t;
    atomic_fetch_add(&t->inside, 1);
    m->gone = false;
    if (atomic_load(&t->open))
        t->fn(t->arg, m->tid);
    atomic_fetch_sub(&t->inside, 1);
    bump(t, &t->event);
}

static void *own_main(void *p)
{
    struct member *m = p;
    struct team *t = m->t;
    kern_thread_init();
    proc_wake_soon(false);
    if (t->cores)
        cores_pin(t->own[m->tid]);
    for (uint32_t seen = 0;;) {
        for (int i = 0; i < SPIN && atomic_load_explicit(&t->job, memory_order_acquire) == seen; i++)
            __builtin_ia32_pause();
        while (atomic_load(&t->job) == seen)
            sleep_on(t, &t->job, seen);
        seen = atomic_load(&t->job);
        if (t->stop)
            return NULL;
        enter(m);
    }
}

static bool kept(const struct member *m)
{
    return cores_kept(m->t->cores, &m->hold);
}

/* Holds its core while it waits for the next run, which comes soon, but gives it back before it sleeps. */
static void *borrower_main(void *p)
{
    struct member *m = p;
    struct team *t = m->t;
    kern_thread_init();
    proc_wake_soon(false);
    for (uint32_t seen = 0;;) {
        for (int i = 0; i < SPIN && m->hold.word && kept(m) && atomic_load(&m->job) == seen; i++)
            __builtin_ia32_pause();
        if (atomic_load(&m->job) == seen || (m->hold.word && !kept(m)))
            cores_give(t->cores, &m->hold);
        while (atomic_load(&m->job) == seen) {
            atomic_store(&m->asleep, 1);
            if (atomic_load(&m->job) == seen)
                futex_wait(&m->job, seen);
            atomic_store(&m->asleep, 0);
        }
        seen = atomic_load(&m->job);
        if (t->stop) {
            cores_give(t->cores, &m->hold);
            return NULL;
        }
        if (atomic_load(&t->open) && cores_take(t->cores, &m->hold))
            enter(m);
    }
}

/* Wakes a borrower; nobody waits for it. */
static void ask(struct member *m)
{
    m->asked = true;
    atomic_fetch_add(&m->job, 1);
    if (atomic_load(&m->asleep))
        futex_wake_all(&m->job);
}

static int start_threads(struct err *e, struct team *t)
{
    for (int i = 1; i < t->n; i++) {
        struct member *m = &t->member[i];
        m->t = t;
        m->tid = i;
        if (pthread_create(&m->thread, NULL, i < t->n_own ? own_main : borrower_main, m))
            return err_sys(e, "cannot start compute thread %d of %d", i + 1, t->n);
        t->n_thread = i;
    }
    return 0;
}

int team_new(struct err *e, struct team **out, const struct team_opts *o)
{
    size_t bytes = (sizeof(struct team) + LINE - 1) / LINE * LINE;
    struct team *t = aligned_alloc(LINE, bytes);
    if (!t)
        return err_nomem(e, "compute threads", bytes);
    memset(t, 0, bytes);
    const int *other = NULL;
    t->cores = o->cores;
    t->delay_seed = o->delay_seed;
    t->n_own = o->cores ? cores_own(o->cores, &t->own) : o->threads;
    t->n = t->n_own + (o->cores ? cores_other(o->cores, &other) : 0);
    bytes = (size_t)t->n * sizeof *t->member;
    t->member = aligned_alloc(LINE, bytes);
    if (!t->member) {
        free(t);
        return err_nomem(e, "compute threads", bytes);
    }
    memset(t->member, 0, bytes);
    for (int i = t->n_own; i < t->n; i++)
        t->member[i].hold.cpu = other[i - t->n_own];
    int rc = start_threads(e, t);
    if (rc)
        team_free(t);
    else
        *out = t;
    return rc;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    t->stop = true;
    bump(t, &t->job);
    for (int i = t->n_own; i <= t->n_thread; i++)
        ask(&t->member[i]);
    for (int i = 1; i <= t->n_thread; i++)
        pthread_join(t->member[i].thread, NULL);
    free(t->member);
    free(t);
}

int team_size(const struct team *t)
{
    return t->n;
}

int team_look(struct team *t)
{
    int n = t->n_own;
    uint64_t now = t->n > t->n_own ? time_now_ns() : 0;
    for (int i = t->n_own; i < t->n; i++)
        n += t->member[i].asked = cores_free(t->cores, t->member[i].hold.cpu, now);
    return n;
}

void team_invite(struct team *t)
{
    uint64_t now = t->n > t->n_own ? time_now_ns() : 0;
    for (int i = t->n_own; i < t->n; i++)
        if (!t->member[i].asked && cores_free(t->cores, t->member[i].hold.cpu, now))
            ask(&t->member[i]);
}

/* The thread that calls computes from now on, on the first core; it may be another one the next time. */
static void take_in(struct team *t)
{
    if (t->has_caller && pthread_equal(t->caller, pthread_self()))
        return;
    t->has_caller = true;
    t->caller = pthread_self();
    proc_wake_soon(false);
    if (t->cores)
        cores_pin(t->own[0]);
}

void team_run(struct team *t, void (*fn)(void *arg, int tid), void *arg)
{
    for (int i = 0; i < TEAM_PHASES && atomic_load_explicit(&t->phase[i].next, memory_order_relaxed); i++) {
        atomic_store_explicit(&t->phase[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&t->phase[i].done, 0, memory_order_relaxed);
    }
    t->fn = fn;
    t->arg = arg;
    take_in(t);
    if (t->cores)
        cores_work(t->cores);
    if (t->n == 1) {
        fn(arg, 0);
        if (t->cores)
            cores_rest(t->cores);
        return;
    }
    atomic_store(&t->open, 1);
    if (t->n_own > 1)
        bump(t, &t->job);
    for (int i = t->n_own; i < t->n; i++)
        if (t->member[i].asked)
            ask(&t->member[i]);
    fn(arg, 0);
    atomic_store(&t->open, 0); /* who has not come yet is not waited for */
    uint64_t begin = time_now_ns();
    for (int i = 0; atomic_load(&t->inside); i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(&t->inside))
            sleep_on(t, &t->event, v);
    }
    t->waited += time_now_ns() - begin;
    if (t->cores)
        cores_rest(t->cores);
}

/* The owner of this thread's core has asked for it: the thread does no more in this run. */
static bool gone(struct team *t, int tid)
{
    if (tid < t->n_own)
        return false;
    struct member *m = &t->member[tid];
    if (!m->gone && !kept(m))
        m->gone = true;
    return m->gone;
}

int64_t team_take(struct team *t, int tid, int phase, int64_t n_unit, int64_t step)
{
    if (gone(t, tid))
        return -1;
    _Atomic int64_t *next = &t->phase[phase].next;
    int64_t at = atomic_load_explicit(next, memory_order_relaxed);
    if (t->n == 1)
        atomic_store_explicit(next, at + step, memory_order_relaxed);
    else if (at < n_unit || !at) /* a phase of no units is marked as used too */
        at = atomic_fetch_add_explicit(next, step, memory_order_relaxed);
    return at < n_unit ? at : -1;
}

int64_t team_claim(struct team *t, int tid, int phase, int64_t n_unit, int64_t own)
{
    if (gone(t, tid))
        return -1;
    _Atomic int64_t *claimed = &t->phase[phase].next; /* a bit a unit */
    for (int64_t i = 0; i < n_unit; i++) {
        int64_t u = (own + i) % n_unit, bit = (int64_t)1 << u;
        if (!(atomic_load_explicit(claimed, memory_order_relaxed) & bit) &&
            !(atomic_fetch_or_explicit(claimed, bit, memory_order_relaxed) & bit))
            return u;
    }
    return -1;
}

bool team_unclaimed(const struct team *t, int phase, int64_t unit)
{
    return !(atomic_load_explicit(&t->phase[phase].next, memory_order_relaxed) >> unit & 1);
}

void team_done(struct team *t, int phase, int64_t n_unit, int64_t n)
{
    if (t->n > 1 && atomic_fetch_add_explicit(&t->phase[phase].done, n, memory_order_acq_rel) + n == n_unit)
        bump(t, &t->event);
}

void team_sync(struct team *t, int tid, int phase, int64_t n_unit)
{
    if (t->n == 1 || gone(t, tid))
        return;
    if (t->delay_seed)
        delay(t, tid);
    _Atomic int64_t *done = &t->phase[phase].done;
    if (atomic_load_explicit(done, memory_order_acquire) >= n_unit)
        return;
    uint64_t begin = tid ? 0 : time_now_ns();
    for (int i = 0; atomic_load_explicit(done, memory_order_acquire) < n_unit && !gone(t, tid); i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(done) < n_unit)
            sleep_on(t, &t->event, v);
    }
    if (!tid)
        t->waited += time_now_ns() - begin;
}

uint64_t team_waited(const struct team *t)
{
    return t->waited;
}

void team_raise(struct team *t, int tid, _Atomic int32_t *count, int32_t to)
{
    atomic_store_explicit(count, to, memory_order_release);
    if (t->n == 1)
        return;
    bump(t, &t->event);
    if (t->delay_seed)
        delay(t, tid);
}

void team_reach(struct team *t, int tid, const _Atomic int32_t *count, int32_t to)
{
    if (atomic_load_explicit(count, memory_order_acquire) >= to)
        return;
    uint64_t begin = tid ? 0 : time_now_ns();
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < to; i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(count) < to)
            sleep_on(t, &t->event, v);
    }
    if (!tid)
        t->waited += time_now_ns() - begin;
}
