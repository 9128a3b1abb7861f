/*
 * tokenize as a service: gateways ask, and get what the filter would have written for the same line. Short lines are
 * answered where they come in; long ones go to a second thread, so that a prompt of megabytes keeps nobody waiting. All
 * answers leave from the first thread, which also learns that an asker has gone.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/tokenize/tokenize.h"
#include "link/ask.h"
#include "link/notify.h"
#include "proc/proc.h"

#define LONG_BYTES 65536                        /* a question from here on is for the second thread */
#define LONG_BYTES_WAITING ((size_t)256 << 20)  /* of long ones at most; beyond, they are refused */
#define TICK_MS 250                             /* a signal may come just before a wait */
#define QUIET_MS 100                            /* after SIGTERM: nothing came for this long */
#define DRAIN_NS ((uint64_t)2000 * 1000 * 1000) /* after SIGTERM at most */

struct worker { /* what a thread needs of its own */
    struct tokenize t;
    struct wire_arena *question;
    const struct ask *base;
};

struct item { /* a long question */
    struct item *next, *next_held;
    struct link_question *q; /* NULL: its asker has gone */
    uint32_t peer;
    uint8_t *p;
    size_t n;
    struct link_msg answer;
};

struct server {
    struct worker fast, slow;
    struct link_box *box;
    struct link_listener *listener;
    struct item *held; /* all long questions; of the first thread */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct item *first, **last, *done;
    size_t n_waiting; /* bytes */
    bool stop;
    pthread_t thread;
    bool has_thread;
};

static int put(struct err *e, void *arg, const struct wire_frame *f)
{
    return link_msg_add(e, arg, f);
}

static int worker_open(struct err *e, struct worker *w, const struct tokenize *t, const struct ask *base)
{
    w->t = *t;
    w->t.load_ns = 0; /* nobody waited for it */
    w->t.put = put;
    w->base = base;
    w->t.arena = wire_arena_new();
    w->t.said = json_object();
    w->question = wire_arena_new();
    return w->t.arena && w->t.said && w->question ? 0 : err_nomem(e, "start", 0);
}

static void worker_close(struct worker *w)
{
    wire_arena_free(w->t.arena);
    wire_arena_free(w->question);
    json_decref(w->t.said);
}

/* hello, and what the filter writes for the line. A failure is of this question alone. */
static int answer_line(struct err *e, struct worker *w, struct link_msg *m, const struct wire_ask *a)
{
    struct ask base = *w->base;
    if (a->id.n) {
        base.id = a->id.p;
        base.n_id = a->id.n;
    }
    w->t.put_arg = m;
    w->t.seq = a->seq;
    if (emit_hello(e, &w->t))
        return e->code;
    return emit_json(e, &w->t, &base, a->text.n ? a->text.p : "", a->text.n, "");
}

/* refused: why it is not even looked at; NULL: it is. */
static void answer(struct worker *w, struct link_msg *m, const uint8_t *p, size_t n, const char *refused)
{
    struct err e = {0};
    struct wire_frame f = {.kind = 0};
    wire_arena_reset(w->question);
    bool got = link_msg_next(&e, &f, w->question, &p, &n);
    int rc = got ? 0 : e.code ? e.code : err_set(&e, ERR_PROTO, "an empty question");
    if (got && f.kind != WIRE_ASK)
        rc = err_set(&e, ERR_PROTO, "a frame of kind %s: tokenize answers ask", wire_kind_name(f.kind));
    else if (got && (f.ask.what.n != 4 || memcmp(f.ask.what.p, "line", 4)))
        rc = err_set(&e, ERR_PROTO, "ask '%.*s': tokenize answers 'line'", (int)f.ask.what.n, f.ask.what.p);
    else if (got && refused)
        rc = err_set(&e, ERR_SYS, "%s", refused);
    else if (got)
        rc = answer_line(&e, w, m, &f.ask);
    if (!rc)
        return;
    struct wire_frame why = {.kind = WIRE_ERR};
    bool asked = got && f.kind == WIRE_ASK;
    why.error = (struct wire_error){.seq = asked ? f.ask.seq : 0,
                                    .id = asked ? f.ask.id : (struct wire_str){0},
                                    .code = (uint32_t)rc,
                                    .text = {e.text, strlen(e.text)}};
    link_msg_clear(m);
    w->t.put_arg = m;
    if (emit_hello(&e, &w->t) || link_msg_add(&e, m, &why))
        link_msg_clear(m); /* no memory: an empty answer, which the gateway takes for a failure */
}

/* ---- long questions ---- */

