/*
 * A worker's side of the scheduler against a scheduler and gateways that are played here, over real sockets. What is
 * expected is what lib/sched/{join,worker,report}.c do with it, and what lib/link/worker.h says.
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

#include "link/worker.h"

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, e.text);                                                                         \
    } while (0)
#define WAIT_MS 5000
#define MESSAGES 256

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

/* ---- the other side: a scheduler or a gateway ---- */

enum kind { JOIN = 1, CTL, WORK, TOKENS };

struct message { /* that came and is not answered */
    struct link_question *q;
    enum kind kind;
    uint32_t peer;
    uint8_t *bytes;
    struct wire_arena *mem;
    struct wire_frame f[MESSAGES];
    uint32_t n;
};

struct side {
    char url[64];
    struct link_box *box;
    struct link_listener *l;
    struct message *m[MESSAGES];
    uint32_t n, n_came;
};

static void message_free(struct message *m)
{
    free(m->bytes);
    wire_arena_free(m->mem);
    free(m);
}

static void side_open(struct side *s)
{
    OK(link_box_new(&e, &s->box));
    OK(link_listen(&e, &s->l, s->box, s->url, NULL));
}

static void side_new(struct side *s, const char *name)
{
    *s = (struct side){.n = 0};
    snprintf(s->url, sizeof s->url, "ipc:///tmp/wl-%d-%s", (int)getpid(), name);
    side_open(s);
}

/* Its process dies: all its connections break. */
static void side_kill(struct side *s)
{
    if (!s->box)
        return;
    link_listener_free(s->l);
    link_box_free(s->box);
    while (s->n)
        message_free(s->m[--s->n]);
    s->box = NULL;
}

static enum kind kind_of(const struct message *m)
{
    const struct wire_frame *last = &m->f[m->n - 1];
    if (last->kind == WIRE_JOIN)
        return JOIN;
    if (last->kind == WIRE_POLL)
        return last->poll.ctl ? CTL : WORK;
    return TOKENS;
}

static void take_in(struct side *s, const struct link_event *ev)
{
    struct message *m = calloc(1, sizeof *m);
    m->q = ev->q;
    m->peer = ev->peer;
    m->bytes = malloc(ev->n + 1);
    memcpy(m->bytes, ev->p, ev->n);
    m->mem = wire_arena_new();
    const uint8_t *p = m->bytes;
    size_t n = ev->n;
    while (link_msg_next(&e, &m->f[m->n], m->mem, &p, &n))
        assert_true(++m->n < MESSAGES);
    assert_int_equal(e.code, 0);
    assert_true(m->n > 0);
    m->kind = kind_of(m);
    assert_true(s->n < MESSAGES);
    s->m[s->n++] = m;
    s->n_came++;
}

static void pump(struct side *s, int wait_ms)
{
    struct link_event ev;
    link_box_wait(s->box, wait_ms);
    while (link_box_take(s->box, &ev)) {
        if (ev.what == LINK_QUESTION)
            take_in(s, &ev);
        if (ev.what != LINK_DOWN)
            continue;
        for (uint32_t i = 0; i < s->n;)
            if (s->m[i]->peer == ev.peer) {
                message_free(s->m[i]);
                memmove(&s->m[i], &s->m[i + 1], (--s->n - i) * sizeof *s->m);
            } else {
                i++;
            }
    }
}

static struct message *find(struct side *s, enum kind k)
{
    for (uint32_t i = 0; i < s->n; i++)
        if (s->m[i]->kind == k)
            return s->m[i];
    return NULL;
}

/* The oldest of a kind that is not answered; NULL: none in ms. */
static struct message *get(struct side *s, enum kind k, uint64_t ms)
{
    uint64_t end = now_ms() + ms;
    struct message *m;
    while (!(m = find(s, k)) && now_ms() < end)
        pump(s, 10);
    return m;
}

static struct message *need(struct side *s, enum kind k)
{
    struct message *m = get(s, k, WAIT_MS);
    if (!m)
        fail_msg("no message of kind %d came", k);
    return m;
}

static void answer(struct side *s, struct message *m, const struct wire_frame *f, uint32_t n)
{
    struct link_msg out = {0};
    for (uint32_t i = 0; i < n; i++)
        OK(link_msg_add(&e, &out, &f[i]));
    uint32_t i = 0;
    while (s->m[i] != m)
        i++;
    memmove(&s->m[i], &s->m[i + 1], (--s->n - i) * sizeof *s->m);
    link_answer(m->q, &out);
    link_msg_free(&out);
    message_free(m);
}

