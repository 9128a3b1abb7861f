/* A worker after broken connections: resync with the scheduler and gateways, refusals, leases. */
#include "unit/worker_link_fixture.h"

/* The scheduler dies before it acknowledges a report. The restarted one gets a join with all items, also with the one
 * whose closing report is unacknowledged, and that report again. */
static void a_restarted_scheduler_gets_all_items_and_reports(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "decode");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    receive_token(0);
    report(71, "ended", 1);
    send(72, 0);
    receive_token(0);
    send(72, 1);
    need(&gw, WIRE_OUT); /* received, not acknowledged */
    next_report(&sched);
    side_restart(&sched);
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_int_equal(j->n_run, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct wire_run *r = &j->run[i];
        assert_true(is(r->gw, "g") && r->job == 1000 + r->order && r->attempt == 2 && r->n_prompt == 40);
        assert_true(r->max_tokens == 20 && (r->order == 71 || r->order == 72));
        assert_true(is(r->phase, r->order == 71 ? "whole" : "decode"));
        assert_int_equal(r->n_out, 1); /* two tokens of 72 were sent, one is acknowledged */
    }
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "ended") && r->order == 71 && r->reason == WIRE_STOP && r->n_out == 1);
    assert_int_equal(need(&sched, WIRE_CAPACITY)->capacity.orders, 0);
    /* After the acknowledgement of its report 71 is not in the join. */
    struct wire_frame g = work_item(90, "whole");
    send_frames(&sched, &g, 1);
    expect_event(WORKER_EV_ASSIGNED, 90);
    pump(&gw, 0);
    pump(&sched, 50);
    break_session(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 2);
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    expect_no_event();
}

/* They follow the join, in order, and precede the capacity. */
static void unacknowledged_reports_are_sent_again_after_a_reconnect(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    report(72, "preempted", 0);
    need(&sched, WIRE_REPORT);
    report(71, "failed", 0);
    break_session(&sched);
    need(&sched, WIRE_JOIN);
    need(&sched, WIRE_CAPACITY);
    assert_true(sched.n == 4 && sched.got[0]->f.kind == WIRE_JOIN && sched.got[3]->f.kind == WIRE_CAPACITY);
    assert_int_equal(sched.got[0]->f.join.n_run, 2);
    assert_true(is(sched.got[1]->f.report.what, "preempted") && sched.got[1]->f.report.order == 72);
    assert_true(is(sched.got[2]->f.report.what, "failed") && sched.got[2]->f.report.order == 71);
    until_idle();
}

static void a_refusal_gives_its_reason_and_is_retried(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    refuse(&sched, "another model runs here");
    uint64_t since = now_ms();
    struct err reason;
    while (worker_link_state(w, &reason) != WORKER_REFUSED && now_ms() < since + WAIT_MS)
        pump(&sched, 5);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED);
    assert_string_equal(reason.text, "another model runs here");
    need(&sched, WIRE_JOIN);
    assert_true(now_ms() - since >= 900 && now_ms() - since < 3000);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED); /* until this join is processed */
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, &reason), WORKER_JOINED);
    assert_int_equal(reason.code, 0);
}

static void a_peer_that_is_not_a_scheduler_is_a_refusal(void **state)
{
    (void)state;
    side_kill(&sched);
    sched.role = "tokenize";
    side_open(&sched);
    worker_open(4);
    struct err reason;
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_state(w, &reason) != WORKER_REFUSED && now_ms() < end;)
        pump(&sched, 5);
    assert_int_equal(worker_link_state(w, &reason), WORKER_REFUSED);
    assert_true(reason.code && strlen(reason.text) > 0);
    side_kill(&sched);
    sched.role = "sched";
    side_open(&sched);
    take_join(&sched);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, &reason), WORKER_JOINED);
}

