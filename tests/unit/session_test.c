/* Sessions: order, acknowledgement, the window, graceful ends, replacement, addresses, wake-up. */
#include "session_pair.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static void hellos_are_exchanged(void **state)
{
    (void)state;
    connect_both();
    assert_true(session_is_up(d) && session_is_up(accepted));
    assert_string_equal(session_peer_role(d), "sched");
    assert_string_equal(session_peer_name(d), "s");
    assert_string_equal(session_peer_role(accepted), "worker");
    assert_string_equal(session_peer_name(accepted), "w");
    assert_int_equal(session_peer_inc(accepted), 77);
    assert_ptr_equal(session_arg(accepted), &l);
    assert_ptr_equal(session_arg(d), &d);
    session_set_arg(d, NULL);
    assert_null(session_arg(d));
    assert_string_equal(session_url(d), session_listener_url(l));
    assert_string_equal(session_url(accepted), session_listener_url(l));
}

/* ---- order ---- */

#define MANY 100000u
static uint64_t sent[2], got[2];

static void send_more(void)
{
    struct session *s[2] = {d, accepted};
    for (int i = 0; i < 2; i++)
        while (sent[i] < MANY && session_is_up(s[i]) && session_sent(s[i]) < session_acked(s[i]) + 5000)
            send_tick(s[i], sent[i]++);
}

static bool in_order(const struct session_event *v)
{
    if (v->type == SESSION_FRAME) {
        uint64_t *n = &got[v->s != d];
        assert_int_equal(tick_of(v), (*n)++);
    }
    send_more();
    return got[0] == MANY && got[1] == MANY && session_acked(d) == MANY && session_acked(accepted) == MANY;
}

static void frames_keep_their_order(void **state)
{
    (void)state;
    connect_both();
    memset(sent, 0, sizeof sent);
    memset(got, 0, sizeof got);
    send_more();
    assert_true(run(in_order, 60000));
    assert_int_equal(session_sent(d), MANY);
    assert_int_equal(session_sent(accepted), MANY);
    assert_int_equal(session_unacked_bytes(d), 0);
}

/* ---- acknowledgement ---- */

/* A frame counts as processed when its receiver takes the next event, not when it arrives. */
static void a_frame_is_acknowledged_after_its_processing(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 3; i++)
        send_tick(d, i);
    assert_int_equal(session_sent(d), 3);
    assert_true(session_unacked_bytes(d) > 0);
    assert_true(next_of(&v, server, SESSION_FRAME, 5000));
    assert_false(next(&v, client, 100));
    assert_int_equal(session_acked(d), 0);
    assert_true(session_hub_next(server, &v));
    assert_true(session_hub_next(server, &v));
    assert_false(session_hub_next(server, &v));
    assert_true(next_of(&v, client, SESSION_ACKED, 5000));
    assert_ptr_equal(v.s, d);
    assert_int_equal(session_acked(d), 3);
    assert_int_equal(session_unacked_bytes(d), 0);
}

/* A receiver with a long queue of frames acknowledges those that it has processed. */
static void acknowledgements_are_sent_while_frames_wait(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 3000; i++)
        send_tick(d, i);
    for (int i = 0; i < 1500; i++)
        assert_true(next_of(&v, server, SESSION_FRAME, 5000));
    assert_true(next_of(&v, client, SESSION_ACKED, 5000));
    assert_true(session_acked(d) >= 256);
    assert_true(session_acked(d) < 1500);
}

/* ---- the window ---- */

static void body_frame(struct wire_frame *f, size_t n)
{
    static uint8_t body[WIRE_BODY_BYTES_MAX];
    *f = (struct wire_frame){.kind = WIRE_SUBMIT,
                             .submit = {.gw = {"g", 1}, .job = 1, .n_prompt = 1, .max_tokens = 1, .body = {body, n}}};
    for (size_t i = 0; i < n; i++)
        body[i] = (uint8_t)(i * 2654435761u >> 13);
}

static uint64_t n_frame;
static bool count_frames(const struct session_event *v)
{
    n_frame += v->type == SESSION_FRAME;
    return d && !session_unacked_bytes(d);
}

