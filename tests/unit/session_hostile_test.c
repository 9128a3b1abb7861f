/* Sessions with peers that violate the protocol, stop halfway, are too many, or use plain frames (kvstore). */
#include "session_pair.h"

#include <sys/resource.h>

#include "link/session_core.h"

#define RAW(name) static void name(void **state)

static void listen_server(void)
{
    OK(session_listen(&e, &l, server, url, "worker tool", NULL));
}

static int raw_up(const char *name)
{
    struct wire_frame f;
    int fd = connect_raw();
    accepted = NULL;
    hello_raw(fd, WIRE_VERSION, "worker", name);
    assert_true(read_raw(fd, &f));
    assert_int_equal(f.kind, WIRE_SESSION_HELLO);
    while (!accepted)
        run(never, 1);
    return fd;
}

static void write_bytes(int fd, const void *p, size_t n)
{
    assert_int_equal(send(fd, p, n, MSG_NOSIGNAL), n);
}

/* A correct peer is still served. */
static void still_serves(void)
{
    struct wire_frame f;
    int fd = raw_up("good");
    write_raw(fd, &(struct wire_frame){.kind = WIRE_TICK});
    assert_true(read_raw(fd, &f));
    assert_int_equal(f.kind, WIRE_SESSION_ACK);
    assert_int_equal(f.session_ack.n, 1);
    close(fd);
}

RAW(garbage_before_the_hello_is_refused)
{
    static const uint8_t long_one[] = {0xce, 0, 0, 0x20, 0, 0x81}, empty[] = {0xce, 0, 0, 0, 0},
                         no_map[] = {0xce, 0, 0, 0, 1, 0xc0};
    (void)state;
    listen_server();
    int fd = connect_raw();
    write_bytes(fd, "GET / HTTP/1.1\r\n\r\n", 18);
    ended_raw(fd, "not a frame");
    fd = connect_raw();
    write_bytes(fd, long_one, sizeof long_one); /* 8,192 bytes exceed the limit of a hello */
    ended_raw(fd, "the limit is 4096");
    fd = connect_raw();
    write_bytes(fd, empty, sizeof empty);
    ended_raw(fd, "");
    fd = connect_raw();
    write_bytes(fd, no_map, sizeof no_map);
    ended_raw(fd, "");
    fd = connect_raw();
    write_raw(fd, &(struct wire_frame){.kind = WIRE_TICK});
    ended_raw(fd, "before session_hello");
    still_serves();
}

RAW(another_version_or_role_is_refused)
{
    char want[40];
    (void)state;
    listen_server();
    int fd = connect_raw();
    hello_raw(fd, WIRE_VERSION - 1, "worker", "w");
    snprintf(want, sizeof want, "(sched) has %d", WIRE_VERSION);
    ended_raw(fd, want);
    fd = connect_raw();
    hello_raw(fd, WIRE_VERSION, "gateway", "g");
    ended_raw(fd, "role gateway is not accepted here, only: worker tool");
    still_serves();
}

RAW(half_a_hello_times_out)
{
    (void)state;
    listen_server();
    int64_t t = now_ms();
    int none = connect_raw(), half = connect_raw();
    write_bytes(half, "\xce\0\0\0\x20\x85\xa1k", 8);
    ended_raw(half, "no session_hello");
    ended_raw(none, "no session_hello");
    assert_true(now_ms() - t >= SESSION_HELLO_MS - 10 && now_ms() - t < SESSION_HELLO_MS + slow(1000));
    still_serves();
}

RAW(an_oversize_length_after_the_hello_is_refused)
{
    static const uint8_t huge[] = {0xce, 2, 0, 0, 1, 0x81};
    (void)state;
    listen_server();
    int fd = raw_up("w");
    write_bytes(fd, huge, sizeof huge);
    ended_raw(fd, "the limit is 33554432");
    still_serves();
}

RAW(an_acknowledgement_of_unsent_frames_is_refused)
{
    struct session_event v;
    (void)state;
    listen_server();
    int fd = raw_up("w");
    send_tick(accepted, 1);
    write_raw(fd, &(struct wire_frame){.kind = WIRE_SESSION_ACK, .session_ack = {.n = 1}});
    assert_true(next_of(&v, server, SESSION_ACKED, 5000));
    write_raw(fd, &(struct wire_frame){.kind = WIRE_SESSION_ACK, .session_ack = {.n = 2}});
    assert_true(next_of(&v, server, SESSION_DOWN, 5000));
    assert_int_equal(v.err.code, ERR_PROTO);
    ended_raw(fd, "2 frames acknowledged");
    fd = raw_up("w");
    send_tick(accepted, 1);
    send_tick(accepted, 1);
    write_raw(fd, &(struct wire_frame){.kind = WIRE_SESSION_ACK, .session_ack = {.n = 2}});
    write_raw(fd, &(struct wire_frame){.kind = WIRE_SESSION_ACK, .session_ack = {.n = 1}});
    ended_raw(fd, "1 frames acknowledged");
    still_serves();
}