static void refuse(struct side *s, struct message *m, const char *text)
{
    struct wire_frame f = {.kind = WIRE_REFUSE, .refuse = {.to = wire_str_of("w"), .text = wire_str_of(text)}};
    answer(s, m, &f, 1);
}

static void take_join(struct side *s)
{
    answer(s, need(s, JOIN), NULL, 0);
}

/* The newest work poll, older ones being answered empty as a scheduler does. */
static struct message *newest_work(struct side *s)
{
    struct message *m = need(s, WORK), *later = NULL;
    pump(s, 30);
    for (uint32_t i = 0; i < s->n; i++)
        if (s->m[i]->kind == WORK)
            later = s->m[i];
    if (later == m)
        return m;
    answer(s, m, NULL, 0);
    return newest_work(s);
}

static const struct wire_poll *poll_of(const struct message *m)
{
    return &m->f[m->n - 1].poll;
}

/* Waits until a work poll says this of seqs. */
static struct message *work_with(struct side *s, uint32_t seqs)
{
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
        struct message *m = newest_work(s);
        if (poll_of(m)->seqs == seqs)
            return m;
        answer(s, m, NULL, 0);
    }
    fail_msg("no poll with room for %u came", seqs);
    return NULL;
}

/* The next report, whatever polls come first; its message stays open. */
static const struct wire_report *next_report(struct side *s)
{
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end;) {
        struct message *m = need(s, WORK);
        if (m->n > 1)
            return &m->f[0].report;
        pump(s, 20);
        if (s->m[s->n - 1] == m) { /* newest: idle after a while */
            usleep(1000);
            pump(s, 20);
        }
        answer(s, m, NULL, 0);
    }
    fail_msg("no report came");
    return NULL;
}

/* ---- the worker ---- */

static struct side sched, gw;
static struct worker_link *w;

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
    worker_link_room(w, &(struct worker_room){.seqs = seqs, .tokens = 512, .blocks = 90});
}

static int setup(void **state)
{
    (void)state;
    side_new(&sched, "s");
    side_new(&gw, "g");
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    worker_link_close(w);
    w = NULL;
    side_kill(&sched);
    side_kill(&gw);
    return 0;
}

