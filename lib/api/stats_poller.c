/* The stats poller: the scheduler and tokenize, over non-blocking sessions; the store is in stats_poller_store.c. */
#include "api/stats_poller.h"

#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"
#include "api/stats_poller_impl.h"
#include "base/loop.h"
#include "base/time.h"
#include "base/vec.h"
#include "link/stat.h"

#define WORKERS_MAX 4096 /* workers whose steps are counted */

/* The part of a worker's steps that is counted already. */
struct counted {
    char name[WIRE_NAME_BYTES_MAX];
    size_t n_name;
    uint64_t inc, tokens, look;
    uint32_t steps[WIRE_STEPS_MAX];
    bool before; /* it was in the first response: its counts so far are before our time */
};

struct stats_poller {
    struct loop *loop; /* runs the hub, and the store's timer and thread */
    struct loop_fd hub_fd;
    struct session_hub *hub;
    struct session *sched;
    struct wire_arena *arena; /* for a frame of tokenize */
    bool in_flight;           /* a request to sched is in flight on this connection */
    struct session *tokenize; /* NULL: none */
    bool tokenize_in_flight;
    uint64_t tokenize_ns; /* time of the request in flight; if none is, when the next one is due */
    uint64_t tokenize_bytes, tokenize_bytes_max, tokenize_stat_ns; /* of its newest statistics; ns 0: none */
    struct link_stat received[2];                                  /* the newest, and a buffer for the next */
    unsigned newest;
    uint64_t period_ns;
    uint64_t next_ns, received_ns, store_ns; /* 0: never received */
    struct wire_stat sum, last;
    struct store_poller *store; /* NULL: none */
    struct wire_kv_stat store_stat, store_sum, store_last;
    struct histogram steps, lag;
    struct counted *counted;
    size_t n_counted, size_counted;
    uint64_t look; /* responses of sched so far */
};

static void on_hub(void *arg, uint32_t events) /* poller_step handles the events */
{
    (void)arg, (void)events;
}

int poller_open(struct err *e, struct stats_poller **out, const char *sched, const char *tokenize, const char *kv,
                const struct session_security *security, uint32_t period_ms)
{
    struct stats_poller *w = calloc(1, sizeof *w);
    *out = NULL;
    if (!w)
        return err_nomem(e, "the stats poller", sizeof *w);
    w->period_ns = period_ms * NS_MS;
    const struct session_hub_opts o = {.self = {.role = "monitor", .inc = time_now_ns()}, .security = *security};
    w->arena = wire_arena_new();
    int rc = w->arena ? histogram_new(e, &w->steps, bounds_step) : err_nomem(e, "the stats poller", 0);
    rc = rc ? rc : histogram_new(e, &w->lag, bounds_lag);
    rc = rc ? rc : loop_new(e, &w->loop);
    rc = rc ? rc : session_hub_new(e, &w->hub, &o);
    rc = rc ? rc : loop_fd_add(e, w->loop, &w->hub_fd, session_hub_fd(w->hub), EPOLLIN, on_hub, NULL);
    rc = rc ? rc : session_dial(e, &w->sched, w->hub, sched, "sched", NULL);
    if (!rc && tokenize)
        rc = session_dial(e, &w->tokenize, w->hub, tokenize, "tokenize", w);
    if (!rc && kv)
        rc = store_poller_open(e, &w->store, kv, w->loop, w->period_ns);
    w->next_ns = time_now_ns();
    if (rc)
        poller_close(w);
    else
        *out = w;
    return rc;
}

void poller_close(struct stats_poller *w)
{
    if (!w)
        return;
    store_poller_close(w->store);
    loop_fd_remove(&w->hub_fd);
    session_hub_free(w->hub);
    loop_free(w->loop);
    wire_arena_free(w->arena);
    link_stat_free(&w->received[0]);
    link_stat_free(&w->received[1]);
    histogram_free(&w->steps);
    histogram_free(&w->lag);
    free(w->counted);
    free(w);
}

