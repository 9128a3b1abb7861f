#include "engine/threads.h"

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
#define SPIN                                                                                                           \
    4000 /* about 40 µs of pauses: longer than a stage's imbalance, shorter than a time slice of the kernel           \
          */

struct stage {
    _Alignas(LINE) _Atomic int64_t next; /* first unit that no thread has taken; with claims, a bit a unit */
    _Atomic int64_t done;
};

/* One thread. Threads on own cores wait for `job` of the pool, a borrower for its own `job`. */
struct member {
    _Alignas(LINE) _Atomic uint32_t job; /* borrower: incremented for each run that it may join */
    _Atomic uint32_t asleep;
    struct threads *t;
    pthread_t thread;
    int tid;
    bool invited;   /* by thread 0, to the present run */
    bool withdrawn; /* set by the thread itself: the owner has claimed its core back in this run */
    struct cores_hold hold;
};

struct threads {
    int n, n_own;  /* all threads; those on own cores, which come first */
    int n_started; /* threads 1 … n_started run */
    struct cores *cores;
    const int *own; /* [n_own]; NULL without cores */
    uint64_t delay_seed;
    struct member *member; /* [n] */
    pthread_t caller;      /* thread 0, from its first run on */
    bool has_caller;
    void (*fn)(void *, int);
    void *arg;
    atomic_bool stop;
    _Alignas(LINE) _Atomic uint32_t job;  /* incremented for each run; threads wait on it */
    _Alignas(LINE) _Atomic uint32_t open; /* threads may enter the run */
    _Atomic uint32_t inside;              /* threads that are in the run */
    _Alignas(
        LINE) _Atomic uint32_t event; /* incremented when a stage is complete or a thread leaves; waiters sleep on it */
    _Alignas(LINE) _Atomic uint32_t sleepers;
    _Alignas(LINE) uint64_t waited; /* thread 0 */
    struct stage stage[THREADS_STAGES_MAX];
};

