/*
 * One answer while it is generated: its ids, the text that no later token can change, and its end. prefill uses it for
 * the first token, decode for all tokens. One thread at a time uses an answer.
 */
#ifndef ANSWER_H
#define ANSWER_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "text/text.h"

struct answer_params {
    uint32_t max_tokens,
        min_tokens; /* max_tokens >= 1; end tokens, stop ids and stop strings have no effect before min_tokens */
    bool ignore_eos;
    bool keep_stop, special_text; /* text_out_show; keep_stop includes the text of a stop id */
    const char *const *stop;      /* [n_stop] copied */
    const size_t *stop_len;
    size_t n_stop;
    const uint32_t *stop_ids; /* [n_stop_id] copied */
    size_t n_stop_id;
};

enum answer_end { ANSWER_OPEN, ANSWER_STOP_EOS, ANSWER_STOP_ID, ANSWER_STOP_TEXT, ANSWER_LENGTH };

struct answer;
/* prompt ([n_prompt]) and t are borrowed for the life of the answer. */
int answer_new(struct err *e, struct answer **out, const struct text *t, const struct answer_params *p,
               const uint32_t *prompt, size_t n_prompt);
void answer_free(struct answer *a);

/* Appends the next id. An end token or stop id that ends the answer has no text. *text: new bytes that no later token
 * can change, borrowed until the next call. */
int answer_push(struct err *e, struct answer *a, uint32_t id, const char **text, size_t *n_text, enum answer_end *end);

/* The index of the stop string that matched (ANSWER_STOP_TEXT). */
int answer_stop_index(const struct answer *a);

/* Ids that must not be chosen next: end tokens and stop ids before min_tokens. */
const uint32_t *answer_banned(const struct answer *a, size_t *n);

#endif
