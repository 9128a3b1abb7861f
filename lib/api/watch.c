/* The scheduler and tokenize are asked once a period over connections that nobody waits for; the store is in
 * watch_store.c. */
#include "api/watch.h"

#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"
#include "api/watch_impl.h"
#include "base/loop.h"
#include "base/time.h"
#include "base/vec.h"
#include "link/stat.h"

#define WORKERS_MAX 4096 /* whose steps are counted */

/* What of a worker's steps was counted. */
struct counted {
    char name[WIRE_NAME_BYTES_MAX];
    size_t n_name;
    uint64_t inc, tokens, look;
    uint32_t steps[WIRE_STEPS_MAX];
    bool before; /* it was there at the first answer, and its counts have still to be heard */
};

struct api_watch {
    struct loop *loop; /* the hub, and the store's timer and thread */
    struct loop_fd hub_fd;
    struct session_hub *hub;
    struct session *sched;
    struct wire_arena *arena; /* of a frame of tokenize */
    bool asked;               /* of sched, over this connection, and not answered */
    struct session *tokenize; /* NULL: none */
    bool tokenize_asked;
    uint64_t tokenize_ns;      /* when the open request was made; if none is, when the next one is due */
    struct link_stat heard[2]; /* the newest, and where the next is read into */
    unsigned newest;
    uint64_t period_ns;
    uint64_t next_ns, heard_ns, store_ns; /* 0: never */
    struct wire_stat sum, last;
    struct store_watch *store; /* NULL: none */
    struct wire_kv_stat store_stat, store_sum, store_last;
    struct histogram steps, lag;
    struct counted *counted;
    size_t n_counted, size_counted;
    uint64_t look; /* answers so far */
};

static void on_hub(void *arg, uint32_t events) /* watch_step takes its events */
{
    (void)arg, (void)events;
}

int watch_open(struct err *e, struct api_watch **out, const char *sched, const char *tokenize, const char *kv,
               uint32_t period_ms)
{
    struct api_watch *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_nomem(e, "the watch", sizeof *w);
    w->period_ns = period_ms * NS_MS;
    const struct session_hub_opts o = {.self = {.role = "tool", .inc = time_now_ns()}};
    w->arena = wire_arena_new();
    int rc = w->arena ? histogram_new(e, &w->steps, bounds_step) : err_nomem(e, "the watch", 0);
    rc = rc ? rc : histogram_new(e, &w->lag, bounds_lag);
    rc = rc ? rc : loop_new(e, &w->loop);
    rc = rc ? rc : session_hub_new(e, &w->hub, &o);
    rc = rc ? rc : loop_fd_add(e, w->loop, &w->hub_fd, session_hub_fd(w->hub), EPOLLIN, on_hub, NULL);
    rc = rc ? rc : session_dial(e, &w->sched, w->hub, sched, "sched", NULL);
    if (!rc && tokenize)
        rc = session_dial(e, &w->tokenize, w->hub, tokenize, "tokenize", w);
    if (!rc && kv)
        rc = store_watch_open(e, &w->store, kv, w->loop, w->period_ns);
    w->next_ns = time_now_ns();
    if (rc)
        watch_close(w);
    else
        *out = w;
    return rc;
}

void watch_close(struct api_watch *w)
{
    if (!w)
        return;
    store_watch_close(w->store);
    loop_fd_remove(&w->hub_fd);
    session_hub_free(w->hub);
    loop_free(w->loop);
    wire_arena_free(w->arena);
    link_stat_free(&w->heard[0]);
    link_stat_free(&w->heard[1]);
    histogram_free(&w->steps);
    histogram_free(&w->lag);
    free(w->counted);
    free(w);
}

int watch_fd(const struct api_watch *w)
{
    return loop_epoll_fd(w->loop);
}

