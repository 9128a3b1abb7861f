#include "phase/request.h"

#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "base/vec.h"
#include "link/session.h"

#define PROMPT_FRAME_REST 65536 /* bytes of its other fields, at most */

int64_t request_blocks(const struct request *q, bool answer)
{
    /* the KV of the last token is never read */
    return blocks_of((int64_t)q->r->n_id + (answer && q->max_new ? (int64_t)q->max_new - 1 : 0));
}

/* Checks each id that is used as an index, independent of earlier stages. */
static int check_ids(struct err *e, const struct stage *s, const struct wire_req *r)
{
    uint32_t n = (uint32_t)s->m->c.vocab;
    for (uint32_t i = 0; i < r->n_id; i++)
        if (r->ids[i] >= n)
            return err_set(e, ERR_NO, "prompt id %u at place %u is not in the model's vocabulary of %u", r->ids[i], i,
                           n);
    for (uint32_t i = 0; i < r->s.n_stop_id; i++)
        if (r->s.stop_ids[i] >= n)
            return err_set(e, ERR_NO, "stop id %u is not in the model's vocabulary of %u", r->s.stop_ids[i], n);
    for (uint32_t i = 0; i < r->s.n_bias; i++)
        if (r->s.bias[i].id >= n)
            return err_set(e, ERR_NO, "logit bias id %u is not in the model's vocabulary of %u", r->s.bias[i].id, n);
    for (uint32_t i = 0; i < r->s.n_allowed; i++)
        if (r->s.allowed[i] >= n)
            return err_set(e, ERR_NO, "allowed id %u is not in the model's vocabulary of %u", r->s.allowed[i], n);
    for (uint32_t i = 0; i < r->s.n_bad_id; i++)
        if (r->s.bad_ids[i] >= n)
            return err_set(e, ERR_NO, "id %u of a bad word is not in the model's vocabulary of %u", r->s.bad_ids[i], n);
    return 0;
}

/* Refuses a prompt that never fits. An answer that would exceed the context length or the budget is limited to what
 * fits, and ends with reason length. */
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
    int64_t room = s->context - n, pool = slots * KV_BLOCK - n + 1;
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

/* Best tokens of each position of the prompt; -1: no log-probabilities. */
static int32_t prompt_top(const struct wire_sampling *w)
{
    return w->echo && w->logprobs > w->prompt_logprobs ? w->logprobs : w->prompt_logprobs;
}

/* The prompt is output in one frame. Refuses a prompt whose frame may be too long, before it is computed. The bounds
 * are those of MessagePack: an id of this vocabulary, 5 bytes for a float, 1 to 3 for the length of a list; each byte
 * of a text that is not UTF-8 becomes three. */
static int check_prompt_frame(struct err *e, const struct stage *s, const struct wire_req *r)
{
    const uint64_t most = SESSION_FRAME_BYTES_MAX - PROMPT_FRAME_REST;
    uint64_t id = s->m->c.vocab <= 0x80 ? 1 : s->m->c.vocab <= 0x10000 ? 3 : 5, text = 0;
    int32_t n_top = prompt_top(&r->s);
    uint64_t each = id + (n_top < 0 ? 0 : 9 + 2 * id + (uint64_t)n_top * (6 + id));
    for (uint32_t i = 0; r->s.echo && i < r->n_id; i++) {
        size_t n;
        (void)token_text(s->text, r, r->ids[i], &n);
        text += 3 * n;
    }
    if (text > WIRE_STR_BYTES_MAX)
        return err_set(e, ERR_NO, "echo: the text of the prompt may take %llu bytes, the limit is %u",
                       (unsigned long long)text, WIRE_STR_BYTES_MAX);
    if (r->n_id * each + text <= most)
        return 0;
    return err_set(
        e, ERR_NO,
        "%s: %u tokens of the prompt with %d best tokens each may take %llu bytes, the limit is %llu: request "
        "fewer",
        n_top > r->s.prompt_logprobs ? "logprobs" : "prompt_logprobs", r->n_id, n_top,
        (unsigned long long)(r->n_id * each + text), (unsigned long long)most);
}