static struct wire_frame order(uint64_t n, uint64_t id, const char *phase)
{
    struct wire_frame f = {.kind = WIRE_ORDER};
    f.order = (struct wire_order){.to = wire_str_of("w"),
                                  .n = n,
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

static struct wire_frame control(uint64_t n, uint64_t id, const char *what)
{
    struct wire_frame f = {.kind = WIRE_CONTROL};
    f.control = (struct wire_control){.to = wire_str_of("w"),
                                      .n = n,
                                      .what = wire_str_of(what),
                                      .gw = wire_str_of("g"),
                                      .job = 1000 + id,
                                      .order = id,
                                      .attempt = 2};
    return f;
}

static struct worker_told *take(uint64_t ms)
{
    struct worker_told *t;
    for (uint64_t end = now_ms() + ms; !(t = worker_link_take(w)) && now_ms() < end;) {
        struct pollfd p = {worker_link_fd(w), POLLIN, 0};
        poll(&p, 1, 10);
    }
    return t;
}

static void told(enum worker_told_what what, uint64_t id)
{
    struct worker_told *t = take(WAIT_MS);
    if (!t)
        fail_msg("nothing was told, not %d of %d", (int)what, (int)id);
    assert_int_equal(t->what, what);
    assert_int_equal(t->order, id);
    worker_told_free(t);
}

static void nothing_told(void)
{
    struct worker_told *t = take(100);
    if (t)
        fail_msg("%d of order %d was told", (int)t->what, (int)t->order);
}

/* Joined, and with one order that was told. */
static void begin(uint64_t id, const char *phase)
{
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = order(1, id, phase);
    answer(&sched, work_with(&sched, 4), &f, 1);
    told(TOLD_ORDER, id);
}

static void send(uint64_t id, uint32_t at)
{
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = 1000 + id, .ids = &at, .n_id = 1, .at = at};
    OK(worker_link_send(&e, w, id, &f, at + 1));
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
    OK(worker_link_report(&e, w, id, &r));
}

/* ---- tests ---- */

static void joins_and_polls(void **state)
{
    (void)state;
    worker_open(3);
    struct message *m = need(&sched, JOIN);
    const struct wire_join *j = &m->f[0].join;
    assert_true(is(j->worker, "w") && is(j->role, "decode") && is(j->store, "host") && is(j->compat, "model"));
    assert_true(j->inc != 0 && j->n_run == 0);
    assert_int_equal(j->seqs, 8);
    assert_int_equal(j->blocks, 100);
    assert_int_equal(j->max_len, 1024);
    assert_int_equal(j->chunk, 64);
    assert_true(j->pre_a == 1 && j->pre_c == 3 && j->dec_a == 4 && j->dec_c == 6);
    uint64_t inc = j->inc;
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINING);
    assert_null(find(&sched, WORK));
    answer(&sched, m, NULL, 0);
    m = need(&sched, CTL);
    assert_true(is(poll_of(m)->worker, "w") && poll_of(m)->inc == inc && poll_of(m)->got == 0);
    m = newest_work(&sched);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINED);
    assert_true(poll_of(m)->inc == inc && poll_of(m)->got == 0 && !poll_of(m)->drain);
    assert_int_equal(poll_of(m)->seqs, 3);
    assert_int_equal(poll_of(m)->tokens, 512);
    assert_int_equal(poll_of(m)->blocks, 90);
    /* The same room again is no news, other room is, while the older poll is still parked. */
    uint32_t came = sched.n_came;
    worker_link_room(w, &(struct worker_room){.seqs = 3, .tokens = 512, .blocks = 90, .step_ns = 7, .batch = 1});
    pump(&sched, 100);
    assert_int_equal(sched.n_came, came);
    worker_link_room(w, &(struct worker_room){.seqs = 2,
                                              .tokens = 512,
                                              .blocks = 90,
                                              .step_ns = 9,
                                              .batch = 2,
                                              .steps = {[1] = 4, [13] = 1},
                                              .step_tokens = 20000});
    m = newest_work(&sched);
    assert_int_equal(poll_of(m)->seqs, 2);
    assert_int_equal(poll_of(m)->step_ns, 9);
    assert_int_equal(poll_of(m)->batch, 2);
    assert_int_equal(poll_of(m)->n_steps, WIRE_STEPS_MAX);
    assert_true(poll_of(m)->steps[1] == 4 && poll_of(m)->steps[13] == 1 && poll_of(m)->steps[0] == 0);
    assert_int_equal(poll_of(m)->step_tokens, 20000);
    /* What the scheduler answers empty is asked again. */
    struct wire_frame idle = {.kind = WIRE_IDLE, .idle = {.to = wire_str_of("w")}};
    answer(&sched, m, &idle, 1);
    m = newest_work(&sched);
    assert_int_equal(poll_of(m)->step_ns, 0); /* a step is told once */
    idle.idle.ctl = true;
    answer(&sched, need(&sched, CTL), &idle, 1);
    need(&sched, CTL);
}

static void orders_are_told_once(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f[] = {order(1, 71, "whole"), order(2, 72, "prefill"), order(2, 72, "prefill")};
    answer(&sched, work_with(&sched, 4), f, 3);
    /* Not taken yet, so the poll has less room than was said: 60 and 41 tokens are 2 blocks each, 40 are new of each.
     */
    struct message *m = work_with(&sched, 2);
    assert_int_equal(poll_of(m)->got, 2);
    assert_int_equal(poll_of(m)->blocks, 86);
    assert_int_equal(poll_of(m)->tokens, 432);
    struct worker_told *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->what, TOLD_ORDER);
    assert_int_equal(t->order, 71);
    assert_true(t->o->body.n == 4 && !memcmp(t->o->body.p, "body", 4) && is(t->o->phase, "whole"));
    worker_told_free(t);
    told(TOLD_ORDER, 72);
    /* Room that is said now has them in. */
    worker_link_room(w, &(struct worker_room){.seqs = 3, .tokens = 512, .blocks = 90});
    m = work_with(&sched, 3);
    /* Sent again, with a new one behind; then an old id under a new number. */
    struct wire_frame g[] = {order(1, 71, "whole"), order(2, 72, "prefill"), order(3, 73, "decode")};
    answer(&sched, m, g, 3);
    told(TOLD_ORDER, 73);
    g[0] = order(4, 71, "whole");
    answer(&sched, newest_work(&sched), g, 1);
    nothing_told();
    assert_int_equal(poll_of(newest_work(&sched))->got, 4);
}

