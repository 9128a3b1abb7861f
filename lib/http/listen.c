/* Parsing and binding of addresses. */
#include "http/listen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/socket.h"

#define BACKLOG 1024

void http_name_of(char out[HTTP_NAME_BYTES], int fd)
{
    struct sockaddr_storage a = {0}; /* a Unix socket may have no name */
    socklen_t len = sizeof a;
    char host[INET6_ADDRSTRLEN] = "";
    if (getsockname(fd, (struct sockaddr *)&a, &len)) {
        snprintf(out, HTTP_NAME_BYTES, "a socket");
    } else if (a.ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)&a;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, HTTP_NAME_BYTES, "%s:%d", host, ntohs(in->sin_port));
    } else if (a.ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)&a;
        inet_ntop(AF_INET6, &in->sin6_addr, host, sizeof host);
        snprintf(out, HTTP_NAME_BYTES, "[%s]:%d", host, ntohs(in->sin6_port));
    } else {
        snprintf(out, HTTP_NAME_BYTES, "unix:%.107s", ((const struct sockaddr_un *)&a)->sun_path);
    }
}

static int bind_unix(struct err *e, struct http_socket *out, const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (!*path || strlen(path) >= sizeof a.sun_path)
        return err_set(e, ERR_USAGE, "unix:%.60s: the path of a Unix socket must have 1 to %zu bytes", path,
                       sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    snprintf(out->name, sizeof out->name, "unix:%s", a.sun_path);
    if (!stat(path, &st)) {
        if (!S_ISSOCK(st.st_mode) || socket_is_listening(path))
            return err_set(e, ERR_NO, "%s: address already in use", out->name);
        unlink(path);
    }
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return err_sys(e, "%s", out->name);
    mode_t mask = umask(0077);
    int bad = bind(fd, (const struct sockaddr *)&a, sizeof a) || listen(fd, BACKLOG);
    umask(mask);
    if (bad) {
        err_sys(e, "%s", out->name);
        close(fd);
        return e->code;
    }
    out->fd = fd;
    memcpy(out->path, a.sun_path, sizeof out->path);
    return 0;
}

/* Splits "HOST:PORT". *all: the host is empty, for all addresses. */
static int split(struct err *e, char host[256], const char **port, bool *all, const char *address)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    const char *p = address;
    *port = colon ? colon + 1 : address;
    *all = colon && n == 0;
    if (n > 2 && p[0] == '[' && p[n - 1] == ']') {
        p++;
        n -= 2;
    }
    size_t digits = strspn(*port, "0123456789");
    if (!digits || digits > 5 || (*port)[digits] || strtoul(*port, NULL, 10) > 65535 || n > 255)
        return err_set(e, ERR_USAGE, "invalid address '%.100s': expected HOST:PORT, :PORT, PORT or unix:PATH", address);
    snprintf(host, 256, "%.*s", (int)(colon && n ? n : 9), colon && n ? p : "127.0.0.1");
    return 0;
}

static int listen_at(struct err *e, const struct addrinfo *a, const char *address)
{
    int one = 1, fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        err_sys(e, "%s", address);
        return -1;
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (a->ai_family == AF_INET6) {
        int zero = 0;
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    }
    if (!bind(fd, a->ai_addr, a->ai_addrlen) && !listen(fd, BACKLOG))
        return fd;
    if (errno == EADDRINUSE)
        err_set(e, ERR_NO, "%s: address already in use", address);
    else
        err_sys(e, "%s", address);
    close(fd);
    return -1;
}

int http_bind(struct err *e, struct http_socket *out, const char *address)
{
    char host[256];
    const char *port;
    bool all;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *found = NULL;
    *out = (struct http_socket){.fd = -1};
    if (!strncmp(address, "unix:", 5))
        return bind_unix(e, out, address + 5);
    if (split(e, host, &port, &all, address))
        return e->code;
    int bad = getaddrinfo(all ? NULL : host, port, &hints, &found);
    if (bad)
        return err_set(e, ERR_USAGE, "%.100s: %s", address, gai_strerror(bad));
    /* All addresses: a dual-stack IPv6 socket accepts IPv4 too, if there is IPv6. */
    const struct addrinfo *a = found;
    for (const struct addrinfo *i = found; all && i; i = i->ai_next)
        if (i->ai_family == AF_INET6)
            a = i;
    out->fd = listen_at(e, a, address);
    if (out->fd < 0 && all && a != found && e->code != ERR_NO)
        out->fd = listen_at(e, found, address);
    freeaddrinfo(found);
    if (out->fd < 0)
        return e->code;
    http_name_of(out->name, out->fd);
    return 0;
}
