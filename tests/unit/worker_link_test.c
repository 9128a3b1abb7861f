/*
 * link/worker.h against a fake scheduler and a fake gateway, over real sockets. The expectations follow the contract in
 * lib/link/worker.h and the use of its frames in lib/sched/{join,worker,report}.c.
 */
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

static uint64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

static bool is(struct wire_str s, const char *what)
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

static void received_free(struct received *g)
{
    free(g->bytes);
    wire_arena_free(g->mem);
    free(g);
}

static void drop_all(struct side *s)
{
    while (s->n)
        received_free(s->got[--s->n]);
    s->last = NULL;
}

static void side_open(struct side *s)
{
    struct session_hub_opts o = {.self = {s->role, "side", 7}};
    OK(session_hub_new(&e, &s->hub, &o));
    OK(session_listen(&e, &s->l, s->hub, s->url, "worker", NULL));
}

static void side_new(struct side *s, const char *role, const char *name)
{
    drop_all(s);
    *s = (struct side){.role = role};
    snprintf(s->url, sizeof s->url, "ipc:///tmp/wl-%d-%s", (int)getpid(), name);
    side_open(s);
}

/* As if its process died: all its connections break. */
static void side_kill(struct side *s)
{
    if (!s->hub)
        return;
    session_listener_free(s->l);
    session_hub_free(s->hub);
    drop_all(s);
    s->hub = NULL;
    s->s = NULL;
}

static void side_restart(struct side *s)
{
    side_kill(s);
    side_open(s);
}

static void receive(struct side *s, const struct session_event *ev)
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
static bool pump_one(struct side *s)
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

static void pump(struct side *s, uint64_t ms)
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

static struct wire_frame *find(struct side *s, enum wire_kind k)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->got[i]->f.kind == k)
            return &s->got[i]->f;
    return NULL;
}

static uint32_t count(const struct side *s, enum wire_kind k)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n; i++)
        n += s->got[i]->f.kind == k;
    return n;
}

/* Waits for a frame of this kind and returns the oldest. If it is the last event taken, it is not yet acknowledged. */
static struct wire_frame *need(struct side *s, enum wire_kind k)
{
    struct wire_frame *f;
    for (uint64_t end = now_ms() + WAIT_MS; !(f = find(s, k)) && now_ms() < end;)
        if (!pump_one(s))
            session_hub_wait(s->hub, 10);
    if (!f)
        fail_msg("no %s frame was received", wire_kind_name(k));
    return f;
}

static void drop(struct side *s, const struct wire_frame *f)
{
    uint32_t i = 0;
    while (&s->got[i]->f != f)
        i++;
    received_free(s->got[i]);
    memmove(&s->got[i], &s->got[i + 1], (--s->n - i) * sizeof *s->got);
}

static void send_frames(struct side *s, const struct wire_frame *f, uint32_t n)
{
    assert_non_null(s->s);
    for (uint32_t i = 0; i < n; i++)
        OK(session_send(&e, s->s, &f[i]));
    pump(s, 0);
}

/* Closes the session and drops the frames received over it. */
static void break_session(struct side *s)
{
    session_close(s->s, NULL);
    for (uint64_t end = now_ms() + WAIT_MS; s->s && now_ms() < end;)
        if (!pump_one(s))
            session_hub_wait(s->hub, 10);
    assert_null(s->s);
    drop_all(s);
}

static void refuse(struct side *s, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE, .refuse = {.to = wire_str_of("w"), .text = wire_str_of(text)}};
    send_frames(s, &f, 1);
}

static void take_join(struct side *s)
{
    drop(s, need(s, WIRE_JOIN));
    pump(s, 0);
}

/* Waits for a capacity with these seqs and orders; drops others. */
static const struct wire_capacity *capacity_with(struct side *s, uint32_t seqs, uint64_t orders)
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
static const struct wire_report *next_report(struct side *s)
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

static void worker_open(uint32_t seqs)
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

static int setup(void **state)
{
    (void)state;
    side_new(&sched, "sched", "s");
    side_new(&gw, "gateway", "g");
    return 0;
}

static int teardown(void **state)
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

static struct wire_frame work_item(uint64_t id, const char *phase)
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

static struct wire_frame control(uint64_t id, const char *what)
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
static struct worker_event *take(uint64_t ms)
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

