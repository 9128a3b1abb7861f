/*
 * The answers of a gateway: tokens, choices, ends, deadlines and cancels, with fake peers (gateway_fixture.h). The
 * expected output follows lib/gateway/gateway.h and docs/protocol.md.
 */
#include "unit/gateway_fixture.h"

static void test_an_answer_is_output_and_reported(void **state)
{
    (void)state;
    struct gateway_opts o = {.slo_ttft_ns = 123, .slo_tpot_ns = 45};
    struct world *w = open_world(&o);
    uint64_t job = submit(w, 900);
    const json_t *s = nth(w->received, "submit", 0);
    assert_int_equal(number(s, "n_prompt"), 3);
    assert_int_equal(number(s, "max_tokens"), 4);
    assert_int_equal(number(s, "priority"), 7);
    assert_int_equal(number(s, "slo_ttft_ns"), 123);
    assert_int_equal(number(s, "slo_tpot_ns"), 45);
    assert_false(json_is_true(json_object_get(s, "again")));
    assert_string_equal(text(s, "reply"), WORKERS_URL);
    /* The body as tokenize encoded it, and the digests. */
    assert_string_equal(text(s, "body"), "62626262626262626262626262626262");
    assert_int_equal(strncmp(text(s, "digests"), "6120646967657374206f6620746865", 30), 0);
    assert_int_equal(w->n_parsed, 1);

    ack(w, job);
    assert_int_equal(gateway_running(w->g), 1);
    token(w, job, 0, 50, "a");
    UNTIL(count(w->received, "report") == 1); /* the first token is reported at once */
    const json_t *r = nth(w->received, "report", 0);
    assert_string_equal(text(r, "what"), "tokens");
    assert_string_equal(text(r, "worker"), "");
    assert_int_equal(number(r, "n_out"), 1);
    assert_string_equal(list(r, "out"), "50");
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    pause_ms(w, 50);
    assert_int_equal(count(w->received, "report"), 1); /* later ones are collected … */
    UNTIL(count(w->received, "report") == 2);          /* … for a second */
    r = nth(w->received, "report", 1);
    assert_int_equal(number(r, "n_out"), 3);
    assert_string_equal(list(r, "out"), "51 52");
    end(w, job, 3);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(count(w->frames, "hello"), 1);
    assert_int_equal(count(w->frames, "out"), 3);
    const json_t *x = nth(w->frames, "end", 0);
    assert_int_equal(number(x, "seq"), 900);
    assert_string_equal(text(x, "reason"), "stop");
    assert_int_equal(number(x, "cached_tokens"), 2);
    assert_int_equal(number(nth(w->frames, "out", 2), "seq"), 900);
    done(w, job, WIRE_STOP, 0, ""); /* a late copy has no effect */
    pause_ms(w, 30);
    assert_int_equal(json_array_size(w->frames), 5);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

static void test_choices_are_jobs_of_their_own(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 2;
    uint64_t a = submit(w, 1);
    UNTIL(count(w->received, "submit") == 2);
    uint64_t b = number(nth(w->received, "submit", 1), "job");
    assert_true(a != b);
    assert_int_equal(gateway_running(w->g), 2);
    token(w, b, 0, 9, "B");
    token(w, a, 0, 8, "A");
    end(w, b, 1);
    assert_int_equal(gateway_running(w->g), 1);
    end(w, a, 1);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "out", 0), "index"), 1);
    assert_int_equal(number(nth(w->frames, "out", 1), "index"), 0);
    assert_int_equal(number(nth(w->frames, "end", 1), "seq"), 1);
    close_world(w);
}

static void test_repeated_tokens_are_output_once(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    const uint32_t two[] = {50, 51};
    token(w, job, 0, 50, "a");
    token(w, job, 0, 50, "a");
    token(w, job, 1, 51, "b");
    struct wire_frame f = out_of(job, 0, two, 2, "ab");
    send_worker(w, &f);
    token(w, job, 2, 52, "c");
    assert_int_equal(count(w->frames, "out"), 3);
    /* The prompt of an echo is output once, too. */
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f);
    assert_int_equal(count(w->frames, "out"), 3);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);

    w = open_world(NULL);
    job = submit(w, 1);
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f);
    send_worker(w, &f);
    assert_int_equal(count(w->frames, "out"), 1);
    close_world(w);
}

