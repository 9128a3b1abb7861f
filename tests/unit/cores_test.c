/* Lending of cores between workers. Expected values follow the contract in proc/cores.h; the CPUs that threads run on
 * are read from the system (sched_getaffinity). */
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/time.h"
#include "proc/cores.h"
#include "unit/cores_file.h"

static struct cores *worker(int cpu, uint64_t rest_ns)
{
    struct err e = {0};
    struct cores *c = NULL;
    struct cores_opts o = {.cpu = &cpu, .n = 1, .path = path, .rest_ns = rest_ns};
    if (cores_open(&e, &c, &o))
        fail_msg("%s", e.text);
    return c;
}

static void nap(long us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static bool is_free(struct cores *c, int cpu)
{
    return cores_free(c, cpu, time_now_ns());
}

/* Waits up to 5 s. */
static bool gets_free(struct cores *c, int cpu)
{
    for (int i = 0; i < 500 && !is_free(c, cpu); i++)
        nap(10000);
    return is_free(c, cpu);
}

static void lists(void **state)
{
    (void)state;
    static const char *const bad[] = {"",   ",",    "0,",   "a",      "0-",   "-1",          "3-2",
                                      "0 ", "0--1", "1024", "0-1024", "0,,1", "99999999999", "1x"};
    struct err e = {0};
    int *cpu = NULL, n = 0;
    assert_int_equal(cores_list(&e, &cpu, &n, "5,0,2-4,3"), 0);
    assert_int_equal(n, 5);
    for (int i = 0; i < 5; i++)
        assert_int_equal(cpu[i], i ? i + 1 : 0);
    free(cpu);
    assert_int_equal(cores_list(&e, &cpu, &n, "1023"), 0);
    assert_int_equal(n, 1);
    assert_int_equal(cpu[0], 1023);
    free(cpu);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(cores_list(&e, &cpu, &n, bad[i]), ERR_USAGE);
}

static void lent_and_recalled(void **state)
{
    (void)state;
    struct cores *a = worker(0, 1), *b = worker(1, 1), *d = worker(2, 1);
    struct cores_hold h = {.cpu = 1}, other = {.cpu = 1};
    nap(100);
    assert_true(is_free(a, 1));
    assert_false(is_free(a, 0)); /* its own core: not borrowed */
    assert_false(is_free(a, 7)); /* no worker owns it */
    assert_true(cores_take(a, &h));
    assert_true(cores_take(a, &h)); /* it holds the core already */
    assert_true(cores_kept(a, &h));
    assert_false(is_free(d, 1));
    assert_false(cores_take(d, &other));
    cores_work(b);
    assert_false(cores_kept(a, &h));
    assert_false(cores_take(a, &h));
    assert_int_equal(h.word, 0);
    assert_false(is_free(a, 1));
    assert_false(cores_take(a, &h));
    cores_rest(b);
    nap(100);
    assert_true(cores_take(d, &other));
    assert_false(cores_take(a, &h));
    cores_give(d, &other);
    assert_true(cores_take(a, &h));
    cores_give(a, &h);
    cores_give(a, &h); /* not held: no effect */
    assert_true(cores_take(d, &other));
    cores_give(d, &other);
    cores_close(a);
    cores_close(b);
    cores_close(d);
}

static void not_between_steps(void **state)
{
    (void)state;
    struct cores *a = worker(0, 200000000), *b = worker(1, 0);
    for (int i = 0; i < 20; i++) {
        cores_work(b);
        nap(1000);
        cores_rest(b);
        uint64_t rested = time_now_ns();
        nap(1000);
        bool lent = is_free(a, 1);
        if (time_now_ns() - rested < 200000000)
            assert_false(lent);
    }
    nap(210000);
    assert_true(is_free(a, 1));
    cores_close(a);
    cores_close(b);
}

/* A core with two owners is lent when both rest; a core whose last owner has closed is free. */
static void several_owners(void **state)
{
    (void)state;
    struct cores *a = worker(0, 1), *b = worker(1, 1), *d = worker(1, 1);
    struct cores_hold h = {.cpu = 1};
    cores_work(b);
    nap(100);
    assert_false(is_free(a, 1));
    cores_work(d);
    cores_rest(b);
    nap(100);
    assert_false(is_free(a, 1));
    cores_rest(d);
    nap(100);
    assert_true(cores_take(a, &h));
    cores_work(d);
    assert_false(cores_kept(a, &h));
    cores_give(a, &h);
    cores_close(d);
    assert_true(gets_free(a, 1));
    cores_close(b);
    assert_true(is_free(a, 1));
    cores_close(a);
    a = worker(0, 1); /* the file had no worker: earlier owners are forgotten */
    assert_false(is_free(a, 1));
    cores_close(a);
}

/* A child process that runs `what` and is killed. */
static void killed(void (*what)(void))
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        what();
        if (write(ready[1], "r", 1) == 1)
            for (;;)
                pause();
        _exit(1);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    close(ready[0]);
    close(ready[1]);
}

