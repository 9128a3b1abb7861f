/*
 * The scheduler as a service: workers, gateways, a tool and a monitor with fake sessions send valid and invalid frames
 * in any order, in their own and in other names; connections break with frames in flight, peers restart, stop reading
 * and come back, time passes, and the service shuts down. After each operation the counts of the scheduler are those of
 * what it keeps (sched_check), and it is not broken; a gateway gets no more ends of a job than it has submitted it.
 * Input: operations of a few bytes.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "link/session.h"
#undef SESSION_WINDOW_BYTES
#define SESSION_WINDOW_BYTES 2000 /* small, so that it is often full */
#include "unit/session_fake.h"

#include "sched/serve.c"
#include "sched/serve_peers.c"
#include "sched/serve_stores.c"
#include "unit/sched_check.c"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define URL "ipc:///sched"
#define PEERS 6
#define JOBS 16
#define CLAIMED 12 /* from here on jobs are not submitted: workers claim to run them */

static uint64_t clock_ns;
static const uint8_t *in;
static size_t n_in;
static struct wire_arena *memory;

uint64_t time_now_ns(void)
{
    return clock_ns;
}
uint64_t time_wall_ns(void)
{
    return clock_ns;
}
int time_left_ms(uint64_t at_ns, uint64_t now_ns)
{
    return at_ns <= now_ns ? 0 : 1;
}

static unsigned byte(void)
{
    if (!n_in)
        return 0;
    n_in--;
    return *in++;
}

static struct peer_end {
    const char *role, *name;
    struct session_hub *hub;
    struct session *s;
    uint64_t inc;
    bool deaf;                                /* takes no events */
    uint32_t submitted[JOBS], ended[JOBS];    /* of a gateway */
    uint64_t order[JOBS], job[JOBS], n_order; /* of a worker: its last work items */
    const char *gw[JOBS];
    uint32_t attempt[JOBS];
} peers[PEERS] = {{.role = "worker", .name = "w0"},  {.role = "worker", .name = "w1"},
                  {.role = "gateway", .name = "g0"}, {.role = "gateway", .name = "g1"},
                  {.role = "tool", .name = ""},      {.role = "monitor", .name = ""}};

static void open_peer(struct peer_end *p)
{
    struct err e;
    p->inc++;
    p->deaf = false;
    p->n_order = 0;
    const struct session_hub_opts o = {.self = {p->role, p->name, p->inc}, .window = 1 << 20};
    if (session_hub_new(&e, &p->hub, &o) || session_dial(&e, &p->s, p->hub, URL, "sched", NULL))
        abort();
}

static const char *gateway_name(struct wire_str s)
{
    return str_is(s, "g1") ? "g1" : "g0";
}

static void received(struct peer_end *p, const struct wire_frame *f)
{
    if (f->kind == WIRE_ORDER) {
        size_t i = p->n_order++ % JOBS;
        p->order[i] = f->order.order;
        p->job[i] = f->order.job;
        p->gw[i] = gateway_name(f->order.gw);
        p->attempt[i] = f->order.attempt;
    }
    uint64_t job = f->kind == WIRE_DONE ? f->done.job : f->kind == WIRE_REFUSE ? f->refuse.job : 0;
    if (job && job < JOBS)
        p->ended[job]++;
}

static void take_all(void)
{
    struct err e;
    struct session_event v;
    struct wire_frame f;
    for (int i = 0; i < PEERS; i++)
        while (!peers[i].deaf && session_hub_next(peers[i].hub, &v)) {
            wire_arena_reset(memory);
            if (v.type == SESSION_FRAME && !session_frame(&e, &f, memory, &v))
                received(&peers[i], &f);
        }
}

static void send_frame(struct peer_end *p, const struct wire_frame *f)
{
    struct err e;
    if (session_is_up(p->s))
        (void)session_send(&e, p->s, f);
}

/* The name that frames of a peer have: mostly its own. */
static struct wire_str own(const struct peer_end *p)
{
    unsigned x = byte();
    return wire_str_of(x < 240 ? p->name : peers[x % 4].name);
}

