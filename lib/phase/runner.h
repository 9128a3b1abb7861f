/*
 * The loop that serves requests: it takes in what came, computes a step, and gives out the results. Private to
 * lib/phase.
 *
 * prefill as a filter, decode as a filter and a worker of the scheduler run the same loop. What differs between them is
 * struct runner_io: where requests come from, where KV slots come from, and where results go. A runner is the first
 * member of the struct that implements it, so that these functions reach their own state.
 *
 * A runner and its requests belong to one thread. A request belongs to the runner from runner_add until `release`.
 */
#ifndef PHASE_RUNNER_H
#define PHASE_RUNNER_H

#include "phase/batch.h"
#include "phase/request.h"

struct runner;

struct runner_io {
    /* ---- the source ---- */

    /* Takes in what came, with runner_add. idle: the last step had nothing to compute, so it may block. *over: no
     * request is left and none will come. */
    int (*take)(struct err *e, struct runner *r, bool idle, bool *over);
    /* The request is closed: gives back its slots, and frees it. */
    void (*release)(struct runner *r, struct request *q);

    /* ---- KV slots ---- */

    /* So many blocks will be needed for the next step, at most. May be NULL. */
    void (*expect)(struct runner *r, int64_t blocks);
    /* Slots for the next *rows ids of q; *rows becomes how many have one now. NULL: every request has all it needs. */
    int (*slots)(struct err *e, struct runner *r, struct request *q, int64_t *rows);
    /* After a step, before its results are used: the KV that q read was still its own. If not, the results are dropped
     * and q has been made ready to begin again. NULL: it always is. */
    bool (*valid)(struct runner *r, struct request *q);

    /* ---- the sink ---- */

    engine_layer_fn *layer_done; /* arg: the runner; may be NULL */
    /* A step was computed; it took ns. The results are given out next. May be NULL. */
    void (*computed)(struct runner *r, uint64_t ns);
    /* A piece of an answer: the prompt itself or a new token. NULL: nothing is given out here, every request is handed
     * over when its prompt is done. */
    int (*out)(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
    /* A step of q was given out, and it goes on. May be NULL. */
    int (*progress)(struct err *e, struct runner *r, struct request *q);
    /* Three ways to the end; the runner closes q afterwards. */
    int (*end)(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
    int (*fail)(struct err *e, struct runner *r, struct request *q);      /* by q->err */
    int (*hand_over)(struct err *e, struct runner *r, struct request *q); /* with its first token, if it has one */
    /* All results of a step were given out. May be NULL. */
    int (*flush)(struct err *e, struct runner *r);
};

struct runner {
    struct stage s;
    const struct runner_io *io;
    struct request *head; /* by priority, then in the order they came */
    int64_t n;            /* in the list, closed ones included */
};

/* Runs until take says that it is over. */
int runner_run(struct err *e, struct runner *r);

/* Adds a request. One that has failed, that has its first token already, or that needs no step at all gives that out
 * now, and may be closed by it. */
int runner_add(struct err *e, struct runner *r, struct request *q);
int runner_end(struct err *e, struct runner *r, struct request *q, enum answer_end end);
int runner_fail(struct err *e, struct runner *r, struct request *q);
/* Nothing more is computed for q; it is released before the next step. */
void runner_close(struct request *q);
/* Releases the requests that are closed. */
void runner_sweep(struct runner *r);

#endif
