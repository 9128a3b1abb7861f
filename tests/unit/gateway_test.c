/*
 * The gateway with fake peers: a scheduler, a tokenize and a worker that send the frames of each case, over sessions
 * within this program (session_fake.h). The expected output follows lib/gateway/gateway.h and docs/protocol.md.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <jansson.h>

#include "base/time.h"
#include "gateway/gateway.h"
#include "unit/asserts.h"
#include "unit/session_fake.h"

static struct err e;

struct peer {
    struct session_hub *hub;
    struct session_listener *listener;
    struct session *s; /* NULL: not connected */
    int n_up;
};

struct world {
    struct peer sched, tokenize, worker;
    struct gateway *g;
    json_t *received; /* frames that the scheduler has received */
    json_t *frames;   /* frames that the gateway has output */
    json_t *log;
    int n_accepted, n_asked, n_parsed;
    int n_choice;       /* prompts in the response of tokenize; 0: no response; -1: err; -2: an invalid one */
    uint64_t line;      /* seq of the newest ask */
    bool sched_blocked; /* the scheduler processes no events */
    size_t n_body;
    uint8_t *body;
    struct wire_arena *arena;
};

static const struct wire_str none;
static const uint8_t fp[32] = "a vocabulary of the test", digest[32] = "a digest of the test";

#define SCHED_URL "ipc:///gw_test/sched"
#define TOKENIZE_URL "ipc:///gw_test/tokenize"
#define WORKERS_URL "ipc:///gw_test/workers"

static void add_frame(json_t *list, const struct wire_frame *f)
{
    char *line = NULL;
    OK(wire_to_json(&e, &line, f, NULL, true));
    json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
    assert_non_null(o);
    json_array_append_new(list, o);
    free(line);
}

static void on_frame(void *arg, const struct wire_frame *f)
{
    add_frame(((struct world *)arg)->frames, f);
}

static void on_accepted(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns)
{
    (void)seq, (void)n_before, (void)eta_ns;
    ((struct world *)arg)->n_accepted++;
}

static void on_parsed(void *arg, uint64_t seq, const struct wire_prompt *q)
{
    struct world *w = arg;
    (void)seq;
    assert_int_equal(q->index, 0);
    assert_int_equal(q->n_prompt, 3);
    assert_int_equal(q->max_tokens, 4);
    assert_int_equal(q->body.n, w->n_body);
    w->n_parsed++;
}

static void on_log(void *arg, const char *text)
{
    json_array_append_new(((struct world *)arg)->log, json_string(text));
}

/* ---- the peers ---- */

static uint64_t incarnation = 1; /* of peers that are opened */

static void peer_open(struct peer *p, const char *role, const char *url)
{
    const struct session_hub_opts o = {.self = {.role = role, .name = role, .inc = incarnation}};
    OK(session_hub_new(&e, &p->hub, &o));
    if (url)
        OK(session_listen(&e, &p->listener, p->hub, url, "gateway", NULL));
}

static void peer_close(struct peer *p)
{
    session_hub_free(p->hub);
    *p = (struct peer){0};
}

/* Breaks the connection; frames in flight are lost. */
static void cut(struct session *s)
{
    pthread_mutex_lock(&fake_lock);
    fake_break(s, "the connection broke", true);
    pthread_mutex_unlock(&fake_lock);
}

static void send_to(struct session *s, const struct wire_frame *f)
{
    assert_non_null(s);
    OK(session_send(&e, s, f));
}

static void send_prompt(struct world *w, uint64_t seq, uint32_t index, uint32_t n)
{
    static const struct wire_span span = {.stage = {"tokenize", 8}, .host = {"elsewhere", 9}, .pid = 1};
    struct wire_frame f = {.kind = WIRE_PROMPT};
    f.prompt = (struct wire_prompt){.seq = seq,
                                    .index = index,
                                    .n = n,
                                    .id = wire_str_of("mine"),
                                    .n_prompt = 3,
                                    .max_tokens = 4,
                                    .digests = {digest, 32},
                                    .priority = 7,
                                    .born_ns = 5,
                                    .span = &span,
                                    .n_span = 1,
                                    .body = {w->body, w->n_body}};
    send_to(w->tokenize.s, &f);
}