/* A gap, different tokens, or a frame with known and new ones: the job is cancelled and the answer continues as a new
 * job. */
static void test_a_job_with_wrong_tokens_is_replaced(void **state)
{
    (void)state;
    const uint32_t ids[] = {51, 52};
    for (int k = 0; k < 4; k++) {
        struct world *w = open_world(NULL);
        uint64_t job = submit(w, 1);
        token(w, job, 0, 50, "a");
        token(w, job, 1, 51, "b");
        struct wire_frame f = out_of(job, k == 0 ? 3 : 1, ids, 2, "x");
        if (k == 1)
            f.out.n_id = 2;
        uint32_t other = 99;
        if (k == 2)
            f = out_of(job, 1, &other, 1, "x");
        if (k == 3) {
            f = (struct wire_frame){.kind = WIRE_END};
            f.end =
                (struct wire_end){.seq = job, .id = wire_str_of("mine"), .reason = WIRE_STOP, .completion_tokens = 3};
        }
        send_worker(w, &f);
        UNTIL(count(w->received, "submit") == 2 && count(w->received, "cancel") == 1);
        const json_t *s = nth(w->received, "submit", 1);
        assert_int_equal(number(nth(w->received, "cancel", 0), "job"), job);
        assert_true(number(s, "job") != job);
        assert_int_equal(number(s, "n_out"), 2);
        assert_string_equal(list(s, "out"), "50 51");
        assert_false(json_is_true(json_object_get(s, "again")));
        assert_int_equal(json_array_size(w->log), 1);
        token(w, job, 2, 77, "old");
        token(w, number(s, "job"), 2, 52, "c");
        end(w, number(s, "job"), 3);
        UNTIL(gateway_running(w->g) == 0);
        assert_int_equal(count(w->frames, "out"), 3);
        assert_string_equal(text(nth(w->frames, "out", 2), "text"), "c");
        assert_int_equal(count(w->received, "cancel"), 1);
        close_world(w);
    }
}

static void test_a_request_fails_after_six_cancelled_jobs(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    for (size_t i = 1; i <= 5; i++) {
        done(w, job, WIRE_CANCELLED, 0, "gone");
        UNTIL(count(w->received, "submit") == i + 1);
        job = number(nth(w->received, "submit", i), "job");
    }
    done(w, job, WIRE_CANCELLED, 0, "gone");
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "given up"));
    assert_string_equal(text(nth(w->frames, "err", 0), "id"), "mine");
    close_world(w);
}

static void test_done_ends_an_answer_without_end_frame(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    done(w, job, WIRE_ERROR, ERR_NO, "another vocabulary");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "another vocabulary");

    job = submit(w, 2); /* the worker died between the last token and the end */
    for (uint32_t i = 0; i < 4; i++)
        token(w, job, i, 50 + i, "a");
    done(w, job, WIRE_LENGTH, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "end", 0), "reason"), "length");
    assert_int_equal(number(nth(w->frames, "end", 0), "completion_tokens"), 4);
    assert_int_equal(number(nth(w->frames, "end", 0), "prompt_tokens"), 3);

    job = submit(w, 3);
    done(w, job, WIRE_STOP, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 1), "code"), ERR_SYS);
    assert_int_equal(count(w->received, "submit"), 3);
    close_world(w);
}