static void a_full_window_refuses(void **state)
{
    struct wire_frame f;
    (void)state;
    session_hub_free(client);
    client = hub("worker", "w", 64 << 10, 0);
    connect_both();
    body_frame(&f, 1000);
    uint64_t n = 0;
    int rc;
    while (!(rc = session_send(&e, d, &f)))
        n++;
    assert_int_equal(rc, ERR_NO);
    assert_true(n >= 60 && n <= 64);
    assert_int_equal(session_send(&e, d, &f), ERR_NO);
    assert_true(session_unacked_bytes(d) <= 64 << 10);
    assert_int_equal(session_sent(d), n);
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    assert_int_equal(n_frame, n);
    OK(session_send(&e, d, &f));
}

static void one_frame_larger_than_the_window_is_sent_alone(void **state)
{
    struct wire_frame f;
    (void)state;
    session_hub_free(client);
    client = hub("worker", "w", 64 << 10, 0);
    connect_both();
    body_frame(&f, 1 << 20);
    OK(session_send(&e, d, &f));
    assert_int_equal(session_send(&e, d, &f), ERR_NO);
    send_tick(accepted, 1);
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    OK(session_send(&e, d, &f));
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    assert_int_equal(n_frame, 1);
}

static bool is_second_large_frame(const struct session_event *v)
{
    struct wire_frame f, want;
    if (v->type != SESSION_FRAME)
        return false;
    wire_arena_reset(arena);
    OK(session_frame(&e, &f, arena, v));
    body_frame(&want, WIRE_BODY_BYTES_MAX);
    assert_int_equal(f.submit.body.n, want.submit.body.n);
    assert_memory_equal(f.submit.body.p, want.submit.body.p, want.submit.body.n);
    return ++n_frame == 2;
}

static void the_largest_frames_arrive_whole(void **state)
{
    struct wire_frame f;
    (void)state;
    connect_both();
    body_frame(&f, WIRE_BODY_BYTES_MAX);
    n_frame = 0;
    OK(session_send(&e, d, &f));
    OK(session_send(&e, accepted, &f));
    assert_true(run(is_second_large_frame, 20000));
    f.submit.digests = f.submit.body; /* 32 MiB and the rest */
    assert_true(run(count_frames, 5000));
    assert_int_equal(session_send(&e, d, &f), ERR_PROTO);
    assert_int_equal(session_sent(d), 1);
    send_tick(d, 5);
}

static void bytes_and_kinds_that_a_session_does_not_carry_are_refused(void **state)
{
    static const uint8_t two[] = {0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 56, 0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 56};
    (void)state;
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    struct wire_frame f = {.kind = WIRE_TICK};
    assert_int_equal(session_send(&e, d, &f), ERR_USAGE);
    assert_int_equal(session_send_bytes(&e, d, two, 9), ERR_USAGE);
    session_free(d);
    connect_both();
    f = (struct wire_frame){.kind = WIRE_BLK};
    assert_int_equal(session_send(&e, d, &f), ERR_PROTO);
    f = (struct wire_frame){.kind = WIRE_SESSION_PING};
    assert_int_equal(session_send(&e, d, &f), ERR_PROTO);
    assert_int_equal(session_send_bytes(&e, d, two, sizeof two), ERR_PROTO);
    assert_int_equal(session_send_bytes(&e, d, two, 8), ERR_PROTO);
    OK(session_send_bytes(&e, d, two, 9));
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    assert_int_equal(n_frame, 1);
}

/* ---- ends ---- */

static struct err down_text[2];
static int n_down[2], n_refused;
static bool watch_downs(const struct session_event *v)
{
    int i = v->s != d;
    n_frame += v->type == SESSION_FRAME;
    n_refused += v->type == SESSION_REFUSED;
    if (v->type == SESSION_DOWN || v->type == SESSION_REFUSED) {
        n_down[i] += v->type == SESSION_DOWN;
        down_text[i] = v->err;
    }
    return n_down[0] && n_down[1];
}

static void clear_downs(void)
{
    n_frame = 0;
    n_refused = 0;
    memset(n_down, 0, sizeof n_down);
    memset(down_text, 0, sizeof down_text);
}