static void answer_line(struct world *w, uint64_t seq)
{
    struct wire_frame f = {.kind = WIRE_ERR};
    for (int i = 0; i < w->n_choice; i++)
        send_prompt(w, seq, (uint32_t)i, (uint32_t)w->n_choice);
    if (w->n_choice == -2)
        send_prompt(w, seq, 1, 2);
    f.error = (struct wire_error){
        .seq = seq, .id = wire_str_of("mine"), .code = ERR_NO, .text = wire_str_of("no such field")};
    if (w->n_choice == -1)
        send_to(w->tokenize.s, &f);
}

static void send_hello(struct world *w)
{
    struct wire_frame f = {.kind = WIRE_HELLO};
    f.hello = (struct wire_hello){.version = WIRE_VERSION,
                                  .from = wire_str_of("tokenize"),
                                  .has_vocab = true,
                                  .vocab_fp = {fp, 32},
                                  .vocab_n = 100};
    send_to(w->tokenize.s, &f);
}

/* The next event of a peer. *f: the frame of a SESSION_FRAME event, kind 0 for others. */
static bool next_event(struct world *w, struct peer *p, struct session_event *ev, struct wire_frame *f)
{
    *f = (struct wire_frame){0};
    if (!p->hub || !session_hub_next(p->hub, ev))
        return false;
    if (ev->type == SESSION_UP) {
        p->s = ev->s;
        p->n_up++;
    } else if (ev->type == SESSION_DOWN)
        p->s = NULL;
    wire_arena_reset(w->arena);
    if (ev->type == SESSION_FRAME)
        OK(session_frame(&e, f, w->arena, ev));
    return true;
}

static void peers(struct world *w)
{
    struct session_event ev;
    struct wire_frame f;
    while (!w->sched_blocked && next_event(w, &w->sched, &ev, &f))
        if (f.kind)
            add_frame(w->received, &f);
    while (next_event(w, &w->worker, &ev, &f))
        assert_int_equal(f.kind, 0);
    while (next_event(w, &w->tokenize, &ev, &f)) {
        if (ev.type == SESSION_UP)
            send_hello(w);
        if (!f.kind)
            continue;
        assert_int_equal(f.kind, WIRE_ASK);
        w->n_asked++;
        w->line = f.ask.seq;
        answer_line(w, f.ask.seq);
    }
}

static void step(struct world *w)
{
    OK(gateway_step(&e, w->g, 2));
    peers(w);
}

