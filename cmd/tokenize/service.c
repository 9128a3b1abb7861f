/*
 * tokenize as a service: peers send lines, and receive the prompts of their choices (link/session.h; docs/protocol.md,
 * "Between services"). The main thread tokenizes short lines. A background thread tokenizes long ones, so that a prompt
 * of megabytes delays no other. The main thread sends all frames; a response that does not fit into the window of its
 * session waits, in order.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/job.h"
#include "base/log_limit.h"
#include "base/loop.h"
#include "base/time.h"
#include "cmd/tokenize/tokenize.h"
#include "link/session.h"
#include "proc/notify.h"
#include "proc/proc.h"

#define LONG_BYTES 65536 /* lines of this size and more are tokenized in the background */
/* Bounds of the limit of queued long lines, and of queued responses; beyond it requests are refused. */
#define QUEUE_BYTES_LEAST ((uint64_t)64 << 20)
#define QUEUE_BYTES_MOST ((uint64_t)256 << 20)
#define PEER_BYTES_MAX ((size_t)64 << 20)   /* limit of queued responses per peer; then its requests are refused */
#define WAITING_MAX 16384                   /* limit of queued responses per peer; beyond it the session is closed */
#define ANSWER_BYTES_MAX ((size_t)64 << 20) /* limit of the response to one request */
#define TICK_MS 250                         /* limit of a wait, since a signal may arrive just before it */
#define QUIET_MS 100                        /* after SIGTERM: ends when nothing was received for this time */
#define DRAIN_NS (2 * NS_S)                 /* after SIGTERM: limit of the drain */
#define BYE_MS 1000                         /* after the drain: limit for queued frames to be acknowledged */

struct bytes { /* frames with their length prefixes */
    uint8_t *p;
    size_t n, cap;
};

struct tokenizer { /* state of one thread */
    struct tokenize t;
    struct wire_arena *ask;
    const struct ask *base;
    const struct bytes *hello;
    struct bytes *out; /* the response of the current request */
};

struct peer { /* the arg of an accepted session */
    struct list node;
    struct session *s;
    struct list jobs;    /* lines in the background thread */
    struct list answers; /* responses that wait for the window */
    size_t n_waiting;    /* number of those */
    size_t bytes;        /* and their bytes */
};

struct answer {
    struct list node;
    struct server *server;
    struct peer *peer; /* NULL: its session has ended */
    struct job job;
    struct bytes ask;    /* of a long line, until it is tokenized */
    struct bytes frames; /* sent up to `sent` */
    size_t sent;
};

struct server {
    struct tokenizer fast, slow;
    struct bytes hello;
    struct loop *loop;
    struct loop_fd hub_fd;
    struct session_hub *hub;
    struct session_listener *listener;
    struct job_queue *slow_lines;
    struct list peers;
    struct log_limit peer_log;
    uint64_t bytes_max; /* limit of the next two */
    size_t n_waiting;   /* bytes of responses that wait for a window */
    size_t n_long;      /* bytes of long lines in the background thread */
    bool ending;        /* new requests are ignored */
};

/* ---- a line to frames ---- */

static int add_frame(struct err *e, struct bytes *b, const struct wire_frame *f)
{
    return wire_encode_add(e, &b->p, &b->n, &b->cap, f);
}

/* The tok frame is sent to the worker as it is encoded here: no service between decodes the body. The prompt frame
 * repeats the fields that they need, so it has less than twice WIRE_BODY_BYTES_MAX, the limit of a session. */
