/*
 * An answer as JSON: collects `out` frames until `end` or `err` and makes one object with the fields that
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
    char *text; /* with echo the prompt first; n_text bytes and a NUL */
    size_t n_text, cap_text;
    uint32_t *ids;
    size_t n_id, cap_id;
    struct reply_lp {
        json_t *tokens, *logprobs, *top, *offset; /* NULL: no log-probabilities so far */
        uint64_t n_char;                          /* characters of these tokens */
    } lp, prompt_lp;                              /* prompt_lp: of a prompt without echo */
};

struct reply *reply_new(uint64_t seq, uint32_t index); /* NULL: no memory */
void reply_free(struct reply *a);

/* Appends a frame. `vocab` spells the tokens of log-probabilities; may be NULL if o->n_lp is 0. */
int reply_add(struct err *e, struct reply *a, const struct wire_out *o, const struct text *vocab);

/* Durations in nanoseconds; 0 if a stage did not report. Two clocks are compared only if both are of the same host;
 * otherwise durations are added. */
struct reply_times {
    uint64_t total_ns, load_ns, prefill_ns, decode_ns, ttft_ns, queue_ns, transfer_ns;
    uint32_t n_prompt, n_cached, n_answer;
};
void reply_times(struct reply_times *t, const struct wire_end *w);

/* Makes the object; *out: a new reference. `extra`: fields of the request that are passed through (reply_extra), or
 * NULL. */
int reply_json(struct err *e, json_t **out, const struct reply *a, const struct wire_end *w, const json_t *extra);
/* The same for a failed request, with the output before the failure. */
int reply_error_json(struct err *e, json_t **out, const struct reply *a, const struct wire_error *w,
                     const json_t *extra);

/* Unknown fields of a frame as an object (new reference), with those of the request moved out of their map. *n_choice:
 * the request's number of choices, 1 if not given. */
int reply_extra(struct err *e, json_t **out, uint32_t *n_choice, const struct wire_extra *x);

/* The bytes of a token: its text, or the name of a control token. Borrowed; *n is 0 if it has none. */
const char *reply_bytes(const struct text *vocab, uint32_t id, size_t *n);
/* The number of characters that begin in a token; a character that spans tokens counts with the first. */
uint64_t reply_characters(const struct text *vocab, uint32_t id);

/* The span of a stage; NULL: not reported. */
const struct wire_span *reply_span(const struct wire_end *w, const char *stage);
bool reply_same_host(const struct wire_span *a,
                     const struct wire_span *b); /* so that clocks are comparable; false if one is NULL */

/* A token as text: its text; the name of a control token; bytes that are not UTF-8 as "bytes:\xe2\x80"; an id without
 * text as "token_id:7". New reference. */
json_t *reply_token(const struct text *vocab, uint32_t id);

#endif
