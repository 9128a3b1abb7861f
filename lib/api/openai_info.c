/* Routes for information about the server and its vocabulary, without the engine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/openai.h"
#include "cli/cli.h"
#include "request/ask.h"
#include "request/reply.h"

#define JSON "application/json"
#define IDS_MAX (1u << 20)
#define TOKENIZE_BYTES_MAX (4u << 20)

/* Responds with o; takes the reference. */
static void send_json(struct http_request *r, int status, json_t *o)
{
    char *text = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (text)
        http_reply(r, status, JSON, text, strlen(text));
    else
        openai_error(r, 500, NULL, 0, "out of memory");
    free(text);
}

/* ---- models ---- */

/* root: the name that vllm bench serve uses if it is given no model. */
static json_t *model_json(const struct api *a, const char *name)
{
    const struct api_model *m = api_model(a);
    return json_pack("{s:s,s:s,s:I,s:s,s:s,s:n,s:I,s:[]}", "id", name, "object", "model", "created",
                     (json_int_t)m->created, "owned_by", "phasepipe", "root", m->name, "parent", "max_model_len",
                     (json_int_t)m->context, "permission");
}

void openai_models(struct api *a, struct http_request *r)
{
    size_t n;
    const char *const *name = api_names(a, &n);
    json_t *data = json_array();
    for (size_t i = 0; data && i < n; i++)
        json_array_append_new(data, model_json(a, name[i]));
    send_json(r, 200, json_pack("{s:s,s:o}", "object", "list", "data", data));
}

void openai_model(struct api *a, struct http_request *r)
{
    const char *name = http_path(r) + strlen("/v1/models/");
    char text[300];
    if (api_serves(a, name, false)) {
        send_json(r, 200, model_json(a, name));
        return;
    }
    snprintf(text, sizeof text, "The model `%.200s` does not exist.", name);
    openai_error(r, 404, "model", 0, text);
}

/* ---- tokens ---- */

static const char *const of_tokenize[] = {"prompt",
                                          "messages",
                                          "add_special_tokens",
                                          "parse_special",
                                          "add_generation_prompt",
                                          "continue_final_message",
                                          "chat_template",
                                          "chat_template_kwargs",
                                          "documents",
                                          "tools",
                                          "model",
                                          "return_token_strs",
                                          NULL};

static void unknown(struct api *a, const json_t *o, const char *const *known)
{
    unsigned left = OPENAI_UNKNOWN_MAX;
    openai_unknown_all(a, &left, "", o, known);
}

/* Result of preparing a body of /tokenize or /detokenize. */
struct tokenized {
    struct openai_refusal no; /* status 0: not refused */
    uint64_t n;
    struct str tail; /* end of the response: "tokens":[…],"token_strs":…}; for /detokenize all of it */
};

/* Encodes the prompt as a completion would, so that the counts agree. */
static int encode(struct openai_refusal *no, struct text_ids *ids, const struct text *t, const json_t *o)
{
    struct err e = {0};
    struct ask base, q = {0};
    json_t *line = json_object(); /* the fields that determine the prompt */
    for (const char *const *name = of_tokenize; *name; name++)
        if (strcmp(*name, "model") && strcmp(*name, "return_token_strs") && json_object_get(o, *name))
            json_object_set(line, *name, json_object_get(o, *name));
    ask_default(&base);
    base.control = true;
    int rc = line ? ask_take_json(&e, &q, &base, line) : err_nomem(&e, "a request", 0);
    if (!rc && q.kind == ASK_IDS)
        rc = err_set(&e, ERR_NO, "prompt: expected a string, got token ids");
    else if (!rc && q.kind == ASK_TEXT)
        rc = text_encode(&e, t, ids, q.text, q.n_text, (q.specials ? TEXT_BOS : 0) | (q.control ? TEXT_CONTROL : 0));
    else if (!rc && !(rc = ask_check_template(&e, &q, t)))
        rc = text_chat(&e, t, ids, q.messages, q.n_message, q.chat_end);
    ask_free(&q);
    if (!rc)
        return 0;
    char param[120];
    openai_param_of(param, sizeof param, e.text);
    return openai_refuse(no, rc == ERR_NO ? 400 : 500, param, "%s", e.text);
}

static void tokens(struct str *w, const struct text *t, const struct text_ids *ids, bool strings)
{
    str_add_text(w, "\"tokens\":[");
    json_write_u32s(w, ids->ids, ids->n);
    str_add_text(w, strings ? "],\"token_strs\":[" : "],\"token_strs\":null}");
    for (size_t i = 0; strings && i < ids->n; i++) {
        size_t n = 0;
        const char *p = text_entry(t, ids->ids[i], &n);
        if (i)
            str_add_text(w, ",");
        json_write_string(w, p ? p : "", n);
    }
    if (strings)
        str_add_text(w, "]}");
}

static void tokenized_free(void *p)
{
    struct tokenized *d = p;
    str_free(&d->tail);
    free(d);
}

void openai_tokenize_prepare(struct api_parsed *p, const struct api_model *m)
{
    struct tokenized *d = calloc(1, sizeof *d);
    struct text_ids ids = {0};
    bool strings = false;
    if (!d)
        return;
    p->more = d;
    p->free_more = tokenized_free;
    if (p->n > TOKENIZE_BYTES_MAX)
        openai_refuse(&d->no, 413, NULL, "the request body is too large: %zu bytes, the limit of /tokenize is %u", p->n,
                      TOKENIZE_BYTES_MAX);
    else if (!openai_get_bool(&d->no, &strings, p->o, "return_token_strs", "return_token_strs") &&
             !encode(&d->no, &ids, m->text, p->o)) {
        tokens(&d->tail, m->text, &ids, strings);
        d->n = ids.n;
    }
    text_ids_free(&ids);
}

