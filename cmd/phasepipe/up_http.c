/*
 * The HTTP addresses. The supervisor binds them before it starts services, so that an address in use fails at once. It
 * keeps the sockets open as long as it runs: each process of the server inherits them ($LISTEN_FDS), and connections
 * that arrive during a restart wait. The server reports its addresses in its readiness message.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/phasepipe/service.h"

/* The next process of the service inherits the socket under this name. */
static void give(struct service *v, const char *name, const struct http_socket *s)
{
    struct kept *k = &v->kept[v->n_kept++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->fd = s->fd;
}

/* Binds the address of the Ollama API if it is not bound. ERR_NO: it is in use. */
static int bind_ollama(struct err *e, struct super *s, struct service *v)
{
    struct http_front *d = &s->http;
    if (!strcmp(s->plan->ollama, "off") || d->ollama_bound)
        return 0;
    *d->without = 0;
    if (http_bind(e, &d->ollama, s->plan->ollama)) {
        snprintf(d->without, sizeof d->without, "%.250s; the Ollama API is not served", e->text);
        return e->code;
    }
    d->ollama_bound = true;
    give(v, "ollama", &d->ollama);
    return 0;
}

int http_front_bind(struct err *e, struct super *s)
{
    struct service *v = super_find(s, "stream");
    if (!v)
        return 0;
    if (http_bind(e, &s->http.http, s->plan->http))
        return e->code;
    s->http.bound = true;
    give(v, "http", &s->http.http);
    int rc = bind_ollama(e, s, v);
    return rc == ERR_NO && !s->plan->ollama_given ? 0 : rc;
}

void http_front_starts(struct super *s, struct service *v)
{
    struct err e;
    if (strcmp(v->role, "edge"))
        return;
    s->http.n = 0;
    if (!s->plan->ollama_given && s->http.bound)
        (void)bind_ollama(&e, s, v); /* its port may have become free */
}

void http_front_close(struct super *s)
{
    struct http_front *d = &s->http;
    struct service *v = d->bound ? super_find(s, "stream") : NULL;
    if (!v)
        return;
    keep_drop(v);
    if (*d->http.path)
        unlink(d->http.path);
    if (d->ollama_bound && *d->ollama.path)
        unlink(d->ollama.path);
    d->bound = d->ollama_bound = false;
}

void http_front_ready(struct super *s, const struct service *v, const char *message)
{
    static const struct {
        const char *key, *what;
    } keys[] = {{"HTTP=", "the OpenAI API and metrics"}, {"OLLAMA=", "the Ollama API"}};
    struct http_front *d = &s->http;
    if (strcmp(v->role, "edge"))
        return;
    for (const char *p = message; *p; p += strcspn(p, "\n"), p += *p == '\n')
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            size_t n = strlen(keys[i].key);
            if (!strncmp(p, keys[i].key, n) && d->n < HTTP_ADDRESSES_MAX)
                snprintf(d->line[d->n++], sizeof *d->line, "%s: %.*s", keys[i].what, (int)strcspn(p + n, "\n"), p + n);
        }
}

void http_front_announce(struct super *s)
{
    struct http_front *d = &s->http;
    for (size_t i = 0; i < d->n; i++)
        super_log(s, "%s", d->line[i]);
    if (*d->without)
        super_log(s, "%s", d->without);
}
