/* The socket server with misbehaving clients; readiness messages of proc/notify.h. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/loop.h"
#include "base/socket.h"
#include "link/server.h"
#include "proc/notify.h"
#include "unit/asserts.h"

static char url[80], *path = url + 5;

struct seen {
    struct loop *loop;
    struct link_server *s;
    int n_frame, n_bad, n_closed, last_kind, fd;
    char bad[480];
    int answers; /* number of responses of 1 MiB to each frame */
    struct link_conn *conn;
};

static void on_frame(void *arg, struct link_conn *c, const struct wire_frame *f)
{
    static uint8_t big[WIRE_KV_EVENT_BYTES_MAX];
    struct seen *v = arg;
    v->n_frame++;
    v->last_kind = (int)f->kind;
    v->conn = c;
    int fd[SOCKET_FDS];
    link_take_fds(c, fd);
    if (fd[0] >= 0)
        v->fd = fd[0];
    for (int i = 0; i < v->answers; i++)
        link_send(c, &(struct wire_frame){.kind = WIRE_KV_EVENT, .kv_event = {.stored = {big, sizeof big}}}, NULL);
    if (!v->answers)
        link_send(c, f, v->fd >= 0 ? (const int[SOCKET_FDS]){v->fd, -1} : NULL);
}

static void on_bad(void *arg, struct link_conn *c, const struct err *e)
{
    struct seen *v = arg;
    v->n_bad++;
    snprintf(v->bad, sizeof v->bad, "%s", e->text);
    link_send(c, &(struct wire_frame){.kind = WIRE_KV_NO, .kv_no = {.why = 1, .code = 2, .text = {"no", 2}}}, NULL);
}

static void on_closed(void *arg, struct link_conn *c)
{
    struct seen *v = arg;
    v->n_closed++;
    (void)c;
}

static const struct link_ops ops = {on_frame, on_bad, on_closed};

static int setup(void **state)
{
    struct err e = {0};
    bool stale;
    struct seen *v = calloc(1, sizeof *v);
    v->fd = -1;
    snprintf(url, sizeof url, "unix:/tmp/link_test.%d", (int)getpid());
    OK(loop_new(&e, &v->loop));
    OK(link_server_new(&e, &v->s, &stale, v->loop, url, &ops, v));
    assert_false(stale);
    *state = v;
    return 0;
}

static int teardown(void **state)
{
    struct seen *v = *state;
    link_server_free(v->s);
    loop_free(v->loop);
    assert_int_not_equal(access(path, F_OK), 0);
    if (v->fd >= 0)
        close(v->fd);
    free(v);
    return 0;
}

static int dial(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    assert_int_equal(connect(sock, (struct sockaddr *)&a, sizeof a), 0);
    return sock;
}

static void turn(struct seen *v)
{
    struct err e = {0};
    bool did = true;
    for (int i = 0; i < 200 && did; i++)
        OK(loop_step(&e, v->loop, &did, 5));
}

/* kv_renew with tag 5, by hand from the msgpack specification. */
static const uint8_t renew[] = {0xce, 0, 0, 0, 9, 0x82, 0xa1, 'k', 43, 0xa3, 't', 'a', 'g', 5};

static void frames_are_assembled_from_pieces(void **state)
{
    struct seen *v = *state;
    uint8_t got[sizeof renew + 1];
    int a = dial(), b = dial();
    for (size_t i = 0; i < sizeof renew; i++) {
        assert_int_equal(v->n_frame, 0);
        assert_int_equal(write(a, renew + i, 1), 1);
        turn(v);
    }
    assert_int_equal(v->n_frame, 1);
    assert_int_equal(read(a, got, sizeof got), sizeof renew);
    assert_memory_equal(got, renew, sizeof renew);
    uint8_t many[100 * sizeof renew];
    for (int i = 0; i < 100; i++)
        memcpy(many + i * sizeof renew, renew, sizeof renew);
    assert_int_equal(write(b, many, sizeof many), sizeof many);
    turn(v);
    assert_int_equal(v->n_frame, 101);
    assert_int_equal(read(b, many, sizeof many), sizeof many);
    close(a);
    turn(v);
    assert_int_equal(v->n_closed, 1);
    close(b);
    turn(v);
    assert_int_equal(v->n_closed, 2);
}

