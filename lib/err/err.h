/*
 * Errors: the whole theory.
 *
 * A function that can fail takes `struct err *` first, returns an int, and returns 0 on success. On failure it returns
 * one of the codes below and has written a text that names the thing and the limit; its outputs are then NULL, or as
 * they were. The pointer is never NULL. On success what it points to is not changed.
 *
 * Steps that follow each other are chained in one way:
 *
 *     int rc = open_model(e, &m);
 *     rc = rc ? rc : open_engine(e, &g, m);
 *     if (!rc)
 *         run(g);
 *     engine_free(g);
 *     model_free(m);
 *     return rc;
 *
 * Each step runs only if all before it have succeeded, and one cleanup, of functions for which NULL is nothing, follows
 * all. A function that has nothing to clean up may return at the first failure: `if (rc) return rc;`.
 *
 * Callers forward the code as it is, adding context with err_prefix() where it helps. ERR_NO is about one request or
 * file: whoever holds the request answers it with the text and goes on. Every other code travels up to a main, which
 * alone prints the text and turns the code into its exit status. Nothing under lib prints or exits. Codes are the exit
 * codes that phasepipe(7) documents.
 *
 * A helper whose only failure is memory may return NULL or false instead; the caller names what the memory was for.
 * base/str.h keeps such a failure until the text is whole.
 *
 * A programming error (a broken precondition) is an assert, never an err. Input from outside never reaches an assert.
 */
#ifndef ERR_H
#define ERR_H

#include <stddef.h>

enum {
    ERR_OK = 0,
    ERR_NO = 1,      /* a plain no: the request or the file is refused, a request failed */
    ERR_PROTO = 2,   /* a frame, a stream or a pair of models that do not fit together */
    ERR_USAGE = 100, /* a wrong flag or argument */
    ERR_SYS = 111,   /* the system failed: no memory, a full disk, a closed pipe */
};

struct err {
    int code;
    char text[480];
};

/* Writes code and text, returns code. */
int err_set(struct err *e, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* The same with ERR_SYS and ": strerror(errno)" after the text. */
int err_sys(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Puts "text: " before what is there, returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "out of memory for WHAT (N bytes)" with ERR_SYS. */
int err_nomem(struct err *e, const char *what, size_t n_bytes);

#endif