RAW(misplaced_and_malformed_session_frames_are_refused)
{
    (void)state;
    listen_server();
    int fd = raw_up("w");
    hello_raw(fd, WIRE_VERSION, "worker", "w");
    ended_raw(fd, "a second session_hello");
    fd = raw_up("w");
    write_bytes(fd, "\xce\0\0\0\x05\x81\xa1k\x42\xc0", 10); /* session_ack without its field */
    ended_raw(fd, "");
    still_serves();
}

/* The caller decides whether a frame that violates its schema ends the session. */
RAW(a_malformed_frame_is_passed_to_the_caller)
{
    struct session_event v;
    struct wire_frame f;
    (void)state;
    listen_server();
    int fd = raw_up("w");
    write_bytes(fd, "\xce\0\0\0\x01\xc0\xce\0\0\0\x04\x81\xa1k\x38", 15);
    assert_true(next_of(&v, server, SESSION_FRAME, 5000));
    assert_int_equal(session_frame(&e, &f, arena, &v), ERR_PROTO);
    assert_true(next_of(&v, server, SESSION_FRAME, 5000));
    assert_int_equal(tick_of(&v), 0);
    session_close(v.s, "not what was expected");
    ended_raw(fd, "not what was expected");
}

/* A peer may send one window and one frame without an acknowledgement; the core allocates no memory for more. */
RAW(more_bytes_than_any_window_are_refused)
{
    static uint8_t chunk[1 << 20];
    struct session_self self = {.role = "sched"};
    struct core c;
    const uint8_t *p;
    size_t n;
    uint64_t all = 0;
    (void)state;
    OK(core_init(
        &e, &c,
        &(struct core_opts){.self = &self, .roles = "worker", .window = 1000, .silence_ms = 100, .arena = arena}, 0));
    c.state = CORE_UP;
    memcpy(chunk, "\xce\0\x0f\xff\xfb\x82\xa1k\x38\xa1x\xc6\0\x0f\xff\xf1", 16);
    while (c.state == CORE_UP && all < 100 << 20) {
        core_received(&c, chunk, sizeof chunk, 0);
        all += sizeof chunk;
    }
    assert_int_equal(c.state, CORE_ENDED);
    assert_true(all > SESSION_WINDOW_BYTES + SESSION_FRAME_BYTES_MAX && all <= 50 << 20);
    assert_int_equal(core_next(&c, &p, &n, 0), CORE_EV_DOWN);
    assert_int_equal(c.err.code, ERR_PROTO);
    assert_null(c.in.p);
    core_free(&c);
}

/* A peer that states a silence of 1 ms does not make this side send a thousand pings a second. */
RAW(a_short_silence_of_a_peer_causes_no_flood_of_pings)
{
    struct session_self self = {.role = "sched", .name = ""};
    struct wire_frame f = {
        .kind = WIRE_SESSION_HELLO,
        .session_hello = {
            .version = WIRE_VERSION, .role = wire_str_of("worker"), .name = wire_str_of("w"), .silence_ms = 1}};
    struct core c;
    uint8_t *hello = NULL;
    const uint8_t *p;
    size_t n = 0, cap = 0, pings = 0;
    (void)state;
    OK(wire_encode_add(&e, &hello, &n, &cap, &f));
    OK(core_init(
        &e, &c,
        &(struct core_opts){.self = &self, .roles = "worker", .window = 1000, .silence_ms = 5000, .arena = arena}, 0));
    core_received(&c, hello, n, 0);
    assert_int_equal(core_next(&c, &p, &n, 0), CORE_EV_UP);
    for (uint64_t now = 0; now < 1000; now++) {
        while (core_out(&c, &n) && n) {
            core_wrote(&c, n);
            pings++;
        }
        core_tick(&c, now);
    }
    assert_in_range(pings, 10, 51); /* its hello is one of them */
    core_free(&c);
    free(hello);
}

RAW(hostile_connections_do_not_delay_a_correct_peer)
{
    struct session_event v;
    int quiet[50];
    (void)state;
    listen_server();
    for (int i = 0; i < 300; i++)
        close(connect_raw());
    for (int i = 0; i < 50; i++) {
        quiet[i] = connect_raw();
        if (i % 3)
            write_bytes(quiet[i], i % 3 == 1 ? "GET / HT" : "\xce\0\0\x08\0\x85\xa1k", 8);
    }
    int64_t t = now_ms();
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    n_up = 0;
    assert_true(run(both_up, 5000));
    assert_true(now_ms() - t < slow(500));
    send_tick(d, 3);
    assert_true(next_of(&v, server, SESSION_FRAME, 5000));
    for (int i = 0; i < 50; i++)
        close(quiet[i]);
    still_serves();
}