static void bytes_that_are_not_a_frame_end_the_connection(void **state)
{
    struct seen *v = *state;
    static const struct {
        uint8_t bytes[16];
        size_t n;
        const char *reason;
    } bad[] = {
        {"GET / HTTP", 10, "not a frame (byte 0x47)"},
        {{0xce, 0xff, 0xff, 0xff, 0xff}, 5, "4294967295 bytes, the limit is"},
        {{0xce, 0, 0, 0, 1, 0xc1}, 6, "0xc1"},
        {{0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 43}, 9, "field tag: it is missing"},
        {{0xce, 0, 0, 0, 4, 0x81, 0xa1, 'k', 99}, 9, "99 is not a kind"},
        {{0xce, 0, 0, 0, 0}, 5, "the bytes end"},
    };
    int good = dial();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint8_t got[64];
        int s = dial();
        assert_int_equal(write(s, bad[i].bytes, bad[i].n), bad[i].n);
        turn(v);
        if (!strstr(v->bad, bad[i].reason))
            fail_msg("\"%s\" does not contain \"%s\"", v->bad, bad[i].reason);
        assert_true(read(s, got, sizeof got) > 10); /* kv_no */
        assert_int_equal(read(s, got, sizeof got), 0);
        close(s);
    }
    assert_int_equal(v->n_frame, 0);
    assert_int_equal(write(good, renew, sizeof renew), sizeof renew);
    turn(v);
    assert_int_equal(v->n_frame, 1);
    close(good);
}

/* Above the limit of its queue it is disconnected. */
static void a_slow_reader_delays_only_itself(void **state)
{
    struct seen *v = *state;
    uint8_t got[64];
    int slow = dial(), quick = dial();
    v->answers = 1;
    for (int i = 0; i < 20; i++) {
        assert_int_equal(write(slow, renew, sizeof renew), sizeof renew);
        turn(v);
    }
    assert_true(v->n_frame < 20); /* back pressure: the server stops reading from it */
    int n = v->n_frame;
    v->answers = 0;
    assert_int_equal(write(quick, renew, sizeof renew), sizeof renew);
    turn(v);
    assert_int_equal(v->n_frame, n + 1);
    assert_int_equal(read(quick, got, sizeof got), sizeof renew);
    v->answers = 100;
    assert_int_equal(write(quick, renew, sizeof renew), sizeof renew);
    turn(v);
    assert_int_equal(v->n_closed, 1); /* above the limit of its queue */
    close(slow);
    close(quick);
}

static int send_with_fd(int sock, const void *p, size_t n, const int *fd, int n_fd)
{
    struct iovec iov = {(void *)(uintptr_t)p, n};
    char room[CMSG_SPACE(8 * sizeof(int))] = {0};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = room,
                       .msg_controllen = CMSG_SPACE((size_t)n_fd * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)n_fd * sizeof(int));
    memcpy(CMSG_DATA(c), fd, (size_t)n_fd * sizeof(int));
    return (int)sendmsg(sock, &m, 0);
}

static int open_fds(void)
{
    int n = 0;
    for (int i = 0; i < 256; i++)
        n += fcntl(i, F_GETFD) >= 0;
    return n;
}

static void descriptors_are_passed_without_leaks(void **state)
{
    struct seen *v = *state;
    int file = memfd_create("x", 0), sock = dial(), many[8];
    struct stat a, b;
    turn(v);
    int before = open_fds();
    assert_int_equal(send_with_fd(sock, renew, sizeof renew, &file, 1), sizeof renew);
    turn(v);
    assert_true(v->fd >= 0 && !fstat(v->fd, &a) && !fstat(file, &b) && a.st_ino == b.st_ino);
    assert_true(fcntl(v->fd, F_GETFD) & FD_CLOEXEC);
    assert_int_equal(open_fds(), before + 1); /* the copy that was sent back is still in the socket */
    close(v->fd);
    v->fd = -1;
    for (int i = 0; i < 8; i++)
        many[i] = file;
    assert_int_equal(send_with_fd(sock, renew, 3, many, 8), 3);
    turn(v);
    close(sock);
    turn(v);
    assert_true(open_fds() <= before);
    close(file);
}

/* A descriptor arrives with the first byte of its frame; a second one in the queue closes the connection. */
static void a_descriptor_is_sent_with_its_frame(void **state)
{
    struct seen *v = *state;
    const struct wire_frame f = {.kind = WIRE_KV_RENEW, .kv_handle = {.tag = 5}};
    uint8_t got[4 * sizeof renew];
    int file = memfd_create("x", 0), sock = dial(), fd[SOCKET_FDS] = {-1, -1};
    const int files[SOCKET_FDS] = {file, sock};
    assert_int_equal(write(sock, renew, sizeof renew), sizeof renew);
    turn(v);
    int before = open_fds();
    link_send(v->conn, &f, NULL);
    link_send(v->conn, &f, files);
    link_send(v->conn, &f, NULL);
    turn(v);
    assert_int_equal(socket_recv(sock, got, 2 * sizeof renew, fd), 2 * sizeof renew);
    assert_int_equal(fd[0], -1);
    assert_int_equal(socket_recv(sock, got, sizeof got, fd), 2 * sizeof renew);
    assert_true(fd[0] >= 0 && fd[1] >= 0 && open_fds() == before + 2);
    assert_memory_equal(got + sizeof renew, renew, sizeof renew);
    socket_fds_close(fd);
    link_send(v->conn, &f, files);
    link_send(v->conn, &f, files);
    turn(v);
    assert_int_equal(v->n_closed, 1);
    assert_int_equal(open_fds(), before - 1);
    close(sock);
    close(file);
}

