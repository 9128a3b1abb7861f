/*
 * Worker links, the real scheduling machine and fake gateways in one program, without sockets, under random faults: a
 * scheduler that is killed, workers that are killed or disconnected, gateways that acknowledge late or lose their
 * connections, cancels, preemptions, drains. Invariants: every answer is complete and has each token exactly once, in
 * order; a cancelled one is a prefix of it; the statistics add up. token_of defines the expected tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "link/worker.h"
#include "sched/policy.h"
#include "sched/sched.h"
#include "unit/asserts.h"
#include "unit/sched_check.h"
#include "unit/session_fake.h"

#define WORKERS 3
#define GATEWAYS 2
#define JOBS 250
#define IN_FLIGHT 24
#define TOKENS_MAX 64
#define SLOTS 6
#define S_NS NS_S

static struct err e;
static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % below;
}

/* The number of frames in flight that still arrive when a connection breaks. Called by any thread, under fake_lock. */
static uint64_t draw_in_flight(uint64_t below)
{
    static uint64_t x = 88172645463325252;
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    return x % below;
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * S_NS + (uint64_t)t.tv_nsec;
}

/* Time in which this program ran, so that a stopped test does not time out. */
static uint64_t ran_ns(void)
{
    static uint64_t ran, last;
    uint64_t now = now_ns(), passed = last ? now - last : 0;
    last = now;
    ran += passed < S_NS ? passed : S_NS;
    return ran;
}

static bool is(struct wire_str s, const char *what)
{
    return s.n == strlen(what) && !memcmp(s.p, what, s.n);
}

static uint32_t token_of(uint64_t job, uint32_t i)
{
    return (uint32_t)(job * 7919 + i * 104729) % 50000;
}

/* ---- gateways and their requests ---- */

struct job {
    uint64_t id;
    uint32_t gw, n_prompt, max_tokens;
    uint32_t n; /* tokens received */
    bool cancelled, ended;
    uint32_t attempt;
};

static struct job job[JOBS];
static uint32_t n_submitted, n_ended;

static struct gateway {
    char name[16], url[64];
    struct session_hub *hub;
    struct session_listener *l;
    bool asleep; /* takes no events, so acknowledges nothing */
} gw[GATEWAYS];

static void gateway_open(struct gateway *g)
{
    struct session_hub_opts o = {.self = {"gateway", g->name, 1}};
    OK(session_hub_new(&e, &g->hub, &o));
    OK(session_listen(&e, &g->l, g->hub, g->url, "worker", NULL));
}

static void gateway_close(struct gateway *g)
{
    session_listener_free(g->l);
    session_hub_free(g->hub);
}

static struct job *job_of(uint64_t id)
{
    assert_true(id >= 1 && id <= JOBS);
    return &job[id - 1];
}

static void take_out(const struct wire_out *f)
{
    struct job *j = job_of(f->seq);
    if (j->ended)
        return;
    assert_true(f->at <= j->n); /* no gap */
    for (uint32_t i = 0; i < f->n_id; i++) {
        assert_int_equal(f->ids[i], token_of(j->id, f->at + i));
        if (f->at + i == j->n)
            j->n++;
    }
    assert_true(j->n <= j->max_tokens);
}

static void job_end(struct job *j)
{
    if (!j->ended) {
        j->ended = true;
        n_ended++;
    }
}

static void take_end(const struct wire_end *f)
{
    struct job *j = job_of(f->seq);
    if (!j->ended)
        assert_int_equal(j->n, j->max_tokens);
    job_end(j);
}

static void gateway_step(struct gateway *g)
{
    struct session_event ev;
    struct wire_frame f;
    if (draw(30) == 0)
        g->asleep = !g->asleep;
    while (!g->asleep && draw(8) && session_hub_next(g->hub, &ev)) {
        if (ev.type != SESSION_FRAME)
            continue;
        struct wire_arena *mem = wire_arena_new();
        OK(session_frame(&e, &f, mem, &ev));
        if (f.kind == WIRE_OUT)
            take_out(&f.out);
        else if (f.kind == WIRE_END)
            take_end(&f.end);
        wire_arena_free(mem);
    }
}

