/* From frames to lines of NDJSON, or to one object. No JSON tree is built for a token. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api/ollama.h"
#include "base/time.h"
#include "base/vec.h"
#include "request/reply.h"

/*
 * The start and end of a line are the same for all of an answer but its time, so they are made once:
 * {"model":"m","created_at":" TIME ","response":" TEXT ","done":false}
 */
struct ollama_answer {
    const struct text *vocab;
    bool chat, stream, context;
    struct str line;  /* buffer of the last line */
    struct str model; /* start of a line, up to the time */
    struct str text;  /* text of a response in one object, escaped */
    struct str lp;    /* the elements of logprobs: of the same, or of the last line */
    uint32_t *ids;    /* of the conversation, if context is returned */
    size_t n_id, cap_id;
};

/* ---- times ---- */

static char *digits(char *p, unsigned n, uint64_t v)
{
    for (unsigned i = n; i--; v /= 10)
        p[i] = (char)('0' + v % 10);
    return p + n;
}

size_t ollama_time(char out[OLLAMA_TIME_BYTES], int64_t s, uint32_t ns)
{
    struct tm t = {0};
    const time_t when = s > 0 ? s : 0;
    char *p = out;
    (void)gmtime_r(&when, &t);
    p = digits(p, 4, (uint64_t)(t.tm_year + 1900ll) % 10000);
    *p++ = '-';
    p = digits(p, 2, (uint64_t)t.tm_mon + 1);
    *p++ = '-';
    p = digits(p, 2, (uint64_t)t.tm_mday);
    *p++ = 'T';
    p = digits(p, 2, (uint64_t)t.tm_hour);
    *p++ = ':';
    p = digits(p, 2, (uint64_t)t.tm_min);
    *p++ = ':';
    p = digits(p, 2, (uint64_t)t.tm_sec);
    *p++ = '.';
    p = digits(p, 9, ns);
    *p++ = 'Z';
    *p = 0;
    return (size_t)(p - out);
}

