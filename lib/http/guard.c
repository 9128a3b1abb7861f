/* Pages of other sites in a user's browser: CORS for those that are allowed, a refusal for the others. A browser sends
 * Origin with each request that could change something, and a page cannot set Origin or Host. A page whose name is made
 * to resolve to the loopback (DNS rebinding) has its own name as Host. */
#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "http/http_impl.h"

/* Whether a list of items separated by commas contains this one. */
static bool lists(const char *list, const char *item, size_t n)
{
    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        p += strspn(p, " ");
        size_t len = strcspn(p, ", ");
        if (len == n && !strncasecmp(p, item, n))
            return true;
    }
    return false;
}

static bool is_allowed(const struct http_request *r, const char *origin)
{
    const char *allowed = r->k->h->o.origins;
    return allowed && (!strcmp(allowed, "*") || lists(allowed, origin, strlen(origin)));
}

void guard_cors(const struct http_request *r, struct str *head)
{
    const char *allowed = r->k->h->o.origins, *origin = allowed ? http_header(r, "Origin") : NULL;
    if (!origin)
        return;
    str_add_text(head, "Vary: Origin\r\n");
    if (!is_allowed(r, origin))
        return;
    str_printf(head, "Access-Control-Allow-Origin: %s\r\n", strcmp(allowed, "*") ? origin : "*");
    str_add_text(head, "Access-Control-Expose-Headers: X-Request-Id, Retry-After\r\n");
}

bool guard_is_preflight(const struct http_request *r)
{
    return r->k->h->o.origins && !strcmp(r->head.method, "OPTIONS") && http_header(r, "Origin") &&
           http_header(r, "Access-Control-Request-Method");
}

void guard_preflight(struct http_request *r)
{
    const char *headers = http_header(r, "Access-Control-Request-Headers");
    http_add_header(r, "Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS");
    if (headers)
        http_add_header(r, "Access-Control-Allow-Headers", headers);
    http_add_header(r, "Access-Control-Max-Age", "600");
    r->internal = true;
    http_reply(r, 204, NULL, NULL, 0);
}

/* ---- Host ---- */

/* The host of "HOST", "HOST:PORT" or "[V6]:PORT", without a final dot. */
static void host_of(char out[256], const char *authority, size_t n)
{
    const char *end = *authority == '[' ? memchr(authority, ']', n) : memchr(authority, ':', n);
    size_t len = end ? (size_t)(end - authority) : n;
    size_t skip = *authority == '[' && end;
    snprintf(out, 256, "%.*s", (int)(len - skip), authority + skip);
    len = strlen(out);
    if (len && out[len - 1] == '.')
        out[len - 1] = 0;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), k = strlen(end);
    return n >= k && !strcasecmp(text + n - k, end);
}

/* What DNS cannot point to another host: literal addresses, and localhost (RFC 6761, 6.3). */
static bool is_local_name(const char *host)
{
    unsigned char address[16];
    return !*host || !strcasecmp(host, "localhost") || ends_with(host, ".localhost") ||
           inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

/* A target with a host replaces the header (RFC 9112, 3.2.2). */
static const char *authority_of(const struct http_request *r, size_t *n)
{
    const char *host = http_header(r, "Host");
    host = host ? host : "";
    *n = r->head.authority ? r->head.n_authority : strlen(host);
    return r->head.authority ? r->head.authority : host;
}

static bool host_passes(const struct http_request *r, char *why, size_t n_why)
{
    const char *names = r->k->h->o.hosts;
    char host[256];
    size_t n;
    const char *authority = authority_of(r, &n);
    host_of(host, authority, n);
    if (!r->k->loopback || !strcmp(names, "*") || is_local_name(host) || lists(names, host, strlen(host)))
        return true;
    snprintf(
        why, n_why,
        "Host '%.100s' is not allowed at a loopback address: use localhost or an address, or start the server with "
        "--allowed-hosts",
        host);
    return false;
}

/* ---- Origin ---- */

/* Pages of the local host, and those that are no web pages, as in Ollama. */
static bool is_local_origin(const char *origin)
{
    static const char *const apps[] = {"app://", "file://", "tauri://", "vscode-webview://", "vscode-file://"};
    char host[256];
    for (size_t i = 0; i < sizeof apps / sizeof *apps; i++)
        if (!strncasecmp(origin, apps[i], strlen(apps[i])))
            return true;
    const char *p = strncasecmp(origin, "http", 4) ? NULL : strstr(origin, "://");
    if (!p)
        return false;
    host_of(host, p + 3, strlen(p + 3));
    return !strcasecmp(host, "localhost") || !strcmp(host, "127.0.0.1") || !strcmp(host, "::1") ||
           !strcmp(host, "0.0.0.0");
}

/* A page that this server, or a proxy before it, has sent under the same name. */
static bool is_own_origin(const struct http_request *r, const char *origin)
{
    size_t n;
    const char *authority = authority_of(r, &n), *p = strstr(origin, "://");
    return n && p && strlen(p + 3) == n && !strncasecmp(p + 3, authority, n);
}

bool guard_passes(const struct http_request *r, char *why, size_t n)
{
    const char *origin = http_header(r, "Origin");
    if (!r->k->h->o.hosts)
        return true;
    if (!host_passes(r, why, n))
        return false;
    if (!origin || is_allowed(r, origin) || is_own_origin(r, origin) || is_local_origin(origin))
        return true;
    snprintf(why, n, "Origin '%.100s' is not allowed: start the server with --allowed-origins", origin);
    return false;
}
