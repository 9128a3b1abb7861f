/*
 * Text to token ids and back, by the settings of the model file: byte-level BPE, added and control tokens, chat
 * templates, streaming detokenising, stop strings, and the chain digests of KV blocks.
 *
 * A `struct text` is read-only after text_open and may be used by any thread.
 */
#ifndef TEXT_H
#define TEXT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/kv_block.h"
#include "err/err.h"
#include "model/gguf.h"

struct text;

/* Reads the vocabulary of g. ERR_NO names what is not supported (tokenizer model, pre-tokenizer) or inconsistent. */
int text_open(struct err *e, struct text **out, const struct gguf *g);
void text_free(struct text *t);

/* Name of the model file without its directory, for error texts that are sent to clients. */
const char *text_file(const struct text *t);

/* Number of entries in the vocabulary. Larger ids have no text; the model may have more rows. */
uint32_t text_n_token(const struct text *t);
const uint8_t *text_fingerprint(const struct text *t); /* [32] BLAKE2b-256 over entries, kinds, merges and settings */
bool text_is_control(const struct text *t, uint32_t id);
/* True for ids that end a turn or the text: eos, eot and eom of the file, and the control tokens known as such
 * (<|im_end|>, <|eot_id|>, <|eom_id|>, <end_of_turn>, <|endoftext|>), because files name only one of several. */
bool text_is_end(const struct text *t, uint32_t id);
bool text_bos(const struct text *t, uint32_t *id); /* the BOS token of the file, whether or not prompts start with it */
bool text_pad(const struct text *t, uint32_t *id); /* the padding token of the file */
bool text_eos(const struct text *t, uint32_t *id);

/* Bytes of the longest entry, control tokens included. A text of n bytes has at least n / text_longest tokens, not
 * counting bytes that have no entry. */
size_t text_longest(const struct text *t);

/* The bytes of an id, borrowed. *n is 0 for control and padding ids and for ids out of range. */
const uint8_t *text_piece(const struct text *t, uint32_t id, size_t *n);
/* The entry as spelled in the file, control tokens included ("<|im_end|>"). Borrowed. */
const char *text_entry(const struct text *t, uint32_t id, size_t *n);

/* ---- encoding ---- */

struct text_ids {
    uint32_t *ids; /* owned; text_ids_free */
    size_t n, cap;
};
void text_ids_free(struct text_ids *v);

enum {
    TEXT_BOS = 1,     /* start with the BOS token if the file requires it and the text does not begin with it */
    TEXT_CONTROL = 2, /* control tokens spelled in the text become their ids: for rendered templates, and for prompts
                         that the client has formatted itself (parse_special); never for messages */
};

/* Appends the ids of `s`: UTF-8, in which invalid bytes are replaced as by text_utf8_repair. O(n log n) for any text.
 * Without TEXT_CONTROL the result contains no control id. User-defined entries are recognised in any text. A byte
 * without an entry in the vocabulary is omitted, as the reference does (SmolLM2 lacks some control characters and
 * planes 4 to 11). On failure nothing is appended. ERR_NO: longer than 2 GiB. */
int text_encode(struct err *e, const struct text *t, struct text_ids *out, const char *s, size_t n, int flags);

struct text_message {
    const char *role;
    const char *content;
    size_t n_content;
};

enum text_chat_end {
    TEXT_CHAT_CLOSED = 0, /* end after the last message */
    TEXT_CHAT_ANSWER = 1, /* end with the start of the assistant's turn */
    TEXT_CHAT_OPEN = 2,   /* end within the last message: its turn continues */
};

/* Renders messages by the file's chat template and appends ids. Template markers become control ids; the same
 * characters in a message become ordinary text ids. One BOS token is added if the template or the file requires it, and
 * none if `out` already has ids. ERR_NO: a template that is not one of the known ones (chat_known.c), by its beginning
 * and digest.
 *
 * Kinds: ChatML (with the template's default system message), Llama 3 (the dates of 3.1 are the template's fixed ones),
 * Mistral and Gemma. In the last two, turns must alternate, and a system message goes before the first or the last user
 * message, or is refused, as the template does. Roles are system, user, assistant, and tool in ChatML without tools;
 * developer is system unless the template mentions it; another role is refused by name. For reasoning models, the
 * reasoning of earlier turns is dropped, and an assistant message without a user message after it is refused. */
int text_chat(struct err *e, const struct text *t, struct text_ids *out, const struct text_message *m, size_t n,
              enum text_chat_end end);
/* The template as it is in the file, borrowed; NULL: none. */
const char *text_chat_template(const struct text *t, size_t *n);
/* The same as text, for tests that compare it with the output of the templates. *out is allocated; the caller frees it.
 */
int text_chat_render(struct err *e, const struct text *t, char **out, size_t *n_out, const struct text_message *m,
                     size_t n, enum text_chat_end end);

/* ---- detokenising and stop strings ---- */

struct text_out; /* state of one answer; not thread-safe */

/* `prompt`: ids before the answer. If they end within a character, the first generated bytes complete it or it becomes
 * one U+FFFD; other text of the prompt is never returned. stop: n_stop strings, copied; an empty one never matches.
 * ERR_NO: a stop string is not UTF-8. All memory is allocated here. */
int text_out_new(struct err *e, struct text_out **out, const struct text *t, const uint32_t *prompt, size_t n_prompt,
                 const char *const *stop, const size_t *stop_len, size_t n_stop);
void text_out_free(struct text_out *o);
/* Call before the first push. keep_stop: return the stop string as part of the text. control: return the spelling of
 * control tokens, which otherwise have no text. Both are false by default. */
void text_out_show(struct text_out *o, bool keep_stop, bool control);

/* Adds one generated id. Returns the bytes that are safe to show now (whole characters; nothing that may be the start
 * of a stop string), borrowed until the next call. *stopped: index of the stop string that is complete, or -1; the text
 * before it has then been returned and later text is dropped. The stop string that is complete first counts; of several
 * complete at the same byte, the longest; independent of how the bytes are divided into ids. */
void text_out_push(struct text_out *o, uint32_t id, const char **safe, size_t *n_safe, int *stopped);

/* The remaining text at the end of an answer: held text, and one U+FFFD for an incomplete character. */
void text_out_end(struct text_out *o, const char **rest, size_t *n_rest);

/* ---- digests of KV blocks ---- */

/* BLAKE2b-256 of (parent digest, 32 ids as little-endian u32, n_salt as u64, salt). If parent is NULL: 32 zero
 * bytes. */
void text_digest(uint8_t out[KV_DIGEST], const uint8_t *parent, const uint32_t *ids /* [32] */, const void *salt,
                 size_t n_salt);

/* Replaces invalid bytes by U+FFFD as Python's errors="replace" does. *out is allocated; the caller frees it. */
int text_utf8_repair(struct err *e, char **out, size_t *n_out, const char *s, size_t n);

#endif
