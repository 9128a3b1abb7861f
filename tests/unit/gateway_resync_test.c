/* What a gateway submits again: after a restart of the scheduler, a broken connection, a refusal, a full session. */
#include "unit/gateway_fixture.h"

static void test_requests_are_submitted_again_after_a_restart_of_the_scheduler(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    ack(w, job);
    token(w, job, 0, 50, "a");
    peer_close(&w->sched);
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    assert_string_equal(gateway_absent(w->g, &since), SCHED_URL);
    token(w, job, 1, 51, "b"); /* workers continue meanwhile */
    peer_open(&w->sched, "sched", SCHED_URL);
    UNTIL(count(w->received, "submit") == 2);
    const json_t *s = nth(w->received, "submit", 1);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_int_equal(number(s, "job"), job);
    assert_int_equal(number(s, "attempt"), 1);
    assert_string_equal(list(s, "out"), "50 51");
    assert_null(gateway_absent(w->g, &since));
    end(w, job, 2);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

static void test_each_scheduler_gets_the_weights_of_tenants(void **state)
{
    (void)state;
    const char *setting = wire_kind_name(WIRE_KNOB);
    struct world *w = open_world(NULL);
    OK(gateway_set_weight(&e, w->g, "alice", 2.5f));
    OK(gateway_set_weight(&e, w->g, "bob", 3));
    OK(gateway_set_weight(&e, w->g, "bob", 0.5f));
    UNTIL(count(w->received, setting) == 3);
    assert_string_equal(text(nth(w->received, setting, 0), "name"), "weight:alice");
    assert_true(json_number_value(json_object_get(nth(w->received, setting, 0), "value")) == 2.5);
    send_to(w->sched.s,
            &(struct wire_frame){.kind = WIRE_KNOB, .knob = {.name = wire_str_of("weight:bob"), .value = 1}});
    peer_close(&w->sched);
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    json_array_clear(w->received);
    peer_open(&w->sched, "sched", SCHED_URL);
    UNTIL(count(w->received, setting) == 2);
    assert_string_equal(text(nth(w->received, setting, 1), "name"), "weight:bob");
    assert_true(json_number_value(json_object_get(nth(w->received, setting, 1), "value")) == 0.5);
    assert_int_equal(json_array_size(w->log), 0); /* the confirmation is expected */
    char name[59];
    memset(name, 'x', sizeof name);
    name[58] = 0;
    assert_int_equal(gateway_set_weight(&e, w->g, name, 1), ERR_USAGE);
    name[57] = 0;
    OK(gateway_set_weight(&e, w->g, name, 1));
    close_world(w);
}

/* The scheduler dies, and its successor connects. planned: it ends its sessions with a reason. */
static void succeed_scheduler(struct world *w, bool planned)
{
    session_listener_free(w->sched.listener);
    w->sched.listener = NULL;
    if (planned)
        session_close(w->sched.s, "it is replaced");
    else
        cut(w->sched.s);
    pause_ms(w, 50);
    peer_close(&w->sched);
    incarnation++;
    json_array_clear(w->received);
    peer_open(&w->sched, "sched", SCHED_URL);
    UNTIL(w->sched.n_up > 0);
}

/* Three choices are at a scheduler that dies. They are submitted one at a time, and the one that is there when the next
 * one dies fails by name. A new request waits for them. */
static void test_a_request_that_makes_schedulers_die_fails_by_name(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t first = submit(w, 1), second = submit(w, 2), third = submit(w, 3);
    succeed_scheduler(w, false);
    UNTIL(count(w->received, "submit") == 1);
    assert_int_equal(number(nth(w->received, "submit", 0), "job"), first);
    assert_false(json_is_true(json_object_get(nth(w->received, "submit", 0), "again")));
    OK(gateway_submit(&e, w->g, 4, none, "{}", 2));
    pause_ms(w, 100);
    assert_int_equal(count(w->received, "submit"), 1);
    token(w, first, 0, 50, "a"); /* clears it */
    UNTIL(count(w->received, "submit") == 2);
    assert_int_equal(number(nth(w->received, "submit", 1), "job"), second);
    succeed_scheduler(w, false);
    UNTIL(count(w->frames, "err") == 1);
    assert_int_equal(number(nth(w->frames, "err", 0), "seq"), 2);
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "request mine"));
    UNTIL(count(w->received, "submit") >= 1);
    token(w, first, 1, 51, "b");
    UNTIL(count(w->received, "submit") >= 2);
    token(w, third, 0, 50, "a");
    UNTIL(count(w->received, "submit") == 3);
    assert_int_equal(gateway_running(w->g), 3);
    close_world(w);
}