static void assert_no_event_now(void)
{
    struct worker_event ev;
    assert_false(worker_link_take(w, &ev));
}

static void expect_event(enum worker_event_type what, uint64_t id)
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

static void expect_no_event(void)
{
    struct worker_event *t = take(100);
    if (t)
        fail_msg("unexpected event of type %d for work item %d", (int)t->type, (int)t->order);
}

/* Joins and takes one work item. */
static void join_and_take(uint64_t id, const char *phase)
{
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f = work_item(id, phase);
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, id);
}

static void send(uint64_t id, uint32_t at)
{
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = 3, .ids = &at, .n_id = 1, .at = at};
    OK(worker_link_send(&e, w, held[id], &f, at + 1));
}

/* A token with a text of n_text bytes. */
static void send_long(uint64_t id, uint32_t at, uint32_t n_text)
{
    char *text = malloc(n_text);
    memset(text, 'x', n_text);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.ids = &at, .n_id = 1, .at = at, .text = {text, n_text}};
    OK(worker_link_send(&e, w, held[id], &f, at + 1));
    free(text);
}

static void report(uint64_t id, const char *what, uint32_t n_out)
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
static void receive_token(uint32_t at)
{
    struct wire_frame *f = need(&gw, WIRE_OUT);
    assert_int_equal(f->out.at, at);
    drop(&gw, f);
    pump(&gw, 0);
}

static void until_idle(void)
{
    for (uint64_t end = now_ms() + WAIT_MS; !worker_link_idle(w) && now_ms() < end;) {
        pump(&sched, 5);
        if (gw.hub)
            pump(&gw, 0);
    }
    assert_true(worker_link_idle(w));
    assert_int_equal(worker_link_queued(w), 0);
}

/* ---- tests ---- */

static void a_worker_joins_and_sends_capacity(void **state)
{
    (void)state;
    worker_open(3);
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_true(is(j->worker, "w") && is(j->role, "decode") && is(j->store, "host") && is(j->compat, "model"));
    assert_true(j->inc != 0 && j->n_run == 0);
    assert_int_equal(j->seqs, 8);
    assert_int_equal(j->blocks, 100);
    assert_int_equal(j->max_len, 1024);
    assert_int_equal(j->chunk, 64);
    assert_true(j->pre_a == 1 && j->pre_c == 3 && j->dec_a == 4 && j->dec_c == 6);
    uint64_t inc = j->inc;
    assert_string_equal(session_peer_name(sched.s), "w");
    assert_string_equal(session_peer_role(sched.s), "worker");
    assert_true(session_peer_inc(sched.s) == inc);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINING);
    const struct wire_capacity *c = capacity_with(&sched, 3, 0);
    assert_true(is(c->worker, "w") && c->inc == inc && c->orders == 0 && !c->drain);
    assert_int_equal(c->seqs, 3);
    assert_int_equal(c->tokens, 512);
    assert_int_equal(c->blocks, 90);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINED);
    /* An unchanged capacity is not sent again, a changed one is. */
    drop_all(&sched);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90, .step_ns = 7, .batch = 1});
    pump(&sched, 100);
    assert_int_equal(sched.n, 0);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 2,
                                                    .tokens = 512,
                                                    .blocks = 90,
                                                    .step_ns = 9,
                                                    .batch = 2,
                                                    .steps = (const uint32_t[WIRE_STEPS_MAX]){[1] = 4, [13] = 1},
                                                    .step_tokens = 20000});
    c = capacity_with(&sched, 2, 0);
    assert_int_equal(c->step_ns, 9);
    assert_int_equal(c->batch, 2);
    assert_int_equal(c->n_steps, WIRE_STEPS_MAX);
    assert_true(c->steps[1] == 4 && c->steps[13] == 1 && c->steps[0] == 0);
    assert_int_equal(c->step_tokens, 20000);
    /* Every second one is sent although nothing changed. */
    drop_all(&sched);
    uint64_t since = now_ms();
    c = capacity_with(&sched, 2, 0);
    assert_true(now_ms() - since >= 700 && now_ms() - since < 3000);
    assert_int_equal(c->step_ns, 0); /* each step is reported once */
    assert_int_equal(c->step_tokens, 20000);
    assert_int_equal(sched.n_up, 1);
}

