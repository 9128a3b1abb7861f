/*
 * The gateway between peers of the test: a scheduler, a tokenize and a worker that say what each case needs. What must
 * come out is written down in lib/gateway/gateway.h and docs/protocol.md; tokens, texts and numbers are the test's own.
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
#include <unistd.h>

#include "gateway/gateway.h"
#include "link/ask.h"
#include "proc/proc.h"

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        struct err e_ = {0};                                                                                           \
        struct err *e = &e_;                                                                                           \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, e_.text);                                                                        \
    } while (0)

enum { SCHED = 1, TOKENIZE, WORKER };

struct world {
    char sched_url[80], tokenize_url[80];
    struct link_box *box;
    struct link_listener *sched, *tokenize;
    struct link_dialer *worker;
    struct link_question *parked; /* the newest poll */
    uint32_t parked_peer;
    struct link_question *line; /* tokenize's, where it is not answered at once */
    int for_sched, for_tokenize, for_worker;
    struct gateway *g;
    json_t *told;  /* frames that the scheduler got, but polls */
    json_t *given; /* frames that the gateway gave out */
    json_t *said;
    int n_poll, n_taken, n_asked, n_confirmed;
    int n_choice; /* that tokenize answers with; 0: it waits; -1: err; -2: nonsense */
    bool forget;  /* the scheduler refuses the next poll */
    bool mute;    /* no answers to what it is told */
    struct wire_arena *arena;
};

static const uint8_t fp[32] = "a vocabulary of the test";

static void keep(json_t *list, const struct wire_frame *f)
{
    char *line = NULL;
    OK(wire_to_json(e, &line, f, NULL, true));
    json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
    assert_non_null(o);
    json_array_append_new(list, o);
    free(line);
}

static void on_frame(void *arg, const struct wire_frame *f)
{
    keep(((struct world *)arg)->given, f);
}

static void on_taken(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns)
{
    (void)seq, (void)n_before, (void)eta_ns;
    ((struct world *)arg)->n_taken++;
}

static void on_say(void *arg, const char *text)
{
    json_array_append_new(((struct world *)arg)->said, json_string(text));
}

/* ---- the peers ---- */

static void hello_of(struct wire_frame *f)
{
    *f = (struct wire_frame){.kind = WIRE_HELLO};
    f->hello = (struct wire_hello){.version = WIRE_VERSION,
                                   .from = wire_str_of("tokenize"),
                                   .has_vocab = true,
                                   .vocab_fp = {fp, 32},
                                   .vocab_n = 100};
}

static void tok_of(struct wire_frame *f, uint64_t seq, uint32_t index)
{
    static const uint32_t ids[] = {11, 12, 13};
    static const struct wire_span span = {.stage = {"tokenize", 8}, .host = {"elsewhere", 9}, .pid = 1};
    *f = (struct wire_frame){.kind = WIRE_TOK};
    wire_sampling_default(&f->req.s);
    f->req.seq = seq;
    f->req.index = index;
    f->req.id = wire_str_of("mine");
    f->req.ids = ids;
    f->req.n_id = 3;
    f->req.s.max_tokens = 4;
    f->req.priority = 7;
    f->req.born_ns = 5;
    f->req.span = &span;
    f->req.n_span = 1;
}

static void answer_line(struct world *w, struct link_question *q, uint64_t seq)
{
    struct link_msg m = {0};
    struct wire_frame f;
    hello_of(&f);
    if (w->n_choice > -2)
        OK(link_msg_add(e, &m, &f));
    for (int i = 0; i < w->n_choice; i++) {
        tok_of(&f, seq, (uint32_t)i);
        OK(link_msg_add(e, &m, &f));
    }
    if (w->n_choice == -1) {
        f = (struct wire_frame){.kind = WIRE_ERR};
        f.error = (struct wire_error){
            .seq = seq, .id = wire_str_of("mine"), .code = ERR_NO, .text = wire_str_of("no such field")};
        OK(link_msg_add(e, &m, &f));
    }
    link_answer(q, &m);
    link_msg_free(&m);
}

