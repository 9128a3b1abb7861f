/*
 * The scheduler as a pure state machine: event frames in, decision frames out, with the clock as an input. It has no
 * sockets, no threads and no clock of its own; a service, a filter and a simulator are loops around three calls.
 *
 *     sched_event(s, frame) …       all events of one instant; frame.at_ns moves the clock, which never goes back
 *     sched_decide(s)               runs timers, then the policy; decisions go to the sink, one batch an instant
 *     sched_next_ns(s)              when to call sched_decide although no event has arrived
 *
 * State: a queue with priorities and deadlines; the workers that have joined; which store caches which blocks; every
 * request, from its submit until no worker has an attempt of it. An attempt is one run of a request on a worker.
 *
 * A request waits (for prefill, or prefilled for decode), runs (prefill, decode, or whole: both on one worker), or has
 * ended for one reason. Invariant: submitted = ended by reason + running + waiting. A report of an old attempt closes
 * that attempt and has no other effect. When a worker disconnects, its requests are queued again and their retries are
 * counted; the next work item has the tokens that were delivered. A cancelled request is kept while a worker has an
 * attempt of it.
 *
 * Work items (frame `order`) and controls are emitted when they are decided, and reach their worker in that order. A
 * worker's capacity frame states how many work items since its join it includes; the capacity for later ones is
 * subtracted here. No work item is decided for a worker without capacity, or whose session is full (sched_worker_full).
 *
 * After a new session a worker joins with the work items it runs, and a gateway submits its requests again (`again`,
 * with the tokens it received). After a restart of the scheduler the side that comes first waits `grace_ms` for the
 * other. Then a request is queued again, and an attempt that no gateway has claimed is cancelled. A work item that the
 * scheduler no longer wants is cancelled at the join.
 *
 * Frames passed to a sink are borrowed until it returns. One thread.
 */
#ifndef SCHED_H
#define SCHED_H

#include "sched/policy.h"
#include "wire/wire.h"

#define SCHED_SETTINGS_MAX 64

struct sched;

struct sched_sink {
    void (*emit)(void *arg, const struct wire_frame *decision); /* NULL: decisions are dropped */
    void *arg;
    /* No worker will take the sequence of this transfer handle: its store may free it. NULL: the store ends it after
     * its TTL. */
    void (*release)(void *arg, const char *store, struct wire_bytes handle);
};

int sched_new(struct err *e, struct sched **out, const struct sched_policy *p, const struct sched_sink *sink);
void sched_free(struct sched *s);
void sched_set_sink(struct sched *s, const struct sched_sink *sink);

/* ERR_PROTO: the event is invalid (an unknown word, a setting of an unknown worker); it had no effect and the caller
 * may go on. Frames of a worker that has not joined return 0: they are refused or counted as stale. ERR_SYS: no memory.
 */
int sched_event(struct err *e, struct sched *s, const struct wire_frame *f);
int sched_decide(struct err *e, struct sched *s);
uint64_t sched_next_ns(const struct sched *s); /* UINT64_MAX: no timer is set */

/* full: the worker's session accepts no more frames now. No effect on a worker that has not joined. */
void sched_worker_full(struct sched *s, struct wire_str name, bool full);

/* Changes a setting of scheduler or policy. ERR_USAGE: neither has it. */
int sched_set(struct err *e, struct sched *s, const char *name, double value);

void sched_stat(const struct sched *s, struct wire_stat *out);

/* Runs the state machine as a filter: events from fd_in, decisions to fd_out, one batch an instant, in the time of the
 * events. Frames, or JSON lines. An invalid event is logged and skipped. */
struct sched_filter {
    int fd_in, fd_out;
    bool jsonl, stat; /* stat: emit a stat frame at the end */
    const char *prog;
    void (*log)(void *arg, const char *text);
    void *log_arg;
};
int sched_run_filter(struct err *e, struct sched *s, const struct sched_filter *f);

#endif
