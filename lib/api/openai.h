/* Private to lib/api: the OpenAI surface. */
#ifndef API_OPENAI_H
#define API_OPENAI_H

#include "api/api.h"
#include "api/json_write.h"

#define OPENAI_PROMPTS_MAX 1024
#define OPENAI_TOP_MAX 20 /* log-probabilities of other tokens, as vLLM's default limit */

/* ---- openai_ask.c: a body becomes lines and what the edge itself has to know ---- */

struct openai_ask {
    bool chat, stream, usage, usage_always; /* usage: a chunk at the end; always: in each */
    bool logprobs, token_ids, as_ids;       /* as_ids: tokens are spelled token_id:N */
    bool echo, prompt_logprobs;
    uint32_t n_top, n_prompt_top;   /* of the best, beside the token itself */
    char id[API_ID_BYTES_MAX + 16]; /* "cmpl-…" */
    char *model;                    /* the first of the served names; owned */
    int64_t created;
    uint32_t n;
    bool list;     /* prompts came as a list: one that is wrong has a number */
    json_t **line; /* owned, [n_line]; NULL after openai_ask_sent */
    uint32_t n_line;
    json_t *body; /* owned, the same */
};

struct openai_no { /* why not */
    int status;
    char param[120]; /* "": none */
    char text[480];
};

/* 0, or -1 with *no set. `out` may be freed whatever is returned. */
int openai_ask_read(struct openai_no *no, struct openai_ask *out, struct api *a, struct http_request *r, bool chat);
void openai_ask_free(struct openai_ask *q);
void openai_ask_sent(struct openai_ask *q); /* the lines are not needed any more */
/* The body of a POST as an object (new reference), or NULL and why. */
json_t *openai_body(struct openai_no *no, struct http_request *r);
/* A field that has no effect is logged, once a name: `where` is "" or what it lies in. At most a few a request: *left
 * counts down, from OPENAI_UNKNOWN_MAX. */
#define OPENAI_UNKNOWN_MAX 32
/* All fields of o but those of `known`, which ends with NULL. */
void openai_unknown_all(struct api *a, unsigned *left, const char *where, const json_t *o, const char *const *known);
/* What is absent or null leaves *out as it is; path: how the field is called in words. */
int openai_get_bool(struct openai_no *no, bool *out, const json_t *o, const char *name, const char *path);
/* The name under `model`, where there is one, is served: otherwise 404. */
int openai_model_check(struct openai_no *no, const struct api *a, const json_t *o);
int openai_refuse(struct openai_no *no, int status, const char *param, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* "messages[0].role" of "messages[0].role: expected …"; "" where the text does not begin so. */
void openai_param_of(char *out, size_t n, const char *text);

/* ---- openai_reply.c: what comes back as bytes ---- */

struct openai_choice {
    struct str head;                        /* of its events, up to the text */
    struct str text;                        /* escaped: of the event that is open, or of the whole answer */
    struct str tokens, values, top, offset; /* log-probabilities; of chats all in tokens */
    struct str ids, prompt;                 /* token ids; prompt log-probabilities */
    uint64_t n_char;
    uint32_t index, n_out; /* n_out: tokens of the answer */
    bool open;             /* an event waits for its end: what follows may be the reason */
    bool listed;           /* in `opened` */
    bool begun;            /* its role has been sent */
    bool prompt_said;      /* so have the ids of its prompt */
    char reason[12];       /* "": none yet */
    struct str stop;       /* stop_reason as JSON */
};

struct openai_reply {
    const struct openai_ask *q;
    const struct text *vocab;
    struct openai_choice *choice; /* [n_line * n] */
    uint32_t n_choice;
    uint32_t *n_prompt, *n_cached; /* [n_line] */
    struct str *prompt_ids;        /* [n_line] */
    uint32_t *opened, n_opened;    /* choices that had an event since the last flush */
    struct str out;                /* events that have not been sent */
};

int openai_reply_open(struct err *e, struct openai_reply *p, const struct openai_ask *q, const struct text *vocab);
void openai_reply_close(struct openai_reply *p);
/* Copies the ids of the prompt if the answer returns them. */
int openai_reply_prompt(struct err *e, struct openai_reply *p, uint32_t line, const struct wire_prompt *q);
/* A piece: with `stream` an event in p->out (its end may be left to openai_reply_flush). */
void openai_reply_out(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_out *o);
void openai_reply_end(struct openai_reply *p, uint32_t line, uint32_t choice, const struct wire_end *w);
/* Ends events that are open, but for those that have nothing but a prompt that is echoed. */
void openai_reply_flush(struct openai_reply *p);
void openai_reply_last(struct openai_reply *p);  /* usage and the end mark */
void openai_reply_whole(struct openai_reply *p); /* the whole answer as one object, into p->out */

/* {"error":…} */
void openai_error_write(struct str *w, int status, const char *param, const char *text);

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
void openai_refuse_reply(struct http_request *r, const struct openai_no *no);

#endif
