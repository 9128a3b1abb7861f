/* Workers as services whose kvstore is killed or stopped. */
#include "unit/serve_fixture.h"

static bool interfering;

/* Never returns: kvstore would be killed with the thread that started it (PR_SET_PDEATHSIG). */
static void *interfere_with_store(void *arg)
{
    const char *how = arg;
    for (int i = 0; i < 3; i++) {
        usleep(150000);
        if (*how == 'k') { /* killed and started again */
            kill(store_pid, SIGKILL);
            waitpid(store_pid, NULL, 0);
            usleep(i * 100000);
            start_store("4M", true);
        } else { /* stopped for longer than a lease, once also than the timeout of a call */
            kill(store_pid, SIGSTOP);
            usleep(i < 2 ? 1500000 : 4000000);
            kill(store_pid, SIGCONT);
        }
    }
    pthread_mutex_lock(&lock);
    interfering = false;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    for (;;)
        pause();
    return NULL;
}

static void run_with_interference(const char *how, int chaos)
{
    struct service s[3] = {0};
    pthread_t t;
    add_many(16, 1200, 10);
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    start(&s[2], "decode", fake);
    interfering = true;
    MUST(!pthread_create(&t, NULL, interfere_with_store, (void *)(uintptr_t)how));
    run_jobs(chaos, 4);
    check_all(want);
    pthread_mutex_lock(&lock);
    while (interfering)
        wait_some(100);
    pthread_mutex_unlock(&lock);
    reset_jobs();
    run_jobs(chaos, 5);
    check_all(want);
    check_store();
    stop(s, 3);
}

static void store_killed(void)
{
    run_with_interference("kill", 2);
}

static void store_stopped(void)
{
    run_with_interference("stop", 2);
}

CASE(store_killed)
CASE(store_stopped)

/* Cases that mostly wait for leases run concurrently with the others. */
static int start_slow_cases(void **state)
{
    (void)state;
    if (getenv("SERVE_TEST_ONLY"))
        return 0;
    case_start(&run_store_killed, store_killed);
    case_start(&run_store_stopped, store_stopped);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_killed),
        cmocka_unit_test(test_store_stopped),
    };
    cmocka_set_test_filter(getenv("SERVE_TEST_ONLY"));
    return cmocka_run_group_tests(tests, start_slow_cases, NULL);
}
