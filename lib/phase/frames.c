/* The frames of a request that both a filter and a worker send. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "phase/request.h"
#include "proc/proc.h"

void error_frame(struct wire_frame *out, const struct request *q)
{
    *out = (struct wire_frame){.kind = WIRE_ERR};
    out->error = (struct wire_error){.seq = q->r->seq,
                                     .index = q->r->index,
                                     .id = q->r->id,
                                     .code = (uint32_t)q->err.code,
                                     .text = {q->err.text, strlen(q->err.text)},
                                     .extra = q->r->extra};
}

struct wire_span span_here(const char *stage)
{
    return (struct wire_span){
        .stage = {stage, strlen(stage)}, .host = {proc_host(), strlen(proc_host())}, .pid = (uint32_t)getpid()};
}

void logprob_of(struct wire_logprob *out, struct wire_top top[SAMPLE_TOP_MAX], const struct sample_result *r)
{
    for (int32_t i = 0; i < r->n_top; i++)
        top[i] = (struct wire_top){r->top[i].id, r->top[i].logprob};
    *out = (struct wire_logprob){
        .id = r->id, .logprob = r->logprob, .top = top, .n_top = (uint32_t)r->n_top, .rank = r->rank};
}

enum wire_reason reason_of(enum answer_end end)
{
    return end == ANSWER_LENGTH ? WIRE_LENGTH : WIRE_STOP;
}

bool shows_prompt(const struct request *q)
{
    return q->r->s.echo || q->pos.n;
}

const void *token_text(const struct text *t, const struct wire_req *r, uint32_t id, size_t *n)
{
    return r->s.special_text && text_is_control(t, id) ? (const void *)text_entry(t, id, n) : text_piece(t, id, n);
}

/* The text of the prompt's ids. */
static int prompt_text(struct err *e, char **out, size_t *n_out, const struct text *t, const struct wire_req *r)
{
    size_t n = 0, k;
    for (uint32_t i = 0; i < r->n_id; i++) {
        (void)token_text(t, r, r->ids[i], &k);
        n += k;
    }
    char *text = malloc(n + 1);
    if (!text)
        return err_nomem(e, "a prompt's text", n);
    size_t at = 0;
    for (uint32_t i = 0; i < r->n_id; i++, at += k) {
        const void *p = token_text(t, r, r->ids[i], &k);
        if (k)
            memcpy(text + at, p, k);
    }
    int rc = text_utf8_repair(e, out, n_out, text, n);
    free(text);
    return rc;
}

int echo_frame(struct err *e, struct wire_frame *out, char **text, const struct stage *s, const struct request *q)
{
    size_t n = 0;
    *text = NULL;
    int rc = q->r->s.echo ? prompt_text(e, text, &n, s->text, q->r) : 0;
    *out = (struct wire_frame){.kind = WIRE_OUT};
    out->out = (struct wire_out){.seq = q->r->seq,
                                 .index = q->r->index,
                                 .id = q->r->id,
                                 .ids = q->r->ids,
                                 .n_id = q->r->n_id,
                                 .text = {*text, n},
                                 .lp = q->pos.lp,
                                 .n_lp = q->pos.n,
                                 .prompt = true,
                                 .silent = !q->r->s.echo};
    return rc;
}

void token_frame(struct wire_frame *out, struct wire_logprob *lp, struct wire_top top[SAMPLE_TOP_MAX],
                 const struct request *q, const char *text, size_t n_text)
{
    logprob_of(lp, top, &q->token);
    *out = (struct wire_frame){.kind = WIRE_OUT};
    out->out = (struct wire_out){.seq = q->r->seq,
                                 .index = q->r->index,
                                 .id = q->r->id,
                                 .ids = q->ids + q->n_ids - 1,
                                 .n_id = 1,
                                 .text = {text, n_text},
                                 .lp = lp,
                                 .n_lp = q->sp.logprobs >= 0};
}

/* The spans of this process: prefill if it computed the prompt, decode unless another process continues. */
static uint32_t own_spans(struct wire_span *span, const struct request *q, uint64_t now)
{
    uint32_t n = 0;
    if (q->prompt_end_ns) {
        span[n] = span_here("prefill");
        span[n].queued_ns = q->queued_ns;
        span[n].start_ns = q->start_ns;
        span[n].end_ns = q->prompt_end_ns;
        span[n++].tokens = q->r->n_id;
    }
    if (q->transfers_out)
        return n;
    span[n] = span_here("decode");
    span[n].queued_ns = q->queued_ns;
    span[n].start_ns = q->prompt_end_ns ? q->prompt_end_ns : q->taken_ns ? q->taken_ns : q->start_ns;
    span[n].end_ns = now;
    span[n].tokens = request_n_answer(q);
    span[n++].bytes = q->bytes_in;
    return n;
}

int end_frame(struct err *e, struct wire_frame *out, struct wire_span **span, const struct stage *s, struct request *q,
              enum answer_end end)
{
    uint64_t now = time_now_ns();
    if (!q->first_ns)
        q->first_ns = now;
    if (!q->last_ns)
        q->last_ns = now;
    uint32_t n = q->span ? q->n_span : q->r->n_span;
    if (n > WIRE_SPANS_MAX - 2) /* two more follow; too many spans of one request must not end the stream */
        n = WIRE_SPANS_MAX - 2;
    *span = malloc((n + 2) * sizeof **span);
    if (!*span)
        return err_nomem(e, "spans", (n + 2) * sizeof **span);
    if (n)
        memcpy(*span, q->span ? q->span : q->r->span, n * sizeof **span);
    n += own_spans(*span + n, q, now);
    *out = (struct wire_frame){.kind = WIRE_END};
    out->end = (struct wire_end){.seq = q->r->seq,
                                 .index = q->r->index,
                                 .id = q->r->id,
                                 .reason = reason_of(end),
                                 .has_stop_id = end == ANSWER_STOP_ID,
                                 .stop_id = q->ids[q->n_ids - 1],
                                 .prompt_tokens = q->r->n_id,
                                 .completion_tokens = request_n_answer(q),
                                 .cached_tokens = q->cached,
                                 .load_ns = q->load_ns > s->load_ns ? q->load_ns : s->load_ns,
                                 .born_ns = q->r->born_ns,
                                 .first_ns = q->first_ns,
                                 .last_ns = q->last_ns,
                                 .span = *span,
                                 .n_span = n,
                                 .extra = q->r->extra};
    if (end == ANSWER_STOP_TEXT)
        out->end.stop_text = q->r->s.stop[answer_stop_index(q->answer)];
    return 0;
}