/* ---- the scheduler: the machine with its sessions ---- */

static struct peer {
    char name[16];
    struct session *s; /* NULL: not connected */
    uint64_t inc;
} peer[WORKERS];

static struct {
    char url[64];
    struct session_hub *hub;
    struct session_listener *l;
    struct sched *s;
} sched;

static struct peer *peer_of(struct wire_str name)
{
    for (int i = 0; i < WORKERS; i++)
        if (is(name, peer[i].name))
            return &peer[i];
    fail_msg("there is no worker %.*s", (int)name.n, name.p);
    return NULL;
}

static void emit(void *arg, const struct wire_frame *f)
{
    (void)arg;
    struct peer *t;
    switch ((int)f->kind) {
    case WIRE_ORDER:
    case WIRE_CONTROL:
        t = peer_of(f->kind == WIRE_ORDER ? f->order.to : f->control.to);
        if (t->s)
            OK(session_send(&e, t->s, f));
        break;
    case WIRE_REFUSE:
        fail_msg("the scheduler refused %.*s: %.*s", (int)f->refuse.to.n, f->refuse.to.p, (int)f->refuse.text.n,
                 f->refuse.text.p);
        break;
    case WIRE_DONE:
        if (!job_of(f->done.job)->ended) {
            struct job *j = job_of(f->done.job);
            assert_true(j->cancelled || (f->done.reason == WIRE_LENGTH && j->n == j->max_tokens));
            job_end(j);
        }
        break;
    default:
        break;
    }
}

static void event(struct wire_frame *f)
{
    f->tick.at_ns = now_ns();
    OK(sched_event(&e, sched.s, f));
}

static void submit(struct job *j, bool again)
{
    uint32_t out[TOKENS_MAX];
    for (uint32_t i = 0; i < j->n; i++)
        out[i] = token_of(j->id, i);
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of(gw[j->gw].name),
                                    .job = j->id,
                                    .n_prompt = j->n_prompt,
                                    .max_tokens = j->max_tokens,
                                    .reply = wire_str_of(gw[j->gw].url),
                                    .again = again,
                                    .attempt = 1,
                                    .n_out = j->n,
                                    .out = out,
                                    .n_out_id = j->n};
    event(&f);
}

static void sched_start(void)
{
    static const struct {
        const char *name;
        double value;
    } settings[] = {{"lease_ms", 600}, {"grace_ms", 200}, {"retries", 1000}, {"deaths", 1000}};
    OK(sched_new(&e, &sched.s, draw(2) ? &sched_policy_kv : &sched_policy_fcfs, &(struct sched_sink){.emit = emit}));
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
        OK(sched_set(&e, sched.s, settings[i].name, settings[i].value));
    struct session_hub_opts o = {.self = {"sched", "s", 1}};
    OK(session_hub_new(&e, &sched.hub, &o));
    OK(session_listen(&e, &sched.l, sched.hub, sched.url, "worker", NULL));
    for (uint32_t i = 0; i < n_submitted; i++)
        if (!job[i].ended)
            submit(&job[i], true);
    for (uint32_t i = 0; i < n_submitted; i++)
        if (!job[i].ended && job[i].cancelled)
            event(&(struct wire_frame){.kind = WIRE_CANCEL,
                                       .cancel = {.gw = wire_str_of(gw[job[i].gw].name), .job = i + 1}});
}

static void sched_stop(void)
{
    OK(sched_check(&e, sched.s));
    struct sched_sink none = {0};
    sched_set_sink(sched.s, &none);
    sched_free(sched.s);
    session_listener_free(sched.l);
    session_hub_free(sched.hub);
    for (int i = 0; i < WORKERS; i++)
        peer[i].s = NULL;
}

static void worker_frame(struct peer *t, const struct session_event *ev)
{
    struct wire_arena *mem = wire_arena_new();
    struct wire_frame f;
    OK(session_frame(&e, &f, mem, ev));
    assert_true(is(f.kind == WIRE_JOIN       ? f.join.worker
                   : f.kind == WIRE_CAPACITY ? f.capacity.worker
                                             : f.report.worker,
                   t->name));
    event(&f);
    wire_arena_free(mem);
}

