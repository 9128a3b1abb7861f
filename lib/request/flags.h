/* Command-line flags of a request: defaults for fields of request/ask.h. */
#ifndef REQUEST_FLAGS_H
#define REQUEST_FLAGS_H

#include <jansson.h>

#include "cli/cli.h"
#include "request/ask.h"

struct ask_flags {
    const char *system; /* NULL: none */
    uint64_t max_tokens, min_tokens, top_k, seed, logprobs;
    double temp, top_p, min_p, repetition, presence, frequency;
    bool ignore_eos, echo;
    struct cli_list stop, stop_id, bias;
    struct { /* whether the flag was given */
        bool max_tokens, min_tokens, top_k, seed, logprobs, temp, top_p, min_p, repetition, presence, frequency;
    } given;
};

#define ASK_FLAGS_N 17 /* rows of ask_flags_options */
void ask_flags_init(struct ask_flags *f);
void ask_flags_free(struct ask_flags *f);
void ask_flags_options(struct cli_opt *out /* [ASK_FLAGS_N] */, struct ask_flags *f);
bool ask_flags_given(const struct ask_flags *f); /* whether any flag was given */
/* ERR_USAGE: the flags contradict each other. */
int ask_flags_check(struct err *e, const struct ask_flags *f);

/* Sets the defaults for ask_read; freed by ask_free. */
int ask_flags_defaults(struct err *e, struct ask *a, const struct ask_flags *f);

/* The given flags as fields of a JSON object (new reference). */
int ask_flags_json(struct err *e, json_t **out, const struct ask_flags *f);

/* A request as a line of JSON, and its id; both malloc'd. */
struct ask_line {
    char *text;
    size_t n;
    char *id; /* NULL: none */
    size_t n_id;
};
/* A request with one text: completed without a template (raw), or as a user message. */
int ask_line_of_text(struct err *e, struct ask_line *out, const struct ask_flags *f, bool raw, const char *text,
                     size_t n);
/* A line, with the flags as defaults of its absent fields. The line is parsed once. Without flags, or if it is not a
 * valid request, the text is copied unchanged: tokenize reports the error. */
int ask_line_with_flags(struct err *e, struct ask_line *out, const struct ask_flags *f, const char *line, size_t n);
void ask_line_free(struct ask_line *l);

#endif