/* Steps until `what` is true; fails after 10 s. */
#define UNTIL(what)                                                                                                    \
    do {                                                                                                               \
        uint64_t end_ = time_now_ns() + 10000000000u;                                                                  \
        while (!(what)) {                                                                                              \
            step(w);                                                                                                   \
            if (time_now_ns() > end_)                                                                                  \
                fail_msg("not within 10 s: %s", #what);                                                                \
        }                                                                                                              \
    } while (0)

static void pause_ms(struct world *w, uint64_t ms)
{
    for (uint64_t end = time_now_ns() + ms * 1000000; time_now_ns() < end;)
        step(w);
}

static struct world *open_world(const struct gateway_opts *more)
{
    struct world *w = calloc(1, sizeof *w);
    w->n_choice = 1;
    w->received = json_array();
    w->frames = json_array();
    w->log = json_array();
    w->arena = wire_arena_new();
    w->n_body = 16;
    w->body = malloc(8 << 20);
    memset(w->body, 'b', 8 << 20);
    peer_open(&w->sched, "sched", SCHED_URL);
    peer_open(&w->tokenize, "tokenize", TOKENIZE_URL);
    peer_open(&w->worker, "worker", NULL);
    struct gateway_opts o = more ? *more : (struct gateway_opts){0};
    o.sched = SCHED_URL;
    o.tokenize = TOKENIZE_URL;
    o.listen = WORKERS_URL;
    o.frame = on_frame;
    o.accepted = on_accepted;
    o.parsed = on_parsed;
    o.log = on_log;
    o.arg = w;
    OK(gateway_open(&e, &w->g, &o));
    struct session *s;
    OK(session_dial(&e, &s, w->worker.hub, WORKERS_URL, "gateway", NULL));
    UNTIL(w->sched.s && w->tokenize.s && w->worker.s);
    return w;
}

static void close_world(struct world *w)
{
    gateway_close(w->g);
    peer_close(&w->sched);
    peer_close(&w->tokenize);
    peer_close(&w->worker);
    json_decref(w->received);
    json_decref(w->frames);
    json_decref(w->log);
    wire_arena_free(w->arena);
    free(w->body);
    free(w);
}

/* ---- received frames ---- */

/* The i-th frame of this kind; NULL: does not exist. */
static const json_t *nth(const json_t *list, const char *kind, size_t i)
{
    size_t k;
    const json_t *o;
    json_array_foreach((json_t *)list, k, o)
    {
        if (!strcmp(json_string_value(json_object_get(o, "k")), kind) && !i--)
            return o;
    }
    return NULL;
}

static size_t count(const json_t *list, const char *kind)
{
    size_t n = 0;
    while (nth(list, kind, n))
        n++;
    return n;
}

static const char *text(const json_t *o, const char *field)
{
    assert_non_null(o);
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

static uint64_t number(const json_t *o, const char *field)
{
    assert_non_null(o);
    const json_t *v = json_object_get(o, field);
    if (json_is_string(v))
        return strtoull(json_string_value(v), NULL, 10);
    return v ? (uint64_t)json_integer_value(v) : 0;
}

/* "5 6 7" */
static const char *list(const json_t *o, const char *field)
{
    static char buf[200];
    size_t i, n = 0;
    const json_t *v;
    buf[0] = 0;
    json_array_foreach(json_object_get(o, field), i, v) n +=
        (size_t)snprintf(buf + n, sizeof buf - n, i ? " %d" : "%d", (int)json_integer_value(v));
    return buf;
}

/* ---- frames of the peers ---- */

static uint64_t submit(struct world *w, uint64_t seq)
{
    size_t n = count(w->received, "submit");
    const char *line = "{\"prompt\":\"x\",\"id\":\"mine\"}";
    OK(gateway_submit(&e, w->g, seq, wire_str_of("mine"), line, strlen(line)));
    UNTIL(count(w->received, "submit") > n);
    return number(nth(w->received, "submit", n), "job");
}

static void ack(struct world *w, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_ACK};
    f.ack = (struct wire_ack){.to = wire_str_of("x"), .job = job, .attempt = 1};
    int n = w->n_accepted;
    send_to(w->sched.s, &f);
    UNTIL(w->n_accepted > n);
}

static void done(struct world *w, uint64_t job, enum wire_reason reason, uint32_t code, const char *why)
{
    struct wire_frame f = {.kind = WIRE_DONE};
    f.done = (struct wire_done){
        .to = wire_str_of("x"), .job = job, .reason = reason, .code = code, .text = wire_str_of(why)};
    send_to(w->sched.s, &f);
}

static void refuse(struct world *w, uint64_t job, bool never, uint64_t retry_ns)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.to = wire_str_of("x"),
                                    .job = job,
                                    .never = never,
                                    .retry_ns = retry_ns,
                                    .text = wire_str_of("the queue is full")};
    send_to(w->sched.s, &f);
}

/* Returns when the gateway has acknowledged the frame. */
static void send_worker(struct world *w, const struct wire_frame *f)
{
    send_to(w->worker.s, f);
    UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
}

static struct wire_frame out_of(uint64_t job, uint32_t at, const uint32_t *ids, uint32_t n, const char *s)
{
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){
        .seq = job, .id = wire_str_of("mine"), .ids = ids, .n_id = n, .text = wire_str_of(s), .at = at};
    return f;
}

static void token(struct world *w, uint64_t job, uint32_t at, uint32_t id, const char *s)
{
    struct wire_frame f = out_of(job, at, &id, 1, s);
    send_worker(w, &f);
}

static void end(struct world *w, uint64_t job, uint32_t n)
{
    struct wire_frame f = {.kind = WIRE_END};
    f.end = (struct wire_end){.seq = job,
                              .id = wire_str_of("mine"),
                              .reason = WIRE_STOP,
                              .prompt_tokens = 3,
                              .completion_tokens = n,
                              .cached_tokens = 2};
    send_worker(w, &f);
}

/* ---- tests ---- */

