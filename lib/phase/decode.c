/* decode as a filter: prompts with their KV in, answers out. Continuous batching: each step takes the newest token of
 * each decoding sequence, then prompts in chunks while rows are left. */
#include "phase/decode.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"

static struct decode *decode_of(struct runner *r)
{
    return (struct decode *)r;
}

/* ---- the source ---- */

static void admit_waiting(struct decode *d)
{
    struct incoming *in;
    while (!list_empty(&d->waiting) && decode_ready(in = incoming_of(d->waiting.next)) && decode_admit(d, in)) {
        list_remove(&in->node);
        d->n_waiting--;
        list_push_back(&d->held, &in->node);
        d->n_held++;
        pthread_cond_signal(&d->room);
    }
}

static struct incoming *first_ready(struct decode *d)
{
    list_for_each (n, &d->held) {
        struct incoming *in = incoming_of(n);
        if (!in->running && decode_ready(in))
            return in;
    }
    return NULL;
}

/* The next request for the runner, or NULL; waits while the runner has no request. *bye: the stream and all its
 * requests have ended. *over: the input has ended too. */
static struct incoming *next_ready(struct decode *d, bool *bye, bool *over)
{
    struct incoming *in = NULL;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        admit_waiting(d);
        if (d->r.n < (int64_t)d->r.s.o->seqs)
            in = first_ready(d);
        bool none = !d->n_held && !d->n_waiting;
        *bye = d->bye && none;
        *over = d->in_err.code || (d->end && none);
        if (in || d->r.n || *bye || *over)
            break;
        pthread_cond_wait(&d->work, &d->lock);
    }
    if (in)
        in->running = true;
    pthread_mutex_unlock(&d->lock);
    return in;
}

static int end_stream(struct err *e, struct decode *d)
{
    struct wire_frame f;
    stage_bye(&d->r.s, &f, d->n_ok, d->n_error, &d->last);
    int rc = wire_write(e, d->r.s.out, &f);
    pthread_mutex_lock(&d->lock);
    d->n_ok = d->n_error = 0;
    d->bye = false;
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int take(struct err *e, struct runner *r, bool idle, bool *over)
{
    struct decode *d = decode_of(r);
    struct incoming *in;
    bool bye;
    int rc = 0;
    (void)idle;
    while (!rc && (in = next_ready(d, &bye, over)) && !*over) {
        in->q.state = REQUEST_RUNS;
        in->q.taken_ns = in->prefilled && !in->dropped ? time_now_ns() : 0;
        rc = runner_add(e, r, &in->q);
    }
    if (*over && d->in_err.code) { /* after *over the input thread no longer writes in_err */
        *e = d->in_err;
        rc = e->code;
    }
    return rc || *over || !bye ? rc : end_stream(e, d);
}

static void release(struct runner *r, struct request *q)
{
    struct decode *d = decode_of(r);
    struct incoming *in = (struct incoming *)q;
    pthread_mutex_lock(&d->lock);
    list_remove(&in->node);
    d->n_held--;
    d->n_ok += !q->err.code;
    d->n_error += q->err.code != 0;
    kv_table_release(&q->kv, r->s.pool);
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    decode_free(d, in);
}

/* ---- the sink ---- */

static int out(struct err *e, struct runner *r, struct request *q, struct wire_frame *f)
{
    (void)q;
    return wire_write(e, r->s.out, f);
}

static int fail(struct err *e, struct runner *r, struct request *q)
{
    struct wire_frame f;
    error_frame(&f, q);
    return wire_write(e, r->s.out, &f);
}

static const struct runner_io io = {.take = take, .release = release, .out = out, .end = out, .fail = fail};

static void free_list(struct decode *d, struct list *l)
{
    struct list *n;
    while ((n = list_pop_front(l)))
        decode_free(d, incoming_of(n));
}

static void close_all(struct decode *d)
{
    free_list(d, &d->held);
    free_list(d, &d->waiting);
    wire_reader_free(d->in);
    free(d->packed);
    stage_close(&d->r.s);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->room);
    free(d);
}

int phase_decode(struct err *e, const struct phase_opts *o)
{
    struct decode *d = calloc(1, sizeof *d);
    if (!d)
        return err_nomem(e, "decode", sizeof *d);
    d->r.io = &io;
    list_init(&d->waiting);
    list_init(&d->held);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->room, NULL);
    kern_thread_init();
    int rc = stage_open(e, &d->r.s, o);
    if (!rc)
        rc = wire_reader_new(e, &d->in, o->fd_in, "stdin");
    if (!rc && pthread_create(&d->thread, NULL, decode_input, d))
        rc = err_sys(e, "cannot start the input thread");
    if (rc) {
        close_all(d);
        return rc;
    }
    rc = runner_run(e, &d->r);
    if (!rc)
        stage_log_profile(&d->r.s);
    pthread_mutex_lock(&d->lock);
    bool ended = d->end;
    d->quit = true;
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    if (rc && !ended) /* the input thread may be blocked in a read until the process exits */
        return rc;
    pthread_join(d->thread, NULL);
    close_all(d);
    return rc;
}
