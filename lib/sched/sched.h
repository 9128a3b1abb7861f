/*
 * The scheduler as a pure machine: event frames in, decision frames out, the clock an input. No sockets, no threads, no
 * time of its own: a service, a filter and a simulator are thin loops around the same three calls.
 *
 *     sched_event(s, frame) …       all events of one instant; frame.at_ns moves the clock, which never goes back
 *     sched_decide(s)               timers, then the policy; decisions leave through the sink, one batch an instant
 *     sched_next_ns(s)              when to decide again though nothing has happened
 *
 * What it keeps: a queue with priorities and deadlines; workers, from join to gone; which store holds which blocks;
 * every request from submit until no worker has an attempt of it.
 *
 * A request waits (for prefill, or prefilled for decode), runs (prefill, decode, or whole: both on one worker), or has
 * ended by exactly one reason: submitted = ended by reason + running + waiting, always. A report of an old attempt
 * closes that attempt and is otherwise dropped. When a worker is gone its requests wait again with the tokens already
 * delivered in the next order, and one more retry each. A request that was cancelled stays known while a worker has an
 * attempt of it.
 *
 * Orders and controls leave when they are decided, and reach their worker in this order. A worker's capacity counts the
 * orders it has received since its join; the room that later ones take is subtracted. No order is decided for a worker
 * without room, or while its session takes no more (sched_worker_full).
 *
 * When a session is new, a worker joins with what it runs, and a gateway submits again what it wants (`again`, with the
 * tokens that came). After a restart of the scheduler whoever comes first waits `grace_ms` for the other; then a
 * request is queued again, and a run that no gateway submitted is cancelled. A run that the scheduler does not want is
 * cancelled at once.
 *
 * Frames that a sink gets are borrowed until it returns. One thread.
 */
#ifndef SCHED_H
#define SCHED_H

#include "sched/policy.h"
#include "wire/wire.h"

#define SCHED_KNOBS_MAX 64

struct sched;

struct sched_sink {
    void (*emit)(void *arg, const struct wire_frame *decision); /* NULL: decisions are dropped */
    void *arg;
    /* No worker will take the sequence of this handle at the store. NULL: the store ends it by its TTL. */
    void (*let_go)(void *arg, const char *store, struct wire_bytes handle);
};

int sched_new(struct err *e, struct sched **out, const struct sched_policy *p, const struct sched_sink *sink);
void sched_free(struct sched *s);
void sched_set_sink(struct sched *s, const struct sched_sink *sink);

/* ERR_PROTO: the event makes no sense (an unknown word, a worker that never joined); nothing has changed and the loop
 * may go on. ERR_SYS: no memory. */
int sched_event(struct err *e, struct sched *s, const struct wire_frame *f);
int sched_decide(struct err *e, struct sched *s);
uint64_t sched_next_ns(const struct sched *s); /* UINT64_MAX: nothing to wait for */
uint64_t sched_now_ns(const struct sched *s);

/* The worker's session takes no more frames now, or does again. No effect on a worker that has not joined. */
void sched_worker_full(struct sched *s, struct wire_str name, bool full);

/* A knob of machine or policy; ERR_USAGE names one that neither has. */
int sched_knob(struct err *e, struct sched *s, const char *name, double value);

void sched_stat(const struct sched *s, struct wire_stat *out);

/* The same as a program without sockets: events on fd_in, decisions on fd_out, in the time of the events, a batch an
 * instant. Frames, or JSON lines. A bad event is said by `say` and skipped. */
struct sched_filter {
    int fd_in, fd_out;
    bool jsonl, stat; /* stat: a stat frame at the end */
    const char *prog;
    void (*say)(void *arg, const char *text);
    void *say_arg;
};
int sched_run_filter(struct err *e, struct sched *s, const struct sched_filter *f);

#endif