static void test_an_answer_is_output_and_reported(void **state)
{
    (void)state;
    struct gateway_opts o = {.slo_ttft_ns = 123, .slo_tpot_ns = 45};
    struct world *w = open_world(&o);
    uint64_t job = submit(w, 900);
    const json_t *s = nth(w->received, "submit", 0);
    assert_int_equal(number(s, "n_prompt"), 3);
    assert_int_equal(number(s, "max_tokens"), 4);
    assert_int_equal(number(s, "priority"), 7);
    assert_int_equal(number(s, "slo_ttft_ns"), 123);
    assert_int_equal(number(s, "slo_tpot_ns"), 45);
    assert_false(json_is_true(json_object_get(s, "again")));
    assert_string_equal(text(s, "reply"), WORKERS_URL);
    /* The body as tokenize encoded it, and the digests. */
    assert_string_equal(text(s, "body"), "62626262626262626262626262626262");
    assert_int_equal(strncmp(text(s, "digests"), "6120646967657374206f6620746865", 30), 0);
    assert_int_equal(w->n_parsed, 1);

    ack(w, job);
    assert_int_equal(gateway_running(w->g), 1);
    token(w, job, 0, 50, "a");
    UNTIL(count(w->received, "report") == 1); /* the first token is reported at once */
    const json_t *r = nth(w->received, "report", 0);
    assert_string_equal(text(r, "what"), "tokens");
    assert_string_equal(text(r, "worker"), "");
    assert_int_equal(number(r, "n_out"), 1);
    assert_string_equal(list(r, "out"), "50");
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    pause_ms(w, 50);
    assert_int_equal(count(w->received, "report"), 1); /* later ones are collected … */
    UNTIL(count(w->received, "report") == 2);          /* … for a second */
    r = nth(w->received, "report", 1);
    assert_int_equal(number(r, "n_out"), 3);
    assert_string_equal(list(r, "out"), "51 52");
    end(w, job, 3);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(count(w->frames, "hello"), 1);
    assert_int_equal(count(w->frames, "out"), 3);
    const json_t *x = nth(w->frames, "end", 0);
    assert_int_equal(number(x, "seq"), 900);
    assert_string_equal(text(x, "reason"), "stop");
    assert_int_equal(number(x, "cached_tokens"), 2);
    assert_int_equal(number(nth(w->frames, "out", 2), "seq"), 900);
    done(w, job, WIRE_STOP, 0, ""); /* a late copy has no effect */
    pause_ms(w, 30);
    assert_int_equal(json_array_size(w->frames), 5);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

static void test_choices_are_jobs_of_their_own(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 2;
    uint64_t a = submit(w, 1);
    UNTIL(count(w->received, "submit") == 2);
    uint64_t b = number(nth(w->received, "submit", 1), "job");
    assert_true(a != b);
    assert_int_equal(gateway_running(w->g), 2);
    token(w, b, 0, 9, "B");
    token(w, a, 0, 8, "A");
    end(w, b, 1);
    assert_int_equal(gateway_running(w->g), 1);
    end(w, a, 1);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "out", 0), "index"), 1);
    assert_int_equal(number(nth(w->frames, "out", 1), "index"), 0);
    assert_int_equal(number(nth(w->frames, "end", 1), "seq"), 1);
    close_world(w);
}

static void test_repeated_tokens_are_output_once(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    const uint32_t two[] = {50, 51};
    token(w, job, 0, 50, "a");
    token(w, job, 0, 50, "a");
    token(w, job, 1, 51, "b");
    struct wire_frame f = out_of(job, 0, two, 2, "ab");
    send_worker(w, &f);
    token(w, job, 2, 52, "c");
    assert_int_equal(count(w->frames, "out"), 3);
    /* The prompt of an echo is output once, too. */
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f);
    assert_int_equal(count(w->frames, "out"), 3);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);

    w = open_world(NULL);
    job = submit(w, 1);
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f);
    send_worker(w, &f);
    assert_int_equal(count(w->frames, "out"), 1);
    close_world(w);
}

/* A gap, different tokens, or a frame with known and new ones: the job is cancelled and the answer continues as a new
 * job. */
static void test_a_job_with_wrong_tokens_is_replaced(void **state)
{
    (void)state;
    const uint32_t ids[] = {51, 52};
    for (int k = 0; k < 4; k++) {
        struct world *w = open_world(NULL);
        uint64_t job = submit(w, 1);
        token(w, job, 0, 50, "a");
        token(w, job, 1, 51, "b");
        struct wire_frame f = out_of(job, k == 0 ? 3 : 1, ids, 2, "x");
        if (k == 1)
            f.out.n_id = 2;
        uint32_t other = 99;
        if (k == 2)
            f = out_of(job, 1, &other, 1, "x");
        if (k == 3) {
            f = (struct wire_frame){.kind = WIRE_END};
            f.end =
                (struct wire_end){.seq = job, .id = wire_str_of("mine"), .reason = WIRE_STOP, .completion_tokens = 3};
        }
        send_worker(w, &f);
        UNTIL(count(w->received, "submit") == 2 && count(w->received, "cancel") == 1);
        const json_t *s = nth(w->received, "submit", 1);
        assert_int_equal(number(nth(w->received, "cancel", 0), "job"), job);
        assert_true(number(s, "job") != job);
        assert_int_equal(number(s, "n_out"), 2);
        assert_string_equal(list(s, "out"), "50 51");
        assert_false(json_is_true(json_object_get(s, "again")));
        assert_int_equal(json_array_size(w->log), 1);
        token(w, job, 2, 77, "old");
        token(w, number(s, "job"), 2, 52, "c");
        end(w, number(s, "job"), 3);
        UNTIL(gateway_running(w->g) == 0);
        assert_int_equal(count(w->frames, "out"), 3);
        assert_string_equal(text(nth(w->frames, "out", 2), "text"), "c");
        assert_int_equal(count(w->received, "cancel"), 1);
        close_world(w);
    }
}

