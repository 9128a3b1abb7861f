#include "engine/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"

#define LINE 64
#define SPIN 4000 /* about 40 µs of pauses: longer than a phase's imbalance, shorter than a scheduler's slice */

struct phase {
    _Alignas(LINE) _Atomic int64_t next; /* first unit that nobody has taken */
    _Atomic int64_t done;
};

struct team {
    int n;
    uint64_t delay_seed;
    pthread_t *thread; /* [n - 1] */
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

struct worker {
    struct team *t;
    int tid;
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

static uint64_t now_ns(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
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

static void *worker_main(void *p)
{
    struct worker w = *(struct worker *)p;
    struct team *t = w.t;
    free(p);
    kern_thread_init();
    for (uint32_t seen = 0;;) {
        for (int i = 0; i < SPIN && atomic_load_explicit(&t->job, memory_order_acquire) == seen; i++)
            __builtin_ia32_pause();
        while (atomic_load(&t->job) == seen)
            sleep_on(t, &t->job, seen);
        seen = atomic_load(&t->job);
        if (t->stop)
            return NULL;
        atomic_fetch_add(&t->inside,
                         1); /* before the look at `open`, as the caller closes before it looks at `inside` */
        if (atomic_load(&t->open))
            t->fn(t->arg, w.tid);
        atomic_fetch_sub(&t->inside, 1);
        bump(t, &t->event);
    }
}

int team_new(struct err *e, struct team **out, int n, uint64_t delay_seed)
{
    size_t bytes = (sizeof(struct team) + LINE - 1) / LINE * LINE;
    struct team *t = aligned_alloc(LINE, bytes);
    if (!t)
        return err_nomem(e, "compute threads", bytes);
    memset(t, 0, bytes);
    t->n = 1;
    t->delay_seed = delay_seed;
    t->thread = calloc((size_t)n, sizeof *t->thread);
    if (!t->thread) {
        free(t);
        return err_nomem(e, "compute threads", (size_t)n * sizeof *t->thread);
    }
    for (int i = 1; i < n; i++) {
        struct worker *w = malloc(sizeof *w);
        if (w)
            *w = (struct worker){t, i};
        if (!w || pthread_create(&t->thread[i - 1], NULL, worker_main, w)) {
            free(w);
            team_free(t);
            return err_sys(e, "cannot start compute thread %d of %d", i + 1, n);
        }
        t->n = i + 1;
    }
    *out = t;
    return 0;
}

void team_free(struct team *t)
{
    if (!t)
        return;
    t->stop = true;
    bump(t, &t->job);
    for (int i = 1; i < t->n; i++)
        pthread_join(t->thread[i - 1], NULL);
    free(t->thread);
    free(t);
}

int team_size(const struct team *t)
{
    return t->n;
}

void team_run(struct team *t, void (*fn)(void *arg, int tid), void *arg)
{
    for (int i = 0; i < TEAM_PHASES && atomic_load_explicit(&t->phase[i].next, memory_order_relaxed); i++) {
        atomic_store_explicit(&t->phase[i].next, 0, memory_order_relaxed);
        atomic_store_explicit(&t->phase[i].done, 0, memory_order_relaxed);
    }
    t->fn = fn;
    t->arg = arg;
    if (t->n == 1) {
        fn(arg, 0);
        return;
    }
    atomic_store(&t->open, 1);
    bump(t, &t->job);
    fn(arg, 0);
    atomic_store(&t->open, 0); /* who has not come yet is not waited for */
    uint64_t begin = now_ns();
    for (int i = 0; atomic_load(&t->inside); i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(&t->inside))
            sleep_on(t, &t->event, v);
    }
    t->waited += now_ns() - begin;
}

int64_t team_take(struct team *t, int phase, int64_t n_unit, int64_t step)
{
    _Atomic int64_t *next = &t->phase[phase].next;
    int64_t at = atomic_load_explicit(next, memory_order_relaxed);
    if (t->n == 1)
        atomic_store_explicit(next, at + step, memory_order_relaxed);
    else if (at < n_unit || !at) /* a phase of no units is marked as used too */
        at = atomic_fetch_add_explicit(next, step, memory_order_relaxed);
    return at < n_unit ? at : -1;
}

int64_t team_peek(struct team *t, int phase, int64_t n_unit)
{
    int64_t at = atomic_load_explicit(&t->phase[phase].next, memory_order_relaxed);
    return at < n_unit ? at : -1;
}

bool team_spent(struct team *t, int phase, int64_t n_unit)
{
    return atomic_load_explicit(&t->phase[phase].next, memory_order_relaxed) >= n_unit;
}

void team_done(struct team *t, int phase, int64_t n_unit, int64_t n)
{
    if (t->n > 1 && atomic_fetch_add_explicit(&t->phase[phase].done, n, memory_order_acq_rel) + n == n_unit)
        bump(t, &t->event);
}

void team_sync(struct team *t, int tid, int phase, int64_t n_unit)
{
    if (t->n == 1)
        return;
    if (t->delay_seed)
        delay(t, tid);
    _Atomic int64_t *done = &t->phase[phase].done;
    if (atomic_load_explicit(done, memory_order_acquire) >= n_unit)
        return;
    uint64_t begin = tid ? 0 : now_ns();
    for (int i = 0; atomic_load_explicit(done, memory_order_acquire) < n_unit; i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(done) < n_unit)
            sleep_on(t, &t->event, v);
    }
    if (!tid)
        t->waited += now_ns() - begin;
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
    uint64_t begin = tid ? 0 : now_ns();
    for (int i = 0; atomic_load_explicit(count, memory_order_acquire) < to; i++) {
        uint32_t v = atomic_load(&t->event);
        if (i < SPIN)
            __builtin_ia32_pause();
        else if (atomic_load(count) < to)
            sleep_on(t, &t->event, v);
    }
    if (!tid)
        t->waited += now_ns() - begin;
}
