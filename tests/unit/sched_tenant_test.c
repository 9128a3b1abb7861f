/*
 * Fair queueing of tenants, under every policy: one worker that takes a request at a time, so the order of the work
 * items is the order of the queue. Expected orders are computed by hand from equal costs.
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
#define JOBS 512

struct world {
    struct sched *s;
    uint64_t now, n_order, order[JOBS], job[JOBS]; /* job: in the order of the work items */
    uint32_t n_refused;
    char text[512];
};

static const struct sched_policy *const policies[] = {&sched_policy_kv, &sched_policy_fcfs, &sched_policy_colocate};
#define N_POLICY (sizeof policies / sizeof *policies)

static void emit(void *arg, const struct wire_frame *f)
{
    struct world *x = arg;
    if (f->kind == WIRE_REFUSE) {
        assert_false(f->refuse.never || f->refuse.ending);
        assert_true(f->refuse.retry_ns > 0);
        memcpy(x->text, f->refuse.text.p, f->refuse.text.n < 511 ? f->refuse.text.n : 511);
        x->n_refused++;
    } else if (f->kind == WIRE_ORDER) {
        x->job[x->n_order] = f->order.job;
        x->order[x->n_order++] = f->order.order;
    }
}

static void event(struct world *x, struct wire_frame *f)
{
    struct err e = {0};
    f->tick.at_ns = x->now;
    if (sched_event(&e, x->s, f) || sched_check(&e, x->s))
        fail_msg("%s", e.text);
}

static void decide(struct world *x)
{
    struct err e = {0};
    if (sched_decide(&e, x->s) || sched_check(&e, x->s))
        fail_msg("%s", e.text);
}

static void start(struct world *x, const struct sched_policy *policy)
{
    struct err e;
    *x = (struct world){.now = 1000 * MS};
    assert_int_equal(sched_new(&e, &x->s, policy, &(struct sched_sink){.emit = emit, .arg = x}), 0);
}

static void join(struct world *x)
{
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = wire_str_of("w"),
                                .inc = 1,
                                .role = wire_str_of("both"),
                                .store = wire_str_of("s"),
                                .seqs = 1,
                                .blocks = 1000,
                                .max_len = 4096,
                                .chunk = 512};
    event(x, &f);
}

/* Its free capacity: one request. */
static void capacity(struct world *x)
{
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){
        .worker = wire_str_of("w"), .inc = 1, .orders = x->n_order, .seqs = 1, .tokens = 4096, .blocks = 1000};
    event(x, &f);
    decide(x);
}

static void submit(struct world *x, const char *tenant, uint64_t job, uint32_t n_prompt)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){
        .gw = wire_str_of("g"), .job = job, .n_prompt = n_prompt, .max_tokens = 10, .tenant = wire_str_of(tenant)};
    event(x, &f);
}

/* The running request ends, and the next one is placed. */
static void next(struct world *x)
{
    struct wire_frame f = {.kind = WIRE_REPORT};
    x->now += 20 * MS;
    f.report = (struct wire_report){.worker = wire_str_of("w"),
                                    .inc = 1,
                                    .gw = wire_str_of("g"),
                                    .job = x->job[x->n_order - 1],
                                    .order = x->order[x->n_order - 1],
                                    .attempt = 1,
                                    .what = wire_str_of("ended"),
                                    .reason = WIRE_LENGTH};
    event(x, &f);
    capacity(x);
}

static void cancel(struct world *x, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of("g"), .job = job}};
    event(x, &f);
}

static void a_lone_request_is_next_beside_a_flood(void **state)
{
    (void)state;
    for (size_t p = 0; p < N_POLICY; p++) {
        struct world x;
        start(&x, policies[p]);
        join(&x);
        for (uint64_t job = 1; job <= 96; job++)
            submit(&x, "flood", job, 100);
        capacity(&x);
        for (int i = 0; i < 5; i++)
            next(&x);
        assert_int_equal(x.n_order, 6);
        submit(&x, "lone", 200, 100);
        next(&x);
        next(&x);
        assert_true(x.job[6] == 200 || x.job[7] == 200);
        sched_free(x.s);
    }
}

/* With equal costs a tenant of weight 3 has three of four work items. */
static void weights_share_the_workers(void **state)
{
    (void)state;
    for (size_t p = 0; p < N_POLICY; p++) {
        struct world x;
        struct err e;
        uint32_t heavy = 0;
        start(&x, policies[p]);
        assert_int_equal(sched_set(&e, x.s, "weight:heavy", 3), 0);
        join(&x);
        for (uint64_t i = 1; i <= 60; i++) {
            submit(&x, "light", i, 100);
            submit(&x, "heavy", 100 + i, 100);
        }
        capacity(&x);
        while (x.n_order < 40)
            next(&x);
        for (uint64_t i = 0; i < 40; i++)
            heavy += x.job[i] > 100;
        assert_in_range(heavy, 29, 31);
        assert_int_equal(sched_set(&e, x.s, "weight:heavy", 0), ERR_USAGE);
        sched_free(x.s);
    }
}

/* A tenant that has cancelled all of its requests is treated as one that never had any. */
static void cancelled_requests_cost_nothing(void **state)
{
    (void)state;
    struct world x;
    start(&x, &sched_policy_fcfs);
    join(&x);
    submit(&x, "other", 400, 100);
    capacity(&x);
    for (uint64_t job = 1; job <= 96; job++)
        submit(&x, "cancels", job, 100);
    for (uint64_t job = 1; job <= 96; job++)
        cancel(&x, job);
    submit(&x, "cancels", 200, 100);
    for (uint64_t job = 300; job < 310; job++)
        submit(&x, "other", job, 100);
    next(&x);
    next(&x);
    assert_true(x.job[1] == 200 || x.job[2] == 200);
    sched_free(x.s);
}

static void a_tenant_has_a_share_of_the_queue(void **state)
{
    (void)state;
    struct world x;
    struct err e;
    start(&x, &sched_policy_fcfs);
    assert_int_equal(sched_set(&e, x.s, "queue_max", 20), 0); /* tenant_share 0.5 */
    join(&x);
    for (uint64_t job = 1; job <= 12; job++)
        submit(&x, "flood", job, 100);
    assert_int_equal(x.n_refused, 2);
    assert_non_null(strstr(x.text, "too many requests of this client wait: 10, the limit is 10"));
    submit(&x, "lone", 100, 100);
    assert_int_equal(x.n_refused, 2);
    sched_free(x.s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lone_request_is_next_beside_a_flood), cmocka_unit_test(weights_share_the_workers),
        cmocka_unit_test(cancelled_requests_cost_nothing), cmocka_unit_test(a_tenant_has_a_share_of_the_queue)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