static void sched_take(const struct session_event *ev)
{
    struct peer *t = peer_of(wire_str_of(session_peer_name(ev->s)));
    if (ev->type == SESSION_UP) {
        t->s = ev->s;
        t->inc = session_peer_inc(ev->s);
    } else if (ev->type == SESSION_FRAME) {
        worker_frame(t, ev);
    } else if (ev->type == SESSION_DOWN) {
        assert_true(t->s == ev->s);
        t->s = NULL;
        event(&(struct wire_frame){.kind = WIRE_GONE, .gone = {.worker = wire_str_of(t->name), .inc = t->inc}});
    }
}

static void sched_step(void)
{
    struct session_event ev;
    while (session_hub_next(sched.hub, &ev)) {
        sched_take(&ev);
        if (draw(3) == 0)
            OK(sched_decide(&e, sched.s));
    }
    event(&(struct wire_frame){.kind = WIRE_TICK});
    OK(sched_decide(&e, sched.s));
}

/* ---- workers ---- */

struct attempt {
    const struct wire_order *o;
    uint32_t n_out;
    bool prefilled;
};

static struct worker {
    struct worker_link *link;
    struct attempt attempt[64];
    uint32_t n;
    bool drain, sched_drains;
} worker[WORKERS];

static void worker_capacity(struct worker *w)
{
    uint32_t seqs = w->n < SLOTS ? SLOTS - w->n : 0;
    worker_link_capacity(
        w->link, &(struct wire_capacity){.seqs = seqs, .tokens = 500, .blocks = 100, .step_ns = 1000, .batch = 1});
}

static void worker_start(int i)
{
    static const char *const roles[] = {"prefill", "decode", "both"};
    struct worker_link_opts o = {.sched = sched.url,
                                 .name = peer[i].name,
                                 .role = roles[i % 3],
                                 .store = "s",
                                 .compat = "c",
                                 .seqs = SLOTS,
                                 .blocks = 100,
                                 .max_len = 1000,
                                 .chunk = 64};
    worker[i] = (struct worker){.n = 0};
    OK(worker_link_open(&e, &worker[i].link, &o));
    worker_capacity(&worker[i]);
}

static void worker_stop(int i)
{
    worker_link_close(worker[i].link);
    while (worker[i].n)
        worker_order_release(worker[i].attempt[--worker[i].n].o);
}

static void close_attempt(struct worker *w, uint32_t i, const char *what)
{
    struct attempt *k = &w->attempt[i];
    const struct wire_order *o = k->o;
    uint32_t out[TOKENS_MAX], handle = 7;
    for (uint32_t n = 0; n < k->n_out; n++)
        out[n] = token_of(o->job, n);
    struct wire_report r = {
        .what = wire_str_of(what), .n_out = k->n_out, .out = out, .n_out_id = k->n_out, .n_done = o->n_prompt};
    if (!strcmp(what, "ended"))
        r.reason = WIRE_LENGTH;
    if (!strcmp(what, "failed"))
        r.code = ERR_SYS;
    if (!strcmp(what, "prefilled"))
        r.handle = (struct wire_bytes){(const uint8_t *)&handle, sizeof handle};
    OK(worker_link_report(&e, w->link, k->o, &r));
    worker_order_release(k->o);
    *k = w->attempt[--w->n];
}

