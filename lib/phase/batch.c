#include "phase/batch.h"

#include <stdlib.h>

#define SAMPLED_ROWS 256 /* rows of one call of engine_sample, whose results are in memory at once; a multiple of 8 */

struct batch_row {
    struct request *q;
    int64_t position; /* of the token that the row predicts */
    bool choose;      /* that token is the next one of q */
};

int batch_new(struct err *e, struct batch **out, struct engine *g)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, "a batch", sizeof *b);
    b->g = g;
    b->cap = engine_row_max(g);
    b->q = calloc((size_t)b->cap, sizeof *b->q);
    b->chunk = calloc((size_t)b->cap, sizeof *b->chunk);
    b->row = calloc((size_t)b->cap, sizeof *b->row);
    b->sampled = calloc(SAMPLED_ROWS, sizeof *b->sampled);
    if (!b->q || !b->chunk || !b->row || !b->sampled) {
        err_nomem(e, "a batch", (size_t)b->cap * (sizeof *b->q + sizeof *b->chunk + sizeof *b->row));
        batch_free(b);
        return e->code;
    }
    *out = b;
    return 0;
}

void batch_free(struct batch *b)
{
    if (!b)
        return;
    free(b->q);
    free(b->chunk);
    free(b->row);
    free(b->sampled);
    free(b);
}

void batch_clear(struct batch *b)
{
    b->n = b->n_row = 0;
    b->room = b->cap;
}

void batch_add(struct batch *b, struct request *q, int64_t n)
{
    int64_t n_id = q->r->n_id;
    bool choose = q->n_kv + n == q->n_ids && q->max_new, score = q->want_prompt && q->n_kv + 1 < n_id;
    enum engine_want want = score ? ENGINE_ALL : choose ? ENGINE_LAST : ENGINE_NONE;
    b->q[b->n] = q;
    b->chunk[b->n++] = (struct engine_chunk){
        .kv = &q->kv, .ids = q->ids + q->n_kv, .n = n, .pos = q->n_kv, .want = want, .n_prompt = n_id};
    b->room -= n;
    for (int64_t i = want == ENGINE_ALL ? 1 : n; want && i <= n; i++)
        b->row[b->n_row++] = (struct batch_row){q, q->n_kv + i, choose && i == n};
}

/* The use of a row of logits. */
static struct engine_row use_of(const struct batch_row *r)
{
    const struct request *q = r->q;
    int64_t n_id = q->r->n_id;
    struct engine_row w = {.position = r->position,
                           .prompt = q->ids,
                           .n_prompt = n_id,
                           .answer = q->ids + n_id,
                           .n_answer = q->n_ids - n_id};
    size_t n_ban = 0;
    if (r->choose) {
        w.use = ENGINE_CHOOSE;
        w.params = &q->sp;
        w.ban = answer_banned(q->answer, &n_ban);
        w.n_ban = (int64_t)n_ban;
    } else if (r->position < n_id) {
        w.use = ENGINE_SCORE;
        w.n_top = q->pos.n_top;
    }
    return w;
}

static void take(const struct batch_row *r, const struct engine_row *w)
{
    struct request *q = r->q;
    if (w->err.code) {
        q->err = w->err;
    } else if (w->use == ENGINE_SCORE) {
        logprob_of(&q->pos.lp[r->position], q->pos.top + r->position * q->pos.n_top, &w->out);
    } else if (w->use == ENGINE_CHOOSE) {
        q->token = w->out;
        q->has_token = true;
    }
}

int batch_run(struct err *e, struct batch *b, engine_layer_fn *layer_done, void *arg)
{
    int rc = engine_step(e, b->g, b->chunk, b->n, layer_done, arg);
    for (int64_t at = 0; !rc && at < b->n_row; at += SAMPLED_ROWS) {
        int64_t n = b->n_row - at < SAMPLED_ROWS ? b->n_row - at : SAMPLED_ROWS;
        for (int64_t i = 0; i < n; i++)
            b->sampled[i] = use_of(&b->row[at + i]);
        rc = engine_sample(e, b->g, b->sampled, at, n);
        for (int64_t i = 0; !rc && i < n; i++)
            take(&b->row[at + i], &b->sampled[i]);
    }
    for (int64_t i = 0; !rc && i < b->n; i++)
        b->q[i]->n_kv += b->chunk[i].n;
    return rc;
}
