/* The event loop: descriptors, timers compared with a model, events raised by other threads, wake-ups by signal
 * handlers. */
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/loop.h"
#include "base/time.h"
#include "unit/asserts.h"

static struct loop *loop;
static struct err e;

static int setup(void **state)
{
    (void)state;
    return loop_new(&e, &loop);
}

static int teardown(void **state)
{
    (void)state;
    loop_free(loop);
    return 0;
}

static bool step(int timeout_ms)
{
    bool did;
    assert_int_equal(loop_step(&e, loop, &did, timeout_ms), 0);
    return did;
}

static bool is_ready(void)
{
    struct pollfd p = {.fd = loop_epoll_fd(loop), .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* ---- descriptors ---- */

struct end {
    struct loop_fd fd, *other;
    int pipe[2];
    unsigned n;
    uint32_t events;
};

static void readable(void *arg, uint32_t events)
{
    struct end *p = arg;
    char c;
    p->n++;
    p->events = events;
    if (events & EPOLLIN)
        (void)!read(p->pipe[0], &c, 1);
    if (p->other)
        loop_fd_remove(p->other);
}

static void end_open(struct end *p)
{
    memset(p, 0, sizeof *p);
    assert_int_equal(pipe(p->pipe), 0);
    assert_int_equal(loop_fd_add(&e, loop, &p->fd, p->pipe[0], EPOLLIN, readable, p), 0);
}

static void end_close(struct end *p)
{
    loop_fd_remove(&p->fd);
    loop_fd_remove(&p->fd);
    close(p->pipe[0]);
    if (p->pipe[1] >= 0)
        close(p->pipe[1]);
}

static void test_descriptor_is_called_while_ready(void **state)
{
    (void)state;
    struct end p;
    end_open(&p);
    assert_false(step(0));
    assert_int_equal(write(p.pipe[1], "ab", 2), 2);
    assert_true(step(-1));
    assert_true(step(-1));
    assert_int_equal(p.n, 2);
    assert_false(step(1));
    assert_int_equal(loop_fd_set(&e, &p.fd, 0), 0);
    assert_int_equal(write(p.pipe[1], "c", 1), 1);
    assert_false(step(1));
    assert_int_equal(loop_fd_set(&e, &p.fd, EPOLLIN), 0);
    assert_true(step(-1));
    close(p.pipe[1]);
    p.pipe[1] = -1;
    assert_true(step(-1));
    assert_true(p.events & EPOLLHUP);
    end_close(&p);
    assert_false(step(0));
}

static void test_invalid_descriptor_is_refused(void **state)
{
    (void)state;
    struct loop_fd d;
    assert_int_equal(loop_fd_add(&e, loop, &d, -1, EPOLLIN, readable, NULL), ERR_SYS);
    assert_non_null(strstr(e.text, "epoll: descriptor -1: "));
    assert_null(d.loop);
    loop_fd_remove(&d);
}

/* Both are ready in one step; the one that is called first removes the other. */
static void test_removed_in_a_step_is_not_called(void **state)
{
    (void)state;
    struct end a, b;
    end_open(&a);
    end_open(&b);
    a.other = &b.fd;
    b.other = &a.fd;
    assert_int_equal(write(a.pipe[1], "a", 1), 1);
    assert_int_equal(write(b.pipe[1], "b", 1), 1);
    assert_true(step(-1));
    assert_int_equal(a.n + b.n, 1);
    assert_false(step(0));
    end_close(&a);
    end_close(&b);
}

/* ---- timers ---- */

struct timed {
    struct loop_timer t;
    unsigned n;
    uint64_t last_ns, again_ns;
    bool again;
};

static uint64_t order_ns;
static unsigned n_late; /* called before one with an earlier deadline */

static void due(void *arg)
{
    struct timed *p = arg;
    p->n++;
    n_late += p->last_ns < order_ns;
    order_ns = p->last_ns;
    if (p->again)
        loop_timer_set(&p->t, p->again_ns);
}

static void set(struct timed *p, uint64_t at_ns)
{
    p->last_ns = at_ns;
    loop_timer_set(&p->t, at_ns);
}

static void test_timer_is_called_once_at_its_time(void **state)
{
    (void)state;
    struct timed p = {.n = 0};
    loop_timer_init(loop, &p.t, due, &p);
    assert_int_equal(loop_next_ns(loop), UINT64_MAX);
    uint64_t at = time_now_ns() + 3 * NS_MS;
    set(&p, at);
    assert_int_equal(loop_next_ns(loop), at);
    assert_false(step(0));
    while (!p.n)
        step(-1);
    assert_true(time_now_ns() >= at);
    assert_false(step(1));
    set(&p, time_now_ns() + 2 * NS_MS);
    loop_timer_stop(&p.t);
    loop_timer_stop(&p.t);
    step(5);
    assert_int_equal(p.n, 1);
}

/* A deadline that is always in the past is due once a step, so that descriptors do not starve. */
static void test_timer_in_the_past_starves_no_descriptor(void **state)
{
    (void)state;
    struct timed p = {.again = true};
    loop_timer_init(loop, &p.t, due, &p);
    loop_timer_set(&p.t, 0);
    for (unsigned i = 1; i <= 5; i++) {
        assert_true(step(-1));
        assert_int_equal(p.n, i);
    }
    loop_timer_stop(&p.t);
}

static void test_loop_is_readable_when_a_timer_is_due(void **state)
{
    (void)state;
    struct timed p = {.n = 0}, far = {.n = 0};
    loop_timer_init(loop, &p.t, due, &p);
    loop_timer_init(loop, &far.t, due, &far);
    set(&far, time_now_ns() + 100 * NS_S);
    set(&p, time_now_ns() + 2 * NS_MS);
    set(&p, time_now_ns() + 4 * NS_MS); /* later than the deadline that the timerfd has */
    for (unsigned i = 0; !p.n; i++) {
        struct pollfd w = {.fd = loop_epoll_fd(loop), .events = POLLIN};
        assert_true(i < 10);
        assert_int_equal(poll(&w, 1, 5000), 1);
        step(0);
    }
    assert_false(is_ready());
    loop_timer_stop(&far.t);
}

#define TIMERS 200

/* Random deadlines, changes and stops: each timer that is still set is called once, none before one with an earlier
 * deadline. */
static void test_many_timers_are_called_in_order(void **state)
{
    (void)state;
    static struct timed t[TIMERS];
    uint64_t x = 88172645463325252u, from = time_now_ns() - NS_S;
    unsigned n_set = 0, n_run = 0;
    order_ns = n_late = 0;
    for (unsigned i = 0; i < TIMERS; i++)
        loop_timer_init(loop, &t[i].t, due, &t[i]);
    for (unsigned i = 0; i < 100 * TIMERS; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        struct timed *p = &t[x % TIMERS];
        if (x >> 60 < 5)
            loop_timer_stop(&p->t);
        else
            set(p, from + (x >> 40) % 1000000); /* all are in the past, and none runs before a step */
        uint64_t least = UINT64_MAX;
        for (unsigned k = 0; i % 16 == 0 && k < TIMERS; k++)
            least = t[k].t.at_ns < least ? t[k].t.at_ns : least;
        assert_true(i % 16 || loop_next_ns(loop) == least);
    }
    for (unsigned i = 0; i < TIMERS; i++)
        n_set += t[i].t.at_ns != UINT64_MAX;
    step(0);
    for (unsigned i = 0; i < TIMERS; i++) {
        assert_true(t[i].n <= 1);
        n_run += t[i].n;
    }
    assert_true(n_set > TIMERS / 4);
    assert_int_equal(n_run, n_set);
    assert_int_equal(n_late, 0);
    assert_int_equal(loop_next_ns(loop), UINT64_MAX);
}

/* ---- events and wakes ---- */

#define RAISES 20000
#define RAISERS 3

struct raised {
    struct loop_event v;
    unsigned n;
    unsigned left, seen; /* left: written by the raising thread before each raise */
    struct loop_event *other;
};

static void taken(void *arg)
{
    struct raised *p = arg;
    p->n++;
    p->seen = __atomic_load_n(&p->left, __ATOMIC_ACQUIRE);
    if (p->other)
        loop_event_cancel(p->other);
}

static void *raiser(void *arg)
{
    struct raised *p = arg;
    for (unsigned i = 1; i <= RAISES; i++) {
        __atomic_store_n(&p->left, i, __ATOMIC_RELEASE);
        loop_event_raise(&p->v);
    }
    return NULL;
}

/* No raise is lost: the last value that each thread wrote is seen. */
static void test_no_raise_is_lost(void **state)
{
    (void)state;
    struct raised p[RAISERS];
    pthread_t t[RAISERS];
    memset(p, 0, sizeof p);
    for (int i = 0; i < RAISERS; i++) {
        loop_event_init(loop, &p[i].v, taken, &p[i]);
        assert_int_equal(pthread_create(&t[i], NULL, raiser, &p[i]), 0);
    }
    for (int i = 0; i < RAISERS; i++)
        while (p[i].seen < RAISES)
            assert_true(step(5000));
    for (int i = 0; i < RAISERS; i++) {
        pthread_join(t[i], NULL);
        assert_true(p[i].n && p[i].n <= RAISES);
    }
    step(0);
    assert_false(is_ready());
}

static void test_cancelled_event_is_not_called(void **state)
{
    (void)state;
    struct raised a = {.n = 0}, b = {.n = 0};
    loop_event_init(loop, &a.v, taken, &a);
    loop_event_init(loop, &b.v, taken, &b);
    loop_event_raise(&a.v);
    loop_event_cancel(&a.v);
    step(0);
    assert_int_equal(a.n, 0);
    a.other = &b.v; /* both are raised in one step, and a is called first */
    loop_event_raise(&a.v);
    loop_event_raise(&b.v);
    loop_event_raise(&a.v);
    step(0);
    assert_int_equal(a.n, 1);
    assert_int_equal(b.n, 0);
    loop_event_raise(&b.v);
    step(0);
    assert_int_equal(b.n, 1);
}

static void on_alarm(int sig)
{
    (void)sig;
    loop_wake(loop);
}

/* A signal that arrives before the wait ends the wait too. */
static void test_signal_handler_wakes_the_loop(void **state)
{
    (void)state;
    signal(SIGALRM, on_alarm);
    raise(SIGALRM);
    assert_true(step(-1));
    assert_false(step(0));
    alarm(1);
    while (!step(-1))
        ;
    signal(SIGALRM, SIG_DFL);
}

/* ---- nesting ---- */

static void inner_ready(void *arg, uint32_t events)
{
    (void)events;
    assert_int_equal(loop_step(&e, arg, NULL, 0), 0);
}

static void test_loops_nest(void **state)
{
    (void)state;
    struct loop *inner;
    struct loop_fd fd;
    struct raised v = {.n = 0};
    struct timed t = {.n = 0};
    assert_int_equal(loop_new(&e, &inner), 0);
    assert_int_equal(loop_fd_add(&e, loop, &fd, loop_epoll_fd(inner), EPOLLIN, inner_ready, inner), 0);
    loop_event_init(inner, &v.v, taken, &v);
    loop_timer_init(inner, &t.t, due, &t);
    assert_false(step(0));
    loop_event_raise(&v.v);
    assert_true(step(5000));
    assert_int_equal(v.n, 1);
    set(&t, time_now_ns() + NS_MS);
    while (!t.n)
        assert_true(step(5000));
    assert_false(step(0));
    loop_fd_remove(&fd);
    loop_free(inner);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_descriptor_is_called_while_ready),
        TEST(test_invalid_descriptor_is_refused),
        TEST(test_removed_in_a_step_is_not_called),
        TEST(test_timer_is_called_once_at_its_time),
        TEST(test_timer_in_the_past_starves_no_descriptor),
        TEST(test_loop_is_readable_when_a_timer_is_due),
        TEST(test_many_timers_are_called_in_order),
        TEST(test_no_raise_is_lost),
        TEST(test_cancelled_event_is_not_called),
        TEST(test_signal_handler_wakes_the_loop),
        TEST(test_loops_nest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