/* Both sides have sent frames that the other has not read yet. */
static void bye_with_unread_bytes_loses_nothing(void **state)
{
    struct wire_frame f;
    (void)state;
    connect_both();
    body_frame(&f, 100000);
    for (int i = 0; i < 50; i++) {
        OK(session_send(&e, d, &f));
        OK(session_send(&e, accepted, &f));
    }
    clear_downs();
    session_bye(d, 5000);
    assert_int_equal(session_send(&e, d, &f), ERR_USAGE);
    assert_true(run(watch_downs, 10000));
    assert_int_equal(n_frame, 100);
    assert_int_equal(down_text[0].code, 0);
    assert_int_equal(down_text[1].code, ERR_NO);
    run(watch_downs, 300);
    assert_int_equal(n_down[0] + n_down[1], 2);
    assert_false(session_is_up(d));
}

static void simultaneous_byes_end_gracefully(void **state)
{
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 1000; i++) {
        send_tick(d, i);
        send_tick(accepted, i);
    }
    clear_downs();
    session_bye(d, 5000);
    session_bye(accepted, 5000);
    assert_true(run(watch_downs, 10000));
    assert_int_equal(n_frame, 2000);
    assert_int_equal(down_text[0].code, 0);
    assert_int_equal(down_text[1].code, 0);
}

static void bye_ends_after_its_timeout(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    send_tick(d, 1);
    session_bye(d, 200);
    int64_t t = now_ms();
    assert_true(next_of(&v, client, SESSION_DOWN, 5000)); /* the server takes no events */
    assert_true(now_ms() - t >= 190);
    assert_int_equal(v.err.code, ERR_SYS);
    assert_non_null(strstr(v.err.text, "1 of 1 frames were not acknowledged"));
}

static void the_peer_gets_the_reason_of_a_close(void **state)
{
    (void)state;
    connect_both();
    clear_downs();
    session_close(accepted, "the blocks are of another model");
    assert_true(run(watch_downs, 5000));
    assert_int_equal(down_text[0].code, ERR_NO);
    assert_non_null(strstr(down_text[0].text, "the blocks are of another model"));
    assert_non_null(strstr(down_text[0].text, url));
    assert_non_null(strstr(down_text[1].text, "worker w: closed by this side"));
    n_up = 0;
    assert_true(run(both_up, 5000)); /* a dialed session connects again */
    assert_int_equal(session_sent(d), 0);
}

static void freeing_a_session_reports_no_event(void **state)
{
    (void)state;
    connect_both();
    send_tick(d, 1);
    clear_downs();
    session_free(d);
    d = NULL;
    run(watch_downs, 300);
    assert_int_equal(n_down[0], 0);
    assert_int_equal(n_down[1], 1);
    connect_both();
    clear_downs();
    session_free(accepted);
    run(watch_downs, 300);
    assert_int_equal(n_down[1], 0);
    assert_int_equal(n_down[0], 1);
}

/* For sanitizers: no use after free, no leak. */
static void hubs_can_be_freed_while_busy(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        connect_both();
        for (uint64_t i = 0; i < 100; i++) {
            send_tick(d, i);
            send_tick(accepted, i);
        }
        struct session_event v;
        for (int i = 0; i < round * 3; i++)
            next(&v, i % 2 ? server : client, 5000);
        if (round % 3 == 0)
            session_listener_free(l);
        session_hub_free(round % 2 ? server : client);
        *(round % 2 ? &server : &client) = NULL;
        session_hub_free(round % 2 ? client : server);
        l = NULL;
        d = accepted = NULL;
        server = hub("sched", "s", 0, 0);
        client = hub("worker", "w", 0, 0);
    }
}

/* ---- names and roles ---- */

