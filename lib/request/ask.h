/*
 * A request as JSON: the fields of the OpenAI API, as a line of a file or (later) the body of an HTTP request.
 *
 * Every field is checked here by type and range, and named by its path in the text of an error (ERR_NO). null equals
 * absent. Fields that are known and cannot be honoured are refused by name; unknown ones are kept in `extra`. Ids are
 * checked against the model's rows by ask_check_ids, because a list of ids says nothing before the model is known.
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
#define ASK_BAD_WORDS_MAX 1024 /* texts that may not be said */
#define ASK_BAD_BYTES_MAX 1024 /* of each */
#define ASK_BIAS_ABS_MAX 100.0
#define ASK_TEMPERATURE_MAX 10000.0

#define ASK_ID_TEXT 24 /* of an id that is a number */

enum ask_kind {
    ASK_TEXT = 1,     /* completed as it stands */
    ASK_IDS = 2,      /* the same, already ids */
    ASK_MESSAGES = 3, /* through the chat template */
};

struct ask {
    enum ask_kind kind;
    const char *id; /* NULL: none given; borrowed from `json` or id_text */
    size_t n_id;
    const char *text; /* ASK_TEXT */
    size_t n_text;
    bool specials; /* ASK_TEXT: put the begin token where the model wants one */
    bool control;  /* ASK_TEXT: spellings of control tokens are control tokens, as in a rendered template */
    uint32_t *ids; /* ASK_IDS; owned */
    size_t n_ids;
    struct text_message *messages; /* ASK_MESSAGES; owned, texts borrowed from `json` or `joined` */
    size_t n_message;
    enum text_chat_end chat_end; /* ASK_MESSAGES */
    uint32_t *prefix;            /* ids before those of the prompt, which then has no begin token; owned */
    size_t n_prefix;
    int64_t truncate;     /* keep so many ids of the prompt, its last; -1: as many as max_tokens leaves; 0: all */
    uint32_t window;      /* tokens of prompt and answer, where it is less than the model's; 0: the model's */
    bool strict_window;   /* a max_tokens of the line that the window does not leave is refused, not cut */
    bool has_max_tokens;  /* the line has one */
    struct wire_str *bad; /* texts that may not be said: their ids are for who has the vocabulary; owned */
    uint32_t n_bad;
    uint32_t n;             /* choices */
    struct wire_sampling s; /* arrays are `stop`, `stop_ids`, `bias`, `allowed` */
    bool has_seed;
    const char *salt;
    size_t n_salt;
    int32_t priority;
    json_t *extra; /* unknown fields, an object; NULL: none; owned */

    /* Owned memory behind the pointers above. */
    json_t *json;
    char id_text[ASK_ID_TEXT];
    struct wire_str *stop;
    uint32_t *stop_ids;
    struct wire_bias *bias;
    uint32_t *allowed;
    char **joined;
    size_t n_joined;
};

/*
 * Reads one object of n bytes. Fields that are absent keep the value of `defaults`, whose arrays must outlive `out`.
 * `out` may be freed with ask_free whatever is returned, and its id is set where the line had one, so that an error can
 * be sent under it. Neither line number nor file is in the text; the caller has them.
 */
int ask_read(struct err *e, struct ask *out, const struct ask *defaults, const char *line, size_t n);
/* The same of an object that is parsed already; takes the reference, on failure too. */
int ask_take_json(struct err *e, struct ask *out, const struct ask *defaults, json_t *o);
void ask_free(struct ask *a);

/* Only the JSON of a line, an object (new reference). Seeds and ids beyond its integers have become texts. */
int ask_parse(struct err *e, json_t **out, const char *line, size_t n);

/* The id of a request that is parsed already, as ask_read takes it: borrowed from o or from buf; none: its n is 0. */
struct wire_str ask_id(char buf[ASK_ID_TEXT], const json_t *o);

/* Whether a field of this name means something here, be it only that it is refused. */
bool ask_knows(const char *name);

/* The default of everything: greedy, one choice, max_tokens 512. */
void ask_default(struct ask *a);

/* Every id that the request names is below n_row. */
int ask_check_ids(struct err *e, const struct ask *a, int64_t n_row);

/* "messages[3].content" while a value is read. */
struct ask_path {
    char text[200];
    size_t n;
};

/* The field at `path` is wrong: "PATH: expected WHAT, got a TYPE". */
int ask_wrong(struct err *e, const struct ask_path *path, const char *what, const json_t *got);

#endif
