/*
 * Shared by the files of lib/text; private to them.
 */
#ifndef TEXT_PRIVATE_H
#define TEXT_PRIVATE_H

#include "text/text.h"

#define TEXT_NONE UINT32_MAX
#define TEXT_N_MAX ((size_t)INT32_MAX) /* bytes of one text: positions in a piece are 32-bit */

/* The kinds of tokenizer.ggml.token_type. */
enum {
    ENTRY_UNDEFINED = 0,
    ENTRY_NORMAL = 1,
    ENTRY_UNKNOWN = 2,
    ENTRY_CONTROL = 3,
    ENTRY_USER = 4,
    ENTRY_UNUSED = 5,
    ENTRY_BYTE = 6,
};

struct text_entry_row {
    const char *entry;    /* as spelled in the file; in `struct text`.entry_bytes */
    const uint8_t *piece; /* the bytes that the entry stands for; in .piece_bytes */
    uint32_t n_entry, n_piece;
    uint8_t kind; /* ENTRY_… */
    bool end;     /* ends a turn or the text */
};

/* ---- utf8.c ---- */

/* Decodes the first character of s[0, n), n > 0. Returns its length, with its code point in *cp; or minus the length of
 * an invalid sequence (the longest prefix of a possible character, at least 1); or 0 if all n bytes are the start of a
 * possible character. */
int text_utf8_step(const uint8_t *s, size_t n, uint32_t *cp);
int text_utf8_put(uint8_t out[4], uint32_t cp); /* returns the number of bytes written */
bool text_utf8_valid(const char *s, size_t n);
bool text_is_space(uint32_t cp); /* White_Space of Unicode; not U+180E, since Unicode 6.3 */

/* ---- split.c ---- */

/* Pre-tokenizer patterns, as published by Hugging Face. */
enum text_split { SPLIT_GPT2, SPLIT_SMOLLM, SPLIT_LLAMA3, SPLIT_QWEN2 };

/* Length of the piece that starts at s[from], greater than 0. s[0, n) is valid UTF-8, from < n. */
size_t text_split_next(enum text_split how, const char *s, size_t n, size_t from);

/* ---- nfc.c ---- */

/* NFC of valid UTF-8. *out is NULL if the text is in that form already; otherwise allocated, the caller frees it. */
int text_nfc(struct err *e, char **out, size_t *n_out, const char *s, size_t n);

/* ---- entry_map.c: entries by spelling ---- */

struct text_entry_map {
    uint32_t *slot; /* [n_slot] id, or TEXT_NONE if free */
    size_t n_slot;  /* a power of two */
};
int text_entry_map_build(struct err *e, struct text_entry_map *map, const struct text_entry_row *row, uint32_t n);
uint32_t text_entry_find(const struct text_entry_map *map, const struct text_entry_row *row, const char *s, size_t n);

/* ---- bpe.c ---- */

struct text_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: free */
    uint32_t rank, id;
};
struct text_merges {
    struct text_merge *slot; /* [n_slot] */
    size_t n_slot;           /* a power of two */
};
int text_merges_new(struct err *e, struct text_merges *m, size_t n);
void text_merges_put(struct text_merges *m, uint32_t left, uint32_t right, uint32_t rank, uint32_t id);

struct text_symbol {
    uint32_t id, prev, next; /* id TEXT_NONE: merged away */
};
struct text_step {
    uint32_t rank, pos, id;
};
struct text_bpe { /* working memory of one text_encode */
    struct text_symbol *sym;
    struct text_step *heap;
    size_t cap_sym, n_heap, cap_heap;
};
void text_bpe_free(struct text_bpe *b);

/* Appends the ids of one piece. */
int text_bpe_encode(struct err *e, struct text_ids *out, struct text_bpe *b, const struct text *t, const uint8_t *s,
                    size_t n);

/* ---- added.c: tokens that are recognised before the text is split ---- */