static int want_positions(struct err *e, struct request *q)
{
    int32_t most = prompt_top(&q->r->s);
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

/* Reserves memory for n ids. */
static int reserve_ids(struct err *e, struct request *q, int64_t n)
{
    return vec_reserve(e, &q->ids, &q->cap_ids, (size_t)n, sizeof *q->ids, "a sequence");
}

static int copy_ids(struct err *e, struct request *q)
{
    int rc = reserve_ids(e, q, (int64_t)q->r->n_id + 1);
    if (rc)
        return rc;
    memcpy(q->ids, q->r->ids, q->r->n_id * sizeof *q->ids);
    q->n_ids = q->r->n_id;
    return 0;
}

int request_init(struct err *e, struct request *q, const struct stage *s, const struct wire_req *r)
{
    q->r = r;
    q->queued_ns = time_now_ns();
    q->load_ns = r->load_ns;
    if (check_ids(&q->err, s, r) || check_size(&q->err, s, q) ||
        check_prompt_frame(&q->err, s, r)) /* only the request fails */
        return 0;
    int rc = copy_params(e, q);
    rc = rc ? rc : copy_ids(e, q);
    rc = rc ? rc : want_positions(e, q);
    if (rc)
        return rc;
    rc = open_answer(&q->err, q, s);
    if (rc == ERR_NO) /* an invalid stop text: only the request fails */
        return 0;
    if (rc)
        *e = q->err;
    return rc;
}

int request_new(struct err *e, struct request **out, size_t size, const struct stage *s, const struct wire_req *r)
{
    struct request *q = calloc(1, size);
    if (!q)
        return err_nomem(e, "a request", size);
    int rc = wire_req_copy(e, &q->copy, r);
    rc = rc ? rc : request_init(e, q, s, q->copy);
    if (rc)
        request_free(q, NULL);
    else
        *out = q;
    return rc;
}

void request_free(struct request *q, struct kv_pool *pool)
{
    if (!q)
        return;
    if (pool)
        kv_table_release(&q->kv, pool);
    answer_free(q->answer);
    free(q->bias);
    free(q->ids);
    free(q->pos.lp);
    free(q->pos.top);
    free(q->span);
    wire_req_free(q->copy);
    free(q);
}

uint32_t request_n_answer(const struct request *q)
{
    return q->n_ids ? (uint32_t)(q->n_ids - (int64_t)q->r->n_id) : 0;
}

bool request_grows(const struct request *q)
{
    return q->n_ids > (int64_t)q->r->n_id && q->n_kv + 1 == q->n_ids;
}

int request_push(struct err *e, struct request *q, uint32_t id, const char **text, size_t *n_text, enum answer_end *end)
{
    int rc = reserve_ids(e, q, q->n_ids + 1);
    rc = rc ? rc : answer_push(e, q->answer, id, text, n_text, end);
    if (!rc)
        q->ids[q->n_ids++] = id;
    return rc;
}

/* Copies the borrowed names and unknown fields of a span to *at. */
static void own_names(struct wire_span *s, char **at)
{
    const void **p[] = {(const void **)&s->stage.p, (const void **)&s->host.p, (const void **)&s->extra.raw.p};
    size_t n[] = {s->stage.n, s->host.n, s->extra.raw.n};
    for (int i = 0; i < 3; i++) {
        if (n[i])
            memcpy(*at, *p[i], n[i]);
        *p[i] = *at;
        *at += n[i];
    }
}

int request_add_spans(struct err *e, struct request *q, const struct wire_span *span, uint32_t n)
{
    uint32_t before = q->r->n_span;
    size_t names = 1;
    for (uint32_t i = 0; i < n; i++)
        names += span[i].stage.n + span[i].host.n + span[i].extra.raw.n;
    struct wire_span *all = malloc((before + n) * sizeof *all + names);
    if (!all)
        return err_nomem(e, "spans", (before + n) * sizeof *all + names);
    if (before)
        memcpy(all, q->r->span, before * sizeof *all);
    if (n)
        memcpy(all + before, span, n * sizeof *all);
    char *at = (char *)(all + before + n);
    for (uint32_t i = before; i < before + n; i++)
        own_names(&all[i], &at);
    free(q->span);
    q->span = all;
    q->n_span = before + n;
    return 0;
}
