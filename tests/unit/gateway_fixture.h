/*
 * A gateway with fake peers for its tests: a scheduler, a tokenize and a worker that send the frames of each case, over
 * sessions within this program (session_fake.h).
 */
#ifndef TEST_GATEWAY_FIXTURE_H
#define TEST_GATEWAY_FIXTURE_H

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

static inline void add_frame(json_t *list, const struct wire_frame *f)
{
    char *line = NULL;
    OK(wire_to_json(&e, &line, f, NULL, true));
    json_t *o = json_loads(line, JSON_ALLOW_NUL, NULL);
    assert_non_null(o);
    json_array_append_new(list, o);
    free(line);
}

static inline void on_frame(void *arg, const struct wire_frame *f)
{
    add_frame(((struct world *)arg)->frames, f);
}

static inline void on_accepted(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns)
{
    (void)seq, (void)n_before, (void)eta_ns;
    ((struct world *)arg)->n_accepted++;
}

static inline void on_parsed(void *arg, uint64_t seq, const struct wire_prompt *q)
{
    struct world *w = arg;
    (void)seq;
    assert_int_equal(q->index, 0);
    assert_int_equal(q->n_prompt, 3);
    assert_int_equal(q->max_tokens, 4);
    assert_int_equal(q->body.n, w->n_body);
    w->n_parsed++;
}

static inline void on_log(void *arg, const char *text)
{
    json_array_append_new(((struct world *)arg)->log, json_string(text));
}

/* ---- the peers ---- */

static uint64_t incarnation = 1; /* of peers that are opened */

static inline void peer_open(struct peer *p, const char *role, const char *url)
{
    const struct session_hub_opts o = {.self = {.role = role, .name = role, .inc = incarnation}};
    OK(session_hub_new(&e, &p->hub, &o));
    if (url)
        OK(session_listen(&e, &p->listener, p->hub, url, "gateway", NULL));
}

static inline void peer_close(struct peer *p)
{
    session_hub_free(p->hub);
    *p = (struct peer){0};
}

/* Breaks the connection; frames in flight are lost. */
static inline void cut(struct session *s)
{
    pthread_mutex_lock(&fake_lock);
    fake_break(s, "the connection broke", true);
    pthread_mutex_unlock(&fake_lock);
}

static inline void send_to(struct session *s, const struct wire_frame *f)
{
    assert_non_null(s);
    OK(session_send(&e, s, f));
}

static inline void send_prompt(struct world *w, uint64_t seq, uint32_t index, uint32_t n)
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

static inline void answer_line(struct world *w, uint64_t seq)
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

static inline void send_hello(struct world *w)
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
static inline bool next_event(struct world *w, struct peer *p, struct session_event *ev, struct wire_frame *f)
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

static inline void peers(struct world *w)
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

static inline void step(struct world *w)
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

static inline void pause_ms(struct world *w, uint64_t ms)
{
    for (uint64_t end = time_now_ns() + ms * 1000000; time_now_ns() < end;)
        step(w);
}

static inline struct world *open_world(const struct gateway_opts *more)
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

static inline void close_world(struct world *w)
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
static inline const json_t *nth(const json_t *list, const char *kind, size_t i)
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

static inline size_t count(const json_t *list, const char *kind)
{
    size_t n = 0;
    while (nth(list, kind, n))
        n++;
    return n;
}

static inline const char *text(const json_t *o, const char *field)
{
    assert_non_null(o);
    const char *s = json_string_value(json_object_get(o, field));
    return s ? s : "";
}

static inline uint64_t number(const json_t *o, const char *field)
{
    assert_non_null(o);
    const json_t *v = json_object_get(o, field);
    if (json_is_string(v))
        return strtoull(json_string_value(v), NULL, 10);
    return v ? (uint64_t)json_integer_value(v) : 0;
}

/* "5 6 7" */
static inline const char *list(const json_t *o, const char *field)
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

static inline uint64_t submit(struct world *w, uint64_t seq)
{
    size_t n = count(w->received, "submit");
    const char *line = "{\"prompt\":\"x\",\"id\":\"mine\"}";
    OK(gateway_submit(&e, w->g, seq, wire_str_of("mine"), line, strlen(line)));
    UNTIL(count(w->received, "submit") > n);
    return number(nth(w->received, "submit", n), "job");
}

static inline void ack(struct world *w, uint64_t job)
{
    struct wire_frame f = {.kind = WIRE_ACK};
    f.ack = (struct wire_ack){.to = wire_str_of("x"), .job = job, .attempt = 1};
    int n = w->n_accepted;
    send_to(w->sched.s, &f);
    UNTIL(w->n_accepted > n);
}

static inline void done(struct world *w, uint64_t job, enum wire_reason reason, uint32_t code, const char *why)
{
    struct wire_frame f = {.kind = WIRE_DONE};
    f.done = (struct wire_done){
        .to = wire_str_of("x"), .job = job, .reason = reason, .code = code, .text = wire_str_of(why)};
    send_to(w->sched.s, &f);
}

static inline void refuse(struct world *w, uint64_t job, bool never, uint64_t retry_ns)
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
static inline void send_worker(struct world *w, const struct wire_frame *f)
{
    send_to(w->worker.s, f);
    UNTIL(session_acked(w->worker.s) == session_sent(w->worker.s));
}

static inline struct wire_frame out_of(uint64_t job, uint32_t at, const uint32_t *ids, uint32_t n, const char *s)
{
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){
        .seq = job, .id = wire_str_of("mine"), .ids = ids, .n_id = n, .text = wire_str_of(s), .at = at};
    return f;
}

static inline void token(struct world *w, uint64_t job, uint32_t at, uint32_t id, const char *s)
{
    struct wire_frame f = out_of(job, at, &id, 1, s);
    send_worker(w, &f);
}

static inline void end(struct world *w, uint64_t job, uint32_t n)
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

#endif
