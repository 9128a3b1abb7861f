/*
 * Sessions with peers that are killed, stopped or restarted. A peer is this program in another process, started with
 * "peer" as its first argument, because nng does not survive a fork.
 */
#include "session_pair.h"

#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

/* ---- the peer ---- */

/* "listen URL NAME": sends back every frame. "dial URL NAME": sends frames without end and takes those that arrive. */
static int peer(int argc, char **argv)
{
    struct session_event v;
    struct session *s = NULL;
    struct session_hub *h;
    (void)argc;
    bool listens = !strcmp(argv[2], "listen");
    h = hub(listens ? "sched" : "worker", argv[4], 0, 0);
    if (listens)
        OK(session_listen(&e, &l, h, argv[3], "worker", NULL));
    else
        OK(session_dial(&e, &s, h, argv[3], "sched", NULL));
    uint64_t n = 0;
    for (;;) {
        while (session_hub_next(h, &v)) {
            if (v.type == SESSION_UP && !write(1, "up\n", 3))
                return 1;
            if (v.type == SESSION_FRAME && listens)
                (void)session_send_bytes(&e, v.s, v.p, v.n);
        }
        while (!listens && session_is_up(s) && session_unacked_bytes(s) < 100000)
            send_tick(s, n++);
        session_hub_wait(h, -1);
    }
}

struct child {
    pid_t pid;
    int out;
};

static struct child start(const char *what, const char *at, const char *name)
{
    int from[2];
    struct child c;
    char *argv[] = {(char *)"session_death_test", (char *)"peer",          (char *)(uintptr_t)what,
                    (char *)(uintptr_t)at,        (char *)(uintptr_t)name, NULL};
    posix_spawn_file_actions_t fa;
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, from[1], 1);
    assert_int_equal(posix_spawn(&c.pid, "/proc/self/exe", &fa, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&fa);
    close(from[1]);
    c.out = from[0];
    return c;
}

static void end(struct child *c, int sig)
{
    kill(c->pid, sig);
    waitpid(c->pid, NULL, 0);
    close(c->out);
}

static int n_fds(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/fd");
    while (readdir(dir))
        n++;
    closedir(dir);
    return n;
}

/* ---- tests ---- */

static void a_killed_listener_is_detected_and_dialed_again(void **state)
{
    struct session_event v;
    (void)state;
    struct child c = start("listen", url, "s");
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    assert_true(next_of(&v, client, SESSION_UP, 5000));
    int64_t best = INT64_MAX;
    for (int round = 0; round < 5; round++) {
        for (uint64_t i = 0; i < 50; i++)
            send_tick(d, i);
        int64_t t = now_ms();
        end(&c, SIGKILL);
        assert_true(next_of(&v, client, SESSION_DOWN, 5000));
        best = now_ms() - t < best ? now_ms() - t : best;
        assert_int_equal(v.err.code, ERR_SYS);
        assert_non_null(strstr(v.err.text, url));
        assert_false(session_is_up(d));
        assert_int_equal(session_acked(d) + session_sent(d), 0);
        assert_int_equal(session_send(&e, d, &(struct wire_frame){.kind = WIRE_TICK}), ERR_USAGE);
        assert_false(next(&v, client, 30));
        c = start("listen", url, "s");
        assert_true(next_of(&v, client, SESSION_UP, 5000));
        send_tick(d, 7);
        assert_true(next_of(&v, client, SESSION_FRAME, 5000));
        assert_int_equal(tick_of(&v), 7);
    }
    end(&c, SIGKILL);
    assert_true(best < 100);
}

static void frames_of_a_listener_killed_under_load_arrive_in_order_at_most_once(void **state)
{
    struct session_event v;
    const char *rounds = getenv("ROUNDS");
    long n = rounds ? strtol(rounds, NULL, 10) : 10;
    (void)state;
    OK(session_dial(&e, &d, client, url, "sched", NULL));
    for (long round = 0; round < n; round++) {
        struct child c = start("listen", url, "s");
        assert_true(next_of(&v, client, SESSION_UP, 5000));
        uint64_t sent = 0, received = 0;
        bool killed = false;
        int64_t t = now_ms();
        while (session_is_up(d)) {
            while (!killed && session_is_up(d) && sent < received + 1000)
                send_tick(d, sent++);
            while (session_hub_next(client, &v))
                if (v.type == SESSION_FRAME)
                    assert_int_equal(tick_of(&v), received++);
            if (!killed && received > 2000) {
                killed = true;
                kill(c.pid, SIGKILL);
            }
            session_hub_wait(client, 10);
            if (now_ms() - t > 20000)
                fail_msg("round %ld: %d frames sent, %d received", round, (int)sent, (int)received);
        }
        end(&c, SIGKILL);
        assert_true(received <= sent);
    }
}

