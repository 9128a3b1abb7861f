#include "phase/runner.h"

#include <stdlib.h>

#include "base/time.h"

/* ---- the list ---- */

static void insert(struct runner *r, struct request *q)
{
    struct request **at = &r->head;
    while (*at && (*at)->priority <= q->priority)
        at = &(*at)->next;
    q->next = *at;
    *at = q;
    r->n++;
}

void runner_close(struct request *q)
{
    q->state = REQUEST_CLOSED;
}

void runner_sweep(struct runner *r)
{
    for (struct request **at = &r->head; *at;) {
        struct request *q = *at;
        if (q->state != REQUEST_CLOSED) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        r->n--;
        r->io->release(r, q);
    }
}

/* ---- output ---- */

/* Outputs the prompt before the first token, if the request wants any of it. */
static int show_prompt(struct err *e, struct runner *r, struct request *q)
{
    struct wire_frame f;
    char *text;
    if (q->echoed || !shows_prompt(q))
        return 0;
    q->echoed = true;
    int rc = echo_frame(e, &f, &text, &r->s, q);
    rc = rc ? rc : r->io->out(e, r, q, &f);
    free(text);
    return rc;
}

int runner_end(struct err *e, struct runner *r, struct request *q, enum answer_end end)
{
    struct wire_frame f;
    struct wire_span *span = NULL;
    int rc = show_prompt(e, r, q);
    rc = rc ? rc : end_frame(e, &f, &span, &r->s, q, end);
    rc = rc ? rc : r->io->end(e, r, q, &f);
    free(span);
    runner_close(q);
    return rc;
}

int runner_fail(struct err *e, struct runner *r, struct request *q)
{
    int rc = r->io->fail(e, r, q);
    runner_close(q);
    return rc;
}

static int transfer_out(struct err *e, struct runner *r, struct request *q)
{
    int rc = r->io->transfer_out(e, r, q);
    runner_close(q);
    return rc;
}

static int progress(struct err *e, struct runner *r, struct request *q)
{
    return r->io->progress ? r->io->progress(e, r, q) : 0;
}

/* Appends the chosen token to the answer, outputs it, and ends the answer if it was the last. */
static int output_token(struct err *e, struct runner *r, struct request *q)
{
    struct wire_frame f;
    struct wire_logprob lp;
    struct wire_top top[SAMPLE_TOP_MAX];
    enum answer_end end = ANSWER_OPEN;
    const char *text;
    size_t n_text;
    q->has_token = false;
    int rc = show_prompt(e, r, q);
    rc = rc ? rc : request_push(e, q, q->token.id, &text, &n_text, &end);
    if (rc)
        return rc;
    q->last_ns = time_now_ns();
    if (!q->first_ns)
        q->first_ns = q->last_ns;
    token_frame(&f, &lp, top, q, text, n_text);
    rc = r->io->out(e, r, q, &f);
    if (rc)
        return rc;
    if (end != ANSWER_OPEN)
        return runner_end(e, r, q, end);
    return q->transfers_out ? transfer_out(e, r, q) : progress(e, r, q);
}

int runner_add(struct err *e, struct runner *r, struct request *q)
{
    insert(r, q);
    if (q->err.code)
        return runner_fail(e, r, q);
    if (q->has_token)
        return output_token(e, r, q);
    return q->taken_ns && !q->max_new ? runner_end(e, r, q, ANSWER_LENGTH) : 0;
}

/* Processes the result of a step for one request. */
static int result(struct err *e, struct runner *r, struct request *q)
{
    if (r->io->valid && !r->io->valid(r, q)) {
        q->err = (struct err){0};
        q->has_token = false;
        return 0;
    }
    if (q->err.code)
        return runner_fail(e, r, q);
    bool whole = q->n_kv >= (int64_t)q->r->n_id;
    if (whole && !q->prompt_end_ns && !q->taken_ns)
        q->prompt_end_ns = time_now_ns();
    if (whole && !r->io->out)
        return transfer_out(e, r, q);
    if (q->has_token)
        return output_token(e, r, q);
    return whole && !q->max_new ? runner_end(e, r, q, ANSWER_LENGTH) : progress(e, r, q);
}

/* ---- a step ---- */

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Rows of a prompt in this step, at most `room`. *mixed: rows of prompts that share the step with decoding sequences.
 */
static int64_t prompt_rows(const struct request *q, int64_t room, int64_t *mixed)
{
    int64_t rows = least(q->n_ids - q->n_kv, room);
    if (q->transfers_out)
        return rows;
    if (q->chunk)
        rows = least(rows, q->chunk > *mixed ? q->chunk - *mixed : 0);
    *mixed += rows;
    return rows;
}

/* Plans a step: the newest token of each decoding sequence, then prompts in order, while rows are left. Returns the
 * number of rows; *blocks: blocks that they need beyond those they have. */
static int64_t plan(struct runner *r, int64_t *blocks)
{
    int64_t all = r->s.batch->room, room = all, mixed = 0;
    *blocks = 0;
    for (struct request *q = r->head; q; q = q->next) {
        q->rows = q->state == REQUEST_RUNS && request_grows(q) && room > 0;
        room -= q->rows;
    }
    for (struct request *q = r->head; q; q = q->next) {
        if (q->state == REQUEST_RUNS && !request_grows(q)) {
            q->rows = prompt_rows(q, room, &mixed);
            room -= q->rows;
        }
        int64_t more = q->rows ? blocks_of(q->n_kv + q->rows) - q->kv.n : 0;
        *blocks += more > 0 ? more : 0;
    }
    return all - room;
}

/* Adds the planned rows of a request to the step, as far as it gets slots. */
static int pack(struct err *e, struct runner *r, struct request *q)
{
    int64_t rows = q->rows;
    int rc = r->io->slots ? r->io->slots(e, r, q, &rows) : 0;
    if (rc || !rows)
        return rc;
    if (!q->start_ns)
        q->start_ns = time_now_ns();
    batch_add(r->s.batch, q, rows);
    return 0;
}

static int pack_all(struct err *e, struct runner *r)
{
    int64_t blocks;
    int rc = 0;
    batch_clear(r->s.batch);
    if (plan(r, &blocks) && r->io->expect)
        r->io->expect(r, blocks);
    for (int prompts = 0; prompts < 2; prompts++)
        for (struct request *q = r->head; q && !rc; q = q->next)
            if (q->rows && request_grows(q) == !prompts)
                rc = pack(e, r, q);
    return rc;
}

/* *idle: nothing could be computed. */
static int step(struct err *e, struct runner *r, bool *idle)
{
    *idle = true;
    if (!r->head)
        return 0;
    struct batch *b = r->s.batch;
    int rc = pack_all(e, r);
    if (rc || !b->n)
        return rc;
    *idle = false;
    uint64_t begun = time_now_ns();
    rc = batch_run(e, b, r->io->layer_done, r);
    if (!rc && r->io->computed)
        r->io->computed(r, time_now_ns() - begun);
    for (int64_t i = 0; i < b->n && !rc; i++)
        rc = result(e, r, b->q[i]);
    if (!rc && r->io->flush)
        rc = r->io->flush(e, r);
    runner_sweep(r);
    return rc;
}

int runner_run(struct err *e, struct runner *r)
{
    int rc = 0;
    for (bool idle = true, over = false; !rc && !over;) {
        rc = r->io->take(e, r, idle, &over);
        runner_sweep(r);
        if (!rc && !over)
            rc = step(e, r, &idle);
    }
    return rc;
}
