/*
 * The scheduler as a service: the real program, with fake peers that send and receive frame by frame. Peers with their
 * own timing, and killed peers, are in tests/service/sched.bats.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "link/session.h"
#include "unit/asserts.h"

extern char **environ;

static struct err e;
static char dir[32], url[64];
static pid_t sched;

struct peer {
    struct session_hub *hub;
    struct session *s;
    struct wire_arena *arena;
    const char *name;
    uint64_t inc;
    struct wire_frame f; /* the newest */
};

static int start(void **state)
{
    char *argv[] = {"sched", "--listen", url, NULL};
    (void)state;
    strcpy(dir, "/tmp/schedXXXXXX");
    assert_non_null(mkdtemp(dir));
    snprintf(url, sizeof url, "ipc://%s/s", dir);
    assert_int_equal(posix_spawnp(&sched, "sched", NULL, NULL, argv, environ), 0);
    return 0;
}

/* The service must still run. */
static int stop(void **state)
{
    int status;
    (void)state;
    assert_int_equal(kill(sched, SIGKILL), 0);
    assert_int_equal(waitpid(sched, &status, 0), sched);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    unlink(url + 6);
    rmdir(dir);
    return 0;
}

/* ---- peers ---- */

/* Limit of a wait. PHASEPIPE_SLOW multiplies it, for ThreadSanitizer. */
static int late_ms(void)
{
    const char *slow = getenv("PHASEPIPE_SLOW");
    return 20000 * (slow ? (int)strtol(slow, NULL, 10) : 1);
}

static bool next_event(struct peer *p, struct session_event *v, int ms)
{
    uint64_t end = time_now_ns() + (uint64_t)ms * 1000000;
    while (!session_hub_next(p->hub, v)) {
        uint64_t now = time_now_ns();
        if (now >= end)
            return false;
        session_hub_wait(p->hub, (int)((end - now) / 1000000) + 1);
    }
    return true;
}

static void wait_for(struct peer *p, enum session_event_type type)
{
    struct session_event v;
    do
        if (!next_event(p, &v, late_ms()))
            fail_msg("%s: no event %d of its session", p->name, (int)type);
    while (v.type != type);
}

static struct peer *dial_as(const char *role, const char *name, uint64_t inc)
{
    struct peer *p = calloc(1, sizeof *p);
    p->name = name;
    p->inc = inc;
    p->arena = wire_arena_new();
    const struct session_hub_opts o = {.self = {.role = role, .name = name, .inc = p->inc}};
    OK(session_hub_new(&e, &p->hub, &o));
    OK(session_dial(&e, &p->s, p->hub, url, "sched", NULL));
    wait_for(p, SESSION_UP);
    return p;
}

static struct peer *dial(const char *role, const char *name)
{
    static uint64_t incs;
    return dial_as(role, name, ++incs);
}

static void disconnect(struct peer *p)
{
    session_free(p->s);
    session_hub_free(p->hub);
    wire_arena_free(p->arena);
    free(p);
}

static void send_frame(struct peer *p, const struct wire_frame *f)
{
    OK(session_send(&e, p->s, f));
    session_hub_wait(p->hub, 0); /* writes it */
}

/* Receives the next frame, which must be of this kind. */
static const struct wire_frame *expect(struct peer *p, enum wire_kind kind)
{
    struct session_event v;
    do
        if (!next_event(p, &v, late_ms()))
            fail_msg("%s: no %s frame in time", p->name, wire_kind_name(kind));
    while (v.type != SESSION_FRAME);
    wire_arena_reset(p->arena);
    OK(session_frame(&e, &p->f, p->arena, &v));
    if (p->f.kind != kind)
        fail_msg("%s: received a %s frame, not %s", p->name, wire_kind_name(p->f.kind), wire_kind_name(kind));
    return &p->f;
}

static void expect_refusal(struct peer *p, const char *part)
{
    const struct wire_refuse *r = &expect(p, WIRE_REFUSE)->refuse;
    assert_int_equal(r->job, 0);
    if (!memmem(r->text.p, r->text.n, part, strlen(part)))
        fail_msg("\"%.*s\" does not contain \"%s\"", (int)r->text.n, r->text.p, part);
}

static void join(struct peer *w, const struct wire_run *run)
{
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = wire_str_of(w->name),
                                .inc = w->inc,
                                .role = wire_str_of("both"),
                                .compat = wire_str_of("m"),
                                .seqs = 16,
                                .blocks = 4096,
                                .max_len = 4096,
                                .chunk = 512,
                                .run = run,
                                .n_run = run != NULL};
    send_frame(w, &f);
}