static uint64_t since(uint64_t from, uint64_t to)
{
    return to > from ? to - from : 0;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/*
 * prompt: the time of the worker that computed the prompt. eval: from first to last token, by the decoding worker's
 * clock. load: the rest of the time before the first token, i.e. queueing and transfer, since the weights are loaded
 * before any request. total is by this clock.
 */
void ollama_times(struct ollama_times *t, const struct wire_end *w, uint64_t arrived_ns, uint64_t first_ns,
                  uint64_t now_ns)
{
    struct reply_times r;
    *t = (struct ollama_times){.total_ns = since(arrived_ns, now_ns)};
    if (!w)
        return;
    reply_times(&r, w);
    uint64_t first = least(first_ns ? since(arrived_ns, first_ns) : t->total_ns, t->total_ns);
    t->prompt_ns = least(r.prefill_ns, first);
    t->load_ns = first - t->prompt_ns;
    uint64_t rest = t->total_ns - first;
    t->eval_ns = r.n_answer == 1 ? rest : least(r.decode_ns, rest); /* not 0: clients divide by it */
    t->n_prompt = r.n_prompt;
    t->n_cached = r.n_cached;
    t->n_eval = r.n_answer;
}

/* ---- lines ---- */

static void put_time(struct str *w)
{
    char when[OLLAMA_TIME_BYTES];
    uint64_t now = time_wall_ns();
    str_add(w, when, ollama_time(when, (time_t)(now / NS_S), (uint32_t)(now % NS_S)));
}

/* Writes {"token":"…","logprob":-0.1,"bytes":[…] without the closing brace. Invalid UTF-8 is U+FFFD in the text and
 * exact in the list; a control token is written as the file spells it. */
static void put_token(struct str *w, const struct text *vocab, uint32_t id, float logprob)
{
    size_t n = 0;
    const char *s = (const char *)text_piece(vocab, id, &n);
    if (!n)
        s = text_entry(vocab, id, &n);
    str_add_text(w, "{\"token\":\"");
    json_write_escaped(w, s, n);
    str_add_text(w, "\",\"logprob\":");
    json_write_f32(w, isfinite(logprob) ? logprob : -FLT_MAX); /* clients would read null as 0, i.e. probability 1 */
    str_add_text(w, ",\"bytes\":[");
    json_write_bytes(w, s, n);
    str_add_text(w, "]");
}

/* As in Ollama, control tokens are left out: all tokens together are the text. False: nothing was written. */
static bool put_logprobs(struct str *w, const struct text *vocab, const struct wire_out *o, bool comma)
{
    bool some = false;
    for (uint32_t i = 0; i < o->n_lp; i++) {
        const struct wire_logprob *lp = &o->lp[i];
        if (text_is_control(vocab, lp->id))
            continue;
        if (some || comma)
            str_add_text(w, ",");
        some = true;
        put_token(w, vocab, lp->id, lp->logprob);
        for (uint32_t k = 0; k < lp->n_top; k++) {
            str_add_text(w, k ? "," : ",\"top_logprobs\":[");
            put_token(w, vocab, lp->top[k].id, lp->top[k].logprob);
            str_add_text(w, "}");
        }
        str_add_text(w, lp->n_top ? "]}" : "}");
    }
    return some;
}

static void begin(struct ollama_answer *a)
{
    str_clear(&a->line);
    str_add(&a->line, a->model.p, a->model.n);
    put_time(&a->line);
    str_add_text(&a->line, a->chat ? "\",\"message\":{\"role\":\"assistant\",\"content\":\"" : "\",\"response\":\"");
}

static int give(struct err *e, struct ollama_answer *a, const char **line, size_t *n)
{
    if (a->line.failed || a->text.failed || a->lp.failed)
        return err_nomem(e, "an answer", a->line.n + a->text.n);
    *line = a->line.p;
    *n = a->line.n;
    return 0;
}

int ollama_answer_new(struct err *e, struct ollama_answer **out, const struct ollama_request *q, const char *model,
                      const struct text *vocab)
{
    struct ollama_answer *a = calloc(1, sizeof *a);
    *out = a;
    if (!a)
        return err_nomem(e, "an answer", sizeof *a);
    a->vocab = vocab;
    a->chat = q->chat;
    a->stream = q->stream;
    a->context = !q->chat && !q->raw && q->kind == OLLAMA_RUN;
    str_add_text(&a->model, "{\"model\":\"");
    json_write_escaped(&a->model, model, strlen(model));
    str_add_text(&a->model, "\",\"created_at\":\"");
    return a->model.failed ? err_nomem(e, "an answer", sizeof *a) : 0;
}

void ollama_answer_free(struct ollama_answer *a)
{
    if (!a)
        return;
    str_free(&a->line);
    str_free(&a->model);
    str_free(&a->text);
    str_free(&a->lp);
    free(a->ids);
    free(a);
}

size_t ollama_answer_bytes(const struct ollama_answer *a)
{
    return a->text.n + a->lp.n + a->n_id * sizeof *a->ids;
}

static int add_ids(struct err *e, struct ollama_answer *a, const uint32_t *ids, size_t n)
{
    if (!a->context || !n)
        return 0;
    int rc = vec_reserve(e, &a->ids, &a->cap_id, a->n_id + n, sizeof *a->ids, "a conversation");
    if (rc)
        return rc;
    memcpy(a->ids + a->n_id, ids, n * sizeof *ids);
    a->n_id += n;
    return 0;
}

int ollama_answer_prompt(struct err *e, struct ollama_answer *a, const struct wire_prompt *q)
{
    struct wire_req *r = NULL;
    if (!a->context)
        return 0;
    int rc = api_prompt_read(e, &r, q);
    rc = rc ? rc : add_ids(e, a, r->ids, r->n_id);
    wire_req_free(r);
    return rc;
}

int ollama_answer_piece(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const struct wire_out *o)
{
    *n = 0;
    if (o->prompt)
        return 0;
    if (add_ids(e, a, o->ids, o->n_id))
        return e->code;
    if (!a->stream) {
        json_write_escaped(&a->text, o->text.p, o->text.n);
        put_logprobs(&a->lp, a->vocab, o, a->lp.n > 0);
        int rc = give(e, a, line, n);
        *n = 0;
        return rc;
    }
    str_clear(&a->lp);
    bool scored = put_logprobs(&a->lp, a->vocab, o, false);
    if (!o->text.n && !scored) /* held back: possibly the start of a stop string, or half a character */
        return 0;
    begin(a);
    json_write_escaped(&a->line, o->text.p, o->text.n);
    str_add_text(&a->line, a->chat ? "\"},\"done\":false" : "\",\"done\":false");
    if (scored) {
        str_add_text(&a->line, ",\"logprobs\":[");
        str_add(&a->line, a->lp.p, a->lp.n);
        str_add_text(&a->line, "]");
    }
    str_add_text(&a->line, "}\n");
    return give(e, a, line, n);
}

static void put_count(struct str *w, const char *name, uint64_t v)
{
    str_add_text(w, name);
    json_write_u64(w, v);
}

static void put_context(struct ollama_answer *a)
{
    str_add_text(&a->line, ",\"context\":[");
    json_write_u32s(&a->line, a->ids, a->n_id);
    str_add_text(&a->line, "]");
}

int ollama_answer_last(struct err *e, struct ollama_answer *a, const char **line, size_t *n, const char *reason,
                       const struct ollama_times *t)
{
    struct str *w = &a->line;
    begin(a);
    str_add(w, a->text.p, a->text.n);
    str_add_text(w, a->chat ? "\"},\"done\":true,\"done_reason\":\"" : "\",\"done\":true,\"done_reason\":\"");
    str_add_text(w, reason);
    str_add_text(w, "\"");
    if (a->context)
        put_context(a);
    if (!a->stream && a->lp.n) {
        str_add_text(w, ",\"logprobs\":[");
        str_add(w, a->lp.p, a->lp.n);
        str_add_text(w, "]");
    }
    put_count(w, ",\"total_duration\":", t->total_ns);
    put_count(w, ",\"load_duration\":", t->load_ns);
    put_count(w, ",\"prompt_eval_count\":", t->n_prompt);
    put_count(w, ",\"prompt_eval_cached_count\":", t->n_cached);
    put_count(w, ",\"prompt_eval_duration\":", t->prompt_ns);
    put_count(w, ",\"eval_count\":", t->n_eval);
    put_count(w, ",\"eval_duration\":", t->eval_ns);
    str_add_text(w, a->stream ? "}\n" : "}");
    return give(e, a, line, n);
}
