/* Questions to sched and to kvstore, each answered within 5 s or not at all. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/phasepipe/service.h"
#include "link/ask.h"
#include "link/store_client.h"
#include "proc/proc.h"
#include "wire/wire.h"

#define ASK_MS 5000

struct asker {
    char url[WIRE_URL_BYTES_MAX + 1];
    struct link_box *box;
    struct link_dialer *dialer;
    struct wire_arena *arena;
    struct wire_stat stat;
    struct wire_worker *worker;
    size_t n, cap;
};

int asker_open(struct err *e, struct asker **out, const char *run, const char *sched)
{
    struct asker *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return err_nomem(e, "question", sizeof *a);
    if (sched)
        snprintf(a->url, sizeof a->url, "%s", sched);
    else
        snprintf(a->url, sizeof a->url, "ipc://%s/sched.sock", run);
    a->arena = wire_arena_new();
    int rc = a->arena ? link_box_new(e, &a->box) : err_nomem(e, "frames", 0);
    rc = rc ? rc : link_dial(e, &a->dialer, a->box, a->url, NULL);
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
    link_dialer_free(a->dialer);
    link_box_free(a->box);
    wire_arena_free(a->arena);
    free(a->worker);
    free(a);
}

static int add_worker(struct err *e, struct asker *a, const struct wire_worker *w)
{
    if (a->n == a->cap) {
        size_t cap = 2 * a->cap + 16;
        struct wire_worker *grown = realloc(a->worker, cap * sizeof *grown);
        if (!grown)
            return err_nomem(e, "workers", cap * sizeof *grown);
        a->worker = grown;
        a->cap = cap;
    }
    a->worker[a->n++] = *w;
    return 0;
}

/* *stat: one came. A knob is answered by nothing, or by a refusal in words. */
static int read_answer(struct err *e, struct asker *a, bool *stat, const uint8_t *p, size_t n)
{
    struct wire_frame f;
    int rc = 0;
    a->n = 0;
    *stat = false;
    wire_arena_reset(a->arena);
    e->code = 0;
    while (!rc && link_msg_next(e, &f, a->arena, &p, &n)) {
        if (f.kind == WIRE_STAT) {
            a->stat = f.stat;
            *stat = true;
        } else if (f.kind == WIRE_WORKER) {
            rc = add_worker(e, a, &f.worker);
        } else if (f.kind == WIRE_REFUSE) {
            rc = err_set(e, ERR_NO, "%.*s", (int)f.refuse.text.n, f.refuse.text.n ? f.refuse.text.p : "");
        }
    }
    return rc ? rc : e->code;
}

/* Asked again where the connection breaks: what is asked here does the same when it is done twice. */
static int ask(struct err *e, struct asker *a, bool *stat, const struct wire_frame *f)
{
    uint64_t end = proc_now_ns() + ASK_MS * 1000000ull;
    struct link_msg m = {0};
    struct link_event v;
    bool asked = false, answered = false;
    int rc = 0;
    while (!rc && !answered) {
        uint64_t now = proc_now_ns();
        if (now >= end) {
            rc = err_set(e, ERR_NO, "nobody answers at %s within %d s", a->url, ASK_MS / 1000);
            break;
        }
        if (!asked) {
            rc = link_msg_add(e, &m, f);
            rc = rc ? rc : link_ask(e, a->dialer, &m, NULL);
            asked = true;
        }
        if (!rc)
            link_box_wait(a->box, (int)((end - now) / 1000000 + 1));
        while (!rc && !answered && link_box_take(a->box, &v)) {
            if (v.what == LINK_ANSWER) {
                answered = true;
                rc = read_answer(e, a, stat, v.p, v.n);
            }
            if (v.what == LINK_FAILED)
                asked = false;
        }
    }
    link_msg_free(&m);
    return rc;
}

int asker_stat(struct err *e, struct asker *a, const struct wire_stat **stat, const struct wire_worker **w, size_t *n)
{
    const struct wire_frame f = {.kind = WIRE_STAT};
    bool came = false;
    int rc = ask(e, a, &came, &f);
    if (rc)
        return rc;
    *stat = &a->stat;
    *w = a->worker;
    *n = a->n;
    return came ? 0 : err_set(e, ERR_PROTO, "%s answers, but is no scheduler", a->url);
}

int asker_knob(struct err *e, struct asker *a, const char *name, const char *worker, double value)
{
    const struct wire_frame f = {
        .kind = WIRE_KNOB,
        .knob = {.name = {name, strlen(name)}, .worker = {worker, worker ? strlen(worker) : 0}, .value = (float)value}};
    bool came;
    return ask(e, a, &came, &f);
}

int ask_store(struct err *e, struct wire_kv_stat *out, const char *run, const char *url)
{
    char mine[RUN_BYTES_MAX + 32];
    struct store_client *c;
    snprintf(mine, sizeof mine, "unix:%s/kv.sock", run);
    const struct store_client_opts o = {
        .url = url ? url : mine, .name = "phasepipe", .timeout_ms = ASK_MS, .no_thread = true};
    int rc = store_client_open(e, &c, &o);
    if (rc == ERR_SYS || rc == ERR_NO)
        return err_set(e, ERR_NO, "nobody answers at %s within %d s", o.url, ASK_MS / 1000);
    if (rc)
        return rc;
    rc = store_client_stat(e, c, out);
    store_client_close(c);
    return rc ? err_prefix(e, "%s", o.url) : 0;
}
