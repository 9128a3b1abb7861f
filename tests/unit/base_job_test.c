/* The background thread: order, the limit of bytes, cancelling, and closing. */
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/job.h"
#include "base/loop.h"
#include "unit/asserts.h"

#define BYTES_MAX 100

static struct loop *loop;
static struct job_queue *queue;
static struct err e;
static pthread_t owner;

static int setup(void **state)
{
    (void)state;
    owner = pthread_self();
    return loop_new(&e, &loop) || job_queue_open(&e, &queue, loop, BYTES_MAX, "long prompts");
}

static int teardown(void **state)
{
    (void)state;
    job_queue_close(queue);
    queue = NULL;
    loop_free(loop);
    return 0;
}

struct work {
    struct job job;
    sem_t *begun, *go; /* may be NULL */
    int order, n_done;
    bool ran, own_thread;
    int again;
};

static int n_run;

static void run(void *arg)
{
    struct work *w = arg;
    w->own_thread = !pthread_equal(pthread_self(), owner);
    if (w->begun)
        sem_post(w->begun);
    if (w->go)
        sem_wait(w->go);
    w->order = n_run++;
}

static void done(void *arg, bool ran)
{
    struct work *w = arg;
    assert_true(pthread_equal(pthread_self(), owner));
    w->n_done++;
    w->ran = ran;
    if (w->again && w->again--)
        assert_int_equal(job_add(&e, queue, &w->job), 0);
}

static struct work work(size_t n_bytes)
{
    return (struct work){.job = {.run = run, .done = done, .n_bytes = n_bytes}};
}

static int add(struct work *w)
{
    w->job.arg = w;
    return job_add(&e, queue, &w->job);
}

static void drain(void)
{
    while (job_count(queue))
        assert_int_equal(loop_step(&e, loop, NULL, 5000), 0);
}

static void test_jobs_run_in_order(void **state)
{
    (void)state;
    struct work w[8];
    n_run = 0;
    for (int i = 0; i < 8; i++) {
        w[i] = work(1);
        assert_int_equal(add(&w[i]), 0);
    }
    drain();
    for (int i = 0; i < 8; i++) {
        assert_int_equal(w[i].order, i);
        assert_int_equal(w[i].n_done, 1);
        assert_true(w[i].ran && w[i].own_thread);
    }
}

static void test_queue_is_bounded(void **state)
{
    (void)state;
    sem_t begun, go;
    sem_init(&begun, 0, 0);
    sem_init(&go, 0, 0);
    struct work big = work(10 * BYTES_MAX), small = work(1), fits = work(BYTES_MAX - 1), first = work(1);
    big.begun = first.begun = &begun;
    big.go = first.go = &go;
    assert_int_equal(add(&big), 0); /* a job of any size is accepted if it is the only one */
    sem_wait(&begun);
    assert_int_equal(add(&small), ERR_NO);
    assert_string_equal(e.text, "1000 bytes of long prompts are queued already: the limit is 100; retry later");
    sem_post(&go);
    drain();
    assert_int_equal(add(&first), 0);
    assert_int_equal(add(&fits), 0);
    assert_int_equal(add(&small), ERR_NO);
    sem_post(&go);
    drain();
    assert_int_equal(add(&small), 0);
    drain();
    assert_true(big.ran && first.ran && fits.ran && small.ran && small.n_done == 1);
    sem_destroy(&begun);
    sem_destroy(&go);
}

static void test_cancelled_jobs_do_not_run(void **state)
{
    (void)state;
    sem_t begun, go;
    sem_init(&begun, 0, 0);
    sem_init(&go, 0, 0);
    struct work runs = work(1), waits = work(1), after = work(1);
    runs.begun = &begun;
    runs.go = &go;
    add(&runs);
    add(&waits);
    add(&after);
    sem_wait(&begun);
    job_cancel(queue, &runs.job); /* it runs already */
    job_cancel(queue, &waits.job);
    assert_int_equal(job_count(queue), 3);
    sem_post(&go);
    drain();
    assert_true(runs.ran && !waits.ran && after.ran);
    assert_int_equal(runs.n_done + waits.n_done + after.n_done, 3);
    sem_destroy(&begun);
    sem_destroy(&go);
}

static void test_a_job_can_be_added_again(void **state)
{
    (void)state;
    struct work w = work(BYTES_MAX);
    w.again = 3;
    assert_int_equal(add(&w), 0);
    drain();
    assert_int_equal(w.n_done, 4);
}

static void *later(void *arg)
{
    sem_post(arg);
    return NULL;
}

static void test_close_reports_all(void **state)
{
    (void)state;
    sem_t begun, go;
    sem_init(&begun, 0, 0);
    sem_init(&go, 0, 0);
    struct work runs = work(1), waits = work(1);
    pthread_t t;
    runs.begun = &begun;
    runs.go = &go;
    add(&runs);
    add(&waits);
    sem_wait(&begun);
    assert_int_equal(pthread_create(&t, NULL, later, &go), 0);
    job_queue_close(queue);
    queue = NULL;
    pthread_join(t, NULL);
    assert_int_equal(runs.n_done, 1);
    assert_int_equal(waits.n_done, 1);
    assert_true(runs.ran);
    sem_destroy(&begun);
    sem_destroy(&go);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_jobs_run_in_order),        TEST(test_queue_is_bounded),  TEST(test_cancelled_jobs_do_not_run),
        TEST(test_a_job_can_be_added_again), TEST(test_close_reports_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
