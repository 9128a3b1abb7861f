/*
 * The main loop: it accepts requests, computes a step, and outputs the results. Private to lib/phase.
 *
 * prefill as a filter, decode as a filter and a worker of the scheduler run the same loop. They differ in struct
 * runner_io: the source of requests, the memory for KV, and the sink of results. A runner is the first member of the
 * struct that implements these, so the functions can reach their own state.
 *
 * One thread uses a runner and its requests. The runner owns a request from runner_add until `release`.
 */
#ifndef PHASE_RUNNER_H
#define PHASE_RUNNER_H

#include "phase/batch.h"
#include "phase/request.h"

struct runner;

struct runner_io {
    /* ---- the source ---- */

    /* Adds the requests that have arrived, with runner_add. idle: the last step had nothing to compute, so the call may
     * block. *over: no request is left, and none will arrive. */
    int (*take)(struct err *e, struct runner *r, bool idle, bool *over);
    /* The request is closed: releases its slots, and frees it. */
    void (*release)(struct runner *r, struct request *q);

    /* ---- KV slots ---- */

    /* The next step needs at most so many more blocks. May be NULL. */
    void (*expect)(struct runner *r, int64_t blocks);
    /* Allocates slots for the next *rows ids of q; *rows is set to the number of ids that have a slot. NULL: each
     * request has all its slots. */
    int (*slots)(struct err *e, struct runner *r, struct request *q, int64_t *rows);
    /* After a step, before its results are used: whether q owned the KV that it read. If not, the results are dropped,
     * and the function has reset q, so that it is computed again. NULL: always true. */
    bool (*valid)(struct runner *r, struct request *q);

    /* ---- the sink ---- */

    engine_layer_fn *layer_done; /* arg: the runner; may be NULL */
    /* A step was computed and took ns; its results are output next. May be NULL. */
    void (*computed)(struct runner *r, uint64_t ns);
    /* Outputs a part of an answer: the prompt itself, or a new token. NULL: there is no output; each request is
     * transferred when its prompt is computed. */
    int (*out)(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
    /* The results of a step were output, and q continues. May be NULL. */
    int (*progress)(struct err *e, struct runner *r, struct request *q);
    /* One of these three is called when q ends here: complete, failed, or transferred. The runner closes q afterwards.
     */
    int (*end)(struct err *e, struct runner *r, struct request *q, struct wire_frame *f);
    int (*fail)(struct err *e, struct runner *r, struct request *q); /* with q->err */
    int (*transfer_out)(struct err *e, struct runner *r,
                        struct request *q); /* transfer; with its first token, if any */
    /* All results of a step were output. May be NULL. */
    int (*flush)(struct err *e, struct runner *r);
};

struct runner {
    struct stage s;
    const struct runner_io *io;
    struct request *head; /* by priority, then by arrival */
    int64_t n;            /* requests in the list, including closed ones */
};

/* Runs until take sets *over, or an error. */
int runner_run(struct err *e, struct runner *r);

/* Adds a request. If it has failed, has its first token already, or needs no step, that is output at once, which may
 * close the request. */
int runner_add(struct err *e, struct runner *r, struct request *q);
int runner_end(struct err *e, struct runner *r, struct request *q, enum answer_end end);
int runner_fail(struct err *e, struct runner *r, struct request *q);
/* Ends the computation of q; it is released before the next step. */
void runner_close(struct request *q);
/* Releases the requests that are closed. */
void runner_sweep(struct runner *r);

#endif
