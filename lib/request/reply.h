/*
 * An answer as JSON: `out` frames are collected until `end` or `err`, then it is one object with the fields that
 * docs/man/stream.1 lists.
 */
#ifndef REQUEST_REPLY_H
#define REQUEST_REPLY_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "err/err.h"
#include "text/text.h"
#include "wire/wire.h"

struct reply {
    uint64_t seq;
    uint32_t index;
    char *text; /* the prompt's first with echo; n_text bytes and a NUL */
    size_t n_text, cap_text;
    uint32_t *ids;
    size_t n_id, cap_id;
    struct reply_lp {
        json_t *tokens, *logprobs, *top, *offset; /* NULL until a log-probability comes */
        uint64_t n_char;                          /* characters of the tokens with log-probabilities so far */
    } lp, prompt_lp;                              /* prompt_lp: of a prompt that is not in the text */
};

struct reply *reply_new(uint64_t seq, uint32_t index); /* NULL: no memory */
void reply_free(struct reply *a);

/* Appends a piece. `vocab` spells the tokens of log-probabilities; it may be NULL where o->n_lp is 0. */
int reply_add(struct err *e, struct reply *a, const struct wire_out *o, const struct text *vocab);

/* All durations in nanoseconds; 0 where a stage did not say. Those that compare clocks are taken only where both are of
 * the same host, otherwise added up from durations. */
struct reply_times {
    uint64_t total_ns, load_ns, prefill_ns, decode_ns, ttft_ns, queue_ns, transfer_ns;
    uint32_t n_prompt, n_cached, n_answer;
};
void reply_times(struct reply_times *t, const struct wire_end *w);

/* The object; *out: a new reference. `extra`: fields of the request that are passed through, or NULL (reply_extra). */
int reply_json(struct err *e, json_t **out, const struct reply *a, const struct wire_end *w, const json_t *extra);
/* The same for a request that failed; what came before the failure is in it. */
int reply_error_json(struct err *e, json_t **out, const struct reply *a, const struct wire_error *w,
                     const json_t *extra);

/* Unknown fields of a frame as an object (new reference), those of the request lifted out of their map; *n_choice: how
 * many answers the request asked for, 1 where it does not say. */
int reply_extra(struct err *e, json_t **out, uint32_t *n_choice, const struct wire_extra *x);

/* The bytes that a token is spelled by: its text, or of a control token its name. Borrowed; *n is 0 where it has none.
 */
const char *reply_bytes(const struct text *vocab, uint32_t id, size_t *n);
/* Characters that begin in the text of a token; those of one that is cut in two count with its first half. */
uint64_t reply_characters(const struct text *vocab, uint32_t id);

/* What a stage did; NULL: it did not say. */
const struct wire_span *reply_span(const struct wire_end *w, const char *stage);
bool reply_same_host(const struct wire_span *a, const struct wire_span *b); /* one clock; false where one is NULL */

/* The spelling of a token: its text; for a control token its name; bytes that are no text as "bytes:\xe2\x80"; an id
 * without text as "token_id:7". New reference. */
json_t *reply_token(const struct text *vocab, uint32_t id);

#endif