static void controls_are_told_once(void **state)
{
    (void)state;
    begin(71, "whole");
    struct wire_frame f[] = {control(1, 71, "preempt"), control(2, 71, "cancel"), control(3, 71, "cancel")};
    answer(&sched, need(&sched, CTL), f, 3);
    told(TOLD_PREEMPT, 71);
    told(TOLD_CANCEL, 71);
    struct message *m = need(&sched, CTL);
    assert_int_equal(poll_of(m)->got, 3);
    answer(&sched, m, f, 3); /* again, as after a lost message */
    nothing_told();
    report(71, "cancelled", 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->job == 1071 && r->attempt == 2 && is(r->gw, "g"));
    assert_true(is(r->worker, "w") && r->inc != 0);
}

static void cancel_comes_before_its_order(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame c[] = {control(1, 71, "cancel"), control(2, 72, "preempt")};
    answer(&sched, need(&sched, CTL), c, 2);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->job == 1071 && r->attempt == 2 && is(r->gw, "g"));
    answer(&sched, find(&sched, WORK), NULL, 0);
    struct wire_frame f[] = {order(1, 71, "whole"), order(2, 72, "whole")};
    answer(&sched, newest_work(&sched), f, 2);
    told(TOLD_ORDER, 72);
    told(TOLD_PREEMPT, 72);
    nothing_told();
    assert_int_equal(poll_of(newest_work(&sched))->got, 2);
}

static void tokens_go_before_reports(void **state)
{
    (void)state;
    begin(71, "prefill");
    send(71, 0);
    struct message *t = need(&gw, TOKENS);
    assert_int_equal(t->n, 1);
    assert_true(t->f[0].kind == WIRE_OUT && t->f[0].out.seq == 1071 && t->f[0].out.n_id == 1);
    uint32_t id = 7;
    struct wire_report p = {.what = wire_str_of("prefilled"),
                            .n_out = 1,
                            .out = &id,
                            .n_out_id = 1,
                            .n_done = 40,
                            .cached = 32,
                            .busy_ns = 5,
                            .handle = {(const uint8_t *)"0123456789abcdef", 16}};
    OK(worker_link_report(&e, w, 71, &p));
    assert_false(worker_link_idle(w));
    for (int i = 0; i < 5; i++) { /* not before the gateway has it */
        struct message *m = newest_work(&sched);
        assert_int_equal(m->n, 1);
        answer(&sched, m, NULL, 0);
    }
    answer(&gw, t, NULL, 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "prefilled") && r->n_done == 40 && r->cached == 32 && r->busy_ns == 5 && r->n_out == 1);
    assert_true(r->n_out_id == 1 && r->out[0] == 7 && r->handle.n == 16 &&
                !memcmp(r->handle.p, "0123456789abcdef", 16));
    assert_true(is(r->store, "host"));
    answer(&sched, find(&sched, WORK), NULL, 0);
    newest_work(&sched);
    assert_true(worker_link_idle(w));
    /* It is closed. */
    struct wire_frame f = {.kind = WIRE_OUT, .out = {.seq = 1071, .ids = &id, .n_id = 1}};
    assert_int_equal(worker_link_send(&e, w, 71, &f, 2), ERR_NO);
    assert_int_equal(worker_link_report(&e, w, 71, &p), ERR_NO);
    p.what = wire_str_of("no such report");
    assert_int_equal(worker_link_report(&e, w, 71, &p), ERR_USAGE);
}

static void one_message_a_gateway(void **state)
{
    (void)state;
    begin(71, "whole");
    for (uint32_t i = 0; i < 10; i++) {
        send(71, i);
        if (!i)
            need(&gw, TOKENS);
    }
    pump(&gw, 50);
    assert_int_equal(gw.n_came, 1);
    assert_true(worker_link_queued(w) > 0);
    answer(&gw, find(&gw, TOKENS), NULL, 0);
    struct message *m = need(&gw, TOKENS);
    assert_int_equal(m->n, 9);
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(m->f[i].out.at, i + 1);
    answer(&gw, m, NULL, 0);
    report(71, "ended", 10);
    assert_true(is(next_report(&sched)->what, "ended"));
    assert_int_equal(worker_link_queued(w), 0);
}

