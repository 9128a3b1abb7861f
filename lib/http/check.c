/* Checks of a request's head before anything in it is trusted (RFC 9112). libmicrohttpd 0.9.75 accepts much that a
 * proxy may parse differently, so that what one takes for a body is a request to the other (request smuggling). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include <gnutls/gnutls.h>

#include "http/http_impl.h"

#define BAD_HEADER                                                                                                     \
    "invalid header: an empty name, a NUL or bare CR in its value, or a value that spans more lines than one"
#define BAD_LENGTH "invalid Content-Length: expected a decimal number of at most 19 digits"
#define LENGTH_DIGITS_MAX 19 /* so that the value fits 64 bits */

/* ---- the target ---- */

static size_t scheme_length(const char *target)
{
    return !strncasecmp(target, "http://", 7) ? 7 : !strncasecmp(target, "https://", 8) ? 8 : 0;
}

void check_target(struct http_request *r, const char *target)
{
    size_t n = scheme_length(target), n_host = strcspn(target + n, "/?");
    r->absolute_form = n > 0;
    r->n_target = strlen(target);
    for (const char *p = target; *p && !r->target_error; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            r->target_error = "invalid request target: a space or control character must be percent-encoded";
    if (strstr(target, "%00"))
        r->target_error = "invalid request target: it contains a NUL";
    if (n && (!n_host || strcspn(target + n, "%@") < n_host))
        r->target_error = "invalid request target: the host is empty or contains '%' or '@'";
}

const char *check_path(const struct http_request *r, const char *url)
{
    const char *slash = r->absolute_form ? strchr(url + scheme_length(url), '/') : url;
    return slash ? slash : "/";
}

/* ---- the headers ---- */

struct head_scan {
    const char *end; /* of the value before, as libmicrohttpd stores the head */
    const char *error;
    int n_host, n_length, n_coding;
    bool chunked;
};

static bool is_token(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] <= ' ' || p[i] >= 127 || strchr("\"(),/:;<=>?@[\\]{}", p[i]))
            return false;
    return n > 0;
}

static bool is_host(const char *p, size_t n)
{
    while (n && (p[n - 1] == ' ' || p[n - 1] == '\t'))
        n--;
    return strcspn(p, " \t\"#,/<>?@\\^`{|}") >= n;
}

static bool is_length(const char *p, size_t n)
{
    return n > 0 && strspn(p, "0123456789") == n;
}

#if MHD_VERSION < 0x01000000
/* Before 1.0 libmicrohttpd splits the head in place: it writes NUL over each line end and colon. So a larger gap
 * between two strings shows that a value contained a NUL, or that its line was folded into the next, which
 * libmicrohttpd then takes for part of the name. */
static bool is_adjacent(const char *end, const char *p)
{
    return p - end == 2 || p - end == 1;
}

static bool follows_target(const char *target, size_t n, const char *version)
{
    return version == target + n + 1;
}

static bool is_value_of(const char *name, size_t n, const char *value)
{
    const char *p = name + n + 1;
    while (p < value && (*p == ' ' || *p == '\t'))
        p++;
    return p == value;
}

static bool ends_head(struct MHD_Connection *c, const struct head_scan *s, const char *method)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    ptrdiff_t n = i ? method + i->header_size - s->end : 0;
    return n >= 2 && n <= 4;
}
#else /* from 1.0 on libmicrohttpd refuses both itself */
#define is_adjacent(end, p) true
#define follows_target(target, n, version) true
#define is_value_of(name, n, value) true
#define ends_head(c, s, method) true
#endif

static enum MHD_Result check_header(void *arg, enum MHD_ValueKind kind, const char *name, size_t n_name,
                                    const char *value, size_t n_value)
{
    struct head_scan *s = arg;
    (void)kind;
    value = value ? value : "";
    if (!is_token(name, n_name))
        s->error = "invalid character in a header name, for example a space before the colon";
    else if (memchr(value, '\r', n_value) || !is_adjacent(s->end, name) || !is_value_of(name, n_name, value))
        s->error = BAD_HEADER;
    s->end = value + n_value;
    if (!strcasecmp(name, "Host")) {
        s->n_host++;
        if (!is_host(value, n_value))
            s->error = "invalid Host header";
    } else if (!strcasecmp(name, "Content-Length")) {
        s->n_length++;
        if (!is_length(value, n_value) || n_value > LENGTH_DIGITS_MAX)
            s->error = BAD_LENGTH;
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        s->n_coding++;
        s->chunked = !strcasecmp(value, "chunked");
    }
    return s->error ? MHD_NO : MHD_YES;
}

