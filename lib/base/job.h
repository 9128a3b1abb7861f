/*
 * One background thread for work that would block an event loop: long computation, or blocking calls. Jobs run one
 * after another in the order in which they were added; the end of each is reported in the loop's thread. Only that
 * thread calls these functions.
 *
 * A job is a member of the caller's own struct; the queue allocates nothing. From job_add until `done` is called the
 * job belongs to the queue, and what `run` uses belongs to the background thread.
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
    /* Called in the loop's thread; may free the job or add it again. ran is false if the job was cancelled before it
     * started. */
    void (*done)(void *arg, bool ran);
    void *arg;
    size_t n_bytes; /* memory that the job holds, counted against bytes_max */
    struct list node;
    bool cancelled, ran;
};

/* Starts the thread, with all signals blocked. bytes_max: limit of the n_bytes of waiting and running jobs together.
 * what: name of the jobs in error texts, such as "long prompts"; not copied. */
int job_queue_open(struct err *e, struct job_queue **out, struct loop *l, size_t bytes_max, const char *what);

/* Cancels jobs that have not started, waits for the running one, and calls `done` of each. No job is accepted
 * meanwhile. Must not be called from a `done`. */
void job_queue_close(struct job_queue *q);

/* The caller has set run, done, arg and n_bytes. The job is accepted if none waits or runs, or if n_bytes fits below
 * bytes_max. Otherwise ERR_NO, and the job stays the caller's. */
int job_add(struct err *e, struct job_queue *q, struct job *j);

/* A job that has not started will not run; a running one is not stopped. `done` is called in both cases, later. */
void job_cancel(struct job_queue *q, struct job *j);

size_t job_count(const struct job_queue *q); /* jobs whose `done` has not been called yet */

#endif