/* A slow gateway: what waits is seen, and goes in messages of a bounded size, all of it and in order. */
static void slow_gateway(void **state)
{
    (void)state;
    static char text[100000];
    memset(text, 'x', sizeof text);
    begin(71, "whole");
    for (uint32_t i = 0; i < 30; i++) {
        struct wire_frame f = {.kind = WIRE_OUT};
        f.out = (struct wire_out){.seq = 1071, .ids = &i, .n_id = 1, .at = i, .text = {text, sizeof text}};
        OK(worker_link_send(&e, w, 71, &f, i + 1));
    }
    assert_true(worker_link_queued(w) >= 30 * sizeof text);
    uint32_t next = 0, messages = 0;
    while (next < 30) {
        struct message *m = need(&gw, TOKENS);
        for (uint32_t i = 0; i < m->n; i++)
            assert_int_equal(m->f[i].out.at, next++);
        answer(&gw, m, NULL, 0);
        messages++;
    }
    assert_true(messages >= 3); /* 3 MB in pieces of 1 MiB */
    report(71, "ended", 30);
    assert_true(is(next_report(&sched)->what, "ended"));
    assert_int_equal(worker_link_queued(w), 0);
}

/* The scheduler dies with a report in its hands. The next one does not know the worker: it is told what runs, the order
 * whose end was not taken among it, and gets the report again. */
static void scheduler_is_restarted(void **state)
{
    (void)state;
    begin(71, "whole");
    struct wire_frame f = order(2, 72, "decode");
    answer(&sched, newest_work(&sched), &f, 1);
    told(TOLD_ORDER, 72);
    send(71, 0);
    answer(&gw, need(&gw, TOKENS), NULL, 0);
    report(71, "ended", 1);
    send(72, 0);
    answer(&gw, need(&gw, TOKENS), NULL, 0);
    send(72, 1);
    struct message *late = need(&gw, TOKENS);
    next_report(&sched);
    side_kill(&sched);
    side_open(&sched);
    refuse(&sched, need(&sched, WORK), "join first");
    struct message *m = need(&sched, JOIN);
    const struct wire_join *j = &m->f[0].join;
    assert_int_equal(j->n_run, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_run *r = &j->run[i];
        assert_true(is(r->gw, "g") && r->job == 1000 + r->order && r->attempt == 2 && r->n_prompt == 40);
        assert_true(r->max_tokens == 20 && (r->order == 71 || r->order == 72));
        assert_true(is(r->phase, r->order == 71 ? "whole" : "decode"));
        assert_int_equal(r->n_out, 1); /* of 72 two were sent, one is confirmed */
    }
    if (find(&sched, CTL))
        refuse(&sched, find(&sched, CTL), "join first");
    answer(&sched, m, NULL, 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "ended") && r->order == 71 && r->reason == WIRE_STOP && r->n_out == 1);
    m = find(&sched, WORK);
    assert_int_equal(poll_of(m)->got, 0);
    /* Orders count from 1 again; a join after this one has 71 no longer. */
    struct wire_frame g = order(1, 90, "whole");
    answer(&sched, m, &g, 1);
    told(TOLD_ORDER, 90);
    answer(&gw, late, NULL, 0);
    refuse(&sched, newest_work(&sched), "join first");
    m = need(&sched, JOIN);
    assert_int_equal(m->f[0].join.n_run, 2);
    nothing_told();
}

/* A connection that breaks takes an answer with orders, and one with controls, along. The scheduler still knows the
 * worker, so it sends them again behind the numbers that the polls say. */
