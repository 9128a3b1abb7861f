/*
 * Work items of a worker: assignment, capacity, controls, drain. The expectations follow the contract in
 * lib/link/worker.h and the use of its frames in lib/sched/{join,worker,report}.c.
 */
#include "unit/worker_link_fixture.h"

static void a_worker_joins_and_sends_capacity(void **state)
{
    (void)state;
    worker_open(3);
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_true(is(j->worker, "w") && is(j->role, "decode") && is(j->store, "host") && is(j->compat, "model"));
    assert_true(j->inc != 0 && j->n_run == 0);
    assert_int_equal(j->seqs, 8);
    assert_int_equal(j->blocks, 100);
    assert_int_equal(j->max_len, 1024);
    assert_int_equal(j->chunk, 64);
    assert_true(j->pre_a == 1 && j->pre_c == 3 && j->dec_a == 4 && j->dec_c == 6);
    uint64_t inc = j->inc;
    assert_string_equal(session_peer_name(sched.s), "w");
    assert_string_equal(session_peer_role(sched.s), "worker");
    assert_true(session_peer_inc(sched.s) == inc);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINING);
    const struct wire_capacity *c = capacity_with(&sched, 3, 0);
    assert_true(is(c->worker, "w") && c->inc == inc && c->orders == 0 && !c->drain);
    assert_int_equal(c->seqs, 3);
    assert_int_equal(c->tokens, 512);
    assert_int_equal(c->blocks, 90);
    pump(&sched, 50);
    assert_int_equal(worker_link_state(w, NULL), WORKER_JOINED);
    /* An unchanged capacity is not sent again, a changed one is. */
    drop_all(&sched);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90, .step_ns = 7, .batch = 1});
    pump(&sched, 100);
    assert_int_equal(sched.n, 0);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 2,
                                                    .tokens = 512,
                                                    .blocks = 90,
                                                    .step_ns = 9,
                                                    .batch = 2,
                                                    .steps = (const uint32_t[WIRE_STEPS_MAX]){[1] = 4, [13] = 1},
                                                    .step_tokens = 20000});
    c = capacity_with(&sched, 2, 0);
    assert_int_equal(c->step_ns, 9);
    assert_int_equal(c->batch, 2);
    assert_int_equal(c->n_steps, WIRE_STEPS_MAX);
    assert_true(c->steps[1] == 4 && c->steps[13] == 1 && c->steps[0] == 0);
    assert_int_equal(c->step_tokens, 20000);
    /* Every second one is sent although nothing changed. */
    drop_all(&sched);
    uint64_t since = now_ms();
    c = capacity_with(&sched, 2, 0);
    assert_true(now_ms() - since >= 700 && now_ms() - since < 3000);
    assert_int_equal(c->step_ns, 0); /* each step is reported once */
    assert_int_equal(c->step_tokens, 20000);
    assert_int_equal(sched.n_up, 1);
}

static void work_items_are_assigned_once(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    capacity_with(&sched, 4, 0);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "prefill"), work_item(73, "decode")};
    send_frames(&sched, f, 2);
    struct worker_event *t = take(WAIT_MS);
    assert_non_null(t);
    assert_int_equal(t->type, WORKER_EV_ASSIGNED);
    assert_int_equal(t->order, 71);
    const struct wire_order *o = t->assigned;
    assert_true(o->body.n == 4 && !memcmp(o->body.p, "body", 4) && is(o->phase, "whole"));
    assert_int_equal(o->job, 1071);
    /* This capacity counts the first item; the scheduler must subtract the second, which is not taken. */
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 1);
    drop_all(&sched);
    expect_event(WORKER_EV_ASSIGNED, 72);
    pump(&sched, 50);
    assert_null(find(&sched, WIRE_CAPACITY)); /* taken, but no capacity was set since */
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 2); /* a change of the count alone is sent */
    send_frames(&sched, &f[2], 1);
    expect_event(WORKER_EV_ASSIGNED, 73);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 1, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 1, 3);
    /* The id of a running item is a protocol violation: the link closes the session, and both sides resync. */
    drop_all(&sched);
    send_frames(&sched, f, 1);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 3);
    assert_int_equal(sched.n_up, 2);
    capacity_with(&sched, 1, 0);
    expect_no_event();
    /* A taken item stays valid until it is released, also after the link was closed. */
    worker_link_close(w);
    w = NULL;
    assert_true(o->body.n == 4 && !memcmp(o->body.p, "body", 4) && is(o->phase, "whole"));
    worker_order_release(o);
}

static void wait_for_event(void)
{
    struct pollfd p = {worker_link_fd(w), POLLIN, 0};
    for (uint64_t end = now_ms() + WAIT_MS; now_ms() < end && poll(&p, 1, 10) <= 0;)
        pump(&sched, 0);
}

/* Items of an earlier connection are in the join; capacity counts only those of the current connection. */
static void capacity_counts_items_of_its_connection(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame f[] = {work_item(71, "whole"), work_item(72, "whole")};
    send_frames(&sched, f, 1);
    wait_for_event(); /* received, but not taken */
    break_session(&sched);
    assert_int_equal(need(&sched, WIRE_JOIN)->join.n_run, 1);
    expect_event(WORKER_EV_ASSIGNED, 71);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 3, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 3, 0);
    send_frames(&sched, &f[1], 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    worker_link_capacity(w, &(struct wire_capacity){.seqs = 2, .tokens = 512, .blocks = 90});
    capacity_with(&sched, 2, 1);
}