static void *slow(void *arg)
{
    struct server *s = arg;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (!s->first && !s->stop)
            pthread_cond_wait(&s->work, &s->lock);
        struct item *i = s->first;
        if (!i)
            break;
        s->first = i->next;
        if (!s->first)
            s->last = &s->first;
        pthread_mutex_unlock(&s->lock);
        answer(&s->slow, &i->answer, i->p, i->n, NULL);
        free(i->p);
        i->p = NULL;
        pthread_mutex_lock(&s->lock);
        s->n_waiting -= i->n;
        i->next = s->done;
        s->done = i;
        link_box_wake(s->box);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* False: there is no room, or no memory. */
static bool to_slow(struct server *s, const struct link_event *v)
{
    pthread_mutex_lock(&s->lock);
    bool room = s->has_thread && s->n_waiting + v->n <= LONG_BYTES_WAITING;
    pthread_mutex_unlock(&s->lock);
    struct item *i = room ? calloc(1, sizeof *i) : NULL;
    if (i)
        i->p = malloc(v->n);
    if (!i || !i->p) {
        free(i);
        return false;
    }
    memcpy(i->p, v->p, v->n);
    i->n = v->n;
    i->q = v->q;
    i->peer = v->peer;
    i->next_held = s->held;
    s->held = i;
    pthread_mutex_lock(&s->lock);
    *s->last = i;
    s->last = &i->next;
    s->n_waiting += i->n;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    return true;
}

static void item_free(struct server *s, struct item *i)
{
    struct item **at = &s->held;
    while (*at != i)
        at = &(*at)->next_held;
    *at = i->next_held;
    free(i->p);
    link_msg_free(&i->answer);
    free(i);
}

static void give_done(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    struct item *i = s->done, *next;
    s->done = NULL;
    pthread_mutex_unlock(&s->lock);
    for (; i; i = next) {
        next = i->next;
        if (i->q)
            link_answer(i->q, &i->answer);
        item_free(s, i);
    }
}

/* ---- the loop ---- */

static void take(struct server *s, const struct link_event *v, struct link_msg *m)
{
    if (v->what == LINK_DOWN)
        for (struct item *i = s->held; i; i = i->next_held)
            if (i->peer == v->peer)
                i->q = NULL;
    bool is_long = v->n >= LONG_BYTES;
    if (v->what != LINK_QUESTION || (is_long && to_slow(s, v)))
        return;
    answer(&s->fast, m, v->p, v->n, is_long ? "tokenize is busy: 256 MiB of long prompts wait already" : NULL);
    link_answer(v->q, m);
}

static void loop(struct server *s)
{
    struct link_msg m = {0};
    struct link_event v;
    uint64_t end_ns = 0;
    for (bool quiet = false; !quiet || s->held;) {
        bool term = proc_term_count() > 0;
        if (term && !end_ns)
            end_ns = proc_now_ns() + DRAIN_NS;
        link_box_wait(s->box, term ? QUIET_MS : TICK_MS);
        quiet = term;
        while (link_box_take(s->box, &v)) {
            take(s, &v, &m);
            quiet = false;
        }
        give_done(s);
        quiet = quiet || (term && proc_now_ns() > end_ns);
    }
    link_msg_free(&m);
}

static void server_close(struct server *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&s->lock);
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    while (s->held)
        item_free(s, s->held);
    link_listener_free(s->listener);
    link_box_free(s->box);
    worker_close(&s->fast);
    worker_close(&s->slow);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work);
}

/* Threads are begun with the signals blocked, so that SIGTERM ends the wait of this one. */
int service(struct err *e, const struct tokenize *t, const struct ask *base, const char *url, int ready_fd)
{
    struct server s = {.last = &s.first};
    sigset_t term, was;
    pthread_mutex_init(&s.lock, NULL);
    pthread_cond_init(&s.work, NULL);
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigaddset(&term, SIGINT);
    pthread_sigmask(SIG_BLOCK, &term, &was);
    int rc = worker_open(e, &s.fast, t, base);
    rc = rc ? rc : worker_open(e, &s.slow, t, base);
    rc = rc ? rc : link_box_new(e, &s.box);
    rc = rc ? rc : link_listen(e, &s.listener, s.box, url, NULL);
    if (!rc && pthread_create(&s.thread, NULL, slow, &s))
        rc = err_sys(e, "cannot start a thread");
    s.has_thread = !rc;
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    rc = rc ? rc : link_ready(e, NULL, ready_fd);
    if (!rc)
        loop(&s);
    server_close(&s);
    return rc;
}