static void lost_answers_come_again(void **state)
{
    (void)state;
    begin(71, "whole");
    newest_work(&sched);
    need(&sched, CTL);
    side_kill(&sched); /* orders 2 and control 1 were on their way */
    side_open(&sched);
    struct message *m = newest_work(&sched);
    assert_int_equal(poll_of(m)->got, 1);
    struct wire_frame f[] = {order(2, 72, "whole"), order(3, 73, "whole")};
    answer(&sched, m, f, 2);
    m = need(&sched, CTL);
    assert_int_equal(poll_of(m)->got, 0);
    struct wire_frame c = control(1, 71, "preempt");
    answer(&sched, m, &c, 1);
    uint64_t seen = 0;
    for (int i = 0; i < 3; i++) {
        struct worker_told *t = take(WAIT_MS);
        assert_non_null(t);
        seen += t->order * 1000 + t->what;
        worker_told_free(t);
    }
    assert_int_equal(seen, (72 + 73 + 71) * 1000 + 2 * TOLD_ORDER + TOLD_PREEMPT);
    nothing_told();
    side_kill(&sched);
    side_open(&sched);
    assert_int_equal(poll_of(newest_work(&sched))->got, 3);
    assert_int_equal(poll_of(need(&sched, CTL))->got, 1);
    nothing_told();
}

static void refused_in_words(void **state)
{
    (void)state;
    worker_open(4);
    refuse(&sched, need(&sched, JOIN), "another model runs here");
    uint64_t since = now_ms();
    struct err why;
    while (worker_link_state(w, &why) != WORKER_REFUSED && now_ms() < since + WAIT_MS)
        usleep(1000);
    assert_int_equal(worker_link_state(w, &why), WORKER_REFUSED);
    assert_string_equal(why.text, "another model runs here");
    struct message *m = need(&sched, JOIN);
    assert_true(now_ms() - since >= 900 && now_ms() - since < 3000);
    answer(&sched, m, NULL, 0);
    newest_work(&sched);
    assert_int_equal(worker_link_state(w, &why), WORKER_JOINED);
    assert_int_equal(why.code, 0);
}

/* One that takes this worker for silent waits for it as it waits for an answer: after three seconds both polls go once
 * more, and then no more, for it may be stopped. */
static void silence_is_broken_once(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct message *work = work_with(&sched, 4);
    need(&sched, CTL);
    uint32_t came = sched.n_came;
    uint64_t since = now_ms();
    while (now_ms() < since + 2000)
        pump(&sched, 50);
    assert_int_equal(sched.n_came, came);
    while (now_ms() < since + 5500)
        pump(&sched, 50);
    assert_int_equal(sched.n_came, came + 2);
    struct wire_frame f = order(1, 71, "whole");
    answer(&sched, work, NULL, 0);
    answer(&sched, need(&sched, WORK), &f, 1);
    told(TOLD_ORDER, 71);
}

/* A scheduler that takes every join and then knows nothing is not asked in a circle. */
static void forgetful_scheduler(void **state)
{
    (void)state;
    worker_open(4);
    uint64_t end = now_ms() + 500;
    int joins = 0;
    while (now_ms() < end) {
        pump(&sched, 5);
        struct message *m;
        while ((m = find(&sched, JOIN))) {
            answer(&sched, m, NULL, 0);
            joins++;
        }
        while ((m = find(&sched, WORK)))
            refuse(&sched, m, "join first");
        while ((m = find(&sched, CTL)))
            refuse(&sched, m, "join first");
    }
    assert_true(joins >= 2 && joins <= 7);
}

/* Nobody renews the order, so it is told as cancelled. What its worker does before it hears of it does not leave; and
 * it says at last no more than the gateway has. */
static void lease_runs_out(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f[] = {order(1, 71, "whole"), order(2, 72, "whole")};
    f[0].order.lease_ns = f[1].order.lease_ns = 400000000;
    answer(&sched, work_with(&sched, 4), f, 2);
    told(TOLD_ORDER, 71);
    told(TOLD_ORDER, 72);
    send(71, 0);
    answer(&gw, need(&gw, TOKENS), NULL, 0);
    uint64_t since = now_ms();
    newest_work(&sched); /* the scheduler is stopped: it answers nothing */
    struct worker_told *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->what, TOLD_CANCEL);
    assert_true(now_ms() - since >= 200 && now_ms() - since < 2000);
    uint64_t first = t->order;
    worker_told_free(t);
    send(71, 1);
    told(TOLD_CANCEL, 71 + 72 - first);
    nothing_told();
    report(71, "ended", 2);
    report(72, "cancelled", 0);
    assert_int_equal(gw.n_came, 1);
    assert_int_equal(worker_link_queued(w), 0);
    for (int i = 0; i < 2; i++) {
        const struct wire_report *r = next_report(&sched);
        assert_true(is(r->what, "cancelled"));
        assert_int_equal(r->n_out, r->order == 71 ? 1 : 0);
        assert_int_equal(r->n_out_id, r->n_out);
        assert_int_equal(r->reason, 0);
        struct message *m = find(&sched, WORK);
        if (m->n == 3) { /* both in one */
            assert_true(is(m->f[1].report.what, "cancelled"));
            break;
        }
        answer(&sched, m, NULL, 0);
    }
}