/* Rounded up, so that whoever waits so long does not come too early. */
uint64_t watch_next_ms(const struct api_watch *w)
{
    uint64_t now = time_now_ns();
    uint64_t ms = w->next_ns > now ? (w->next_ns - now + NS_MS - 1) / NS_MS : 0;
    int due = session_hub_timeout_ms(w->hub);
    return due >= 0 && (uint64_t)due < ms ? (uint64_t)due : ms;
}

/* ---- an answer ---- */

/* Those of workers that neither this answer nor the one before it names. */
static void forget_counted(struct api_watch *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_counted; i++)
        if (w->counted[i].look + 1 >= w->look)
            w->counted[n++] = w->counted[i];
    w->n_counted = n;
}

/* i: where it was, mostly. NULL: no memory. */
static struct counted *counted_of(struct api_watch *w, const struct wire_worker *x, size_t i)
{
    for (size_t k = 0; k < w->n_counted; k++) {
        struct counted *c = &w->counted[(i + k) % w->n_counted];
        if (c->n_name == x->name.n && !memcmp(c->name, x->name.p, x->name.n))
            return c;
    }
    if (w->n_counted == w->size_counted && w->n_counted >= WORKERS_MAX)
        forget_counted(w);
    if (!vec_grow(&w->counted, &w->size_counted, w->n_counted + 1, sizeof *w->counted))
        return NULL;
    struct counted *c = &w->counted[w->n_counted++];
    *c = (struct counted){.n_name = x->name.n, .inc = x->inc, .before = w->look == 1};
    memcpy(c->name, x->name.p, x->name.n);
    return c;
}

/* A worker tells the counts of its whole life. Those of before the first answer are not of this program's time; the
 * life of a worker that came later is. A row without counts is of a scheduler that has not heard them yet. */
static void count_steps(struct api_watch *w, const struct link_stat *now)
{
    w->look++;
    for (size_t i = 0; i < now->n; i++) {
        const struct wire_worker *x = &now->worker[i];
        struct counted *c = x->name.n <= WIRE_NAME_BYTES_MAX ? counted_of(w, x, i) : NULL;
        if (!c)
            continue;
        c->look = w->look;
        if (x->n_steps != WIRE_STEPS_MAX || (c->inc == x->inc && x->step_tokens < c->tokens))
            continue;
        if (c->inc != x->inc) {
            memset(c->steps, 0, sizeof c->steps);
            c->tokens = 0;
            c->inc = x->inc;
            c->before = false;
        }
        if (!c->before) {
            for (size_t k = 0; k < WIRE_STEPS_MAX; k++)
                histogram_add(&w->steps, k, (uint32_t)(x->steps[k] - c->steps[k]));
            w->steps.sum += (double)(x->step_tokens - c->tokens);
        }
        memcpy(c->steps, x->steps, sizeof c->steps);
        c->tokens = x->step_tokens;
        c->before = false;
    }
}

/* What is not a scheduler's response is dropped, as if nothing had come. */
static void on_sched(struct api_watch *w, const struct session_event *v)
{
    struct err e;
    bool whole;
    struct link_stat *now = &w->heard[!w->newest];
    if (v->type == SESSION_DOWN)
        w->asked = false;
    if (v->type != SESSION_FRAME)
        return;
    if (link_stat_add(&e, now, &whole, v)) {
        w->asked = false;
        return;
    }
    if (!whole)
        return;
    count_steps(w, now);
    stat_add(&w->sum, &w->last, &now->stat);
    w->asked = false;
    w->newest = !w->newest;
    w->heard_ns = time_now_ns();
}

/* ---- the requests ---- */

static void ask(struct api_watch *w)
{
    const struct wire_frame f = {.kind = WIRE_STAT};
    struct err e;
    w->asked = session_is_up(w->sched) && !session_send(&e, w->sched, &f);
}