static void dialers_killed_at_random_leak_nothing(void **state)
{
    struct session_event v;
    struct child c[4];
    char name[8];
    const char *kills = getenv("KILLS");
    int n_kill = kills ? (int)strtol(kills, NULL, 10) : 200, n_open = 0, fds = 0;
    size_t memory = 0;
    uint64_t seed = 12345;
    (void)state;
    session_hub_free(client);
    client = NULL;
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    for (int i = 0; i < n_kill + 4; i++) {
        if (i == 20) { /* one-time allocations are done by now */
            memory = mallinfo2().uordblks;
            fds = n_fds();
        }
        int k = i % 4;
        if (i >= 4)
            end(&c[k], SIGKILL);
        snprintf(name, sizeof name, "w%d", k);
        c[k] = start("dial", session_listener_url(l), name);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        int64_t until = now_ms() + (int64_t)(seed >> 33) % 40;
        while (now_ms() < until || (i < 4 && n_open <= i))
            if (session_hub_next(server, &v))
                n_open += v.type == SESSION_UP ? 1 : v.type == SESSION_DOWN ? -1 : 0;
            else
                session_hub_wait(server, 5);
    }
    for (int k = 0; k < 4; k++)
        end(&c[k], SIGKILL);
    int64_t t = now_ms(), last = t;
    while (n_open && now_ms() - t < 5000)
        if (next(&v, server, 100)) {
            n_open += v.type == SESSION_UP ? 1 : v.type == SESSION_DOWN ? -1 : 0;
            last = now_ms();
        }
    assert_int_equal(n_open, 0);
    assert_true(last - t < slow(1000));
    for (t = now_ms(); n_fds() > fds - 4 && now_ms() - t < 3000;) /* connections of peers killed before their hello */
        assert_false(next(&v, server, 100));
    assert_true(n_fds() <= fds - 4);
    memory += 256 << 10;
    for (t = now_ms(); mallinfo2().uordblks >= memory && now_ms() - t < 3000;) /* nng frees connections in a thread */
        assert_false(next(&v, server, 100));
    if (!getenv("ASAN_OPTIONS"))
        assert_true(mallinfo2().uordblks < memory);
    struct child last_one = start("dial", session_listener_url(l), "w"); /* it still accepts */
    assert_true(next_of(&v, server, SESSION_UP, 5000));
    end(&last_one, SIGKILL);
}

static void a_stopped_peer_is_closed_and_connects_again(void **state)
{
    struct session_event v;
    (void)state;
    session_hub_free(server);
    server = hub("sched", "s", 0, 300);
    session_hub_free(client);
    client = NULL;
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    struct child c = start("dial", url, "w");
    assert_true(next_of(&v, server, SESSION_UP, 5000));
    kill(c.pid, SIGSTOP);
    int64_t t = now_ms();
    assert_true(next_of(&v, server, SESSION_DOWN, 5000));
    assert_true(now_ms() - t >= 250 && now_ms() - t < slow(1000));
    assert_non_null(strstr(v.err.text, "worker w: nothing was received for 300 ms"));
    kill(c.pid, SIGCONT);
    assert_true(next_of(&v, server, SESSION_UP, 5000));
    end(&c, SIGKILL);
    assert_true(next_of(&v, server, SESSION_DOWN, 5000));
}

/* Each side sends keepalives often enough for the other's timeout. */
static void idle_sessions_stay_up(void **state)
{
    struct session_event v;
    (void)state;
    session_hub_free(server);
    server = hub("sched", "s", 0, 300);
    connect_both();
    int64_t end_at = now_ms() + 1200;
    while (now_ms() < end_at) {
        while (session_hub_next(server, &v) || session_hub_next(client, &v))
            assert_true(v.type == SESSION_ACKED);
        session_hub_wait(server, 10);
        session_hub_wait(client, 10);
    }
}

/* While this process is stopped it cannot receive: the timeouts of its peers start again. */
static void time_in_which_this_process_was_stopped_does_not_count(void **state)
{
    struct session_event v;
    (void)state;
    session_hub_free(server);
    server = hub("sched", "s", 0, 1000);
    session_hub_free(client);
    client = NULL;
    OK(session_listen(&e, &l, server, url, "worker", NULL));
    struct child c = start("dial", url, "w");
    assert_true(next_of(&v, server, SESSION_UP, 5000));
    kill(c.pid, SIGSTOP);
    while (next(&v, server, 100))
        assert_int_equal(v.type, SESSION_FRAME);
    usleep(2500000); /* for the hub, this process was stopped too */
    int64_t t = now_ms();
    assert_false(next(&v, server, 400));
    assert_true(next_of(&v, server, SESSION_DOWN, 5000)); /* the peer is still stopped */
    assert_true(now_ms() - t >= 500);
    end(&c, SIGKILL);
}

#define BOTH(test)                                                                                                     \
    TEST(test),                                                                                                        \
    {                                                                                                                  \
#test " (tcp)", test, setup_tcp, teardown, NULL                                                                \
    }

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(a_killed_listener_is_detected_and_dialed_again),
        TEST(frames_of_a_listener_killed_under_load_arrive_in_order_at_most_once),
        BOTH(dialers_killed_at_random_leak_nothing),
        TEST(a_stopped_peer_is_closed_and_connects_again),
        BOTH(idle_sessions_stay_up),
        TEST(time_in_which_this_process_was_stopped_does_not_count),
    };
    if (argc == 5 && !strcmp(argv[1], "peer"))
        return peer(argc, argv);
    alarm(300);
    cmocka_set_test_filter(getenv("ONLY"));
    return cmocka_run_group_tests(tests, NULL, NULL);
}
