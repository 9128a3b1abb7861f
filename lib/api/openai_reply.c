/* From frames to responses of the OpenAI API in vLLM's format: events of a stream, or one object. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/openai.h"
#include "base/vec.h"
#include "request/reply.h"

#define PART_BYTES 65536 /* a longer piece is moved to the response, not copied */

static struct openai_choice *at(struct openai_reply *p, uint32_t line, uint32_t choice)
{
    return &p->choice[line * p->q->n + choice];
}

/* ---- begin and end ---- */

/* {"id":…,"object":…,"created":…,"model":…,"choices":[ */
static void envelope(struct str *w, const struct openai_request *q, const char *object)
{
    LIT(w, "{\"id\":");
    json_write_string(w, q->id, strlen(q->id));
    LIT(w, ",\"object\":\"");
    str_add_text(w, object);
    LIT(w, "\",\"created\":");
    json_write_i64(w, q->created);
    LIT(w, ",\"model\":");
    json_write_string(w, q->model, strlen(q->model));
    LIT(w, ",\"choices\":[");
}

static void make_head(struct str *w, const struct openai_request *q, uint32_t index)
{
    LIT(w, "data: ");
    envelope(w, q, q->chat ? "chat.completion.chunk" : "text_completion");
    LIT(w, "{\"index\":");
    json_write_u64(w, index);
    str_add_text(w, q->chat ? ",\"delta\":{\"content\":\"" : ",\"text\":\"");
}

int openai_reply_open(struct err *e, struct openai_reply *p, const struct openai_request *q, const struct text *vocab)
{
    *p = (struct openai_reply){.q = q, .vocab = vocab, .n_choice = q->n * q->n_line};
    list_init(&p->pending);
    p->choice = calloc(p->n_choice, sizeof *p->choice);
    p->n_prompt = calloc(2 * (size_t)q->n_line, sizeof *p->n_prompt);
    p->prompt_ids = calloc(q->n_line, sizeof *p->prompt_ids);
    p->opened = calloc(p->n_choice, sizeof *p->opened);
    if (!p->choice || !p->n_prompt || !p->prompt_ids || !p->opened)
        return err_nomem(e, "an answer", p->n_choice * sizeof *p->choice);
    p->n_cached = p->n_prompt + q->n_line;
    for (uint32_t i = 0; i < p->n_choice; i++) {
        p->choice[i].index = i;
        if (q->stream)
            make_head(&p->choice[i].head, q, i);
    }
    return 0;
}

void openai_reply_close(struct openai_reply *p)
{
    openai_logprobs_free(p);
    for (uint32_t i = 0; p->choice && i < p->n_choice; i++) {
        struct openai_choice *c = &p->choice[i];
        struct str *all[] = {&c->head,   &c->text, &c->tokens, &c->values, &c->top,
                             &c->offset, &c->ids,  &c->prompt, &c->stop};
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            str_free(all[k]);
    }
    for (uint32_t i = 0; p->prompt_ids && i < p->q->n_line; i++)
        str_free(&p->prompt_ids[i]);
    for (size_t i = 0; i < p->n_part; i++)
        str_free(&p->part[i]);
    free(p->part);
    str_free(&p->out);
    free(p->choice);
    free(p->n_prompt);
    free(p->prompt_ids);
    free(p->opened);
    *p = (struct openai_reply){0};
}

/* ---- parts ---- */

/* Adds the end of what was written so far to the parts. */
static void cut_part(struct openai_reply *p)
{
    if (!vec_grow(&p->part, &p->cap_part, p->n_part + 1, sizeof *p->part)) {
        p->out.failed = true;
        return;
    }
    p->part[p->n_part++] = p->out;
    p->out = (struct str){0};
}

/* Moves s to the output; of a stream, whose events are short, it is a copy. */
static void put(struct openai_reply *p, struct str *s)
{
    p->out.failed = p->out.failed || s->failed;
    if (s->n < PART_BYTES || p->q->stream) {
        str_add(&p->out, s->p, s->n);
        str_clear(s);
        return;
    }
    cut_part(p);
    if (p->out.failed)
        return;
    p->out = *s;
    *s = (struct str){0};
    cut_part(p);
}

static void logprobs_object(struct openai_reply *p, struct openai_choice *c)
{
    struct str *w = &p->out;
    const struct openai_request *q = p->q;
    if (!q->logprobs || (q->stream && !c->tokens.n)) {
        LIT(w, "null");
        return;
    }
    LIT(w, "{\"");
    str_add_text(w, q->chat ? "content" : "text_offset");
    LIT(w, "\":[");
    put(p, q->chat ? &c->tokens : &c->offset);
    if (!q->chat) {
        LIT(w, "],\"token_logprobs\":[");
        put(p, &c->values);
        LIT(w, "],\"tokens\":[");
        put(p, &c->tokens);
        LIT(w, "],\"top_logprobs\":[");
        put(p, &c->top);
    }
    LIT(w, "]}");
}