static void send_line(struct api_watch *w)
{
    static const char line[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    const struct wire_frame f = {.kind = WIRE_ASK, .ask = {.what = {"line", 4}, .text = {line, sizeof line - 1}}};
    struct err e;
    if (session_is_up(w->tokenize))
        (void)session_send(&e, w->tokenize, &f);
}

/* Without a connection the request waits for it. */
static void ask_tokenize(struct api_watch *w, uint64_t now)
{
    w->tokenize_asked = true;
    w->tokenize_ns = now;
    send_line(w);
}

void watch_tokenize_lives(struct api_watch *w)
{
    if (w->tokenize_asked)
        w->tokenize_ns = time_now_ns();
}

/* Any response, even an error, proves liveness; the first frame of a session, its hello, is not one. */
static void on_tokenize(struct api_watch *w, const struct session_event *v, uint64_t now)
{
    struct wire_frame f;
    struct err e;
    wire_arena_reset(w->arena);
    if (v->type == SESSION_UP && w->tokenize_asked)
        ask_tokenize(w, now);
    if (v->type != SESSION_FRAME || (!session_frame(&e, &f, w->arena, v) && f.kind == WIRE_HELLO))
        return;
    w->tokenize_asked = false;
    w->tokenize_ns = now + w->period_ns;
}

void watch_step(struct api_watch *w)
{
    struct session_event v;
    struct err e;
    uint64_t now = time_now_ns();
    (void)loop_step(&e, w->loop, NULL, 0); /* cannot fail: the descriptor is ours */
    while (session_hub_next(w->hub, &v)) {
        if (v.s == w->tokenize)
            on_tokenize(w, &v, now);
        else
            on_sched(w, &v);
    }
    if (w->store && store_watch_take(w->store, &w->store_stat)) {
        w->store_ns = now;
        store_stat_add(&w->store_sum, &w->store_last, &w->store_stat);
    }
    if (now < w->next_ns)
        return;
    histogram_observe(&w->lag, (double)(now - w->next_ns) / 1e9);
    if (w->tokenize_asked && now - w->next_ns > w->period_ns) /* this process was stopped: that is nobody's silence */
        w->tokenize_ns += now - w->next_ns;
    size_t n_worker; /* until there is one, everybody waits for the news of it */
    (void)watch_workers(w, &n_worker);
    w->next_ns = now + (n_worker ? w->period_ns : w->period_ns / 20);
    if (!w->asked)
        ask(w);
    if (w->tokenize && !w->tokenize_asked && now >= w->tokenize_ns)
        ask_tokenize(w, now);
}

/* ---- what was heard ---- */

static uint64_t old_ns(const struct api_watch *w)
{
    return 5 * w->period_ns;
}

static bool fresh(const struct api_watch *w, uint64_t at_ns)
{
    return at_ns && time_now_ns() - at_ns < old_ns(w);
}

const struct wire_stat *watch_stat(const struct api_watch *w)
{
    return fresh(w, w->heard_ns) ? &w->heard[w->newest].stat : NULL;
}

const struct wire_worker *watch_workers(const struct api_watch *w, size_t *n)
{
    *n = fresh(w, w->heard_ns) ? w->heard[w->newest].n : 0;
    return *n ? w->heard[w->newest].worker : NULL;
}

const struct wire_kv_stat *watch_store(const struct api_watch *w)
{
    return fresh(w, w->store_ns) ? &w->store_stat : NULL;
}

const struct wire_stat *watch_stat_sum(const struct api_watch *w)
{
    return &w->sum;
}

const struct wire_kv_stat *watch_store_sum(const struct api_watch *w)
{
    return &w->store_sum;
}

const struct histogram *watch_steps(const struct api_watch *w)
{
    return &w->steps;
}

const struct histogram *watch_lag(const struct api_watch *w)
{
    return &w->lag;
}

uint64_t watch_silent_ns(const struct api_watch *w)
{
    uint64_t now = time_now_ns();
    bool silent = w->tokenize_asked && now >= w->tokenize_ns + old_ns(w);
    return silent ? w->tokenize_ns : 0;
}

bool watch_has_store(const struct api_watch *w)
{
    return w->store != NULL;
}
