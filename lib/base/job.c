#include "base/job.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/loop.h"

struct job_queue {
    const char *what;
    size_t bytes_max;
    size_t n_job; /* used by the loop's thread only */
    struct loop_event ended;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t lock; /* protects the fields below, and `cancelled` and `ran` of the jobs */
    pthread_cond_t work;
    struct list waiting, over;
    size_t n_bytes; /* of jobs that wait or run */
    bool stop;
};

static void *run_jobs(void *arg)
{
    struct job_queue *q = arg;
    pthread_mutex_lock(&q->lock);
    for (;;) {
        while (list_empty(&q->waiting) && !q->stop)
            pthread_cond_wait(&q->work, &q->lock);
        if (list_empty(&q->waiting))
            break;
        struct job *j = list_entry(list_pop_front(&q->waiting), struct job, node);
        j->ran = !j->cancelled && !q->stop;
        if (j->ran) {
            pthread_mutex_unlock(&q->lock);
            j->run(j->arg);
            pthread_mutex_lock(&q->lock);
        }
        q->n_bytes -= j->n_bytes;
        list_push_back(&q->over, &j->node);
        loop_event_raise(&q->ended);
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* One at a time: `done` may add jobs; jobs that end meanwhile raise the event again. */
static void report(void *arg)
{
    struct job_queue *q = arg;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        struct list *n = list_pop_front(&q->over);
        pthread_mutex_unlock(&q->lock);
        if (!n)
            return;
        struct job *j = list_entry(n, struct job, node);
        q->n_job--;
        j->done(j->arg, j->ran);
    }
}

static int start(struct err *e, struct job_queue *q)
{
    sigset_t all, was;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int bad = pthread_create(&q->thread, NULL, run_jobs, q);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    q->has_thread = !bad;
    return bad ? err_set(e, ERR_SYS, "%s: cannot create the background thread: %s", q->what, strerror(bad)) : 0;
}

int job_queue_open(struct err *e, struct job_queue **out, struct loop *l, size_t bytes_max, const char *what)
{
    struct job_queue *q = calloc(1, sizeof *q);
    *out = NULL;
    if (!q)
        return err_nomem(e, what, sizeof *q);
    q->what = what;
    q->bytes_max = bytes_max;
    list_init(&q->waiting);
    list_init(&q->over);
    loop_event_init(l, &q->ended, report, q);
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->work, NULL);
    int rc = start(e, q);
    if (rc)
        job_queue_close(q);
    else
        *out = q;
    return rc;
}

void job_queue_close(struct job_queue *q)
{
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stop = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    if (q->has_thread)
        pthread_join(q->thread, NULL);
    report(q);
    loop_event_cancel(&q->ended);
    pthread_mutex_destroy(&q->lock);
    pthread_cond_destroy(&q->work);
    free(q);
}

int job_add(struct err *e, struct job_queue *q, struct job *j)
{
    pthread_mutex_lock(&q->lock);
    size_t before = q->n_bytes;
    bool room = !q->stop && (!before || (before < q->bytes_max && j->n_bytes <= q->bytes_max - before));
    if (room) {
        j->cancelled = j->ran = false;
        q->n_bytes += j->n_bytes;
        list_push_back(&q->waiting, &j->node);
        pthread_cond_signal(&q->work);
    }
    pthread_mutex_unlock(&q->lock);
    if (!room)
        return err_set(e, ERR_NO, "%zu bytes of %s are queued already: the limit is %zu; retry later", before, q->what,
                       q->bytes_max);
    q->n_job++;
    return 0;
}

void job_cancel(struct job_queue *q, struct job *j)
{
    pthread_mutex_lock(&q->lock);
    j->cancelled = true;
    pthread_mutex_unlock(&q->lock);
}

size_t job_count(const struct job_queue *q)
{
    return q->n_job;
}