struct text_trie_node {
    uint32_t child, sibling; /* 0: none */
    uint32_t id;             /* of the token that ends here, or TEXT_NONE */
    uint8_t byte;
};
struct text_added {
    struct text_trie_node *node; /* [n] node 0 is unused */
    uint32_t first[256];         /* node of a first byte, or 0 */
    size_t n, cap;
};
int text_added_put(struct err *e, struct text_added *a, const char *s, size_t n, uint32_t id);
void text_added_free(struct text_added *a);
/* The leftmost token in s[from, n), and the longest at that position: its id, position and length, or TEXT_NONE. */
uint32_t text_added_find(const struct text_added *a, size_t *at, size_t *len, const char *s, size_t n, size_t from);

/* ---- chat_known.c ---- */

#define TEXT_CHAT_DIGEST 33 /* 32 digits and a zero */

/* BLAKE2b-128 of a template without its last line feed, which Jinja drops. */
void text_chat_digest(char out[TEXT_CHAT_DIGEST], const char *template, size_t n);
/* Name of the model whose template has this digest, or NULL. */
const char *text_chat_known(const char *digest);

/* ---- chat_kind.c ---- */

enum text_chat_kind { CHAT_ABSENT, CHAT_UNKNOWN, CHAT_CHATML, CHAT_LLAMA3, CHAT_MISTRAL, CHAT_GEMMA };

struct text_chat_style {
    enum text_chat_kind kind;
    enum text_chat_kind markers; /* whose markers the template has, even if it is not known */
    char digest[TEXT_CHAT_DIGEST];
    char *head;           /* CHAT_UNKNOWN: the beginning of the template, for the error text; else NULL */
    char *default_system; /* added if the first message is not a system message; or NULL */
    size_t n_default_system;
    bool writes_bos;
    bool trims;       /* white space around contents is removed */
    bool think;       /* chatml: reasoning of earlier turns is dropped */
    bool tool;        /* chatml: tool messages have their own format, which is not supported */
    bool developer;   /* the template mentions the role developer; elsewhere it is the role system */
    bool dated;       /* llama3: there is always a system turn, and it starts with two dates */
    bool no_system;   /* mistral, gemma: the template does not support a system message */
    bool system_last; /* mistral: the system message goes before the last user message, not the first */
    const char *inst_open, *inst_close; /* mistral: with the spaces of the template */
    const char *answer_open, *answer_close;
};
/* The style that its markers and phrases suggest; right only for templates that were compared with Jinja. */
int text_chat_style_of(struct err *e, struct text_chat_style *out, const char *template, size_t n);
/* The same, but CHAT_UNKNOWN if the template is not a known one. */
int text_chat_recognise(struct err *e, struct text_chat_style *out, const char *template, size_t n);
void text_chat_style_free(struct text_chat_style *c);
/* Control tokens of the kind; the list ends with NULL. */
const char *const *text_chat_markers(enum text_chat_kind kind);

/* ---- vocab.c ---- */

struct text {
    uint32_t n_token;
    struct text_entry_row *row; /* [n_token] */
    char *entry_bytes;
    uint8_t *piece_bytes;
    struct text_entry_map map;
    struct text_merges merges;
    struct text_added added;   /* user-defined tokens */
    struct text_added control; /* user-defined and control tokens */
    uint32_t byte_id[256];     /* TEXT_NONE: the vocabulary has no entry for the byte, which is then omitted */
    size_t n_piece_max, n_entry_max;
    enum text_split split;
    bool nfc, ignore_merges;
    bool add_bos;
    uint32_t bos, eos, pad; /* TEXT_NONE: none */
    char *path;
    struct text_chat_style chat;
    char *template; /* NULL: none */
    size_t n_template;
    uint8_t fingerprint[32];
};

/* The code point (below 512) that stands for a byte in entries. */
uint32_t text_byte_spelling(uint8_t byte);

/* ---- encode.c ---- */

int text_ids_push(struct err *e, struct text_ids *v, uint32_t id);
/* Working memory, reused within one text_encode. */
struct text_run {
    struct text_bpe bpe;
    char *spelt;
    size_t cap_spelt;
};
/* Appends the ids of valid UTF-8 in which only user-defined tokens are recognised. */
int text_encode_run(struct err *e, struct text_ids *out, struct text_run *w, const struct text *t, const char *s,
                    size_t n);
void text_run_free(struct text_run *w);

/* ---- digest.c ---- */

void text_fingerprint_make(struct text *t, const struct gguf_str *merge, uint64_t n_merge);

#endif
