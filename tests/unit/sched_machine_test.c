/*
 * The scheduler's state machine with fake workers and gateways that die, stop, lose their sessions with the frames in
 * flight, cancel and reconnect at random. The expected result is this test's own record: every submitted request ends
 * exactly once, and its gateway receives each of its tokens once and in order. After every event the scheduler's counts
 * are recounted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "sched/sched.h"
#include "unit/sched_check.h"

#define N_WORKER 6
#define N_REQUEST 6000
#define N_ATTEMPT 64
#define MS NS_MS

static uint64_t seed;

static uint32_t draw(uint32_t n)
{
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33) % n;
}

struct fake_attempt {
    bool used, prefilled;
    const char *unsent; /* the report that closed it while the session was broken: sent after the join */
    uint64_t job, order;
    uint32_t attempt, n_out, n_prompt, max_tokens;
    char phase[8];
};

struct fake_worker {
    char name[8];
    bool up, stopped, joined;
    bool cut; /* its session is broken; the scheduler may not have received `gone` yet */
    uint64_t inc, last_order;
    struct fake_attempt attempt[N_ATTEMPT];
    uint32_t seqs;
    struct wire_capacity delayed; /* made in the last step, sent in the next */
    uint64_t n_order;             /* since its join */
};

struct fake_request {
    bool submitted, ended, cancel_sent, acked;
    uint32_t n_prompt, max_tokens, n_out; /* n_out: what the gateway has */
    enum wire_reason reason;
};

struct world {
    struct sched *s;
    const struct sched_policy *policy;
    uint64_t now;
    struct fake_worker w[N_WORKER];
    struct fake_request request[N_REQUEST];
    uint32_t n_request, cuts; /* cuts: a session breaks before one in so many frames; 0: never */
    uint32_t n_done, n_refused, n_order;
    uint64_t submitted_here; /* since the last start of the scheduler */
    uint64_t retried, preempted, stale, restarts;
};

/* Token i of a request; every work item and stream is compared with it. */
static uint32_t token(uint64_t job, uint32_t i)
{
    return (uint32_t)job * 1000003u + i;
}

static void event(struct world *x, struct wire_frame *f)
{
    struct err e = {0};
    f->tick.at_ns = x->now;
    if (sched_event(&e, x->s, f))
        fail_msg("event %s: %s", wire_kind_name(f->kind), e.text);
    if (sched_check(&e, x->s))
        fail_msg("after %s: %s", wire_kind_name(f->kind), e.text);
}

static void decide(struct world *x)
{
    struct err e = {0};
    if (sched_decide(&e, x->s) || sched_check(&e, x->s))
        fail_msg("decide: %s", e.text);
}

/* ---- decisions ---- */

/* True if a frame to the worker is lost: its session is broken, or breaks now. */
static bool lost(const struct world *x, struct fake_worker *w, uint64_t salt)
{
    uint64_t h = (x->now ^ salt ^ (uint64_t)(w - x->w) << 60) * 0x9e3779b97f4a7c15ull;
    if (x->cuts && (h >> 33) % x->cuts == 0)
        w->cut = true;
    return !w->up || w->stopped || w->cut;
}

static uint32_t used(const struct fake_worker *w)
{
    uint32_t n = 0;
    for (int i = 0; i < N_ATTEMPT; i++)
        n += w->attempt[i].used;
    return n;
}

static struct fake_worker *find(struct world *x, struct wire_str name)
{
    for (int i = 0; i < N_WORKER; i++)
        if (strlen(x->w[i].name) == name.n && !memcmp(x->w[i].name, name.p, name.n))
            return &x->w[i];
    fail_msg("a decision for an unknown worker");
    return NULL;
}

static void on_order(struct world *x, const struct wire_order *o)
{
    struct fake_worker *w = find(x, o->to);
    struct fake_request *j = &x->request[o->job];
    assert_true(w->joined && j->submitted);
    if (j->ended)
        fail_msg("a work item of request %u, which has ended", (unsigned)o->job);
    x->n_order++;
    assert_true(o->n_out <= j->n_out);
    assert_int_equal(o->n_out, o->n_out_id);
    for (uint32_t i = 0; i < o->n_out; i++)
        assert_int_equal(o->out[i], token(o->job, i));
    assert_true(o->n_prompt == j->n_prompt && o->body.n == 5 && !memcmp(o->body.p, "hello", 5));
    if (lost(x, w, o->order))
        return;
    assert_true(o->order > w->last_order); /* each is new */
    w->last_order = o->order;
    w->n_order++;
    if (used(w) >= w->seqs)
        fail_msg("a work item for a worker without capacity");
    for (int i = 0; i < N_ATTEMPT; i++)
        if (!w->attempt[i].used && w->attempt[i].phase[0] != '!') {
            struct fake_attempt *r = &w->attempt[i];
            *r = (struct fake_attempt){.used = true,
                                       .job = o->job,
                                       .order = o->order,
                                       .attempt = o->attempt,
                                       .n_out = o->n_out,
                                       .n_prompt = o->n_prompt,
                                       .max_tokens = o->max_tokens};
            memcpy(r->phase, o->phase.p, o->phase.n);
            r->prefilled = !strcmp(r->phase, "decode");
            return;
        }
    fail_msg("the table of the fake worker is full");
}

