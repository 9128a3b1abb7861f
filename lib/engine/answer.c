#include "engine/answer.h"

#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

struct answer {
    const struct text *t;
    struct answer_params p;
    const uint32_t *prompt;
    size_t n_prompt;
    uint32_t *ids;
    size_t n, cap;
    uint32_t *banned; /* end tokens and stop ids */
    size_t n_banned;
    uint32_t *stop_ids;
    char **stop;
    size_t *stop_len;
    struct text_out *out;
    char *tail; /* the text of the push that ends the answer: two pieces joined */
    int stop_index;
};

void answer_free(struct answer *a)
{
    if (!a)
        return;
    for (size_t i = 0; a->stop && i < a->p.n_stop; i++)
        free(a->stop[i]);
    free(a->stop);
    free(a->stop_len);
    free(a->stop_ids);
    free(a->banned);
    free(a->ids);
    free(a->tail);
    text_out_free(a->out);
    free(a);
}

static int copy_stops(struct err *e, struct answer *a, const struct answer_params *p)
{
    a->stop = calloc(p->n_stop + 1, sizeof *a->stop);
    a->stop_len = calloc(p->n_stop + 1, sizeof *a->stop_len);
    a->stop_ids = malloc((p->n_stop_id + 1) * sizeof *a->stop_ids);
    if (!a->stop || !a->stop_len || !a->stop_ids)
        return err_nomem(e, "stops", p->n_stop * sizeof *a->stop);
    for (size_t i = 0; i < p->n_stop; i++) {
        a->stop_len[i] = p->stop_len[i];
        a->stop[i] = malloc(p->stop_len[i] + 1);
        if (!a->stop[i])
            return err_nomem(e, "a stop string", p->stop_len[i]);
        if (p->stop_len[i])
            memcpy(a->stop[i], p->stop[i], p->stop_len[i]);
    }
    if (p->n_stop_id)
        memcpy(a->stop_ids, p->stop_ids, p->n_stop_id * sizeof *a->stop_ids);
    return 0;
}

static int find_banned(struct err *e, struct answer *a)
{
    uint32_t n = text_n_token(a->t);
    size_t cap = a->p.n_stop_id;
    for (uint32_t i = 0; i < n; i++)
        cap += text_is_end(a->t, i);
    a->banned = malloc((cap + 1) * sizeof *a->banned);
    if (!a->banned)
        return err_nomem(e, "banned ids", cap * sizeof *a->banned);
    for (uint32_t i = 0; i < n; i++)
        if (text_is_end(a->t, i))
            a->banned[a->n_banned++] = i;
    for (size_t i = 0; i < a->p.n_stop_id; i++)
        a->banned[a->n_banned++] = a->stop_ids[i];
    return 0;
}

/* Stop strings take effect from min_tokens on: the detokenizer is created again there, with the answer so far as its
 * context. */
static int open_out(struct err *e, struct answer *a)
{
    size_t n = a->n_prompt + a->n;
    uint32_t *context = malloc((n + 1) * sizeof *context);
    if (!context)
        return err_nomem(e, "an answer's context", n * sizeof *context);
    memcpy(context, a->prompt, a->n_prompt * sizeof *context);
    if (a->n)
        memcpy(context + a->n_prompt, a->ids, a->n * sizeof *context);
    text_out_free(a->out);
    a->out = NULL;
    bool stops = a->n + 1 >= a->p.min_tokens;
    int rc =
        text_out_new(e, &a->out, a->t, context, n, (const char *const *)a->stop, a->stop_len, stops ? a->p.n_stop : 0);
    if (!rc)
        text_out_show(a->out, a->p.keep_stop, a->p.special_text);
    free(context);
    return rc;
}

/* An invalid stop string is an error at the start, not at min_tokens. */
static int check_stops(struct err *e, const struct answer *a)
{
    struct text_out *o = NULL;
    int rc = text_out_new(e, &o, a->t, NULL, 0, (const char *const *)a->stop, a->stop_len, a->p.n_stop);
    text_out_free(o);
    return rc;
}

int answer_new(struct err *e, struct answer **out, const struct text *t, const struct answer_params *p,
               const uint32_t *prompt, size_t n_prompt)
{
    struct answer *a = calloc(1, sizeof *a);
    if (!a)
        return err_nomem(e, "an answer", sizeof *a);
    a->t = t;
    a->p = *p;
    a->prompt = prompt;
    a->n_prompt = n_prompt;
    a->stop_index = -1;
    int rc = copy_stops(e, a, p);
    if (!rc && p->min_tokens)
        rc = find_banned(e, a);
    if (!rc && p->min_tokens > 1 && p->n_stop)
        rc = check_stops(e, a);
    if (!rc)
        rc = open_out(e, a);
    if (rc)
        answer_free(a);
    else
        *out = a;
    return rc;
}

static int append(struct err *e, struct answer *a, uint32_t id)
{
    int rc = vec_reserve(e, &a->ids, &a->cap, a->n + 1, sizeof *a->ids, "an answer");
    if (!rc)
        a->ids[a->n++] = id;
    return rc;
}

/* Joins the text of the last id and the text that was held back. */
static int join_rest(struct err *e, struct answer *a, const char **text, size_t *n_text)
{
    size_t n = *n_text, n_rest;
    const char *rest;
    a->tail = malloc(n + 1);
    if (!a->tail)
        return err_nomem(e, "the end of an answer", n);
    memcpy(a->tail, *text, n);
    text_out_end(a->out, &rest, &n_rest);
    char *all = realloc(a->tail, n + n_rest + 1);
    if (!all)
        return err_nomem(e, "the end of an answer", n + n_rest);
    memcpy(all + n, rest, n_rest);
    a->tail = all;
    *text = all;
    *n_text = n + n_rest;
    return 0;
}

int answer_push(struct err *e, struct answer *a, uint32_t id, const char **text, size_t *n_text, enum answer_end *end)
{
    bool early = a->n < a->p.min_tokens; /* the id is one of the first min_tokens */
    if (a->p.min_tokens && a->p.n_stop && a->n + 1 == a->p.min_tokens && a->n) {
        int rc = open_out(e, a);
        if (rc)
            return rc;
    }
    int rc = append(e, a, id);
    if (rc)
        return rc;
    *end = ANSWER_OPEN;
    for (size_t i = 0; !early && i < a->p.n_stop_id; i++)
        if (a->stop_ids[i] == id)
            *end = ANSWER_STOP_ID;
    if (!early && *end == ANSWER_OPEN && !a->p.ignore_eos && text_is_end(a->t, id))
        *end = ANSWER_STOP_EOS;
    *text = "";
    *n_text = 0;
    if (*end == ANSWER_OPEN || a->p.keep_stop)
        text_out_push(a->out, id, text, n_text, &a->stop_index);
    if (a->stop_index >= 0) {
        *end = ANSWER_STOP_TEXT;
        return 0; /* the text after the match is dropped */
    }
    if (*end == ANSWER_OPEN && a->n >= a->p.max_tokens)
        *end = ANSWER_LENGTH;
    return *end == ANSWER_OPEN ? 0 : join_rest(e, a, text, n_text);
}

int answer_stop_index(const struct answer *a)
{
    return a->stop_index;
}

const uint32_t *answer_banned(const struct answer *a, size_t *n)
{
    *n = a->n < a->p.min_tokens ? a->n_banned : 0;
    return a->banned;
}
