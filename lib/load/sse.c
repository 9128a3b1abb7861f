/* Parses server-sent events from a byte stream. An event that is complete in the input is not copied. */
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "load/load.h"

void load_sse_free(struct load_sse *s)
{
    free(s->line);
    free(s->data);
    *s = (struct load_sse){0};
}

static int append(struct err *e, char **p, size_t *n, size_t *size, const char *bytes, size_t n_bytes)
{
    if (n_bytes > LOAD_EVENT_BYTES_MAX || *n > LOAD_EVENT_BYTES_MAX - n_bytes)
        return err_set(e, ERR_PROTO, "an event is longer than the limit of %u bytes", LOAD_EVENT_BYTES_MAX);
    int rc = vec_reserve(e, p, size, *n + n_bytes, 1, "an event");
    if (!rc && n_bytes)
        memcpy(*p + *n, bytes, n_bytes);
    *n += rc ? 0 : n_bytes;
    return rc;
}

/* The event that is being parsed. Its first line of data stays in the input until it must be copied. */
struct reading {
    struct load_sse *s;
    load_sse_take *take;
    void *arg;
    const char *first; /* borrowed data; NULL: the data is in s->data */
    size_t n_first;
    bool stop;
};

static int copy_first_line(struct err *e, struct reading *r)
{
    int rc = r->first ? append(e, &r->s->data, &r->s->n_data, &r->s->data_size, r->first, r->n_first) : 0;
    r->first = NULL;
    return rc;
}

static void end_event(struct reading *r)
{
    struct load_sse *s = r->s;
    const char *data = r->first ? r->first : s->data;
    size_t n = r->first ? r->n_first : s->n_data;
    if (s->has_data && n && !r->take(r->arg, data, n, s->is_error))
        r->stop = true;
    s->has_data = s->is_error = false;
    s->n_data = 0;
    r->first = NULL;
}

static int one_line(struct err *e, struct reading *r, const char *p, size_t n)
{
    struct load_sse *s = r->s;
    bool error = false;
    if (n && p[n - 1] == '\r')
        n--;
    if (!n) {
        end_event(r);
        return 0;
    }
    if (n >= 5 && !memcmp(p, "data:", 5)) {
        p += 5;
        n -= 5;
    } else if (n >= 6 && !memcmp(p, "error:", 6)) {
        p += 6;
        n -= 6;
        error = true;
    } else {
        return 0; /* a comment, or a field that is not needed */
    }
    if (n && *p == ' ') {
        p++;
        n--;
    }
    s->is_error |= error;
    if (!s->has_data) {
        s->has_data = true;
        r->first = p;
        r->n_first = n;
        return 0;
    }
    int rc = copy_first_line(e, r);
    rc = rc ? rc : append(e, &s->data, &s->n_data, &s->data_size, "\n", 1);
    return rc ? rc : append(e, &s->data, &s->n_data, &s->data_size, p, n);
}

int load_sse_feed(struct err *e, struct load_sse *s, load_sse_take *take, void *arg, const char *bytes, size_t n)
{
    struct reading r = {s, take, arg, NULL, 0, false};
    int rc = 0;
    while (n && !rc && !r.stop) {
        const char *end = memchr(bytes, '\n', n);
        if (!end)
            break;
        size_t used = (size_t)(end - bytes);
        if (s->n_line) {
            rc = append(e, &s->line, &s->n_line, &s->line_size, bytes, used);
            rc = rc ? rc : one_line(e, &r, s->line, s->n_line);
            rc = rc ? rc : copy_first_line(e, &r); /* the memory of the line is reused */
            s->n_line = 0;
        } else {
            rc = one_line(e, &r, bytes, used);
        }
        bytes += used + 1;
        n -= used + 1;
    }
    if (r.stop)
        return rc;
    rc = rc ? rc : append(e, &s->line, &s->n_line, &s->line_size, bytes, n);
    return rc ? rc : copy_first_line(e, &r);
}
