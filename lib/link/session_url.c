/* Addresses of sessions: their form, and whether they are permitted. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "link/session_impl.h"

#define PATH_BYTES_MAX (sizeof((struct sockaddr_un *)NULL)->sun_path - 1)

bool session_url_is_tls(const char *url)
{
    return !strncmp(url, "tls+tcp://", 10);
}

const char *session_url_stream(const char *url)
{
    return url + (session_url_is_tls(url) ? strlen("tls+") : 0);
}

/* at: HOST:PORT */
static bool is_loopback(const char *at)
{
    char host[INET_ADDRSTRLEN];
    struct in_addr v4;
    size_t n = strcspn(at, ":");
    if (!strncmp(at, "localhost:", 10) || !strncmp(at, "[::1]:", 6))
        return true;
    if (n >= sizeof host)
        return false;
    memcpy(host, at, n);
    host[n] = 0;
    return inet_pton(AF_INET, host, &v4) == 1 && ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET;
}

bool session_url_is_local(const char *url)
{
    url = session_url_stream(url);
    return !strncmp(url, "ipc://", 6) || (!strncmp(url, "tcp://", 6) && is_loopback(url + 6));
}

bool session_url_is_any(const char *url)
{
    url = session_url_stream(url);
    const char *at = strncmp(url, "tcp://", 6) ? NULL : url + 6;
    return at && (!strncmp(at, "0.0.0.0:", 8) || !strncmp(at, "[::]:", 5) || *at == '*' || *at == ':');
}

static int check_security(struct err *e, const char *url, const struct session_security *s)
{
    bool tls = session_url_is_tls(url);
    if (tls && !s->tls)
        return err_set(e, ERR_USAGE, "%s: TLS between services needs credentials: --peer-tls DIR", url);
    if (!tls && !s->plaintext && !session_url_is_local(url))
        return err_set(e, ERR_USAGE,
                       "%s: beyond this host, tcp:// is neither encrypted nor authenticated: "
                       "use tls+tcp:// with --peer-tls DIR, or --peer-plaintext on a trusted network",
                       url);
    return 0;
}

int session_url_check(struct err *e, const char *whole, const struct session_security *s)
{
    const char *url = session_url_stream(whole);
    bool ipc = !strncmp(url, "ipc://", 6), tcp = !strncmp(url, "tcp://", 6);
    const char *colon = strrchr(url, ':'), *port = colon ? colon + 1 : url;
    if ((!ipc && !tcp) || !url[6])
        return err_set(e, ERR_USAGE, "'%s': an address is ipc://PATH, tcp://HOST:PORT or tls+tcp://HOST:PORT", whole);
    if (ipc && strlen(url + 6) > PATH_BYTES_MAX)
        return err_set(e, ERR_USAGE, "'%s': the path of a socket has at most %zu bytes", whole, PATH_BYTES_MAX);
    size_t n = strspn(port, "0123456789");
    if (tcp && (port <= url + 6 || !n || n > 5 || port[n] || strtoul(port, NULL, 10) > 65535))
        return err_set(e, ERR_USAGE, "'%s': a port is a number up to 65535", whole);
    return tcp ? check_security(e, whole, s) : 0;
}