static void test_cancel_ends_an_answer_at_any_stage(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 5);
    token(w, job, 0, 50, "a");
    gateway_cancel(w->g, 5);
    gateway_cancel(w->g, 6); /* unknown */
    UNTIL(gateway_running(w->g) == 0);
    const json_t *x = nth(w->frames, "end", 0);
    assert_string_equal(text(x, "reason"), "cancelled");
    assert_int_equal(number(x, "completion_tokens"), 1);
    assert_int_equal(number(x, "seq"), 5);
    UNTIL(count(w->received, "cancel") == 1);
    assert_int_equal(number(nth(w->received, "cancel", 0), "job"), job);
    token(w, job, 1, 51, "b");
    assert_int_equal(count(w->frames, "out"), 1);

    w->n_choice = 0; /* before tokenize has answered */
    const char *line = "{\"prompt\":\"x\",\"id\":\"its own\"}";
    OK(gateway_submit(&e, w->g, 7, (struct wire_str){"its own", 7}, line, strlen(line)));
    w->line = 0;
    UNTIL(w->line);
    gateway_cancel(w->g, 7);
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "end", 1), "id"), "its own");
    w->n_choice = 1;
    answer_line(w, w->line);
    pause_ms(w, 50);
    assert_int_equal(count(w->received, "submit"), 1);
    assert_int_equal(json_array_size(w->frames), 4); /* hello, out, end, end */
    close_world(w);
}

static void test_a_request_fails_at_its_deadline(void **state)
{
    (void)state;
    struct gateway_opts o = {.deadline_ns = 300000000};
    struct world *w = open_world(&o);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, (struct wire_str){"slow", 4}, "{\"prompt\":1,\"id\":\"slow\"}", 24));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "err", 0), "id"), "slow");
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "deadline of 0.3 s"));
    w->n_choice = 1;
    uint64_t job = submit(w, 2);
    assert_in_range(number(nth(w->received, "submit", 0), "deadline_ns"), 1, 300000000);
    refuse(w, job, false, 50000000);
    UNTIL(count(w->received, "submit") == 2); /* until the deadline, without patience */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 1), "text"), "deadline"));
    UNTIL(count(w->received, "cancel") == 1);
    close_world(w);
}

/* Tokens after the end of an answer: a worker still runs the job. */
static void test_a_job_with_tokens_after_its_end_is_cancelled(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    token(w, job, 0, 50, "a");
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    token(w, job, 0, 50, "a"); /* a copy of a known token does not cancel */
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "cancel"), 0);
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    UNTIL(count(w->received, "cancel") == 1);
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "cancel"), 1);
    close_world(w);
}

static void test_invalid_frames_of_workers_are_logged_at_a_limited_rate(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    token(w, job, 0, 50, "a");
    static const uint8_t bad[][8] = {{0xce, 0, 0, 0, 3, 0xff, 0xff, 0xff},
                                     {0xce, 0, 0, 0, 3, 0x81, 0xa1, 'k'},
                                     {0xce, 0, 0, 0, 3, 0x80, 0x80, 0x80}};
    for (size_t i = 0; i < 3; i++) {
        OK(session_send_bytes(&e, w->worker.s, bad[i], sizeof bad[i]));
        UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
    }
    struct wire_frame f = {.kind = WIRE_TICK};
    send_worker(w, &f);
    assert_int_equal(json_array_size(w->log), 4);
    for (int i = 0; i < 200; i++) /* ten lines a second; a slow machine takes three seconds */
        OK(session_send_bytes(&e, w->worker.s, bad[0], sizeof bad[0]));
    UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
    assert_in_range(json_array_size(w->log), 10, 33);
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_is_output_and_reported),
        cmocka_unit_test(test_choices_are_jobs_of_their_own),
        cmocka_unit_test(test_repeated_tokens_are_output_once),
        cmocka_unit_test(test_a_job_with_wrong_tokens_is_replaced),
        cmocka_unit_test(test_a_request_fails_after_six_cancelled_jobs),
        cmocka_unit_test(test_done_ends_an_answer_without_end_frame),
        cmocka_unit_test(test_cancel_ends_an_answer_at_any_stage),
        cmocka_unit_test(test_a_request_fails_at_its_deadline),
        cmocka_unit_test(test_a_job_with_tokens_after_its_end_is_cancelled),
        cmocka_unit_test(test_invalid_frames_of_workers_are_logged_at_a_limited_rate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
