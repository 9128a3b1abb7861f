/* decode as a filter: prompts with their KV in, answers out. Continuous batching: each step takes the newest token of
 * every answer that grows, then prompts in chunks where rows are left. */
#include "phase/decode.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proc/proc.h"

/* Takes a request off the held list and frees what it held. */
static void let_go(struct decode *d, struct request *q, bool ok)
{
    pthread_mutex_lock(&d->lock);
    struct request **at = &d->held;
    while (*at != q)
        at = &(*at)->next;
    *at = q->next;
    if (!q->next)
        d->held_tail = at;
    d->n_held--;
    d->n_ok += ok;
    d->n_error += !ok;
    kv_table_release(&q->kv, d->s.pool);
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    request_free(q, &d->s);
}

static int fail(struct err *e, struct decode *d, struct request *q)
{
    struct wire_frame f;
    error_frame(&f, q);
    int rc = wire_write(e, d->s.out, &f);
    let_go(d, q, false);
    return rc;
}

static int finish(struct err *e, struct decode *d, struct request *q, enum answer_end end)
{
    uint64_t now = proc_now_ns();
    size_t n_answer = 0;
    if (!q->begun) /* no token was asked for: the prompt's end is all there is */
        q->first_ns = q->last_ns = now;
    if (q->answer)
        answer_ids(q->answer, &n_answer);
    uint32_t before = q->given_first ? q->n_span : q->r->n_span;
    if (before > WIRE_SPANS_MAX - 2) /* room for two more; one request's many spans are no reason to end the stream */
        before = WIRE_SPANS_MAX - 2;
    struct wire_span *span = malloc((before + 2) * sizeof *span);
    if (!span)
        return err_nomem(e, "spans", (before + 2) * sizeof *span);
    if (before)
        memcpy(span, q->given_first ? q->span : q->r->span, before * sizeof *span);
    uint32_t n = before;
    if (q->prompt_end_ns) { /* the prompt was computed here */
        span[n] = span_here("prefill");
        span[n].queued_ns = q->queued_ns;
        span[n].start_ns = q->start_ns;
        span[n].end_ns = q->prompt_end_ns;
        span[n++].tokens = q->r->n_id;
    }
    span[n] = span_here(d->s.o->prog);
    span[n].queued_ns = q->queued_ns;
    span[n].start_ns = q->prompt_end_ns ? q->prompt_end_ns : q->first_ns;
    span[n].end_ns = now;
    span[n].tokens = n_answer;
    span[n++].bytes = q->bytes_in;
    struct wire_frame f;
    end_frame(&f, q, end);
    f.end.load_ns = q->load_ns > d->s.load_ns ? q->load_ns : d->s.load_ns;
    f.end.span = span;
    f.end.n_span = n;
    int rc = wire_write(e, d->s.out, &f);
    free(span);
    let_go(d, q, true);
    return rc;
}

/* The prompt itself, where echo is asked for. */
static int echo(struct err *e, struct decode *d, struct request *q)
{
    struct wire_frame f;
    char *text;
    int rc = echo_frame(e, &f, &text, &d->s, q);
    if (!rc)
        rc = wire_write(e, d->s.out, &f);
    free(text);
    return rc;
}

/* One more token of an answer. *done: that was the last, and q is gone. */
static int give(struct err *e, struct decode *d, struct request *q, const struct sample_result *r, bool *done)
{
    const char *text;
    size_t n;
    enum answer_end end;
    int rc = answer_push(e, q->answer, r->id, &text, &n, &end);
    if (rc)
        return rc;
    q->last = r->id;
    q->last_ns = proc_now_ns();
    if (!q->begun)
        q->first_ns = q->last_ns;
    q->begun = true;
    struct wire_top top[SAMPLE_TOP_MAX];
    struct wire_logprob lp;
    logprob_of(&lp, top, r);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = q->r->seq,
                              .index = q->r->index,
                              .id = q->r->id,
                              .ids = &q->last,
                              .n_id = 1,
                              .text = {text, n},
                              .lp = &lp,
                              .n_lp = q->sp.logprobs >= 0};
    rc = wire_write(e, d->s.out, &f);
    *done = end != ANSWER_OPEN;
    return rc || !*done ? rc : finish(e, d, q, end);
}

/* What a request says before its next token is computed. *done: it has ended. */
static int speak(struct err *e, struct decode *d, struct request *q, bool *done)
{
    *done = true;
    if (q->err.code)
        return fail(e, d, q);
    bool whole = q->n_kv >= q->r->n_id || (q->given_first && q->max_new <= 1);
    if (!whole) {
        *done = false;
        return 0;
    }
    if (shows_prompt(q) && !q->echoed) {
        int rc = echo(e, d, q);
        if (rc)
            return rc;
    }
    q->echoed = true;
    if (!q->max_new)
        return finish(e, d, q, ANSWER_LENGTH);
    *done = false;
    return q->has_first && !q->begun ? give(e, d, q, &q->first, done) : 0;
}