static void work_items_are_assigned_once(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "prefill"), work_item(73, "decode")};
    send_frames(&sched, f, 2);
    struct worker_event *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->type, WORKER_EV_ASSIGNED);
    assert_int_equal(t->order, 71);
    const struct wire_order *o = t->assigned;
    assert_true(o->body.n == 4 && !memcmp(o->body.p, "body", 4) && is(o->phase, "whole"));
    assert_int_equal(o->job, 1071);
    /* This capacity counts the first item; the scheduler must subtract the second, which is not taken. */
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 1);
    drop_all(&sched);
    expect_event(WORKER_EV_ASSIGNED, 72);
    pump(&sched, 50);
    assert_null(find(&sched, WIRE_CAPACITY)); /* taken, but no capacity was set since */
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 2); /* a change of the count alone is sent */
    send_frames(&sched, &f[2], 1);
    expect_event(WORKER_EV_ASSIGNED, 73);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 1, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 1, 3);
    /* The id of a running item is a protocol violation: the link closes the session, and both sides resync. */
    drop_all(&sched);
    send_frames(&sched, f, 1);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 3);
    assert_int_equal(sched.n_up, 2);
    capacity_with(&sched, 1, 0);
    expect_no_event();
    /* A taken item stays valid until it is released, also after the link was closed. */
    worker_link_close(w);
    w = NULL;
    assert_true(o->body.n == 4 && !memcmp(o->body.p, "body", 4) && is(o->phase, "whole"));
    worker_order_release(o);
}

static void wait_for_event(void)
{
    struct pollfd p = {worker_link_fd(w), POLLIN, 0};
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end && poll(&p, 1, 10) <= 0;)
        pump(&sched, 0);
}

/* Items of an earlier connection are in the join; capacity counts only those of the current connection. */
static void capacity_counts_items_of_its_connection(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "whole")};
    send_frames(&sched, f, 1);
    wait_for_event(); /* received, but not taken */
    break_session(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 1);
    expect_event(WORKER_EV_ASSIGNED, 71);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 0);
    send_frames(&sched, &f[1], 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 2, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 2, 1);
}

static void controls_are_reported_once(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f[] = {control(71, "preempt"), control(71, "preempt"), control(71, "cancel"),
                             control(71, "cancel")};
    send_frames(&sched, f, 4);
    expect_event(WORKER_EV_PREEMPT, 71);
    expect_event(WORKER_EV_CANCEL, 71);
    expect_no_event();
    report(71, "cancelled", 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->job == 1071 && r->attempt == 2 && is(r->gw, "g"));
    assert_true(is(r->worker, "w") && r->inc != 0);
    until_idle();
    /* Controls of a closed item are late and have no effect. */
    send_frames(&sched, f, 4);
    expect_no_event();
    until_idle();
    assert_int_equal(count(&sched, WIRE_REPORT), 1);
    assert_int_equal(sched.n_up, 1);
}

