/* Requests to sched and to kvstore, each with a response within 5 s or an error. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "cmd/phasepipe/service.h"
#include "link/session.h"
#include "link/stat.h"
#include "link/store_client.h"
#include "proc/proc.h"
#include "wire/wire.h"

#define ASK_MS 5000

struct asker {
    char url[WIRE_URL_BYTES_MAX + 1];
    struct peer_tls *tls;
    struct session_hub *hub;
    struct session *sched;
    struct link_stat stat;
};

int asker_open(struct err *e, struct asker **out, const char *run, const char *sched, const char *peer_tls,
               bool plaintext)
{
    struct session_hub_opts o = {.self = {.role = "tool", .inc = (uint64_t)getpid()}};
    struct asker *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return err_nomem(e, "a request", sizeof *a);
    if (sched)
        snprintf(a->url, sizeof a->url, "%s", sched);
    else
        snprintf(a->url, sizeof a->url, "ipc://%s/sched.sock", run);
    int rc = peer_tls ? peer_tls_open(e, &a->tls, peer_tls, "tool") : 0;
    o.security = (struct session_security){a->tls, plaintext};
    rc = rc ? rc : session_hub_new(e, &a->hub, &o);
    rc = rc ? rc : session_dial(e, &a->sched, a->hub, a->url, "sched", NULL);
    if (rc)
        asker_close(a);
    else
        *out = a;
    return rc;
}

void asker_close(struct asker *a)
{
    if (!a)
        return;
    session_hub_free(a->hub);
    peer_tls_close(a->tls);
    link_stat_free(&a->stat);
    free(a);
}

/* The response to a setting: the same frame, or a refusal with the reason. */
static int read_setting(struct err *e, bool *whole, const struct session_event *v)
{
    struct wire_frame f;
    struct wire_arena *arena = wire_arena_new();
    int rc = arena ? session_frame(e, &f, arena, v) : err_nomem(e, "frames", 0);
    if (!rc && f.kind == WIRE_REFUSE)
        rc = err_set(e, ERR_NO, "%.*s", (int)f.refuse.text.n, f.refuse.text.n ? f.refuse.text.p : "");
    *whole = !rc && f.kind == WIRE_KNOB;
    wire_arena_free(arena);
    return rc;
}

/* *done: the response is complete. After a broken connection the request is sent again: both kinds of request are
 * idempotent. */
static int on_event(struct err *e, struct asker *a, bool *done, const struct wire_frame *f,
                    const struct session_event *v)
{
    if (v->type == SESSION_UP)
        return session_send(e, a->sched, f);
    if (v->type == SESSION_REFUSED)
        return err_set(e, v->err.code, "%s", v->err.text);
    if (v->type != SESSION_FRAME)
        return 0;
    int rc = f->kind == WIRE_STAT ? link_stat_add(e, &a->stat, done, v) : read_setting(e, done, v);
    return rc == ERR_PROTO ? err_prefix(e, "%s", a->url) : rc;
}

static int no_response(struct err *e, const struct asker *a)
{
    const char *why = session_dial_error(a->sched);
    return err_set(e, ERR_NO, "no response from %s within %d s%s%s", a->url, ASK_MS / 1000, *why ? ": " : "", why);
}

static int ask(struct err *e, struct asker *a, const struct wire_frame *f)
{
    uint64_t end = time_now_ns() + ASK_MS * NS_MS;
    struct session_event v;
    bool done = false;
    int rc = session_is_up(a->sched) ? session_send(e, a->sched, f) : 0;
    while (!rc && !done) {
        uint64_t now = time_now_ns();
        if (now >= end)
            return no_response(e, a);
        session_hub_wait(a->hub, (int)((end - now) / 1000000 + 1));
        while (!rc && !done && session_hub_next(a->hub, &v))
            rc = on_event(e, a, &done, f, &v);
    }
    return rc;
}

int asker_stat(struct err *e, struct asker *a, const struct wire_stat **stat, const struct wire_worker **w, size_t *n)
{
    const struct wire_frame f = {.kind = WIRE_STAT};
    int rc = ask(e, a, &f);
    *stat = &a->stat.stat;
    *w = a->stat.worker;
    *n = a->stat.n;
    return rc;
}

int asker_set(struct err *e, struct asker *a, const char *name, const char *worker, double value)
{
    const struct wire_frame f = {
        .kind = WIRE_KNOB,
        .knob = {.name = {name, strlen(name)}, .worker = {worker, worker ? strlen(worker) : 0}, .value = (float)value}};
    return ask(e, a, &f);
}

int ask_store(struct err *e, struct wire_kv_stat *out, const char *run, const char *url)
{
    char mine[RUN_BYTES_MAX + 32];
    struct store_client *c;
    snprintf(mine, sizeof mine, "unix:%s/kv.sock", run);
    const struct store_client_opts o = {.url = url ? url : mine, .name = "phasepipe", .timeout_ms = ASK_MS};
    int rc = store_client_open(e, &c, &o);
    if (rc == ERR_SYS || rc == ERR_NO)
        return err_set(e, ERR_NO, "no response from %s within %d s", o.url, ASK_MS / 1000);
    if (rc)
        return rc;
    rc = store_client_stat(e, c, out);
    store_client_close(c);
    return rc ? err_prefix(e, "%s", o.url) : 0;
}