/* Waits for work; collects up to `cap` requests the loop may touch. Sets *over at the end of the input. */
static int64_t collect(struct decode *d, struct request **active, int64_t cap, bool *over, bool *bye)
{
    int64_t n = 0;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->waiting && decode_ready(d->waiting) && d->s.pool && decode_admit(d, d->waiting)) {
            struct request *q = d->waiting;
            d->waiting = q->next;
            if (!d->waiting)
                d->waiting_tail = &d->waiting;
            d->n_waiting--;
            decode_push(&d->held_tail, q);
            d->n_held++;
            pthread_cond_signal(&d->room);
        }
        for (struct request *q = d->held; q && n < cap; q = q->next)
            if (decode_ready(q))
                active[n++] = q;
        *bye = d->bye && !d->held && !d->waiting;
        *over = d->in_err.code || (d->end && !d->held && !d->waiting);
        if (n || *bye || *over)
            break;
        pthread_cond_wait(&d->work, &d->lock);
    }
    pthread_mutex_unlock(&d->lock);
    return n;
}

static void pack(struct decode *d, struct request **active, int64_t n)
{
    struct batch *b = d->s.batch;
    batch_clear(b);
    for (int64_t i = 0; i < n; i++)
        if (active[i]->begun)
            batch_token(b, active[i]);
    for (int64_t i = 0; i < n && batch_room(b) > 0; i++)
        if (!active[i]->begun) {
            if (!active[i]->start_ns)
                active[i]->start_ns = proc_now_ns();
            batch_prompt(b, active[i], INT64_MAX);
        }
}

static int step(struct err *e, struct decode *d, struct request **active, int64_t n)
{
    int64_t live = 0;
    for (int64_t i = 0; i < n; i++) {
        bool done;
        int rc = speak(e, d, active[i], &done);
        if (rc)
            return rc;
        if (!done)
            active[live++] = active[i];
    }
    if (!live)
        return 0;
    pack(d, active, live);
    int rc = batch_run(e, d->s.batch, NULL, NULL);
    for (int64_t i = 0; !rc && i < batch_n(d->s.batch); i++) {
        struct request *q = batch_at(d->s.batch, i);
        bool done;
        if (!q->begun && q->n_kv >= q->r->n_id)
            q->prompt_end_ns = proc_now_ns();
        if (q->err.code)
            rc = fail(e, d, q);
        else if (batch_sampled(d->s.batch, i)) {
            if (!q->begun && shows_prompt(q) && !q->echoed) {
                rc = echo(e, d, q);
                q->echoed = true;
            }
            if (!rc)
                rc = give(e, d, q, &q->now, &done);
        }
    }
    return rc;
}

static int end_stream(struct err *e, struct decode *d)
{
    struct wire_frame f = {.kind = WIRE_BYE};
    f.bye = (struct wire_bye){
        .from = {d->s.o->prog, strlen(d->s.o->prog)}, .n_ok = d->n_ok, .n_error = d->n_error, .extra = d->last.extra};
    int rc = wire_write(e, d->s.out, &f);
    pthread_mutex_lock(&d->lock);
    d->n_ok = d->n_error = 0;
    d->bye = false;
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    return rc;
}

static int run(struct err *e, struct decode *d)
{
    int64_t cap = (int64_t)d->s.o->seqs;
    struct request **active = malloc((size_t)cap * sizeof *active);
    if (!active)
        return err_nomem(e, "the batch", (size_t)cap * sizeof *active);
    int rc = 0;
    for (bool over = false, bye = false; !rc && !over;) {
        int64_t n = collect(d, active, cap, &over, &bye);
        if (over && d->in_err.code) { /* once over, the input thread writes it no more */
            *e = d->in_err;
            rc = e->code;
        } else if (n) {
            rc = step(e, d, active, n);
        } else if (bye) {
            rc = end_stream(e, d);
        }
    }
    free(active);
    return rc;
}

static void drop_list(struct decode *d, struct request *q)
{
    while (q) {
        struct request *next = q->next;
        request_free(q, &d->s);
        q = next;
    }
}

static void close_all(struct decode *d)
{
    drop_list(d, d->held);
    drop_list(d, d->waiting);
    wire_reader_free(d->in);
    stage_close(&d->s);
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
    d->waiting_tail = &d->waiting;
    d->held_tail = &d->held;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->room, NULL);
    kern_thread_init();
    int rc = stage_open(e, &d->s, o);
    if (!rc)
        rc = wire_reader_new(e, &d->in, o->fd_in, "stdin");
    if (!rc && pthread_create(&d->thread, NULL, decode_input, d))
        rc = err_sys(e, "cannot start the input thread");
    if (rc) {
        close_all(d);
        return rc;
    }
    rc = run(e, d);
    if (!rc)
        stage_say_profile(&d->s);
    pthread_mutex_lock(&d->lock);
    bool ended = d->end;
    d->quit = true;
    pthread_cond_signal(&d->room);
    pthread_mutex_unlock(&d->lock);
    if (rc && !ended) /* the input thread may sit in a read that nobody ends but the exit of the process */
        return rc;
    pthread_join(d->thread, NULL);
    close_all(d);
    return rc;
}
