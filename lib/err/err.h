/*
 * Error handling.
 *
 * A function that can fail takes `struct err *` first and returns an int: 0 on success, or one of the codes below. On
 * failure it has written a text that names the object and the limit; its outputs are NULL or unchanged. The pointer is
 * never NULL. On success the error is unchanged.
 *
 * Consecutive steps are chained like this:
 *
 *     int rc = open_model(e, &m);
 *     rc = rc ? rc : open_engine(e, &g, m);
 *     if (!rc)
 *         run(g);
 *     engine_free(g);
 *     model_free(m);
 *     return rc;
 *
 * Each step runs only if all steps before it succeeded. One cleanup at the end calls functions that accept NULL. A
 * function without cleanup may return at the first failure: `if (rc) return rc;`.
 *
 * Callers forward the code unchanged and add context with err_prefix() if it helps. ERR_NO concerns one request or
 * file: the owner of the request sends the text to the client and continues. Every other code is forwarded to main,
 * which prints the text and exits with the code. Nothing under lib prints or exits. The codes are the exit codes in
 * phasepipe(7).
 *
 * A helper that can fail only for lack of memory may return NULL or false instead; the caller names the purpose of the
 * memory. base/str.h records such a failure until the text is complete.
 *
 * A programming error (a violated precondition) is an assert, never an err. Input from outside never reaches an assert.
 */
#ifndef ERR_H
#define ERR_H

#include <stddef.h>

enum {
    ERR_OK = 0,
    ERR_NO = 1,      /* a request or a file was refused, or a request failed */
    ERR_PROTO = 2,   /* frames, streams or models are invalid or do not match */
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

/* Puts "text: " before the text in e, returns e->code. */
int err_prefix(struct err *e, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* "out of memory for WHAT (N bytes)" with ERR_SYS. */
int err_nomem(struct err *e, const char *what, size_t n_bytes);

#endif
