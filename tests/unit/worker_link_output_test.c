/* The tokens and reports of a worker: order, acknowledgements, slow and unreachable gateways, frames that are too long.
 */
#include "unit/worker_link_fixture.h"

static void a_report_waits_for_the_acknowledgement_of_its_tokens(void **state)
{
    (void)state;
    join_and_take(71, "prefill");
    send(71, 0);
    struct wire_frame *t = need(&gw, WIRE_OUT);
    assert_true(t->out.seq == 1071 && t->out.n_id == 1); /* the link sets seq to the item's job */
    assert_string_equal(session_peer_name(gw.s), "w");
    uint32_t id = 7;
    struct wire_report p = {.what = wire_str_of("prefilled"),
                            .n_out = 1,
                            .out = &id,
                            .n_out_id = 1,
                            .n_done = 40,
                            .cached = 32,
                            .busy_ns = 5,
                            .handle = {(const uint8_t *)"0123456789abcdef", 16}};
    OK(worker_link_report(&e, w, held[71], &p));
    assert_false(worker_link_idle(w));
    pump(&sched, 200); /* no report before the gateway has acknowledged the token */
    assert_int_equal(count(&sched, WIRE_REPORT), 0);
    pump(&gw, 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "prefilled") && r->n_done == 40 && r->cached == 32 && r->busy_ns == 5 && r->n_out == 1);
    assert_true(r->n_out_id == 1 && r->out[0] == 7 && r->handle.n == 16 &&
                !memcmp(r->handle.p, "0123456789abcdef", 16));
    assert_true(is(r->store, "host"));
    until_idle();
    /* The item is closed. */
    struct wire_frame f = {.kind = WIRE_OUT, .out = {.seq = 1071, .ids = &id, .n_id = 1}};
    assert_int_equal(worker_link_send(&e, w, held[71], &f, 2), ERR_NO);
    assert_int_equal(worker_link_report(&e, w, held[71], &p), ERR_NO);
    struct wire_frame g = work_item(72, "whole");
    send_frames(&sched, &g, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    p.what = wire_str_of("no such report");
    assert_int_equal(worker_link_report(&e, w, held[72], &p), ERR_USAGE);
}

static void a_report_does_not_wait_for_tokens_of_other_items(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    send(71, 0);
    need(&gw, WIRE_OUT);
    report(71, "ended", 1);
    report(72, "failed", 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 72);
    pump(&sched, 100);
    assert_int_equal(count(&sched, WIRE_REPORT), 1);
    pump(&gw, 0);
    r = next_report(&sched);
    assert_true(is(r->what, "ended") && r->order == 71 && r->n_out == 1);
}

static void held_tokens_are_sent_together_in_order(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    worker_link_hold(w, true);
    for (uint32_t i = 0; i < 10; i++)
        send(71, i);
    pump(&gw, 50);
    assert_int_equal(gw.n, 0);
    assert_true(worker_link_queued(w) > 0);
    worker_link_hold(w, false);
    for (uint32_t i = 0; i < 10; i++)
        receive_token(i);
    report(71, "ended", 10);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

/* Frames above the session's window wait in the link and are sent in order. */
static void a_slow_gateway_gets_all_tokens_in_order(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    send(71, 0);
    receive_token(0);
    for (uint32_t i = 1; i <= 40; i++)
        send_long(71, i, 1000000);
    assert_true(worker_link_queued(w) >= 40 * 1000000);
    usleep(100000);
    assert_true(worker_link_queued(w) >= 40 * 1000000); /* the gateway has acknowledged nothing */
    for (uint32_t i = 1; i <= 40; i++)
        receive_token(i);
    report(71, "ended", 41);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
    assert_int_equal(gw.n_up, 1);
}

/* At the limit of its queue the item that sent fails; others of the same gateway continue. */
static void a_gateway_that_reads_nothing_fails_its_item(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    uint32_t n = 0;
    struct worker_event t = {0};
    while (n < 200 && !t.type) {
        send_long(71, n++, 1000000);
        assert_true(worker_link_queued(w) <= WORKER_GATEWAY_BYTES_MAX);
        worker_link_take(w, &t);
    }
    assert_true(t.type == WORKER_EV_CANCEL && t.order == 71);
    assert_true(n >= 60 && n <= 68);
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_queued(w) > (20u << 20) && now_ms() < end;)
        usleep(1000);
    assert_true(worker_link_queued(w) <= (20u << 20)); /* unsent frames of the item were dropped */
    report(71, "cancelled", 30);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 71 && r->code == ERR_SYS && r->n_out == 0 && r->n_out_id == 0);
    assert_true(memmem(r->text.p, r->text.n, "gateway", 7) != NULL);
    send(72, 0);
    report(72, "ended", 1);
    while (count(&gw, WIRE_OUT) < 1 || gw.got[gw.n - 1]->f.out.seq != 1072)
        pump(&gw, 10);
    assert_true(is(next_report(&sched)->what, "ended"));
    until_idle();
}

