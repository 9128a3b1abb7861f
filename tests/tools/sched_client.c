/*
 * Fake peers of a scheduler service, for tests with real processes:
 *
 *   sched_client gateway URL NAME N OPEN MAX_TOKENS CANCEL_EVERY
 *       submits N requests, at most OPEN of them concurrently; cancels every CANCEL_EVERY-th (0: none); submits running
 *       requests again after a reconnect; prints their outcomes, as
 *       "submitted N stop N length N cancelled N error N refused N twice N again N"
 *   sched_client worker URL NAME ROLE SEQS PREFILL_MS TOKEN_MS
 *       a worker that only waits for these times; runs until it is killed
 *   sched_client stat URL          prints the statistics, and a line for each worker, as JSON
 *   sched_client set URL NAME VALUE [WORKER]
 *   sched_client hostile URL OTHER_GATEWAY
 *       sends invalid frames in sessions of a worker, a gateway and a tool, and invalid bytes without a session; prints
 *       the number of refusals, as "N refused"
 * $PEER_TLS is the directory of credentials for a tls+tcp:// address; $PEER_ROLE the role whose credentials are used,
 * if they are not those of the role that the client has.
 *
 *   sched_client crowd URL N       opens N connections, half of them with a part of a frame, then closes them
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/time.h"
#include "link/session.h"
#include "link/worker.h"
#include "proc/proc.h"

static struct err e;
static struct session_hub *hub;
static struct session *to;
static struct wire_arena *arena;
static uint64_t inc;

static void must(int rc)
{
    if (!rc)
        return;
    fprintf(stderr, "sched_client: %s\n", e.text);
    exit(rc);
}

static unsigned long number(const char *s)
{
    return s ? strtoul(s, NULL, 10) : 0;
}

static struct session_security security(const char *role)
{
    struct session_security s = {0};
    const char *dir = getenv("PEER_TLS"), *as = getenv("PEER_ROLE");
    if (dir)
        must(peer_tls_open(&e, &s.tls, dir, as ? as : role));
    return s;
}

static void dial(const char *url, const char *role, const char *name)
{
    inc = time_now_ns();
    struct session_hub_opts o = {.self = {.role = role, .name = name, .inc = inc}};
    o.security = security(role);
    must(session_hub_new(&e, &hub, &o));
    must(session_dial(&e, &to, hub, url, "sched", NULL));
    arena = wire_arena_new();
}

static void hang_up(void)
{
    session_free(to);
    session_hub_free(hub);
    wire_arena_free(arena);
}

/* False: timeout. */
static bool next_event(struct session_event *v, int ms)
{
    uint64_t now, end = time_now_ns() + (uint64_t)ms * NS_MS;
    while (!session_hub_next(hub, v)) {
        now = time_now_ns();
        if (now >= end)
            return false;
        session_hub_wait(hub, (int)((end - now) / NS_MS) + 1);
    }
    return true;
}

/* False: timeout, or refused, with the reason on stderr. */
static bool wait_up(int ms)
{
    struct session_event v;
    while (next_event(&v, ms)) {
        if (v.type == SESSION_UP)
            return true;
        if (v.type == SESSION_REFUSED) {
            fprintf(stderr, "sched_client: %s\n", v.err.text);
            return false;
        }
    }
    return false;
}

/* The next frame of the scheduler; false: timeout. */
static bool next_frame(struct wire_frame *f, int ms)
{
    struct session_event v;
    while (next_event(&v, ms))
        if (v.type == SESSION_FRAME) {
            wire_arena_reset(arena);
            must(session_frame(&e, f, arena, &v));
            return true;
        }
    return false;
}

static void print(const struct wire_frame *f)
{
    char *line;
    must(wire_to_json(&e, &line, f, NULL, false));
    puts(line);
    free(line);
}

/* The response to stat is followed by a frame for each worker that it counts; the response to a setting is its
 * confirmation, which is not printed, or a refusal. */