/* ---- counts ---- */

static void usage(struct str *w, uint64_t prompt, uint64_t answer, uint64_t cached)
{
    LIT(w, "{\"prompt_tokens\":");
    json_write_u64(w, prompt);
    LIT(w, ",\"total_tokens\":");
    json_write_u64(w, prompt + answer);
    LIT(w, ",\"completion_tokens\":");
    json_write_u64(w, answer);
    LIT(w, ",\"prompt_tokens_details\":{\"cached_tokens\":");
    json_write_u64(w, cached);
    LIT(w, "}}");
}

static void usage_of_all(struct str *w, const struct openai_reply *p)
{
    uint64_t prompt = 0, answer = 0, cached = 0;
    for (uint32_t i = 0; i < p->q->n_line; i++) {
        prompt += p->n_prompt[i];
        cached += p->n_cached[i];
    }
    for (uint32_t i = 0; i < p->n_choice; i++)
        answer += p->choice[i].n_out;
    usage(w, prompt, answer, cached);
}

/* ---- events ---- */

static void ids_more(struct str *w, const uint32_t *ids, size_t n)
{
    if (n && w->n)
        LIT(w, ",");
    json_write_u32s(w, ids, n);
}

static void ids_field(struct str *w, const char *name, struct str *ids)
{
    LIT(w, ",\"");
    str_add_text(w, name);
    LIT(w, "\":[");
    str_add(w, ids->p, ids->n);
    LIT(w, "]");
    str_clear(ids);
}

static void prompt_ids_field(struct str *w, const struct openai_reply *p, uint32_t line)
{
    LIT(w, ",\"prompt_token_ids\":[");
    str_add(w, p->prompt_ids[line].p, p->prompt_ids[line].n);
    LIT(w, "]");
}

/* The event with the role is sent with the first token, so that clients do not take it for one. */
static void role(struct openai_reply *p, struct openai_choice *c, uint32_t line)
{
    struct str *w = &p->out;
    const struct openai_request *q = p->q;
    c->begun = true;
    if (!q->chat)
        return;
    LIT(w, "data: ");
    envelope(w, q, "chat.completion.chunk");
    LIT(w, "{\"index\":");
    json_write_u64(w, c->index);
    LIT(w, ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]");
    if (q->token_ids)
        prompt_ids_field(w, p, line);
    if (q->usage_always) {
        LIT(w, ",\"usage\":");
        usage(w, p->n_prompt[line], 0, p->n_cached[line]);
    }
    LIT(w, "}\n\n");
}

static void close_event(struct openai_reply *p, struct openai_choice *c)
{
    struct str *w = &p->out;
    const struct openai_request *q = p->q;
    uint32_t line = c->index / q->n;
    if (!c->open)
        return;
    c->open = false;
    str_add(w, c->head.p, c->head.n);
    str_add(w, c->text.p, c->text.n);
    str_clear(&c->text);
    str_add_text(w, q->chat ? "\"},\"logprobs\":" : "\",\"logprobs\":");
    logprobs_object(p, c);
    LIT(w, ",\"finish_reason\":");
    if (*c->reason) {
        LIT(w, "\"");
        str_add_text(w, c->reason);
        LIT(w, "\",\"stop_reason\":");
        str_add(w, c->stop.p, c->stop.n);
    } else {
        str_add_text(w, q->chat ? "null" : "null,\"stop_reason\":null");
    }
    if (q->token_ids) {
        if (!q->chat && !c->prompt_sent)
            prompt_ids_field(w, p, line);
        c->prompt_sent = true;
        ids_field(w, "token_ids", &c->ids);
    }
    LIT(w, "}]");
    if (q->usage_always) {
        LIT(w, ",\"usage\":");
        usage(w, p->n_prompt[line], c->n_out, p->n_cached[line]);
    }
    LIT(w, "}\n\n");
}

int openai_reply_prompt(struct err *e, struct openai_reply *p, uint32_t line, const struct wire_prompt *q)
{
    struct wire_req *r = NULL;
    p->n_prompt[line] = q->n_prompt;
    if (!p->q->token_ids)
        return 0;
    int rc = api_prompt_read(e, &r, q);
    if (!rc)
        ids_more(&p->prompt_ids[line], r->ids, r->n_id);
    wire_req_free(r);
    return rc;
}

static void open_event(struct openai_reply *p, struct openai_choice *c)
{
    c->open = true;
    if (c->listed)
        return;
    c->listed = true;
    p->opened[p->n_opened++] = c->index;
}

size_t openai_choice_bytes(const struct openai_choice *c)
{
    return c->text.n + c->tokens.n + c->values.n + c->top.n + c->offset.n + c->ids.n + c->prompt.n;
}

