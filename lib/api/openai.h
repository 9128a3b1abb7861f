/* Private to lib/api: the OpenAI dialect. */
#ifndef API_OPENAI_H
#define API_OPENAI_H

#include "api/api.h"
#include "api/json_write.h"
#include "base/list.h"

#define LIT(w, text) str_add(w, text, sizeof(text) - 1) /* a string literal */
#define OPENAI_PROMPTS_MAX 1024
#define OPENAI_TOP_MAX 20 /* top log-probabilities; vLLM's default limit */

/* ---- openai_request.c: from a body to requests to the gateway ---- */

struct openai_request {
    bool chat, stream, usage, usage_always; /* usage: a chunk at the end; usage_always: in each chunk */
    bool logprobs, token_ids, as_ids;       /* as_ids: tokens are written as token_id:N */
    bool echo, prompt_logprobs;
    bool control_text, keep_stop, ignore_end; /* control tokens, and those that end the answer, have a text; the end
                                                 token does not end it */
    json_t *stop_ids;                         /* chat with log-probabilities; NULL: none; owned */
    uint32_t n_top, n_prompt_top;             /* top log-probabilities, besides that of the token itself */
    char id[API_ID_BYTES_MAX + 16];           /* "cmpl-…" */
    char *model;                              /* the first served model name; owned */
    int64_t created;
    uint32_t n;
    bool list;     /* `prompt` was a list: errors name the index */
    json_t **line; /* [n_line] one request to the gateway for each prompt; owned; NULL after openai_request_sent */
    uint32_t n_line;
    json_t *body; /* the body; owned; NULL after openai_request_sent */
};

struct openai_refusal { /* why a request is refused */
    int status;
    bool context;    /* it exceeds the context length */
    char param[120]; /* the field; "": none */
    char text[520];
};

/* Returns 0, or -1 with *no set. In both cases `out` is to be freed. */
int openai_request_read(struct openai_refusal *no, struct openai_request *out, struct api *a, struct http_request *r,
                        bool chat);
void openai_request_free(struct openai_request *q);
void openai_request_sent(struct openai_request *q); /* frees body and lines once they are submitted */
/* The body of a POST as an object (new reference; it leaves the parsed body), or NULL with *no set. */
json_t *openai_body(struct openai_refusal *no, struct http_request *r);
/* Logs a field that has no effect, once for each name. `where`: "" or the path of the enclosing object. *left counts
 * down from OPENAI_UNKNOWN_MAX and bounds the log lines of a request. */
#define OPENAI_UNKNOWN_MAX 32
/* Logs all fields of o that are not in `known`, which ends with NULL. */
void openai_unknown_all(struct api *a, unsigned *left, const char *where, const json_t *o, const char *const *known);
/* If the field is absent or null, *out is unchanged. path: the name of the field in an error. */
int openai_get_bool(struct openai_refusal *no, bool *out, const json_t *o, const char *name, const char *path);
/* Refuses with 404 if the field `model` is given and not a served model name. */
int openai_model_check(struct openai_refusal *no, const struct api *a, const json_t *o);
int openai_refuse(struct openai_refusal *no, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "messages[0].role" of "messages[0].role: expected …"; "" if the text does not begin with a field. */
void openai_param_of(char *out, size_t n, const char *text);

/* ---- openai_reply.c: from frames to the bytes of the response ---- */

struct openai_choice {
    struct str head;                        /* constant start of its events, up to the text */
    struct str text;                        /* escaped text of the open event, or of the whole answer */
    struct str tokens, values, top, offset; /* log-probabilities; of chat completions all in `tokens` */
    struct str ids, prompt;                 /* token ids; prompt log-probabilities */
    uint64_t n_char;
    uint32_t index, n_out; /* n_out: tokens of the answer */
    bool open;             /* an event is not finished: the next frame may bring its finish_reason */
    bool listed;           /* in `opened` */
    bool begun;            /* its first event was sent */
    bool prompt_sent;      /* the ids of its prompt were sent */
    char reason[12];       /* "": none yet */
    struct str stop;       /* stop_reason as JSON */
};

struct openai_reply {
    const struct openai_request *q;
    const struct text *vocab;
    struct openai_choice *choice; /* [n_line * n] */
    uint32_t n_choice;
    uint32_t *n_prompt, *n_cached; /* [n_line] */
    struct str *prompt_ids;        /* [n_line] */
    uint32_t *opened, n_opened;    /* choices with an event since the last flush */
    struct str out;                /* bytes not sent yet */
    struct str *part;              /* [n_part] of a response as one object, after openai_reply_whole */
    size_t n_part, cap_part;
    size_t n_bytes;      /* of all choices together */
    struct list pending; /* log-probabilities that are not written yet */
};

int openai_reply_open(struct err *e, struct openai_reply *p, const struct openai_request *q, const struct text *vocab);
void openai_reply_close(struct openai_reply *p);
/* Stores the prompt's token count, and its ids if the response returns them. */
int openai_reply_prompt(struct err *e, struct openai_reply *p, uint32_t line, const struct wire_prompt *q);
/* Adds tokens; when streaming, an event to p->out (openai_reply_flush may have to finish it). */
void openai_reply_out(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_out *o);
void openai_reply_end(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_end *w);
/* Finishes open events, except those that hold only an echoed prompt. */
void openai_reply_flush(struct openai_reply *p);
void openai_reply_last(struct openai_reply *p); /* end of a stream: usage and [DONE] */
/* Writes the response as one object into p->part. Long pieces are moved instead of copied, so that it does not delay
 * other requests. */
void openai_reply_whole(struct openai_reply *p);
bool openai_reply_failed(const struct openai_reply *p); /* no memory for a part */

size_t openai_choice_bytes(const struct openai_choice *c);

/* ---- openai_logprobs.c ---- */

void openai_logprobs_add(struct openai_reply *p, struct openai_choice *c, const struct wire_out *o);
/* Writes some of those that are pending, which takes a few milliseconds at most; false: none is left. Must be called
 * until then before openai_reply_whole. */
bool openai_logprobs_work(struct openai_reply *p);
void openai_logprobs_free(struct openai_reply *p);

/* ---- openai_error.c ---- */

/* {"error":…} */
void openai_error_write(struct str *w, const struct openai_refusal *no);
/* Responds with it; retry_s as in struct api_error. r is invalid afterwards. */
void openai_refuse_reply(struct http_request *r, const struct openai_refusal *no, double retry_s);

/* ---- openai_info.c, openai_spec.c: the other routes ---- */
void openai_models(struct api *a, struct http_request *r);
void openai_model(struct api *a, struct http_request *r);
void openai_tokenize(struct api *a, struct http_request *r);
void openai_tokenize_prepare(struct api_parsed *p, const struct api_model *m);
void openai_detokenize_prepare(struct api_parsed *p, const struct api_model *m);
void openai_detokenize(struct api *a, struct http_request *r);
void openai_tokenizer_info(struct api *a, struct http_request *r);
void openai_health(struct api *a, struct http_request *r);
void openai_ping(struct api *a, struct http_request *r);
void openai_version(struct api *a, struct http_request *r);
void openai_load(struct api *a, struct http_request *r);
void openai_spec(struct api *a, struct http_request *r);

#endif