static void say_sched(struct world *w, const struct wire_frame *f, size_t n)
{
    struct link_msg m = {0};
    for (size_t i = 0; i < n; i++)
        OK(link_msg_add(e, &m, &f[i]));
    assert_non_null(w->parked);
    link_answer(w->parked, &m);
    w->parked = NULL;
    link_msg_free(&m);
}

static void sched_question(struct world *w, struct link_event *v)
{
    struct err e = {0};
    struct wire_frame f;
    bool poll = false;
    wire_arena_reset(w->arena);
    while (link_msg_next(&e, &f, w->arena, &v->p, &v->n)) {
        poll = poll || f.kind == WIRE_POLL;
        if (f.kind == WIRE_POLL)
            w->n_poll++;
        else
            keep(w->told, &f);
    }
    assert_int_equal(e.code, 0);
    if (!poll) {
        if (!w->mute)
            link_answer(v->q, NULL);
        return;
    }
    if (w->parked)
        link_answer(w->parked, NULL);
    w->parked = v->q;
    w->parked_peer = v->peer;
    if (w->forget) {
        w->forget = false;
        struct wire_frame no = {.kind = WIRE_REFUSE};
        no.refuse = (struct wire_refuse){.to = wire_str_of("x"), .text = wire_str_of("who are you")};
        say_sched(w, &no, 1);
    }
}

static void peers(struct world *w)
{
    struct link_event v;
    struct err e = {0};
    struct wire_frame f;
    while (link_box_take(w->box, &v)) {
        if (v.what == LINK_DOWN && w->parked && v.peer == w->parked_peer)
            w->parked = NULL;
        if (v.what == LINK_ANSWER)
            w->n_confirmed++;
        if (v.what != LINK_QUESTION)
            continue;
        if (*(int *)v.arg == SCHED) {
            sched_question(w, &v);
            continue;
        }
        wire_arena_reset(w->arena);
        assert_true(link_msg_next(&e, &f, w->arena, &v.p, &v.n));
        assert_int_equal(f.kind, WIRE_ASK);
        w->n_asked++;
        if (w->n_choice)
            answer_line(w, v.q, f.ask.seq);
        else
            w->line = v.q;
    }
}

static void step(struct world *w)
{
    OK(gateway_step(e, w->g, 2));
    peers(w);
}

/* Until `what` is true; a test that waits for ever fails. */
#define UNTIL(what)                                                                                                    \
    do {                                                                                                               \
        uint64_t end_ = proc_now_ns() + 10000000000u;                                                                  \
        while (!(what)) {                                                                                              \
            step(w);                                                                                                   \
            if (proc_now_ns() > end_)                                                                                  \
                fail_msg("never: %s", #what);                                                                          \
        }                                                                                                              \
    } while (0)

static void pause_ms(struct world *w, uint64_t ms)
{
    for (uint64_t end = proc_now_ns() + ms * 1000000; proc_now_ns() < end;)
        step(w);
}

static struct world *open_world(const struct gateway_opts *more)
{
    static int n;
    struct world *w = calloc(1, sizeof *w);
    w->for_sched = SCHED;
    w->for_tokenize = TOKENIZE;
    w->for_worker = WORKER;
    w->n_choice = 1;
    w->told = json_array();
    w->given = json_array();
    w->said = json_array();
    w->arena = wire_arena_new();
    n++;
    snprintf(w->sched_url, sizeof w->sched_url, "ipc:///tmp/gw_test.%d.%d.s", (int)getpid(), n);
    snprintf(w->tokenize_url, sizeof w->tokenize_url, "ipc:///tmp/gw_test.%d.%d.t", (int)getpid(), n);
    OK(link_box_new(e, &w->box));
    OK(link_listen(e, &w->sched, w->box, w->sched_url, &w->for_sched));
    OK(link_listen(e, &w->tokenize, w->box, w->tokenize_url, &w->for_tokenize));
    struct gateway_opts o = more ? *more : (struct gateway_opts){0};
    o.sched = w->sched_url;
    o.tokenize = w->tokenize_url;
    o.frame = on_frame;
    o.taken = on_taken;
    o.say = on_say;
    o.arg = w;
    OK(gateway_open(e, &w->g, &o));
    return w;
}

static void close_world(struct world *w)
{
    gateway_close(w->g);
    link_dialer_free(w->worker);
    link_listener_free(w->sched);
    link_listener_free(w->tokenize);
    link_box_free(w->box);
    json_decref(w->told);
    json_decref(w->given);
    json_decref(w->said);
    wire_arena_free(w->arena);
    free(w);
}

/* ---- what is looked at ---- */

/* The i-th frame of this kind; NULL: there are fewer. */
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

/* ---- what the peers say ---- */

static const struct wire_str none; /* id of a line without one */

static uint64_t ask(struct world *w, uint64_t seq)
{
    size_t n = count(w->told, "submit");
    const char *line = "{\"prompt\":\"x\",\"id\":\"mine\"}";
    OK(gateway_ask(e, w->g, seq, (struct wire_str){"mine", 4}, line, strlen(line)));
    UNTIL(count(w->told, "submit") > n);
    return number(nth(w->told, "submit", n), "job");
}

static void ack(struct world *w, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_ACK};
    f.ack = (struct wire_ack){.to = wire_str_of("x"), .job = job, .attempt = 1};
    int n = w->n_taken;
    UNTIL(w->parked);
    say_sched(w, &f, 1);
    UNTIL(w->n_taken > n);
}