static void test_a_request_fails_after_six_cancelled_jobs(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    for (size_t i = 1; i <= 5; i++) {
        done(w, job, WIRE_CANCELLED, 0, "gone");
        UNTIL(count(w->received, "submit") == i + 1);
        job = number(nth(w->received, "submit", i), "job");
    }
    done(w, job, WIRE_CANCELLED, 0, "gone");
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "given up"));
    assert_string_equal(text(nth(w->frames, "err", 0), "id"), "mine");
    close_world(w);
}

static void test_requests_are_submitted_again_after_a_restart_of_the_scheduler(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    ack(w, job);
    token(w, job, 0, 50, "a");
    peer_close(&w->sched);
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    assert_string_equal(gateway_absent(w->g, &since), SCHED_URL);
    token(w, job, 1, 51, "b"); /* workers continue meanwhile */
    peer_open(&w->sched, "sched", SCHED_URL);
    UNTIL(count(w->received, "submit") == 2);
    const json_t *s = nth(w->received, "submit", 1);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_int_equal(number(s, "job"), job);
    assert_int_equal(number(s, "attempt"), 1);
    assert_string_equal(list(s, "out"), "50 51");
    assert_null(gateway_absent(w->g, &since));
    end(w, job, 2);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

/* The scheduler dies, and its successor connects. planned: it ends its sessions with a reason. */
static void succeed_scheduler(struct world *w, bool planned)
{
    session_listener_free(w->sched.listener);
    w->sched.listener = NULL;
    if (planned)
        session_close(w->sched.s, "it is replaced");
    else
        cut(w->sched.s);
    pause_ms(w, 50);
    peer_close(&w->sched);
    incarnation++;
    json_array_clear(w->received);
    peer_open(&w->sched, "sched", SCHED_URL);
    UNTIL(w->sched.n_up > 0);
}

/* Three choices are at a scheduler that dies. They are submitted one at a time, and the one that is there when the next
 * one dies fails by name. A new request waits for them. */
static void test_a_request_that_makes_schedulers_die_fails_by_name(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t first = submit(w, 1), second = submit(w, 2), third = submit(w, 3);
    succeed_scheduler(w, false);
    UNTIL(count(w->received, "submit") == 1);
    assert_int_equal(number(nth(w->received, "submit", 0), "job"), first);
    assert_false(json_is_true(json_object_get(nth(w->received, "submit", 0), "again")));
    OK(gateway_submit(&e, w->g, 4, none, "{}", 2));
    pause_ms(w, 100);
    assert_int_equal(count(w->received, "submit"), 1);
    token(w, first, 0, 50, "a"); /* clears it */
    UNTIL(count(w->received, "submit") == 2);
    assert_int_equal(number(nth(w->received, "submit", 1), "job"), second);
    succeed_scheduler(w, false);
    UNTIL(count(w->frames, "err") == 1);
    assert_int_equal(number(nth(w->frames, "err", 0), "seq"), 2);
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "request mine"));
    UNTIL(count(w->received, "submit") >= 1);
    token(w, first, 1, 51, "b");
    UNTIL(count(w->received, "submit") >= 2);
    token(w, third, 0, 50, "a");
    UNTIL(count(w->received, "submit") == 3);
    assert_int_equal(gateway_running(w->g), 3);
    close_world(w);
}

/* A scheduler that ends its sessions with a reason is replaced: no choice is a suspect, however often. */
static void test_a_planned_end_of_the_scheduler_makes_no_suspects(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    submit(w, 1);
    submit(w, 2);
    for (int i = 0; i < 4; i++) {
        succeed_scheduler(w, true);
        UNTIL(count(w->received, "submit") == 2);
    }
    assert_int_equal(count(w->frames, "err"), 0);
    close_world(w);
}

