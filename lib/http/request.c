/* Requests, from the request line to the end of the response. libmicrohttpd calls the first half, the server's user the
 * second. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/vec.h"
#include "http/http_impl.h"

#define BLOCK 1024    /* of a streamed response */
#define BODY_LIMITS 4 /* multiples of its limit that a body is discarded up to before the connection is aborted */

static struct conn *conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

/* libmicrohttpd counts a client as idle while its socket is full, and a full socket becomes writable only after a good
 * part of it was read. So a slow reader needs a longer timeout. */
static void set_timeout(struct conn *k, bool on)
{
    uint64_t s = (uint64_t)k->h->o.idle_s * (on ? STALL_IDLES : 1);
    k->long_timeout = on;
    (void)MHD_set_connection_option(k->c, MHD_CONNECTION_OPTION_TIMEOUT, (unsigned)(s < 1000000 ? s : 1000000));
}

/* ---- received ---- */

void *request_uri(void *listener, const char *uri, struct MHD_Connection *c)
{
    struct conn *k = conn_of(c);
    struct http_request *r = k ? calloc(1, sizeof *r) : NULL;
    (void)listener;
    if (!r)
        return NULL;
    r->k = k;
    check_target(r, uri ? uri : "");
    r->arrived_ns = time_now_ns();
    k->r = r;
    k->progress_ns = 0;
    if (k->long_timeout)
        set_timeout(k, false);
    return r;
}