static void done(struct world *w, uint64_t job, enum wire_reason reason, uint32_t code, const char *why)
{
    struct wire_frame f = {.kind = WIRE_DONE};
    f.done = (struct wire_done){
        .to = wire_str_of("x"), .job = job, .reason = reason, .code = code, .text = wire_str_of(why)};
    UNTIL(w->parked);
    say_sched(w, &f, 1);
}

static void refuse(struct world *w, uint64_t job, bool never, uint64_t retry_ns)
{
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.to = wire_str_of("x"),
                                    .job = job,
                                    .never = never,
                                    .retry_ns = retry_ns,
                                    .text = wire_str_of("the queue is full")};
    UNTIL(w->parked);
    say_sched(w, &f, 1);
}

static void send_worker(struct world *w, const struct wire_frame *f, size_t n)
{
    struct link_msg m = {0};
    if (!w->worker)
        OK(link_dial(e, &w->worker, w->box, text(nth(w->told, "submit", 0), "reply"), &w->for_worker));
    for (size_t i = 0; i < n; i++)
        OK(link_msg_add(e, &m, &f[i]));
    OK(link_ask(e, w->worker, &m, &w->for_worker));
    link_msg_free(&m);
    int k = w->n_confirmed;
    UNTIL(w->n_confirmed > k);
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
    send_worker(w, &f, 1);
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
    send_worker(w, &f, 1);
}

/* ---- tests ---- */