static void a_scheduler_that_closes_every_session_is_dialed_with_pauses(void **state)
{
    (void)state;
    worker_open(4);
    for (uint64_t end = now_ms() + 500; now_ms() < end; pump(&sched, 5))
        if (sched.s && find(&sched, WIRE_JOIN)) {
            drop_all(&sched);
            session_close(sched.s, "no");
        }
    assert_true(sched.n_up >= 2 && sched.n_up <= 100);
    take_join(&sched);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINED);
}

/* Tokens that the worker sends after the expiry are dropped, and its report counts only those that the gateway has
 * acknowledged. */
static void an_expired_lease_cancels_the_item(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "whole")};
    f[0].order.lease_ns = f[1].order.lease_ns = 400000000;
    send_frames(&sched, f, 2);
    expect_event(WORKER_EV_ASSIGNED, 71);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    receive_token(0);
    pump(&gw, 20);
    uint64_t since = now_ms();
    side_kill(&sched);
    struct worker_event *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->type, WORKER_EV_CANCEL);
    assert_true(now_ms() - since >= 350 && now_ms() - since < 2000);
    uint64_t first = t->order;
    send(71, 1);
    expect_event(WORKER_EV_CANCEL, 71 + 72 - first);
    expect_no_event();
    report(71, "ended", 2);
    report(72, "cancelled", 0);
    pump(&gw, 50);
    assert_int_equal(gw.n, 0);
    assert_int_equal(worker_link_queued(w), 0);
    side_open(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 2);
    for (int i = 0; i < 2; i++) {
        const struct wire_report *r = next_report(&sched);
        assert_true(is(r->what, "cancelled"));
        assert_int_equal(r->n_out, r->order == 71 ? 1 : 0);
        assert_int_equal(r->n_out_id, r->n_out);
        assert_int_equal(r->reason, 0);
    }
    until_idle();
}

/* A session that is up renews leases without a frame. */
static void a_session_renews_leases(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = work_item(71, "whole");
    f.order.lease_ns = 400000000;
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 71);
    for (uint64_t end = now_ms() + 1200; now_ms() < end; pump(&sched, 100))
        assert_no_event_now();
    /* A reconnect before the expiry renews them too. */
    for (int i = 0; i < 3; i++) {
        side_kill(&sched);
        usleep(200000);
        side_open(&sched);
        take_join(&sched);
        pump(&sched, 50);
        assert_no_event_now();
    }
}

/* A restarted gateway gets the unacknowledged frames and those sent while it was down, in order. */
static void a_restarted_gateway_gets_unacknowledged_tokens(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    send(71, 1);
    need(&gw, WIRE_OUT);
    side_kill(&gw);
    send(71, 2);
    report(71, "ended", 3);
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    side_open(&gw);
    for (uint32_t i = 0; i < 3; i++)
        receive_token(i);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

static void cancelling_drops_the_tokens_for_a_dead_gateway(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    need(&gw, WIRE_OUT);
    side_kill(&gw);
    for (uint32_t i = 1; i < 20; i++)
        send(71, i);
    usleep(50000);
    assert_true(worker_link_queued(w) > 0);
    report(71, "preempted", 20); /* waits for acknowledgements that never arrive */
    pump(&sched, 50);
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    struct wire_frame c = control(71, "cancel");
    send_frames(&sched, &c, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->n_out == 0 && r->n_out_id == 0);
    expect_no_event(); /* the worker has closed the item itself */
    until_idle();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_restarted_scheduler_gets_all_items_and_reports),
        T(unacknowledged_reports_are_sent_again_after_a_reconnect),
        T(a_refusal_gives_its_reason_and_is_retried),
        T(a_peer_that_is_not_a_scheduler_is_a_refusal),
        T(a_scheduler_that_closes_every_session_is_dialed_with_pauses),
        T(an_expired_lease_cancels_the_item),
        T(a_session_renews_leases),
        T(a_restarted_gateway_gets_unacknowledged_tokens),
        T(cancelling_drops_the_tokens_for_a_dead_gateway),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
