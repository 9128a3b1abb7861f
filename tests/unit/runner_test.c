/*
 * The main loop of prefill and decode, with the fake engine, and a source and sink in this test: the rows of each step,
 * their order, and the use of the results.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "phase/runner.h"

#define ROWS 64 /* of a step */
#define LOG 8192

static struct {
    struct runner r; /* first */
    struct request *arrivals[8];
    int64_t arrival[8]; /* iteration in which it arrives */
    int n_arrivals;
    int64_t turn, n_step;
    int64_t slots;    /* limit of ids with slots in a step */
    uint64_t refused; /* seq of a request without slots before iteration granted_at; UINT64_MAX: none */
    int64_t granted_at;
    int64_t invalid;     /* the step whose results are dropped; 0: none */
    uint32_t invalid_id; /* the token that was dropped */
    char steps[LOG];     /* "seq:rows seq:rows, " of each step */
    char log[LOG];       /* "out 0, end 0, " in the order of the calls */
    uint32_t ids[8][64]; /* tokens by request */
    int n_ids[8];
} t;

static struct phase_opts opts;

static void add(char *to, const char *fmt, ...)
{
    va_list ap;
    size_t n = strlen(to);
    va_start(ap, fmt);
    vsnprintf(to + n, LOG - n, fmt, ap);
    va_end(ap);
}

/* ---- the source and the sink ---- */

static int take(struct err *e, struct runner *r, bool idle, bool *over)
{
    int rc = 0;
    bool left = false;
    (void)idle;
    assert_true(++t.turn < 1000);
    for (int i = 0; i < t.n_arrivals && !rc; i++) {
        left |= t.arrivals[i] && t.arrival[i] > t.turn;
        if (!t.arrivals[i] || t.arrival[i] > t.turn)
            continue;
        struct request *q = t.arrivals[i];
        t.arrivals[i] = NULL;
        rc = runner_add(e, r, q);
    }
    for (struct request *q = r->head; q; q = q->next)
        if (q->state == REQUEST_WAITS)
            q->state = REQUEST_RUNS;
    *over = !left && !r->head;
    return rc;
}

static void release(struct runner *r, struct request *q)
{
    add(t.log, "release %d, ", (int)q->r->seq);
    request_free(q, r->s.pool);
}

static int slots(struct err *e, struct runner *r, struct request *q, int64_t *rows)
{
    if (t.refused == q->r->seq && t.turn < t.granted_at)
        *rows = 0;
    *rows = *rows < t.slots ? *rows : t.slots;
    return kv_table_grow(e, &q->kv, r->s.pool, (q->n_kv + *rows + 31) / 32);
}

static bool valid(struct runner *r, struct request *q)
{
    (void)r;
    if (t.n_step != t.invalid)
        return true;
    t.invalid_id = q->token.id;
    q->state = REQUEST_WAITS;
    q->n_kv = 0;
    return false;
}

static void computed(struct runner *r, uint64_t ns)
{
    (void)ns;
    t.n_step++;
    for (int64_t i = 0; i < r->s.batch->n; i++)
        add(t.steps, "%d:%d ", (int)r->s.batch->q[i]->r->seq, (int)r->s.batch->chunk[i].n);
    add(t.steps, "| ");
}

static int out(struct err *e, struct runner *r, struct request *q, struct wire_frame *f)
{
    int seq = (int)q->r->seq;
    (void)e, (void)r;
    assert_int_equal(f->kind, WIRE_OUT);
    if (f->out.prompt)
        add(t.log, "prompt %d, ", seq);
    else
        t.ids[seq][t.n_ids[seq]++] = f->out.ids[0];
    return 0;
}

static int end(struct err *e, struct runner *r, struct request *q, struct wire_frame *f)
{
    (void)e, (void)r;
    assert_int_equal(f->kind, WIRE_END);
    assert_int_equal(f->end.completion_tokens, t.n_ids[q->r->seq]);
    add(t.log, "end %d, ", (int)q->r->seq);
    return 0;
}

static int fails(struct err *e, struct runner *r, struct request *q)
{
    (void)e, (void)r;
    assert_int_not_equal(q->err.code, 0);
    add(t.log, "fail %d, ", (int)q->r->seq);
    return 0;
}