static void computes_on_1(void)
{
    cores_work(worker(1, 1));
}

static void borrows_0(void)
{
    struct cores_hold h = {.cpu = 0};
    if (!cores_take(worker(1, 1), &h))
        _exit(1);
}

static void killed_owner(void **state)
{
    (void)state;
    struct cores *a = worker(0, 1);
    killed(computes_on_1);
    assert_true(gets_free(a, 1));
    for (int i = 0; i < 2 * CORES_WORKERS_MAX; i++) /* their slots are reused */
        killed(computes_on_1);
    assert_true(gets_free(a, 1));
    cores_close(a);
}

static void killed_borrower(void **state)
{
    (void)state;
    struct cores *a = worker(0, 1), *b = worker(1, 1);
    struct cores_hold h = {.cpu = 0};
    nap(100);
    killed(borrows_0);
    assert_true(gets_free(b, 0));
    killed(borrows_0);
    cores_work(a); /* finds the word of the dead borrower */
    cores_rest(a);
    nap(100);
    assert_true(cores_take(b, &h));
    cores_give(b, &h);
    killed(borrows_0);
    cores_close(b);
    b = worker(1, 1); /* finds it too */
    assert_true(cores_take(b, &h));
    cores_give(b, &h);
    cores_close(a);
    cores_close(b);
}

static int runs_on(void)
{
    cpu_set_t s;
    CPU_ZERO(&s);
    sched_getaffinity(0, sizeof s, &s);
    if (CPU_COUNT(&s) != 1)
        return -1;
    return CPU_ISSET(0, &s) ? 0 : CPU_ISSET(1, &s) ? 1 : -1;
}

struct guest {
    struct cores *c;
    struct cores_hold h;
    _Atomic int at, stage;
};

static void *guest(void *arg)
{
    struct guest *g = arg;
    cores_take(g->c, &g->h);
    g->at = runs_on();
    g->stage = 1;
    while (cores_kept(g->c, &g->h))
        ;
    for (int i = 0; i < 500 && (g->at = runs_on()) == 1; i++) /* the bit is set before the thread is moved */
        nap(1000);
    cores_give(g->c, &g->h);
    return NULL;
}

/* The owner moves the borrower's thread to the borrower's core without cooperation of that thread. */
static void borrower_is_moved(void **state)
{
    (void)state;
    if (!CPU_ISSET(0, &all) || !CPU_ISSET(1, &all))
        skip();
    struct cores *b = worker(1, 1);
    struct guest g = {.c = worker(0, 1), .h = {.cpu = 1}};
    pthread_t t;
    nap(100);
    assert_int_equal(pthread_create(&t, NULL, guest, &g), 0);
    while (!g.stage)
        nap(100);
    assert_int_equal(g.at, 1);
    cores_work(b);
    pthread_join(t, NULL);
    assert_int_equal(g.at, 0);
    cores_close(g.c);
    cores_close(b);
}

struct race {
    struct cores *owner, *guest;
    _Atomic uint64_t epoch; /* odd: the owner computes */
    atomic_bool stop;
};

static void *owner(void *arg)
{
    struct race *r = arg;
    cores_pin(0); /* the borrower is on core 1, so both run at once */
    while (!r->stop) {
        cores_work(r->owner);
        atomic_fetch_add(&r->epoch, 1);
        for (int i = 0; i < 50; i++)
            __builtin_ia32_pause();
        atomic_fetch_add(&r->epoch, 1);
        cores_rest(r->owner);
        for (int i = 0; i < 50; i++)
            __builtin_ia32_pause();
    }
    return NULL;
}

