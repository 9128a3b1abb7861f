/* Workers as services: answers, cached prefixes, a full store, cancelled jobs and SIGTERM. */
#include "unit/serve_fixture.h"

static void split_and_cached(void)
{
    struct service s[3] = {0};
    add_requests();
    struct answer_log *want = reference(NULL);
    start_store("64M", false);
    start(&s[0], "prefill", NULL);
    start(&s[1], "decode", NULL);
    run_jobs(0, 1);
    check_all(want);
    MUST(!strcmp(jobs[0].log.spans, "prefill hand-over decode "));
    MUST(!strcmp(jobs[8].log.spans, "prefill "));
    check_store();
    reset_jobs(); /* with the blocks that are cached now */
    run_jobs(0, 1);
    check_all(want);
    MUST(jobs[5].log.cached == (jobs[5].r.n_id - 1) / 32 * 32 && jobs[5].log.cached >= 64);
    MUST(jobs[1].log.cached == 0); /* prompt log-probabilities need the whole computation */
    check_store();
    reset_jobs(); /* with migration between two decode workers */
    start(&s[2], "decode", NULL);
    run_jobs(10, 2);
    check_all(want);
    check_store();
    stop(s, 3);
}

static void whole(void)
{
    struct service s[1] = {0};
    add_requests();
    struct answer_log *want = reference(NULL);
    start_store("64M", false);
    start(&s[0], "decode", NULL);
    chunk = 20;
    run_jobs(5, 3);
    check_all(want);
    stop(s, 1);
}

/* A follow-up request leases the blocks that decode filled for the first one. */
static void follow_up_request(void)
{
    struct service s[2] = {0};
    start_store("64M", false);
    start(&s[0], "prefill", NULL);
    start(&s[1], "decode", NULL);
    seal(add_job(long_prompt, 70));
    run_jobs(0, 1);
    struct job *a = &jobs[0], *b = &jobs[n_job++];
    uint32_t n = a->r.n_id + a->log.n;
    uint32_t *ids = malloc((n + 8) * sizeof *ids);
    memcpy(ids, a->r.ids, a->r.n_id * sizeof *ids);
    for (uint32_t i = 0; i < a->log.n; i++)
        ids[a->r.n_id + i] = a->log.token[i].id;
    for (uint32_t i = 0; i < 8; i++)
        ids[n + i] = a->r.ids[i];
    b->r = a->r;
    b->r.seq = 1;
    b->r.ids = ids;
    b->r.n_id = n + 8;
    b->r.s.max_tokens = 4;
    seal(b);
    run_jobs(0, 1);
    MUST(a->log.n == 70 && b->log.ended);
    MUST(b->log.cached == (n - 1) / 32 * 32);
    stop(s, 2);
}

/* Slots for each request but not for all at once: all end with the same answers. A request that never fits fails with
 * the limit. */
static void small_arena(void)
{
    struct service s[3] = {0};
    add_many(12, 100, 20);
    struct answer_log *want = reference(fake);
    start_store("112K", true); /* 28 slots; an answer takes up to 17 */
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    start(&s[2], "decode", fake);
    run_jobs(0, 1);
    check_all(want);
    check_store();
    char *big = calloc(1, 28 * 32 * 8 + 1);
    for (int i = 0; i < 28 * 32 * 8 - 4; i += 4)
        memcpy(big + i, " sea", 4);
    struct job *j = add_job(big, 4);
    seal(j);
    run_jobs(0, 1);
    MUST(j->log.failed && strstr(j->log.error, "28"));
    check_store();
    stop(s, 3);
}

/* Jobs are cancelled at random times; the answers of the others are equal, and nothing stays leased. */
static void cancellations(void)
{
    struct service s[2] = {0};
    unsigned seed = 9;
    add_many(30, 60, 5);
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    start(&s[0], "prefill", fake);
    start(&s[1], "decode", fake);
    int n_cancelled = 0;
    for (int round = 0; round < 5; round++) {
        reset_jobs();
        pthread_mutex_lock(&lock);
        while (!all_done()) {
            assign_all();
            wait_some(3);
            struct job *j = &jobs[rand_r(&seed) % (unsigned)n_job];
            if (j->order && !j->closing && !j->log.ended && rand_r(&seed) % 20 == 0) {
                put_event(j->w, WORKER_EV_CANCEL, j->order);
                j->closing = true;
            }
        }
        pthread_mutex_unlock(&lock);
        int n = 0;
        for (int i = 0; i < n_job; i++) {
            n += jobs[i].log.cancelled;
            if (!jobs[i].log.cancelled)
                same(&jobs[i].log, &want[i]);
        }
        n_cancelled += n;
        MUST(n < n_job);
        check_store();
    }
    MUST(n_cancelled > 5);
    stop(s, 2);
}

/* After SIGTERM the jobs that end in time are completed, the others are preempted. */
static void drains(void)
{
    struct service s[1] = {0};
    add_many(2, 50, 0);
    seal(add_job(long_prompt, 1800));
    struct answer_log *want = reference(fake);
    start_store("4M", true);
    s[0].o = opts("decode");
    start(&s[0], "decode", "fake:10000,1000,0,5000000,0,20000");
    pthread_mutex_lock(&lock);
    while (jobs[2].log.n < 5) {
        assign_all();
        wait_some(20);
    }
    pthread_mutex_unlock(&lock);
    uint64_t t0 = time_now_ns();
    stop(s, 1);
    MUST(time_now_ns() - t0 > 1900000000u && time_now_ns() - t0 < 20000000000u);
    MUST(jobs[0].at == JOB_DONE && jobs[1].at == JOB_DONE && jobs[2].at == JOB_WAITS && jobs[2].log.n > 100);
    same(&jobs[0].log, &want[0]);
    same(&jobs[1].log, &want[1]);
    MUST(!memcmp(jobs[2].log.token, want[2].token, jobs[2].log.n * sizeof(struct token)));
    MUST(!store_stat().leased);
}

CASE(split_and_cached)
CASE(whole)
CASE(follow_up_request)
CASE(small_arena)
CASE(cancellations)
CASE(drains)

/* Cases that mostly wait for leases run concurrently with the others. */
static int start_slow_cases(void **state)
{
    (void)state;
    if (getenv("SERVE_TEST_ONLY"))
        return 0;
    case_start(&run_small_arena, small_arena);
    case_start(&run_cancellations, cancellations);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_and_cached),  cmocka_unit_test(test_whole),
        cmocka_unit_test(test_follow_up_request), cmocka_unit_test(test_small_arena),
        cmocka_unit_test(test_cancellations),     cmocka_unit_test(test_drains),
    };
    cmocka_set_test_filter(getenv("SERVE_TEST_ONLY"));
    return cmocka_run_group_tests(tests, start_slow_cases, NULL);
}
