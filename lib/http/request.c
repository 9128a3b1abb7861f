/* Requests, from the head to the end of the body. The response is in response.c. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http/http_impl.h"

/* ---- begin and end ---- */

static struct http_request *request_new(struct conn *k)
{
    struct http_request *r = calloc(1, sizeof *r);
    if (!r) {
        conn_kill(k);
        return NULL;
    }
    r->k = k;
    r->arrived_ns = time_now_ns();
    r->head.method = r->head.path = "";
    k->r = r;
    k->moved_ns = r->arrived_ns;
    return r;
}

static void drop_body(struct http_request *r)
{
    r->k->h->n_body -= r->body.n;
    str_free(&r->body);
}

static void report_disconnect(struct http_request *r)
{
    struct http *h = r->k->h;
    if (r->state != REQUEST_DELIVERED)
        return;
    h->o.disconnected(h->o.arg, r);
    r->state = REQUEST_FINISHED;
    if (h->o.finished)
        h->o.finished(h->o.arg, r, 0);
}

void request_free(struct http_request *r)
{
    report_disconnect(r);
    drop_body(r);
    for (size_t i = 0; i < r->n_header; i++) {
        free(r->header[i].name);
        free(r->header[i].value);
    }
    free(r->type);
    free(r->text);
    free(r);
}

static void begin_response(struct conn *k)
{
    conn_set_idle(k, false);
    k->state = CONN_BUSY;
    k->r->state = REQUEST_DELIVERED;
    k->used = true;
}

void request_fail(struct conn *k, int status, const char *text)
{
    struct http *h = k->h;
    struct http_request *r = k->r ? k->r : request_new(k);
    if (!r)
        return;
    drop_body(r);
    begin_response(k);
    r->close = true;
    h->o.fail(h->o.arg, r, status, text);
}

static void deliver(struct conn *k)
{
    struct http *h = k->h;
    begin_response(k);
    if (guard_is_preflight(k->r))
        guard_preflight(k->r);
    else
        h->o.request(h->o.arg, k->r);
}

/* ---- the body ---- */

static void fail_size(struct conn *k, uint64_t n)
{
    char text[160];
    uint64_t max = k->h->o.body_bytes_max;
    int len = snprintf(text, sizeof text, "the request body is too large: ");
    if (n && n < UINT64_MAX)
        len += snprintf(text + len, sizeof text - (size_t)len, "%llu bytes, ", (unsigned long long)n);
    snprintf(text + len, sizeof text - (size_t)len, "the limit is %llu bytes", (unsigned long long)max);
    request_fail(k, 413, text);
}

/* Whether n more bytes exceed the limit of all bodies together; then the request is refused. */
static bool is_over_budget(struct conn *k, uint64_t n)
{
    const struct http *h = k->h;
    char text[160];
    if (h->n_body + n <= h->o.bodies_bytes_max)
        return false;
    snprintf(text, sizeof text,
             "request bodies use all of their memory, %llu bytes for all requests together; retry later",
             (unsigned long long)h->o.bodies_bytes_max);
    request_fail(k, 503, text);
    return true;
}

static void append(struct conn *k, const char *p, size_t n)
{
    struct http_request *r = k->r;
    if (!n || is_over_budget(k, n))
        return;
    str_add(&r->body, p, n);
    if (r->body.failed)
        request_fail(k, 503, "out of memory for the request body; retry later");
    else
        k->h->n_body += n;
}

/* The size of a chunk is compared with the limit before any of its data is read. */
static size_t chunked_body(struct conn *k, const char *p, size_t n)
{
    struct http_request *r = k->r;
    uint64_t max = k->h->o.body_bytes_max;
    const char *data, *why;
    size_t n_data, used = parse_chunks(&r->chunks, p, n, &data, &n_data, &why);
    if (why)
        request_fail(k, 400, why);
    else if (r->chunks.left > max - r->body.n || n_data > max - r->body.n - r->chunks.left)
        fail_size(k, 0);
    else
        append(k, data, n_data);
    if (k->state == CONN_BODY && r->chunks.state == CHUNK_END)
        deliver(k);
    return used;
}

static size_t sized_body(struct conn *k, const char *p, size_t n)
{
    struct http_request *r = k->r;
    uint64_t left = r->head.length - r->body.n;
    n = n < left ? n : (size_t)left;
    append(k, p, n);
    if (k->state == CONN_BODY && r->body.n == r->head.length)
        deliver(k);
    return n;
}

size_t request_body(struct conn *k, const char *p, size_t n)
{
    size_t used = 0;
    while (used < n && k->state == CONN_BODY && !k->dead)
        used += k->r->head.chunked ? chunked_body(k, p + used, n - used) : sized_body(k, p + used, n - used);
    return used;
}

/* ---- the head ---- */