/* After cores_work has returned, no thread takes the core, whatever both do at the same moment. */
static void no_thread_takes_a_core_late(void **state)
{
    (void)state;
    struct race r = {.owner = worker(1, 1), .guest = worker(0, 1)};
    struct cores_hold h = {.cpu = 1};
    pthread_t t;
    int got = 0;
    assert_int_equal(pthread_create(&t, NULL, owner, &r), 0);
    uint64_t end = time_now_ns() + 500000000;
    while (time_now_ns() < end) {
        uint64_t before = r.epoch;
        bool mine = cores_take(r.guest, &h);
        if (mine && before % 2 && r.epoch == before)
            fail_msg("taken while its owner computes");
        got += mine;
        cores_give(r.guest, &h);
    }
    r.stop = true;
    pthread_join(t, NULL);
    assert_true(got > 0);
    cores_close(r.owner);
    cores_close(r.guest);
}

static void invalid_options_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct cores *c = NULL, *many[CORES_WORKERS_MAX];
    int cpu = 0, far = CORES_CPU_MAX;
    struct cores_opts o = {.cpu = &cpu, .n = 1, .path = path};
    for (int i = 0; i < CORES_WORKERS_MAX; i++)
        many[i] = worker(0, 0);
    assert_int_equal(cores_open(&e, &c, &o), ERR_NO);
    for (int i = 0; i < CORES_WORKERS_MAX; i++)
        cores_close(many[i]);
    c = worker(0, 0);
    cores_close(c);
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "other", 5, 0), 5);
    assert_int_equal(cores_open(&e, &c, &o), ERR_PROTO);
    assert_int_equal(ftruncate(fd, 100), 0);
    assert_int_equal(cores_open(&e, &c, &o), ERR_PROTO);
    close(fd);
    unlink(path);
    o.cpu = &far;
    assert_int_equal(cores_open(&e, &c, &o), ERR_USAGE);
    o.cpu = &cpu;
    o.path = "/nonexistent/cores";
    assert_int_equal(cores_open(&e, &c, &o), ERR_SYS);
}

/* Without a file cores are tied to, not shared. */
static void alone(void **state)
{
    (void)state;
    struct err e = {0};
    struct cores *c = NULL;
    const int *cpu, want[] = {1, 0};
    assert_int_equal(cores_open(&e, &c, &(struct cores_opts){.cpu = want, .n = 2}), 0);
    assert_int_equal(cores_own(c, &cpu), 2);
    assert_int_equal(cpu[0], 0);
    assert_int_equal(cpu[1], 1);
    assert_int_equal(cores_other(c, &cpu), 0);
    cores_work(c);
    cores_rest(c);
    assert_false(is_free(c, 0));
    cores_close(c);
}

/* Among cores of this process, and some that no machine has here: each of these is named, and nothing is restricted. */
static void absent_cores_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    int here = 0;
    while (!CPU_ISSET(here, &before))
        here++;
    const int want[] = {here, 1000, 1001, 1002, 1010}, one[] = {here};
    char text[32];
    struct cores *c = NULL;
    assert_int_equal(cores_open(&e, &c, &(struct cores_opts){.cpu = want, .n = 5}), 0);
    assert_int_equal(cores_stay(&e, c), ERR_USAGE);
    assert_ptr_equal(strstr(e.text, "1000-1002,1010: absent"), e.text);
    snprintf(text, sizeof text, "may use %d", here);
    assert_non_null(strstr(e.text, text));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    cores_close(c);
    assert_int_equal(cores_open(&e, &c, &(struct cores_opts){.cpu = one, .n = 1}), 0);
    assert_int_equal(cores_stay(&e, c), 0);
    cores_close(c);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(lists, set_free),
        cmocka_unit_test_setup(lent_and_recalled, set_free),
        cmocka_unit_test_setup(not_between_steps, set_free),
        cmocka_unit_test_setup(several_owners, set_free),
        cmocka_unit_test_setup(killed_owner, set_free),
        cmocka_unit_test_setup(killed_borrower, set_free),
        cmocka_unit_test_setup(borrower_is_moved, set_free),
        cmocka_unit_test_setup(no_thread_takes_a_core_late, set_free),
        cmocka_unit_test_setup(invalid_options_are_refused, set_free),
        cmocka_unit_test_setup(alone, set_free),
        cmocka_unit_test(absent_cores_are_refused),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