static void a_newer_session_of_the_same_name_replaces_the_older(void **state)
{
    struct session *second;
    struct session_event v, w;
    (void)state;
    connect_both();
    struct session *first = accepted;
    struct session_hub *twin = hub("worker", "w", 0, 0);
    OK(session_dial(&e, &second, twin, url, "sched", NULL));
    while (!session_hub_next(server, &v))
        while (session_hub_next(twin, &w))
            ;
    assert_int_equal(v.type, SESSION_DOWN);
    assert_ptr_equal(v.s, first);
    assert_non_null(strstr(v.err.text, "replaced"));
    assert_true(session_hub_next(server, &v));
    assert_int_equal(v.type, SESSION_UP);
    assert_string_equal(session_peer_name(v.s), "w");
    send_tick(v.s, 1);
    while (!session_hub_next(twin, &w) || w.type != SESSION_FRAME)
        session_hub_next(server, &v);
    assert_true(next_of(&v, client, SESSION_DOWN, 5000));
    assert_non_null(strstr(v.err.text, "replaced"));
    session_hub_free(twin);
}

static int n_accepted;
static bool count_accepted(const struct session_event *v)
{
    n_accepted += v->type == SESSION_UP && v->s != d;
    n_down[0] += v->type == SESSION_DOWN;
    return n_accepted == 3;
}

static void sessions_without_a_name_or_of_other_roles_replace_none(void **state)
{
    struct session *a, *b, *c;
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker tool", NULL));
    session_hub_free(client);
    client = hub("tool", "", 0, 0);
    struct session_hub *tools = client, *worker = hub("worker", "t", 0, 0);
    OK(session_dial(&e, &a, tools, url, "sched", NULL));
    OK(session_dial(&e, &b, tools, url, "sched", NULL));
    OK(session_dial(&e, &c, worker, url, "sched", NULL));
    n_accepted = 0;
    d = NULL;
    clear_downs();
    int64_t end = now_ms() + 5000;
    while (n_accepted < 3 && now_ms() < end) {
        struct session_event v;
        while (session_hub_next(worker, &v))
            ;
        while (session_hub_next(tools, &v))
            ;
        while (session_hub_next(server, &v))
            count_accepted(&v);
    }
    assert_int_equal(n_accepted, 3);
    assert_int_equal(n_down[0], 0);
    session_hub_free(worker);
}

static void a_role_that_is_not_accepted_is_refused(void **state)
{
    struct session_event v;
    (void)state;
    OK(session_listen(&e, &l, server, url, "gateway tool", NULL));
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    clear_downs();
    n_up = 0;
    while (!n_refused)
        run(watch_downs, 5);
    assert_int_equal(down_text[0].code, ERR_NO);
    assert_non_null(strstr(down_text[0].text, "role worker is not accepted here"));
    session_free(d);
    session_listener_free(l);
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    OK(session_dial(&e, &d, client, url, "tokenize", NULL));
    clear_downs();
    while (!n_refused)
        run(watch_downs, 5);
    assert_int_equal(down_text[0].code, ERR_PROTO);
    assert_non_null(strstr(down_text[0].text, "role sched is not accepted here, only: tokenize"));
    session_free(d);
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    n_up = 0;
    assert_true(next_of(&v, client, SESSION_UP, 5) || run(both_up, 5000) || session_is_up(d));
}

/* ---- addresses ---- */

static void wrong_and_used_addresses_are_refused(void **state)
{
    struct session_listener *other = NULL;
    struct session *none = NULL;
    struct stat st;
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(session_listen(&e, &other, server, url, "worker", NULL), ERR_NO);
    assert_non_null(strstr(e.text, "address in use: another program listens on it"));
    assert_int_equal(session_listen(&e, &other, server, "unix:/tmp/x", "worker", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, client, "ipc://", "sched", NULL), ERR_USAGE);
    char long_one[300] = "ipc:///tmp/";
    memset(long_one + 11, 'x', 200);
    assert_int_equal(session_listen(&e, &other, server, long_one, "worker", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, client, long_one, "sched", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, client, "tcp://127.0.0.1:99999", "sched", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, client, "tcp://127.0.0.1", "sched", NULL), ERR_USAGE);
    OK(session_listen(&e, &other, server, "tcp://127.0.0.1:0", "worker", NULL));
    assert_string_not_equal(session_listener_url(other), "tcp://127.0.0.1:0");
    struct session_listener *third;
    assert_int_equal(session_listen(&e, &third, server, session_listener_url(other), "worker", NULL), ERR_NO);
    session_listener_free(l);
    assert_int_equal(stat(url + 6, &st), -1);
    l = other;
    connect_both();
}