/* The descriptor is not readable either. */
static void events_of_a_closed_item_are_dropped(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = control(71, "cancel"), next = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    wait_for_event();
    report(71, "ended", 0);
    assert_no_event_now();
    struct pollfd p = {worker_link_fd(w), POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 0);
    send_frames(&sched, &next, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    until_idle();
}

static void a_report_waits_for_the_acknowledgement_of_its_tokens(void **state)
{
    (void)state;
    join_and_take(71, "prefill");
    send(71, 0);
    struct wire_frame *t = need(&gw, WIRE_OUT);
    assert_true(t->out.seq == 1071 && t->out.n_id == 1); /* the link sets seq to the item's job */
    assert_string_equal(session_peer_name(gw.s), "w");
    uint32_t id = 7;
    struct wire_report p = {.what = wire_str_of("prefilled"),
                            .n_out = 1,
                            .out = &id,
                            .n_out_id = 1,
                            .n_done = 40,
                            .cached = 32,
                            .busy_ns = 5,
                            .handle = {(const uint8_t *)"0123456789abcdef", 16}};
    OK(worker_link_report(&e, w, held[71], &p));
    assert_false(worker_link_idle(w));
    pump(&sched, 200); /* no report before the gateway has acknowledged the token */
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    pump(&gw, 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "prefilled") && r->n_done == 40 && r->cached == 32 && r->busy_ns == 5 && r->n_out == 1);
    assert_true(r->n_out_id == 1 && r->out[0] == 7 && r->handle.n == 16 &&
                !memcmp(r->handle.p, "0123456789abcdef", 16));
    assert_true(is(r->store, "host"));
    until_idle();
    /* The item is closed. */
    struct wire_frame f = {.kind = WIRE_OUT, .out = {.seq = 1071, .ids = &id, .n_id = 1}};
    assert_int_equal(worker_link_send(&e, w, held[71], &f, 2), ERR_NO);
    assert_int_equal(worker_link_report(&e, w, held[71], &p), ERR_NO);
    struct wire_frame g = work_item(72, "whole");
    send_frames(&sched, &g, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    p.what = wire_str_of("no such report");
    assert_int_equal(worker_link_report(&e, w, held[72], &p), ERR_USAGE);
}

static void a_report_does_not_wait_for_tokens_of_other_items(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    need(&gw, WIRE_OUT);
    report(71, "ended", 1);
    report(72, "failed", 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 72);
    pump(&sched, 100);
    assert_int_equal(count(&sched, WIRE_REPORT), 1);
    pump(&gw, 0);
    r = next_report(&sched);
    assert_true(is(r->what, "ended") && r->order == 71 && r->n_out == 1);
}

static void held_tokens_are_sent_together_in_order(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    worker_link_hold(w, true);
    for (uint32_t i = 0; i < 10; i++)
        send(71, i);
    pump(&gw, 50);
    assert_int_equal(gw.n, 0);
    assert_true(worker_link_queued(w) > 0);
    worker_link_hold(w, false);
    for (uint32_t i = 0; i < 10; i++)
        receive_token(i);
    report(71, "ended", 10);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

/* Frames above the session's window wait in the link and are sent in order. */
static void a_slow_gateway_gets_all_tokens_in_order(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    receive_token(0);
    for (uint32_t i = 1; i <= 40; i++)
        send_long(71, i, 1000000);
    assert_true(worker_link_queued(w) >= 40 * 1000000);
    usleep(100000);
    assert_true(worker_link_queued(w) >= 40 * 1000000); /* the gateway has acknowledged nothing */
    for (uint32_t i = 1; i <= 40; i++)
        receive_token(i);
    report(71, "ended", 41);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
    assert_int_equal(gw.n_up, 1);
}

/* At the limit of its queue the item that sent fails; others of the same gateway continue. */
static void a_gateway_that_reads_nothing_fails_its_item(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    uint32_t n = 0;
    struct worker_event t = {0};
    while (n < 200 && !t.type) {
        send_long(71, n++, 1000000);
        assert_true(worker_link_queued(w) <= WORKER_GATEWAY_BYTES_MAX);
        worker_link_take(w, &t);
    }
    assert_true(t.type == WORKER_EV_CANCEL && t.order == 71);
    assert_true(n >= 60 && n <= 68);
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_queued(w) > (20u << 20) && now_ms() < end;)
        usleep(1000);
    assert_true(worker_link_queued(w) <= (20u << 20)); /* unsent frames of the item were dropped */
    report(71, "cancelled", 30);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 71 && r->code == ERR_SYS && r->n_out == 0 && r->n_out_id == 0);
    assert_true(memmem(r->text.p, r->text.n, "gateway", 7) != NULL);
    send(72, 0);
    report(72, "ended", 1);
    while (count(&gw, WIRE_OUT) < 1 || gw.got[gw.n - 1]->f.out.seq != 1072)
        pump(&gw, 10);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

/* The report has ERR_NO: a retry would fail too. */
static void a_frame_that_is_too_long_fails_its_item(void **state)
{
    (void)state;
    static uint32_t ids[4000000]; /* 5 bytes each */
    static char text[16000000];
    join_and_take(71, "whole");
    memset(ids, 0x55, sizeof ids);
    memset(text, 'x', sizeof text);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.prompt = true, .ids = ids, .n_id = 4000000, .text = {text, sizeof text}};
    OK(worker_link_send(&e, w, held[71], &f, 0));
    expect_event(WORKER_EV_CANCEL, 71);
    report(71, "cancelled", 0);
    const struct wire_report *r = next_report(&sched);
    if (!is(r->what, "failed") || r->order != 71 || r->code != ERR_NO)
        fail_msg("work item %d: %.*s, code %d", (int)r->order, (int)r->what.n, r->what.p, (int)r->code);
    assert_true(memmem(r->text.p, r->text.n, "32 MiB", 6) != NULL);
    until_idle();
    assert_int_equal(gw.n, 0);
}