static int add_prompt(struct err *e, struct tokenizer *w, const struct wire_frame *tok)
{
    const struct wire_req *q = &tok->req;
    struct bytes body = {0};
    struct wire_frame f = {.kind = WIRE_PROMPT};
    int rc = add_frame(e, &body, tok);
    size_t n = w->hello->n + body.n;
    if (!rc && n > WIRE_BODY_BYTES_MAX)
        rc = err_set(e, ERR_NO,
                     "the request with its fields and %u prompt tokens is a frame of %zu bytes, the limit of services "
                     "is %u",
                     q->n_id, n, WIRE_BODY_BYTES_MAX);
    uint8_t *whole = rc ? NULL : malloc(n);
    if (!rc && !whole)
        rc = err_nomem(e, "a prompt", n);
    if (!rc) {
        memcpy(whole, w->hello->p, w->hello->n);
        memcpy(whole + w->hello->n, body.p, body.n);
        f.prompt = (struct wire_prompt){.seq = q->seq,
                                        .index = q->index,
                                        .n = w->t.n_choice,
                                        .id = q->id,
                                        .n_prompt = q->n_id,
                                        .max_tokens = q->s.max_tokens,
                                        .digests = q->digests,
                                        .priority = q->priority,
                                        .born_ns = q->born_ns,
                                        .load_ns = q->load_ns,
                                        .span = q->span,
                                        .n_span = q->n_span,
                                        .body = {whole, n},
                                        .extra = q->extra};
        rc = add_frame(e, w->out, &f);
    }
    free(whole);
    free(body.p);
    return rc;
}

static int put_hello(struct err *e, void *arg, const struct wire_frame *f)
{
    return add_frame(e, arg, f);
}

static int put(struct err *e, void *arg, const struct wire_frame *f)
{
    struct tokenizer *w = arg;
    int rc = f->kind == WIRE_TOK ? add_prompt(e, w, f) : add_frame(e, w->out, f);
    if (!rc && w->out->n > ANSWER_BYTES_MAX)
        rc = err_set(e, ERR_NO,
                     "the prompts of its %u choices have more than %zu MiB; services carry no more of one request",
                     w->t.n_choice, ANSWER_BYTES_MAX >> 20);
    return rc;
}

static int tokenizer_open(struct err *e, struct tokenizer *w, const struct tokenize *t, const struct ask *base,
                          const struct bytes *hello)
{
    w->t = *t;
    w->t.load_ns = 0; /* no request waited for the load */
    w->t.put = put;
    w->t.put_arg = w;
    w->base = base;
    w->hello = hello;
    w->t.arena = wire_arena_new();
    w->t.logged_fields = json_object();
    w->ask = wire_arena_new();
    return w->t.arena && w->t.logged_fields && w->ask ? 0 : err_nomem(e, "start", 0);
}

static void tokenizer_close(struct tokenizer *w)
{
    wire_arena_free(w->t.arena);
    wire_arena_free(w->ask);
    json_decref(w->t.logged_fields);
}

/* Tokenizes a line as the filter does. A failure affects this request only. */
static int tokenize_line(struct err *e, struct tokenizer *w, const struct wire_ask *a)
{
    struct ask base = *w->base;
    if (a->what.n != 4 || memcmp(a->what.p, "line", 4))
        return err_set(e, ERR_PROTO, "ask '%.*s': tokenize supports 'line' only", (int)a->what.n, a->what.p);
    if (a->id.n) {
        base.id = a->id.p;
        base.n_id = a->id.n;
    }
    w->t.seq = a->seq;
    return emit_json(e, &w->t, &base, a->text.n ? a->text.p : "", a->text.n, "");
}

/* The response to a request. refused: the reason to refuse it without tokenizing; NULL: none. */
static void answer_ask(struct tokenizer *w, struct bytes *out, const struct wire_ask *a, const char *refused)
{
    struct err e = {0};
    w->out = out;
    int rc = refused ? err_set(&e, ERR_SYS, "%s", refused) : tokenize_line(&e, w, a);
    if (!rc)
        return;
    struct wire_frame f = {.kind = WIRE_ERR};
    f.error = (struct wire_error){.seq = a->seq, .id = a->id, .code = (uint32_t)rc, .text = wire_str_of(e.text)};
    out->n = 0;
    if (add_frame(&e, out, &f))
        out->n = 0;
}

/* ---- invalid peers ---- */

