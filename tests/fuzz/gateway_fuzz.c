/*
 * Fuzzes a gateway with a fake scheduler, a fake tokenize and two fake workers. The input chooses their actions: valid
 * and invalid frames, late and repeated frames, frames of unknown jobs, connections that break with frames in flight,
 * peers that restart or stop reading, time that passes. Sessions and clock are fake, too. Invariants:
 *
 *   - each token of an answer is output once and in order, and each answer ends once;
 *   - on one connection the scheduler receives a job once, and the tokens that were output without gap or repetition;
 *   - if the peers behave in the end, every request ends, and no memory leaks.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "gateway/gateway.h"
#include "link/session.h"
#undef SESSION_WINDOW_BYTES
#define SESSION_WINDOW_BYTES 700 /* small, so that it is often full */
#include "unit/session_fake.h"

#define REQUESTS 24
#define CHOICES 3
#define TOKENS 48 /* of an answer, at most; a correct worker sends LENGTH */
#define LENGTH 6
#define JOBS 512
#define SETTLE 150

static uint64_t clock_ns;
static bool closing; /* peers acknowledge nothing more */

uint64_t time_now_ns(void)
{
    return clock_ns += closing ? 100 * NS_MS : 0;
}
uint64_t time_wall_ns(void)
{
    return clock_ns;
}
int time_left_ms(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns == UINT64_MAX ? -1 : at_ns <= now_ns ? 0 : 1;
}

/* ---- the input ---- */

static const uint8_t *in;
static size_t n_in;

static unsigned next_byte(void)
{
    if (!n_in)
        return 0;
    n_in--;
    return *in++;
}

static uint64_t draw(uint64_t below)
{
    return next_byte() % below;
}

/* ---- expected answers ---- */

struct answer {
    uint32_t ids[TOKENS], n;
    bool echoed, ended;
};

static struct {
    bool ended;       /* all choices */
    uint32_t n, left; /* choices, and those that have not ended; 0: not parsed */
    struct answer a[CHOICES];
} req[REQUESTS];
static uint64_t n_req;

static struct job { /* the state at scheduler and workers */
    uint64_t job, r;
    uint32_t index, n_out, reported;
    bool here, open; /* submitted on this connection; and not ended at the scheduler */
} jobs[JOBS];
static size_t n_job;

static struct peer {
    const char *role, *url;
    struct session_hub *hub;
    struct session_listener *listener;
    struct session *s;
} peers[4] = {{"sched", "ipc:///sched", NULL, NULL, NULL},
              {"tokenize", "ipc:///tokenize", NULL, NULL, NULL},
              {"worker", NULL, NULL, NULL, NULL},
              {"worker", NULL, NULL, NULL, NULL}};
enum { SCHED, TOKENIZE, WORKER };

static struct {
    uint64_t seq, r;
} asks[64]; /* in flight at tokenize */
static size_t n_ask;

static struct gateway *g;
static struct wire_arena *arena;

/* ---- the output of the gateway ---- */

static struct answer *answer_of(uint64_t seq, uint32_t index)
{
    assert(seq < n_req && !req[seq].ended && req[seq].n && index < req[seq].n);
    assert(!req[seq].a[index].ended);
    return &req[seq].a[index];
}

static void on_out(const struct wire_out *o)
{
    struct answer *a = answer_of(o->seq, o->index);
    if (o->prompt) {
        assert(!a->echoed && !a->n);
        a->echoed = true;
        return;
    }
    assert(o->at == a->n && o->n_id && o->n_id <= TOKENS - a->n);
    memcpy(a->ids + a->n, o->ids, o->n_id * sizeof *o->ids);
    a->n += o->n_id;
}

static void on_last(uint64_t seq, uint32_t index, uint32_t n_token)
{
    assert(seq < n_req && !req[seq].ended);
    if (!req[seq].n) { /* before it was parsed */
        assert(!index && !n_token);
        req[seq].ended = true;
        return;
    }
    struct answer *a = answer_of(seq, index);
    assert(n_token <= a->n);
    a->ended = true;
    req[seq].ended = !--req[seq].left;
}

