/*
 * Where HTTP is served. The supervisor binds the addresses before anything is loaded, so that one in use ends it at
 * once, and keeps the sockets for the life of `up`: each process of the server inherits them ($LISTEN_FDS), and clients
 * that connect while it is replaced wait. The server reports its addresses in its readiness message.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cmd/phasepipe/service.h"

/* The socket goes to the service's next process under this name. */
static void give(struct service *v, const char *name, const struct http_socket *s)
{
    struct kept *k = &v->kept[v->n_kept++];
    snprintf(k->name, sizeof k->name, "%s", name);
    k->fd = s->fd;
}

/* Ollama's address, unless it is bound already. ERR_NO: it is in use. */
static int bind_ollama(struct err *e, struct super *s, struct service *v)
{
    struct edge *d = &s->edge;
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

int edge_bind(struct err *e, struct super *s)
{
    struct service *v = super_find(s, "stream");
    if (!v)
        return 0;
    if (http_bind(e, &s->edge.http, s->plan->http))
        return e->code;
    s->edge.bound = true;
    give(v, "http", &s->edge.http);
    int rc = bind_ollama(e, s, v);
    return rc == ERR_NO && !s->plan->ollama_given ? 0 : rc;
}

void edge_starts(struct super *s, struct service *v)
{
    struct err e;
    if (strcmp(v->role, "edge"))
        return;
    s->edge.n = 0;
    if (!s->plan->ollama_given && s->edge.bound)
        (void)bind_ollama(&e, s, v); /* its port may have become free */
}

void edge_close(struct super *s)
{
    struct edge *d = &s->edge;
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

void edge_ready(struct super *s, const struct service *v, const char *message)
{
    static const struct {
        const char *key, *what;
    } keys[] = {{"HTTP=", "the OpenAI API and metrics"}, {"OLLAMA=", "the Ollama API"}};
    struct edge *d = &s->edge;
    if (strcmp(v->role, "edge"))
        return;
    for (const char *p = message; *p; p += strcspn(p, "\n"), p += *p == '\n')
        for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
            size_t n = strlen(keys[i].key);
            if (!strncmp(p, keys[i].key, n) && d->n < EDGE_ADDRESSES_MAX)
                snprintf(d->line[d->n++], sizeof *d->line, "%s: %.*s", keys[i].what, (int)strcspn(p + n, "\n"), p + n);
        }
}

void edge_announce(struct super *s)
{
    struct edge *d = &s->edge;
    for (size_t i = 0; i < d->n; i++)
        super_say(s, "%s", d->line[i]);
    if (*d->without)
        super_say(s, "%s", d->without);
}