static int once(const struct wire_frame *request)
{
    struct wire_frame f;
    uint32_t more = 1;
    bool refused = false;
    if (!wait_up(5000))
        return 1;
    must(session_send(&e, to, request));
    for (; more && next_frame(&f, 5000); more--) {
        refused |= f.kind == WIRE_REFUSE;
        more += f.kind == WIRE_STAT ? f.stat.workers : 0;
        if (f.kind != WIRE_KNOB)
            print(&f);
    }
    return more || refused;
}

/* ---- a gateway ---- */

enum { NEW, OPEN, CANCELLED, DONE };
struct request {
    int state;
    uint32_t attempt;
};

static struct request *request;
static uint64_t n_all, n_begun, n_open, n_max, counts[WIRE_ERROR + 1], n_refused, n_twice, n_again;
static const char *name;
static uint32_t max_tokens;
static unsigned long cancel_every;

static void send_submit(uint64_t k, bool again)
{
    struct wire_frame f = {.kind = WIRE_SUBMIT};
    f.submit = (struct wire_submit){.gw = wire_str_of(name),
                                    .job = k + 1,
                                    .n_prompt = 64,
                                    .max_tokens = max_tokens,
                                    .reply = wire_str_of("ipc:///nowhere"),
                                    .body = {(const uint8_t *)"body", 4},
                                    .again = again,
                                    .attempt = request[k].attempt};
    must(session_send(&e, to, &f));
}

static void send_cancel(uint64_t k)
{
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(name), .job = k + 1}};
    must(session_send(&e, to, &f));
    request[k].state = CANCELLED;
}

static void submit_again(void)
{
    n_again++;
    for (uint64_t k = 0; k < n_begun; k++) {
        if (request[k].state == DONE)
            continue;
        send_submit(k, true);
        if (request[k].state == CANCELLED)
            send_cancel(k);
    }
}

/* A request that was submitted again after its end may end twice. */
static void ended(uint64_t job, uint64_t *count)
{
    if (!job || job > n_begun)
        return;
    struct request *r = &request[job - 1];
    if (r->state == DONE) {
        n_twice++;
        return;
    }
    ++*count;
    n_open--;
    r->state = DONE;
}

static void take_frame(const struct wire_frame *f)
{
    if (f->kind == WIRE_ACK && f->ack.job && f->ack.job <= n_begun)
        request[f->ack.job - 1].attempt = f->ack.attempt;
    if (f->kind == WIRE_DONE)
        ended(f->done.job, &counts[f->done.reason]);
    if (f->kind == WIRE_REFUSE && !f->refuse.job)
        must(err_set(&e, ERR_PROTO, "%.*s", (int)f->refuse.text.n, f->refuse.text.p));
    if (f->kind == WIRE_REFUSE && f->refuse.job)
        ended(f->refuse.job, &n_refused);
}

static void begin_some(void)
{
    while (session_is_up(to) && n_open < n_max && n_begun < n_all) {
        request[n_begun].state = OPEN;
        send_submit(n_begun++, false);
        n_open++;
        if (cancel_every && n_begun % cancel_every == 0)
            send_cancel(n_begun - 1);
    }
}

static int gateway(const char *url, char **arg)
{
    struct wire_frame f;
    struct session_event v;
    name = arg[0];
    n_all = number(arg[1]);
    n_max = number(arg[2]);
    max_tokens = (uint32_t)number(arg[3]);
    cancel_every = number(arg[4]);
    request = calloc(n_all + 1, sizeof *request);
    dial(url, "gateway", name);
    while (n_begun < n_all || n_open) {
        session_hub_wait(hub, 1000);
        while (session_hub_next(hub, &v)) {
            if (v.type == SESSION_UP)
                submit_again();
            if (v.type != SESSION_FRAME)
                continue;
            wire_arena_reset(arena);
            must(session_frame(&e, &f, arena, &v));
            take_frame(&f);
        }
        begin_some();
    }
    printf("submitted %d stop %d length %d cancelled %d error %d refused %d twice %d again %d\n", (int)n_begun,
           (int)counts[WIRE_STOP], (int)counts[WIRE_LENGTH], (int)counts[WIRE_CANCELLED], (int)counts[WIRE_ERROR],
           (int)n_refused, (int)n_twice, (int)n_again);
    free(request);
    return 0;
}

