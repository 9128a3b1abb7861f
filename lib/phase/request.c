#include <stdlib.h>
#include <string.h>

#include "phase/stage.h"
#include "proc/proc.h"

static int64_t blocks_of(int64_t tokens)
{
    return (tokens + KERN_KV_BLOCK - 1) / KERN_KV_BLOCK;
}

int64_t request_blocks(const struct request *q, bool answer)
{
    /* the last token's KV is never needed */
    return blocks_of((int64_t)q->r->n_id + (answer && q->max_new ? (int64_t)q->max_new - 1 : 0));
}

/* Every id that indexes something is checked here too, whatever the stages before have checked. */
static int check_ids(struct err *e, const struct stage *s, const struct wire_req *r)
{
    uint32_t n = (uint32_t)s->m->c.vocab;
    for (uint32_t i = 0; i < r->n_id; i++)
        if (r->ids[i] >= n)
            return err_set(e, ERR_NO, "prompt id %u at place %u is not in the model's %u", r->ids[i], i, n);
    for (uint32_t i = 0; i < r->s.n_stop_id; i++)
        if (r->s.stop_ids[i] >= n)
            return err_set(e, ERR_NO, "stop id %u is not in the model's %u", r->s.stop_ids[i], n);
    for (uint32_t i = 0; i < r->s.n_bias; i++)
        if (r->s.bias[i].id >= n)
            return err_set(e, ERR_NO, "logit bias id %u is not in the model's %u", r->s.bias[i].id, n);
    for (uint32_t i = 0; i < r->s.n_allowed; i++)
        if (r->s.allowed[i] >= n)
            return err_set(e, ERR_NO, "allowed id %u is not in the model's %u", r->s.allowed[i], n);
    for (uint32_t i = 0; i < r->s.n_bad_id; i++)
        if (r->s.bad_ids[i] >= n)
            return err_set(e, ERR_NO, "id %u of a bad word is not in the model's %u", r->s.bad_ids[i], n);
    return 0;
}

/* Never fits is told at once; an answer that would outgrow window or budget is cut to what fits, and ends by length. */
static int check_size(struct err *e, const struct stage *s, struct request *q)
{
    int64_t n = q->r->n_id, slots = kv_pool_slots(s->pool);
    if (!n)
        return err_set(e, ERR_NO, "prompt is empty");
    if (n > s->context || (n == s->context && q->r->s.max_tokens))
        return err_set(e, ERR_NO, "prompt is %lld tokens, the context is %lld%s", (long long)n, (long long)s->context,
                       n == s->context ? " with the answer" : "");
    if (blocks_of(n) > slots)
        return err_set(e, ERR_NO, "prompt of %lld tokens takes %lld KV blocks, the budget has %lld", (long long)n,
                       (long long)blocks_of(n), (long long)slots);
    int64_t room = s->context - n, pool = slots * KERN_KV_BLOCK - n + 1;
    room = room < pool ? room : pool;
    q->max_new = q->r->s.max_tokens < room ? q->r->s.max_tokens : (uint32_t)room;
    return 0;
}

static int copy_params(struct err *e, struct request *q)
{
    const struct wire_sampling *w = &q->r->s;
    q->bias = malloc((w->n_bias + 1) * sizeof *q->bias);
    if (!q->bias)
        return err_nomem(e, "logit biases", w->n_bias * sizeof *q->bias);
    for (uint32_t i = 0; i < w->n_bias; i++)
        q->bias[i] = (struct sample_bias){w->bias[i].id, w->bias[i].bias};
    q->sp = (struct sample_params){
        .seed = w->seed,
        .choice = q->r->index,
        .temperature = w->temperature,
        .top_k = w->top_k,
        .top_p = w->top_p,
        .typical_p = w->typical_p,
        .min_p = w->min_p,
        .repetition_penalty = w->repetition_penalty,
        .presence_penalty = w->presence_penalty,
        .frequency_penalty = w->frequency_penalty,
        .penalty_last_n = w->penalty_last_n,
        .bias = q->bias,
        .n_bias = w->n_bias,
        .allowed = w->allowed,
        .n_allowed = w->n_allowed,
        .bad_ids = w->bad_ids,
        .bad_lens = w->bad_lens,
        .n_bad = w->n_bad,
        .logprobs = w->logprobs,
    };
    return 0;
}

