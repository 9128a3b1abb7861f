/*
 * The bytes of the bodies of a worker's work items stay below the setting worker_bytes, under every policy: the sum
 * here is recounted from the work items and the reports that end them.
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
#define JOBS 64
#define LIMIT 1000

struct world {
    struct sched *s;
    uint64_t now, n_order, bytes;
    struct wire_report end[JOBS]; /* of the running work items, by job */
    size_t n_body[JOBS];
};

static const struct sched_policy *const policies[] = {&sched_policy_kv, &sched_policy_fcfs, &sched_policy_colocate};
#define N_POLICY (sizeof policies / sizeof *policies)

static void emit(void *arg, const struct wire_frame *f)
{
    struct world *x = arg;
    if (f->kind != WIRE_ORDER)
        return;
    const struct wire_order *o = &f->order;
    assert_true(!x->bytes || x->bytes + o->body.n <= LIMIT);
    x->n_order++;
    x->bytes += o->body.n;
    x->n_body[o->job] = o->body.n;
    x->end[o->job] = (struct wire_report){.worker = wire_str_of("w"),
                                          .inc = 1,
                                          .gw = wire_str_of("g"),
                                          .job = o->job,
                                          .order = o->order,
                                          .attempt = o->attempt,
                                          .what = wire_str_of("ended"),
                                          .reason = WIRE_LENGTH};
}

static void event(struct world *x, struct wire_frame *f)
{
    struct err e = {0};
    f->tick.at_ns = x->now;
    if (sched_event(&e, x->s, f) || sched_check(&e, x->s))
        fail_msg("%s", e.text);
}

static void capacity(struct world *x)
{
    struct err e = {0};
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    x->now += 20 * MS;
    f.capacity = (struct wire_capacity){
        .worker = wire_str_of("w"), .inc = 1, .orders = x->n_order, .seqs = 16, .tokens = 4096, .blocks = 1000};
    event(x, &f);
    if (sched_decide(&e, x->s) || sched_check(&e, x->s))
        fail_msg("%s", e.text);
}

static void start(struct world *x, const struct sched_policy *policy)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_JOIN};
    *x = (struct world){.now = 1000 * MS};
    assert_int_equal(sched_new(&e, &x->s, policy, &(struct sched_sink){.emit = emit, .arg = x}), 0);
    assert_int_equal(sched_set(&e, x->s, "worker_bytes", LIMIT), 0);
    f.join = (struct wire_join){.worker = wire_str_of("w"),
                                .inc = 1,
                                .role = wire_str_of("both"),
                                .store = wire_str_of("s"),
                                .seqs = 16,
                                .blocks = 1000,
                                .max_len = 4096,
                                .chunk = 512};
    event(x, &f);
}

static void submit(struct world *x, uint64_t job, size_t n_body)
{
    static const uint8_t body[4 * LIMIT];
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){
        .gw = wire_str_of("g"), .job = job, .n_prompt = 100, .max_tokens = 10, .body = {body, n_body}};
    event(x, &f);
}

static void end(struct world *x, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_REPORT, .report = x->end[job]};
    assert_int_equal(f.report.job, job); /* it runs */
    x->bytes -= x->n_body[job];
    event(x, &f);
    capacity(x);
}

static void bodies_of_a_worker_have_a_limit(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_POLICY; i++) {
        struct world x;
        start(&x, policies[i]);
        for (uint64_t job = 1; job <= 7; job++)
            submit(&x, job, 300);
        capacity(&x);
        assert_int_equal(x.n_order, 3);
        for (uint64_t job = 1; job <= 7; job++)
            end(&x, job);
        assert_int_equal(x.n_order, 7);
        assert_int_equal(x.bytes, 0);
        sched_free(x.s);
    }
}

static void a_body_over_the_limit_runs_alone(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_POLICY; i++) {
        struct world x;
        start(&x, policies[i]);
        submit(&x, 1, 3 * LIMIT);
        submit(&x, 2, 10);
        capacity(&x);
        assert_int_equal(x.n_order, 1);
        end(&x, 1);
        assert_int_equal(x.n_order, 2);
        submit(&x, 3, 3 * LIMIT);
        capacity(&x);
        assert_int_equal(x.n_order, 2);
        end(&x, 2);
        assert_int_equal(x.n_order, 3);
        end(&x, 3);
        sched_free(x.s);
    }
}

/* The worker still has the body of a cancelled request, until it reports the end. */
static void a_cancelled_work_item_counts_until_the_worker_ends_it(void **state)
{
    (void)state;
    struct world x;
    start(&x, &sched_policy_kv);
    submit(&x, 1, 900);
    capacity(&x);
    submit(&x, 2, 900);
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of("g"), .job = 1}};
    event(&x, &f);
    capacity(&x);
    assert_int_equal(x.n_order, 1);
    x.end[1].what = wire_str_of("cancelled");
    end(&x, 1);
    assert_int_equal(x.n_order, 2);
    sched_free(x.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(bodies_of_a_worker_have_a_limit),
                                       cmocka_unit_test(a_body_over_the_limit_runs_alone),
                                       cmocka_unit_test(a_cancelled_work_item_counts_until_the_worker_ends_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