/* The scheduler dies before it acknowledges a report. The restarted one gets a join with all items, also with the one
 * whose closing report is unacknowledged, and that report again. */
static void a_restarted_scheduler_gets_all_items_and_reports(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "decode");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    receive_token(0);
    report(71, "ended", 1);
    send(72, 0);
    receive_token(0);
    send(72, 1);
    need(&gw, WIRE_OUT); /* received, not acknowledged */
    next_report(&sched);
    side_restart(&sched);
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_int_equal(j->n_run, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_run *r = &j->run[i];
        assert_true(is(r->gw, "g") && r->job == 1000 + r->order && r->attempt == 2 && r->n_prompt == 40);
        assert_true(r->max_tokens == 20 && (r->order == 71 || r->order == 72));
        assert_true(is(r->phase, r->order == 71 ? "whole" : "decode"));
        assert_int_equal(r->n_out, 1); /* two tokens of 72 were sent, one is acknowledged */
    }
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "ended") && r->order == 71 && r->reason == WIRE_STOP && r->n_out == 1);
    assert_int_equal(need(&sched, WIRE_CAPACITY)->capacity.orders, 0);
    /* After the acknowledgement of its report 71 is not in the join. */
    struct wire_frame g = work_item(90, "whole");
    send_frames(&sched, &g, 1);
    expect_event(WORKER_EV_ASSIGNED, 90);
    pump(&gw, 0);
    pump(&sched, 50);
    break_session(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 2);
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    expect_no_event();
}

/* They follow the join, in order, and precede the capacity. */
static void unacknowledged_reports_are_sent_again_after_a_reconnect(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    report(72, "preempted", 0);
    need(&sched, WIRE_REPORT);
    report(71, "failed", 0);
    break_session(&sched);
    need(&sched, WIRE_JOIN);
    need(&sched, WIRE_CAPACITY);
    assert_true(sched.n == 4 && sched.got[0]->f.kind == WIRE_JOIN && sched.got[3]->f.kind == WIRE_CAPACITY);
    assert_int_equal(sched.got[0]->f.join.n_run, 2);
    assert_true(is(sched.got[1]->f.report.what, "preempted") && sched.got[1]->f.report.order == 72);
    assert_true(is(sched.got[2]->f.report.what, "failed") && sched.got[2]->f.report.order == 71);
    until_idle();
}

static void a_refusal_gives_its_reason_and_is_retried(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    refuse(&sched, "another model runs here");
    uint64_t since = now_ms();
    struct err reason;
    while (worker_link_state(w, &reason) != WORKER_REFUSED && now_ms() < since + WAIT_MS)
        pump(&sched, 5);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED);
    assert_string_equal(reason.text, "another model runs here");
    need(&sched, WIRE_JOIN);
    assert_true(now_ms() - since >= 900 && now_ms() - since < 3000);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED); /* until this join is processed */
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, &reason), WORKER_JOINED);
    assert_int_equal(reason.code, 0);
}

static void a_peer_that_is_not_a_scheduler_is_a_refusal(void **state)
{
    (void)state;
    side_kill(&sched);
    sched.role = "tokenize";
    side_open(&sched);
    worker_open(4);
    struct err reason;
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_state(w, &reason) != WORKER_REFUSED && now_ms() < end;)
        pump(&sched, 5);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED);
    assert_true(reason.code && strlen(reason.text) > 0);
    side_kill(&sched);
    sched.role = "sched";
    side_open(&sched);
    take_join(&sched);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, &reason), WORKER_JOINED);
}

static void a_scheduler_that_closes_every_session_is_dialed_with_pauses(void **state)
{
    (void)state;
    worker_open(4);
    for (uint64_t end = now_ms() + 500; now_ms() < end; pump(&sched, 5))
        if (sched.s && find(&sched, WIRE_JOIN)) {
            drop_all(&sched);
            session_close(sched.s, "no");
        }
    assert_true(sched.n_up >= 2 && sched.n_up <= 100);
    take_join(&sched);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINED);
}

