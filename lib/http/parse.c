/* The grammar of requests; see parse.h. */
#include "http/parse.h"

#include <string.h>
#include <strings.h>

#define BAD_NAME "invalid character in a header name, for example a space before the colon"
#define BAD_HEADER "invalid header: no colon, a NUL or bare CR in its value, or a value that spans more lines than one"
#define BAD_LENGTH "invalid Content-Length: expected a decimal number of at most 19 digits"
#define BAD_TARGET "invalid request target: a space or control character must be percent-encoded"
#define NUL_TARGET "invalid request target: it contains a NUL"
#define BAD_HOST "invalid request target: the host is empty or contains '%' or '@'"
#define LENGTH_DIGITS_MAX 19 /* so that the value fits 64 bits */

static bool is_blank(char c)
{
    return c == ' ' || c == '\t';
}

static bool is_token_char(char c)
{
    return c > ' ' && c < 127 && !strchr("\"(),/:;<=>?@[\\]{}", c);
}

static bool is_token(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_token_char(p[i]))
            return false;
    return n > 0;
}

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

size_t parse_head_length(const char *p, size_t n, size_t *from)
{
    const char *end;
    for (size_t at = *from; at < n && (end = memchr(p + at, '\n', n - at)); at = *from) {
        size_t i = (size_t)(end - p) + 1;
        if (i < n && p[i] == '\n')
            return i + 1;
        if (i + 1 < n && p[i] == '\r' && p[i + 1] == '\n')
            return i + 2;
        if (i == n || (i + 1 == n && p[i] == '\r')) /* the next bytes decide */
            return 0;
        *from = i;
    }
    if (n && !memchr(p + *from, '\n', n - *from))
        *from = n;
    return 0;
}

/* ---- the request line ---- */

static size_t scheme_length(const char *target)
{
    return !strncasecmp(target, "http://", 7) ? 7 : !strncasecmp(target, "https://", 8) ? 8 : 0;
}

/* Cuts the query off and decodes in place. An escape that is none stays as it is. */
static const char *decode_path(char *p)
{
    char *to = p;
    const char *from = p;
    p[strcspn(p, "?")] = 0;
    while (*from) {
        int a = *from == '%' ? hex(from[1]) : -1, b = a >= 0 ? hex(from[2]) : -1;
        *to++ = b >= 0 ? (char)(a * 16 + b) : *from;
        from += b >= 0 ? 3 : 1;
    }
    *to = 0;
    return p;
}

static const char *check_target(struct parse_head *h, char *target, size_t n)
{
    if (strlen(target) != n || strstr(target, "%00"))
        return NUL_TARGET;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= ' ' || *p == 127)
            return BAD_TARGET;
    size_t n_scheme = scheme_length(target), n_host = strcspn(target + n_scheme, "/?");
    if (n_scheme && (!n_host || strcspn(target + n_scheme, "%@") < n_host))
        return BAD_HOST;
    char *path = target;
    if (n_scheme) {
        h->authority = target + n_scheme;
        h->n_authority = n_host;
        path = target + n_scheme + n_host;
    }
    h->path = !n_scheme || *path == '/' ? decode_path(path) : "/";
    return NULL;
}

/* line: NUL-terminated, n bytes that may contain NULs. */
static int request_line(struct parse_head *h, char *line, size_t n, const char **why)
{
    char *space = memchr(line, ' ', n), *last = space ? memrchr(line, ' ', n) : NULL;
    size_t n_method = space ? (size_t)(space - line) : n;
    *why = "invalid request line: expected METHOD TARGET HTTP/1.1";
    if (!is_token(line, n_method)) {
        *why = "invalid method: its characters must be letters, digits or one of !#$%&'*+-.^_`|~";
        return 400;
    }
    line[n_method] = 0;
    h->method = line;
    char *target = space ? space + 1 : NULL;
    while (target && target < last && *target == ' ')
        target++;
    if (!target || target >= last)
        return 400;
    const char *version = last + 1;
    if (strlen(version) != 8 || line + n - version != 8 || strncmp(version, "HTTP/", 5) || version[6] != '.' ||
        version[5] < '0' || version[5] > '9' || version[7] < '0' || version[7] > '9')
        return 400;
    *last = 0;
    h->minor = version[7] - '0';
    if (version[5] != '1') {
        *why = "unsupported HTTP version: only HTTP/1.0 and HTTP/1.1 are accepted";
        return 505;
    }
    *why = check_target(h, target, (size_t)(last - target));
    return *why ? 400 : 0;
}

/* ---- the headers ---- */

struct scan {
    int n_host, n_length, n_coding;
};

static bool is_host(const char *p)
{
    return !p[strcspn(p, " \t\"#,/<>?@\\^`{|}")];
}

