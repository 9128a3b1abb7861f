#include "base/str.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"

char *str_reserve(struct str *s, size_t n)
{
    if (s->failed || n >= SIZE_MAX - s->n || !vec_grow(&s->p, &s->cap, s->n + n + 1, 1)) {
        s->failed = true;
        return NULL;
    }
    return s->p + s->n;
}

void str_add(struct str *s, const void *bytes, size_t n)
{
    char *to = str_reserve(s, n);
    if (!to)
        return;
    if (n)
        memcpy(to, bytes, n);
    str_cut(s, s->n + n);
}

void str_add_text(struct str *s, const char *text)
{
    str_add(s, text, strlen(text));
}

void str_add_char(struct str *s, char c)
{
    str_add(s, &c, 1);
}

/* Most texts fit into the available memory; one that does not is formatted a second time. */
static void __attribute__((format(printf, 2, 0))) str_vprintf(struct str *s, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    size_t room = s->failed ? 0 : s->cap - s->n;
    int n = vsnprintf(room ? s->p + s->n : NULL, room, fmt, ap);
    if (n < 0)
        s->failed = true;
    else if ((size_t)n >= room && str_reserve(s, (size_t)n))
        vsnprintf(s->p + s->n, (size_t)n + 1, fmt, again);
    if (!s->failed)
        s->n += (size_t)n;
    else if (s->p)
        s->p[s->n] = 0;
    va_end(again);
}

void str_printf(struct str *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    str_vprintf(s, fmt, ap);
    va_end(ap);
}

void str_cut(struct str *s, size_t n)
{
    if (!s->p)
        return;
    s->n = n;
    s->p[n] = 0;
}

void str_clear(struct str *s)
{
    str_cut(s, 0);
    s->failed = false;
}

void str_free(struct str *s)
{
    free(s->p);
    *s = (struct str){0};
}

const char *str_text(const struct str *s)
{
    return s->p ? s->p : "";
}

int str_check(struct err *e, const struct str *s, const char *what)
{
    return s->failed ? err_nomem(e, what, s->n + 1) : 0;
}

int str_take(struct err *e, char **out, size_t *n, struct str *s, const char *what)
{
    *out = NULL;
    str_reserve(s, 0);
    int rc = str_check(e, s, what);
    if (rc) {
        str_free(s);
        return rc;
    }
    str_cut(s, s->n);
    *out = s->p;
    if (n)
        *n = s->n;
    *s = (struct str){0};
    return 0;
}