/* Tokens that the worker sends after the expiry are dropped, and its report counts only those that the gateway has
 * acknowledged. */
static void an_expired_lease_cancels_the_item(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "whole")};
    f[0].order.lease_ns = f[1].order.lease_ns = 400000000;
    send_frames(&sched, f, 2);
    expect_event(WORKER_EV_ASSIGNED, 71);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    receive_token(0);
    pump(&gw, 20);
    uint64_t since = now_ms();
    side_kill(&sched);
    struct worker_event *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->type, WORKER_EV_CANCEL);
    assert_true(now_ms() - since >= 350 && now_ms() - since < 2000);
    uint64_t first = t->order;
    send(71, 1);
    expect_event(WORKER_EV_CANCEL, 71 + 72 - first);
    expect_no_event();
    report(71, "ended", 2);
    report(72, "cancelled", 0);
    pump(&gw, 50);
    assert_int_equal(gw.n, 0);
    assert_int_equal(worker_link_queued(w), 0);
    side_open(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 2);
    for (int i = 0; i < 2; i++) {
        const struct wire_report *r = next_report(&sched);
        assert_true(is(r->what, "cancelled"));
        assert_int_equal(r->n_out, r->order == 71 ? 1 : 0);
        assert_int_equal(r->n_out_id, r->n_out);
        assert_int_equal(r->reason, 0);
    }
    until_idle();
}

/* A session that is up renews leases without a frame. */
static void a_session_renews_leases(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = work_item(71, "whole");
    f.order.lease_ns = 400000000;
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 71);
    for (uint64_t end = now_ms() + 1200; now_ms() < end; pump(&sched, 100))
        assert_no_event_now();
    /* A reconnect before the expiry renews them too. */
    for (int i = 0; i < 3; i++) {
        side_kill(&sched);
        usleep(200000);
        side_open(&sched);
        take_join(&sched);
        pump(&sched, 50);
        assert_no_event_now();
    }
}