static void submit(void)
{
    struct err e;
    if (n_req == REQUESTS)
        return;
    uint64_t seq = n_req++;
    if (gateway_submit(&e, g, seq, (struct wire_str){0}, "{}", 2))
        abort();
}

static void on_frame(void *arg, const struct wire_frame *f)
{
    uint8_t *p;
    size_t n;
    struct err e;
    (void)arg;
    if (!wire_encode(&e, &p, &n, f)) /* the frames can be encoded, as stream does */
        free(p);
    if (f->kind == WIRE_OUT)
        on_out(&f->out);
    else if (f->kind == WIRE_END)
        on_last(f->end.seq, f->end.index, f->end.completion_tokens);
    else if (f->kind == WIRE_ERR)
        on_last(f->error.seq, f->error.index, 0);
    if (f->kind == WIRE_END && f->end.seq % 3 == 0)
        submit();
    if (f->kind == WIRE_OUT && f->out.seq % 5 == 4)
        gateway_cancel(g, f->out.seq);
}

static void on_parsed(void *arg, uint64_t seq, const struct wire_prompt *q)
{
    (void)arg;
    assert(seq < n_req && !req[seq].ended && !req[seq].n && q->n <= CHOICES);
    req[seq].n = req[seq].left = q->n;
}

static void step(void)
{
    struct err e;
    uint64_t running = 0;
    if (gateway_step(&e, g, 0))
        abort();
    for (uint64_t i = 0; i < n_req; i++)
        running += req[i].ended ? 0 : req[i].n ? req[i].left : 1;
    assert(gateway_running(g) == running);
}

/* ---- peers ---- */

static void send_frame(struct peer *p, const struct wire_frame *f)
{
    struct err e;
    if (p->s)
        (void)session_send(&e, p->s, f);
}

static struct job *find_job(uint64_t job)
{
    for (size_t i = 0; i < n_job; i++)
        if (jobs[i].job == job)
            return &jobs[i];
    return NULL;
}

/* The n tokens `out`, which end at position n_out, must be those that were output. */
static void check_tokens(const struct job *j, const uint32_t *out, uint32_t n, uint32_t n_out)
{
    const struct answer *a = &req[j->r].a[j->index];
    assert(n <= n_out && n_out <= a->n);
    for (uint32_t i = 0; i < n; i++)
        assert(out[i] == a->ids[n_out - n + i]);
}

static void on_submit(const struct wire_submit *f)
{
    struct job *j = find_job(f->job);
    assert(f->body.n == 2 && f->n_out_id == f->n_out && f->n_prompt == 5);
    assert(j || n_job < JOBS);
    if (!j)
        j = &jobs[n_job++];
    assert(!j->open);
    *j = (struct job){f->job, f->body.p[0], f->body.p[1], f->n_out, f->n_out, true, true};
    check_tokens(j, f->out, f->n_out_id, f->n_out);
}

static void on_report(const struct wire_report *f)
{
    struct job *j = find_job(f->job);
    assert(j && j->here); /* no reports about jobs of an earlier connection */
    if (f->what.n != 6) { /* ended */
        j->open = false;
        return;
    }
    assert(f->n_out - f->n_out_id == j->reported);
    check_tokens(j, f->out, f->n_out_id, f->n_out);
    j->reported = f->n_out;
}

static void sched_event(const struct session_event *ev, const struct wire_frame *f)
{
    struct job *j;
    for (size_t i = 0; ev->type == SESSION_DOWN && i < n_job; i++)
        jobs[i].here = jobs[i].open = false;
    if (f->kind == WIRE_SUBMIT)
        on_submit(&f->submit);
    else if (f->kind == WIRE_REPORT)
        on_report(&f->report);
    else if (f->kind == WIRE_CANCEL && (j = find_job(f->cancel.job)))
        j->open = false;
}

