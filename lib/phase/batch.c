/* The rows of a step: prompts in chunks and newest tokens, in any mix; then logits, sampling and prompt scores. */
#include <stdlib.h>

#include "phase/stage.h"

struct entry {
    struct request *q;
    bool sampled; /* this step ends with a new token */
};

#define SAMPLED_ROWS 256 /* a call of engine_sample: its results are held at once; a multiple of 8 */

struct row { /* one row of logits and what it is for */
    struct entry *e;
    int64_t position; /* of the token that the row predicts */
    bool last;        /* of its chunk */
};

struct batch {
    struct stage *s;
    struct entry *entry;        /* [cap] */
    struct engine_chunk *chunk; /* [cap] */
    struct row *row;            /* [cap] wanted rows */
    struct engine_row *sampled; /* [SAMPLED_ROWS] */
    int64_t n, n_row, n_want, cap;
};

int batch_new(struct err *e, struct batch **out, struct stage *s)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, "a batch", sizeof *b);
    b->s = s;
    b->cap = engine_row_max(s->g);
    b->entry = calloc((size_t)b->cap, sizeof *b->entry);
    b->chunk = calloc((size_t)b->cap, sizeof *b->chunk);
    b->row = calloc((size_t)b->cap, sizeof *b->row);
    b->sampled = calloc(SAMPLED_ROWS, sizeof *b->sampled);
    if (!b->entry || !b->chunk || !b->row || !b->sampled) {
        err_nomem(e, "a batch", (size_t)b->cap * (sizeof *b->entry + sizeof *b->chunk + sizeof *b->row));
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
    free(b->entry);
    free(b->chunk);
    free(b->row);
    free(b->sampled);
    free(b);
}

void batch_clear(struct batch *b)
{
    b->n = b->n_row = b->n_want = 0;
}

int64_t batch_room(const struct batch *b)
{
    return b->cap - b->n_row;
}

int64_t batch_n(const struct batch *b)
{
    return b->n;
}

struct request *batch_at(const struct batch *b, int64_t i)
{
    return b->entry[i].q;
}

bool batch_sampled(const struct batch *b, int64_t i)
{
    return b->entry[i].sampled;
}

const struct engine_chunk *batch_chunk(const struct batch *b, int64_t i)
{
    return &b->chunk[i];
}

static struct engine_chunk *add(struct batch *b, struct request *q, int64_t n, enum engine_want want)
{
    struct entry *en = &b->entry[b->n];
    struct engine_chunk *c = &b->chunk[b->n++];
    *en = (struct entry){.q = q};
    *c = (struct engine_chunk){.kv = &q->kv, .n = n, .pos = q->n_kv, .want = want, .n_prompt = q->r->n_id};
    b->n_row += n;
    int64_t wanted = want == ENGINE_ALL ? n : want == ENGINE_LAST;
    for (int64_t i = 0; i < wanted; i++)
        b->row[b->n_want++] = (struct row){en, c->pos + n - wanted + i + 1, i == wanted - 1};
    return c;
}

void batch_prompt(struct batch *b, struct request *q, int64_t most)
{
    int64_t left = (int64_t)q->r->n_id - q->n_kv, room = batch_room(b), n = left;
    n = n < room ? n : room;
    n = n < most ? n : most;
    if (n <= 0)
        return;
    bool sample_now = n == left && q->max_new && !q->has_first;
    struct engine_chunk *c = add(b, q, n, q->want_prompt ? ENGINE_ALL : sample_now ? ENGINE_LAST : ENGINE_NONE);
    c->ids = q->r->ids + q->n_kv;
    b->entry[b->n - 1].sampled = sample_now;
}

void batch_token(struct batch *b, struct request *q)
{
    struct engine_chunk *c = add(b, q, 1, ENGINE_LAST);
    c->ids = &q->last;
    b->entry[b->n - 1].sampled = true;
}

void batch_sequence(struct batch *b, struct request *q, int64_t most)
{
    int64_t left = q->n_all - q->n_kv, room = batch_room(b), n = left;
    n = n < room ? n : room;
    n = n < most ? n : most;
    if (n <= 0)
        return;
    bool sample_now = n == left && q->max_new, score_now = q->want_prompt && q->n_kv + 1 < (int64_t)q->r->n_id;
    struct engine_chunk *c = add(b, q, n, score_now ? ENGINE_ALL : sample_now ? ENGINE_LAST : ENGINE_NONE);
    c->ids = q->all + q->n_kv;
    b->entry[b->n - 1].sampled = sample_now;
}

/* What is asked of a row of logits. */
static struct engine_row ask(const struct row *r)
{
    const struct request *q = r->e->q;
    struct engine_row w = {.position = r->position, .prompt = q->r->ids, .n_prompt = q->r->n_id};
    size_t n_answer = 0, n_ban = 0;
    if (q->answer) {
        w.answer = answer_ids(q->answer, &n_answer);
        w.ban = answer_banned(q->answer, &n_ban);
        w.n_answer = (int64_t)n_answer;
        w.n_ban = (int64_t)n_ban;
    }
    if (r->position < q->r->n_id) {
        w.use = ENGINE_SCORE;
        w.n_top = q->pos.n_top;
    } else if (r->e->sampled && r->last) {
        w.use = ENGINE_CHOOSE;
        w.params = &q->sp;
    }
    return w;
}

static void take(const struct row *r, const struct engine_row *w)
{
    struct request *q = r->e->q;
    if (w->err.code)
        q->err = w->err;
    else if (w->use == ENGINE_SCORE)
        logprob_of(&q->pos.lp[r->position], q->pos.top + r->position * q->pos.n_top, &w->out);
    else if (w->use == ENGINE_CHOOSE)
        q->now = w->out;
}

int batch_run(struct err *e, struct batch *b, engine_layer_fn *layer_done, void *arg)
{
    int rc = engine_step(e, b->s->g, b->chunk, b->n, layer_done, arg);
    for (int64_t at = 0; !rc && at < b->n_want; at += SAMPLED_ROWS) {
        int64_t n = b->n_want - at < SAMPLED_ROWS ? b->n_want - at : SAMPLED_ROWS;
        for (int64_t i = 0; i < n; i++)
            b->sampled[i] = ask(&b->row[at + i]);
        rc = engine_sample(e, b->s->g, b->sampled, at, n);
        for (int64_t i = 0; !rc && i < n; i++)
            take(&b->row[at + i], &b->sampled[i]);
    }
    for (int64_t i = 0; !rc && i < b->n; i++)
        b->entry[i].q->n_kv += b->chunk[i].n;
    return rc;
}