static void capacity(struct peer *w, uint64_t orders, uint32_t seqs)
{
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){
        .worker = wire_str_of(w->name), .inc = w->inc, .orders = orders, .seqs = seqs, .tokens = 65536, .blocks = 4096};
    send_frame(w, &f);
}

static struct wire_frame submit_of(const char *gw, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of(gw), .job = job, .n_prompt = 64, .max_tokens = 8};
    return f;
}

static void submit(struct peer *g, uint64_t job, bool again)
{
    struct wire_frame f = submit_of(g->name, job);
    f.submit.again = again;
    send_frame(g, &f);
}

static void cancel(struct peer *g, const char *gw, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(gw), .job = job}};
    send_frame(g, &f);
}

static struct wire_stat stat_of(struct peer *t)
{
    struct wire_frame f = {.kind = WIRE_STAT};
    send_frame(t, &f);
    struct wire_stat st = expect(t, WIRE_STAT)->stat;
    for (uint32_t i = 0; i < st.workers; i++)
        expect(t, WIRE_WORKER);
    return st;
}

/* ---- cases ---- */

static void a_session_acts_for_itself_only(void **state)
{
    (void)state;
    struct peer *a = dial("gateway", "a"), *b = dial("gateway", "b"), *w = dial("worker", "w"), *t = dial("tool", "t");
    submit(a, 1, false);
    assert_int_equal(expect(a, WIRE_ACK)->ack.job, 1);
    cancel(b, "a", 1);
    expect_refusal(b, "a cancel frame of 'a', incarnation");
    struct wire_frame f = submit_of("a", 2);
    send_frame(b, &f);
    expect_refusal(b, "the session is of 'b'");
    f = (struct wire_frame){
        .kind = WIRE_REPORT,
        .report = {.gw = wire_str_of("a"), .job = 1, .what = wire_str_of("ended"), .reason = WIRE_STOP}};
    send_frame(b, &f);
    expect_refusal(b, "a report frame of 'a'");
    f.report.worker = wire_str_of("w");
    send_frame(b, &f);
    expect_refusal(b, "only a worker may send it");
    f = (struct wire_frame){.kind = WIRE_KNOB, .knob = {.name = wire_str_of("queue_max"), .value = 1}};
    send_frame(b, &f);
    expect_refusal(b, "only a tool may send it");
    f.knob.name = wire_str_of("weight:x");
    send_frame(b, &f);
    assert_true(expect(b, WIRE_KNOB)->knob.value == 1);
    f.knob.value = 0;
    send_frame(b, &f);
    expect_refusal(b, "unknown setting 'weight:x'");
    join(w, NULL);
    capacity(w, 0, 0);
    struct peer other = *w; /* frames with another incarnation, and another name */
    other.inc++;
    capacity(&other, 0, 16);
    expect_refusal(w, "the session is of 'w'");
    other.inc--;
    other.name = "x";
    join(&other, NULL);
    expect_refusal(w, "a join frame of 'x'");
    struct wire_stat st = stat_of(t);
    assert_int_equal(st.waiting, 1);
    assert_int_equal(st.submitted, 1);
    assert_int_equal(st.workers, 1);
    assert_int_equal(st.gateways, 2);
    cancel(a, "a", 1);
    assert_int_equal(expect(a, WIRE_DONE)->done.reason, WIRE_CANCELLED);
    disconnect(a);
    disconnect(b);
    disconnect(w);
    disconnect(t);
}

/* Submits five bodies of 14.4 MB at once, for a worker that reads none of them for a second. */
static void a_burst_of_large_work_items_waits_for_a_full_session(void **state)
{
    enum { N = 5, BODY = 14400000 };
    (void)state;
    struct peer *g = dial("gateway", "g"), *w = dial("worker", "w"), *t = dial("tool", "t");
    uint8_t *body = malloc(BODY);
    for (uint64_t job = 1; job <= N; job++) {
        struct wire_frame f = submit_of("g", job);
        memset(body, (int)job, BODY);
        f.submit.body = (struct wire_bytes){body, BODY};
        struct session_event v;
        int rc;
        while ((rc = session_send(&e, g->s, &f)) == ERR_NO)
            assert_true(next_event(g, &v, late_ms()));
        assert_int_equal(rc, 0);
    }
    for (struct session_event v; session_unacked_bytes(g->s);)
        assert_true(next_event(g, &v, late_ms()));
    join(w, NULL);
    capacity(w, 0, 16);
    for (uint64_t end = time_now_ns() + 1000000000; time_now_ns() < end; usleep(100000)) {
        struct wire_stat st = stat_of(t); /* other peers are served meanwhile */
        assert_int_equal(st.running + st.waiting, N);
        assert_true(st.placed < N); /* back pressure: no more work items are decided for a full session */
    }
    for (uint64_t job = 1; job <= N; job++) {
        const struct wire_order *o = &expect(w, WIRE_ORDER)->order;
        assert_int_equal(o->job, job);
        assert_int_equal(o->body.n, BODY);
        assert_true(o->body.p[0] == job && o->body.p[BODY - 1] == job);
    }
    free(body);
    disconnect(g);
    disconnect(w);
    disconnect(t);
}