static void report(struct world *x, struct fake_worker *w, const struct fake_attempt *r, const char *what,
                   uint32_t from)
{
    uint32_t out[64];
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){.worker = wire_str_of(w->name),
                                    .inc = w->inc,
                                    .gw = wire_str_of("gw"),
                                    .job = r->job,
                                    .order = r->order,
                                    .attempt = r->attempt,
                                    .what = wire_str_of(what),
                                    .n_done = r->n_prompt,
                                    .n_out = r->n_out,
                                    .out = out,
                                    .busy_ns = 3 * MS};
    for (uint32_t i = from; i < r->n_out && i - from < 64; i++)
        out[f.report.n_out_id++] = token(r->job, i);
    f.report.handle = (struct wire_bytes){(const uint8_t *)"h", 1};
    f.report.reason = strcmp(what, "ended") ? 0 : WIRE_LENGTH;
    event(x, &f);
}

/* A control must not come before its work item. A control for a closed work item is ignored. */
static void on_control(struct world *x, const struct wire_control *c)
{
    struct fake_worker *w = find(x, c->to);
    assert_true(w->joined);
    if (lost(x, w, c->order << 1))
        return;
    bool cancel = c->what.n == 6, preempt = c->what.n == 7;
    if (!cancel && !preempt)
        return;
    assert_true(c->order <= w->last_order);
    for (int i = 0; i < N_ATTEMPT; i++)
        if (w->attempt[i].used && !w->attempt[i].unsent && w->attempt[i].order == c->order) {
            w->attempt[i].used = false;
            w->attempt[i].n_prompt = cancel ? 0 : 1; /* for the report in the next step */
            w->attempt[i].phase[0] = '!';
            return;
        }
}

static void emit(void *arg, const struct wire_frame *f)
{
    struct world *x = arg;
    struct fake_request *j;
    switch ((int)f->kind) {
    case WIRE_ORDER:
        on_order(x, &f->order);
        break;
    case WIRE_CONTROL:
        on_control(x, &f->control);
        break;
    case WIRE_REFUSE:
        if (!f->refuse.job)
            fail_msg("a worker was refused");
        j = &x->request[f->refuse.job];
        assert_true(j->submitted && !j->ended);
        j->ended = true;
        x->n_refused++;
        break;
    case WIRE_DONE:
        j = &x->request[f->done.job];
        assert_true(j->submitted);
        if (j->ended) /* only the response to a late copy */
            fail_msg("request %u ended twice", (unsigned)f->done.job);
        j->ended = true;
        j->reason = f->done.reason;
        if (f->done.reason == WIRE_CANCELLED)
            assert_true(j->cancel_sent);
        if (f->done.reason == WIRE_LENGTH)
            assert_int_equal(j->n_out, j->max_tokens);
        x->n_done++;
        break;
    case WIRE_ACK:
        x->request[f->ack.job].acked = true;
        break;
    }
}

/* ---- events ---- */

static void start(struct world *x)
{
    struct err e = {0};
    const struct sched_sink sink = {.emit = emit, .arg = x};
    if (sched_new(&e, &x->s, x->policy, &sink))
        fail_msg("%s", e.text);
    assert_int_equal(sched_set(&e, x->s, "retries", 1000), 0);
    assert_int_equal(sched_set(&e, x->s, "deaths", 1000), 0);
    x->submitted_here = 0;
}

static void join(struct world *x, struct fake_worker *w)
{
    static const char *const roles[] = {"prefill", "decode", "decode", "prefill", "both", "decode"};
    struct wire_run run[N_ATTEMPT];
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = wire_str_of(w->name),
                                .inc = w->inc,
                                .role = wire_str_of(roles[w - x->w]),
                                .store = wire_str_of("s"),
                                .compat = wire_str_of("m"),
                                .seqs = w->seqs,
                                .blocks = 4000,
                                .max_len = 100000,
                                .chunk = 512,
                                .pre_b = 1000,
                                .dec_a = 1e6f,
                                .run = run};
    for (int i = 0; i < N_ATTEMPT; i++) {
        const struct fake_attempt *r = &w->attempt[i];
        if (r->used)
            run[f.join.n_run++] = (struct wire_run){.gw = wire_str_of("gw"),
                                                    .job = r->job,
                                                    .order = r->order,
                                                    .attempt = r->attempt,
                                                    .phase = wire_str_of(r->phase),
                                                    .n_prompt = r->n_prompt,
                                                    .max_tokens = r->max_tokens,
                                                    .n_out = r->n_out};
    }
    w->joined = true;
    w->cut = false;
    w->n_order = 0;
    w->delayed = (struct wire_capacity){0};
    for (int i = 0; i < N_ATTEMPT; i++) /* a preempted or cancelled one is not in the list of the join */
        if (!w->attempt[i].used)
            w->attempt[i].phase[0] = 0;
    event(x, &f);
    for (int i = 0; i < N_ATTEMPT && !w->cut; i++)
        if (w->attempt[i].used && w->attempt[i].unsent) {
            w->attempt[i].used = false;
            report(x, w, &w->attempt[i], w->attempt[i].unsent, 0);
        }
}