/* The scheduler cancels the jobs of a broken connection: unfinished ones are submitted again, and nothing is sent about
 * those that have ended. */
static void test_unfinished_requests_are_submitted_again_after_a_broken_connection(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t first = submit(w, 1), second = submit(w, 2), third = submit(w, 3);
    token(w, second, 0, 50, "a");
    UNTIL(count(w->received, "report") == 1);
    w->sched_blocked = true;
    end(w, first, 0);
    gateway_cancel(w->g, 3);
    UNTIL(gateway_running(w->g) == 1);
    cut(w->sched.s);
    w->sched_blocked = false;
    json_array_clear(w->received);
    UNTIL(w->sched.n_up == 2 && count(w->received, "submit") == 1);
    pause_ms(w, 30);
    assert_int_equal(json_array_size(w->received), 1);
    const json_t *s = nth(w->received, "submit", 0);
    assert_int_equal(number(s, "job"), second);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_string_equal(list(s, "out"), "50");
    assert_true(third > second);
    close_world(w);
}

static void test_a_refused_request_is_retried_within_the_patience(void **state)
{
    (void)state;
    struct gateway_opts o = {.patience_ns = 400000000};
    struct world *w = open_world(&o);
    uint64_t job = submit(w, 1);
    refuse(w, job, true, 0);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "the queue is full");
    job = submit(w, 2);
    refuse(w, job, false, 100000000);
    uint64_t began = time_now_ns();
    UNTIL(count(w->received, "submit") == 3);
    assert_true(time_now_ns() - began >= 90000000);
    ack(w, job);
    refuse(w, job, false, 500000000); /* longer than its patience */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 1), "text"), "try again in 0.5 s"));
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

static void test_done_ends_an_answer_without_end_frame(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    done(w, job, WIRE_ERROR, ERR_NO, "another vocabulary");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "another vocabulary");

    job = submit(w, 2); /* the worker died between the last token and the end */
    for (uint32_t i = 0; i < 4; i++)
        token(w, job, i, 50 + i, "a");
    done(w, job, WIRE_LENGTH, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "end", 0), "reason"), "length");
    assert_int_equal(number(nth(w->frames, "end", 0), "completion_tokens"), 4);
    assert_int_equal(number(nth(w->frames, "end", 0), "prompt_tokens"), 3);

    job = submit(w, 3);
    done(w, job, WIRE_STOP, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 1), "code"), ERR_SYS);
    assert_int_equal(count(w->received, "submit"), 3);
    close_world(w);
}

static void test_cancel_ends_an_answer_at_any_stage(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 5);
    token(w, job, 0, 50, "a");
    gateway_cancel(w->g, 5);
    gateway_cancel(w->g, 6); /* unknown */
    UNTIL(gateway_running(w->g) == 0);
    const json_t *x = nth(w->frames, "end", 0);
    assert_string_equal(text(x, "reason"), "cancelled");
    assert_int_equal(number(x, "completion_tokens"), 1);
    assert_int_equal(number(x, "seq"), 5);
    UNTIL(count(w->received, "cancel") == 1);
    assert_int_equal(number(nth(w->received, "cancel", 0), "job"), job);
    token(w, job, 1, 51, "b");
    assert_int_equal(count(w->frames, "out"), 1);

    w->n_choice = 0; /* before tokenize has answered */
    const char *line = "{\"prompt\":\"x\",\"id\":\"its own\"}";
    OK(gateway_submit(&e, w->g, 7, (struct wire_str){"its own", 7}, line, strlen(line)));
    w->line = 0;
    UNTIL(w->line);
    gateway_cancel(w->g, 7);
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "end", 1), "id"), "its own");
    w->n_choice = 1;
    answer_line(w, w->line);
    pause_ms(w, 50);
    assert_int_equal(count(w->received, "submit"), 1);
    assert_int_equal(json_array_size(w->frames), 4); /* hello, out, end, end */
    close_world(w);
}

static void test_lines_that_tokenize_refuses(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = -1;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "err", 0), "text"), "no such field");
    assert_int_equal(number(nth(w->frames, "err", 0), "seq"), 1);
    w->n_choice = -2;
    OK(gateway_submit(&e, w->g, 2, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 1), "code"), ERR_PROTO);
    assert_string_equal(text(nth(w->frames, "err", 1), "id"), "req-2");
    OK(gateway_submit(&e, w->g, 3, none, NULL, (size_t)GATEWAY_LINE_BYTES_MAX + 1));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->frames, "err", 2), "code"), ERR_NO);
    assert_int_equal(count(w->received, "submit"), 0);
    close_world(w);
}

