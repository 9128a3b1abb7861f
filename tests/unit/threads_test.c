/* Thread pools whose threads run on borrowed cores that the owners claim back at any moment. Each unit runs once, no
 * stage begins before the one before it is complete, and a thread whose core was claimed back gets no more units. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/threads.h"
#include "proc/proc.h"
#include "unit/cores_file.h"

#define STAGES 60
#define UNITS 37 /* at most */
#define BORROWED 3

/* Cores that the machine does not have work too: a thread that cannot be pinned to one runs anywhere. */
static struct cores *worker(const int *cpu, int n, const int *borrow, int n_borrow)
{
    struct err e = {0};
    struct cores *c = NULL;
    struct cores_opts o = {.cpu = cpu, .n = n, .borrow = borrow, .n_borrow = n_borrow, .path = path, .rest_ns = 1};
    if (cores_open(&e, &c, &o))
        fail_msg("%s", e.text);
    return c;
}

static void nap(long us)
{
    struct timespec ts = {0, us * 1000};
    nanosleep(&ts, NULL);
}

static const int first[] = {0}, others[BORROWED] = {1, 2, 3};

struct job {
    struct threads *t;
    _Atomic int unit[STAGES][UNITS], done[STAGES];
    _Atomic int by[1 + BORROWED]; /* units of a thread */
    atomic_bool early;
};

static int64_t units(int stage)
{
    return stage % 7 ? 1 + stage * 5 % UNITS : 0;
}

/* In every fourth stage that has units, threads claim them, each beginning at another unit. */
static int64_t next_unit(struct job *j, int tid, int stage, int64_t n, int64_t step)
{
    if (n && stage % 4 == 1)
        return threads_claim(j->t, tid, stage, n, tid * n / (1 + BORROWED));
    return threads_take(j->t, tid, stage, n, step);
}

static void work(void *arg, int tid)
{
    struct job *j = arg;
    for (int p = 0; p < STAGES; p++) {
        int64_t n = units(p), step = n && p % 4 == 1 ? 1 : 1 + p % 3;
        for (int64_t u; (u = next_unit(j, tid, p, n, step)) >= 0;) {
            for (int q = 0; q < p; q++)
                if (j->done[q] != units(q))
                    j->early = true;
            int64_t end = u + step < n ? u + step : n;
            for (int64_t i = u; i < end; i++)
                j->unit[p][i]++;
            j->by[tid]++;
            for (int i = 0; i < 100; i++)
                __builtin_ia32_pause();
            j->done[p] += (int)(end - u);
            threads_done(j->t, p, n, end - u);
            if (!tid)
                threads_admit(j->t);
        }
        threads_sync(j->t, tid, p, n);
    }
}

static void claim_in_order(void *arg, int tid)
{
    static const int64_t order[] = {3, 4, 0, 1, 2, -1, -1};
    struct threads *t = arg;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        for (int64_t u = 0; u < 5; u++) {
            bool claimed = false;
            for (size_t k = 0; k < i; k++)
                claimed |= order[k] == u;
            assert_int_equal(threads_is_free(t, 0, u), !claimed);
        }
        assert_int_equal(threads_claim(t, tid, 0, 5, 3), order[i]);
    }
    for (int64_t u = 0; u < THREADS_CLAIMS_MAX; u++) /* the maximum */
        assert_int_equal(threads_claim(t, tid, 1, THREADS_CLAIMS_MAX, 1), (u + 1) % THREADS_CLAIMS_MAX);
    assert_int_equal(threads_claim(t, tid, 1, THREADS_CLAIMS_MAX, 1), -1);
}

/* A thread gets its own units first, then those of others; each run begins with all units free. */
static void a_thread_claims_its_own_units_first(void **state)
{
    (void)state;
    struct err e = {0};
    struct threads *t;
    assert_int_equal(threads_new(&e, &t, &(struct threads_opts){.threads = 1}), 0);
    for (int i = 0; i < 3; i++)
        threads_run(t, claim_in_order, t);
    threads_free(t);
}

struct owner {
    struct cores *c;
    atomic_bool stop;
};

/* Computes and rests in turns, for short random times. */
static void *owner(void *arg)
{
    struct owner *o = arg;
    for (uint32_t x = 1; !o->stop;) {
        x = x * 1664525u + 1013904223u;
        cores_work(o->c);
        nap(x >> 27);
        cores_rest(o->c);
        nap(x >> 24 & 127);
    }
    return NULL;
}