int poller_fd(const struct stats_poller *w)
{
    return loop_epoll_fd(w->loop);
}

/* Rounded up, so that the caller does not wake too early. */
uint64_t poller_next_ms(const struct stats_poller *w)
{
    uint64_t now = time_now_ns();
    uint64_t ms = w->next_ns > now ? (w->next_ns - now + NS_MS - 1) / NS_MS : 0;
    int due = session_hub_timeout_ms(w->hub);
    return due >= 0 && (uint64_t)due < ms ? (uint64_t)due : ms;
}

/* ---- responses ---- */

/* Removes workers that are in neither this response nor the one before. */
static void drop_counted(struct stats_poller *w)
{
    size_t n = 0;
    for (size_t i = 0; i < w->n_counted; i++)
        if (w->counted[i].look + 1 >= w->look)
            w->counted[n++] = w->counted[i];
    w->n_counted = n;
}

/* i: a guess at its index. NULL: no memory. */
static struct counted *counted_of(struct stats_poller *w, const struct wire_worker *x, size_t i)
{
    for (size_t k = 0; k < w->n_counted; k++) {
        struct counted *c = &w->counted[(i + k) % w->n_counted];
        if (c->n_name == x->name.n && !memcmp(c->name, x->name.p, x->name.n))
            return c;
    }
    if (w->n_counted == w->size_counted && w->n_counted >= WORKERS_MAX)
        drop_counted(w);
    if (!vec_grow(&w->counted, &w->size_counted, w->n_counted + 1, sizeof *w->counted))
        return NULL;
    struct counted *c = &w->counted[w->n_counted++];
    *c = (struct counted){.n_name = x->name.n, .inc = x->inc, .before = w->look == 1};
    memcpy(c->name, x->name.p, x->name.n);
    return c;
}

/* A worker reports counts of its whole life. Counts before the first response are before this process's time and are
 * skipped; a worker that came later is counted from its start. A row without counts means that the scheduler has none
 * yet. */
static void add_steps(struct stats_poller *w, const struct link_stat *now)
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

/* Malformed responses are ignored. */
static void on_sched(struct stats_poller *w, const struct session_event *v)
{
    struct err e;
    bool whole;
    struct link_stat *now = &w->received[!w->newest];
    if (v->type == SESSION_DOWN)
        w->in_flight = false;
    if (v->type != SESSION_FRAME)
        return;
    if (link_stat_add(&e, now, &whole, v)) {
        w->in_flight = false;
        return;
    }
    if (!whole)
        return;
    add_steps(w, now);
    stat_add(&w->sum, &w->last, &now->stat);
    w->in_flight = false;
    w->newest = !w->newest;
    w->received_ns = time_now_ns();
}

/* ---- requests ---- */

static void ask(struct stats_poller *w)
{
    const struct wire_frame f = {.kind = WIRE_STAT};
    struct err e;
    w->in_flight = session_is_up(w->sched) && !session_send(&e, w->sched, &f);
}

static void send_line(struct stats_poller *w)
{
    static const char line[] = "{\"prompt\":\"a\",\"max_tokens\":1}";
    const struct wire_frame f = {.kind = WIRE_ASK, .ask = {.what = {"line", 4}, .text = {line, sizeof line - 1}}};
    const struct wire_frame stat = {.kind = WIRE_STAT};
    struct err e;
    if (session_is_up(w->tokenize) && !session_send(&e, w->tokenize, &stat))
        (void)session_send(&e, w->tokenize, &f);
}

/* If tokenize is not connected, the request is sent once the connection is up. */
static void request_tokenize(struct stats_poller *w, uint64_t now)
{
    w->tokenize_in_flight = true;
    w->tokenize_ns = now;
    send_line(w);
}

void poller_tokenize_responded(struct stats_poller *w)
{
    if (w->tokenize_in_flight)
        w->tokenize_ns = time_now_ns();
}