/* Whether a list of tokens separated by commas contains this one. */
static bool lists(const char *value, const char *token)
{
    size_t n = strlen(token);
    for (const char *p = value; *p;) {
        p += strspn(p, " \t,");
        size_t len = strcspn(p, " \t,");
        if (len == n && !strncasecmp(p, token, n))
            return true;
        p += len;
    }
    return false;
}

/* A length that does not fit is UINT64_MAX, more than any limit. */
static const char *read_length(struct parse_head *h, const char *value)
{
    size_t n = strlen(value), n_zero = strspn(value, "0");
    uint64_t v = 0;
    if (!n || strspn(value, "0123456789") != n || (n > LENGTH_DIGITS_MAX && n - n_zero <= LENGTH_DIGITS_MAX))
        return BAD_LENGTH;
    for (size_t i = 0; i < n && n <= LENGTH_DIGITS_MAX; i++)
        v = v * 10 + (uint64_t)(value[i] - '0');
    h->has_length = true;
    h->length = n <= LENGTH_DIGITS_MAX ? v : UINT64_MAX;
    return NULL;
}

/* What this server acts on. Returns the error, or NULL. */
static const char *use_header(struct parse_head *h, struct scan *s, const char *name, const char *value)
{
    if (!strcasecmp(name, "Host")) {
        s->n_host++;
        return is_host(value) ? NULL : "invalid Host header";
    }
    if (!strcasecmp(name, "Content-Length")) {
        s->n_length++;
        return read_length(h, value);
    }
    if (!strcasecmp(name, "Transfer-Encoding")) {
        s->n_coding++;
        h->chunked = !strcasecmp(value, "chunked");
    } else if (!strcasecmp(name, "Connection")) {
        h->keep_alive = (h->keep_alive || lists(value, "keep-alive")) && !lists(value, "close");
    } else if (!strcasecmp(name, "Expect")) {
        h->expects_continue = !strcasecmp(value, "100-continue");
    }
    return NULL;
}

/* line: a header without its line end; NUL-terminated. */
static const char *header_line(struct parse_head *h, struct scan *s, char *line, size_t n)
{
    char *colon = memchr(line, ':', n), *value, *end = line + n;
    if (is_blank(*line) && h->n_header)
        return BAD_HEADER; /* a folded line (RFC 9112, 5.2) */
    if (!colon)
        return memchr(line, '\r', n) ? BAD_NAME : BAD_HEADER;
    if (!is_token(line, (size_t)(colon - line)))
        return BAD_NAME;
    for (value = colon + 1; is_blank(*value); value++) {
    }
    while (end > value && is_blank(end[-1]))
        end--;
    *colon = *end = 0;
    if (memchr(value, 0, (size_t)(end - value)) || memchr(value, '\r', (size_t)(end - value)))
        return BAD_HEADER;
    h->header[h->n_header].name = (uint16_t)(line - h->text);
    h->header[h->n_header++].value = (uint16_t)(value - h->text);
    return use_header(h, s, line, value);
}

static int check_headers(struct parse_head *h, const struct scan *s, const char **why)
{
    if (s->n_length + s->n_coding > 1)
        *why = "more than one Content-Length or Transfer-Encoding header: the length of the body is ambiguous";
    else if (s->n_coding && !h->minor)
        *why = "Transfer-Encoding in an HTTP/1.0 request: the length of the body is ambiguous; send Content-Length";
    else if (s->n_host > 1 || (!s->n_host && h->minor))
        *why = s->n_host ? "more than one Host header" : "missing Host header (required since HTTP/1.1)";
    if (*why)
        return 400;
    if (s->n_coding && !h->chunked)
        *why = "unsupported Transfer-Encoding: only 'chunked' is accepted";
    return *why ? 501 : 0;
}

/* The next line, NUL-terminated and without its line end; *n: its length. */
static char *next_line(char **at, char *end, size_t *n)
{
    char *line = *at, *lf = memchr(line, '\n', (size_t)(end - line));
    lf = lf ? lf : end;
    *at = lf < end ? lf + 1 : end;
    if (lf > line && lf[-1] == '\r')
        lf--;
    *lf = 0;
    *n = (size_t)(lf - line);
    return line;
}