/* A restarted gateway gets the unacknowledged frames and those sent while it was down, in order. */
static void a_restarted_gateway_gets_unacknowledged_tokens(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    send(71, 1);
    need(&gw, WIRE_OUT);
    side_kill(&gw);
    send(71, 2);
    report(71, "ended", 3);
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    side_open(&gw);
    for (uint32_t i = 0; i < 3; i++)
        receive_token(i);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

static void cancelling_drops_the_tokens_for_a_dead_gateway(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    need(&gw, WIRE_OUT);
    side_kill(&gw);
    for (uint32_t i = 1; i < 20; i++)
        send(71, i);
    usleep(50000);
    assert_true(worker_link_queued(w) > 0);
    report(71, "preempted", 20); /* waits for acknowledgements that never arrive */
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    struct wire_frame c = control(71, "cancel");
    send_frames(&sched, &c, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->n_out == 0 && r->n_out_id == 0);
    expect_no_event(); /* the worker has closed the item itself */
    until_idle();
}

static void a_reply_that_is_not_an_address_fails_the_item(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = work_item(71, "whole");
    f.order.reply = wire_str_of("pigeon-loft");
    send_frames(&sched, &f, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 71 && r->job == 1071 && r->attempt == 2 && r->code == ERR_NO);
    assert_true(memmem(r->text.p, r->text.n, "pigeon", 6) != NULL);
    expect_no_event();
    until_idle();
    assert_int_equal(sched.n_up, 1);
}

/* The request is sent at once. The scheduler's control becomes the event, because no item can follow it. */
static void a_drain_is_requested_and_confirmed(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole"), c = control(0, "drain"); /* the item is in flight already */
    worker_link_drain(w, true);
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    while (!need(&sched, WIRE_CAPACITY)->capacity.drain)
        drop(&sched, need(&sched, WIRE_CAPACITY));
    expect_no_event();
    send_frames(&sched, &c, 1);
    expect_event(WORKER_EV_DRAIN, 0);
    /* The request survives a reconnect. */
    break_session(&sched);
    take_join(&sched);
    assert_true(need(&sched, WIRE_CAPACITY)->capacity.drain);
    expect_no_event();
    report(71, "ended", 0);
    report(72, "ended", 0);
    until_idle();
}

static void the_scheduler_sets_drain_and_role(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame c[] = {control(0, "drain"), control(0, "drain"), control(0, "role")};
    c[2].control.role = wire_str_of("prefill");
    send_frames(&sched, c, 3);
    expect_event(WORKER_EV_DRAIN, 0);
    c[0] = control(0, "resume");
    c[1] = control(0, "drain");
    send_frames(&sched, c, 2);
    expect_event(WORKER_EV_RESUME, 0);
    expect_event(WORKER_EV_DRAIN, 0);
    /* After a reconnect without a drain control the worker resumes; it joins in the role that was set before. */
    break_session(&sched);
    struct wire_frame *m = need(&sched, WIRE_JOIN);
    assert_true(is(m->join.role, "prefill"));
    pump(&sched, 0);
    expect_event(WORKER_EV_RESUME, 0);
    expect_no_event();
}

static void a_malformed_frame_ends_the_session(void **state)
{
    (void)state;
    static const uint8_t empty_order[] = {0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', WIRE_ORDER}; /* and no field */
    join_and_take(71, "whole");
    drop_all(&sched);
    OK(session_send_bytes(&e, sched.s, empty_order, sizeof empty_order));
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_true(j->n_run == 1 && j->run[0].order == 71);
    if (!strstr(sched.down.text, "order"))
        fail_msg("the session ended with '%s'", sched.down.text);
    expect_no_event();
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    struct worker_link_opts o = {
        .sched = sched.url, .name = "a\nb", .role = "both", .store = "", .compat = "", .seqs = 1, .blocks = 1};
    assert_int_equal(worker_link_open(&e, &w, &o), ERR_PROTO);
    o.name = "w";
    o.sched = "nowhere";
    assert_int_equal(worker_link_open(&e, &w, &o), ERR_USAGE);
    w = NULL;
}

/* Closing reports are never replaced. */
static void newer_progress_replaces_unsent_progress(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    side_kill(&sched);
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_state(w, NULL) == WORKER_JOINED && now_ms() < end;)
        usleep(1000);
    for (uint32_t i = 1; i <= 5; i++) {
        struct wire_report r = {.what = wire_str_of("progress"), .n_done = 8 * i};
        OK(worker_link_report(&e, w, held[71], &r));
    }
    report(71, "failed", 0);
    side_open(&sched);
    need(&sched, WIRE_CAPACITY);
    assert_int_equal(count(&sched, WIRE_REPORT), 2);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "progress") && r->n_done == 40);
    assert_true(is(next_report(&sched)->what, "failed"));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(a_worker_joins_and_sends_capacity),
        T(work_items_are_assigned_once),
        T(capacity_counts_items_of_its_connection),
        T(controls_are_reported_once),
        T(events_of_a_closed_item_are_dropped),
        T(a_report_waits_for_the_acknowledgement_of_its_tokens),
        T(a_report_does_not_wait_for_tokens_of_other_items),
        T(held_tokens_are_sent_together_in_order),
        T(a_slow_gateway_gets_all_tokens_in_order),
        T(a_gateway_that_reads_nothing_fails_its_item),
        T(a_frame_that_is_too_long_fails_its_item),
        T(a_restarted_scheduler_gets_all_items_and_reports),
        T(unacknowledged_reports_are_sent_again_after_a_reconnect),
        T(a_refusal_gives_its_reason_and_is_retried),
        T(a_peer_that_is_not_a_scheduler_is_a_refusal),
        T(a_scheduler_that_closes_every_session_is_dialed_with_pauses),
        T(an_expired_lease_cancels_the_item),
        T(a_session_renews_leases),
        T(a_restarted_gateway_gets_unacknowledged_tokens),
        T(cancelling_drops_the_tokens_for_a_dead_gateway),
        T(a_reply_that_is_not_an_address_fails_the_item),
        T(a_drain_is_requested_and_confirmed),
        T(the_scheduler_sets_drain_and_role),
        T(a_malformed_frame_ends_the_session),
        T(wrong_options_are_refused),
        T(newer_progress_replaces_unsent_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