static void add_cors(struct http_request *r, struct MHD_Response *a)
{
    const char *allowed = r->k->h->o.origins, *origin = allowed ? http_header(r, "Origin") : NULL;
    if (!origin)
        return;
    size_t n = strlen(origin);
    bool ok = !strcmp(allowed, "*");
    for (const char *p = allowed; *p && !ok; p += strcspn(p, ","), p += *p == ',') {
        while (*p == ' ')
            p++;
        ok = !strncmp(p, origin, n) && (!p[n] || p[n] == ',' || p[n] == ' ');
    }
    MHD_add_response_header(a, "Vary", "Origin");
    if (!ok)
        return;
    MHD_add_response_header(a, "Access-Control-Allow-Origin", strcmp(allowed, "*") ? origin : "*");
    MHD_add_response_header(a, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
}

/* A CORS preflight request of a browser. */
static bool is_preflight(const struct http_request *r)
{
    return r->k->h->o.origins && !strcmp(r->method, "OPTIONS") && http_header(r, "Origin") &&
           http_header(r, "Access-Control-Request-Method");
}

static void preflight(struct http_request *r)
{
    const char *headers = http_header(r, "Access-Control-Request-Headers");
    http_add_header(r, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    if (headers)
        http_add_header(r, "Access-Control-Allow-Headers", headers);
    http_add_header(r, "Access-Control-Max-Age", "600");
    r->internal = true;
    http_reply(r, 204, NULL, NULL, 0);
}

/* ---- callbacks of libmicrohttpd ---- */

static enum MHD_Result queue(struct http_request *r)
{
    enum MHD_Result ok = MHD_queue_response(r->k->c, (unsigned)r->status, r->response);
    MHD_destroy_response(r->response); /* MHD holds its own reference */
    r->response = NULL;
    r->queued = true;
    return ok;
}

static void resume(struct http_request *r)
{
    if (!r->suspended)
        return;
    r->suspended = false;
    r->k->h->due = true;
    MHD_resume_connection(r->k->c);
}

/* Lets opts.fail format the error response now. */
static enum MHD_Result refuse(struct http_request *r, int status, const char *text)
{
    struct http *h = r->k->h;
    r->state = STATE_DELIVERED;
    h->o.fail(h->o.arg, r, status, text);
    return r->response ? queue(r) : MHD_NO;
}

/* Refuses before the body is read, so the connection is closed after it. */
static enum MHD_Result refuse_early(struct http_request *r, int status, const char *text)
{
    r->k->body_unread = true;
    http_add_header(r, "Connection", "close");
    return refuse(r, status, text);
}

static enum MHD_Result on_head(struct http_request *r, const char *url, const char *method, const char *version)
{
    const struct http *h = r->k->h;
    const char *length, *why;
    char text[160];
    r->method = method;
    r->head = !strcmp(method, "HEAD");
    r->accepts_interim = !strcmp(version, "HTTP/1.1");
    r->path = strdup(check_path(r, url));
    if (!r->path)
        return MHD_NO;
    int status = check_head(r, url, version, &why);
    if (status)
        return refuse_early(r, status, why);
    if (r->k->over_limit && h->n_conn > h->o.connections_max) {
        snprintf(text, sizeof text, "too many connections: the limit is %u; retry later", h->o.connections_max);
        return refuse_early(r, 503, text);
    }
    length = http_header(r, "Content-Length");
    if (length && strtoull(length, NULL, 10) > h->o.body_bytes_max) {
        snprintf(text, sizeof text, "the request body is too large: %.20s bytes, the limit is %llu", length,
                 (unsigned long long)h->o.body_bytes_max);
        return refuse_early(r, 413, text);
    }
    return MHD_YES;
}

static enum MHD_Result append_body(struct http_request *r, const char *p, size_t n)
{
    uint64_t max = r->k->h->o.body_bytes_max;
    if (r->too_large || r->body.n + n > max) {
        r->too_large = true;
        r->n_discarded += n;
        r->k->dead = r->n_discarded / BODY_LIMITS >= max;
        return r->k->dead ? MHD_NO : MHD_YES;
    }
    str_add(&r->body, p, n);
    return r->body.failed ? MHD_NO : MHD_YES;
}

static enum MHD_Result deliver(struct http_request *r)
{
    struct http *h = r->k->h;
    char text[120];
    if (r->too_large) {
        snprintf(text, sizeof text, "the request body is too large: the limit is %llu bytes",
                 (unsigned long long)h->o.body_bytes_max);
        return refuse(r, 413, text);
    }
    r->state = STATE_DELIVERED;
    if (is_preflight(r))
        preflight(r);
    else
        h->o.request(h->o.arg, r);
    if (r->state == STATE_DELIVERED && r->k->probe_ns)
        conn_probe(r->k);
    if (r->broken)
        return MHD_NO;
    if (r->response && !(r->head && r->streams && !r->ended))
        return queue(r);
    r->suspended = true;
    MHD_suspend_connection(r->k->c);
    return MHD_YES;
}

enum MHD_Result request_handle(void *listener, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *upload, size_t *n_upload, void **context)
{
    struct http_request *r = *context;
    (void)listener, (void)c;
    if (!r || r->broken || r->k->dead || r->k->h->closing)
        return MHD_NO;
    if (r->response && !r->queued)
        return queue(r);
    if (!r->method)
        return on_head(r, url, method, version);
    if (*n_upload) {
        size_t n = *n_upload;
        *n_upload = 0;
        return r->state == STATE_READING ? append_body(r, upload, n) : MHD_YES;
    }
    return r->state == STATE_READING ? deliver(r) : MHD_YES;
}

static void report_disconnect(struct http_request *r)
{
    struct http *h = r->k->h;
    if (r->state != STATE_DELIVERED)
        return;
    h->o.disconnected(h->o.arg, r);
    r->state = STATE_FINISHED;
    if (h->o.finished)
        h->o.finished(h->o.arg, r, 0);
}

void request_completed(void *listener, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode how)
{
    struct http_request *r = *context;
    (void)listener, (void)c, (void)how;
    if (!r)
        return;
    report_disconnect(r);
    r->k->r = NULL;
    r->k->since_ns = time_now_ns();
    if (r->k->h->stopped && !r->k->dead) { /* no further request is accepted */
        r->k->dead = true;
        shutdown(r->k->fd, SHUT_RDWR);
    }
    if (r->response)
        MHD_destroy_response(r->response);
    for (size_t i = 0; i < r->n_header; i++) {
        free(r->header[i].name);
        free(r->header[i].value);
    }
    free(r->path);
    str_free(&r->body);
    free(r->out);
    free(r);
    *context = NULL;
}

void request_disconnected(struct http_request *r)
{
    report_disconnect(r);
    r->broken = true;
    if (r->suspended)
        resume(r);
    else
        shutdown(r->k->fd, SHUT_RDWR); /* MHD notices at its next write */
}

void request_probe(struct http_request *r)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (r->streams) {
        if (r->probe)
            http_write(r, r->probe, strlen(r->probe));
        return;
    }
    /* Before the response only an interim response is allowed; every HTTP/1.1 client skips it. */
    if (r->response || r->queued)
        return;
    if (r->k->tls || !r->accepts_interim ||
        send(r->k->fd, interim, sizeof interim - 1, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)sizeof interim - 1)
        request_disconnected(r);
}

/* ---- responses ---- */

static ssize_t read_out(void *request, uint64_t at, char *p, size_t max)
{
    struct http_request *r = request;
    size_t n = r->n_out - r->at_out;
    (void)at;
    if (r->broken)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    if (n) {
        n = n < max ? n : max;
        memcpy(p, r->out + r->at_out, n);
        r->at_out += n;
        if (r->at_out == r->n_out)
            r->at_out = r->n_out = 0;
        return (ssize_t)n;
    }
    if (r->ended)
        return MHD_CONTENT_READER_END_OF_STREAM;
    r->suspended = true;
    MHD_suspend_connection(r->k->c);
    return 0;
}

static void respond(struct http_request *r, int status, const char *type, struct MHD_Response *a)
{
    r->status = status;
    r->response = a;
    if (!a) { /* no memory: the connection is closed without a response */
        r->broken = true;
        resume(r);
        return;
    }
    if (type)
        MHD_add_response_header(a, "Content-Type", type);
    for (size_t i = 0; i < r->n_header; i++)
        MHD_add_response_header(a, r->header[i].name, r->header[i].value);
    if (r->k->h->stopped)
        MHD_add_response_header(a, "Connection", "close");
    add_cors(r, a);
}

static void finish(struct http_request *r)
{
    struct http *h = r->k->h;
    r->state = STATE_FINISHED;
    if (h->o.finished && !r->internal)
        h->o.finished(h->o.arg, r, r->status);
}

void http_reply(struct http_request *r, int status, const char *type, const void *body, size_t n)
{
    static char nothing[1];
    if (r->raw) {
        check_reply(r, status, type, body, n);
        finish(r);
        return;
    }
    if (n > STALL_BYTES)
        set_timeout(r->k, true);
    respond(r, status, type,
            MHD_create_response_from_buffer(n, n ? (void *)(uintptr_t)body : nothing, MHD_RESPMEM_MUST_COPY));
    finish(r);
    resume(r);
}

void http_begin(struct http_request *r, int status, const char *type)
{
    r->streams = true;
    if (!strncmp(type, "text/event-stream", 17))
        r->probe = ":\n\n";
    else if (strstr(type, "json"))
        r->probe = " "; /* not an empty line: many line-by-line readers reject one */
    http_add_header(r, "Cache-Control", "no-cache");
    http_add_header(r, "X-Accel-Buffering", "no"); /* so that nginx does not buffer */
    struct MHD_Response *a = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_out, r, NULL);
    if (a && r->head) /* else libmicrohttpd sends a last chunk, which clients do not expect after HEAD */
        MHD_set_response_options(a, MHD_RF_HTTP_1_0_COMPATIBLE_STRICT, MHD_RO_END);
    respond(r, status, type, a);
    if (!r->head || r->broken) /* HEAD: the status is sent at http_end, when the outcome is known */
        resume(r);
}