static void test_an_answer(void **state)
{
    (void)state;
    struct gateway_opts o = {.slo_ttft_ns = 123, .slo_tpot_ns = 45};
    struct world *w = open_world(&o);
    uint64_t job = ask(w, 900);
    const json_t *s = nth(w->told, "submit", 0);
    assert_int_equal(number(s, "n_prompt"), 3);
    assert_int_equal(number(s, "max_tokens"), 4);
    assert_int_equal(number(s, "priority"), 7);
    assert_int_equal(number(s, "slo_ttft_ns"), 123);
    assert_int_equal(number(s, "slo_tpot_ns"), 45);
    assert_false(json_is_true(json_object_get(s, "again")));
    /* The body: a hello with the vocabulary and the tok frame under the job's number. */
    const char *hex = text(s, "body");
    uint8_t body[4096];
    size_t n = strlen(hex) / 2;
    assert_true(n && n < sizeof body);
    for (size_t i = 0; i < n; i++) {
        unsigned x;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &x), 1);
        body[i] = (uint8_t)x;
    }
    struct err e = {0};
    struct wire_frame f;
    const uint8_t *p = body;
    assert_true(link_msg_next(&e, &f, w->arena, &p, &n));
    assert_int_equal(f.kind, WIRE_HELLO);
    assert_memory_equal(f.hello.vocab_fp.p, fp, 32);
    assert_true(link_msg_next(&e, &f, w->arena, &p, &n));
    assert_int_equal(f.kind, WIRE_TOK);
    assert_int_equal(f.req.seq, job);
    assert_int_equal(f.req.n_id, 3);
    assert_false(link_msg_next(&e, &f, w->arena, &p, &n));
    assert_int_equal(e.code, 0);

    ack(w, job);
    assert_int_equal(gateway_running(w->g), 1);
    token(w, job, 0, 50, "a");
    UNTIL(count(w->told, "report") == 1); /* the first one at once */
    const json_t *r = nth(w->told, "report", 0);
    assert_string_equal(text(r, "what"), "tokens");
    assert_string_equal(text(r, "worker"), "");
    assert_int_equal(number(r, "n_out"), 1);
    assert_string_equal(list(r, "out"), "50");
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    pause_ms(w, 50);
    assert_int_equal(count(w->told, "report"), 1); /* these can wait … */
    UNTIL(count(w->told, "report") == 2);          /* … for a second */
    r = nth(w->told, "report", 1);
    assert_int_equal(number(r, "n_out"), 3);
    assert_string_equal(list(r, "out"), "51 52");
    end(w, job, 3);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(count(w->given, "hello"), 1);
    assert_int_equal(count(w->given, "out"), 3);
    const json_t *x = nth(w->given, "end", 0);
    assert_int_equal(number(x, "seq"), 900);
    assert_string_equal(text(x, "reason"), "stop");
    assert_int_equal(number(x, "cached_tokens"), 2);
    assert_int_equal(number(nth(w->given, "out", 2), "seq"), 900);
    done(w, job, WIRE_STOP, 0, ""); /* comes late and says nothing new */
    pause_ms(w, 30);
    assert_int_equal(json_array_size(w->given), 5);
    assert_int_equal(count(w->told, "cancel"), 0);
    close_world(w);
}

static void test_choices(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 2;
    uint64_t a = ask(w, 1);
    UNTIL(count(w->told, "submit") == 2);
    uint64_t b = number(nth(w->told, "submit", 1), "job");
    assert_true(a != b);
    assert_int_equal(gateway_running(w->g), 2);
    token(w, b, 0, 9, "B");
    token(w, a, 0, 8, "A");
    end(w, b, 1);
    assert_int_equal(gateway_running(w->g), 1);
    end(w, a, 1);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "out", 0), "index"), 1);
    assert_int_equal(number(nth(w->given, "out", 1), "index"), 0);
    assert_int_equal(number(nth(w->given, "end", 1), "seq"), 1);
    close_world(w);
}

static void test_tokens_come_twice(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    const uint32_t two[] = {50, 51};
    token(w, job, 0, 50, "a");
    token(w, job, 0, 50, "a");
    token(w, job, 1, 51, "b");
    struct wire_frame f = out_of(job, 0, two, 2, "ab");
    send_worker(w, &f, 1);
    token(w, job, 2, 52, "c");
    assert_int_equal(count(w->given, "out"), 3);
    /* The prompt of an echo too, only once. */
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f, 1);
    assert_int_equal(count(w->given, "out"), 3);
    assert_int_equal(count(w->told, "cancel"), 0);
    close_world(w);

    w = open_world(NULL);
    job = ask(w, 1);
    f = out_of(job, 0, two, 2, "prompt");
    f.out.prompt = true;
    send_worker(w, &f, 1);
    send_worker(w, &f, 1);
    assert_int_equal(count(w->given, "out"), 1);
    close_world(w);
}

