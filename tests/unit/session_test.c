/* Sessions: order, acknowledgement, the window, orderly ends, replacement, addresses, waking. */
#include "session_pair.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

static void hellos_are_exchanged(void **state)
{
    (void)state;
    connect_both();
    assert_true(session_is_up(d) && session_is_up(at_home));
    assert_string_equal(session_peer_role(d), "sched");
    assert_string_equal(session_peer_name(d), "s");
    assert_string_equal(session_peer_role(at_home), "worker");
    assert_string_equal(session_peer_name(at_home), "w");
    assert_int_equal(session_peer_inc(at_home), 77);
    assert_ptr_equal(session_arg(at_home), &l);
    assert_ptr_equal(session_arg(d), &d);
    session_set_arg(d, NULL);
    assert_null(session_arg(d));
    assert_string_equal(session_url(d), session_listener_url(l));
    assert_string_equal(session_url(at_home), session_listener_url(l));
}

/* ---- order ---- */

#define MANY 100000u
static uint64_t sent[2], got[2];

static void send_more(void)
{
    struct session *s[2] = {d, at_home};
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
    return got[0] == MANY && got[1] == MANY && session_acked(d) == MANY && session_acked(at_home) == MANY;
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
    assert_int_equal(session_sent(at_home), MANY);
    assert_int_equal(session_unacked_bytes(d), 0);
}

/* ---- acknowledgement ---- */

/* A frame is processed when the next event is asked for, not when it arrives. */
static void a_frame_is_acknowledged_after_its_processing(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 3; i++)
        send_tick(d, i);
    assert_int_equal(session_sent(d), 3);
    assert_true(session_unacked_bytes(d) > 0);
    assert_true(next_of(&v, home, SESSION_FRAME, 5000));
    assert_false(next(&v, abroad, 100));
    assert_int_equal(session_acked(d), 0);
    assert_true(session_hub_next(home, &v));
    assert_true(session_hub_next(home, &v));
    assert_false(session_hub_next(home, &v));
    assert_true(next_of(&v, abroad, SESSION_ACKED, 5000));
    assert_ptr_equal(v.s, d);
    assert_int_equal(session_acked(d), 3);
    assert_int_equal(session_unacked_bytes(d), 0);
}

/* A receiver that is busy with many frames reports those that it has processed. */
static void acknowledgements_come_during_long_work(void **state)
{
    struct session_event v;
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 3000; i++)
        send_tick(d, i);
    for (int i = 0; i < 1500; i++)
        assert_true(next_of(&v, home, SESSION_FRAME, 5000));
    assert_true(next_of(&v, abroad, SESSION_ACKED, 5000));
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
    session_hub_free(abroad);
    abroad = hub("worker", "w", 64 << 10, 0);
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
    session_hub_free(abroad);
    abroad = hub("worker", "w", 64 << 10, 0);
    connect_both();
    body_frame(&f, 1 << 20);
    OK(session_send(&e, d, &f));
    assert_int_equal(session_send(&e, d, &f), ERR_NO);
    send_tick(at_home, 1);
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    OK(session_send(&e, d, &f));
    n_frame = 0;
    assert_true(run(count_frames, 5000));
    assert_int_equal(n_frame, 1);
}

static bool big_came(const struct session_event *v)
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
    OK(session_send(&e, at_home, &f));
    assert_true(run(big_came, 20000));
    f.submit.digests = f.submit.body; /* 32 MiB and the rest */
    assert_true(run(count_frames, 5000));
    assert_int_equal(session_send(&e, d, &f), ERR_PROTO);
    assert_int_equal(session_sent(d), 1);
    send_tick(d, 5);
}