static void a_stat_comes_with_a_frame_for_each_worker(void **state)
{
    (void)state;
    struct peer *w[3] = {dial("worker", "w0"), dial("worker", "w1"), dial("worker", "w2")}, *t = dial("tool", "t");
    for (int i = 0; i < 3; i++) {
        join(w[i], NULL);
        capacity(w[i], 0, 4);
        send_frame(w[i], &(struct wire_frame){.kind = WIRE_STAT}); /* the response: all earlier frames were processed */
        assert_int_equal(expect(w[i], WIRE_STAT)->stat.workers, i + 1);
        for (int k = 0; k <= i; k++)
            expect(w[i], WIRE_WORKER);
    }
    send_frame(t, &(struct wire_frame){.kind = WIRE_STAT});
    send_frame(t, &(struct wire_frame){.kind = WIRE_KNOB, .knob = {.name = wire_str_of("queue_max"), .value = 7}});
    assert_int_equal(expect(t, WIRE_STAT)->stat.workers, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(expect(t, WIRE_WORKER)->worker.seqs, 4);
    assert_true(expect(t, WIRE_KNOB)->knob.value == 7);
    for (int i = 0; i < 3; i++)
        disconnect(w[i]);
    disconnect(t);
}

/* The session of a worker breaks, and it still runs the work item when it joins again. */
static void a_work_item_of_a_join_is_cancelled_if_another_worker_has_the_request(void **state)
{
    (void)state;
    struct peer *g = dial("gateway", "g"), *w1 = dial("worker", "w1"), *w2 = dial("worker", "w2");
    join(w1, NULL);
    capacity(w1, 0, 1);
    submit(g, 1, false);
    struct wire_order first = expect(w1, WIRE_ORDER)->order;
    assert_int_equal(first.attempt, 1);
    disconnect(w1);
    join(w2, NULL);
    capacity(w2, 0, 1);
    struct wire_order second = expect(w2, WIRE_ORDER)->order;
    assert_int_equal(second.attempt, 2);
    w1 = dial("worker", "w1");
    const struct wire_run run = {.gw = wire_str_of("g"),
                                 .job = 1,
                                 .order = first.order,
                                 .attempt = 1,
                                 .phase = wire_str_of("whole"),
                                 .n_prompt = 64,
                                 .max_tokens = 8};
    join(w1, &run);
    const struct wire_control *c = &expect(w1, WIRE_CONTROL)->control;
    assert_true(c->what.n == 6 && !memcmp(c->what.p, "cancel", 6));
    assert_int_equal(c->order, first.order);
    disconnect(g);
    const struct wire_control *x = &expect(w2, WIRE_CONTROL)->control; /* its gateway has disconnected */
    assert_int_equal(x->order, second.order);
    disconnect(w1);
    disconnect(w2);
}

static void a_drained_worker_that_joins_again_is_still_drained(void **state)
{
    (void)state;
    struct peer *w = dial("worker", "w"), *t = dial("tool", "t"), *g = dial("gateway", "g");
    struct wire_frame f = {.kind = WIRE_KNOB,
                           .knob = {.name = wire_str_of("drain"), .worker = wire_str_of("w"), .value = 1}};
    join(w, NULL);
    send_frame(w, &(struct wire_frame){.kind = WIRE_STAT}); /* the response: the join was processed */
    expect(w, WIRE_STAT);
    expect(w, WIRE_WORKER);
    send_frame(t, &f);
    expect(t, WIRE_KNOB);
    expect(w, WIRE_CONTROL);
    uint64_t inc = w->inc;
    disconnect(w);
    w = dial_as("worker", "w", inc);
    join(w, NULL);
    const struct wire_control *c = &expect(w, WIRE_CONTROL)->control;
    assert_true(c->what.n == 5 && !memcmp(c->what.p, "drain", 5));
    capacity(w, 0, 1);
    submit(g, 1, false);
    expect(g, WIRE_ACK);
    assert_int_equal(stat_of(t).waiting, 1);
    disconnect(w);
    w = dial("worker", "w"); /* a new process is not drained */
    join(w, NULL);
    capacity(w, 0, 1);
    assert_int_equal(expect(w, WIRE_ORDER)->order.job, 1);
    disconnect(w);
    disconnect(t);
    disconnect(g);
}

/* A request is cancelled with the session of its gateway, so the gateway submits it again under a new number. */
static void a_request_that_was_cancelled_with_its_session_gets_done(void **state)
{
    (void)state;
    struct peer *g = dial("gateway", "g"), *w = dial("worker", "w");
    join(w, NULL);
    capacity(w, 0, 1);
    submit(g, 1, false);
    expect(w, WIRE_ORDER);
    disconnect(g);
    expect(w, WIRE_CONTROL); /* no response: the worker still has it */
    g = dial("gateway", "g");
    submit(g, 1, true);
    const struct wire_done *d = &expect(g, WIRE_DONE)->done;
    assert_true(d->job == 1 && d->reason == WIRE_CANCELLED);
    submit(g, 2, true);
    assert_int_equal(expect(g, WIRE_ACK)->ack.job, 2);
    disconnect(g);
    disconnect(w);
}

/* Connects as `deaf`, sends copies of f that the scheduler refuses, and reads nothing until the scheduler has closed
 * the connection. *job: a field of f, counted up to n_frame. */
static void send_and_never_read(const char *role, struct wire_frame *f, uint64_t *job, uint64_t n_frame)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    uint8_t *p = NULL, got[4096];
    size_t n = 0, cap = 0, at = 0;
    ssize_t put = 0;
    struct wire_frame hello = {
        .kind = WIRE_SESSION_HELLO,
        .session_hello = {.version = WIRE_VERSION, .role = wire_str_of(role), .name = wire_str_of("deaf"), .inc = 1}};
    OK(wire_encode_add(&e, &p, &n, &cap, &hello));
    for (; *job < n_frame; ++*job)
        OK(wire_encode_add(&e, &p, &n, &cap, f));
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncat(a.sun_path, url + 6, sizeof a.sun_path - 1);
    assert_int_equal(connect(s, (struct sockaddr *)&a, sizeof a), 0);
    for (; at < n && put >= 0; at += put > 0 ? (size_t)put : 0)
        put = send(s, p + at, n - at, MSG_NOSIGNAL);
    for (;;) { /* what was sent before, then the end */
        struct pollfd q = {.fd = s, .events = POLLIN};
        if (poll(&q, 1, late_ms()) < 1)
            fail_msg("the connection stays open");
        if (read(s, got, sizeof got) <= 0)
            break;
    }
    close(s);
    free(p);
}