int parse_head(struct parse_head *h, char *text, size_t n, const char **why)
{
    char *at = text, *end = text + n;
    size_t n_line;
    struct scan s = {0};
    *h = (struct parse_head){.text = text, .method = "", .path = ""};
    *end = 0;
    *why = NULL;
    char *line = next_line(&at, end, &n_line);
    int status = request_line(h, line, n_line, why);
    if (status)
        return status;
    h->keep_alive = h->minor > 0;
    while (at < end) {
        line = next_line(&at, end, &n_line);
        if (!n_line)
            break;
        if (h->n_header == PARSE_HEADERS_MAX) {
            *why = "the request headers are too many: the limit is 128";
            return 431;
        }
        *why = header_line(h, &s, line, n_line);
        if (*why)
            return 400;
    }
    return check_headers(h, &s, why);
}

const char *parse_header(const struct parse_head *h, const char *name)
{
    for (size_t i = 0; i < h->n_header; i++)
        if (!strcasecmp(h->text + h->header[i].name, name))
            return h->text + h->header[i].value;
    return NULL;
}

/* ---- chunks ---- */

/* One byte of a line with a chunk size. */
static const char *size_byte(struct parse_chunks *c, char b)
{
    int digit = hex(b);
    if (digit >= 0 && !c->blank) {
        c->digit = true;
        c->left = c->left > UINT64_MAX >> 4 ? UINT64_MAX : c->left << 4 | (uint64_t)digit;
        return NULL;
    }
    c->blank = c->blank || is_blank(b);
    if (c->digit && b == ';')
        c->state = CHUNK_EXTENSION;
    else if (c->digit && b == '\r' && !c->blank)
        c->state = CHUNK_LINE_END;
    else if (!c->digit || !is_blank(b))
        return "invalid chunk size: expected hexadecimal digits, then an extension or CR LF";
    return NULL;
}

static const char *framing_byte(struct parse_chunks *c, char b)
{
    switch (c->state) {
    case CHUNK_SIZE:
        return size_byte(c, b);
    case CHUNK_EXTENSION:
        if (b == '\r')
            c->state = CHUNK_LINE_END;
        return b == '\r' || b == '\t' || ((unsigned char)b >= ' ' && b != 127)
                   ? NULL
                   : "invalid chunk extension: it contains a control character, or ends without CR";
    case CHUNK_LINE_END:
        c->state = c->left ? CHUNK_DATA : CHUNK_TRAILER;
        c->n_line = 0;
        return b == '\n' ? NULL : "invalid chunk: a CR without LF";
    case CHUNK_DATA_CR:
        c->state = CHUNK_DATA_LF;
        return b == '\r' ? NULL : "invalid chunk: its data is not followed by CR LF";
    case CHUNK_DATA_LF:
        *c = (struct parse_chunks){.state = CHUNK_SIZE};
        return b == '\n' ? NULL : "invalid chunk: its data is not followed by CR LF";
    default:
        break;
    }
    return NULL;
}

/* Parses one byte of the trailer, which follows the last chunk. */
static const char *trailer_byte(struct parse_chunks *c, char b)
{
    switch (c->state) {
    case CHUNK_TRAILER:
        c->state = b == '\r' ? CHUNK_LAST_LF : CHUNK_TRAILER_NAME;
        return b == '\r' || is_token_char(b) ? NULL : "invalid trailer field after the last chunk";
    case CHUNK_TRAILER_NAME:
        if (b == ':')
            c->state = CHUNK_TRAILER_VALUE;
        return b == ':' || is_token_char(b) ? NULL : "invalid trailer field after the last chunk";
    case CHUNK_TRAILER_VALUE:
        if (b == '\r')
            c->state = CHUNK_TRAILER_LF;
        return b && b != '\n' ? NULL : "invalid trailer field after the last chunk";
    default:
        c->state = c->state == CHUNK_TRAILER_LF ? CHUNK_TRAILER : CHUNK_END;
        return b == '\n' ? NULL : "invalid trailer field after the last chunk: a CR without LF";
    }
}

size_t parse_chunks(struct parse_chunks *c, const char *p, size_t n, const char **data, size_t *n_data,
                    const char **why)
{
    size_t i = 0;
    *n_data = 0;
    *data = p;
    *why = NULL;
    while (i < n && c->state != CHUNK_END && !*why) {
        if (c->state == CHUNK_DATA) {
            *data = p + i;
            *n_data = n - i < c->left ? n - i : (size_t)c->left;
            c->left -= *n_data;
            if (!c->left)
                c->state = CHUNK_DATA_CR;
            return i + *n_data;
        }
        bool trailer = c->state >= CHUNK_TRAILER;
        if (++c->n_line > (trailer ? PARSE_TRAILER_MAX : PARSE_CHUNK_LINE_MAX))
            *why = trailer ? "the trailer fields are too large: the limit is 8 KiB"
                           : "the chunk extension is too large: the limit is 1 KiB";
        else
            *why = trailer ? trailer_byte(c, p[i]) : framing_byte(c, p[i]);
        i++;
    }
    return i;
}