/* Idle answers renew it. */
static void lease_is_renewed(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = order(1, 71, "whole");
    f.order.lease_ns = 400000000;
    answer(&sched, work_with(&sched, 4), &f, 1);
    told(TOLD_ORDER, 71);
    for (uint64_t end = now_ms() + 1200; now_ms() < end; usleep(100000)) {
        answer(&sched, need(&sched, CTL), NULL, 0);
        struct worker_told *t = worker_link_take(w);
        assert_null(t);
    }
}

/* Killed with a message in its hands, another life of it gets the same message and what came meanwhile. */
static void gateway_is_restarted(void **state)
{
    (void)state;
    begin(71, "whole");
    send(71, 0);
    send(71, 1);
    need(&gw, TOKENS);
    side_kill(&gw);
    send(71, 2);
    report(71, "ended", 3);
    usleep(50000);
    assert_int_equal(newest_work(&sched)->n, 1);
    side_open(&gw);
    uint32_t next = 0;
    while (next < 3) {
        struct message *m = need(&gw, TOKENS);
        for (uint32_t i = 0; i < m->n; i++)
            assert_int_equal(m->f[i].out.at, next++);
        answer(&gw, m, NULL, 0);
    }
    assert_true(is(next_report(&sched)->what, "ended"));
}

/* A gateway that does not come back: its frames are kept until its orders are cancelled, then nothing is. */
static void gateway_is_gone(void **state)
{
    (void)state;
    begin(71, "whole");
    send(71, 0);
    need(&gw, TOKENS);
    side_kill(&gw);
    for (uint32_t i = 1; i < 20; i++)
        send(71, i);
    usleep(50000);
    assert_true(worker_link_queued(w) > 0);
    report(71, "preempted", 20); /* waits for what will never be confirmed */
    struct message *m = newest_work(&sched);
    assert_int_equal(m->n, 1);
    struct wire_frame c = control(1, 71, "cancel");
    answer(&sched, need(&sched, CTL), &c, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->n_out == 0 && r->n_out_id == 0);
    nothing_told(); /* its worker is done with it */
    assert_int_equal(worker_link_queued(w), 0);
    answer(&sched, find(&sched, WORK), NULL, 0);
    newest_work(&sched);
    assert_true(worker_link_idle(w));
}

static void no_such_address(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = order(1, 71, "whole");
    f.order.reply = wire_str_of("pigeon://loft");
    answer(&sched, work_with(&sched, 4), &f, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 71 && r->code == ERR_NO);
    assert_true(memmem(r->text.p, r->text.n, "pigeon", 6) != NULL);
    nothing_told();
}

/* Its own wish goes out at once, and comes back when the scheduler has heard it: no order can follow. */
static void drains(void **state)
{
    (void)state;
    begin(71, "whole");
    struct message *m = newest_work(&sched);
    worker_link_drain(w, true);
    struct wire_frame f = order(2, 72, "whole"); /* on its way already */
    answer(&sched, m, &f, 1);
    told(TOLD_ORDER, 72);
    struct worker_told *t = NULL;
    bool heard = false;
    for (uint64_t end = now_ms() + WAIT_MS; !t && now_ms() < end; t = worker_link_take(w)) {
        m = newest_work(&sched);
        heard = heard || poll_of(m)->drain;
        assert_int_equal(poll_of(m)->got, 2);
        answer(&sched, m, NULL, 0);
        usleep(20000);
    }
    assert_true(heard);
    assert_non_null(t);
    assert_int_equal(t->what, TOLD_DRAIN);
    worker_told_free(t);
    /* A report need not wait for the idle answer of the poll that it came with. */
    report(71, "ended", 0);
    report(72, "ended", 0);
    m = need(&sched, WORK);
    uint64_t end = now_ms() + WAIT_MS;
    while (!worker_link_idle(w) && now_ms() < end) {
        pump(&sched, 10);
        for (uint32_t i = 0, n = 0; i < sched.n; i++)
            if (sched.m[i]->kind == WORK && n++ == 1) { /* the second is there: the first comes back empty */
                answer(&sched, find(&sched, WORK), NULL, 0);
                break;
            }
    }
    assert_true(worker_link_idle(w));
}

