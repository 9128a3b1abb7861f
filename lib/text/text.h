/*
 * Text in and out of token ids, by the settings of the model file: byte-level BPE, added and control tokens, chat
 * templates, streaming detokenising, stop strings, and the chain digests that name KV blocks.
 *
 * A `struct text` is read-only after text_open and may be used from any thread.
 */
#ifndef TEXT_H
#define TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "model/gguf.h"

struct text;

/* ERR_NO naming what is unknown: tokenizer model, pre-tokenizer kind, or a vocabulary that contradicts itself. */
int text_open(struct err *e, struct text **out, const struct gguf *g);
void text_free(struct text *t);

uint32_t text_n_token(const struct text *t); /* entries with text: ids below this; rows of the model may be more (M09) */
const uint8_t *text_fingerprint(const struct text *t); /* [32] BLAKE2b-256 over entries, kinds, merges and settings */
bool text_is_control(const struct text *t, uint32_t id);
bool text_is_end(const struct text *t, uint32_t id);   /* ends a turn or the text: eos, eot, eom of the file */
bool text_bos(const struct text *t, uint32_t *id);     /* the begin token, where the file wants one added */
bool text_eos(const struct text *t, uint32_t *id);

/* The bytes of an id (borrowed; *n = 0 for control and padding ids). Out of range: *n = 0. */
const uint8_t *text_piece(const struct text *t, uint32_t id, size_t *n);
/* The entry as the file spells it, control tokens too ("<|im_end|>"). */
const char *text_entry(const struct text *t, uint32_t id, size_t *n);

/* ---- encoding ---- */

struct text_ids {
    uint32_t *ids; /* owned; text_ids_free */
    size_t n, cap;
};
void text_ids_free(struct text_ids *v);

enum {
    TEXT_BOS = 1,     /* put the begin token first where the file wants one and it is not there already */
    TEXT_CONTROL = 2, /* spellings of control tokens in the text become their ids (templates only, never user text) */
};

/* Appends the ids of `s` (UTF-8; an invalid byte is taken as U+FFFD). Near linear in n whatever the text. */
int text_encode(struct err *e, const struct text *t, struct text_ids *out, const char *s, size_t n, int flags);

struct text_message {
    const char *role;
    const char *content;
    size_t n_content;
};

/* Renders messages through the file's chat template (kinds known by their text; ERR_NO naming it where unknown) and
 * appends ids: template markers become control ids, the same characters in content become ordinary text ids. `answer`:
 * ends with the opening of the assistant's turn. */
int text_chat(struct err *e, const struct text *t, struct text_ids *out, const struct text_message *m, size_t n,
              bool answer);
/* The same as text, for people. *out: malloc'd. */
int text_chat_render(struct err *e, const struct text *t, char **out, size_t *n_out, const struct text_message *m,
                     size_t n, bool answer);

/* ---- out: detokenising and stops ---- */

struct text_out; /* one answer's state; not thread-safe */

/* `prompt` ids give the context of the first piece (a half character at its end; its text is never sent). stop: n_stop
 * strings, copied. */
int text_out_new(struct err *e, struct text_out **out, const struct text *t, const uint32_t *prompt, size_t n_prompt,
                 const char *const *stop, const size_t *stop_len, size_t n_stop);
void text_out_free(struct text_out *o);

/* Takes one generated id. Gives the bytes that are safe to show now (whole characters; nothing that may be the start of
 * a stop string), borrowed until the next call. *stopped: index of the stop string that is complete, or -1; the text
 * before it has then been given, what follows is dropped. */
void text_out_push(struct text_out *o, uint32_t id, const char **safe, size_t *n_safe, int *stopped);

/* The rest at the end: held text, an incomplete character as one U+FFFD. */
void text_out_end(struct text_out *o, const char **rest, size_t *n_rest);

/* ---- names of KV blocks ---- */

#define TEXT_BLOCK 32       /* tokens of a KV block */
#define TEXT_DIGEST 32      /* bytes of a digest */

/* BLAKE2b-256 of (parent digest, 32 ids as little-endian u32, n_salt as u64, salt). parent NULL: 32 zero bytes. */
void text_digest(uint8_t out[TEXT_DIGEST], const uint8_t *parent, const uint32_t *ids /* [32] */, const void *salt,
                 size_t n_salt);

/* Invalid bytes replaced by U+FFFD as Python's errors="replace" does. *out: malloc'd. */
int text_utf8_repair(struct err *e, char **out, size_t *n_out, const char *s, size_t n);

#endif