static void submit(struct peer_end *p)
{
    static const uint8_t digests[96], body[20];
    uint64_t job = byte() % CLAIMED;
    unsigned how = byte();
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = own(p),
                                    .job = job,
                                    .n_prompt = how % 200 + 1,
                                    .max_tokens = how % 7,
                                    .digests = {digests, how % 200 / 32 < 4 ? how % 200 / 32 * 32 : 0},
                                    .priority = (int32_t)(how % 3),
                                    .deadline_ns = how & 1 ? how * NS_S / 50 : 0,
                                    .reply = wire_str_of("ipc:///g"),
                                    .body = {body, sizeof body},
                                    .again = how & 8,
                                    .attempt = how & 8 ? byte() % 4 : 0,
                                    .tenant = wire_str_of(how & 16 ? "t" : "")};
    if (job && job < JOBS)
        p->submitted[job]++;
    send_frame(p, &f);
}

static void join(struct peer_end *p)
{
    static const char *const roles_of[] = {"prefill", "decode", "both", "cook"};
    unsigned how = byte();
    const struct wire_run run = {.gw = wire_str_of(how & 64 ? "g0" : "g1"),
                                 .job = CLAIMED + byte() % (JOBS - CLAIMED),
                                 .order = byte(),
                                 .attempt = how % 3,
                                 .phase = wire_str_of(how & 32 ? "decode" : "whole"),
                                 .n_prompt = 40,
                                 .max_tokens = 5,
                                 .n_out = how % 3};
    struct wire_frame f = {.kind = WIRE_JOIN};
    f.join = (struct wire_join){.worker = own(p),
                                .inc = how & 128 ? p->inc : p->inc + (how & 1),
                                .role = wire_str_of(roles_of[how % 16 ? how % 3 : 3]),
                                .store = wire_str_of("s"),
                                .compat = wire_str_of("k"),
                                .seqs = 4,
                                .blocks = 100,
                                .max_len = 4096,
                                .chunk = 64,
                                .run = &run,
                                .n_run = how & 16 ? 1 : 0};
    send_frame(p, &f);
}

static void capacity(struct peer_end *p)
{
    unsigned how = byte();
    struct wire_frame f = {.kind = WIRE_CAPACITY};
    f.capacity = (struct wire_capacity){.worker = own(p),
                                        .inc = p->inc,
                                        .orders = how & 1 ? p->n_order : byte(),
                                        .seqs = how % 6,
                                        .tokens = how * 4,
                                        .blocks = how,
                                        .drain = how > 250};
    send_frame(p, &f);
}

static void report(struct peer_end *p)
{
    static const char *const what[] = {"progress", "prefilled", "tokens",    "ended",
                                       "failed",   "preempted", "cancelled", "sung"};
    static const uint32_t ids[4] = {1, 2, 3, 4};
    static const uint8_t handle[64];
    unsigned how = byte();
    size_t i = byte() % JOBS;
    bool of_worker = *p->role == 'w';
    struct wire_frame f = {.kind = WIRE_REPORT};
    f.report = (struct wire_report){.worker = of_worker ? own(p) : wire_str_of(""),
                                    .inc = p->inc,
                                    .gw = of_worker ? wire_str_of(p->gw[i] ? p->gw[i] : "g0") : own(p),
                                    .job = of_worker ? p->job[i] : i,
                                    .order = p->order[i] + (how > 250),
                                    .attempt = of_worker ? p->attempt[i] : how % 3,
                                    .what = wire_str_of(what[how % 8 == 7 && how < 128 ? 3 : how % 8]),
                                    .n_done = how % 64,
                                    .n_out = how % 5,
                                    .out = ids,
                                    .n_out_id = how % 5,
                                    .reason = 1 + how % 4,
                                    .code = how & 64 ? ERR_NO : ERR_SYS,
                                    .store = wire_str_of("s"),
                                    .handle = {handle, how & 32 ? sizeof handle : 0}};
    send_frame(p, &f);
}

