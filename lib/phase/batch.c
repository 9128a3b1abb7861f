/* The rows of a step: prompts in chunks and newest tokens, in any mix; then logits, sampling and prompt scores. */
#include <pthread.h>
#include <stdlib.h>

#include "phase/fake.h"
#include "phase/stage.h"

struct entry {
    struct request *q;
    bool sampled; /* this step ends with a new token */
};

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
    int64_t n, n_row, n_want, cap;
    int64_t row0;           /* first row of the present pass */
    pthread_mutex_t failed; /* guards q->err while rows are sampled */
};

int batch_new(struct err *e, struct batch **out, struct stage *s)
{
    struct batch *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, "a batch", sizeof *b);
    b->s = s;
    pthread_mutex_init(&b->failed, NULL);
    b->cap = s->fake ? (int64_t)s->o->batched_tokens : engine_row_max(s->g);
    b->entry = calloc((size_t)b->cap, sizeof *b->entry);
    b->chunk = calloc((size_t)b->cap, sizeof *b->chunk);
    b->row = calloc((size_t)b->cap, sizeof *b->row);
    if (!b->entry || !b->chunk || !b->row) {
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
    pthread_mutex_destroy(&b->failed);
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
    *c = (struct engine_chunk){.kv = &q->kv, .n = n, .pos = q->n_kv, .want = want};
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

/* Scores prompt token `at` from the row before it. */
static int score(struct err *e, struct batch *b, struct request *q, const float *x, int64_t at, int tid)
{
    struct sample_result r;
    int rc = sample_logprob(e, b->s->sampler[tid], &r, x, q->r->ids[at], q->pos.n_top);
    if (!rc)
        logprob_of(&q->pos.lp[at], q->pos.top + at * q->pos.n_top, &r);
    return rc;
}

static int choose(struct err *e, struct batch *b, struct request *q, float *x, int64_t position, int tid)
{
    size_t n_answer = 0, n_ban = 0;
    const uint32_t *said = answer_ids(q->answer, &n_answer), *ban = answer_banned(q->answer, &n_ban);
    return sample(e, b->s->sampler[tid], &q->now, x, text_n_token(b->s->text), &q->sp, q->r->ids, q->r->n_id, said,
                  (int64_t)n_answer, ban, (int64_t)n_ban, (uint64_t)position);
}

static void one_row(void *arg, int64_t i, int tid)
{
    struct batch *b = arg;
    struct row *r = &b->row[b->row0 + i];
    float *x = b->s->logits + i * engine_logits_ld(b->s->g);
    struct request *q = r->e->q;
    struct err e;
    int rc = 0;
    if (r->position < q->r->n_id)
        rc = score(&e, b, q, x, r->position, tid);
    else if (r->e->sampled && r->last)
        rc = choose(&e, b, q, x, r->position, tid);
    if (!rc)
        return;
    pthread_mutex_lock(&b->failed);
    q->err = e;
    pthread_mutex_unlock(&b->failed);
}

int batch_run(struct err *e, struct batch *b, engine_layer_fn *layer_done, void *arg)
{
    int rc = b->s->fake ? fake_step(e, b->s, b) : engine_step(e, b->s->g, b->chunk, b->n, layer_done, arg);
    if (rc)
        return rc;
    if (b->s->fake && layer_done)
        layer_done(arg, 0);
    for (b->row0 = 0; !b->s->fake && b->row0 < b->n_want; b->row0 += LOGITS_ROWS) {
        int64_t n = b->n_want - b->row0 < LOGITS_ROWS ? b->n_want - b->row0 : LOGITS_ROWS;
        engine_logits(b->s->g, b->s->logits, b->row0, n);
        engine_each(b->s->g, one_row, b, n);
    }
    for (int64_t i = 0; i < b->n; i++)
        b->entry[i].q->n_kv += b->chunk[i].n;
    return 0;
}
