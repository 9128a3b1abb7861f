/*
 * For the tests of workers as services: with a real kvstore, and the scheduler of serve_scheduler.h. Answers must be
 * equal, bit by bit, to those of decode as a filter on the same frames (docs/arithmetic.md), or, with the fake engine,
 * to those of an undisturbed run. Each case runs in its own process, since signals are counted per process.
 */
#ifndef TEST_SERVE_FIXTURE_H
#define TEST_SERVE_FIXTURE_H

#include "unit/serve_scheduler.h"

/* ---- requests ---- */

static struct text *vocab;
static uint8_t *hello;
static size_t n_hello;

static const char long_prompt[] =
    "Once upon a time there was a small village near the sea, job_state the fishermen went out every morning before "
    "dawn. "
    "One day the youngest of them did not come back, and his brothers went to look for him. They sailed to the north "
    "and to the south, they asked the gulls and the seals, and on the third day they came to an island which none of "
    "them had ever seen before. There was a house on it, and smoke rose from its chimney, and";

static inline struct job *add_job(const char *prompt, uint32_t max_tokens)
{
    struct err e;
    struct job *j = &jobs[n_job];
    struct text_ids ids = {0};
    MUST(n_job < JOBS_MAX && !text_encode(&e, vocab, &ids, prompt, strlen(prompt), TEXT_BOS));
    j->r = (struct wire_req){.seq = (uint64_t)n_job, .id = {"r", 1}, .ids = ids.ids, .n_id = (uint32_t)ids.n};
    wire_sampling_default(&j->r.s);
    j->r.s.max_tokens = max_tokens;
    n_job++;
    return j;
}

static inline void seal(struct job *j)
{
    struct err e;
    size_t cap = 0;
    struct wire_frame f = {.kind = WIRE_TOK, .req = j->r}, h;
    struct wire_arena *mem = wire_arena_new();
    MUST(!wire_decode(&e, &h, mem, hello, n_hello));
    MUST(!wire_encode_add(&e, &j->body, &j->n_body, &cap, &h) && !wire_encode_add(&e, &j->body, &j->n_body, &cap, &f));
    wire_arena_free(mem);
}

/* Requests that cover the fields of a request. */
static inline void add_requests(void)
{
    static const struct wire_str stop[] = {{"K L", 3}};
    add_job("The capital of France is", 24)->r.s.logprobs = 3;
    struct job *j = add_job(long_prompt, 24);
    j->r.s.logprobs = 2;
    j->r.s.echo = true;
    j = add_job("The three laws of robotics are", 24);
    j->r.s.temperature = 0.9f;
    j->r.s.top_p = 0.95f;
    j->r.s.seed = 7;
    j->r.s.logprobs = 1;
    j = add_job("A gentle rain, a gentle rain, a gentle rain,", 40);
    j->r.s.temperature = 1.2f;
    j->r.s.top_k = 40;
    j->r.s.min_p = 0.02f;
    j->r.s.seed = UINT64_MAX;
    j->r.s.repetition_penalty = 1.3f;
    j->r.s.presence_penalty = 0.2f;
    j->r.s.frequency_penalty = 0.1f;
    j->r.s.logprobs = 0;
    j = add_job("A B C D E F", 24);
    j->r.s.stop = stop;
    j->r.s.n_stop = 1;
    j->r.s.min_tokens = 2;
    j->r.s.logprobs = 0;
    for (uint32_t i = 0; i < 2; i++) { /* two choices of one request, with a shared prompt */
        j = add_job(long_prompt, 48);
        j->r.index = i;
        j->r.s.temperature = 1;
        j->r.s.seed = 11;
        j->r.s.logprobs = 0;
    }
    j = add_job(long_prompt, 0); /* scores only */
    j->r.s.echo = true;
    j->r.s.logprobs = 0;
    add_job(long_prompt, 1)->r.s.logprobs = 0;
    add_job(long_prompt, 8)->r.s.prompt_logprobs = 4;
    j = add_job(long_prompt, 1); /* as harnesses score continuations */
    j->r.s.echo = true;
    j->r.s.logprobs = 1;
    static const uint32_t allowed[] = {28, 30, 260, 284, 418, 5}, bad[] = {260, 28, 284, 30}, lens[] = {1, 2, 1};
    j = add_job(long_prompt, 24);
    j->r.s.allowed = allowed;
    j->r.s.n_allowed = 6;
    j->r.s.bad_ids = bad;
    j->r.s.n_bad_id = 4;
    j->r.s.bad_lens = lens;
    j->r.s.n_bad = 3;
    j->r.s.temperature = 0.8f;
    j->r.s.seed = 5;
    j->r.s.logprobs = 1;
    j->r.s.special_text = j->r.s.keep_stop = true;
    j = add_job("A gentle rain, a gentle rain, a gentle rain,", 40);
    j->r.s.temperature = 1.2f;
    j->r.s.top_k = 40;
    j->r.s.typical_p = 0.8f;
    j->r.s.top_p = 0.9f;
    j->r.s.seed = 3;
    j->r.s.repetition_penalty = 1.3f;
    j->r.s.presence_penalty = 0.2f;
    j->r.s.penalty_last_n = 16;
    j->r.s.logprobs = 0;
    for (int i = 0; i < n_job; i++)
        seal(&jobs[i]);
}

