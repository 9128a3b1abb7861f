/* A team of compute threads that run one function together, with barriers inside. Private to lib/engine. */
#ifndef TEAM_H
#define TEAM_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

struct team;

/* n threads in all; the caller of team_run is one of them. delay_seed != 0: waits a random moment at each barrier. */
int team_new(struct err *e, struct team **out, int n, uint64_t delay_seed);
void team_free(struct team *t);
int team_size(const struct team *t);

/* Runs fn(arg, tid) on every thread, tid 0 on the caller's; returns when all are done. Not reentrant. */
void team_run(struct team *t, void (*fn)(void *arg, int tid), void *arg);

/* Inside fn: waits for all. Spins briefly, then sleeps. */
void team_barrier(struct team *t, int tid);

/* Work of a phase, taken unit by unit so that a disturbed thread takes less of it. Returns the first of up to `step`
 * units, or -1 when none is left. `phase` counts up from 0 in a run and never repeats; each phase has its own counter.
 */
#define TEAM_PHASES 4096
int64_t team_take(struct team *t, int phase, int64_t n_unit, int64_t step);

#endif