static int want_positions(struct err *e, struct request *q)
{
    const struct wire_sampling *w = &q->r->s;
    int32_t most = w->echo && w->logprobs > w->prompt_logprobs ? w->logprobs : w->prompt_logprobs;
    if (most < 0)
        return 0;
    size_t n = q->r->n_id, n_top = (size_t)most;
    q->pos.lp = calloc(n, sizeof *q->pos.lp);
    q->pos.top = malloc((n * n_top + 1) * sizeof *q->pos.top);
    if (!q->pos.lp || !q->pos.top)
        return err_nomem(e, "prompt log-probabilities", n * (sizeof *q->pos.lp + n_top * sizeof *q->pos.top));
    q->pos.n = q->r->n_id;
    q->pos.n_top = most;
    q->pos.lp[0] = (struct wire_logprob){.id = q->r->ids[0], .logprob = __builtin_nanf("")};
    q->want_prompt = true;
    return 0;
}

static int open_answer(struct err *e, struct request *q, const struct stage *s)
{
    const struct wire_sampling *w = &q->r->s;
    if (!q->max_new)
        return 0;
    const char **stop = malloc((w->n_stop + 1) * sizeof *stop);
    size_t *len = malloc((w->n_stop + 1) * sizeof *len);
    int rc = 0;
    if (!stop || !len)
        rc = err_nomem(e, "stops", w->n_stop * sizeof *stop);
    for (uint32_t i = 0; !rc && i < w->n_stop; i++) {
        stop[i] = w->stop[i].p;
        len[i] = w->stop[i].n;
    }
    struct answer_params p = {.max_tokens = q->max_new,
                              .min_tokens = w->min_tokens,
                              .ignore_eos = w->ignore_eos,
                              .keep_stop = w->keep_stop,
                              .special_text = w->special_text,
                              .stop = stop,
                              .stop_len = len,
                              .n_stop = w->n_stop,
                              .stop_ids = w->stop_ids,
                              .n_stop_id = w->n_stop_id};
    if (!rc)
        rc = answer_new(e, &q->answer, s->text, &p, q->r->ids, q->r->n_id);
    free(stop);
    free(len);
    return rc;
}

int request_new(struct err *e, struct request **out, const struct stage *s, const struct wire_req *r)
{
    struct request *q = calloc(1, sizeof *q);
    if (!q)
        return err_nomem(e, "a request", sizeof *q);
    q->queued_ns = proc_now_ns();
    int rc = wire_req_copy(e, &q->r, r);
    if (!rc) {
        q->load_ns = q->r->load_ns;
        if (check_ids(&q->err, s, q->r) || check_size(&q->err, s, q)) { /* the request's failure, not the stage's */
            *out = q;
            return 0;
        }
        rc = copy_params(e, q);
    }
    if (!rc)
        rc = want_positions(e, q);
    if (!rc)
        rc = open_answer(&q->err, q, s);
    if (rc == ERR_NO) /* a stop that is no text: the request's failure too */
        rc = 0;
    else if (rc && q->err.code)
        *e = q->err;
    if (rc)
        request_free(q, NULL);
    else
        *out = q;
    return rc;
}

void request_free(struct request *q, struct stage *s)
{
    if (!q)
        return;
    if (s && s->pool)
        kv_table_release(&q->kv, s->pool);
    answer_free(q->answer);
    free(q->bias);
    free(q->pos.lp);
    free(q->pos.top);
    free(q->span);
    free(q->arrived);
    free(q->all);
    wire_req_free(q->r);
    free(q);
}
