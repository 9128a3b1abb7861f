/* A worker's connections between a fake scheduler and a fake gateway, over real sockets, for the tests of
 * link/worker.h. */
#ifndef TEST_WORKER_LINK_FIXTURE_H
#define TEST_WORKER_LINK_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <poll.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "link/session.h"
#include "link/worker.h"
#include "unit/asserts.h"

#define WAIT_MS 5000
#define FRAMES_MAX 4096

static struct err e;

static inline uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static inline bool is(struct wire_str s, const char *what)
{
    return s.n == strlen(what) && !memcmp(s.p, what, s.n);
}

/* ---- a fake peer: scheduler or gateway ---- */

struct received { /* a frame */
    uint8_t *bytes;
    struct wire_arena *mem;
    struct wire_frame f;
};

struct side {
    char url[64];
    const char *role;
    struct session_hub *hub;
    struct session_listener *l;
    struct session *s; /* accepted from the worker; NULL: down */
    struct received *got[FRAMES_MAX];
    uint32_t n, n_up;
    struct wire_frame *last; /* the report that next_report returned last */
    struct err down;
};

static inline void received_free(struct received *g)
{
    free(g->bytes);
    wire_arena_free(g->mem);
    free(g);
}

static inline void drop_all(struct side *s)
{
    while (s->n)
        received_free(s->got[--s->n]);
    s->last = NULL;
}

static inline void side_open(struct side *s)
{
    struct session_hub_opts o = {.self = {s->role, "side", 7}};
    OK(session_hub_new(&e, &s->hub, &o));
    OK(session_listen(&e, &s->l, s->hub, s->url, "worker", NULL));
}

static inline void side_new(struct side *s, const char *role, const char *name)
{
    drop_all(s);
    *s = (struct side){.role = role};
    snprintf(s->url, sizeof s->url, "ipc:///tmp/wl-%d-%s", (int)getpid(), name);
    side_open(s);
}

/* As if its process died: all its connections break. */
static inline void side_kill(struct side *s)
{
    if (!s->hub)
        return;
    session_listener_free(s->l);
    session_hub_free(s->hub);
    drop_all(s);
    s->hub = NULL;
    s->s = NULL;
}

static inline void side_restart(struct side *s)
{
    side_kill(s);
    side_open(s);
}

static inline void receive(struct side *s, const struct session_event *ev)
{
    struct received *g = calloc(1, sizeof *g);
    g->bytes = malloc(ev->n);
    memcpy(g->bytes, ev->p, ev->n);
    g->mem = wire_arena_new();
    struct session_event own = {.type = SESSION_FRAME, .p = g->bytes, .n = ev->n};
    OK(session_frame(&e, &g->f, g->mem, &own));
    assert_true(s->n < FRAMES_MAX);
    s->got[s->n++] = g;
}

/* Takes one event; a frame is acknowledged when the next event is taken. */
static inline bool pump_one(struct side *s)
{
    struct session_event ev;
    if (!session_hub_next(s->hub, &ev))
        return false;
    if (ev.type == SESSION_UP) {
        s->s = ev.s;
        s->n_up++;
    } else if (ev.type == SESSION_DOWN) {
        s->s = NULL;
        s->down = ev.err;
    } else if (ev.type == SESSION_FRAME) {
        receive(s, &ev);
    }
    return true;
}

static inline void pump(struct side *s, uint64_t ms)
{
    uint64_t end = now_ms() + ms, now;
    while (pump_one(s))
        continue;
    while ((now = now_ms()) < end) {
        session_hub_wait(s->hub, (int)(end - now));
        while (pump_one(s))
            continue;
    }
}

static inline struct wire_frame *find(struct side *s, enum wire_kind k)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->got[i]->f.kind == k)
            return &s->got[i]->f;
    return NULL;
}

static inline uint32_t count(const struct side *s, enum wire_kind k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n += s->got[i]->f.kind == k;
    return n;
}