static void other(struct peer_end *p)
{
    static const char *const names[] = {"drain",  "hand_over", "role",         "queue_max",  "weight:t",
                                        "deaths", "no_such",   "heartbeat_ms", "queue_bytes"};
    unsigned how = byte();
    struct wire_frame f = {.kind = WIRE_STAT};
    if (how % 4 == 1) {
        f.kind = WIRE_KNOB;
        f.knob = (struct wire_knob){.name = wire_str_of(names[how % 9]),
                                    .worker = wire_str_of(how & 64 ? "w0" : ""),
                                    .value = (float)(how % 5)};
    } else if (how % 4 == 2) {
        f.kind = WIRE_CANCEL;
        f.cancel = (struct wire_cancel){.gw = own(p), .job = byte() % JOBS};
    } else if (how % 4 == 3) {
        f.kind = how & 4 ? WIRE_TICK : how & 8 ? WIRE_GONE : how & 16 ? WIRE_BLOCKS : WIRE_DONE;
        if (f.kind == WIRE_GONE)
            f.gone.worker = wire_str_of("w0");
        if (f.kind == WIRE_BLOCKS)
            f.blocks.store = wire_str_of("s");
        if (f.kind == WIRE_DONE)
            f.done.to = wire_str_of("g0");
    }
    send_frame(p, &f);
}

static void operation(struct serve *v, bool *closing)
{
    unsigned op = byte() % 20;
    struct peer_end *p = &peers[byte() % PEERS];
    if (op < 5)
        submit(&peers[2 + (p - peers) % 2]);
    else if (op < 7)
        join(&peers[(p - peers) % 2]);
    else if (op < 9)
        capacity(&peers[(p - peers) % 2]);
    else if (op < 13)
        report(&peers[(p - peers) % 4]);
    else if (op < 15)
        other(p);
    else if (op == 15)
        clock_ns += byte() * NS_S / 20;
    else if (op == 16)
        p->deaf = !p->deaf;
    else if (op == 17)
        session_close(p->s, "a break");
    else if (op == 18) {
        session_hub_free(p->hub);
        open_peer(p);
    } else if (byte() > 250 && !*closing) {
        *closing = v->ending = true;
        v->end_ns = clock_ns + 5 * NS_S;
    }
}

/* One turn of the service's loop (run, serve.c) without waiting. */
static void turn(struct serve *v)
{
    struct err e;
    struct wire_frame tick = {.kind = WIRE_TICK};
    v->allowed_ns = 3600 * NS_S;
    process_events(v);
    serve_event(v, &tick);
    if (v->ending)
        end_waiting(v);
    decide(v);
    assert(!v->broken);
    if (sched_check(&e, v->s)) {
        fprintf(stderr, "%s\n", e.text);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    struct sched *s;
    const struct sched_serve_opts opts = {.prog = "sched", .url = URL, .ready_fd = -1, .drain_ns = NS_S};
    struct serve v = {.o = &opts};
    struct sched_sink sink = {.emit = peers_emit, .arg = &v, .release = stores_release};
    bool closing = false;
    in = p;
    n_in = n;
    clock_ns = NS_S;
    fake_draw = NULL;
    memory = wire_arena_new();
    v.arena = wire_arena_new();
    list_init(&v.all);
    if (sched_new(&e, &s, n && p[n - 1] & 1 ? &sched_policy_fcfs : &sched_policy_kv, NULL))
        abort();
    v.s = s;
    sched_set_sink(s, &sink);
    const struct session_hub_opts o = {.self = {.role = "sched", .name = "sched", .inc = 1}};
    if (session_hub_new(&e, &v.hub, &o) ||
        session_listen(&e, &v.listener, v.hub, URL, "worker gateway monitor tool", NULL))
        abort();
    for (int i = 0; i < PEERS; i++) {
        memset(peers[i].submitted, 0, sizeof peers[i].submitted);
        memset(peers[i].ended, 0, sizeof peers[i].ended);
        peers[i].inc = 0;
        open_peer(&peers[i]);
    }
    while (n_in) {
        operation(&v, &closing);
        turn(&v);
        take_all();
        for (int i = 2; i < 4; i++)
            for (int j = 1; j < CLAIMED; j++)
                assert(peers[i].ended[j] <= peers[i].submitted[j]);
    }
    sched_set_sink(s, &(struct sched_sink){0});
    peers_close(&v);
    peers_free(&v);
    for (int i = 0; i < PEERS; i++)
        session_hub_free(peers[i].hub);
    session_listener_free(v.listener);
    session_hub_free(v.hub);
    sched_free(s);
    wire_arena_free(v.arena);
    wire_arena_free(memory);
    return 0;
}
