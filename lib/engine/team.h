/* A team of compute threads that run one function together, in phases. Private to lib/engine. */
#ifndef TEAM_H
#define TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "proc/cores.h"

struct team;

struct team_opts {
    int threads;         /* where cores is NULL: they run where the system puts them */
    struct cores *cores; /* a thread for each of its own cores, and one for each that it may borrow; borrowed */
    uint64_t delay_seed; /* != 0: waits a random moment at each end of a phase */
};

/* The caller of team_run is one of the threads. */
int team_new(struct err *e, struct team **out, const struct team_opts *o);
void team_free(struct team *t);
int team_size(const struct team *t); /* all threads, each with a tid below this */

/*
 * Threads that the next run can have: those of own cores, and those whose cores are to be borrowed now. Kept until the
 * next look; to be called outside of runs, by the thread that calls team_run.
 */
int team_look(struct team *t);

/* Runs fn(arg, tid) on the threads of the last look, tid 0 on the caller's; returns when all are done. Not reentrant.
 */
void team_run(struct team *t, void (*fn)(void *arg, int tid), void *arg);

/*
 * Inside fn work goes in phases, counted from 0 in each run, each phase with units 0 … n_unit-1 that threads take as
 * they come. A phase is over when its units are done, not when every thread has been there: a thread that the system
 * has set aside holds nobody up unless it sits on a unit, and passes the phases it missed without a wait. So a thread
 * reads what a later phase writes only while it holds a unit: until that unit is done, nobody passes the phase. What
 * it needs for its units alone it prepares when it has the first of them.
 *
 * A thread on a borrowed core whose owner asks for it ends the unit it has and gets no other in this run; phases are
 * over for it at once, so that it comes to the end of fn without work or waits. Thread 0 and all others with cores of
 * their own always stay.
 */
#define TEAM_PHASES 4096

/* The first of up to `step` units, or -1 when none is left. */
int64_t team_take(struct team *t, int tid, int phase, int64_t n_unit, int64_t step);
/*
 * The other way to take units, for a phase of 1 … TEAM_CLAIMS units of which each thread has some of its own: the first
 * free unit from `own` on, wrapping at n_unit, or -1. So a thread gets the same unit step after step and can prefetch
 * its data, but also takes the units of a thread that the system has set aside. All threads use the same way in a
 * phase.
 */
#define TEAM_CLAIMS 62
int64_t team_claim(struct team *t, int tid, int phase, int64_t n_unit, int64_t own);
/* The unit is free now: a guess, since another thread may claim it at any moment. */
bool team_unclaimed(const struct team *t, int phase, int64_t unit);
/* `n` units are done (the last take may have given fewer than `step`: count to n_unit). */
void team_done(struct team *t, int phase, int64_t n_unit, int64_t n);
/* Waits until the phase is over: spins briefly, then sleeps. */
void team_sync(struct team *t, int tid, int phase, int64_t n_unit);
/* Lets threads come in whose cores have become free since the look; thread 0 alone calls it. */
void team_invite(struct team *t);

/* Time that thread 0 has waited for others so far, ns. */
uint64_t team_waited(const struct team *t);

/* A count that only grows, of work that others wait for without a phase: raises it to `to`, waits until it is there. */
void team_raise(struct team *t, int tid, _Atomic int32_t *count, int32_t to);
void team_reach(struct team *t, int tid, const _Atomic int32_t *count, int32_t to);

#endif