RAW(a_session_above_the_limit_is_refused_with_a_reason)
{
    static int fd[SESSIONS_MAX + 1];
    struct rlimit r;
    struct wire_frame f;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &r), 0);
    r.rlim_cur = r.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &r), 0);
    session_hub_free(server);
    server = hub("sched", "s", 0, 60000); /* the raw peers send no keepalive */
    listen_server();
    for (int i = 0; i < SESSIONS_MAX; i++) {
        fd[i] = connect_raw();
        hello_raw(fd[i], WIRE_VERSION, "tool", "");
        if (i % 64 == 63)
            assert_true(read_raw(fd[i], &f));
    }
    assert_int_equal(f.kind, WIRE_SESSION_HELLO);
    fd[SESSIONS_MAX] = connect_raw();
    ended_raw(fd[SESSIONS_MAX], "too many sessions, the limit is 4096");
    for (int i = 0; i < SESSIONS_MAX; i++)
        close(fd[i]);
    run(never, 100);
    still_serves();
}

/* ---- a dialer ---- */

static int raw_listener(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    unlink(url + 6);
    assert_int_equal(bind(s, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(listen(s, 5), 0);
    return s;
}

RAW(a_listener_of_another_protocol_is_refused_and_dialed_slowly)
{
    struct session_event v;
    (void)state;
    int s = raw_listener();
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    int fd = accept(s, NULL, NULL);
    write_bytes(fd, "220 smtp ready\r\n", 16);
    assert_true(next(&v, client, 5000));
    assert_int_equal(v.type, SESSION_REFUSED);
    assert_int_equal(v.err.code, ERR_PROTO);
    assert_non_null(strstr(v.err.text, url));
    assert_non_null(strstr(v.err.text, "not a frame"));
    int64_t t = now_ms();
    struct pollfd p = {.fd = s, .events = POLLIN};
    while (!poll(&p, 1, 5))
        assert_false(next(&v, client, 5));
    assert_true(now_ms() - t >= 900); /* it is dialed once a second */
    close(fd);
    fd = accept(s, NULL, NULL);
    close(fd); /* closed before the hello: no event */
    assert_false(next(&v, client, 200));
    close(s);
    unlink(url + 6);
}

/* kvstore uses frames without hello, acknowledgement and keepalive. */
RAW(a_plain_peer_exchanges_frames_without_hello)
{
    struct session_event v;
    uint8_t in[64];
    char unix_url[100];
    (void)state;
    int s = raw_listener();
    snprintf(unix_url, sizeof unix_url, "unix:%s", url + 6);
    session_hub_free(client);
    client = hub("sched", "s", 10000, 200);
    OK(session_dial_plain(&e, &d, client, unix_url, &d));
    int fd = accept(s, NULL, NULL);
    assert_true(next(&v, client, 5000));
    assert_int_equal(v.type, SESSION_UP);
    assert_ptr_equal(v.s, d);
    send_tick(d, 5);
    assert_false(next(&v, client, 500)); /* longer than the receive timeout */
    assert_int_equal(recv(fd, in, sizeof in, 0), 16);
    assert_memory_equal(in,
                        "\xce\0\0\0\x0b\x82\xa1k\x38\xa5"
                        "at_ns\x05",
                        16);
    write_bytes(fd, in, 16);
    assert_true(next(&v, client, 5000));
    assert_int_equal(tick_of(&v), 5);
    assert_int_equal(session_acked(d), 0);
    int rc = 0, n = 0;
    while (!(rc = session_send(&e, d, &(struct wire_frame){.kind = WIRE_TICK})))
        n++;
    assert_int_equal(rc, ERR_NO); /* 10,000 bytes are not yet written */
    assert_true(n > 1000 && n < 1200);
    close(fd);
    assert_true(next_of(&v, client, SESSION_DOWN, 5000));
    assert_true(next_of(&v, client, SESSION_UP, 5000));
    fd = accept(s, NULL, NULL);
    send_tick(d, 6);
    session_bye(d, 1000);
    assert_true(next_of(&v, client, SESSION_DOWN, 5000));
    assert_int_equal(v.err.code, 0);
    assert_int_equal(recv(fd, in, sizeof in, 0), 16);
    close(fd);
    close(s);
    unlink(url + 6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(garbage_before_the_hello_is_refused),
        TEST(another_version_or_role_is_refused),
        TEST(half_a_hello_times_out),
        TEST(an_oversize_length_after_the_hello_is_refused),
        TEST(an_acknowledgement_of_unsent_frames_is_refused),
        TEST(misplaced_and_malformed_session_frames_are_refused),
        TEST(a_malformed_frame_is_passed_to_the_caller),
        TEST(more_bytes_than_any_window_are_refused),
        TEST(a_short_silence_of_a_peer_causes_no_flood_of_pings),
        TEST(hostile_connections_do_not_delay_a_correct_peer),
        TEST(a_session_above_the_limit_is_refused_with_a_reason),
        TEST(a_listener_of_another_protocol_is_refused_and_dialed_slowly),
        TEST(a_plain_peer_exchanges_frames_without_hello),
    };
    alarm(300);
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