static void what_is_no_frame_for_a_session_is_refused(void **state)
{
    static const uint8_t two[] = {0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 56, 0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 56};
    (void)state;
    OK(session_dial(&e, &d, abroad, url, "sched", NULL));
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

/* Both have sent much that the other has not read yet: nothing of it is lost. */
static void bye_with_unread_bytes_loses_nothing(void **state)
{
    struct wire_frame f;
    (void)state;
    connect_both();
    body_frame(&f, 100000);
    for (int i = 0; i < 50; i++) {
        OK(session_send(&e, d, &f));
        OK(session_send(&e, at_home, &f));
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

static void both_say_bye_at_once(void **state)
{
    (void)state;
    connect_both();
    for (uint64_t i = 0; i < 1000; i++) {
        send_tick(d, i);
        send_tick(at_home, i);
    }
    clear_downs();
    session_bye(d, 5000);
    session_bye(at_home, 5000);
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
    assert_true(next_of(&v, abroad, SESSION_DOWN, 5000)); /* nobody asks for events at home */
    assert_true(now_ms() - t >= 190);
    assert_int_equal(v.err.code, ERR_SYS);
    assert_non_null(strstr(v.err.text, "1 of 1 frames were not acknowledged"));
}

static void the_peer_learns_why_a_session_was_closed(void **state)
{
    (void)state;
    connect_both();
    clear_downs();
    session_close(at_home, "the blocks are of another model");
    assert_true(run(watch_downs, 5000));
    assert_int_equal(down_text[0].code, ERR_NO);
    assert_non_null(strstr(down_text[0].text, "the blocks are of another model"));
    assert_non_null(strstr(down_text[0].text, url));
    assert_non_null(strstr(down_text[1].text, "worker w: closed by this side"));
    n_up = 0;
    assert_true(run(both_up, 5000)); /* a dialed session connects again */
    assert_int_equal(session_sent(d), 0);
}

static void freeing_a_session_makes_no_event(void **state)
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
    session_free(at_home);
    run(watch_downs, 300);
    assert_int_equal(n_down[1], 0);
    assert_int_equal(n_down[0], 1);
}

/* Freed in the middle of everything: nothing is read after it was freed, nothing is kept. */
static void hubs_are_freed_while_busy(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        connect_both();
        for (uint64_t i = 0; i < 100; i++) {
            send_tick(d, i);
            send_tick(at_home, i);
        }
        struct session_event v;
        for (int i = 0; i < round * 3; i++)
            next(&v, i % 2 ? home : abroad, 5000);
        if (round % 3 == 0)
            session_listener_free(l);
        session_hub_free(round % 2 ? home : abroad);
        *(round % 2 ? &home : &abroad) = NULL;
        session_hub_free(round % 2 ? abroad : home);
        l = NULL;
        d = at_home = NULL;
        home = hub("sched", "s", 0, 0);
        abroad = hub("worker", "w", 0, 0);
    }
}

/* ---- who may be there ---- */

static void a_newer_session_of_the_same_name_replaces(void **state)
{
    struct session *second;
    struct session_event v, w;
    (void)state;
    connect_both();
    struct session *first = at_home;
    struct session_hub *twin = hub("worker", "w", 0, 0);
    OK(session_dial(&e, &second, twin, url, "sched", NULL));
    while (!session_hub_next(home, &v))
        while (session_hub_next(twin, &w))
            ;
    assert_int_equal(v.type, SESSION_DOWN);
    assert_ptr_equal(v.s, first);
    assert_non_null(strstr(v.err.text, "replaced"));
    assert_true(session_hub_next(home, &v));
    assert_int_equal(v.type, SESSION_UP);
    assert_string_equal(session_peer_name(v.s), "w");
    send_tick(v.s, 1);
    while (!session_hub_next(twin, &w) || w.type != SESSION_FRAME)
        session_hub_next(home, &v);
    assert_true(next_of(&v, abroad, SESSION_DOWN, 5000));
    assert_non_null(strstr(v.err.text, "replaced"));
    session_hub_free(twin);
}

static int up_at_home;
static bool ups_at_home(const struct session_event *v)
{
    up_at_home += v->type == SESSION_UP && v->s != d;
    n_down[0] += v->type == SESSION_DOWN;
    return up_at_home == 3;
}

static void sessions_without_a_name_or_of_other_roles_stay(void **state)
{
    struct session *a, *b, *c;
    (void)state;
    OK(session_listen(&e, &l, home, url, "worker tool", NULL));
    session_hub_free(abroad);
    abroad = hub("tool", "", 0, 0);
    struct session_hub *tools = abroad, *worker = hub("worker", "t", 0, 0);
    OK(session_dial(&e, &a, tools, url, "sched", NULL));
    OK(session_dial(&e, &b, tools, url, "sched", NULL));
    OK(session_dial(&e, &c, worker, url, "sched", NULL));
    up_at_home = 0;
    d = NULL;
    clear_downs();
    int64_t end = now_ms() + 5000;
    while (up_at_home < 3 && now_ms() < end) {
        struct session_event v;
        while (session_hub_next(worker, &v))
            ;
        while (session_hub_next(tools, &v))
            ;
        while (session_hub_next(home, &v))
            ups_at_home(&v);
    }
    assert_int_equal(up_at_home, 3);
    assert_int_equal(n_down[0], 0);
    session_hub_free(worker);
}

static void a_role_that_is_not_accepted_is_refused(void **state)
{
    struct session_event v;
    (void)state;
    OK(session_listen(&e, &l, home, url, "gateway tool", NULL));
    OK(session_dial(&e, &d, abroad, url, "sched", NULL));
    clear_downs();
    n_up = 0;
    while (!n_refused)
        run(watch_downs, 5);
    assert_int_equal(down_text[0].code, ERR_NO);
    assert_non_null(strstr(down_text[0].text, "role worker is not accepted here"));
    session_free(d);
    session_listener_free(l);
    OK(session_listen(&e, &l, home, url, "worker", NULL));
    OK(session_dial(&e, &d, abroad, url, "tokenize", NULL));
    clear_downs();
    while (!n_refused)
        run(watch_downs, 5);
    assert_int_equal(down_text[0].code, ERR_PROTO);
    assert_non_null(strstr(down_text[0].text, "role sched is not accepted here, only: tokenize"));
    session_free(d);
    OK(session_dial(&e, &d, abroad, url, "sched", NULL));
    n_up = 0;
    assert_true(next_of(&v, abroad, SESSION_UP, 5) || run(both_up, 5000) || session_is_up(d));
}

/* ---- addresses ---- */

static void addresses(void **state)
{
    struct session_listener *other = NULL;
    struct session *none = NULL;
    struct stat st;
    (void)state;
    OK(session_listen(&e, &l, home, url, "worker", NULL));
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(session_listen(&e, &other, home, url, "worker", NULL), ERR_NO);
    assert_non_null(strstr(e.text, "somebody listens there"));
    assert_int_equal(session_listen(&e, &other, home, "unix:/tmp/x", "worker", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, abroad, "ipc://", "sched", NULL), ERR_USAGE);
    char long_one[300] = "ipc:///tmp/";
    memset(long_one + 11, 'x', 200);
    assert_int_equal(session_listen(&e, &other, home, long_one, "worker", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, abroad, long_one, "sched", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, abroad, "tcp://127.0.0.1:99999", "sched", NULL), ERR_USAGE);
    assert_int_equal(session_dial(&e, &none, abroad, "tcp://127.0.0.1", "sched", NULL), ERR_USAGE);
    OK(session_listen(&e, &other, home, "tcp://127.0.0.1:0", "worker", NULL));
    assert_string_not_equal(session_listener_url(other), "tcp://127.0.0.1:0");
    struct session_listener *third;
    assert_int_equal(session_listen(&e, &third, home, session_listener_url(other), "worker", NULL), ERR_NO);
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
    OK(session_listen(&e, &l, home, url, "worker", NULL));
    session_listener_free(l);
    l = NULL;
    FILE *f = fopen(url + 6, "w");
    fputs("mine", f);
    fclose(f);
    assert_int_equal(session_listen(&e, &l, home, url, "worker", NULL), ERR_NO);
    assert_non_null(strstr(e.text, "not a socket"));
    assert_int_equal(stat(url + 6, &st), 0);
    assert_int_equal(st.st_size, 4);
    unlink(url + 6);
}

static void the_listener_comes_later(void **state)
{
    struct session_event v;
    (void)state;
    OK(session_dial(&e, &d, abroad, url, "sched", NULL));
    assert_false(next(&v, abroad, 300));
    assert_false(session_is_up(d));
    OK(session_listen(&e, &l, home, url, "worker", NULL));
    n_up = 0;
    int64_t t = now_ms();
    assert_true(run(both_up, 5000));
    assert_true(now_ms() - t < slow(300));
}

/* ---- waking ---- */

static void *wake_soon(void *arg)
{
    usleep(100000);
    session_hub_wake(arg);
    return NULL;
}

static void on_alarm(int sig)
{
    (void)sig;
    session_hub_wake(home);
}

static void a_wait_is_woken(void **state)
{
    pthread_t t;
    struct session_event v;
    (void)state;
    OK(session_listen(&e, &l, home, url, "worker", NULL));
    int64_t from = now_ms();
    pthread_create(&t, NULL, wake_soon, home);
    session_hub_wait(home, 10000);
    assert_true(now_ms() - from >= 90 && now_ms() - from < 5000);
    pthread_join(t, NULL);
    assert_false(session_hub_next(home, &v));
    from = now_ms();
    session_hub_wait(home, 50);
    assert_true(now_ms() - from >= 45);
    signal(SIGALRM, on_alarm);
    struct timespec soon = {0, 100000000};
    timer_t timer;
    timer_create(CLOCK_MONOTONIC, NULL, &timer);
    timer_settime(timer, 0, &(struct itimerspec){.it_value = soon}, NULL);
    from = now_ms();
    session_hub_wait(home, 10000);
    struct pollfd p = {.fd = session_hub_fd(home), .events = POLLIN};
    assert_int_equal(poll(&p, 1, 1000), 1);
    assert_true(now_ms() - from < 5000);
    timer_delete(timer);
    signal(SIGALRM, SIG_DFL);
    assert_false(session_hub_next(home, &v));
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
        BOTH(acknowledgements_come_during_long_work),
        BOTH(a_full_window_refuses),
        BOTH(one_frame_larger_than_the_window_is_sent_alone),
        BOTH(the_largest_frames_arrive_whole),
        cmocka_unit_test_setup_teardown(what_is_no_frame_for_a_session_is_refused, setup, teardown),
        BOTH(bye_with_unread_bytes_loses_nothing),
        BOTH(both_say_bye_at_once),
        BOTH(bye_ends_after_its_timeout),
        cmocka_unit_test_setup_teardown(the_peer_learns_why_a_session_was_closed, setup, teardown),
        BOTH(freeing_a_session_makes_no_event),
        BOTH(hubs_are_freed_while_busy),
        cmocka_unit_test_setup_teardown(a_newer_session_of_the_same_name_replaces, setup, teardown),
        cmocka_unit_test_setup_teardown(sessions_without_a_name_or_of_other_roles_stay, setup, teardown),
        cmocka_unit_test_setup_teardown(a_role_that_is_not_accepted_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(addresses, setup, teardown),
        cmocka_unit_test_setup_teardown(a_stale_socket_is_replaced_other_files_are_not, setup, teardown),
        cmocka_unit_test_setup_teardown(the_listener_comes_later, setup, teardown),
        cmocka_unit_test_setup_teardown(a_wait_is_woken, setup, teardown),
    };
    alarm(300);
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