/* A scheduler that ends its sessions with a reason is replaced: no choice is a suspect, however often. */
static void test_a_planned_end_of_the_scheduler_makes_no_suspects(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    submit(w, 1);
    submit(w, 2);
    for (int i = 0; i < 4; i++) {
        succeed_scheduler(w, true);
        UNTIL(count(w->received, "submit") == 2);
    }
    assert_int_equal(count(w->frames, "err"), 0);
    close_world(w);
}

/* The scheduler cancels the jobs of a broken connection: unfinished ones are submitted again, and nothing is sent about
 * those that have ended. */
static void test_unfinished_requests_are_submitted_again_after_a_broken_connection(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t first = submit(w, 1), second = submit(w, 2), third = submit(w, 3);
    token(w, second, 0, 50, "a");
    UNTIL(count(w->received, "report") == 1);
    w->sched_blocked = true;
    end(w, first, 0);
    gateway_cancel(w->g, 3);
    UNTIL(gateway_running(w->g) == 1);
    cut(w->sched.s);
    w->sched_blocked = false;
    json_array_clear(w->received);
    UNTIL(w->sched.n_up == 2 && count(w->received, "submit") == 1);
    pause_ms(w, 30);
    assert_int_equal(json_array_size(w->received), 1);
    const json_t *s = nth(w->received, "submit", 0);
    assert_int_equal(number(s, "job"), second);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_string_equal(list(s, "out"), "50");
    assert_true(third > second);
    close_world(w);
}

static void test_a_refused_request_is_retried_within_the_patience(void **state)
{
    (void)state;
    struct gateway_opts o = {.patience_ns = 400000000};
    struct world *w = open_world(&o);
    uint64_t job = submit(w, 1);
    refuse(w, job, true, 0);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "the queue is full");
    job = submit(w, 2);
    refuse(w, job, false, 100000000);
    uint64_t began = time_now_ns();
    UNTIL(count(w->received, "submit") == 3);
    assert_true(time_now_ns() - began >= 90000000);
    ack(w, job);
    refuse(w, job, false, 500000000); /* longer than its patience */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 1), "text"), "try again in 0.5 s"));
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

/* The scheduler is slow: requests beyond the window wait until there is room, and are not sent if they are cancelled
 * meanwhile. */
static void test_a_full_session_delays_requests(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->sched_blocked = true;
    w->n_body = 6 << 20;
    for (uint64_t i = 1; i <= 5; i++) {
        OK(gateway_submit(&e, w->g, i, none, "{}", 2));
        UNTIL(w->n_parsed == (int)i);
    }
    w->n_body = 16;
    gateway_cancel(w->g, 1); /* submitted */
    gateway_cancel(w->g, 4); /* not submitted */
    UNTIL(gateway_running(w->g) == 3);
    pause_ms(w, 20);
    assert_int_equal(w->sched.s != NULL, 1);
    w->sched_blocked = false;
    UNTIL(count(w->received, "submit") == 4 && count(w->received, "cancel") == 1);
    pause_ms(w, 20);
    assert_int_equal(json_array_size(w->received), 5);
    static const uint64_t jobs[] = {1, 2, 3, 5};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(number(nth(w->received, "submit", i), "job"), jobs[i]);
        assert_false(json_is_true(json_object_get(nth(w->received, "submit", i), "again")));
    }
    assert_int_equal(number(nth(w->received, "cancel", 0), "job"), 1);
    end(w, 5, 0);
    UNTIL(count(w->received, "report") == 1);
    close_world(w);
}

/* gateway_close reports ends; without the reports the scheduler would count the requests as cancelled. */
static void test_close_reports_ended_answers(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    submit(w, 2);
    w->sched_blocked = true;
    end(w, job, 0);
    gateway_close(w->g);
    w->g = NULL;
    w->sched_blocked = false;
    peers(w);
    assert_int_equal(count(w->received, "report"), 1);
    assert_string_equal(text(nth(w->received, "report", 0), "what"), "ended");
    assert_int_equal(number(nth(w->received, "report", 0), "job"), job);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_are_submitted_again_after_a_restart_of_the_scheduler),
        cmocka_unit_test(test_each_scheduler_gets_the_weights_of_tenants),
        cmocka_unit_test(test_a_request_that_makes_schedulers_die_fails_by_name),
        cmocka_unit_test(test_a_planned_end_of_the_scheduler_makes_no_suspects),
        cmocka_unit_test(test_unfinished_requests_are_submitted_again_after_a_broken_connection),
        cmocka_unit_test(test_a_refused_request_is_retried_within_the_patience),
        cmocka_unit_test(test_a_full_session_delays_requests),
        cmocka_unit_test(test_close_reports_ended_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