static void take_events(struct worker *w)
{
    struct worker_event ev;
    while (worker_link_take(w->link, &ev)) {
        if (ev.type == WORKER_EV_ASSIGNED) {
            assert_true(w->n < 64);
            for (uint32_t i = 0; i < w->n; i++)
                assert_true(w->attempt[i].o->order != ev.order);
            const struct wire_order *o = ev.assigned;
            for (uint32_t i = 0; i < o->n_out_id; i++)
                assert_int_equal(o->out[i], token_of(o->job, o->n_out - o->n_out_id + i));
            assert_true(o->n_out <= job_of(o->job)->n); /* the gateway has received these tokens */
            w->attempt[w->n++] = (struct attempt){o, o->n_out, false};
            continue;
        }
        for (uint32_t i = 0; i < w->n; i++)
            if (w->attempt[i].o->order == ev.order && (ev.type == WORKER_EV_CANCEL || ev.type == WORKER_EV_PREEMPT)) {
                close_attempt(w, i, ev.type == WORKER_EV_CANCEL ? "cancelled" : "preempted");
                break;
            }
        w->sched_drains = ev.type == WORKER_EV_DRAIN || (w->sched_drains && ev.type != WORKER_EV_RESUME);
    }
}

static void step_attempt(struct worker *w, uint32_t i)
{
    struct attempt *k = &w->attempt[i];
    const struct wire_order *o = k->o;
    bool prefill = is(o->phase, "prefill");
    if (!is(o->phase, "decode") && !k->prefilled && draw(3)) {
        if (draw(2))
            OK(worker_link_report(&e, w->link, o, &(struct wire_report){.what = wire_str_of("progress"), .n_done = 5}));
        return;
    }
    k->prefilled = true;
    if (draw(100) == 0) {
        close_attempt(w, i, "failed");
        return;
    }
    if (k->n_out < o->max_tokens) {
        uint32_t tok = token_of(o->job, k->n_out);
        struct wire_frame f = {.kind = WIRE_OUT, .out = {.ids = &tok, .n_id = 1, .at = k->n_out}};
        OK(worker_link_send(&e, w->link, o, &f, ++k->n_out));
    }
    if (k->n_out == o->max_tokens) {
        struct wire_frame f = {.kind = WIRE_END, .end = {.reason = WIRE_LENGTH}};
        OK(worker_link_send(&e, w->link, o, &f, k->n_out));
        close_attempt(w, i, "ended");
    } else if (prefill) {
        close_attempt(w, i, "prefilled");
    }
}

static void worker_step(struct worker *w)
{
    take_events(w);
    for (uint32_t i = w->n; i-- > 0;)
        if (draw(2))
            step_attempt(w, i);
    worker_capacity(w);
}

/* ---- the simulation ---- */

static void submit_new(void)
{
    struct job *j = &job[n_submitted];
    *j = (struct job){.id = n_submitted + 1,
                      .gw = (uint32_t)draw(GATEWAYS),
                      .n_prompt = 1 + (uint32_t)draw(200),
                      .max_tokens = 1 + (uint32_t)draw(TOKENS_MAX)};
    n_submitted++;
    submit(j, false);
}

static void cancel(void)
{
    struct job *j = &job[n_submitted - 1 - draw(n_submitted < IN_FLIGHT ? n_submitted : IN_FLIGHT)];
    if (j->ended || j->cancelled)
        return;
    j->cancelled = true;
    event(&(struct wire_frame){.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(gw[j->gw].name), .job = j->id}});
}

static void set(const char *name, int i, float value)
{
    struct wire_frame f = {.kind = WIRE_KNOB};
    f.knob = (struct wire_knob){
        .at_ns = now_ns(), .name = wire_str_of(name), .worker = wire_str_of(peer[i].name), .value = value};
    if (sched_event(&e, sched.s, &f))
        e.code = 0; /* the worker is not connected */
}

static void fault(void)
{
    int i = (int)draw(WORKERS);
    uint64_t what = draw(100);
    if (what < 30) {
        cancel();
    } else if (what < 50) {
        set("hand_over", i, 1);
    } else if (what < 55) {
        set("drain", i, 1);
    } else if (what < 65) {
        for (int k = 0; k < WORKERS; k++)
            set("drain", k, 0);
    } else if (what < 75) {
        worker_stop(i);
        worker_start(i);
    } else if (what < 82) {
        sched_stop();
        usleep((useconds_t)draw(20000));
        sched_start();
    } else if (what < 90) {
        struct gateway *g = &gw[draw(GATEWAYS)];
        gateway_close(g);
        gateway_open(g);
    } else if (what < 96) {
        fake_cut(draw(100));
    } else if (what < 98) { /* the scheduler is stopped */
        usleep(draw(4) ? 200000 : 800000);
    }
}

