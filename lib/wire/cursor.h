/*
 * Private to lib/wire: reading msgpack out of a buffer, token by token. A declared length or count that cannot be true
 * for the bytes left is refused where it is read, so what a caller allocates is bounded by what has arrived.
 */
#ifndef WIRE_CURSOR_H
#define WIRE_CURSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum tok_type { TOK_NIL, TOK_BOOL, TOK_UINT, TOK_INT, TOK_F32, TOK_F64, TOK_STR, TOK_BIN, TOK_ARRAY, TOK_MAP, TOK_EXT };

struct tok {
    enum tok_type type;
    uint64_t u;       /* TOK_UINT, TOK_BOOL; bytes of str, bin and ext; elements of an array, pairs of a map */
    int64_t i;        /* TOK_INT: below 0 */
    double f;         /* TOK_F32, TOK_F64 */
    const uint8_t *p; /* bytes of str, bin, ext */
    size_t at;        /* offset of the token */
};

struct cursor {
    const uint8_t *p;
    size_t n, at;
};

/* NULL, or what is wrong in words, the cursor then standing at the offending token. */
const char *cursor_next(struct cursor *c, struct tok *t);
/* The head of a bin only; its length is not compared with what is left. */
const char *cursor_bin_head(struct cursor *c, struct tok *t);
/* Steps over one value of at most `depth` levels. */
const char *cursor_skip(struct cursor *c, unsigned depth);

const char *tok_name(enum tok_type t);

#endif