static void tokenize_event(const struct session_event *ev, const struct wire_frame *f)
{
    if (ev->type == SESSION_DOWN)
        n_ask = 0;
    if (f->kind == WIRE_ASK) {
        char id[32];
        assert(n_ask < 64 && f->ask.id.n > 4 && f->ask.id.n < 30);
        memcpy(id, f->ask.id.p, f->ask.id.n);
        id[f->ask.id.n] = 0;
        asks[n_ask].seq = f->ask.seq;
        asks[n_ask++].r = strtoull(id + 4, NULL, 10); /* req-N */
    }
}

static void hello(void)
{
    static const uint8_t fp[32] = "fp";
    struct wire_frame f = {.kind = WIRE_HELLO};
    f.hello = (struct wire_hello){.version = WIRE_VERSION,
                                  .from = wire_str_of("tokenize"),
                                  .has_vocab = true,
                                  .vocab_fp = {fp, 32},
                                  .vocab_n = 9};
    send_frame(&peers[TOKENIZE], &f);
}

/* Processes at most n events of a peer. */
static void process(struct peer *p, unsigned n)
{
    struct session_event ev;
    struct err e;
    while (n-- && session_hub_next(p->hub, &ev)) {
        struct wire_frame f = {0};
        wire_arena_reset(arena);
        if (ev.type == SESSION_FRAME && session_frame(&e, &f, arena, &ev))
            abort(); /* the gateway sends valid frames only */
        if (ev.type == SESSION_UP)
            p->s = ev.s;
        else if (ev.type == SESSION_DOWN)
            p->s = NULL;
        if (p == &peers[SCHED])
            sched_event(&ev, &f);
        else if (p == &peers[TOKENIZE])
            tokenize_event(&ev, &f);
        if (ev.type == SESSION_UP && p == &peers[TOKENIZE] && next_byte() % 16 != 1)
            hello();
    }
}

static void peer_open(struct peer *p, uint64_t inc)
{
    struct err e;
    struct session *s;
    struct session_hub_opts o = {.self = {.role = p->role, .name = p == &peers[WORKER] ? "a" : "b", .inc = inc},
                                 .window = 1 << 20};
    if (session_hub_new(&e, &p->hub, &o) || (p->url ? session_listen(&e, &p->listener, p->hub, p->url, "gateway", NULL)
                                                    : session_dial(&e, &s, p->hub, "ipc:///workers", "gateway", NULL)))
        abort();
}

static void peer_restart(struct peer *p)
{
    const struct session_event down = {.type = SESSION_DOWN};
    const struct wire_frame none = {0};
    session_hub_free(p->hub);
    p->s = NULL;
    if (p == &peers[SCHED])
        sched_event(&down, &none);
    if (p == &peers[TOKENIZE])
        tokenize_event(&down, &none);
    peer_open(p, clock_ns);
}

/* Responds to the oldest ask. how < 128: with 1 to 3 choices; below 160: only the first of them; else err or nonsense.
 */
static void answer(unsigned how)
{
    if (!n_ask)
        return;
    uint8_t body[2] = {(uint8_t)asks[0].r};
    struct wire_frame f = {.kind = WIRE_ERR};
    uint32_t n = 1 + how % CHOICES;
    f.error = (struct wire_error){.seq = asks[0].seq, .id = wire_str_of("x"), .code = 1, .text = wire_str_of("no")};
    bool wrong = how >= 160, short_of = how >= 128 && how < 160;
    if (wrong && how < 192)
        send_frame(&peers[TOKENIZE], &f);
    for (uint32_t i = wrong ? how % 2 + 1 : 0; (how < 160 || how >= 192) && i < n && !(short_of && i); i++) {
        struct wire_frame q = {.kind = WIRE_PROMPT};
        body[1] = (uint8_t)i;
        q.prompt = (struct wire_prompt){.seq = asks[0].seq,
                                        .index = i,
                                        .n = n,
                                        .id = wire_str_of("x"),
                                        .n_prompt = 5,
                                        .max_tokens = how & 64 ? LENGTH : TOKENS,
                                        .body = {body, 2}};
        send_frame(&peers[TOKENIZE], &q);
    }
    memmove(asks, asks + 1, --n_ask * sizeof *asks);
}