/* A request whose head is valid. */
static void begin_body(struct conn *k)
{
    struct http *h = k->h;
    struct http_request *r = k->r;
    char why[300];
    bool has_body = r->head.chunked || r->head.length > 0;
    if (!guard_passes(r, why, sizeof why)) {
        request_fail(k, 403, why);
        return;
    }
    if (r->head.length > h->o.body_bytes_max) {
        fail_size(k, r->head.length);
        return;
    }
    if (r->head.length && is_over_budget(k, r->head.length))
        return;
    if (h->o.head && !guard_is_preflight(r)) {
        r->close = has_body || !r->head.keep_alive; /* if it is refused now */
        r->state = REQUEST_DELIVERED;
        h->o.head(h->o.arg, r);
        if (r->state == REQUEST_FINISHED) {
            begin_response(k);
            r->state = REQUEST_FINISHED;
            return;
        }
        r->state = REQUEST_READING;
        r->close = !r->head.keep_alive;
    }
    if (!has_body) {
        deliver(k);
        return;
    }
    conn_set_idle(k, false);
    k->state = CONN_BODY;
    k->since_ns = r->arrived_ns;
    if (r->head.expects_continue && r->head.minor && !buf_left(&k->in))
        send_interim(k);
}

static void fail_head_size(struct conn *k)
{
    bool line = !memchr(buf_front(&k->in), '\n', PARSE_HEAD_BYTES_MAX);
    request_fail(k, line ? 414 : 431,
                 line ? "the request target is too long: the limit of a request line with its headers is 32 KiB"
                      : "the request headers are too large: the limit is 32 KiB");
}

/* Empty lines before a request are ignored (RFC 9112, 2.2). */
static void skip_empty_lines(struct conn *k)
{
    const uint8_t *p = buf_front(&k->in);
    size_t n = buf_left(&k->in), at = 0;
    while (at < n && (p[at] == '\n' || (p[at] == '\r' && at + 1 < n && p[at + 1] == '\n')))
        at += p[at] == '\n' ? 1 : 2;
    if (at)
        buf_take(&k->in, at);
}

static bool head_input(struct conn *k)
{
    const char *why;
    if (!k->searched)
        skip_empty_lines(k);
    size_t n = buf_left(&k->in);
    if (n == 1 && *buf_front(&k->in) == '\r') /* perhaps the begin of an empty line */
        return false;
    size_t n_head = n ? parse_head_length((const char *)buf_front(&k->in), n, &k->searched) : 0;
    if (n_head > PARSE_HEAD_BYTES_MAX || (!n_head && n > PARSE_HEAD_BYTES_MAX)) {
        fail_head_size(k);
        return true;
    }
    struct http_request *r = n_head ? request_new(k) : NULL;
    if (!r)
        return false;
    if (!(r->text = malloc(n_head + 1))) {
        conn_kill(k);
        return false;
    }
    memcpy(r->text, buf_front(&k->in), n_head);
    buf_take(&k->in, n_head);
    k->searched = 0;
    int status = parse_head(&r->head, r->text, n_head, &why);
    r->close = !r->head.keep_alive;
    if (status)
        request_fail(k, status, why);
    else
        begin_body(k);
    return true;
}

static void free_input(struct conn *k)
{
    if (buf_left(&k->in) || !k->in.cap)
        return;
    free(k->in.p);
    k->in = (struct buf){0};
}

bool request_input(struct conn *k)
{
    bool more;
    if (k->state == CONN_HEAD) {
        more = head_input(k);
    } else {
        size_t n = buf_left(&k->in), used = n ? request_body(k, (const char *)buf_front(&k->in), n) : 0;
        buf_take(&k->in, used);
        more = used > 0;
    }
    free_input(k); /* most connections wait without input */
    return more;
}

/* ---- accessors ---- */

const char *http_method(const struct http_request *r)
{
    return r->head.method;
}

const char *http_path(const struct http_request *r)
{
    return r->head.path;
}

int http_dialect(const struct http_request *r)
{
    return r->k->l->dialect;
}

const char *http_header(const struct http_request *r, const char *name)
{
    return parse_header(&r->head, name);
}

const char *http_body(const struct http_request *r, size_t *n)
{
    *n = r->body.n;
    return str_text(&r->body);
}

char *http_take_body(struct http_request *r, size_t *n)
{
    char *p = r->body.p;
    *n = r->body.n;
    r->k->h->n_body -= r->body.n;
    r->body = (struct str){0};
    return p;
}

const char *http_peer(const struct http_request *r)
{
    return r->k->name;
}

uint64_t http_arrived_ns(const struct http_request *r)
{
    return r->arrived_ns;
}

void http_set(struct http_request *r, void *user)
{
    r->user = user;
}

void *http_get(const struct http_request *r)
{
    return r->user;
}