/* A gap, other tokens, or a piece that begins before what is there: the job is cancelled, and goes on as another. */
static void test_tokens_that_do_not_fit(void **state)
{
    (void)state;
    const uint32_t ids[] = {51, 52};
    for (int k = 0; k < 4; k++) {
        struct world *w = open_world(NULL);
        uint64_t job = ask(w, 1);
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
        send_worker(w, &f, 1);
        UNTIL(count(w->told, "submit") == 2 && count(w->told, "cancel") == 1);
        const json_t *s = nth(w->told, "submit", 1);
        assert_int_equal(number(nth(w->told, "cancel", 0), "job"), job);
        assert_true(number(s, "job") != job);
        assert_int_equal(number(s, "n_out"), 2);
        assert_string_equal(list(s, "out"), "50 51");
        assert_false(json_is_true(json_object_get(s, "again")));
        assert_int_equal(json_array_size(w->said), 1);
        token(w, job, 2, 77, "old");
        token(w, number(s, "job"), 2, 52, "c");
        end(w, number(s, "job"), 3);
        UNTIL(gateway_running(w->g) == 0);
        assert_int_equal(count(w->given, "out"), 3);
        assert_string_equal(text(nth(w->given, "out", 2), "text"), "c");
        assert_int_equal(count(w->told, "cancel"), 1);
        close_world(w);
    }
}

static void test_lost_for_ever(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    for (size_t i = 1; i <= 5; i++) {
        done(w, job, WIRE_CANCELLED, 0, "gone");
        UNTIL(count(w->told, "submit") == i + 1);
        job = number(nth(w->told, "submit", i), "job");
    }
    done(w, job, WIRE_CANCELLED, 0, "gone");
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->given, "err", 0), "text"), "given up"));
    assert_string_equal(text(nth(w->given, "err", 0), "id"), "mine");
    close_world(w);
}

static void test_sched_restarts(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    ack(w, job);
    token(w, job, 0, 50, "a");
    link_listener_free(w->sched);
    w->parked = NULL;
    uint64_t since;
    UNTIL(gateway_absent(w->g, &since) != NULL);
    assert_string_equal(gateway_absent(w->g, &since), w->sched_url);
    token(w, job, 1, 51, "b"); /* workers go on */
    OK(link_listen(e, &w->sched, w->box, w->sched_url, &w->for_sched));
    UNTIL(count(w->told, "submit") == 2);
    const json_t *s = nth(w->told, "submit", 1);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_int_equal(number(s, "job"), job);
    assert_int_equal(number(s, "attempt"), 1);
    assert_string_equal(list(s, "out"), "50 51");
    UNTIL(w->parked);
    assert_null(gateway_absent(w->g, &since));
    end(w, job, 2);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

static void test_sched_forgets(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    UNTIL(w->parked);
    struct wire_frame no = {.kind = WIRE_REFUSE};
    no.refuse = (struct wire_refuse){.to = wire_str_of("x"), .text = wire_str_of("who are you")};
    say_sched(w, &no, 1);
    UNTIL(count(w->told, "submit") == 2);
    const json_t *s = nth(w->told, "submit", 1);
    assert_true(json_is_true(json_object_get(s, "again")));
    assert_int_equal(number(s, "job"), job);
    close_world(w);
}

static void test_polls_are_a_heartbeat(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    UNTIL(w->parked);
    int n = w->n_poll;
    pause_ms(w, 2300);
    assert_in_range(w->n_poll - n, 2, 3);
    w->forget = true; /* refused polls come again, but not without end */
    pause_ms(w, 1500);
    n = w->n_poll;
    for (int i = 0; i < 100; i++) {
        w->forget = true;
        pause_ms(w, 2);
    }
    assert_in_range(w->n_poll - n, 0, 20);
    close_world(w);
}

static void test_refused(void **state)
{
    (void)state;
    struct gateway_opts o = {.patience_ns = 400000000};
    struct world *w = open_world(&o);
    uint64_t job = ask(w, 1);
    refuse(w, job, true, 0);
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->given, "err", 0), "text"), "the queue is full");
    job = ask(w, 2);
    refuse(w, job, false, 100000000);
    uint64_t began = proc_now_ns();
    UNTIL(count(w->told, "submit") == 3);
    assert_true(proc_now_ns() - began >= 90000000);
    ack(w, job);
    refuse(w, job, false, 500000000); /* longer than it waits */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->given, "err", 1), "text"), "ask again in 0.5 s"));
    assert_int_equal(count(w->told, "cancel"), 0);
    close_world(w);
}