static void simulate(uint64_t seed)
{
    fake_draw = draw_in_flight;
    random_state = seed * 0x9e3779b97f4a7c15u + 1;
    n_submitted = n_ended = 0;
    for (int i = 0; i < GATEWAYS; i++) {
        snprintf(gw[i].name, sizeof gw[i].name, "g%d", i);
        snprintf(gw[i].url, sizeof gw[i].url, "ipc:///tmp/ww-%d-g%d", (int)getpid(), i);
        gateway_open(&gw[i]);
    }
    snprintf(sched.url, sizeof sched.url, "ipc:///tmp/ww-%d-s", (int)getpid());
    for (int i = 0; i < WORKERS; i++)
        snprintf(peer[i].name, sizeof peer[i].name, "w%d", i);
    sched_start();
    for (int i = 0; i < WORKERS; i++)
        worker_start(i);
    uint64_t last = ran_ns();
    uint32_t was = 0;
    for (uint64_t turn = 0; n_ended < JOBS; turn++) {
        while (n_submitted < JOBS && n_submitted - n_ended < IN_FLIGHT)
            submit_new();
        sched_step();
        for (int i = 0; i < GATEWAYS; i++)
            gateway_step(&gw[i]);
        for (int i = 0; i < WORKERS; i++)
            worker_step(&worker[i]);
        if (draw(25) == 0)
            fault();
        session_hub_wait(sched.hub, 1);
        if (n_ended != was) {
            was = n_ended;
            last = ran_ns();
        }
        if (ran_ns() - last > 20 * S_NS)
            fail_msg("seed %llu: %u of %u requests have ended, no progress for 20 s", (unsigned long long)seed, n_ended,
                     n_submitted);
    }
    /* Workers drop their state of ended requests without further input. */
    struct wire_stat s;
    for (uint64_t end = ran_ns() + 10 * S_NS;;) {
        sched_step();
        for (int i = 0; i < GATEWAYS; i++)
            gateway_step(&gw[i]);
        for (int i = 0; i < WORKERS; i++)
            worker_step(&worker[i]);
        sched_stat(sched.s, &s);
        if (!s.tombs && !s.running && !s.waiting)
            break;
        assert_true(ran_ns() < end);
        session_hub_wait(sched.hub, 1);
    }
    OK(sched_check(&e, sched.s));
    assert_int_equal(s.submitted, s.stop + s.length + s.cancelled + s.expired + s.error + s.refused);
    assert_int_equal(s.error + s.refused + s.expired, 0);
    for (int i = 0; i < WORKERS; i++) {
        uint64_t end = ran_ns() + 5 * S_NS;
        while (!worker_link_idle(worker[i].link) && ran_ns() < end) {
            sched_step();
            for (int k = 0; k < GATEWAYS; k++)
                gateway_step(&gw[k]);
            session_hub_wait(sched.hub, 1);
        }
        assert_true(worker_link_idle(worker[i].link));
        assert_int_equal(worker_link_queued(worker[i].link), 0);
        assert_int_equal(worker[i].n, 0);
    }
    for (int i = 0; i < WORKERS; i++)
        worker_stop(i);
    sched_stop();
    memset(peer, 0, sizeof peer);
    for (int i = 0; i < GATEWAYS; i++)
        gateway_close(&gw[i]);
    for (uint32_t i = 0; i < JOBS; i++)
        assert_true(job[i].cancelled || job[i].n == job[i].max_tokens);
}

static void answers_are_complete_under_random_faults(void **state)
{
    (void)state;
    const char *seed = getenv("PHASEPIPE_TEST_SEED");
    uint64_t first = seed ? strtoull(seed, NULL, 10) : 1, n = seed ? 1 : 2;
    for (uint64_t i = 0; i < n; i++)
        simulate(first + i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_complete_under_random_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