void openai_reply_out(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_out *o)
{
    struct openai_choice *c = at(p, line, choice);
    size_t before = openai_choice_bytes(c);
    if (p->q->stream) {
        if (c->n_out) /* an echoed prompt is sent with the first token */
            close_event(p, c);
        if (!c->begun)
            role(p, c, line);
        open_event(p, c);
    }
    if (o->text.n && (!o->prompt || p->q->echo))
        json_write_escaped(&c->text, o->text.p, o->text.n);
    openai_logprobs_add(p, c, o);
    if (p->q->token_ids && !o->prompt)
        ids_more(&c->ids, o->ids, o->n_id);
    if (!o->prompt)
        c->n_out += o->n_id;
    p->n_bytes += openai_choice_bytes(c) - before;
}

void openai_reply_end(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_end *w)
{
    struct openai_choice *c = at(p, line, choice);
    snprintf(c->reason, sizeof c->reason, "%s", w->reason == WIRE_LENGTH ? "length" : "stop");
    if (w->stop_text.n)
        json_write_string(&c->stop, w->stop_text.p, w->stop_text.n);
    else if (w->has_stop_id)
        json_write_u64(&c->stop, w->stop_id);
    else
        LIT(&c->stop, "null");
    p->n_prompt[line] = w->prompt_tokens;
    if (choice == 0)
        p->n_cached[line] = w->cached_tokens;
    c->n_out = w->completion_tokens;
    if (!p->q->stream)
        return;
    if (!c->begun)
        role(p, c, line);
    c->open = true; /* finishes the open event, or sends one of its own */
    close_event(p, c);
}

void openai_reply_flush(struct openai_reply *p)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < p->n_opened; i++) {
        struct openai_choice *c = &p->choice[p->opened[i]];
        c->listed = c->open && !c->n_out;
        if (c->listed)
            p->opened[kept++] = c->index;
        else
            close_event(p, c);
    }
    p->n_opened = kept;
}

void openai_reply_last(struct openai_reply *p)
{
    struct str *w = &p->out;
    openai_reply_flush(p);
    if (p->q->usage) {
        LIT(w, "data: ");
        envelope(w, p->q, p->q->chat ? "chat.completion.chunk" : "text_completion");
        LIT(w, "],\"usage\":");
        usage_of_all(w, p);
        LIT(w, "}\n\n");
    }
    LIT(w, "data: [DONE]\n\n");
}

/* ---- a response as one object ---- */

static void whole_choice(struct openai_reply *p, struct openai_choice *c)
{
    struct str *w = &p->out;
    const struct openai_request *q = p->q;
    uint32_t line = c->index / q->n;
    LIT(w, "{\"index\":");
    json_write_u64(w, c->index);
    str_add_text(w, q->chat ? ",\"message\":{\"role\":\"assistant\",\"content\":\"" : ",\"text\":\"");
    put(p, &c->text);
    str_add_text(w, q->chat ? "\",\"refusal\":null,\"tool_calls\":[]},\"logprobs\":" : "\",\"logprobs\":");
    logprobs_object(p, c);
    LIT(w, ",\"finish_reason\":\"");
    str_add_text(w, c->reason);
    LIT(w, "\",\"stop_reason\":");
    str_add(w, c->stop.p, c->stop.n);
    if (!q->chat && q->prompt_logprobs) {
        LIT(w, ",\"prompt_logprobs\":[");
        put(p, &c->prompt);
        LIT(w, "]");
    } else if (!q->chat) {
        LIT(w, ",\"prompt_logprobs\":null");
    }
    if (q->token_ids) {
        ids_field(w, "token_ids", &c->ids);
        if (!q->chat)
            prompt_ids_field(w, p, line);
    }
    LIT(w, "}");
}

void openai_reply_whole(struct openai_reply *p)
{
    struct str *w = &p->out;
    const struct openai_request *q = p->q;
    envelope(w, q, q->chat ? "chat.completion" : "text_completion");
    for (uint32_t i = 0; i < p->n_choice; i++) {
        if (i)
            LIT(w, ",");
        whole_choice(p, &p->choice[i]);
    }
    LIT(w, "],\"usage\":");
    usage_of_all(w, p);
    LIT(w, ",\"service_tier\":null,\"system_fingerprint\":null");
    if (q->chat && q->prompt_logprobs) {
        LIT(w, ",\"prompt_logprobs\":[");
        put(p, &p->choice[0].prompt);
        LIT(w, "]");
    }
    if (q->chat && q->token_ids)
        prompt_ids_field(w, p, 0);
    LIT(w, "}");
    cut_part(p);
}

bool openai_reply_failed(const struct openai_reply *p)
{
    bool failed = p->out.failed || !p->n_part;
    for (size_t i = 0; i < p->n_part; i++)
        failed = failed || p->part[i].failed;
    return failed;
}
