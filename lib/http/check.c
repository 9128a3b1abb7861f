/* What a request must be like before anything of it is believed (RFC 9112). libmicrohttpd 0.9.75 takes much that
 * another server in front of this one may read otherwise, so that what is a body to one is a request to the other. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>

#include <gnutls/gnutls.h>

#include "http/http_impl.h"

#define BROKEN "a header without a name, with a NUL or a bare CR in its value, or with a value on more lines than one"
#define LENGTH_DIGITS_MAX 19 /* more is no length of anything, and may be too much for a number */

/* ---- the target ---- */

static size_t scheme_length(const char *target)
{
    return !strncasecmp(target, "http://", 7) ? 7 : !strncasecmp(target, "https://", 8) ? 8 : 0;
}

void check_target(struct http_request *r, const char *target)
{
    size_t n = scheme_length(target), n_host = strcspn(target + n, "/?");
    r->absolute = n > 0;
    r->n_target = strlen(target);
    for (const char *p = target; *p && !r->fault; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            r->fault = "a space or a control character in what is asked for";
    if (strstr(target, "%00"))
        r->fault = "a NUL in what is asked for";
    if (n && (!n_host || strcspn(target + n, "%@") < n_host))
        r->fault = "no host, or one with '%' or '@', in what is asked for";
}

const char *check_path(const struct http_request *r, const char *url)
{
    const char *slash = r->absolute ? strchr(url + scheme_length(url), '/') : url;
    return slash ? slash : "/";
}

/* ---- the headers ---- */

struct seen {
    const char *end; /* of what came before: its last byte is in front of this */
    const char *fault;
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
/* Until 1.0 libmicrohttpd makes strings of the lines where they lie, NUL for each byte of their ends and for the colon.
 * Where there is more between two strings than that, a value had a NUL in it, or its line went on in the next, which
 * libmicrohttpd then takes for more of the name. */
static bool follows(const char *end, const char *p)
{
    return p - end == 2 || p - end == 1;
}

static bool is_after(const char *target, size_t n, const char *version)
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

static bool ends_whole(struct MHD_Connection *c, const struct seen *s, const char *method)
{
    const union MHD_ConnectionInfo *i = MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    ptrdiff_t n = i ? method + i->header_size - s->end : 0;
    return n >= 2 && n <= 4;
}
#else /* it refuses both by itself */
#define follows(end, p) true
#define is_after(target, n, version) true
#define is_value_of(name, n, value) true
#define ends_whole(c, s, method) true
#endif

static enum MHD_Result look(void *arg, enum MHD_ValueKind kind, const char *name, size_t n_name, const char *value,
                            size_t n_value)
{
    struct seen *s = arg;
    (void)kind;
    value = value ? value : "";
    if (!is_token(name, n_name))
        s->fault = "a header's name with a character that none may have, as a space in front of the colon";
    else if (memchr(value, '\r', n_value) || !follows(s->end, name) || !is_value_of(name, n_name, value))
        s->fault = BROKEN;
    s->end = value + n_value;
    if (!strcasecmp(name, "Host")) {
        s->n_host++;
        if (!is_host(value, n_value))
            s->fault = "a Host that is none";
    } else if (!strcasecmp(name, "Content-Length")) {
        s->n_length++;
        if (!is_length(value, n_value) || n_value > LENGTH_DIGITS_MAX)
            s->fault = "a Content-Length that is no number";
    } else if (!strcasecmp(name, "Transfer-Encoding")) {
        s->n_coding++;
        s->chunked = !strcasecmp(value, "chunked");
    }
    return s->fault ? MHD_NO : MHD_YES;
}

int check_head(const struct http_request *r, const char *url, const char *version, const char **why)
{
    struct MHD_Connection *c = r->k->c;
    struct seen s = {.end = version + strlen(version)};
    bool old = !strcmp(version, "HTTP/1.0");
    size_t n_method = strlen(r->method);
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, look, &s);
    *why = r->fault ? r->fault : s.fault;
    if (!is_token(r->method, n_method) || !is_value_of(r->method, n_method, url))
        *why = "a method that is none";
    if (*why)
        return 400;
    if (!is_after(url, r->n_target, version))
        *why = "a NUL in what is asked for";
    else if (!ends_whole(c, &s, r->method))
        *why = BROKEN;
    else if (s.n_length + s.n_coding > 1)
        *why = "more than one Content-Length or Transfer-Encoding: where the body ends is not clear";
    else if (s.n_coding && old)
        *why = "a Transfer-Encoding in HTTP/1.0: where the body ends is not clear";
    else if (s.n_host > 1 || (!s.n_host && !old))
        *why = s.n_host ? "more than one Host" : "no Host, without which no request is one of HTTP/1.1";
    if (*why)
        return 400;
    if (s.n_coding && !s.chunked)
        *why = "a Transfer-Encoding other than chunked";
    return *why ? 501 : 0;
}

/* ---- what libmicrohttpd refuses ---- */

/* Of an answer that does not go through libmicrohttpd. It is small, and nothing waits before it: what the socket does
 * not take at once is not sent. */
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

/* Its headers have come and nobody has been asked: of all requests that holds of the one alone that is being looked at.
 */
static bool is_looked_at(const struct http_request *r)
{
    const union MHD_ConnectionInfo *i =
        r && !r->method && !r->raw ? MHD_get_connection_info(r->k->c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE) : NULL;
    return i && i->header_size;
}

static void refuse_past(struct http_request *r, int status)
{
    const struct http *h = r->k->h;
    const char *length = http_header(r, "Content-Length");
    char text[160] = "headers that are too many or too long";
    if (status == 413)
        snprintf(text, sizeof text, "a body of over %.20s bytes: the limit is %llu", length ? length : "",
                 (unsigned long long)h->o.body_bytes_max);
    else if (status == 400)
        snprintf(text, sizeof text, "a Content-Length that is no number");
    r->raw = true;
    r->phase = PHASE_OUT;
    r->k->unread = true;
    h->o.fail(h->o.arg, r, status, text);
    shutdown(r->k->fd, SHUT_WR); /* what libmicrohttpd would say finds no way, and it closes */
}

/* A Content-Length that is no number, and cookies for which it has no room, libmicrohttpd refuses before anybody is
 * asked, by two heads of an answer one behind the other. That it is about to is known by what it logs alone. */
void check_log(struct listener *l, const char *fmt, va_list ap)
{
    if (!strstr(fmt, "(HTTP response code is %u"))
        return;
    int status = (int)va_arg(ap, unsigned);
    list_each (struct conn, k, &l->h->conns, node)
        if (k->l == l && is_looked_at(k->r))
            refuse_past(k->r, status);
}