static int transfer_out(struct err *e, struct runner *r, struct request *q)
{
    (void)e, (void)r;
    add(t.log, "transfer %d%s, ", (int)q->r->seq, q->max_new ? " with a token" : "");
    return 0;
}

static const struct runner_io answers = {.take = take,
                                         .release = release,
                                         .slots = slots,
                                         .valid = valid,
                                         .computed = computed,
                                         .out = out,
                                         .end = end,
                                         .fail = fails,
                                         .transfer_out = transfer_out};
static const struct runner_io prompts = {.take = take,
                                         .release = release,
                                         .slots = slots,
                                         .computed = computed,
                                         .fail = fails,
                                         .transfer_out = transfer_out};

/* ---- fixture ---- */

static int set_up(void **state)
{
    struct err e = {0};
    (void)state;
    memset(&t, 0, sizeof t);
    t.slots = INT64_MAX;
    t.refused = UINT64_MAX;
    t.r.io = &answers;
    opts = (struct phase_opts){.prog = "test",
                               .model = getenv("PHASEPIPE_TEST_MODEL"),
                               .kv_type = "auto",
                               .threads = 1,
                               .batched_tokens = ROWS,
                               .kv_bytes = 1 << 20,
                               .fd_out = 1,
                               .engine = "fake:0,0,0,0,0,0"};
    if (stage_open(&e, &t.r.s, &opts) || stage_engine(&e, &t.r.s, t.r.s.kv))
        fail_msg("%s", e.text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    stage_close(&t.r.s);
    return 0;
}

/* Adds a request that arrives in the given iteration, counted from 1. */
static struct request *add_at(int64_t turn, uint32_t n_id, uint32_t max_tokens)
{
    struct err e;
    static uint32_t ids[512];
    struct request *q;
    struct wire_req r = {.seq = (uint64_t)t.n_arrivals, .ids = ids, .n_id = n_id};
    for (uint32_t i = 0; i < 512; i++)
        ids[i] = 100 + i;
    wire_sampling_default(&r.s);
    r.s.max_tokens = max_tokens;
    assert_int_equal(request_new(&e, &q, sizeof *q, &t.r.s, &r), 0);
    q->state = REQUEST_RUNS;
    t.arrivals[t.n_arrivals] = q;
    t.arrival[t.n_arrivals++] = turn;
    return q;
}

static void runs(void)
{
    struct err e = {0};
    if (runner_run(&e, &t.r))
        fail_msg("%s", e.text);
    assert_int_equal(t.r.n, 0);
    assert_null(t.r.head);
    assert_int_equal(kv_pool_idle(t.r.s.pool), kv_pool_slots(t.r.s.pool));
}

/* ---- what a step computes ---- */

static void decodes_before_it_prefills(void **state)
{
    (void)state;
    add_at(1, 10, 5);
    add_at(2, 100, 2);
    add_at(2, 20, 1);
    runs();
    assert_string_equal(t.steps, "0:10 | 0:1 1:63 | 0:1 1:37 2:20 | 0:1 1:1 | 0:1 | ");
    assert_string_equal(t.log, "end 2, release 2, end 1, release 1, end 0, release 0, ");
}

static void chunk_limits_only_prompts_that_are_decoded_here(void **state)
{
    (void)state;
    add_at(1, 10, 4)->chunk = 16;
    add_at(1, 30, 1)->chunk = 16;
    struct request *q = add_at(1, 20, 4);
    q->chunk = 16;
    q->transfers_out = true;
    runs();
    assert_string_equal(t.steps, "0:10 1:6 2:20 | 0:1 1:16 | 0:1 1:8 | 0:1 | ");
    assert_int_equal(t.n_ids[2], 1);
    assert_non_null(strstr(t.log, "transfer 2 with a token, release 2, "));
}

static void lower_priority_numbers_run_first(void **state)
{
    (void)state;
    add_at(1, 40, 1)->priority = 1;
    add_at(1, 40, 1)->priority = -1;
    add_at(1, 40, 1)->priority = -1;
    runs();
    assert_string_equal(t.steps, "1:40 2:24 | 2:16 0:40 | ");
}

static void computes_only_rows_with_slots(void **state)
{
    (void)state;
    t.slots = 8;
    t.refused = 1;
    t.granted_at = 4;
    add_at(1, 20, 1);
    add_at(1, 5, 1);
    runs();
    assert_string_equal(t.steps, "0:8 | 0:8 | 0:4 | 1:5 | ");
}

/* ---- results ---- */

static void drops_results_if_the_kv_was_lost(void **state)
{
    (void)state;
    t.invalid = 1;
    add_at(1, 10, 3);
    runs();
    assert_string_equal(t.steps, "0:10 | 0:10 | 0:1 | 0:1 | ");
    assert_int_equal(t.n_ids[0], 3);
    assert_int_equal(t.ids[0][0], t.invalid_id);
}

static void an_answer_continues_after_the_tokens_it_has(void **state)
{
    const char *text;
    enum answer_end e_end = ANSWER_OPEN;
    size_t n_text;
    struct err e;
    (void)state;
    add_at(1, 10, 6);
    runs();
    uint32_t first[6];
    memcpy(first, t.ids[0], sizeof first);
    t.turn = t.n_ids[0] = t.n_arrivals = 0;
    t.steps[0] = 0;
    struct request *q = add_at(1, 10, 6);
    for (int i = 0; i < 3; i++)
        assert_int_equal(request_push(&e, q, first[i], &text, &n_text, &e_end), 0);
    t.n_ids[0] = 3;
    runs();
    assert_string_equal(t.steps, "0:13 | 0:1 | 0:1 | ");
    assert_memory_equal(t.ids[0] + 3, first + 3, 3 * sizeof *first);
}

static void outputs_the_prompt_once_and_first(void **state)
{
    struct request *q;
    (void)state;
    q = add_at(1, 10, 2);
    q->copy->s.echo = true;
    q = add_at(1, 70, 0);
    q->copy->s.echo = true;
    add_at(1, 5, 0);
    runs();
    assert_string_equal(t.log, "prompt 0, end 0, prompt 1, end 1, end 2, release 0, release 1, release 2, ");
    assert_int_equal(t.n_ids[0], 2);
}

static void does_not_compute_a_failed_request(void **state)
{
    (void)state;
    add_at(1, 0, 4);
    add_at(1, 10, 1);
    runs();
    assert_string_equal(t.steps, "1:10 | ");
    assert_string_equal(t.log, "fail 0, release 0, end 1, release 1, ");
}

static void outputs_a_transferred_first_token_at_once(void **state)
{
    (void)state;
    struct request *q = add_at(1, 10, 1);
    q->token = (struct sample_result){.id = 300};
    q->has_token = true;
    q->taken_ns = 1;
    add_at(1, 10, 0)->taken_ns = 1;
    runs();
    assert_string_equal(t.steps, "");
    assert_string_equal(t.log, "end 0, end 1, release 0, release 1, ");
    assert_int_equal(t.ids[0][0], 300);
}

static void transfers_every_prompt_without_a_sink(void **state)
{
    (void)state;
    t.r.io = &prompts;
    add_at(1, 100, 5);
    add_at(1, 10, 0);
    runs();
    assert_string_equal(t.steps, "0:64 | 0:36 1:10 | ");
    assert_string_equal(t.log, "transfer 0 with a token, transfer 1, release 0, release 1, ");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(decodes_before_it_prefills, set_up, tear_down),
        cmocka_unit_test_setup_teardown(chunk_limits_only_prompts_that_are_decoded_here, set_up, tear_down),
        cmocka_unit_test_setup_teardown(lower_priority_numbers_run_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(computes_only_rows_with_slots, set_up, tear_down),
        cmocka_unit_test_setup_teardown(drops_results_if_the_kv_was_lost, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_answer_continues_after_the_tokens_it_has, set_up, tear_down),
        cmocka_unit_test_setup_teardown(outputs_the_prompt_once_and_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(does_not_compute_a_failed_request, set_up, tear_down),
        cmocka_unit_test_setup_teardown(outputs_a_transferred_first_token_at_once, set_up, tear_down),
        cmocka_unit_test_setup_teardown(transfers_every_prompt_without_a_sink, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