static void drain_and_role_by_the_scheduler(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame c[] = {control(1, 0, "drain"), control(2, 0, "drain"), control(3, 0, "role")};
    c[2].control.role = wire_str_of("prefill");
    answer(&sched, need(&sched, CTL), c, 3);
    told(TOLD_DRAIN, 0);
    struct worker_told *t = take(WAIT_MS);
    assert_true(t && t->what == TOLD_ROLE && !strcmp(t->role, "prefill"));
    worker_told_free(t);
    c[0] = control(4, 0, "resume");
    c[1] = control(5, 0, "drain");
    answer(&sched, need(&sched, CTL), c, 2);
    told(TOLD_RESUME, 0);
    told(TOLD_DRAIN, 0);
    /* The next scheduler gives no drain, and gets the role that the last one chose. */
    refuse(&sched, need(&sched, CTL), "join first");
    struct message *m = need(&sched, JOIN);
    assert_true(is(m->f[0].join.role, "prefill"));
    answer(&sched, m, NULL, 0);
    for (struct message *old; (old = find(&sched, WORK));)
        answer(&sched, old, NULL, 0);
    answer(&sched, need(&sched, CTL), NULL, 0);
    told(TOLD_RESUME, 0);
    nothing_told();
}

/* Bytes that are no frames: the poll comes again, without haste, and asks for the same. */
static void garbage_is_asked_again(void **state)
{
    (void)state;
    begin(71, "whole");
    int polls = 0;
    for (uint64_t end = now_ms() + 350; now_ms() < end; pump(&sched, 10)) {
        struct message *m = find(&sched, WORK);
        if (!m)
            continue;
        assert_int_equal(poll_of(m)->got, 1);
        struct link_msg out = {0};
        struct wire_frame f = order(2, 72, "whole");
        OK(link_msg_add(&e, &out, &f));
        out.n--;
        uint32_t i = 0;
        while (sched.m[i] != m)
            i++;
        memmove(&sched.m[i], &sched.m[i + 1], (--sched.n - i) * sizeof *sched.m);
        link_answer(m->q, &out);
        link_msg_free(&out);
        message_free(m);
        polls++;
    }
    assert_true(polls >= 2 && polls <= 8);
    nothing_told();
}

static void wrong_names(void **state)
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

/* Progress that was not sent is replaced by newer progress; what ends an order is not. */
static void newest_progress_counts(void **state)
{
    (void)state;
    begin(71, "whole");
    newest_work(&sched);
    side_kill(&sched);
    usleep(50000);
    for (uint32_t i = 1; i <= 5; i++) {
        struct wire_report r = {.what = wire_str_of("progress"), .n_done = 8 * i};
        OK(worker_link_report(&e, w, 71, &r));
    }
    report(71, "failed", 0);
    side_open(&sched);
    struct message *m = need(&sched, WORK);
    while (m->n == 1) {
        answer(&sched, m, NULL, 0);
        m = need(&sched, WORK);
    }
    assert_true(m->n <= 4); /* one may have been on its way when the connection broke */
    const struct wire_report *r = &m->f[m->n - 3].report;
    assert_true(is(r->what, "progress") && r->n_done == 40);
    assert_true(is(m->f[m->n - 2].report.what, "failed"));
}

int main(void)
{
#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(joins_and_polls),
        T(orders_are_told_once),
        T(controls_are_told_once),
        T(cancel_comes_before_its_order),
        T(tokens_go_before_reports),
        T(one_message_a_gateway),
        T(slow_gateway),
        T(scheduler_is_restarted),
        T(lost_answers_come_again),
        T(refused_in_words),
        T(forgetful_scheduler),
        T(lease_runs_out),
        T(lease_is_renewed),
        T(gateway_is_restarted),
        T(gateway_is_gone),
        T(no_such_address),
        T(drains),
        T(drain_and_role_by_the_scheduler),
        T(garbage_is_asked_again),
        T(wrong_names),
        T(newest_progress_counts),
        T(silence_is_broken_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