/* Any response, even an error, proves liveness; the hello of a session does not. */
static void on_tokenize(struct stats_poller *w, const struct session_event *v, uint64_t now)
{
    struct wire_frame f;
    struct err e;
    wire_arena_reset(w->arena);
    if (v->type == SESSION_UP && w->tokenize_in_flight)
        request_tokenize(w, now);
    if (v->type != SESSION_FRAME)
        return;
    bool known = !session_frame(&e, &f, w->arena, v);
    if (known && f.kind == WIRE_STAT) {
        w->tokenize_bytes = f.stat.bytes;
        w->tokenize_bytes_max = f.stat.bytes_max;
        w->tokenize_stat_ns = now;
    }
    if (known && (f.kind == WIRE_HELLO || f.kind == WIRE_STAT))
        return;
    w->tokenize_in_flight = false;
    w->tokenize_ns = now + w->period_ns;
}

void poller_step(struct stats_poller *w)
{
    struct session_event v;
    struct err e;
    uint64_t now = time_now_ns();
    (void)loop_step(&e, w->loop, NULL, 0); /* cannot fail: the descriptor is our own */
    while (session_hub_next(w->hub, &v)) {
        if (v.s == w->tokenize)
            on_tokenize(w, &v, now);
        else
            on_sched(w, &v);
    }
    if (w->store && store_poller_take(w->store, &w->store_stat)) {
        w->store_ns = now;
        store_stat_add(&w->store_sum, &w->store_last, &w->store_stat);
    }
    if (now < w->next_ns)
        return;
    histogram_observe(&w->lag, (double)(now - w->next_ns) / 1e9);
    if (w->tokenize_in_flight && now - w->next_ns > w->period_ns) /* this process was stopped: not tokenize's silence */
        w->tokenize_ns += now - w->next_ns;
    size_t n_worker; /* poll faster until there is a worker */
    (void)poller_workers(w, &n_worker);
    w->next_ns = now + (n_worker ? w->period_ns : w->period_ns / 20);
    if (!w->in_flight)
        ask(w);
    if (w->tokenize && !w->tokenize_in_flight && now >= w->tokenize_ns)
        request_tokenize(w, now);
}

/* ---- accessors ---- */

static uint64_t old_ns(const struct stats_poller *w)
{
    return 5 * w->period_ns;
}

static bool fresh(const struct stats_poller *w, uint64_t at_ns)
{
    return at_ns && time_now_ns() - at_ns < old_ns(w);
}

const struct wire_stat *poller_stat(const struct stats_poller *w)
{
    return fresh(w, w->received_ns) ? &w->received[w->newest].stat : NULL;
}

const struct wire_worker *poller_workers(const struct stats_poller *w, size_t *n)
{
    *n = fresh(w, w->received_ns) ? w->received[w->newest].n : 0;
    return *n ? w->received[w->newest].worker : NULL;
}

const struct wire_kv_stat *poller_store(const struct stats_poller *w)
{
    return fresh(w, w->store_ns) ? &w->store_stat : NULL;
}

bool poller_tokenize(const struct stats_poller *w, uint64_t *bytes, uint64_t *bytes_max)
{
    *bytes = w->tokenize_bytes;
    *bytes_max = w->tokenize_bytes_max;
    return fresh(w, w->tokenize_stat_ns);
}

const struct wire_stat *poller_stat_sum(const struct stats_poller *w)
{
    return &w->sum;
}

const struct wire_kv_stat *poller_store_sum(const struct stats_poller *w)
{
    return &w->store_sum;
}

const struct histogram *poller_steps(const struct stats_poller *w)
{
    return &w->steps;
}

const struct histogram *poller_lag(const struct stats_poller *w)
{
    return &w->lag;
}

uint64_t poller_silent_ns(const struct stats_poller *w)
{
    uint64_t now = time_now_ns();
    bool silent = w->tokenize_in_flight && now >= w->tokenize_ns + old_ns(w);
    return silent ? w->tokenize_ns : 0;
}

bool poller_has_store(const struct stats_poller *w)
{
    return w->store != NULL;
}
