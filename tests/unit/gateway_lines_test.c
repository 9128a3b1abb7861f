/* Lines that a gateway sends to tokenize: refused ones, restarts of tokenize, limits. */
#include "unit/gateway_fixture.h"

static void test_lines_that_tokenize_refuses(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = -1;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "no such field");
    assert_int_equal(number(nth(w->frames, "err", 0), "seq"), 1);
    w->n_choice = -2;
    OK(gateway_submit(&e, w->g, 2, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 1), "code"), ERR_PROTO);
    assert_string_equal(text(nth(w->frames, "err", 1), "id"), "req-2");
    OK(gateway_submit(&e, w->g, 3, none, NULL, (size_t)GATEWAY_LINE_BYTES_MAX + 1));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 2), "code"), ERR_NO);
    assert_int_equal(count(w->received, "submit"), 0);
    close_world(w);
}

/* The connection ends within a response: the line is sent again, and each choice is submitted once. */
static void test_a_line_is_sent_again_after_a_restart_of_tokenize(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    UNTIL(w->line);
    uint64_t first = w->line;
    send_prompt(w, w->line, 0, 2);
    pause_ms(w, 20);
    assert_int_equal(gateway_running(w->g), 1);
    assert_int_equal(w->n_parsed, 0);
    peer_close(&w->tokenize);
    w->n_choice = 2;
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    assert_string_equal(gateway_absent(w->g, &since), TOKENIZE_URL);
    peer_open(&w->tokenize, "tokenize", TOKENIZE_URL);
    UNTIL(count(w->received, "submit") == 2);
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "submit"), 2);
    assert_int_equal(w->n_asked, 2);
    assert_int_equal(w->n_parsed, 1);
    assert_true(w->line != first);
    assert_int_equal(gateway_running(w->g), 2);
    assert_int_equal(count(w->frames, "hello"), 1); /* the vocabulary is the same */
    close_world(w);
}

static void test_a_line_fails_after_five_lost_connections_to_tokenize(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    for (int i = 1; i <= 5; i++) {
        UNTIL(w->n_asked == i);
        assert_int_equal(gateway_running(w->g), 1);
        cut(w->tokenize.s);
        UNTIL(w->tokenize.n_up == i + 1);
    }
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(
        strstr(text(nth(w->frames, "err", 0), "text"), "the connection to tokenize broke 5 times before it responded"));
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_SYS);
    close_world(w);
}

/* At most 64 lines are in flight at tokenize, the others wait; some of those are cancelled. */
static void test_lines_in_flight_are_limited(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    for (uint64_t i = 0; i < 100; i++)
        OK(gateway_submit(&e, w->g, i, none, "{}", 2));
    UNTIL(w->n_asked == 64);
    pause_ms(w, 20);
    assert_int_equal(w->n_asked, 64);
    gateway_cancel(w->g, 3);
    gateway_cancel(w->g, 99);
    UNTIL(gateway_running(w->g) == 98);
    w->n_choice = 1;
    for (uint64_t i = 0; i < 64; i++)
        answer_line(w, i + 1);
    UNTIL(count(w->received, "submit") == 98);
    assert_int_equal(w->n_asked, 99);
    assert_int_equal(w->n_parsed, 98);
    close_world(w);
}

static int n_refused;

static void on_refused(void *arg, uint64_t seq, uint64_t retry_ns, bool ending)
{
    (void)arg;
    assert_int_equal(seq, 2);
    assert_true(retry_ns >= NS_MS && !ending);
    n_refused++;
}

/* The prompts of two requests exceed the limit: the second is refused for now, and what ends is no longer counted. */
static void test_the_bytes_of_prompts_have_a_limit(void **state)
{
    (void)state;
    struct world *w = open_world(&(struct gateway_opts){.bytes_max = 3 << 20, .refused = on_refused});
    w->n_body = 2 << 20;
    uint64_t job = submit(w, 1);
    assert_in_range(gateway_bytes(w->g), 2 << 20, (2 << 20) + 4096);
    OK(gateway_submit(&e, w->g, 2, none, "{}", 2));
    UNTIL(n_refused == 1 && gateway_running(w->g) == 1);
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "the limit is 3145728; retry later"));
    assert_in_range(gateway_bytes(w->g), 2 << 20, (2 << 20) + 4096);
    end(w, job, 0);
    UNTIL(!gateway_running(w->g));
    assert_int_equal(gateway_bytes(w->g), 0);
    w->n_body = 4 << 20; /* alone it is accepted */
    submit(w, 3);
    gateway_cancel(w->g, 3);
    UNTIL(!gateway_running(w->g));
    assert_int_equal(gateway_bytes(w->g), 0);
    assert_int_equal(n_refused, 1);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines_that_tokenize_refuses),
        cmocka_unit_test(test_a_line_is_sent_again_after_a_restart_of_tokenize),
        cmocka_unit_test(test_a_line_fails_after_five_lost_connections_to_tokenize),
        cmocka_unit_test(test_lines_in_flight_are_limited),
        cmocka_unit_test(test_the_bytes_of_prompts_have_a_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