/* Waits for a frame of this kind and returns the oldest. If it is the last event taken, it is not yet acknowledged. */
static inline struct wire_frame *need(struct side *s, enum wire_kind k)
{
    struct wire_frame *f;
    for (uint64_t end = now_ms() + WAIT_MS; !(f = find(s, k)) && now_ms() < end;)
        if (!pump_one(s))
            session_hub_wait(s->hub, 10);
    if (!f)
        fail_msg("no %s frame was received", wire_kind_name(k));
    return f;
}

static inline void drop(struct side *s, const struct wire_frame *f)
{
    uint32_t i = 0;
    while (&s->got[i]->f != f)
        i++;
    received_free(s->got[i]);
    memmove(&s->got[i], &s->got[i + 1], (--s->n - i) * sizeof *s->got);
}

static inline void send_frames(struct side *s, const struct wire_frame *f, uint32_t n)
{
    assert_non_null(s->s);
    for (uint32_t i = 0; i < n; i++)
        OK(session_send(&e, s->s, &f[i]));
    pump(s, 0);
}

/* Closes the session and drops the frames received over it. */
static inline void break_session(struct side *s)
{
    session_close(s->s, NULL);
    for (uint64_t end = now_ms() + WAIT_MS; s->s && now_ms() < end;)
        if (!pump_one(s))
            session_hub_wait(s->hub, 10);
    assert_null(s->s);
    drop_all(s);
}

static inline void refuse(struct side *s, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE, .refuse = {.to = wire_str_of("w"), .text = wire_str_of(text)}};
    send_frames(s, &f, 1);
}

static inline void take_join(struct side *s)
{
    drop(s, need(s, WIRE_JOIN));
    pump(s, 0);
}

/* Waits for a capacity with these seqs and orders; drops others. */
static inline const struct wire_capacity *capacity_with(struct side *s, uint32_t seqs, uint64_t orders)
{
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
        struct wire_frame *f = need(s, WIRE_CAPACITY);
        if (f->capacity.seqs == seqs && f->capacity.orders == orders)
            return &f->capacity;
        drop(s, f);
    }
    fail_msg("no capacity of %u sequences after %u work items was received", seqs, (unsigned)orders);
    return NULL;
}

/* The next report; valid until the next call. */
static inline const struct wire_report *next_report(struct side *s)
{
    if (s->last)
        drop(s, s->last);
    s->last = need(s, WIRE_REPORT);
    return &s->last->report;
}

/* ---- the worker ---- */

static struct side sched, gw;
static struct worker_link *w;

static const struct wire_order *held[128]; /* assigned work items by id; released by teardown */

static inline void worker_open(uint32_t seqs)
{
    struct worker_link_opts o = {.sched = sched.url,
                                 .name = "w",
                                 .role = "decode",
                                 .store = "host",
                                 .compat = "model",
                                 .seqs = 8,
                                 .blocks = 100,
                                 .max_len = 1024,
                                 .chunk = 64,
                                 .pre = {1, 2, 3},
                                 .dec = {4, 5, 6}};
    OK(worker_link_open(&e, &w, &o));
    worker_link_capacity(w, &(struct wire_capacity){.seqs = seqs, .tokens = 512, .blocks = 90});
}

static inline int setup(void **state)
{
    (void)state;
    side_new(&sched, "sched", "s");
    side_new(&gw, "gateway", "g");
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    side_kill(&sched); /* first: closing the link waits up to a second for peers, whose event loops no longer run */
    side_kill(&gw);
    worker_link_close(w);
    w = NULL;
    for (size_t i = 0; i < sizeof held / sizeof *held; held[i++] = NULL)
        worker_order_release(held[i]);
    return 0;
}