/* A decision about an open job. */
static void decide(struct job *j, unsigned how)
{
    if (!j->open)
        return;
    struct wire_frame f = {.kind = WIRE_ACK};
    f.ack = (struct wire_ack){.to = wire_str_of("g"), .job = j->job, .attempt = how % 8};
    if (how % 4 == 1) {
        f = (struct wire_frame){.kind = WIRE_REFUSE};
        f.refuse = (struct wire_refuse){.to = wire_str_of("g"),
                                        .job = j->job,
                                        .never = how & 16,
                                        .retry_ns = (uint64_t)how * 10 * NS_MS,
                                        .text = wire_str_of("full")};
    } else if (how % 4 > 1) {
        f = (struct wire_frame){.kind = WIRE_DONE};
        f.done = (struct wire_done){.to = wire_str_of("g"), .job = j->job, .reason = 1 + how / 4 % 4};
    }
    if (f.kind != WIRE_ACK)
        j->open = false;
    send_frame(&peers[SCHED], &f);
}

static uint32_t token_of(const struct job *j, uint32_t at)
{
    return 100 + (uint32_t)j->r * 1000 + j->index * 100 + at;
}

/* Sends n tokens from position `at`; other: wrong ones. */
static void tokens(struct peer *p, const struct job *j, uint32_t at, uint32_t n, bool prompt, bool other)
{
    uint32_t ids[TOKENS];
    n = at >= TOKENS ? 0 : n < TOKENS - at ? n : TOKENS - at;
    for (uint32_t i = 0; i < n; i++)
        ids[i] = token_of(j, at + i) + other;
    struct wire_frame f = {.kind = WIRE_OUT};
    f.out = (struct wire_out){.seq = j->job,
                              .index = next_byte() % 2,
                              .id = wire_str_of("x"),
                              .ids = ids,
                              .n_id = n,
                              .text = wire_str_of("t"),
                              .at = at,
                              .prompt = prompt};
    send_frame(p, &f);
}

static void finish(struct peer *p, const struct job *j, uint32_t n)
{
    struct wire_frame f = {.kind = WIRE_END};
    f.end = (struct wire_end){.seq = j->job,
                              .id = wire_str_of("x"),
                              .reason = n ? WIRE_STOP : WIRE_LENGTH,
                              .prompt_tokens = 5,
                              .completion_tokens = n};
    send_frame(p, &f);
}

static void work(struct peer *p, struct job *j, unsigned how)
{
    uint32_t n = how % 4, back = how / 4 % 4 == 3 ? 1 + n : 0;
    if (how >= 240) {
        finish(p, j, how & 1 ? j->n_out : j->n_out + 1);
        return;
    }
    uint32_t at = back > j->n_out ? 0 : j->n_out - back;
    tokens(p, j, at + (how >= 224), n, how >= 208 && how < 216, how >= 216 && how < 224);
    if (how < 208 && at + n > j->n_out && at + n <= TOKENS)
        j->n_out = at + n;
}

/* True if a frame made from raw input does not contradict the expected state. */
static bool is_allowed(const struct wire_frame *f)
{
    struct job *j = f->kind == WIRE_REFUSE ? find_job(f->refuse.job)
                    : f->kind == WIRE_DONE ? find_job(f->done.job)
                                           : NULL;
    if (j && !j->open)
        return false;
    if (j)
        j->open = false;
    return f->kind != WIRE_PROMPT && f->kind != WIRE_ERR && f->kind != WIRE_OUT && f->kind != WIRE_END;
}

