/* The flags of a request on a command line: fields of request/ask.h that a line of JSON may leave out. */
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
    struct { /* on the command line */
        bool max_tokens, min_tokens, top_k, seed, logprobs, temp, top_p, min_p, repetition, presence, frequency;
    } given;
};

#define ASK_FLAGS_N 17 /* rows of the table */
void ask_flags_init(struct ask_flags *f);
void ask_flags_free(struct ask_flags *f);
void ask_flags_options(struct cli_opt *out /* [ASK_FLAGS_N] */, struct ask_flags *f);
bool ask_flags_given(const struct ask_flags *f); /* one of them at least */
/* ERR_USAGE where flags contradict each other. */
int ask_flags_check(struct err *e, const struct ask_flags *f);

/* As the defaults of ask_read; ask_free ends them. */
int ask_flags_defaults(struct err *e, struct ask *a, const struct ask_flags *f);

/* Those given, as fields of a JSON object (new reference). */
int ask_flags_json(struct err *e, json_t **out, const struct ask_flags *f);

/* A request as a line of JSON, and its id; both malloc'd. */
struct ask_line {
    char *text;
    size_t n;
    char *id; /* NULL: the line has none */
    size_t n_id;
};
/* A request of one text: completed as it stands (raw), or a user message. */
int ask_line_of_text(struct err *e, struct ask_line *out, const struct ask_flags *f, bool raw, const char *text,
                     size_t n);
/* A line with the flags as the defaults of the fields that it leaves out. The line is parsed once, for both. Without
 * flags, or if the line is not a request, the text is kept as it is: the error is reported by who reads the fields. */
int ask_line_with_flags(struct err *e, struct ask_line *out, const struct ask_flags *f, const char *line, size_t n);
void ask_line_free(struct ask_line *l);

#endif