/* Sends the capacity of an earlier step, as a real session delays it. */
static void capacity(struct world *x, struct fake_worker *w)
{
    struct wire_frame f = {.kind = WIRE_CAPACITY, .capacity = w->delayed};
    uint32_t n = used(w);
    w->delayed = (struct wire_capacity){.worker = wire_str_of(w->name),
                                        .inc = w->inc,
                                        .orders = w->n_order,
                                        .seqs = w->seqs > n ? w->seqs - n : 0,
                                        .tokens = 4096,
                                        .blocks = 4000 - 60 * n};
    if (f.capacity.worker.n)
        event(x, &f);
}

/* The session of a worker ends; the worker continues its work items. */
static void gone(struct world *x, struct fake_worker *w)
{
    struct wire_frame f = {.kind = WIRE_GONE};
    f.gone = (struct wire_gone){.worker = wire_str_of(w->name), .inc = w->inc};
    w->joined = false;
    event(x, &f);
}

static void die(struct world *x, struct fake_worker *w)
{
    memset(w->attempt, 0, sizeof w->attempt);
    w->up = w->stopped = false;
    gone(x, w);
}

/* The gateway accepts each position once. */
static void to_gateway(struct world *x, const struct fake_attempt *r)
{
    struct fake_request *j = &x->request[r->job];
    if (r->n_out == j->n_out + 1)
        j->n_out++;
    assert_true(r->n_out <= j->n_out || j->ended);
}

static void close_attempt(struct world *x, struct fake_worker *w, struct fake_attempt *r, const char *what,
                          uint32_t from)
{
    if (w->cut) {
        r->unsent = what;
        return;
    }
    r->used = false;
    report(x, w, r, what, from);
}

/* A worker computes also while its session is broken. */
static void step(struct world *x, struct fake_worker *w)
{
    for (int i = 0; i < N_ATTEMPT; i++) {
        struct fake_attempt *r = &w->attempt[i];
        if (!r->used && r->phase[0] == '!' && !w->cut) { /* responds to a control */
            r->phase[0] = 0;
            report(x, w, r, r->n_prompt ? "preempted" : "cancelled", 0);
            continue;
        }
        if (!r->used || r->unsent || draw(3))
            continue;
        uint32_t before = r->n_out;
        if (!draw(400)) { /* fails by itself */
            close_attempt(x, w, r, draw(2) ? "failed" : "preempted", before);
            continue;
        }
        r->n_out++;
        to_gateway(x, r);
        if (!r->prefilled && strcmp(r->phase, "prefill")) {
            r->prefilled = true;
            if (!w->cut)
                report(x, w, r, "prefilled", before);
        }
        bool all = r->n_out >= r->max_tokens, transfers = !strcmp(r->phase, "prefill");
        if (all || transfers)
            close_attempt(x, w, r, all ? "ended" : "prefilled", before);
        else if (!w->cut)
            report(x, w, r, "tokens", before);
    }
}

static void submit(struct world *x, uint64_t id, bool again)
{
    static const uint8_t digests[32 * 64];
    struct fake_request *j = &x->request[id];
    uint32_t out[64];
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of("gw"),
                                    .job = id,
                                    .n_prompt = j->n_prompt,
                                    .max_tokens = j->max_tokens,
                                    .priority = (int32_t)(id % 3),
                                    .body = {(const uint8_t *)"hello", 5},
                                    .digests = {digests, 32 * (j->n_prompt / 32 < 64 ? j->n_prompt / 32 : 64)},
                                    .again = again,
                                    .n_out = again ? j->n_out : 0,
                                    .out = out};
    for (uint32_t i = 0; i < f.submit.n_out; i++)
        out[f.submit.n_out_id++] = token(id, i);
    j->submitted = true;
    x->submitted_here++;
    event(x, &f);
}

static void add_stats(struct world *x)
{
    struct wire_stat st;
    sched_stat(x->s, &st);
    x->retried += st.retried;
    x->preempted += st.preempted;
    x->stale += st.stale;
}