static void log_peer(struct server *s, const struct session *x, const char *text)
{
    char line[700];
    snprintf(line, sizeof line, "%s %.100s: %.500s", session_peer_role(x), session_peer_name(x), text);
    log_limit(&s->peer_log, time_now_ns(), line, cli_log, PROG);
}

/* Closes the session, and sends the reason to the peer. */
static void refuse_peer(struct server *s, struct session *x, const char *reason)
{
    log_peer(s, x, reason);
    session_close(x, reason);
}

/* ---- responses ---- */

static void answer_free(struct answer *a)
{
    list_remove(&a->node);
    free(a->ask.p);
    free(a->frames.p);
    free(a);
}

/* Sends what the window has room for. */
static void send_answers(struct server *s, struct peer *p)
{
    struct err e;
    while (!list_empty(&p->answers)) {
        struct answer *a = list_entry(p->answers.next, struct answer, node);
        while (a->sent < a->frames.n) {
            const uint8_t *at = a->frames.p + a->sent;
            size_t n = 0;
            if (wire_frame_size(&e, &n, at, a->frames.n - a->sent, SESSION_FRAME_BYTES_MAX) ||
                session_send_bytes(&e, p->s, at, n))
                return;
            a->sent += n;
        }
        s->n_waiting -= a->frames.n;
        p->bytes -= a->frames.n;
        p->n_waiting--;
        answer_free(a);
    }
}

/* Owns a. Without a frame (no memory even for an err) the session is closed: the peer sends the request again. */
static void deliver(struct server *s, struct answer *a)
{
    struct peer *p = a->peer;
    list_remove(&a->node);
    if (!p || !a->frames.n) {
        answer_free(a);
        if (p)
            session_close(p->s, "out of memory");
        return;
    }
    list_push_back(&p->answers, &a->node);
    s->n_waiting += a->frames.n;
    p->bytes += a->frames.n;
    p->n_waiting++;
    send_answers(s, p);
    if (p->n_waiting > WAITING_MAX)
        refuse_peer(s, p->s, "more than 16384 answers wait to be acknowledged");
}

static int read_ask(struct err *e, struct tokenizer *w, struct wire_frame *f, const uint8_t *p, size_t n)
{
    const struct session_event ev = {.type = SESSION_FRAME, .p = p, .n = n};
    wire_arena_reset(w->ask);
    return session_frame(e, f, w->ask, &ev);
}

static void run_long(void *arg)
{
    struct answer *a = arg;
    struct err e;
    struct wire_frame f;
    /* It was decoded before, so only memory can be missing. */
    if (!read_ask(&e, &a->server->slow, &f, a->ask.p, a->ask.n))
        answer_ask(&a->server->slow, &a->frames, &f.ask, NULL);
    free(a->ask.p);
    a->ask.p = NULL;
}

static void long_done(void *arg, bool ran)
{
    struct answer *a = arg;
    (void)ran;
    a->server->n_long -= a->ask.n;
    deliver(a->server, a);
}

/* ERR_NO: the queue is full. */
static int add_long(struct err *e, struct server *s, struct answer *a, const struct session_event *ev)
{
    if (!(a->ask.p = malloc(ev->n)))
        return err_nomem(e, "a line", ev->n);
    memcpy(a->ask.p, ev->p, ev->n);
    a->ask.n = ev->n;
    a->job = (struct job){.run = run_long, .done = long_done, .arg = a, .n_bytes = ev->n};
    int rc = job_add(e, s->slow_lines, &a->job);
    if (!rc) {
        list_push_back(&a->peer->jobs, &a->node);
        s->n_long += a->ask.n;
    }
    return rc;
}

/* ---- the loop ---- */

static void send_stat(const struct server *s, const struct peer *p)
{
    struct err e;
    const struct wire_frame f = {.kind = WIRE_STAT,
                                 .stat = {.bytes = s->n_waiting + s->n_long, .bytes_max = 2 * s->bytes_max}};
    (void)session_send(&e, p->s, &f); /* a peer that does not read gets no statistics */
}