static void test_ends_said_by_the_scheduler(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    done(w, job, WIRE_ERROR, ERR_NO, "another vocabulary");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "err", 0), "code"), ERR_NO);
    assert_string_equal(text(nth(w->given, "err", 0), "text"), "another vocabulary");

    job = ask(w, 2); /* its worker died between the last token and the end */
    for (uint32_t i = 0; i < 4; i++)
        token(w, job, i, 50 + i, "a");
    done(w, job, WIRE_LENGTH, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->given, "end", 0), "reason"), "length");
    assert_int_equal(number(nth(w->given, "end", 0), "completion_tokens"), 4);
    assert_int_equal(number(nth(w->given, "end", 0), "prompt_tokens"), 3);

    job = ask(w, 3);
    done(w, job, WIRE_STOP, 0, "");
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "err", 1), "code"), ERR_SYS);
    assert_int_equal(count(w->told, "submit"), 3);
    close_world(w);
}

static void test_cancelled(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 5);
    token(w, job, 0, 50, "a");
    gateway_cancel(w->g, 5);
    gateway_cancel(w->g, 6); /* nobody */
    UNTIL(gateway_running(w->g) == 0);
    const json_t *x = nth(w->given, "end", 0);
    assert_string_equal(text(x, "reason"), "cancelled");
    assert_int_equal(number(x, "completion_tokens"), 1);
    assert_int_equal(number(x, "seq"), 5);
    UNTIL(count(w->told, "cancel") == 1);
    assert_int_equal(number(nth(w->told, "cancel", 0), "job"), job);
    token(w, job, 1, 51, "b");
    assert_int_equal(count(w->given, "out"), 1);

    w->n_choice = 0; /* before tokenize has answered */
    const char *line = "{\"prompt\":\"x\",\"id\":\"its own\"}";
    OK(gateway_ask(e, w->g, 7, (struct wire_str){"its own", 7}, line, strlen(line)));
    UNTIL(w->line);
    gateway_cancel(w->g, 7);
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->given, "end", 1), "id"), "its own");
    w->n_choice = 1;
    answer_line(w, w->line, 7);
    pause_ms(w, 50);
    assert_int_equal(count(w->told, "submit"), 1);
    assert_int_equal(json_array_size(w->given), 4); /* hello, out, end, end */
    close_world(w);
}

static void test_tokenize_refuses(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = -1;
    OK(gateway_ask(e, w->g, 1, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->given, "err", 0), "text"), "no such field");
    assert_int_equal(number(nth(w->given, "err", 0), "seq"), 1);
    w->n_choice = -2;
    OK(gateway_ask(e, w->g, 2, none, "{}", 2));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "err", 1), "code"), ERR_PROTO);
    assert_string_equal(text(nth(w->given, "err", 1), "id"), "req-2");
    OK(gateway_ask(e, w->g, 3, none, NULL, (size_t)GATEWAY_LINE_BYTES_MAX + 1));
    UNTIL(gateway_running(w->g) == 0);
    assert_int_equal(number(nth(w->given, "err", 2), "code"), ERR_NO);
    assert_int_equal(count(w->told, "submit"), 0);
    close_world(w);
}

static void test_tokenize_restarts(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->n_choice = 0;
    OK(gateway_ask(e, w->g, 1, none, "{}", 2));
    UNTIL(w->line);
    link_listener_free(w->tokenize);
    w->n_choice = 1;
    pause_ms(w, 50);
    OK(link_listen(e, &w->tokenize, w->box, w->tokenize_url, &w->for_tokenize));
    UNTIL(count(w->told, "submit") == 1);
    assert_int_equal(w->n_asked, 2);
    close_world(w);
}

