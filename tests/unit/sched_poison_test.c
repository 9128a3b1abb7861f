/*
 * Requests that make workers die: the guilty one fails by name when a second worker has died, and those that were on
 * the same worker by chance are answered. Workers here hold what they were sent; the test decides when one dies.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/time.h"
#include "sched/sched.h"
#include "unit/sched_check.h"

#define MS NS_MS
#define N_WORKER 3
#define N_JOB 32
#define SEQS 8
#define POISON 5

struct world {
    struct sched *s;
    uint64_t now, inc[N_WORKER], order[N_JOB], n_order[N_WORKER];
    int worker[N_JOB]; /* that has the job; -1: none */
    bool ended[N_JOB], failed[N_JOB];
    uint32_t deaths;
    char text[512];
};

static const char *const names[N_WORKER] = {"w0", "w1", "w2"};

static void emit(void *arg, const struct wire_frame *f)
{
    struct world *x = arg;
    if (f->kind == WIRE_DONE) {
        x->ended[f->done.job] = true;
        x->failed[f->done.job] = f->done.reason == WIRE_ERROR;
        if (f->done.reason == WIRE_ERROR)
            memcpy(x->text, f->done.text.p, f->done.text.n < 511 ? f->done.text.n : 511);
    } else if (f->kind == WIRE_ORDER) {
        int i = f->order.to.p[1] - '0';
        x->worker[f->order.job] = i;
        x->order[f->order.job] = f->order.order;
        x->n_order[i]++;
    }
}

static void event(struct world *x, struct wire_frame *f)
{
    struct err e = {0};
    f->tick.at_ns = x->now;
    if (sched_event(&e, x->s, f) || sched_decide(&e, x->s) || sched_check(&e, x->s))
        fail_msg("%s", e.text);
}

static void capacity(struct world *x, int i)
{
    uint32_t used = 0;
    for (int job = 1; job < N_JOB; job++)
        used += x->worker[job] == i;
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){.worker = wire_str_of(names[i]),
                                        .inc = x->inc[i],
                                        .orders = x->n_order[i],
                                        .seqs = SEQS - used,
                                        .tokens = 4096,
                                        .blocks = 1000};
    event(x, &f);
}

static void join(struct world *x, int i, uint64_t inc)
{
    struct wire_frame f = {.kind = WIRE_JOIN};
    x->inc[i] = inc;
    x->n_order[i] = 0;
    f.join = (struct wire_join){.worker = wire_str_of(names[i]),
                                .inc = inc,
                                .role = wire_str_of("both"),
                                .store = wire_str_of("s"),
                                .seqs = SEQS,
                                .blocks = 1000,
                                .max_len = 4096,
                                .chunk = 512};
    event(x, &f);
    capacity(x, i);
}

/* Its session ends, and all that it has is lost. */
static void lose(struct world *x, int i)
{
    struct wire_frame f = {.kind = WIRE_GONE, .gone = {.worker = wire_str_of(names[i]), .inc = x->inc[i]}};
    for (int job = 1; job < N_JOB; job++)
        if (x->worker[job] == i)
            x->worker[job] = -1;
    event(x, &f);
}

static void submit(struct world *x, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of("g"), .job = job, .n_prompt = 10, .max_tokens = 5};
    event(x, &f);
}

static void report(struct world *x, int job, const char *what, uint32_t n_out)
{
    static const uint32_t ids[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){.worker = wire_str_of(names[x->worker[job]]),
                                    .inc = x->inc[x->worker[job]],
                                    .gw = wire_str_of("g"),
                                    .job = (uint64_t)job,
                                    .order = x->order[job],
                                    .attempt = 1,
                                    .what = wire_str_of(what),
                                    .n_out = n_out,
                                    .out = ids,
                                    .n_out_id = n_out,
                                    .reason = strcmp(what, "ended") ? 0 : WIRE_LENGTH};
    event(x, &f);
}

static void start(struct world *x, const struct sched_policy *policy)
{
    struct err e;
    *x = (struct world){.now = 1000 * MS};
    memset(x->worker, -1, sizeof x->worker);
    assert_int_equal(sched_new(&e, &x->s, policy, &(struct sched_sink){.emit = emit, .arg = x}), 0);
    assert_int_equal(sched_set(&e, x->s, "retries", 100), 0);
    for (int i = 0; i < N_WORKER; i++)
        join(x, i, 100 + (uint64_t)i);
}

/* A worker with the poison dies; a worker without it ends one request. */
static void run(struct world *x)
{
    for (int turn = 0; turn < 400; turn++) {
        x->now += 20 * MS;
        for (int i = 0; i < N_WORKER; i++) {
            if (x->worker[POISON] == i) {
                lose(x, i);
                x->deaths++;
                join(x, i, x->now);
                continue;
            }
            for (int job = 1; job < N_JOB; job++)
                if (x->worker[job] == i) {
                    report(x, job, "ended", 5);
                    x->worker[job] = -1;
                    break;
                }
            capacity(x, i);
        }
    }
}

static void only_the_guilty_one_fails(const struct sched_policy *policy)
{
    struct world x;
    start(&x, policy);
    for (uint64_t job = 1; job < N_JOB; job++)
        submit(&x, job);
    run(&x);
    for (int job = 1; job < N_JOB; job++)
        if (!x.ended[job] || x.failed[job] != (job == POISON))
            fail_msg("request %d: ended %d, failed %d", job, x.ended[job], x.failed[job]);
    assert_int_equal(x.deaths, 2);
    assert_non_null(strstr(x.text, "job 5 of gateway g"));
    sched_free(x.s);
}

static void two_deaths_fail_the_guilty_request_alone(void **state)
{
    (void)state;
    only_the_guilty_one_fails(&sched_policy_kv);
    only_the_guilty_one_fails(&sched_policy_fcfs);
    only_the_guilty_one_fails(&sched_policy_colocate);
}

static int worker_of_job(const struct world *x, int job)
{
    assert_true(x->worker[job] >= 0);
    return x->worker[job];
}

static void a_request_with_tokens_is_no_suspect(void **state)
{
    struct world x;
    (void)state;
    start(&x, &sched_policy_colocate);
    submit(&x, 1);
    for (uint32_t n = 1; n <= 4; n++) { /* each attempt delivers a token before its worker dies */
        int i = worker_of_job(&x, 1);
        report(&x, 1, "tokens", n);
        lose(&x, i);
        x.now += 20 * MS;
        join(&x, i, x.now);
    }
    assert_false(x.ended[1]);
    sched_free(x.s);
}

static void a_broken_session_is_no_death(void **state)
{
    struct world x;
    (void)state;
    start(&x, &sched_policy_colocate);
    submit(&x, 1);
    for (int n = 0; n < 4; n++) {
        int i = worker_of_job(&x, 1);
        lose(&x, i);
        x.now += 20 * MS;
        join(&x, i, x.inc[i]); /* it had not died */
    }
    assert_false(x.ended[1]);
    sched_free(x.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(two_deaths_fail_the_guilty_request_alone),
                                       cmocka_unit_test(a_request_with_tokens_is_no_suspect),
                                       cmocka_unit_test(a_broken_session_is_no_death)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