static void each_unit_runs_once(void **state)
{
    (void)state;
    struct err e = {0};
    struct owner o[2] = {{.c = worker(others, 2, NULL, 0)}, {.c = worker(others + 2, 1, NULL, 0)}};
    struct cores *mine = worker(first, 1, others, BORROWED);
    struct job *j = calloc(1, sizeof *j);
    pthread_t t[2];
    int borrowed = 0;
    assert_non_null(j);
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&t[i], NULL, owner, &o[i]), 0);
    for (int delay = 0; delay < 2; delay++) {
        assert_int_equal(
            threads_new(&e, &j->t, &(struct threads_opts){.cores = mine, .delay_seed = (uint64_t)delay * 5}), 0);
        assert_int_equal(threads_size(j->t), 1 + BORROWED);
        for (int run = 0; run < (delay ? 20 : 1500); run++) {
            int n = threads_select(j->t);
            assert_in_range(n, 1, 1 + BORROWED);
            memset(j->unit, 0, sizeof j->unit);
            memset(j->done, 0, sizeof j->done);
            threads_run(j->t, work, j);
            for (int p = 0; p < STAGES; p++)
                for (int64_t i = 0; i < units(p); i++)
                    assert_int_equal(j->unit[p][i], 1);
            assert_false(j->early);
        }
        threads_free(j->t);
    }
    for (int i = 0; i < 2; i++) {
        o[i].stop = true;
        pthread_join(t[i], NULL);
        cores_close(o[i].c);
    }
    for (int i = 1; i <= BORROWED; i++)
        borrowed += j->by[i];
    assert_true(borrowed > 0);
    cores_close(mine);
    free(j);
}

struct asked {
    struct threads *t;
    struct cores *owner;
    _Atomic int inside, units, after; /* of the borrower */
    atomic_bool want;
};

/* The borrower holds a unit when its core is claimed back; thread 0 does not end before that. */
static void leave(void *arg, int tid)
{
    struct asked *a = arg;
    for (int p = 0; p < 10; p++) {
        for (int64_t u; (u = threads_take(a->t, tid, p, 4, 1)) >= 0;) {
            if (tid) {
                a->units++;
                a->after += a->want;
                a->inside = 1;
                while (!a->want)
                    nap(10);
            } else if (!a->want) {
                while (!a->inside)
                    nap(10);
                cores_work(a->owner);
                a->want = true;
            }
            threads_done(a->t, p, 4, 1);
        }
        threads_sync(a->t, tid, p, 4);
    }
}

static void a_borrower_leaves_after_its_unit(void **state)
{
    (void)state;
    struct err e = {0};
    struct asked a = {.owner = worker(others, 1, NULL, 0)};
    struct cores *mine = worker(first, 1, others, 1);
    nap(100);
    assert_int_equal(threads_new(&e, &a.t, &(struct threads_opts){.cores = mine}), 0);
    assert_int_equal(threads_select(a.t), 2);
    threads_run(a.t, leave, &a);
    assert_int_equal(a.units, 1);
    assert_int_equal(a.after, 0);
    assert_int_equal(threads_select(a.t), 1); /* its owner computes */
    cores_rest(a.owner);
    nap(100);
    assert_int_equal(threads_select(a.t), 2);
    threads_free(a.t);
    cores_close(mine);
    cores_close(a.owner);
}

struct once {
    struct threads *t;
    struct cores *owner;
    _Atomic int by[2];
};

/* Thread 0 makes the owner's core idle in the middle of the run, and then admits its thread. */
static void late(void *arg, int tid)
{
    struct once *o = arg;
    for (int64_t u; (u = threads_take(o->t, tid, 0, 2000, 1)) >= 0;) {
        o->by[tid]++;
        if (u == 1000)
            cores_rest(o->owner);
        for (int i = 0; !tid && u > 1000 && !o->by[1] && i < 1000; i++) {
            threads_admit(o->t);
            nap(100);
        }
        threads_done(o->t, 0, 2000, 1);
    }
    threads_sync(o->t, tid, 0, 2000);
}

static void a_borrower_joins_a_run_late(void **state)
{
    (void)state;
    struct err e = {0};
    struct once o = {.owner = worker(others, 1, NULL, 0)};
    struct cores *mine = worker(first, 1, others, 1);
    cores_work(o.owner);
    assert_int_equal(threads_new(&e, &o.t, &(struct threads_opts){.cores = mine}), 0);
    assert_int_equal(threads_select(o.t), 1);
    threads_run(o.t, late, &o);
    assert_true(o.by[1] > 0);
    assert_int_equal(o.by[0] + o.by[1], 2000);
    threads_free(o.t);
    cores_close(mine);
    cores_close(o.owner);
}

/* The pool never waits for a core that is never free, and its thread can be joined. */
static void a_core_that_is_never_free_delays_nothing(void **state)
{
    (void)state;
    struct err e = {0};
    struct job *j = calloc(1, sizeof *j);
    struct cores *o = worker(others, BORROWED, NULL, 0), *mine = worker(first, 1, others, BORROWED);
    assert_non_null(j);
    cores_work(o);
    assert_int_equal(threads_new(&e, &j->t, &(struct threads_opts){.cores = mine}), 0);
    for (int run = 0; run < 100; run++) {
        assert_int_equal(threads_select(j->t), 1);
        threads_run(j->t, work, j);
        memset(j->done, 0, sizeof j->done);
    }
    for (int i = 1; i <= BORROWED; i++)
        assert_int_equal(j->by[i], 0);
    threads_free(j->t);
    cores_close(mine);
    cores_close(o);
    free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thread_claims_its_own_units_first),
        cmocka_unit_test_setup(each_unit_runs_once, set_free),
        cmocka_unit_test_setup(a_borrower_leaves_after_its_unit, set_free),
        cmocka_unit_test_setup(a_borrower_joins_a_run_late, set_free),
        cmocka_unit_test_setup(a_core_that_is_never_free_delays_nothing, set_free),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
