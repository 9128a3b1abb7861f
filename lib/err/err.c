#include "err/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

int err_set(struct err *e, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    return e->code = code;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int saved = errno;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < sizeof e->text)
        snprintf(e->text + n, sizeof e->text - (size_t)n, ": %s", strerror(saved));
    return e->code = ERR_SYS;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    char old[sizeof e->text];
    memcpy(old, e->text, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(e->text, sizeof e->text, fmt, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n + 2 < sizeof e->text) {
        size_t at = (size_t)n, room = sizeof e->text - at - 3, len = strnlen(old, sizeof old);
        memcpy(e->text + at, ": ", 2);
        len = len < room ? len : room; /* truncated, as by vsnprintf */
        memcpy(e->text + at + 2, old, len);
        e->text[at + 2 + len] = 0;
    }
    return e->code;
}

int err_nomem(struct err *e, const char *what, size_t n_bytes)
{
    return err_set(e, ERR_SYS, "out of memory for %s (%zu bytes)", what, n_bytes);
}