/* ---- a worker ---- */

#define ATTEMPTS_MAX 1024

static struct attempt {
    const struct wire_order *order;
    uint64_t end_ns;
} attempts[ATTEMPTS_MAX];
static struct worker_link *worker;
static uint32_t n_attempt;

static void report(const struct attempt *a, const char *what)
{
    static uint32_t ids[65536];
    static const uint8_t handle[16] = {1};
    const struct wire_order *o = a->order;
    struct wire_report r = {.what = wire_str_of(what), .n_done = o->n_prompt, .n_out = o->n_out};
    uint32_t n = o->max_tokens < 65536 ? o->max_tokens : 65536;
    if (!strcmp(what, "prefilled")) {
        r.handle = (struct wire_bytes){handle, sizeof handle};
        r.n_out = n = 1;
        r.busy_ns = NS_MS;
    }
    if (!strcmp(what, "ended")) {
        r.n_out = n;
        r.reason = WIRE_LENGTH;
    }
    for (uint32_t i = o->n_out; i < r.n_out; i++)
        ids[i] = i + 1;
    r.out = ids + o->n_out;
    r.n_out_id = r.n_out - o->n_out;
    must(worker_link_report(&e, worker, a->order, &r));
}

static void close_attempt(uint32_t i, const char *what)
{
    report(&attempts[i], what);
    worker_order_release(attempts[i].order);
    attempts[i] = attempts[--n_attempt];
}

static void take_event(const struct worker_event *ev, uint64_t prefill_ns, uint64_t token_ns)
{
    if (ev->type == WORKER_EV_ASSIGNED && n_attempt < ATTEMPTS_MAX) {
        const struct wire_order *o = ev->assigned;
        bool prefill = o->phase.n == 7 && !memcmp(o->phase.p, "prefill", 7);
        bool decode = o->phase.n == 6 && !memcmp(o->phase.p, "decode", 6);
        uint64_t ns = decode ? 0 : prefill_ns;
        if (!prefill)
            ns += token_ns * (o->max_tokens - o->n_out);
        attempts[n_attempt++] = (struct attempt){o, time_now_ns() + ns};
        return;
    }
    for (uint32_t i = 0; i < n_attempt && (ev->type == WORKER_EV_CANCEL || ev->type == WORKER_EV_PREEMPT); i++)
        if (attempts[i].order->order == ev->order) {
            close_attempt(i, ev->type == WORKER_EV_CANCEL ? "cancelled" : "preempted");
            break;
        }
    worker_order_release(ev->assigned);
}

static void finish_some(void)
{
    uint64_t now = time_now_ns();
    for (uint32_t i = n_attempt; i-- > 0;) {
        const struct wire_order *o = attempts[i].order;
        bool prefill = o->phase.n == 7 && !memcmp(o->phase.p, "prefill", 7);
        if (attempts[i].end_ns <= now)
            close_attempt(i, prefill && o->max_tokens > 1 ? "prefilled" : "ended");
    }
}

static void work(const char *url, char **arg)
{
    uint32_t seqs = (uint32_t)number(arg[2]);
    uint64_t prefill_ns = number(arg[3]) * NS_MS, token_ns = number(arg[4]) * NS_MS;
    const struct worker_link_opts o = {.sched = url,
                                       .security = security("worker"),
                                       .name = arg[0],
                                       .role = arg[1],
                                       .store = "",
                                       .compat = "test",
                                       .seqs = seqs,
                                       .blocks = 65536,
                                       .max_len = 65536,
                                       .chunk = 512};
    must(worker_link_open(&e, &worker, &o));
    for (uint32_t before = UINT32_MAX;;) {
        struct worker_event ev;
        while (worker_link_take(worker, &ev))
            take_event(&ev, prefill_ns, token_ns);
        finish_some();
        if (n_attempt != before) {
            uint32_t left = n_attempt < seqs ? seqs - n_attempt : 0;
            const struct wire_capacity c = {.seqs = left, .tokens = left * 4096, .blocks = 65536 - n_attempt * 16};
            worker_link_capacity(worker, &c);
        }
        before = n_attempt;
        usleep(1000);
    }
}

