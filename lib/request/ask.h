/*
 * A request as JSON, with the fields of the OpenAI API: a line of a file, or the body of an HTTP request.
 *
 * Each field is checked for type and range; an error (ERR_NO) names it by its path. null counts as absent. Known fields
 * that are not supported are refused by name; unknown ones are kept in `extra`. ask_check_ids compares ids with the
 * model's vocabulary, which is not known here.
 */
#ifndef REQUEST_ASK_H
#define REQUEST_ASK_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "err/err.h"
#include "text/text.h"
#include "wire/wire.h"

#define ASK_LINE_BYTES_MAX (32u << 20)
#define ASK_CHOICES_MAX 128
#define ASK_MESSAGES_MAX 65536
#define ASK_STOP_BYTES_MAX 16384 /* of all stop texts together: each choice keeps a copy */
#define ASK_BAD_WORDS_MAX 1024   /* strings that the answer must not contain */
#define ASK_BAD_BYTES_MAX 1024   /* bytes of each */
#define ASK_BIAS_ABS_MAX 100.0
#define ASK_TEMPERATURE_MAX 10000.0

#define ASK_ID_TEXT 24 /* bytes of a numeric id as text */

enum ask_kind {
    ASK_TEXT = 1,     /* a text, completed without a chat template */
    ASK_IDS = 2,      /* the same as token ids */
    ASK_MESSAGES = 3, /* formatted by the chat template */
};

struct ask {
    enum ask_kind kind;
    const char *id; /* NULL: none; borrowed from `json` or id_text */
    size_t n_id;
    const char *text; /* ASK_TEXT */
    size_t n_text;
    bool specials; /* ASK_TEXT: add the begin token if the model has one */
    bool control;  /* ASK_TEXT: markers in the text are control tokens, as in a rendered template */
    uint32_t *ids; /* ASK_IDS; owned */
    size_t n_ids;
    struct text_message *messages; /* ASK_MESSAGES; owned, texts borrowed from `json` or `joined` */
    size_t n_message;
    enum text_chat_end chat_end; /* ASK_MESSAGES */
    uint32_t *prefix;            /* ids put before those of the prompt, which then gets no begin token; owned */
    size_t n_prefix;
    int64_t
        truncate; /* keep only the last so many ids of the prompt; -1: as many as max_tokens leaves room for; 0: all */
    uint32_t window;      /* context length in tokens, if less than the model's; 0: the model's */
    bool strict_window;   /* if max_tokens was given and exceeds what the context length leaves, refuse it instead of
                             reducing it */
    bool has_max_tokens;  /* max_tokens was given */
    struct wire_str *bad; /* strings that the answer must not contain, to be tokenized by the caller; owned */
    uint32_t n_bad;
    uint32_t n;             /* choices */
    struct wire_sampling s; /* arrays are `stop`, `stop_ids`, `bias`, `allowed` */
    const char *template;   /* ASK_MESSAGES: the chat template that the request wants; NULL: that of the model */
    size_t n_template;
    const json_t *template_args; /* ASK_MESSAGES: variables for the template, an object; NULL: none */
    bool no_thinking;            /* ASK_MESSAGES: no reasoning before the answer */
    bool has_seed;
    const char *salt;
    size_t n_salt;
    int32_t priority;
    json_t *extra; /* unknown fields, an object; NULL: none; owned */

    /* Owned memory that the pointers above refer to. */
    json_t *json;
    const json_t *object; /* part of `json`: that with the fields */
    char id_text[ASK_ID_TEXT];
    struct wire_str *stop;
    uint32_t *stop_ids;
    struct wire_bias *bias;
    uint32_t *allowed;
    char **joined;
    size_t n_joined;
};

/*
 * Reads one object of n bytes. Absent fields keep the value of `defaults`, whose arrays must outlive `out`. In any case
 * `out` may be freed with ask_free, and its id is set if the line had one, so that the caller can send an error under
 * it. The error text contains neither line number nor file name; the caller adds them.
 */
int ask_read(struct err *e, struct ask *out, const struct ask *defaults, const char *line, size_t n);
/* The same for a parsed object; takes the reference, on failure too. */
int ask_take_json(struct err *e, struct ask *out, const struct ask *defaults, json_t *o);
void ask_free(struct ask *a);

/* Parses a line to an object (new reference). Seeds and ids beyond 64-bit signed integers become strings. */
int ask_parse(struct err *e, json_t **out, const char *line, size_t n);

/* The id of a parsed request, borrowed from o or from buf; n is 0 if it has none. */
struct wire_str ask_id(char buf[ASK_ID_TEXT], const json_t *o);

/* Whether a field of this name is known, be it as unsupported. */
bool ask_knows(const char *name);

/* Whether a message of this role is a system message: system, or developer, its newer name. */
bool ask_is_system(const char *role);

/* Default values: greedy, one choice, max_tokens 512. */
void ask_default(struct ask *a);

/* Checks that every token id of the request is below n_row. ERR_NO names the field. */
int ask_check_ids(struct err *e, const struct ask *a, int64_t n_row);

/* ---- context.c: the error of a request that exceeds the context length ---- */

struct ask_context {
    uint64_t context;            /* context length in tokens */
    uint64_t n_prompt, n_answer; /* tokens of the prompt, and of the answer that was requested (at least 1) */
    bool at_least;               /* n_prompt is a lower bound: the prompt was not tokenized */
};

/* Sets the error in the wording of OpenAI and vLLM, which clients match on, and returns ERR_NO. */
int ask_context_error(struct err *e, const struct ask_context *c);
/* Whether the text begins with that error; if so, *out has its numbers. */
bool ask_context_read(struct ask_context *out, const char *text);

/* Checks that the template renders as the request demands: templates are not run, so only a request for what happens
 * anyway can be met. ERR_NO names the field. */
int ask_check_template(struct err *e, const struct ask *a, const struct text *t);

/* Path of the value being read, e.g. "messages[3].content". */
struct ask_path {
    char text[200];
    size_t n;
};

/* Sets the error "PATH: expected WHAT, got TYPE" and returns ERR_NO. */
int ask_wrong(struct err *e, const struct ask_path *path, const char *what, const json_t *got);

#endif