static void test_deadline(void **state)
{
    (void)state;
    struct gateway_opts o = {.deadline_ns = 300000000};
    struct world *w = open_world(&o);
    w->n_choice = 0;
    OK(gateway_ask(e, w->g, 1, (struct wire_str){"slow", 4}, "{\"prompt\":1,\"id\":\"slow\"}", 24));
    UNTIL(gateway_running(w->g) == 0);
    assert_string_equal(text(nth(w->given, "err", 0), "id"), "slow");
    assert_non_null(strstr(text(nth(w->given, "err", 0), "text"), "deadline of 0.3 s"));
    w->n_choice = 1;
    uint64_t job = ask(w, 2);
    assert_in_range(number(nth(w->told, "submit", 0), "deadline_ns"), 1, 300000000);
    refuse(w, job, false, 50000000);
    UNTIL(count(w->told, "submit") == 2); /* waits till then whatever its patience */
    UNTIL(gateway_running(w->g) == 0);
    assert_non_null(strstr(text(nth(w->given, "err", 1), "text"), "deadline"));
    UNTIL(count(w->told, "cancel") == 1);
    close_world(w);
}

/* Tokens behind the end of an answer: its worker has not heard of it. */
static void test_worker_for_nobody(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    token(w, job, 0, 50, "a");
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    token(w, job, 0, 50, "a"); /* a copy is not */
    pause_ms(w, 20);
    assert_int_equal(count(w->told, "cancel"), 0);
    token(w, job, 1, 51, "b");
    token(w, job, 2, 52, "c");
    UNTIL(count(w->told, "cancel") == 1);
    pause_ms(w, 20);
    assert_int_equal(count(w->told, "cancel"), 1);
    close_world(w);
}

static void test_hostile_workers(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    uint64_t job = ask(w, 1);
    token(w, job, 0, 50, "a");
    static const uint8_t bad[][8] = {{0xff}, {0xce, 0xff, 0xff, 0xff, 0xff}, {0xce, 0, 0, 0, 3, 0x81, 0xa1, 'k'}};
    for (size_t i = 0; i < 3; i++) {
        struct link_msg m = {0};
        struct wire_frame f = out_of(job, 0, NULL, 0, "");
        OK(link_msg_add(e, &m, &f));
        m.n = sizeof bad[i];
        memcpy(m.p, bad[i], m.n);
        int k = w->n_confirmed;
        OK(link_ask(e, w->worker, &m, &w->for_worker));
        link_msg_free(&m);
        UNTIL(w->n_confirmed > k);
    }
    struct wire_frame f = {.kind = WIRE_TICK};
    send_worker(w, &f, 1);
    assert_int_equal(json_array_size(w->said), 4);
    end(w, job, 1);
    UNTIL(gateway_running(w->g) == 0);
    close_world(w);
}

/* What is told while a message is open waits for it, and is told again where it fails. */
static void test_messages_that_fail(void **state)
{
    (void)state;
    struct world *w = open_world(NULL);
    w->mute = true;
    uint64_t job = ask(w, 1);
    const char *line = "{\"prompt\":\"x\"}";
    OK(gateway_ask(e, w->g, 2, none, line, strlen(line)));
    pause_ms(w, 50);
    assert_int_equal(count(w->told, "submit"), 1); /* one message at a time */
    link_listener_free(w->sched);
    w->parked = NULL;
    w->mute = false;
    OK(link_listen(e, &w->sched, w->box, w->sched_url, &w->for_sched));
    UNTIL(count(w->told, "submit") >= 3);
    bool first = false, second = false;
    for (size_t i = 1; i < count(w->told, "submit"); i++) {
        const json_t *s = nth(w->told, "submit", i);
        first = first || number(s, "job") == job;
        second = second || number(s, "job") != job;
    }
    assert_true(first && second);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_answer),
        cmocka_unit_test(test_choices),
        cmocka_unit_test(test_tokens_come_twice),
        cmocka_unit_test(test_tokens_that_do_not_fit),
        cmocka_unit_test(test_lost_for_ever),
        cmocka_unit_test(test_sched_restarts),
        cmocka_unit_test(test_sched_forgets),
        cmocka_unit_test(test_polls_are_a_heartbeat),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ends_said_by_the_scheduler),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_tokenize_refuses),
        cmocka_unit_test(test_tokenize_restarts),
        cmocka_unit_test(test_deadline),
        cmocka_unit_test(test_worker_for_nobody),
        cmocka_unit_test(test_hostile_workers),
        cmocka_unit_test(test_messages_that_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