/* ---- a hostile peer ---- */

static uint64_t n_refusal;

static void expect_refusal(void)
{
    struct wire_frame f;
    if (next_frame(&f, 2000))
        n_refusal += f.kind == WIRE_REFUSE && !f.refuse.job;
}

static void wrong(const struct wire_frame *f)
{
    must(session_send(&e, to, f));
    expect_refusal();
}

/* Sends bytes over a connection without a session, which the scheduler must close. */
static void raw(const char *url, const void *p, size_t n)
{
    uint8_t got[4096];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    strncat(a.sun_path, url + 6, sizeof a.sun_path - 1);
    if (s < 0 || connect(s, (struct sockaddr *)&a, sizeof a))
        must(err_sys(&e, "connect"));
    (void)!write(s, p, n);
    uint64_t end = time_now_ns() + 10000 * NS_MS;
    for (;;) {
        struct pollfd f = {.fd = s, .events = POLLIN};
        if (poll(&f, 1, 100) > 0 && read(s, got, sizeof got) <= 0)
            break;
        if (time_now_ns() > end)
            must(err_set(&e, ERR_PROTO, "a connection that sends no session_hello stays open"));
    }
    close(s);
}

static struct wire_str me = {"hostile", 7};

static void as_worker(void)
{
    static const uint8_t cut[] = {0xce, 0, 0, 0, 3, 0x81, 0xa1, 'k'}, no_map[] = {0xce, 0, 0, 0, 1, 7};
    must(session_send_bytes(&e, to, cut, sizeof cut));
    expect_refusal();
    must(session_send_bytes(&e, to, no_map, sizeof no_map));
    expect_refusal();
    wrong(&(struct wire_frame){.kind = WIRE_GONE, .gone = {.worker = wire_str_of("w1")}});
    wrong(&(struct wire_frame){.kind = WIRE_BLOCKS, .blocks = {.store = me, .reset = true}});
    wrong(&(struct wire_frame){.kind = WIRE_TICK});
    wrong(&(struct wire_frame){.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = me}});
    wrong(&(struct wire_frame){.kind = WIRE_ORDER, .order = {.to = me, .order = 1, .gw = me, .job = 1, .phase = me}});
    wrong(&(struct wire_frame){.kind = WIRE_CAPACITY, .capacity = {.worker = me, .inc = inc}}); /* it has not joined */
    wrong(&(struct wire_frame){.kind = WIRE_CAPACITY, .capacity = {.worker = wire_str_of("w1"), .inc = inc}});
    wrong(&(struct wire_frame){.kind = WIRE_REPORT,
                               .report = {.worker = me, .inc = inc, .gw = me, .job = 1, .order = 1, .what = me}});
    wrong(&(struct wire_frame){
        .kind = WIRE_JOIN,
        .join = {.worker = me, .inc = inc, .role = me, .seqs = 1, .blocks = 1, .max_len = 1, .chunk = 1}});
    wrong(&(struct wire_frame){.kind = WIRE_SUBMIT, .submit = {.gw = me, .job = 1, .n_prompt = 1}});
}