/* The connection ends within a response: the line is sent again, and each choice is submitted once. */
static void test_a_line_is_sent_again_after_a_restart_of_tokenize(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    UNTIL(w->line);
    uint64_t first = w->line;
    send_prompt(w, w->line, 0, 2);
    pause_ms(w, 20);
    assert_int_equal(gateway_running(w->g), 1);
    assert_int_equal(w->n_parsed, 0);
    peer_close(&w->tokenize);
    w->n_choice = 2;
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    assert_string_equal(gateway_absent(w->g, &since), TOKENIZE_URL);
    peer_open(&w->tokenize, "tokenize", TOKENIZE_URL);
    UNTIL(count(w->received, "submit") == 2);
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "submit"), 2);
    assert_int_equal(w->n_asked, 2);
    assert_int_equal(w->n_parsed, 1);
    assert_true(w->line != first);
    assert_int_equal(gateway_running(w->g), 2);
    assert_int_equal(count(w->frames, "hello"), 1); /* the vocabulary is the same */
    close_world(w);
}

static void test_a_line_fails_after_five_lost_connections_to_tokenize(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, none, "{}", 2));
    for (int i = 1; i <= 5; i++) {
        UNTIL(w->n_asked == i);
        assert_int_equal(gateway_running(w->g), 1);
        cut(w->tokenize.s);
        UNTIL(w->tokenize.n_up == i + 1);
    }
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(
        strstr(text(nth(w->frames, "err", 0), "text"), "the connection to tokenize broke 5 times before it responded"));
    assert_int_equal(number(nth(w->frames, "err", 0), "code"), ERR_SYS);
    close_world(w);
}

/* At most 64 lines are in flight at tokenize, the others wait; some of those are cancelled. */
static void test_lines_in_flight_are_limited(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    for (uint64_t i = 0; i < 100; i++)
        OK(gateway_submit(&e, w->g, i, none, "{}", 2));
    UNTIL(w->n_asked == 64);
    pause_ms(w, 20);
    assert_int_equal(w->n_asked, 64);
    gateway_cancel(w->g, 3);
    gateway_cancel(w->g, 99);
    UNTIL(gateway_running(w->g) == 98);
    w->n_choice = 1;
    for (uint64_t i = 0; i < 64; i++)
        answer_line(w, i + 1);
    UNTIL(count(w->received, "submit") == 98);
    assert_int_equal(w->n_asked, 99);
    assert_int_equal(w->n_parsed, 98);
    close_world(w);
}

static void test_a_request_fails_at_its_deadline(void **state)
{
    (void)state;
    struct gateway_opts o = {.deadline_ns = 300000000};
    struct world *w = open_world(&o);
    w->n_choice = 0;
    OK(gateway_submit(&e, w->g, 1, (struct wire_str){"slow", 4}, "{\"prompt\":1,\"id\":\"slow\"}", 24));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->frames, "err", 0), "id"), "slow");
    assert_non_null(strstr(text(nth(w->frames, "err", 0), "text"), "deadline of 0.3 s"));
    w->n_choice = 1;
    uint64_t job = submit(w, 2);
    assert_in_range(number(nth(w->received, "submit", 0), "deadline_ns"), 1, 300000000);
    refuse(w, job, false, 50000000);
    UNTIL(count(w->received, "submit") == 2); /* until the deadline, without patience */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->frames, "err", 1), "text"), "deadline"));
    UNTIL(count(w->received, "cancel") == 1);
    close_world(w);
}

/* Tokens after the end of an answer: a worker still runs the job. */
static void test_a_job_with_tokens_after_its_end_is_cancelled(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    token(w, job, 0, 50, "a");
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    token(w, job, 0, 50, "a"); /* a copy of a known token does not cancel */
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "cancel"), 0);
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    UNTIL(count(w->received, "cancel") == 1);
    pause_ms(w, 20);
    assert_int_equal(count(w->received, "cancel"), 1);
    close_world(w);
}