static void a_stale_socket_is_replaced_other_files_are_not(void **state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    (void)state;
    int s = socket(AF_UNIX, SOCK_STREAM, 0);
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    close(s);
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    session_listener_free(l);
    l = NULL;
    FILE *f = fopen(url + 6, "w");
    fputs("mine", f);
    fclose(f);
    assert_int_equal(session_listen(&e, &l, server, url, "worker", NULL), ERR_NO);
    assert_non_null(strstr(e.text, "not a socket"));
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_size, 4);
    unlink(url + 6);
}

static void a_dialer_connects_when_a_listener_opens_later(void **state)
{
    struct session_event v;
    (void)state;
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    assert_false(next(&v, client, 300));
    assert_false(session_is_up(d));
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    n_up = 0;
    int64_t t = now_ms();
    assert_true(run(both_up, 5000));
    assert_true(now_ms() - t < slow(300));
}

/* ---- wake-up ---- */

static void *wake_soon(void *arg)
{
    usleep(100000);
    session_hub_wake(arg);
    return NULL;
}

static void on_alarm(int sig)
{
    (void)sig;
    session_hub_wake(server);
}

static void a_wake_ends_a_wait(void **state)
{
    pthread_t t;
    struct session_event v;
    (void)state;
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    int64_t from = now_ms();
    pthread_create(&t, NULL, wake_soon, server);
    session_hub_wait(server, 10000);
    assert_true(now_ms() - from >= 90 && now_ms() - from < 5000);
    pthread_join(t, NULL);
    assert_false(session_hub_next(server, &v));
    from = now_ms();
    session_hub_wait(server, 50);
    assert_true(now_ms() - from >= 45);
    signal(SIGALRM, on_alarm);
    struct timespec soon = {0, 100000000};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    timer_settime(timer, 0, &(struct itimerspec){.it_value = soon}, NULL);
    from = now_ms();
    session_hub_wait(server, 10000);
    struct pollfd p = {.fd = session_hub_fd(server), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 1000), 1);
    assert_true(now_ms() - from < 5000);
    timer_delete(timer);
    signal(SIGALRM, SIG_DFL);
    assert_false(session_hub_next(server, &v));
    assert_int_equal(poll(&p, 1, 0), 0);
}

#define BOTH(test)                                                                                                     \
    cmocka_unit_test_setup_teardown(test, setup, teardown),                                                            \
    {                                                                                                                  \
#test " (tcp)", test, setup_tcp, teardown, NULL                                                                \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        BOTH(hellos_are_exchanged),
        BOTH(frames_keep_their_order),
        BOTH(a_frame_is_acknowledged_after_its_processing),
        BOTH(acknowledgements_are_sent_while_frames_wait),
        BOTH(a_full_window_refuses),
        BOTH(one_frame_larger_than_the_window_is_sent_alone),
        BOTH(the_largest_frames_arrive_whole),
        cmocka_unit_test_setup_teardown(bytes_and_kinds_that_a_session_does_not_carry_are_refused, setup, teardown),
        BOTH(bye_with_unread_bytes_loses_nothing),
        BOTH(simultaneous_byes_end_gracefully),
        BOTH(bye_ends_after_its_timeout),
        cmocka_unit_test_setup_teardown(the_peer_gets_the_reason_of_a_close, setup, teardown),
        BOTH(freeing_a_session_reports_no_event),
        BOTH(hubs_can_be_freed_while_busy),
        cmocka_unit_test_setup_teardown(a_newer_session_of_the_same_name_replaces_the_older, setup, teardown),
        cmocka_unit_test_setup_teardown(sessions_without_a_name_or_of_other_roles_replace_none, setup, teardown),
        cmocka_unit_test_setup_teardown(a_role_that_is_not_accepted_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(wrong_and_used_addresses_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stale_socket_is_replaced_other_files_are_not, setup, teardown),
        cmocka_unit_test_setup_teardown(a_dialer_connects_when_a_listener_opens_later, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wake_ends_a_wait, setup, teardown),
    };
    alarm(300);
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