/* other: the name of a gateway that is connected. */
static void as_gateway(const char *other)
{
    for (uint64_t job = 1; job <= 500; job += 100)
        wrong(&(struct wire_frame){.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(other), .job = job}});
    wrong(&(struct wire_frame){.kind = WIRE_SUBMIT, .submit = {.gw = wire_str_of(other), .job = 501, .n_prompt = 1}});
    wrong(&(struct wire_frame){.kind = WIRE_REPORT,
                               .report = {.worker = wire_str_of("w1"),
                                          .gw = wire_str_of(other),
                                          .job = 1,
                                          .order = 1,
                                          .what = wire_str_of("ended")}});
    wrong(&(struct wire_frame){.kind = WIRE_REPORT,
                               .report = {.gw = wire_str_of(other), .job = 1, .what = wire_str_of("ended")}});
    wrong(&(struct wire_frame){.kind = WIRE_SUBMIT,
                               .submit = {.gw = me, .job = 1, .n_prompt = 1, .digests = {(const uint8_t *)"1", 1}}});
    wrong(&(struct wire_frame){.kind = WIRE_KNOB,
                               .knob = {.name = wire_str_of("drain"), .worker = wire_str_of("w1"), .value = 1}});
    must(session_send(&e, to, &(struct wire_frame){.kind = WIRE_CANCEL, .cancel = {.gw = me, .job = UINT64_MAX}}));
}

static int hostile(const char *url, const char *other)
{
    static const uint8_t huge[] = {0xce, 0x0f, 0xff, 0xff, 0xff, 0x81};
    static const char *const roles[] = {"worker", "gateway", "tool"};
    for (int i = 0; i < 3; i++) {
        dial(url, roles[i], "hostile");
        if (!wait_up(5000))
            return 1;
        if (i == 0)
            as_worker();
        else if (i == 1)
            as_gateway(other);
        else
            wrong(&(struct wire_frame){.kind = WIRE_KNOB, .knob = {.name = me, .value = -1}});
        hang_up();
    }
    raw(url, "", 0);
    raw(url, "GET / HTTP/1.1\r\n\r\n", 18);
    raw(url, huge, sizeof huge);
    void *big = calloc(1, (size_t)SESSION_FRAME_BYTES_MAX + 65536);
    raw(url, big, (size_t)SESSION_FRAME_BYTES_MAX + 65536);
    free(big);
    printf("%d refused\n", (int)n_refusal);
    return 0;
}

static int crowd(const char *url, unsigned long n)
{
    static const uint8_t part[] = {0xce, 0, 0, 0, 60, 0x85, 0xa1, 'k'};
    int *s = calloc(n, sizeof *s);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(url + 6) >= sizeof a.sun_path)
        return 1;
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    for (unsigned long i = 0; i < n; i++) {
        s[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s[i] < 0 || connect(s[i], (struct sockaddr *)&a, sizeof a))
            return 1;
        if (i % 2 && write(s[i], part, sizeof part) != sizeof part)
            return 1;
    }
    puts("there");
    fflush(stdout);
    usleep(1000000);
    for (unsigned long i = 0; i < n; i++)
        close(s[i]);
    free(s);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return ERR_USAGE;
    const char *what = argv[1];
    char **arg = argv + 3;
    proc_write_errors();
    if (!strcmp(what, "worker") && argc > 7)
        work(argv[2], arg);
    if (!strcmp(what, "crowd") && argc > 3)
        return crowd(argv[2], number(arg[0]));
    if (!strcmp(what, "hostile") && argc > 3)
        return hostile(argv[2], arg[0]);
    int rc = ERR_USAGE;
    if (!strcmp(what, "gateway") && argc > 7) {
        rc = gateway(argv[2], arg);
        hang_up();
        return rc;
    }
    char own[32];
    snprintf(own, sizeof own, "test-%d", (int)getpid());
    dial(argv[2], "tool", own);
    if (!strcmp(what, "stat"))
        rc = once(&(struct wire_frame){.kind = WIRE_STAT});
    else if (!strcmp(what, "set") && argc > 4)
        rc = once(&(struct wire_frame){.kind = WIRE_KNOB,
                                       .knob = {.name = wire_str_of(arg[0]),
                                                .value = strtof(arg[1], NULL),
                                                .worker = wire_str_of(argc > 5 ? arg[2] : "")}});
    hang_up();
    return rc;
}
