/*
 * Private to lib/wire: reads msgpack from a buffer, token by token. It refuses a declared length or count that exceeds
 * the bytes left, so the memory that a caller allocates is bounded by the bytes received.
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

/* NULL, or an error text; the cursor then stays at the offending token. */
const char *cursor_next(struct cursor *c, struct tok *t);
/* Reads only the head of a bin; its bytes need not be in the buffer. */
const char *cursor_bin_head(struct cursor *c, struct tok *t);
/* Skips one value of at most `depth` levels. */
const char *cursor_skip(struct cursor *c, unsigned depth);

const char *tok_name(enum tok_type t);

#endif