/* The prepared result, or NULL after an error response. *o: the body, to be released by the caller. */
static const struct tokenized *prepared(json_t **o, struct api *a, struct http_request *r)
{
    struct openai_refusal no = {0};
    *o = openai_body(&no, r);
    const struct api_parsed *p = api_body(r);
    const struct tokenized *d = p ? p->more : NULL;
    if (!*o || openai_model_check(&no, a, *o))
        openai_refuse_reply(r, &no, 0);
    else if (!d || d->tail.failed)
        openai_error(r, 500, NULL, 0, "out of memory");
    else if (d->no.status)
        openai_refuse_reply(r, &d->no, 0);
    else
        return d;
    return NULL;
}

void openai_tokenize(struct api *a, struct http_request *r)
{
    struct str w = {0};
    json_t *o;
    const struct tokenized *d = prepared(&o, a, r);
    if (d) {
        unknown(a, o, of_tokenize);
        str_add_text(&w, "{\"count\":");
        json_write_u64(&w, d->n);
        str_add_text(&w, ",\"max_model_len\":");
        json_write_u64(&w, api_model(a)->context);
        str_add_text(&w, ",");
        str_add(&w, d->tail.p, d->tail.n);
        if (w.failed)
            openai_error(r, 500, NULL, 0, "out of memory");
        else
            http_reply(r, 200, JSON, w.p, w.n);
    }
    str_free(&w);
    json_decref(o);
}

/* All bytes before UTF-8 is repaired: a character may span tokens. */
static int decode(struct openai_refusal *no, struct str *bytes, const struct api_model *m, const json_t *tokens)
{
    size_t n = json_array_size(tokens);
    if (!json_is_array(tokens))
        return openai_refuse(no, 400, "tokens", "tokens: expected a list of token ids");
    if (n > IDS_MAX)
        return openai_refuse(no, 400, "tokens", "tokens: too many ids: %zu, the limit is %u", n, IDS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(tokens, i);
        size_t len;
        if (!json_is_integer(v) || json_integer_value(v) < 0 || (uint64_t)json_integer_value(v) >= m->vocab)
            return openai_refuse(no, 400, "tokens", "tokens[%zu]: expected a token id below %llu", i,
                                 (unsigned long long)m->vocab);
        uint32_t id = (uint32_t)json_integer_value(v);
        const char *p = reply_bytes(m->text, id, &len);
        str_add(bytes, p, p ? len : 0);
    }
    return 0;
}

void openai_detokenize_prepare(struct api_parsed *p, const struct api_model *m)
{
    struct tokenized *d = calloc(1, sizeof *d);
    struct str bytes = {0};
    struct err e;
    char *text = NULL;
    size_t n = 0;
    if (!d)
        return;
    p->more = d;
    p->free_more = tokenized_free;
    if (!decode(&d->no, &bytes, m, json_object_get(p->o, "tokens"))) {
        if (bytes.failed || text_utf8_repair(&e, &text, &n, bytes.p ? bytes.p : "", bytes.n)) {
            openai_refuse(&d->no, 500, NULL, "out of memory");
        } else {
            str_add_text(&d->tail, "{\"prompt\":");
            json_write_string(&d->tail, text, n);
            str_add_text(&d->tail, "}");
        }
    }
    free(text);
    str_free(&bytes);
}

void openai_detokenize(struct api *a, struct http_request *r)
{
    static const char *const known[] = {"tokens", "model", NULL};
    json_t *o;
    const struct tokenized *d = prepared(&o, a, r);
    if (d) {
        unknown(a, o, known);
        http_reply(r, 200, JSON, d->tail.p, d->tail.n);
    }
    json_decref(o);
}

static json_t *entry(const struct text *t, bool has, uint32_t id)
{
    size_t n = 0;
    const char *p = has ? text_entry(t, id, &n) : NULL;
    return p ? json_stringn(p, n) : json_null();
}

void openai_tokenizer_info(struct api *a, struct http_request *r)
{
    const struct api_model *m = api_model(a);
    uint32_t bos = 0, eos = 0, pad = 0;
    bool has_bos = text_bos(m->text, &bos), has_eos = text_eos(m->text, &eos), has_pad = text_pad(m->text, &pad);
    json_t *chat = m->chat_template ? json_string(m->chat_template) : json_null();
    send_json(r, 200,
              json_pack("{s:s,s:o,s:o,s:o,s:o,s:I,s:I}", "tokenizer_class", "phasepipe", "bos_token",
                        entry(m->text, has_bos, bos), "eos_token", entry(m->text, has_eos, eos), "pad_token",
                        entry(m->text, has_pad, pad), "chat_template", chat, "vocab_size",
                        (json_int_t)text_n_token(m->text), "model_max_length", (json_int_t)m->context));
}

/* ---- health, version, load ---- */

void openai_health(struct api *a, struct http_request *r)
{
    if (api_ready(a))
        http_reply(r, 200, JSON, "{}", 2);
    else
        openai_error(r, 503, NULL, 1,
                     "not ready: the scheduler, the tokenizer or every worker is unreachable, or the server is "
                     "shutting down");
}

void openai_ping(struct api *a, struct http_request *r)
{
    (void)a;
    http_reply(r, 200, JSON, "{}", 2);
}

void openai_version(struct api *a, struct http_request *r)
{
    (void)a;
    send_json(r, 200, json_pack("{s:s}", "version", PHASEPIPE_VERSION));
}

void openai_load(struct api *a, struct http_request *r)
{
    send_json(r, 200, json_pack("{s:I}", "server_load", (json_int_t)api_running(a)));
}