static void test_invalid_frames_of_workers_are_logged_at_a_limited_rate(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    token(w, job, 0, 50, "a");
    static const uint8_t bad[][8] = {{0xce, 0, 0, 0, 3, 0xff, 0xff, 0xff},
                                     {0xce, 0, 0, 0, 3, 0x81, 0xa1, 'k'},
                                     {0xce, 0, 0, 0, 3, 0x80, 0x80, 0x80}};
    for (size_t i = 0; i < 3; i++) {
        OK(session_send_bytes(&e, w->worker.s, bad[i], sizeof bad[i]));
        UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
    }
    struct wire_frame f = {.kind = WIRE_TICK};
    send_worker(w, &f);
    assert_int_equal(json_array_size(w->log), 4);
    for (int i = 0; i < 200; i++) /* ten lines a second; a slow machine takes three seconds */
        OK(session_send_bytes(&e, w->worker.s, bad[0], sizeof bad[0]));
    UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
    assert_in_range(json_array_size(w->log), 10, 33);
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

/* The scheduler is slow: requests beyond the window wait until there is room, and are not sent if they are cancelled
 * meanwhile. */
static void test_a_full_session_delays_requests(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->sched_blocked = true;
    w->n_body = 6 << 20;
    for (uint64_t i = 1; i <= 5; i++) {
        OK(gateway_submit(&e, w->g, i, none, "{}", 2));
        UNTIL(w->n_parsed == (int)i);
    }
    w->n_body = 16;
    gateway_cancel(w->g, 1); /* submitted */
    gateway_cancel(w->g, 4); /* not submitted */
    UNTIL(gateway_running(w->g) == 3);
    pause_ms(w, 20);
    assert_int_equal(w->sched.s != NULL, 1);
    w->sched_blocked = false;
    UNTIL(count(w->received, "submit") == 4 && count(w->received, "cancel") == 1);
    pause_ms(w, 20);
    assert_int_equal(json_array_size(w->received), 5);
    static const uint64_t jobs[] = {1, 2, 3, 5};
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(number(nth(w->received, "submit", i), "job"), jobs[i]);
        assert_false(json_is_true(json_object_get(nth(w->received, "submit", i), "again")));
    }
    assert_int_equal(number(nth(w->received, "cancel", 0), "job"), 1);
    end(w, 5, 0);
    UNTIL(count(w->received, "report") == 1);
    close_world(w);
}

/* gateway_close reports ends; without the reports the scheduler would count the requests as cancelled. */
static void test_close_reports_ended_answers(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = submit(w, 1);
    submit(w, 2);
    w->sched_blocked = true;
    end(w, job, 0);
    gateway_close(w->g);
    w->g = NULL;
    w->sched_blocked = false;
    peers(w);
    assert_int_equal(count(w->received, "report"), 1);
    assert_string_equal(text(nth(w->received, "report", 0), "what"), "ended");
    assert_int_equal(number(nth(w->received, "report", 0), "job"), job);
    assert_int_equal(count(w->received, "cancel"), 0);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer_is_output_and_reported),
        cmocka_unit_test(test_choices_are_jobs_of_their_own),
        cmocka_unit_test(test_repeated_tokens_are_output_once),
        cmocka_unit_test(test_a_job_with_wrong_tokens_is_replaced),
        cmocka_unit_test(test_a_request_fails_after_six_cancelled_jobs),
        cmocka_unit_test(test_requests_are_submitted_again_after_a_restart_of_the_scheduler),
        cmocka_unit_test(test_a_request_that_makes_schedulers_die_fails_by_name),
        cmocka_unit_test(test_a_planned_end_of_the_scheduler_makes_no_suspects),
        cmocka_unit_test(test_unfinished_requests_are_submitted_again_after_a_broken_connection),
        cmocka_unit_test(test_a_refused_request_is_retried_within_the_patience),
        cmocka_unit_test(test_done_ends_an_answer_without_end_frame),
        cmocka_unit_test(test_cancel_ends_an_answer_at_any_stage),
        cmocka_unit_test(test_lines_that_tokenize_refuses),
        cmocka_unit_test(test_a_line_is_sent_again_after_a_restart_of_tokenize),
        cmocka_unit_test(test_a_line_fails_after_five_lost_connections_to_tokenize),
        cmocka_unit_test(test_lines_in_flight_are_limited),
        cmocka_unit_test(test_a_request_fails_at_its_deadline),
        cmocka_unit_test(test_a_job_with_tokens_after_its_end_is_cancelled),
        cmocka_unit_test(test_invalid_frames_of_workers_are_logged_at_a_limited_rate),
        cmocka_unit_test(test_a_full_session_delays_requests),
        cmocka_unit_test(test_close_reports_ended_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
