/*
 * One answer as it grows: its ids, the text that is safe to show, and where it ends. prefill calls the same code for
 * the first token as decode for all of them. Belongs to one thread.
 */
#ifndef ANSWER_H
#define ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "text/text.h"

struct answer_params {
    uint32_t max_tokens, min_tokens; /* max_tokens >= 1; no end token, stop id or stop string before min_tokens */
    bool ignore_eos;
    bool keep_stop, special_text; /* what the text has, see text_out_show; of a stop id its text too */
    const char *const *stop;      /* [n_stop] copied */
    const size_t *stop_len;
    size_t n_stop;
    const uint32_t *stop_ids; /* [n_stop_id] copied */
    size_t n_stop_id;
};

enum answer_end { ANSWER_OPEN, ANSWER_STOP_EOS, ANSWER_STOP_ID, ANSWER_STOP_TEXT, ANSWER_LENGTH };

struct answer;
/* prompt: [n_prompt] borrowed for the life of the answer; text too. */
int answer_new(struct err *e, struct answer **out, const struct text *t, const struct answer_params *p,
               const uint32_t *prompt, size_t n_prompt);
void answer_free(struct answer *a);

/* Takes the next id. The one that ends the answer as an end token or stop id has no text. *text: bytes safe to show,
 * borrowed until the next call. */
int answer_push(struct err *e, struct answer *a, uint32_t id, const char **text, size_t *n_text, enum answer_end *end);

/* The index of the stop string that matched (ANSWER_STOP_TEXT). */
int answer_stop_index(const struct answer *a);
const uint32_t *answer_ids(const struct answer *a, size_t *n);

/* Ids that must not be chosen now: end tokens and stop ids before min_tokens. */
const uint32_t *answer_banned(const struct answer *a, size_t *n);

#endif
