/*
 * One background thread for work that would keep an event loop from its descriptors: long computation, or calls that
 * block. Jobs run one after another in the order in which they were added; the end of each is reported in the loop's
 * thread. All functions are called by that thread.
 *
 * A job is a member of the caller's own struct; the queue allocates nothing. Between job_add and the call of `done` it
 * belongs to the queue, and what `run` uses belongs to the background thread.
 */
#ifndef BASE_JOB_H
#define BASE_JOB_H

#include <stdbool.h>
#include <stddef.h>

#include "base/list.h"
#include "err/err.h"

struct loop;
struct job_queue;

struct job {
    void (*run)(void *arg); /* in the background thread */
    /* In the loop's thread; the job may be freed or added again. ran false: it was cancelled before it began. */
    void (*done)(void *arg, bool ran);
    void *arg;
    size_t n_bytes; /* what it holds, for the bound of the queue */
    struct list node;
    bool cancelled, ran;
};

/* Starts the thread, with all signals blocked. bytes_max: what jobs that wait or run may hold together. what: for the
 * texts of errors, "long prompts"; not copied. */
int job_queue_open(struct err *e, struct job_queue **out, struct loop *l, size_t bytes_max, const char *what);

/* Cancels what has not begun, waits for the job that runs, and calls `done` of each; no job is accepted meanwhile. Not
 * from within a `done`. */
void job_queue_close(struct job_queue *q);

/* run, done, arg and n_bytes are set. A job is accepted if nothing waits or runs, or if it fits below bytes_max; else
 * ERR_NO, and the job stays the caller's. */
int job_add(struct err *e, struct job_queue *q, struct job *j);

/* A job that has not begun will not run; one that runs is not stopped. `done` is called either way, not from here. */
void job_cancel(struct job_queue *q, struct job *j);

size_t job_count(const struct job_queue *q); /* jobs whose `done` is still to be called */

#endif