static void futex_wait(_Atomic uint32_t *p, uint32_t v)
{
    syscall(SYS_futex, p, FUTEX_WAIT_PRIVATE, v, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *p)
{
    syscall(SYS_futex, p, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/* The count of sleepers lets the waker skip the system call. */
static void sleep_on(struct threads *t, _Atomic uint32_t *p, uint32_t v)
{
    atomic_fetch_add(&t->sleepers, 1);
    if (atomic_load(p) == v)
        futex_wait(p, v);
    atomic_fetch_sub(&t->sleepers, 1);
}

static void increment(struct threads *t, _Atomic uint32_t *p)
{
    atomic_fetch_add(p, 1);
    if (atomic_load(&t->sleepers))
        futex_wake_all(p);
}

static void delay(struct threads *t, int tid)
{
    static _Thread_local uint64_t state;
    if (!state)
        state = t->delay_seed * 0x9e3779b97f4a7c15u + (uint64_t)tid + 1;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    struct timespec ts = {0, (long)(state % 64 ? state % 3000 : state % 200000)};
    nanosleep(&ts, NULL);
}

/* `inside` is incremented before `open` is read; the caller clears `open` before it reads `inside`. So one of the two
 * sees the other. */
static void enter(struct member *m)
{
    struct threads *t = m->t;
    atomic_fetch_add(&t->inside, 1);
    m->withdrawn = false;
    if (atomic_load(&t->open))
        t->fn(t->arg, m->tid);
    atomic_fetch_sub(&t->inside, 1);
    increment(t, &t->event);
}

static void *own_thread(void *p)
{
    struct member *m = p;
    struct threads *t = m->t;
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

static bool holds_core(const struct member *m)
{
    return cores_kept(m->t->cores, &m->hold);
}

/* Keeps its core while it spins for the next run, and returns it before it sleeps. */
static void *borrower_thread(void *p)
{
    struct member *m = p;
    struct threads *t = m->t;
    kern_thread_init();
    proc_wake_soon(false);
    for (uint32_t seen = 0;;) {
        for (int i = 0; i < SPIN && m->hold.word && holds_core(m) && atomic_load(&m->job) == seen; i++)
            __builtin_ia32_pause();
        if (atomic_load(&m->job) == seen || (m->hold.word && !holds_core(m)))
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

/* Invites a borrower to the run. No thread waits for it. */
static void invite(struct member *m)
{
    m->invited = true;
    atomic_fetch_add(&m->job, 1);
    if (atomic_load(&m->asleep))
        futex_wake_all(&m->job);
}

static int start_threads(struct err *e, struct threads *t)
{
    for (int i = 1; i < t->n; i++) {
        struct member *m = &t->member[i];
        m->t = t;
        m->tid = i;
        if (pthread_create(&m->thread, NULL, i < t->n_own ? own_thread : borrower_thread, m))
            return err_sys(e, "cannot start compute thread %d of %d", i + 1, t->n);
        t->n_started = i;
    }
    return 0;
}

int threads_new(struct err *e, struct threads **out, const struct threads_opts *o)
{
    size_t bytes = (sizeof(struct threads) + LINE - 1) / LINE * LINE;
    struct threads *t = aligned_alloc(LINE, bytes);
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
        threads_free(t);
    else
        *out = t;
    return rc;
}

void threads_free(struct threads *t)
{
    if (!t)
        return;
    t->stop = true;
    increment(t, &t->job);
    for (int i = t->n_own; i <= t->n_started; i++)
        invite(&t->member[i]);
    for (int i = 1; i <= t->n_started; i++)
        pthread_join(t->member[i].thread, NULL);
    free(t->member);
    free(t);
}

int threads_size(const struct threads *t)
{
    return t->n;
}

int threads_select(struct threads *t)
{
    int n = t->n_own;
    uint64_t now = t->n > t->n_own ? time_now_ns() : 0;
    for (int i = t->n_own; i < t->n; i++)
        n += t->member[i].invited = cores_free(t->cores, t->member[i].hold.cpu, now);
    return n;
}

void threads_admit(struct threads *t)
{
    uint64_t now = t->n > t->n_own ? time_now_ns() : 0;
    for (int i = t->n_own; i < t->n; i++)
        if (!t->member[i].invited && cores_free(t->cores, t->member[i].hold.cpu, now))
            invite(&t->member[i]);
}

/* The calling thread becomes thread 0, on the first core. Another thread may call the next time. */
static void adopt_caller(struct threads *t)
{
    if (t->has_caller && pthread_equal(t->caller, pthread_self()))
        return;
    t->has_caller = true;
    t->caller = pthread_self();
    proc_wake_soon(false);
    if (t->cores)
        cores_pin(t->own[0]);
}

void threads_run(struct threads *t, void (*fn)(void *arg, int tid), void *arg)
{
    for (int i = 0; i < THREADS_STAGES_MAX && atomic_load_explicit(&t->stage[i].next, memory_order_relaxed); i++) {
        atomic_store_explicit(&t->stage[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&t->stage[i].done, 0, memory_order_relaxed);
    }
    t->fn = fn;
    t->arg = arg;
    adopt_caller(t);
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
        increment(t, &t->job);
    for (int i = t->n_own; i < t->n; i++)
        if (t->member[i].invited)
            invite(&t->member[i]);
    fn(arg, 0);
    atomic_store(&t->open, 0); /* threads that have not entered are not waited for */
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

/* Whether the owner has claimed this thread's core back: then the thread takes no more units in this run. */
static bool is_withdrawn(struct threads *t, int tid)
{
    if (tid < t->n_own)
        return false;
    struct member *m = &t->member[tid];
    if (!m->withdrawn && !holds_core(m))
        m->withdrawn = true;
    return m->withdrawn;
}

int64_t threads_take(struct threads *t, int tid, int stage, int64_t n_unit, int64_t step)
{
    if (is_withdrawn(t, tid))
        return -1;
    _Atomic int64_t *next = &t->stage[stage].next;
    int64_t at = atomic_load_explicit(next, memory_order_relaxed);
    if (t->n == 1)
        atomic_store_explicit(next, at + step, memory_order_relaxed);
    else if (at < n_unit || !at) /* a stage without units is marked as used too */
        at = atomic_fetch_add_explicit(next, step, memory_order_relaxed);
    return at < n_unit ? at : -1;
}

int64_t threads_claim(struct threads *t, int tid, int stage, int64_t n_unit, int64_t own)
{
    if (is_withdrawn(t, tid))
        return -1;
    _Atomic int64_t *claimed = &t->stage[stage].next;
    for (int64_t i = 0; i < n_unit; i++) {
        int64_t u = (own + i) % n_unit, bit = (int64_t)1 << u;
        if (!(atomic_load_explicit(claimed, memory_order_relaxed) & bit) &&
            !(atomic_fetch_or_explicit(claimed, bit, memory_order_relaxed) & bit))
            return u;
    }
    return -1;
}

bool threads_is_free(const struct threads *t, int stage, int64_t unit)
{
    return !(atomic_load_explicit(&t->stage[stage].next, memory_order_relaxed) >> unit & 1);
}

void threads_done(struct threads *t, int stage, int64_t n_unit, int64_t n)
{
    if (t->n > 1 && atomic_fetch_add_explicit(&t->stage[stage].done, n, memory_order_acq_rel) + n == n_unit)
        increment(t, &t->event);
}

void threads_sync(struct threads *t, int tid, int stage, int64_t n_unit)
{
    if (t->n == 1 || is_withdrawn(t, tid))
        return;
    if (t->delay_seed)
        delay(t, tid);
    _Atomic int64_t *done = &t->stage[stage].done;
    if (atomic_load_explicit(done, memory_order_acquire) >= n_unit)
        return;
    uint64_t begin = tid ? 0 : time_now_ns();
    for (int i = 0; atomic_load_explicit(done, memory_order_acquire) < n_unit && !is_withdrawn(t, tid); i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(done) < n_unit)
            sleep_on(t, &t->event, v);
    }
    if (!tid)
        t->waited += time_now_ns() - begin;
}

uint64_t threads_waited_ns(const struct threads *t)
{
    return t->waited;
}

void threads_post(struct threads *t, int tid, _Atomic int32_t *count, int32_t to)
{
    atomic_store_explicit(count, to, memory_order_release);
    if (t->n == 1)
        return;
    increment(t, &t->event);
    if (t->delay_seed)
        delay(t, tid);
}

void threads_await(struct threads *t, int tid, const _Atomic int32_t *count, int32_t to)
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
