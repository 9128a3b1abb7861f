/*
 * Parses an event in one pass over its bytes: a load generator reads thousands of events a second and needs few fields
 * of each. Values that are not needed are skipped by their brackets and quotes.
 */
#include <string.h>

#include "load/load.h"

struct cursor {
    const char *p, *end;
};

static void blanks(struct cursor *c)
{
    while (c->p < c->end && (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

static bool accept_char(struct cursor *c, char what)
{
    blanks(c);
    if (c->p == c->end || *c->p != what)
        return false;
    c->p++;
    return true;
}

/* The bytes between the quotes, with escapes as they are. */
static bool string(struct cursor *c, const char **s, size_t *n)
{
    if (!accept_char(c, '"'))
        return false;
    *s = c->p;
    for (; c->p < c->end; c->p++) {
        if (*c->p == '"') {
            *n = (size_t)(c->p++ - *s);
            return true;
        }
        if (*c->p == '\\' && ++c->p == c->end)
            return false;
    }
    return false;
}

/* Skips a value: a string, a word, or all between matching brackets. */
static bool skip_value(struct cursor *c)
{
    const char *s;
    size_t n, depth = 0;
    do {
        blanks(c);
        if (c->p == c->end)
            return false;
        char ch = *c->p;
        if (ch == '"') {
            if (!string(c, &s, &n))
                return false;
        } else if (ch == '{' || ch == '[') {
            depth++;
            c->p++;
        } else if (ch == '}' || ch == ']') {
            if (!depth)
                return false;
            depth--;
            c->p++;
        } else if (ch == ',' || ch == ':') {
            if (!depth)
                return false;
            c->p++;
        } else {
            const char *from = c->p;
            while (c->p < c->end && !strchr(" \t\r\n\",:{}[]", *c->p))
                c->p++;
            if (c->p == from)
                return false;
        }
    } while (depth);
    return true;
}

static bool equals(const char *s, size_t n, const char *name)
{
    return n == strlen(name) && !memcmp(s, name, n);
}

/* Reads the next name of an object and its ':'. 1: there is one, 0: the object has ended, -1: not an object. */
static int next_name(struct cursor *c, bool *first, const char **name, size_t *n)
{
    if (*first && accept_char(c, '}'))
        return 0;
    if (!*first && !accept_char(c, ','))
        return accept_char(c, '}') ? 0 : -1;
    *first = false;
    return string(c, name, n) && accept_char(c, ':') ? 1 : -1;
}

static bool count(struct cursor *c, bool *has, uint64_t *out)
{
    uint64_t v = 0;
    blanks(c);
    const char *from = c->p;
    while (c->p < c->end && *c->p >= '0' && *c->p <= '9' && v < UINT64_MAX / 100)
        v = v * 10 + (uint64_t)(*c->p++ - '0');
    if (c->p == from)
        return skip_value(c); /* null */
    *has = true;
    *out = v;
    return c->p == c->end || strchr(" \t\r\n,}", *c->p) ? true : skip_value(c);
}

static bool usage(struct cursor *c, struct load_event *out)
{
    const char *name;
    size_t n;
    bool first = true;
    if (!accept_char(c, '{'))
        return skip_value(c);
    out->usage = true;
    for (int more; (more = next_name(c, &first, &name, &n)) != 0;) {
        bool good = more > 0 &&
                    (equals(name, n, "prompt_tokens")       ? count(c, &out->has_prompt, &out->prompt_tokens)
                     : equals(name, n, "completion_tokens") ? count(c, &out->has_completion, &out->completion_tokens)
                                                            : skip_value(c));
        if (!good)
            return false;
    }
    return true;
}

static bool text_value(struct cursor *c, struct load_event *out)
{
    blanks(c);
    if (c->p < c->end && *c->p == '"')
        return string(c, &out->text, &out->n_text);
    return skip_value(c);
}

/* Reads an object in which the member `text` holds the text; its member `inner` is an object that may hold it too. */
static bool text_holder(struct cursor *c, struct load_event *out, const char *text, const char *inner,
                        const char *inner_text)
{
    const char *name;
    size_t n;
    bool first = true;
    if (!accept_char(c, '{'))
        return skip_value(c);
    for (int more; (more = next_name(c, &first, &name, &n)) != 0;) {
        bool good = more > 0 && (equals(name, n, text)             ? text_value(c, out)
                                 : inner && equals(name, n, inner) ? text_holder(c, out, inner_text, NULL, NULL)
                                                                   : skip_value(c));
        if (!good)
            return false;
    }
    return true;
}

static bool choices(struct cursor *c, struct load_event *out)
{
    if (!accept_char(c, '['))
        return skip_value(c);
    if (accept_char(c, ']'))
        return true;
    out->choices = true;
    if (!text_holder(c, out, "text", "delta", "content"))
        return false;
    while (accept_char(c, ','))
        if (!skip_value(c))
            return false;
    return accept_char(c, ']');
}

static bool error(struct cursor *c, struct load_event *out)
{
    blanks(c);
    const char *from = c->p;
    if (!skip_value(c))
        return false;
    if (!equals(from, (size_t)(c->p - from), "null")) {
        out->error = from;
        out->n_error = (size_t)(c->p - from);
    }
    return true;
}

int load_event_read(struct err *e, struct load_event *out, const char *data, size_t n)
{
    struct cursor c = {data, data + n};
    const char *name;
    size_t n_name;
    bool first = true;
    *out = (struct load_event){0};
    blanks(&c);
    if (c.end - c.p >= 6 && !memcmp(c.p, "[DONE]", 6)) {
        out->done = true;
        return 0;
    }
    bool good = accept_char(&c, '{');
    for (int more; good && (more = next_name(&c, &first, &name, &n_name)) != 0;)
        good = more > 0 && (equals(name, n_name, "choices") ? choices(&c, out)
                            : equals(name, n_name, "usage") ? usage(&c, out)
                            : equals(name, n_name, "error") ? error(&c, out)
                                                            : skip_value(&c));
    return good ? 0 : err_set(e, ERR_PROTO, "the event is not valid JSON: %.*s", n > 200 ? 200 : (int)n, data);
}
