/* Teams whose threads run on cores that their owners take back at any moment. What is right is counted: every unit
 * once, no phase before the one ahead of it is over, no unit for a thread that was asked to leave. */
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

#include "engine/team.h"
#include "proc/proc.h"
#include "unit/cores_file.h"

#define PHASES 60
#define UNITS 37 /* at most */
#define BORROWED 3

/* Cores above those of the machine do as well: a thread that cannot be tied to one runs anywhere. */
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
    struct team *t;
    _Atomic int unit[PHASES][UNITS], done[PHASES];
    _Atomic int by[1 + BORROWED]; /* units of a thread */
    atomic_bool early;
};

static int64_t units(int phase)
{
    return phase % 7 ? 1 + phase * 5 % UNITS : 0;
}

/* In every fourth phase that has units threads claim them, each from another one on. */
static int64_t next_unit(struct job *j, int tid, int phase, int64_t n, int64_t step)
{
    if (n && phase % 4 == 1)
        return team_claim(j->t, tid, phase, n, tid * n / (1 + BORROWED));
    return team_take(j->t, tid, phase, n, step);
}

static void work(void *arg, int tid)
{
    struct job *j = arg;
    for (int p = 0; p < PHASES; p++) {
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
            team_done(j->t, p, n, end - u);
            if (!tid)
                team_invite(j->t);
        }
        team_sync(j->t, tid, p, n);
    }
}

static void claim_in_order(void *arg, int tid)
{
    static const int64_t order[] = {3, 4, 0, 1, 2, -1, -1};
    struct team *t = arg;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        for (int64_t u = 0; u < 5; u++) {
            bool claimed = false;
            for (size_t k = 0; k < i; k++)
                claimed |= order[k] == u;
            assert_int_equal(team_unclaimed(t, 0, u), !claimed);
        }
        assert_int_equal(team_claim(t, tid, 0, 5, 3), order[i]);
    }
    for (int64_t u = 0; u < TEAM_CLAIMS; u++) /* as many as there can be */
        assert_int_equal(team_claim(t, tid, 1, TEAM_CLAIMS, 1), (u + 1) % TEAM_CLAIMS);
    assert_int_equal(team_claim(t, tid, 1, TEAM_CLAIMS, 1), -1);
}

/* A thread gets its own units first, then the others', and each run begins with all of them free. */
static void claims_own_first(void **state)
{
    (void)state;
    struct err e = {0};
    struct team *t;
    assert_int_equal(team_new(&e, &t, &(struct team_opts){.threads = 1}), 0);
    for (int i = 0; i < 3; i++)
        team_run(t, claim_in_order, t);
    team_free(t);
}

struct owner {
    struct cores *c;
    atomic_bool stop;
};

/* Computes and rests, for short random times. */
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

static void every_unit_once(void **state)
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
        assert_int_equal(team_new(&e, &j->t, &(struct team_opts){.cores = mine, .delay_seed = (uint64_t)delay * 5}), 0);
        assert_int_equal(team_size(j->t), 1 + BORROWED);
        for (int run = 0; run < (delay ? 20 : 1500); run++) {
            int n = team_look(j->t);
            assert_in_range(n, 1, 1 + BORROWED);
            memset(j->unit, 0, sizeof j->unit);
            memset(j->done, 0, sizeof j->done);
            team_run(j->t, work, j);
            for (int p = 0; p < PHASES; p++)
                for (int64_t i = 0; i < units(p); i++)
                    assert_int_equal(j->unit[p][i], 1);
            assert_false(j->early);
        }
        team_free(j->t);
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
    struct team *t;
    struct cores *owner;
    _Atomic int inside, units, after; /* of the borrower */
    atomic_bool want;
};

/* The borrower sits on a unit when its core is asked for; thread 0 does not end before that. */
static void leave(void *arg, int tid)
{
    struct asked *a = arg;
    for (int p = 0; p < 10; p++) {
        for (int64_t u; (u = team_take(a->t, tid, p, 4, 1)) >= 0;) {
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
            team_done(a->t, p, 4, 1);
        }
        team_sync(a->t, tid, p, 4);
    }
}

static void leaves_after_its_unit(void **state)
{
    (void)state;
    struct err e = {0};
    struct asked a = {.owner = worker(others, 1, NULL, 0)};
    struct cores *mine = worker(first, 1, others, 1);
    nap(100);
    assert_int_equal(team_new(&e, &a.t, &(struct team_opts){.cores = mine}), 0);
    assert_int_equal(team_look(a.t), 2);
    team_run(a.t, leave, &a);
    assert_int_equal(a.units, 1);
    assert_int_equal(a.after, 0);
    assert_int_equal(team_look(a.t), 1); /* its owner computes */
    cores_rest(a.owner);
    nap(100);
    assert_int_equal(team_look(a.t), 2);
    team_free(a.t);
    cores_close(mine);
    cores_close(a.owner);
}

struct once {
    struct team *t;
    struct cores *owner;
    _Atomic int by[2];
};

/* Thread 0 rests its owner's core in the middle, and asks for help then. */
static void late(void *arg, int tid)
{
    struct once *o = arg;
    for (int64_t u; (u = team_take(o->t, tid, 0, 2000, 1)) >= 0;) {
        o->by[tid]++;
        if (u == 1000)
            cores_rest(o->owner);
        for (int i = 0; !tid && u > 1000 && !o->by[1] && i < 1000; i++) {
            team_invite(o->t);
            nap(100);
        }
        team_done(o->t, 0, 2000, 1);
    }
    team_sync(o->t, tid, 0, 2000);
}

static void comes_in_later(void **state)
{
    (void)state;
    struct err e = {0};
    struct once o = {.owner = worker(others, 1, NULL, 0)};
    struct cores *mine = worker(first, 1, others, 1);
    cores_work(o.owner);
    assert_int_equal(team_new(&e, &o.t, &(struct team_opts){.cores = mine}), 0);
    assert_int_equal(team_look(o.t), 1);
    team_run(o.t, late, &o);
    assert_true(o.by[1] > 0);
    assert_int_equal(o.by[0] + o.by[1], 2000);
    team_free(o.t);
    cores_close(mine);
    cores_close(o.owner);
}

/* A core that is never there is never waited for, and its thread ends. */
static void never_free(void **state)
{
    (void)state;
    struct err e = {0};
    struct job *j = calloc(1, sizeof *j);
    struct cores *o = worker(others, BORROWED, NULL, 0), *mine = worker(first, 1, others, BORROWED);
    assert_non_null(j);
    cores_work(o);
    assert_int_equal(team_new(&e, &j->t, &(struct team_opts){.cores = mine}), 0);
    for (int run = 0; run < 100; run++) {
        assert_int_equal(team_look(j->t), 1);
        team_run(j->t, work, j);
        memset(j->done, 0, sizeof j->done);
    }
    for (int i = 1; i <= BORROWED; i++)
        assert_int_equal(j->by[i], 0);
    team_free(j->t);
    cores_close(mine);
    cores_close(o);
    free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(claims_own_first),
        cmocka_unit_test_setup(every_unit_once, set_free),
        cmocka_unit_test_setup(leaves_after_its_unit, set_free),
        cmocka_unit_test_setup(comes_in_later, set_free),
        cmocka_unit_test_setup(never_free, set_free),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