static void restart(struct world *x)
{
    add_stats(x);
    x->restarts++;
    sched_free(x->s);
    start(x);
    for (int i = 0; i < N_WORKER; i++)
        x->w[i].joined = false;
    for (uint32_t i = 1; i <= x->n_request; i++)
        if (x->request[i].submitted && !x->request[i].ended)
            submit(x, i, true);
}

static void step_world(struct world *x, bool faults)
{
    x->now += draw(20) * MS;
    uint32_t what = draw(faults ? 1000 : 100);
    if (what < 140 && x->n_request + 1 < N_REQUEST && faults) {
        uint64_t id = ++x->n_request;
        x->request[id].n_prompt = 1 + draw(draw(20) ? 2000 : 200000);
        x->request[id].max_tokens = 1 + draw(30);
        submit(x, id, false);
    } else if (what < 160 && faults && x->n_request) {
        uint64_t id = x->n_request > 40 ? x->n_request - draw(40) : 1;
        struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of("gw"), .job = id}};
        x->request[id].cancel_sent = true;
        event(x, &f);
    } else if (what < 163 && faults) {
        struct fake_worker *w = &x->w[draw(N_WORKER)];
        if (w->up && w->joined)
            die(x, w);
    } else if (what < 166 && faults) {
        struct fake_worker *w = &x->w[draw(N_WORKER)];
        w->stopped = w->cut = true;
    } else if (what < 168 && faults && !draw(2)) {
        restart(x);
    } else if (what < 171 && faults) {
        struct wire_frame f = {.kind = WIRE_KNOB};
        struct fake_worker *w = &x->w[draw(N_WORKER)];
        f.knob = (struct wire_knob){.name = wire_str_of("hand_over"), .worker = wire_str_of(w->name), .value = 1};
        if (w->joined)
            event(x, &f);
    }
    for (int i = 0; i < N_WORKER; i++) {
        struct fake_worker *w = &x->w[i];
        if (!w->up && (!faults || !draw(20))) {
            w->up = true;
            w->stopped = false;
            w->inc++;
        }
        if (w->stopped && (!faults || !draw(200)))
            w->stopped = false;
        if (w->joined && w->cut && (!faults || !draw(3)))
            gone(x, w);
        if (!w->up || w->stopped)
            continue;
        if (!w->joined)
            join(x, w);
        else
            step(x, w);
        if (w->joined && !w->cut && draw(2))
            capacity(x, w);
    }
    decide(x);
}

static void run_world(const struct sched_policy *p, uint64_t from, uint32_t cuts, int steps)
{
    struct world *x = calloc(1, sizeof *x);
    struct wire_stat st;
    seed = from;
    x->policy = p;
    x->now = 1000 * MS;
    x->cuts = cuts;
    for (int i = 0; i < N_WORKER; i++) {
        x->w[i].name[0] = 'w';
        x->w[i].name[1] = (char)('0' + i);
        x->w[i].seqs = 4 + (uint32_t)i;
        x->w[i].inc = 1;
        x->w[i].up = true;
    }
    start(x);
    for (int i = 0; i < steps; i++)
        step_world(x, true);
    x->cuts = 0;
    for (int i = 0; i < 6000; i++)
        step_world(x, false);
    for (uint32_t i = 1; i <= x->n_request; i++) {
        if (!x->request[i].ended)
            fail_msg("request %u of %u never ended", i, x->n_request);
        if (x->request[i].reason == WIRE_ERROR)
            fail_msg("request %u failed", i);
    }
    sched_stat(x->s, &st);
    assert_int_equal(st.running, 0);
    assert_int_equal(st.waiting, 0);
    assert_int_equal(st.tombs, 0);
    assert_int_equal(st.submitted, x->submitted_here);
    add_stats(x); /* the faults above must have happened often enough */
    assert_true(x->n_done > 500 && x->n_refused > 0 && x->restarts > 5);
    assert_true(x->retried > 50 && x->preempted > 20 && x->stale > 50);
    sched_free(x->s);
    free(x);
}

static void counts_are_right_under_faults_kv(void **state)
{
    (void)state;
    run_world(&sched_policy_kv, 1, 0, 15000);
    run_world(&sched_policy_kv, 2, 7, 15000);
}

static void counts_are_right_under_faults_fcfs(void **state)
{
    (void)state;
    run_world(&sched_policy_fcfs, 3, 7, 15000);
}

static void counts_are_right_under_faults_colocate(void **state)
{
    (void)state;
    run_world(&sched_policy_colocate, 4, 7, 15000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_right_under_faults_kv),
        cmocka_unit_test(counts_are_right_under_faults_fcfs),
        cmocka_unit_test(counts_are_right_under_faults_colocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
