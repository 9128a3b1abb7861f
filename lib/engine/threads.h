/*
 * The compute threads of an engine: a thread pool whose threads run one function together, in stages. Private to
 * lib/engine.
 */
#ifndef ENGINE_THREADS_H
#define ENGINE_THREADS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "proc/cores.h"

struct threads;

struct threads_opts {
    int threads;         /* if cores is NULL; the kernel chooses their cores */
    struct cores *cores; /* one thread for each of its own cores and for each that it may borrow; the caller's */
    uint64_t delay_seed; /* tests: != 0 waits a random time at the end of each stage */
};

/* The caller of threads_run is one of the threads. */
int threads_new(struct err *e, struct threads **out, const struct threads_opts *o);
void threads_free(struct threads *t);
int threads_size(const struct threads *t); /* all threads, each with a tid below this */

/*
 * Selects the threads of the next run: those of own cores, and those whose cores can be borrowed now. Returns how many.
 * The selection holds until the next call. Called outside of runs, by the thread that calls threads_run.
 */
int threads_select(struct threads *t);

/* Runs fn(arg, tid) on the selected threads, tid 0 on the caller's; returns when all have returned. Not reentrant. */
void threads_run(struct threads *t, void (*fn)(void *arg, int tid), void *arg);

/*
 * Inside fn the work is a sequence of stages, numbered from 0 in each run. A stage has work units 0 … n_unit-1, which
 * threads take dynamically. A stage is complete when its units are done, not when every thread has arrived. So a thread
 * that the kernel has preempted delays the others only while it holds a unit, and passes the stages that it missed
 * without waiting. For the same reason a thread may read data that a later stage overwrites only while it holds a unit:
 * until that unit is done, no thread passes the stage. A thread prepares data of its own when it has its first unit.
 *
 * When the owner of a borrowed core claims it back, the borrower's thread finishes its present unit and gets no other
 * in this run; every stage counts as complete for it, so it reaches the end of fn without work or waits. Thread 0 and
 * the other threads on own cores always stay.
 */
#define THREADS_STAGES_MAX 4096

/* Takes up to `step` units and returns the first, or -1 if none is left. */
int64_t threads_take(struct threads *t, int tid, int stage, int64_t n_unit, int64_t step);
/*
 * Takes one unit with affinity, in a stage of 1 … THREADS_CLAIMS_MAX units: the first free one from `own` on, wrapping
 * at n_unit, or -1. So a thread gets the same unit in each step and can prefetch its data, but also takes the units of
 * a thread that the kernel has preempted. All threads of a stage use the same one of the two functions.
 */
#define THREADS_CLAIMS_MAX 62
int64_t threads_claim(struct threads *t, int tid, int stage, int64_t n_unit, int64_t own);
/* Whether the unit is free: a hint, since another thread may claim it at any moment. */
bool threads_is_free(const struct threads *t, int stage, int64_t unit);
/* Marks n units as done. The last take of a stage may have returned fewer than `step` units: count up to n_unit. */
void threads_done(struct threads *t, int stage, int64_t n_unit, int64_t n);
/* Waits until the stage is complete: spins briefly, then sleeps. */
void threads_sync(struct threads *t, int tid, int stage, int64_t n_unit);
/* Adds threads to the present run whose cores have become free since threads_select. Called by thread 0 only. */
void threads_admit(struct threads *t);

/* How long thread 0 has waited for other threads so far, ns. */
uint64_t threads_waited_ns(const struct threads *t);

/* A counter that only grows, for dependencies other than the end of a stage: threads_post raises it to `to`,
 * threads_await waits until it is at least `to`. */
void threads_post(struct threads *t, int tid, _Atomic int32_t *count, int32_t to);
void threads_await(struct threads *t, int tid, const _Atomic int32_t *count, int32_t to);

#endif