/* The report has ERR_NO: a retry would fail too. */
static void a_frame_that_is_too_long_fails_its_item(void **state)
{
    (void)state;
    static uint32_t ids[4000000]; /* 5 bytes each */
    static char text[16000000];
    join_and_take(71, "whole");
    memset(ids, 0x55, sizeof ids);
    memset(text, 'x', sizeof text);
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.prompt = true, .ids = ids, .n_id = 4000000, .text = {text, sizeof text}};
    OK(worker_link_send(&e, w, held[71], &f, 0));
    expect_event(WORKER_EV_CANCEL, 71);
    report(71, "cancelled", 0);
    const struct wire_report *r = next_report(&sched);
    if (!is(r->what, "failed") || r->order != 71 || r->code != ERR_NO)
        fail_msg("work item %d: %.*s, code %d", (int)r->order, (int)r->what.n, r->what.p, (int)r->code);
    assert_true(memmem(r->text.p, r->text.n, "32 MiB", 6) != NULL);
    until_idle();
    assert_int_equal(gw.n, 0);
}

static void a_reply_that_is_not_an_address_fails_the_item(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f = work_item(71, "whole");
    f.order.reply = wire_str_of("pigeon-loft");
    send_frames(&sched, &f, 1);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "failed") && r->order == 71 && r->job == 1071 && r->attempt == 2 && r->code == ERR_NO);
    assert_true(memmem(r->text.p, r->text.n, "pigeon", 6) != NULL);
    expect_no_event();
    until_idle();
    assert_int_equal(sched.n_up, 1);
}

/* Closing reports are never replaced. */
static void newer_progress_replaces_unsent_progress(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    side_kill(&sched);
    for (uint64_t end = now_ms() + WAIT_MS; worker_link_state(w, NULL) == WORKER_JOINED && now_ms() < end;)
        usleep(1000);
    for (uint32_t i = 1; i <= 5; i++) {
        struct wire_report r = {.what = wire_str_of("progress"), .n_done = 8 * i};
        OK(worker_link_report(&e, w, held[71], &r));
    }
    report(71, "failed", 0);
    side_open(&sched);
    need(&sched, WIRE_CAPACITY);
    assert_int_equal(count(&sched, WIRE_REPORT), 2);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "progress") && r->n_done == 40);
    assert_true(is(next_report(&sched)->what, "failed"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_report_waits_for_the_acknowledgement_of_its_tokens),
        T(a_report_does_not_wait_for_tokens_of_other_items),
        T(held_tokens_are_sent_together_in_order),
        T(a_slow_gateway_gets_all_tokens_in_order),
        T(a_gateway_that_reads_nothing_fails_its_item),
        T(a_frame_that_is_too_long_fails_its_item),
        T(a_reply_that_is_not_an_address_fails_the_item),
        T(newer_progress_replaces_unsent_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