/* The hangup event reports the disconnect later: here the caller is still writing its response. */
static void abort_request(struct http_request *r)
{
    r->broken = true;
    shutdown(r->k->fd, SHUT_RDWR);
}

void http_write(struct http_request *r, const void *p, size_t n)
{
    if (r->broken || r->head || !n)
        return;
    if (http_queued(r) + n > r->k->h->o.queued_bytes_max) {
        abort_request(r);
        return;
    }
    if (http_queued(r) + n > STALL_BYTES && !r->k->long_timeout)
        set_timeout(r->k, true);
    if (r->at_out > 65536 && r->at_out > r->n_out / 2) {
        memmove(r->out, r->out + r->at_out, r->n_out - r->at_out);
        r->n_out -= r->at_out;
        r->at_out = 0;
    }
    if (!vec_grow(&r->out, &r->cap_out, r->n_out + n, 1)) {
        abort_request(r);
        return;
    }
    memcpy(r->out + r->n_out, p, n);
    r->n_out += n;
    resume(r);
}

void http_end(struct http_request *r)
{
    r->ended = true;
    finish(r);
    resume(r);
}

size_t http_queued(const struct http_request *r)
{
    return r->n_out - r->at_out;
}

/* ---- accessors ---- */

const char *http_method(const struct http_request *r)
{
    return r->method ? r->method : "";
}

const char *http_path(const struct http_request *r)
{
    return r->path ? r->path : "";
}

int http_dialect(const struct http_request *r)
{
    return r->k->l->dialect;
}

const char *http_header(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->k->c, MHD_HEADER_KIND, name);
}

const char *http_body(const struct http_request *r, size_t *n)
{
    *n = r->body.n;
    return str_text(&r->body);
}

const char *http_peer(const struct http_request *r)
{
    return r->k->peer;
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