static inline struct wire_frame work_item(uint64_t id, const char *phase)
{
    struct wire_frame f = {.kind = WIRE_ORDER};
    f.order = (struct wire_order){.to = wire_str_of("w"),
                                  .order = id,
                                  .gw = wire_str_of("g"),
                                  .job = 1000 + id,
                                  .attempt = 2,
                                  .phase = wire_str_of(phase),
                                  .n_prompt = 40,
                                  .max_tokens = 20,
                                  .lease_ns = 60000000000,
                                  .reply = wire_str_of(gw.url),
                                  .body = {(const uint8_t *)"body", 4}};
    return f;
}

static inline struct wire_frame control(uint64_t id, const char *what)
{
    struct wire_frame f = {.kind = WIRE_CONTROL};
    f.control = (struct wire_control){.to = wire_str_of("w"),
                                      .what = wire_str_of(what),
                                      .gw = wire_str_of("g"),
                                      .job = 1000 + id,
                                      .order = id,
                                      .attempt = 2};
    return f;
}

/* The next event. Runs the scheduler while it waits, but not the gateway. */
static inline struct worker_event *take(uint64_t ms)
{
    static struct worker_event ev;
    bool any;
    for (uint64_t end = now_ms() + ms; !(any = worker_link_take(w, &ev)) && now_ms() < end;) {
        struct pollfd p[] = {{worker_link_fd(w), POLLIN, 0}, {sched.hub ? session_hub_fd(sched.hub) : -1, POLLIN, 0}};
        poll(p, 2, 10);
        if (sched.hub)
            pump(&sched, 0);
    }
    return any ? &ev : NULL;
}

static inline void assert_no_event_now(void)
{
    struct worker_event ev;
    assert_false(worker_link_take(w, &ev));
}

static inline void expect_event(enum worker_event_type what, uint64_t id)
{
    struct worker_event *t = take(WAIT_MS);
    if (!t)
        fail_msg("no event within the timeout, expected type %d of work item %d", (int)what, (int)id);
    assert_int_equal(t->type, what);
    assert_int_equal(t->order, id);
    if (t->assigned) {
        worker_order_release(held[id]);
        held[id] = t->assigned;
    }
}

static inline void expect_no_event(void)
{
    struct worker_event *t = take(100);
    if (t)
        fail_msg("unexpected event of type %d for work item %d", (int)t->type, (int)t->order);
}

/* Joins and takes one work item. */
static inline void join_and_take(uint64_t id, const char *phase)
{
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f = work_item(id, phase);
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, id);
}

static inline void send(uint64_t id, uint32_t at)
{
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = 3, .ids = &at, .n_id = 1, .at = at};
    OK(worker_link_send(&e, w, held[id], &f, at + 1));
}

/* A token with a text of n_text bytes. */
static inline void send_long(uint64_t id, uint32_t at, uint32_t n_text)
{
    char *text = malloc(n_text);
    memset(text, 'x', n_text);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.ids = &at, .n_id = 1, .at = at, .text = {text, n_text}};
    OK(worker_link_send(&e, w, held[id], &f, at + 1));
    free(text);
}

static inline void report(uint64_t id, const char *what, uint32_t n_out)
{
    static uint32_t ids[64];
    for (uint32_t i = 0; i < n_out; i++)
        ids[i] = i;
    struct wire_report r = {
        .what = wire_str_of(what), .n_out = n_out, .out = ids, .n_out_id = n_out, .reason = WIRE_STOP};
    if (strcmp(what, "ended"))
        r.reason = 0;
    OK(worker_link_report(&e, w, held[id], &r));
}

/* Runs the gateway until it has received and acknowledged this token. */
static inline void receive_token(uint32_t at)
{
    struct wire_frame *f = need(&gw, WIRE_OUT);
    assert_int_equal(f->out.at, at);
    drop(&gw, f);
    pump(&gw, 0);
}

static inline void until_idle(void)
{
    for (uint64_t end = now_ms() + WAIT_MS; !worker_link_idle(w) && now_ms() < end;) {
        pump(&sched, 5);
        if (gw.hub)
            pump(&gw, 0);
    }
    assert_true(worker_link_idle(w));
    assert_int_equal(worker_link_queued(w), 0);
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

#endif
