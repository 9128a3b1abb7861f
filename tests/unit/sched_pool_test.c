/*
 * Requests that need more blocks than a pool has free: a request that waits for decode must not wait for blocks that it
 * holds itself, or that other waiting requests hold. The numbers are computed by hand, for a pool of 75 blocks of 32
 * tokens.
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
#define POOL 75

struct world {
    struct sched *s;
    uint64_t now;
    uint32_t n_order;
    struct wire_order last; /* without its strings */
    char phase[8];
    size_t n_handle;
    uint64_t n_release;
    uint8_t released; /* first byte of the newest released handle: its job */
};

static void emit(void *arg, const struct wire_frame *f)
{
    struct world *x = arg;
    if (f->kind == WIRE_DONE || (f->kind == WIRE_REFUSE && f->refuse.job))
        fail_msg("request %u ended", (unsigned)(f->kind == WIRE_DONE ? f->done.job : f->refuse.job));
    if (f->kind != WIRE_ORDER)
        return;
    x->n_order++;
    x->last = f->order;
    x->n_handle = f->order.handle.n;
    memset(x->phase, 0, sizeof x->phase);
    memcpy(x->phase, f->order.phase.p, f->order.phase.n);
}

static void release(void *arg, const char *store, struct wire_bytes handle)
{
    struct world *x = arg;
    assert_string_equal(store, "s");
    assert_int_equal(handle.n, 16);
    x->n_release++;
    x->released = handle.p[0];
}

static void event(struct world *x, struct wire_frame *f)
{
    struct err e = {0};
    f->tick.at_ns = x->now;
    if (sched_event(&e, x->s, f) || sched_decide(&e, x->s) || sched_check(&e, x->s))
        fail_msg("%s: %s", wire_kind_name(f->kind), e.text);
}

static void join(struct world *x, const char *name)
{
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = wire_str_of(name),
                                .inc = 1,
                                .role = wire_str_of(name),
                                .store = wire_str_of("s"),
                                .compat = wire_str_of("m"),
                                .seqs = 8,
                                .blocks = POOL,
                                .max_len = 2048,
                                .chunk = 512};
    event(x, &f);
}

static void capacity(struct world *x, const char *name, uint64_t orders, uint64_t blocks)
{
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){
        .worker = wire_str_of(name), .inc = 1, .orders = orders, .seqs = 8, .tokens = 4096, .blocks = blocks};
    event(x, &f);
}

static void submit(struct world *x, uint64_t job, uint32_t n_prompt, uint32_t max_tokens)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of("gw"),
                                    .job = job,
                                    .n_prompt = n_prompt,
                                    .max_tokens = max_tokens,
                                    .reply = wire_str_of("r"),
                                    .body = {(const uint8_t *)"b", 1}};
    event(x, &f);
}

/* Reports the end of a prefill, which must be the last work item. */
static void prefilled(struct world *x, uint64_t job, uint32_t n_prompt)
{
    static const uint32_t id = 7;
    uint8_t handle[16] = {(uint8_t)job, [8] = 1};
    struct wire_frame f = {.kind = WIRE_REPORT};
    assert_true(x->last.job == job && !strcmp(x->phase, "prefill"));
    f.report = (struct wire_report){.worker = wire_str_of("prefill"),
                                    .inc = 1,
                                    .gw = wire_str_of("gw"),
                                    .job = job,
                                    .order = x->last.order,
                                    .attempt = x->last.attempt,
                                    .what = wire_str_of("prefilled"),
                                    .n_done = n_prompt,
                                    .n_out = 1,
                                    .out = &id,
                                    .n_out_id = 1,
                                    .handle = {handle, sizeof handle},
                                    .store = wire_str_of("s")};
    event(x, &f);
}

static void start(struct world *x, const struct sched_policy *policy)
{
    struct err e = {0};
    const struct sched_sink sink = {.emit = emit, .arg = x, .release = release};
    *x = (struct world){.now = 1000 * MS};
    assert_int_equal(sched_new(&e, &x->s, policy, &sink), 0);
    join(x, "prefill");
    join(x, "decode");
}

/* 1,200 tokens are 38 blocks, and 69 with the answer of 1,000: the 31 more fit into the 37 that are free. */
static void more_than_half_of_the_pool(const struct sched_policy *policy)
{
    struct world x;
    start(&x, policy);
    capacity(&x, "prefill", 0, POOL);
    submit(&x, 1, 1200, 1000);
    assert_int_equal(x.n_order, 1);
    capacity(&x, "decode", 0, POOL - 38);
    prefilled(&x, 1, 1200);
    assert_int_equal(x.n_order, 2);
    assert_true(!strcmp(x.phase, "decode") && x.last.job == 1 && x.n_handle == 16);
    sched_free(x.s);
}

/* Two requests of 35 blocks leave 5, and each needs 12 more: the second releases its handle and is placed without. */
static void two_requests_that_block_each_other(const struct sched_policy *policy)
{
    struct world x;
    start(&x, policy);
    capacity(&x, "decode", 0, POOL);
    for (uint64_t job = 1; job <= 2; job++) {
        capacity(&x, "prefill", job - 1, POOL - 35 * (job - 1));
        submit(&x, job, 1100, 400);
        assert_int_equal(x.n_order, job);
        capacity(&x, "decode", 0, 5);
        prefilled(&x, job, 1100);
        assert_int_equal(x.n_order, job);
    }
    for (int i = 0; i < 4; i++) { /* only after a while */
        x.now += 250 * MS;
        capacity(&x, "prefill", 2, 5);
        capacity(&x, "decode", 0, 5);
        assert_int_equal(x.n_order, 2);
    }
    assert_true(x.n_release == 1 && x.released == 2);
    capacity(&x, "decode", 0, 40);
    assert_int_equal(x.n_order, 3);
    assert_true(!strcmp(x.phase, "decode") && x.last.job == 1 && x.n_handle == 16);
    capacity(&x, "decode", 1, 60);
    assert_int_equal(x.n_order, 4);
    assert_true(!strcmp(x.phase, "decode") && x.last.job == 2 && x.n_handle == 0);
    sched_free(x.s);
}

static void a_request_needs_no_blocks_beside_its_own(void **state)
{
    (void)state;
    more_than_half_of_the_pool(&sched_policy_kv);
    more_than_half_of_the_pool(&sched_policy_fcfs);
}

static void the_second_of_two_blocked_requests_releases_its_handle(void **state)
{
    (void)state;
    two_requests_that_block_each_other(&sched_policy_kv);
    two_requests_that_block_each_other(&sched_policy_fcfs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_request_needs_no_blocks_beside_its_own),
                                       cmocka_unit_test(the_second_of_two_blocked_requests_releases_its_handle)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