static void on_ask(struct server *s, struct peer *p, const struct session_event *ev)
{
    struct err e;
    struct wire_frame f;
    int rc = read_ask(&e, &s->fast, &f, ev->p, ev->n);
    if (!rc && f.kind == WIRE_STAT) {
        send_stat(s, p);
        return;
    }
    if (!rc && f.kind != WIRE_ASK)
        rc = err_set(&e, ERR_PROTO, "a frame of kind %s: tokenize takes ask", wire_kind_name(f.kind));
    struct answer *a = rc ? NULL : calloc(1, sizeof *a);
    if (!rc && !a)
        rc = err_nomem(&e, "an answer", sizeof *a);
    if (rc) {
        refuse_peer(s, p->s, e.text);
        return;
    }
    list_init(&a->node);
    a->server = s;
    a->peer = p;
    bool peer_full = p->bytes > PEER_BYTES_MAX, full = peer_full || s->n_waiting > s->bytes_max;
    bool is_long = !full && ev->n >= LONG_BYTES;
    if (is_long && !add_long(&e, s, a, ev))
        return;
    char busy[100];
    snprintf(busy, sizeof busy, "tokenize is busy: %llu MiB of %s are queued; retry later",
             (unsigned long long)((peer_full ? PEER_BYTES_MAX : s->bytes_max) >> 20),
             peer_full ? "responses to this gateway" : "long prompts");
    answer_ask(&s->fast, &a->frames, &f.ask, full || is_long ? busy : NULL);
    deliver(s, a);
}

static void on_up(struct server *s, struct session *x)
{
    struct err e;
    struct peer *p = calloc(1, sizeof *p);
    session_set_arg(x, p);
    if (!p || session_send_bytes(&e, x, s->hello.p, s->hello.n)) {
        free(p);
        session_set_arg(x, NULL);
        session_close(x, "out of memory");
        return;
    }
    p->s = x;
    list_init(&p->jobs);
    list_init(&p->answers);
    list_push_back(&s->peers, &p->node);
}

static void peer_free(struct server *s, struct peer *p)
{
    for (struct list *n; (n = list_pop_front(&p->jobs));) {
        struct answer *a = list_entry(n, struct answer, node);
        a->peer = NULL;
        job_cancel(s->slow_lines, &a->job);
    }
    while (!list_empty(&p->answers)) {
        struct answer *a = list_entry(p->answers.next, struct answer, node);
        s->n_waiting -= a->frames.n;
        answer_free(a);
    }
    list_remove(&p->node);
    free(p);
}

static void on_down(struct server *s, struct peer *p, const struct err *why)
{
    if (why->code == ERR_PROTO)
        log_limit(&s->peer_log, time_now_ns(), why->text, cli_log, PROG);
    peer_free(s, p);
}

/* Whether a peer has sent something. */
static bool take_events(struct server *s)
{
    struct session_event ev;
    bool any = false;
    while (session_hub_next(s->hub, &ev)) {
        struct peer *p = session_arg(ev.s);
        any = any || ev.type == SESSION_FRAME;
        if (ev.type == SESSION_UP)
            on_up(s, ev.s);
        else if (p && ev.type == SESSION_FRAME && !s->ending)
            on_ask(s, p, &ev);
        else if (p && ev.type == SESSION_ACKED)
            send_answers(s, p);
        else if (p && ev.type == SESSION_DOWN)
            on_down(s, p, &ev.err);
    }
    return any;
}

static int step(struct err *e, struct server *s, int most_ms, bool *any)
{
    int due = session_hub_timeout_ms(s->hub);
    proc_alive();
    proc_trim();
    int rc = loop_step(e, s->loop, NULL, due >= 0 && due < most_ms ? due : most_ms);
    *any = !rc && take_events(s);
    return rc;
}