/* Sends raw bytes, mostly no valid frame. */
static void raw(struct peer *p)
{
    uint8_t b[5 + 64] = {0xce, 0, 0, 0, (uint8_t)(next_byte() % 64)};
    struct err e;
    struct wire_frame f;
    for (unsigned i = 0; i < b[4]; i++)
        b[5 + i] = (uint8_t)next_byte();
    wire_arena_reset(arena);
    bool valid = !wire_decode(&e, &f, arena, b + 5, b[4]);
    if (p->s && (!valid || is_allowed(&f)))
        (void)session_send_bytes(&e, p->s, b, 5u + b[4]);
}

static void act(unsigned op)
{
    unsigned arg = next_byte(), which = next_byte();
    struct job *j = n_job ? &jobs[n_job - 1 - which % (n_job < 8 ? n_job : 8)] : NULL;
    switch (op % 16) {
    case 0:
    case 1:
        submit();
        break;
    case 2:
        gateway_cancel(g, arg % REQUESTS);
        break;
    case 3:
    case 4:
        answer(arg);
        break;
    case 5:
        if (j)
            decide(j, arg);
        break;
    case 6:
    case 7:
    case 8:
        if (j)
            work(&peers[WORKER + arg % 2], j, next_byte());
        break;
    case 9:
        raw(&peers[arg % 4]);
        break;
    case 10:
        fake_cut(arg);
        break;
    case 11:
        peer_restart(&peers[arg % 4]);
        break;
    case 12:
        clock_ns += arg * 20 * NS_MS;
        break;
    default:
        process(&peers[arg % 4], 1 + arg / 32);
        break;
    }
}

/* All peers behave correctly until every request has ended. */
static void settle(void)
{
    peer_restart(&peers[SCHED]);
    peer_restart(&peers[TOKENIZE]);
    for (int k = 0; k < SETTLE && gateway_running(g); k++) {
        clock_ns += NS_S;
        step();
        for (int i = 0; i < 4; i++)
            process(&peers[i], 100);
        while (n_ask)
            answer(65);
        for (size_t i = 0; i < n_job; i++) {
            struct job *j = &jobs[i];
            if (!j->open || !peers[WORKER].s)
                continue;
            while (j->n_out < LENGTH) {
                tokens(&peers[WORKER], j, j->n_out, 1, false, false);
                j->n_out++;
            }
            finish(&peers[WORKER], j, j->n_out);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    in = p;
    n_in = n < 4096 ? n : 4096;
    memset(req, 0, sizeof req);
    memset(jobs, 0, sizeof jobs);
    n_req = n_job = n_ask = 0;
    clock_ns = NS_S;
    closing = false;
    fake_draw = draw;
    arena = wire_arena_new();
    const struct gateway_opts o = {.sched = peers[SCHED].url,
                                   .tokenize = peers[TOKENIZE].url,
                                   .listen = "ipc:///workers",
                                   .deadline_ns = next_byte() % 4 ? 0 : 3 * NS_S,
                                   .patience_ns = UINT64_MAX,
                                   .frame = on_frame,
                                   .parsed = on_parsed};
    for (int i = 0; i < 4; i++) {
        peers[i].s = NULL;
        peer_open(&peers[i], 1);
    }
    if (gateway_open(&e, &g, &o))
        abort();
    while (n_in) {
        unsigned op = next_byte();
        act(op);
        if (op & 16)
            step();
    }
    settle();
    assert(!gateway_running(g));
    for (int i = 0; i < 4; i++) /* acknowledges the last reports, so that gateway_close need not wait */
        process(&peers[i], 10000);
    step();
    closing = true;
    gateway_close(g);
    for (int i = 0; i < 4; i++)
        session_hub_free(peers[i].hub);
    wire_arena_free(arena);
    assert(!fake_sessions && !fake_listeners);
    return 0;
}