static void the_session_of_a_gateway_that_does_not_read_is_closed(void **state)
{
    (void)state;
    struct peer *w = dial("worker", "w"), *t = dial("tool", "t");
    join(w, NULL); /* sets the context length */
    stat_of(t);
    struct wire_frame f = submit_of("deaf", 1);
    f.submit.n_prompt = 5000;
    send_and_never_read("gateway", &f, &f.submit.job, 250000);
    struct wire_stat st = stat_of(t);
    assert_int_equal(st.gateways, 0);
    assert_true(st.refused > 50000);
    disconnect(w);
    disconnect(t);
}

/* Only work items and controls are queued for a worker, refusals are not. */
static void the_session_of_a_worker_that_does_not_read_refusals_is_closed(void **state)
{
    (void)state;
    struct peer *t = dial("tool", "t");
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of("deaf"), .job = 1}};
    send_and_never_read("worker", &f, &f.cancel.job, 400000);
    assert_int_equal(stat_of(t).workers, 0);
    disconnect(t);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_session_acts_for_itself_only),
        CASE(a_burst_of_large_work_items_waits_for_a_full_session),
        CASE(a_stat_comes_with_a_frame_for_each_worker),
        CASE(a_work_item_of_a_join_is_cancelled_if_another_worker_has_the_request),
        CASE(a_drained_worker_that_joins_again_is_still_drained),
        CASE(a_request_that_was_cancelled_with_its_session_gets_done),
        CASE(the_session_of_a_gateway_that_does_not_read_is_closed),
        CASE(the_session_of_a_worker_that_does_not_read_refusals_is_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