static void a_socket_in_use_is_not_replaced(void **state)
{
    struct seen *v = *state;
    struct err e = {0};
    struct link_server *s;
    bool stale;
    assert_int_equal(link_server_new(&e, &s, &stale, v->loop, url, &ops, v), ERR_NO);
    assert_non_null(strstr(e.text, "another program listens"));
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(link_server_new(&e, &s, &stale, v->loop, "tcp://x", &ops, v), ERR_USAGE);
    char longer[300] = "unix:";
    memset(longer + 5, 'x', 200);
    assert_int_equal(link_server_new(&e, &s, &stale, v->loop, longer, &ops, v), ERR_USAGE);
}

static void the_service_manager_is_notified(void **state)
{
    (void)state;
    struct err e = {0};
    char got[64], file[80];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(file, sizeof file, "/tmp/link_test.%d.n", (int)getpid());
    snprintf(a.sun_path, sizeof a.sun_path, "%s", file);
    unsetenv("NOTIFY_SOCKET");
    OK(proc_notify(&e, "READY=1", -1));
    int sock = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(sock, (struct sockaddr *)&a, sizeof a), 0);
    setenv("NOTIFY_SOCKET", file, 1);
    OK(proc_notify(&e, "READY=1", -1));
    assert_int_equal(recv(sock, got, sizeof got, MSG_DONTWAIT), 7);
    assert_memory_equal(got, "READY=1", 7);
    close(sock);
    unlink(file);
    assert_int_equal(proc_notify(&e, "READY=1", -1), ERR_SYS);
    unsetenv("NOTIFY_SOCKET");
    assert_int_equal(proc_kept_fd("arena"), -1);
    setenv("LISTEN_FDS", "2", 1);
    setenv("LISTEN_FDNAMES", "other:arena", 1);
    setenv("LISTEN_PID", "1", 1);
    assert_int_equal(proc_kept_fd("arena"), -1);
}

/* It is written by one call, and its descriptor is closed afterwards. */
static void readiness_is_one_message(void **state)
{
    (void)state;
    struct err e = {0};
    char got[PROC_READY_BYTES_MAX + 64], many[PROC_READY_BYTES_MAX + 1];
    memset(many, 'x', sizeof many - 1);
    many[sizeof many - 1] = 0;
    const char *const addresses[] = {"", "HTTP=http://127.0.0.1:8000\nOLLAMA=unix:there\n", many};
    unsetenv("NOTIFY_SOCKET");
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        int p[2];
        size_t n = strlen(addresses[i]);
        assert_int_equal(pipe(p), 0);
        OK(i ? proc_ready_at(&e, NULL, p[1], addresses[i]) : proc_ready(&e, NULL, p[1]));
        assert_int_equal(read(p[0], got, sizeof got), 6 + n);
        assert_memory_equal(got, "ready\n", 6);
        assert_memory_equal(got + 6, addresses[i], n);
        assert_int_equal(read(p[0], got, 1), 0);
        close(p[0]);
    }
    memset(got, 'x', sizeof got - 1);
    got[sizeof got - 1] = 0;
    assert_int_equal(proc_ready_at(&e, NULL, 0, got), ERR_USAGE);
    OK(proc_ready(&e, NULL, -1));
    setenv("NOTIFY_SOCKET", "/nowhere/at/all", 1);
    struct err manager = {0};
    assert_int_equal(proc_ready(&e, NULL, -1), ERR_SYS);
    OK(proc_ready(&e, &manager, -1));
    assert_int_equal(manager.code, ERR_SYS);
    unsetenv("NOTIFY_SOCKET");
}

int main(void)
{
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(frames_are_assembled_from_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(bytes_that_are_not_a_frame_end_the_connection, setup, teardown),
        cmocka_unit_test_setup_teardown(a_slow_reader_delays_only_itself, setup, teardown),
        cmocka_unit_test_setup_teardown(descriptors_are_passed_without_leaks, setup, teardown),
        cmocka_unit_test_setup_teardown(a_descriptor_is_sent_with_its_frame, setup, teardown),
        cmocka_unit_test_setup_teardown(a_socket_in_use_is_not_replaced, setup, teardown),
        cmocka_unit_test(the_service_manager_is_notified),
        cmocka_unit_test(readiness_is_one_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