/* ---- the reference: decode as a filter ---- */

struct filter {
    struct phase_opts o;
    pthread_t thread;
};

static inline struct phase_opts opts(const char *role)
{
    return (struct phase_opts){.prog = role,
                               .model = getenv("PHASEPIPE_TEST_MODEL"),
                               .kv_type = "auto",
                               .threads = 1,
                               .batched_tokens = 64,
                               .seqs = 16,
                               .kv_bytes = 256u << 20,
                               .ready_fd = -1,
                               .drain_s = 2,
                               .kv = "unix:kv.sock",
                               .sched = "-"};
}

static inline void *filter_main(void *arg)
{
    struct err e = {0};
    const struct phase_opts *o = arg;
    if (phase_decode(&e, o))
        fprintf(stderr, "%s\n", e.text);
    close(o->fd_out);
    return NULL;
}

static inline void *write_requests(void *arg)
{
    struct err e;
    struct wire_writer *w;
    int fd = *(int *)arg;
    struct wire_frame f, bye = {.kind = WIRE_BYE, .bye = {.from = {"test", 4}}};
    struct wire_arena *mem = wire_arena_new();
    MUST(!wire_decode(&e, &f, mem, hello, n_hello));
    MUST(!wire_writer_new(&e, &w, fd, "pipe") && !wire_write(&e, w, &f));
    for (int i = 0; i < n_job; i++) {
        f = (struct wire_frame){.kind = WIRE_TOK, .req = jobs[i].r};
        MUST(!wire_write(&e, w, &f));
    }
    MUST(!wire_write(&e, w, &bye));
    wire_writer_free(w);
    close(fd);
    return NULL;
}

static inline struct answer_log *reference(const char *engine)
{
    struct answer_log *log = calloc(JOBS_MAX, sizeof *log);
    struct phase_opts o = opts("decode");
    o.engine = engine;
    struct wire_reader *in;
    struct wire_frame *f;
    struct err e = {0};
    pthread_t run, write;
    int to[2], from[2];
    MUST(log && !pipe(to) && !pipe(from));
    o.fd_in = to[0];
    o.fd_out = from[1];
    MUST(!pthread_create(&run, NULL, filter_main, &o) && !pthread_create(&write, NULL, write_requests, &to[1]));
    MUST(!wire_reader_new(&e, &in, from[0], "pipe"));
    uint32_t n_at[JOBS_MAX] = {0};
    while (!wire_read(&e, in, &f) && f)
        if (f->kind == WIRE_OUT) {
            f->out.at = f->out.prompt ? 0 : n_at[f->out.seq]++;
            log_out(&log[f->out.seq], &f->out);
        } else if (f->kind == WIRE_END) {
            log_end(&log[f->end.seq], &f->end);
        }
    pthread_join(run, NULL);
    pthread_join(write, NULL);
    wire_reader_free(in);
    return log;
}

/* ---- the services ---- */

static pid_t store_pid;

static inline void start_store(const char *bytes, bool fake)
{
    char fp[65];
    memset(fp, 0, sizeof fp);
    for (int i = 0; i < 32; i++)
        memcpy(fp + 2 * i, "fa", 2);
    int ready[2];
    char line[8];
    MUST(!pipe(ready));
    store_pid = fork();
    if (!store_pid) {
        const char *m = getenv("PHASEPIPE_TEST_MODEL");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        MUST(dup2(ready[1], 9) == 9);
        if (fake)
            execlp("kvstore", "kvstore", "--listen", "unix:kv.sock", "--kv-cache-memory-bytes", bytes, "--ready-fd",
                   "9", "--model-fingerprint", fp, "--layers", "1", "--kv-heads", "1", "--head-dim", "8",
                   "--arithmetic", "fake1", "--lease-ms", "1000", "--handed-ms", "2000", (char *)NULL);
        else
            execlp("kvstore", "kvstore", "--listen", "unix:kv.sock", "--kv-cache-memory-bytes", bytes, "--ready-fd",
                   "9", m ? "-m" : "-v", m, (char *)NULL);
        _exit(127);
    }
    close(ready[1]);
    MUST(read(ready[0], line, sizeof line) == 6);
    close(ready[0]);
}

static inline void log_line(void *arg, const char *text)
{
    if (getenv("SERVE_TEST_VERBOSE"))
        fprintf(stderr, "%s: %s\n", (const char *)arg, text);
}

struct service {
    struct phase_opts o;
    pthread_t thread;
    int rc;
    struct err e;
};

static inline void *service_main(void *arg)
{
    struct service *s = arg;
    s->rc = phase_serve(&s->e, &s->o, s->o.prog);
    if (s->rc)
        fprintf(stderr, "%s: %s\n", s->o.prog, s->e.text);
    return NULL;
}

