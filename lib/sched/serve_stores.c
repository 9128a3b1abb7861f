/* Sessions with the stores: passes their events to the state machine, and releases handles that no worker will take. */
#include <stdio.h>
#include <string.h>

#include "sched/serve_impl.h"

enum { TAG_OPEN = 1, TAG_WATCH, TAG_FREE };

static void store_send(struct serve *v, const struct store_watch *w, const struct wire_frame *f)
{
    struct err e;
    if (session_is_up(w->s) && session_send(&e, w->s, f) == ERR_SYS)
        serve_broken(v, &e);
}

static void store_up(struct serve *v, const struct store_watch *w)
{
    struct wire_frame f = {.kind = WIRE_KV_OPEN, .kv_open = {.tag = TAG_OPEN, .from = wire_str_of(v->o->prog)}};
    store_send(v, w, &f);
    f = (struct wire_frame){.kind = WIRE_KV_WATCH, .kv_tag = {.tag = TAG_WATCH}};
    store_send(v, w, &f);
}

/* Closes the session after a wrong frame or a refusal; logs the first one since the last event. */
static void store_fail(struct serve *v, struct store_watch *w, const char *text)
{
    if (!w->refusal_logged)
        serve_log(v, text);
    w->refusal_logged = true;
    session_close(w->s, NULL);
}

/* A refusal of TAG_FREE is ignored: the handle was taken, or has ended. */
static void store_frame(struct serve *v, struct store_watch *w, const struct session_event *x)
{
    struct err e;
    struct wire_frame f, blocks = {.kind = WIRE_BLOCKS};
    char line[500];
    wire_arena_reset(v->arena);
    if (session_frame(&e, &f, v->arena, x)) {
        store_fail(v, w, e.text);
    } else if (f.kind == WIRE_KV_EVENT) {
        blocks.blocks = (struct wire_blocks){.store = wire_str_of(w->name),
                                             .reset = f.kv_event.reset,
                                             .stored = f.kv_event.stored,
                                             .evicted = f.kv_event.evicted};
        w->refusal_logged = false;
        serve_event(v, &blocks);
    } else if (f.kind == WIRE_KV_NO && (f.kv_no.tag == TAG_OPEN || f.kv_no.tag == TAG_WATCH)) {
        snprintf(line, sizeof line, "%s: %.*s", session_url(w->s), (int)(f.kv_no.text.n < 400 ? f.kv_no.text.n : 400),
                 f.kv_no.text.p);
        store_fail(v, w, line);
    }
}

void store_session(struct serve *v, struct store_watch *w, const struct session_event *x)
{
    struct wire_frame f = {.kind = WIRE_BLOCKS, .blocks = {.store = wire_str_of(w->name), .reset = true}};
    if (x->type == SESSION_UP)
        store_up(v, w);
    else if (x->type == SESSION_FRAME)
        store_frame(v, w, x);
    else if (x->type == SESSION_DOWN) /* its blocks are unknown until the next session */
        serve_event(v, &f);
}

struct store_watch *store_of(struct serve *v, const struct session *s)
{
    for (size_t i = 0; i < v->n_store; i++)
        if (v->store[i].s == s)
            return &v->store[i];
    return NULL;
}

int stores_open(struct err *e, struct serve *v)
{
    int rc = 0;
    for (size_t i = 0; i < v->o->n_store && !rc; i++) {
        struct store_watch *w = &v->store[v->n_store];
        *w = (struct store_watch){.name = v->o->store[i].name};
        rc = session_dial_plain(e, &w->s, v->hub, v->o->store[i].url, NULL);
        v->n_store += !rc;
    }
    return rc;
}

void stores_close(struct serve *v)
{
    while (v->n_store)
        session_free(v->store[--v->n_store].s);
}

/* If the store is not connected, it ends the sequence after its TTL (kvstore --handed-ms). */
void stores_release(void *arg, const char *store, struct wire_bytes handle)
{
    struct serve *v = arg;
    struct wire_frame f = {.kind = WIRE_KV_FREE, .kv_free = {.tag = TAG_FREE, .handle = handle}};
    for (size_t i = 0; i < v->n_store; i++)
        if (!strcmp(v->store[i].name, store))
            store_send(v, &v->store[i], &f);
}