int check_head(const struct http_request *r, const char *url, const char *version, const char **why)
{
    struct MHD_Connection *c = r->k->c;
    struct head_scan s = {.end = version + strlen(version)};
    bool old = !strcmp(version, "HTTP/1.0");
    size_t n_method = strlen(r->method);
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, check_header, &s);
    *why = r->target_error ? r->target_error : s.error;
    if (!is_token(r->method, n_method) || !is_value_of(r->method, n_method, url))
        *why = "invalid method";
    if (*why)
        return 400;
    if (!follows_target(url, r->n_target, version))
        *why = "invalid request target: it contains a NUL";
    else if (!ends_head(c, &s, r->method))
        *why = BAD_HEADER;
    else if (s.n_length + s.n_coding > 1)
        *why = "more than one Content-Length or Transfer-Encoding header: the length of the body is ambiguous";
    else if (s.n_coding && old)
        *why = "Transfer-Encoding in an HTTP/1.0 request: the length of the body is ambiguous; send Content-Length";
    else if (s.n_host > 1 || (!s.n_host && !old))
        *why = s.n_host ? "more than one Host header" : "missing Host header (required since HTTP/1.1)";
    if (*why)
        return 400;
    if (s.n_coding && !s.chunked)
        *why = "unsupported Transfer-Encoding: only 'chunked' is accepted";
    return *why ? 501 : 0;
}

/* ---- requests that libmicrohttpd refuses ---- */

/* Writes a response to the socket directly. It is small and the first output, so it fits the socket's buffer; a rest
 * that does not is lost. */
static void send_now(const struct conn *k, const char *p, size_t n)
{
    const union MHD_ConnectionInfo *i =
        k->tls ? MHD_get_connection_info(k->c, MHD_CONNECTION_INFO_GNUTLS_SESSION) : NULL;
    if (!k->tls)
        (void)!send(k->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
    else if (i && gnutls_record_send(i->tls_session, p, n) > 0)
        gnutls_bye(i->tls_session, GNUTLS_SHUT_WR);
}

void check_reply(struct http_request *r, int status, const char *type, const void *body, size_t n)
{
    char *text = NULL, date[40] = "";
    size_t n_text = 0;
    FILE *f = open_memstream(&text, &n_text);
    time_t now = time(NULL);
    struct tm tm;
    r->status = status;
    if (!f)
        return;
    if (gmtime_r(&now, &tm))
        strftime(date, sizeof date, "%a, %d %b %Y %H:%M:%S GMT", &tm);
    fprintf(f, "HTTP/1.1 %d %s\r\nDate: %s\r\nConnection: close\r\nContent-Type: %s\r\n", status,
            MHD_get_reason_phrase_for((unsigned)status), date, type);
    for (size_t i = 0; i < r->n_header; i++)
        fprintf(f, "%s: %s\r\n", r->header[i].name, r->header[i].value);
    fprintf(f, "Content-Length: %zu\r\n\r\n", n);
    fwrite(body, 1, n, f);
    if (!fclose(f))
        send_now(r->k, text, n_text);
    free(text);
}

/* Whether this is the request whose head libmicrohttpd is parsing: its headers are known, but request_handle has not
 * been called. That holds of one request at a time. */
static bool is_being_parsed(const struct http_request *r)
{
    const union MHD_ConnectionInfo *i =
        r && !r->method && !r->raw ? MHD_get_connection_info(r->k->c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) : NULL;
    return i && i->header_size;
}

static void refuse_raw(struct http_request *r, int status)
{
    const struct http *h = r->k->h;
    const char *length = http_header(r, "Content-Length");
    char text[160] = "the request headers are too large: the limit is 32 KiB";
    if (status == 413)
        snprintf(text, sizeof text, "the request body is too large: %.20s bytes or more, the limit is %llu",
                 length ? length : "", (unsigned long long)h->o.body_bytes_max);
    else if (status == 400)
        snprintf(text, sizeof text, "%s", BAD_LENGTH);
    r->raw = true;
    r->state = STATE_DELIVERED;
    r->k->body_unread = true;
    h->o.fail(h->o.arg, r, status, text);
    shutdown(r->k->fd, SHUT_WR); /* libmicrohttpd's own response cannot be sent any more, and it closes */
}

/* An invalid Content-Length, and cookies that exceed its memory, libmicrohttpd refuses before it calls request_handle,
 * by two response heads in a row. Its log line is the only sign that it is about to. */
void check_log(struct listener *l, const char *fmt, va_list ap)
{
    if (!strstr(fmt, "(HTTP response code is %u"))
        return;
    int status = (int)va_arg(ap, unsigned);
    list_each (struct conn, k, &l->h->conns, node)
        if (k->l == l && is_being_parsed(k->r))
            refuse_raw(k->r, status);
}