static inline void start(struct service *s, const char *role, const char *engine)
{
    s->o = opts(role);
    s->o.engine = engine;
    s->o.log = log_line;
    s->o.log_arg = (void *)(uintptr_t)role;
    int before = n_worker;
    MUST(!pthread_create(&s->thread, NULL, service_main, s));
    pthread_mutex_lock(&lock);
    for (int i = 0; n_worker == before && i < 1000; i++)
        wait_some(50);
    MUST(n_worker > before);
    pthread_mutex_unlock(&lock);
}

static inline void stop(struct service *s, int n)
{
    MUST(!kill(getpid(), SIGTERM));
    for (int i = 0; i < n; i++) {
        pthread_join(s[i].thread, NULL);
        MUST(!s[i].rc);
    }
}

static inline struct wire_kv_stat store_stat(void)
{
    struct store_client *c;
    struct wire_kv_stat st;
    struct err e;
    struct store_client_opts o = {.url = "unix:kv.sock", .name = "test"};
    MUST(!store_client_open(&e, &c, &o) && !store_client_stat(&e, c, &st));
    store_client_close(c);
    return st;
}

static inline void begin(void)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_HELLO};
    struct gguf *g = default_model();
    MUST(!text_open(&e, &vocab, g) && !proc_signals(&e));
    f.hello = (struct wire_hello){.version = WIRE_VERSION,
                                  .from = {"test", 4},
                                  .has_vocab = true,
                                  .vocab_fp = {text_fingerprint(vocab), 32},
                                  .vocab_n = text_n_token(vocab)};
    MUST(!wire_encode(&e, &hello, &n_hello, &f));
    gguf_free(g);
}

struct case_run { /* in its own process and directory */
    pid_t pid;
    char dir[32];
};

static inline void case_start(struct case_run *c, void (*fn)(void))
{
    snprintf(c->dir, sizeof c->dir, "/tmp/serve_test.XXXXXX");
    assert_non_null(mkdtemp(c->dir));
    fflush(NULL);
    c->pid = fork();
    if (!c->pid) {
        alarm(600);
        MUST(!chdir(c->dir));
        begin();
        fn();
        kill(store_pid, SIGKILL);
        _exit(0);
    }
}

static inline void case_end(const struct case_run *c)
{
    int status;
    assert_int_equal(waitpid(c->pid, &status, 0), c->pid);
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf %s", c->dir);
    (void)!system(cmd);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* ---- cases ---- */

static inline void check_all(const struct answer_log *want)
{
    for (int i = 0; i < n_job; i++) {
        if (jobs[i].log.failed)
            fprintf(stderr, "job %d: %s\n", i, jobs[i].log.error);
        same(&jobs[i].log, &want[i]);
    }
}

static inline void reset_jobs(void)
{
    for (int i = 0; i < n_job; i++) {
        jobs[i].log = (struct answer_log){0};
        jobs[i].at = JOB_WAITS;
        jobs[i].handed = false;
        jobs[i].attempts = 0;
        jobs[i].n_handle = 0;
    }
}

/* After all jobs nothing is leased; idle workers release their reserved slots. */
static inline void check_store(void)
{
    struct wire_kv_stat st = store_stat();
    MUST(st.free + st.cached + st.leased + st.quarantined + st.credited == st.total);
    /* A call without a response may have begun a transfer, which ends after --handed-ms. */
    for (int i = 0; i < 60 && (st.leased || st.quarantined || st.seqs); i++, st = store_stat())
        usleep(50000);
    if (st.leased || st.quarantined || st.seqs)
        fprintf(stderr, "leased %d, quarantined %d, sequences %d\n", (int)st.leased, (int)st.quarantined, (int)st.seqs);
    MUST(!st.leased && !st.quarantined && !st.seqs);
    for (int i = 0; i < 100 && st.credited; i++, st = store_stat())
        usleep(50000);
    MUST(!st.credited);
}

/* ---- with the fake engine ---- */

/* A step with prompts takes 10 µs plus 1 µs a token, a decode step 0.2 ms plus 20 µs a sequence. */
static const char fake[] = "fake:10000,1000,0,200000,0,20000";

static inline void add_many(int n, uint32_t max_tokens, uint32_t more)
{
    for (int i = 0; i < n; i++) {
        char text[2048];
        snprintf(text, sizeof text, "%s%d. %s", i % 2 ? long_prompt : "", i, long_prompt);
        seal(add_job(text, max_tokens + more * (uint32_t)i));
    }
}

#define CASE(name)                                                                                                     \
    static struct case_run run_##name;                                                                                 \
    static void test_##name(void **state)                                                                              \
    {                                                                                                                  \
        (void)state;                                                                                                   \
        if (!run_##name.pid)                                                                                           \
            case_start(&run_##name, name);                                                                             \
        case_end(&run_##name);                                                                                         \
    }

#endif
