/* Responses: their heads, the pieces of streams, probes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/vec.h"
#include "http/http_impl.h"

#define COPY_BYTES 65536 /* a body up to this size is queued with its head */

static const char *reason_of(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}

static bool is_head(const struct http_request *r)
{
    return !strcmp(r->head.method, "HEAD");
}

/* length: of the body; UINT64_MAX: a stream. */
static void add_framing(const struct http_request *r, struct str *w, uint64_t length)
{
    if (length < UINT64_MAX && r->status != 204)
        str_printf(w, "Content-Length: %llu\r\n", (unsigned long long)length);
    else if (length == UINT64_MAX && r->head.minor && !is_head(r))
        str_add_text(w, "Transfer-Encoding: chunked\r\n");
    str_add_text(w, "\r\n");
}

static void send_head(struct http_request *r, int status, const char *type, uint64_t length)
{
    struct str w = {0};
    char date[40] = "";
    time_t now = time(NULL);
    struct tm tm;
    r->status = status;
    r->begun = true;
    /* Without chunks the end of the connection ends the body. */
    if (conn_is_leaving(r->k) || (length == UINT64_MAX && (!r->head.minor || is_head(r))))
        r->close = true;
    if (gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    str_printf(&w, "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason_of(status), date);
    if (r->close)
        str_add_text(&w, "Connection: close\r\n");
    else if (!r->head.minor)
        str_add_text(&w, "Connection: keep-alive\r\n");
    if (type)
        str_printf(&w, "Content-Type: %s\r\n", type);
    for (size_t i = 0; i < r->n_header; i++)
        str_printf(&w, "%s: %s\r\n", r->header[i].name, r->header[i].value);
    guard_cors(r, &w);
    add_framing(r, &w, length);
    if (w.failed)
        conn_kill(r->k);
    else
        send_bytes(r->k, w.p, w.n);
    str_free(&w);
}

static void finish(struct http_request *r)
{
    struct http *h = r->k->h;
    r->replied = true;
    r->state = REQUEST_FINISHED;
    conn_due(r->k);
    if (h->o.finished && !r->internal)
        h->o.finished(h->o.arg, r, r->status);
}

/* ---- complete responses ---- */

/* Takes the memory of the parts over. */
static void add_parts(struct conn *k, struct str *part, size_t n)
{
    k->part = calloc(n, sizeof *k->part);
    k->at_part = k->at_byte = 0;
    for (size_t i = 0; i < n; i++) {
        if (k->part && part[i].n)
            k->part[k->n_part++] = part[i];
        else
            str_free(&part[i]);
        part[i] = (struct str){0};
    }
    if (!k->part)
        conn_kill(k);
    send_count(k);
}

void http_reply_parts(struct http_request *r, int status, const char *type, struct str *part, size_t n)
{
    uint64_t length = 0;
    bool failed = false;
    for (size_t i = 0; i < n; i++) {
        length += part[i].n;
        failed = failed || part[i].failed;
    }
    send_head(r, status, type, length);
    if (failed) /* no memory: the connection is closed without a response */
        conn_kill(r->k);
    if (!is_head(r) && length && !failed) {
        add_parts(r->k, part, n);
    } else {
        for (size_t i = 0; i < n; i++)
            str_free(&part[i]);
    }
    finish(r);
}

void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n)
{
    struct str copy = {0};
    if (n > COPY_BYTES && !is_head(r)) {
        str_add(&copy, body, n);
        http_reply_parts(r, status, type, &copy, 1);
        return;
    }
    send_head(r, status, type, n);
    if (!is_head(r))
        send_bytes(r->k, body, n);
    finish(r);
}

/* ---- streams ---- */

void http_begin(struct http_request *r, int status, const char *type)
{
    r->streams = true;
    r->status = status;
    r->keepalive = !strncmp(type, "text/event-stream", 17);
    if (r->keepalive)
        r->probe = ":\n\n";
    else if (strstr(type, "json"))
        r->probe = " "; /* not an empty line: many line-by-line readers reject one */
    r->k->written_ns = time_now_ns();
    http_add_header(r, "Cache-Control", "no-cache");
    http_add_header(r, "X-Accel-Buffering", "no"); /* so that nginx does not buffer */
    if (is_head(r))                                /* the status is sent at http_end, when the outcome is known */
        r->type = strdup(type);
    else
        send_head(r, status, type, UINT64_MAX);
    conn_arm(r->k);
}

static bool has_room(const struct http_request *r, size_t n)
{
    const struct http *h = r->k->h;
    uint64_t own = r->k->n_queued + n;
    return own <= h->o.queued_bytes_max && (own <= OUTPUT_SHARE || h->n_queued + n <= h->o.outputs_bytes_max);
}

void http_write(struct http_request *r, const void *p, size_t n)
{
    char size[20];
    struct conn *k = r->k;
    if (k->dead || is_head(r) || !n)
        return;
    k->written_ns = time_now_ns();
    if (!has_room(r, n)) { /* the disconnect is reported later: here the caller is still writing its response */
        conn_kill(k);
        return;
    }
    if (r->head.minor)
        send_bytes(k, size, (size_t)snprintf(size, sizeof size, "%zx\r\n", n));
    send_bytes(k, p, n);
    if (r->head.minor)
        send_bytes(k, "\r\n", 2);
}

void http_end(struct http_request *r)
{
    if (is_head(r))
        send_head(r, r->status, r->type, UINT64_MAX);
    else if (r->head.minor)
        send_bytes(r->k, "0\r\n\r\n", 5);
    finish(r);
}

size_t http_queued(const struct http_request *r)
{
    return r->streams ? (size_t)r->k->n_queued : 0;
}

/* ---- interim responses and probes ---- */

void send_interim(struct conn *k)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    send_bytes(k, interim, sizeof interim - 1);
}

void request_probe(struct http_request *r)
{
    if (r->streams) {
        if (r->probe)
            http_write(r, r->probe, strlen(r->probe));
        return;
    }
    /* Before the response only an interim response is allowed; every HTTP/1.1 client skips it. */
    if (r->k->tls || !r->head.minor)
        conn_kill(r->k);
    else
        send_interim(r->k);
}

void http_add_header(struct http_request *r, const char *name, const char *value)
{
    if (r->n_header == HEADERS_MAX)
        return;
    char *n = strdup(name), *v = strdup(value);
    if (!n || !v) {
        free(n);
        free(v);
        return;
    }
    r->header[r->n_header].name = n;
    r->header[r->n_header++].value = v;
}