/* Runs until SIGTERM; then until nothing was received for QUIET_MS and the background thread has ended; then until
 * peers have acknowledged the queued frames. */
static int serve(struct err *e, struct server *s)
{
    int rc = 0;
    bool any;
    while (!rc && !proc_term_count())
        rc = step(e, s, TICK_MS, &any);
    uint64_t end_ns = time_now_ns() + DRAIN_NS, quiet_ns = time_now_ns() + QUIET_MS * NS_MS;
    for (uint64_t now = 0; !rc && (job_count(s->slow_lines) || (now < quiet_ns && now < end_ns)); now = time_now_ns()) {
        rc = step(e, s, QUIET_MS, &any);
        if (any)
            quiet_ns = time_now_ns() + QUIET_MS * NS_MS;
    }
    s->ending = true;
    session_listener_free(s->listener);
    s->listener = NULL;
    list_for_each (n, &s->peers)
        session_bye(list_entry(n, struct peer, node)->s, BYE_MS);
    for (end_ns = time_now_ns() + BYE_MS * NS_MS; !rc && !list_empty(&s->peers) && time_now_ns() < end_ns;)
        rc = step(e, s, QUIET_MS, &any);
    return rc;
}

static void on_hub(void *arg, uint32_t events) /* only wakes the loop, which then takes the events of the hub */
{
    (void)arg, (void)events;
}

static int server_open(struct err *e, struct server *s, const struct tokenize *t, const struct ask *base,
                       const char *url, const struct session_security *security)
{
    const struct session_hub_opts o = {.self = {.role = "tokenize", .name = "", .inc = time_wall_ns()},
                                       .security = *security};
    struct tokenize first = *t;
    first.put = put_hello;
    first.put_arg = &s->hello;
    int rc = emit_hello(e, &first);
    rc = rc ? rc : tokenizer_open(e, &s->fast, t, base, &s->hello);
    rc = rc ? rc : tokenizer_open(e, &s->slow, t, base, &s->hello);
    rc = rc ? rc : loop_new(e, &s->loop);
    s->bytes_max = proc_memory_part(32, QUEUE_BYTES_LEAST, QUEUE_BYTES_MOST);
    rc = rc ? rc : job_queue_open(e, &s->slow_lines, s->loop, s->bytes_max, "long prompts");
    rc = rc ? rc : session_hub_new(e, &s->hub, &o);
    rc = rc ? rc : loop_fd_add(e, s->loop, &s->hub_fd, session_hub_fd(s->hub), EPOLLIN, on_hub, NULL);
    return rc ? rc : session_listen(e, &s->listener, s->hub, url, "gateway monitor tool", NULL);
}

static void server_close(struct server *s)
{
    while (!list_empty(&s->peers))
        peer_free(s, list_entry(s->peers.next, struct peer, node));
    job_queue_close(s->slow_lines);
    loop_fd_remove(&s->hub_fd);
    session_listener_free(s->listener);
    session_hub_free(s->hub);
    loop_free(s->loop);
    tokenizer_close(&s->fast);
    tokenizer_close(&s->slow);
    free(s->hello.p);
}

static int ready(struct err *e, const struct server *s, int fd)
{
    char address[WIRE_URL_BYTES_MAX + 64];
    session_listener_line(address, sizeof address, s->listener);
    return proc_ready_at(e, NULL, fd, address);
}

int service(struct err *e, const struct tokenize *t, const struct ask *base, const char *url,
            const struct session_security *security, int ready_fd)
{
    struct server s = {0};
    sigset_t term, was;
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    sigaddset(&term, SIGINT);
    list_init(&s.peers);
    pthread_sigmask(SIG_BLOCK, &term, &was); /* so that no thread of nng receives the signal that ends the wait */
    int rc = server_open(e, &s, t, base, url, security);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    rc = rc ? rc : ready(e, &s, ready_fd);
    rc = rc ? rc : serve(e, &s);
    server_close(&s);
    return rc;
}
