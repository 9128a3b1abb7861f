/*
 * A string builder. A zeroed `struct str` is empty. Appending does not return errors: after the first failed allocation
 * the builder is `failed`, keeps its contents and ignores further appends; the writer checks once at the end, with
 * str_check() or str_take(). The bytes are followed by a NUL that is not counted; they may contain NULs themselves.
 */
#ifndef BASE_STR_H
#define BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "err/err.h"

struct str {
    char *p; /* [n + 1]; NULL: nothing was appended */
    size_t n, cap;
    bool failed;
};

void str_add(struct str *s, const void *bytes, size_t n);
void str_add_text(struct str *s, const char *text); /* NUL-terminated */
void str_add_char(struct str *s, char c);
void str_printf(struct str *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Makes room for n bytes at the end. The caller fills them, adds to s->n and sets the NUL with str_cut(s, s->n). NULL:
 * no memory (failed). */
char *str_reserve(struct str *s, size_t n);

void str_cut(struct str *s, size_t n);     /* keeps the first n bytes (at most the current length, or the room of
                                              str_reserve); keeps the memory and `failed` */
void str_clear(struct str *s);             /* empty and not failed; keeps the memory */
void str_free(struct str *s);              /* frees the memory and zeroes s */
const char *str_text(const struct str *s); /* "" while p is NULL; valid until the next append */

/* ERR_SYS "out of memory for WHAT …" if an append failed. */
int str_check(struct err *e, const struct str *s, const char *what);
/* Transfers the bytes to the caller, who frees them; s is empty afterwards. n may be NULL. For an empty builder *out is
 * "", allocated. On failure s is freed and *out is NULL. */
int str_take(struct err *e, char **out, size_t *n, struct str *s, const char *what);

#endif