static void controls_are_reported_once(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f[] = {control(71, "preempt"), control(71, "preempt"), control(71, "cancel"),
                             control(71, "cancel")};
    send_frames(&sched, f, 4);
    expect_event(WORKER_EV_PREEMPT, 71);
    expect_event(WORKER_EV_CANCEL, 71);
    expect_no_event();
    report(71, "cancelled", 0);
    const struct wire_report *r = next_report(&sched);
    assert_true(is(r->what, "cancelled") && r->order == 71 && r->job == 1071 && r->attempt == 2 && is(r->gw, "g"));
    assert_true(is(r->worker, "w") && r->inc != 0);
    until_idle();
    /* Controls of a closed item are late and have no effect. */
    send_frames(&sched, f, 4);
    expect_no_event();
    until_idle();
    assert_int_equal(count(&sched, WIRE_REPORT), 1);
    assert_int_equal(sched.n_up, 1);
}

/* The descriptor is not readable either. */
static void events_of_a_closed_item_are_dropped(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = control(71, "cancel"), next = work_item(72, "whole");
    send_frames(&sched, &f, 1);
    wait_for_event();
    report(71, "ended", 0);
    assert_no_event_now();
    struct pollfd p = {worker_link_fd(w), POLLIN, 0};
    assert_int_equal(poll(&p, 1, 0), 0);
    send_frames(&sched, &next, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    until_idle();
}

/* The request is sent at once. The scheduler's control becomes the event, because no item can follow it. */
static void a_drain_is_requested_and_confirmed(void **state)
{
    (void)state;
    join_and_take(71, "whole");
    struct wire_frame f = work_item(72, "whole"), c = control(0, "drain"); /* the item is in flight already */
    worker_link_drain(w, true);
    send_frames(&sched, &f, 1);
    expect_event(WORKER_EV_ASSIGNED, 72);
    while (!need(&sched, WIRE_CAPACITY)->capacity.drain)
        drop(&sched, need(&sched, WIRE_CAPACITY));
    expect_no_event();
    send_frames(&sched, &c, 1);
    expect_event(WORKER_EV_DRAIN, 0);
    /* The request survives a reconnect. */
    break_session(&sched);
    take_join(&sched);
    assert_true(need(&sched, WIRE_CAPACITY)->capacity.drain);
    expect_no_event();
    report(71, "ended", 0);
    report(72, "ended", 0);
    until_idle();
}

static void the_scheduler_sets_drain_and_role(void **state)
{
    (void)state;
    worker_open(4);
    take_join(&sched);
    struct wire_frame c[] = {control(0, "drain"), control(0, "drain"), control(0, "role")};
    c[2].control.role = wire_str_of("prefill");
    send_frames(&sched, c, 3);
    expect_event(WORKER_EV_DRAIN, 0);
    c[0] = control(0, "resume");
    c[1] = control(0, "drain");
    send_frames(&sched, c, 2);
    expect_event(WORKER_EV_RESUME, 0);
    expect_event(WORKER_EV_DRAIN, 0);
    /* After a reconnect without a drain control the worker resumes; it joins in the role that was set before. */
    break_session(&sched);
    struct wire_frame *m = need(&sched, WIRE_JOIN);
    assert_true(is(m->join.role, "prefill"));
    pump(&sched, 0);
    expect_event(WORKER_EV_RESUME, 0);
    expect_no_event();
}

static void a_malformed_frame_ends_the_session(void **state)
{
    (void)state;
    static const uint8_t empty_order[] = {0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', WIRE_ORDER}; /* and no field */
    join_and_take(71, "whole");
    drop_all(&sched);
    OK(session_send_bytes(&e, sched.s, empty_order, sizeof empty_order));
    const struct wire_join *j = &need(&sched, WIRE_JOIN)->join;
    assert_true(j->n_run == 1 && j->run[0].order == 71);
    if (!strstr(sched.down.text, "order"))
        fail_msg("the session ended with '%s'", sched.down.text);
    expect_no_event();
}

static void wrong_options_are_refused(void **state)
{
    (void)state;
    struct worker_link_opts o = {
        .sched = sched.url, .name = "a\nb", .role = "both", .store = "", .compat = "", .seqs = 1, .blocks = 1};
    assert_int_equal(worker_link_open(&e, &w, &o), ERR_PROTO);
    o.name = "w";
    o.sched = "nowhere";
    assert_int_equal(worker_link_open(&e, &w, &o), ERR_USAGE);
    w = NULL;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(a_worker_joins_and_sends_capacity),
        T(work_items_are_assigned_once),
        T(capacity_counts_items_of_its_connection),
        T(controls_are_reported_once),
        T(events_of_a_closed_item_are_dropped),
        T(a_drain_is_requested_and_confirmed),
        T(the_scheduler_sets_drain_and_role),
        T(a_malformed_frame_ends_the_session),
        T(wrong_options_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
