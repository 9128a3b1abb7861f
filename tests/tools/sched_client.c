/*
 * The others of a scheduler, for tests of it with real processes:
 *
 *   sched_client gateway URL NAME N OPEN MAX_TOKENS CANCEL_EVERY
 *       submits N requests, OPEN of them at once, cancels every CANCEL_EVERY-th (0: none) soon after, submits again
 *       what runs when the scheduler says so; prints what became of them, as
 *       "submitted N stop N length N cancelled N error N refused N twice N again N"
 *   sched_client worker URL NAME ROLE SEQS PREFILL_MS TOKEN_MS
 *       a worker that takes time and no more; runs until it is killed
 *   sched_client stat URL          prints the accounting, and a line for each worker, as JSON
 *   sched_client knob URL NAME VALUE [WORKER]
 *   sched_client hostile URL       says all that it should not; prints what it was answered in all, as "N refused"
 *   sched_client crowd URL N       N connections at once, half of them with a question, then none
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "link/ask.h"
#include "link/worker.h"
#include "proc/proc.h"

#define NS_MS 1000000ull

static struct err e;
static struct link_box *box;
static struct link_dialer *to;
static struct wire_arena *arena;
static struct link_msg m;

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

static void dial(const char *url)
{
    must(link_box_new(&e, &box));
    must(link_dial(&e, &to, box, url, NULL));
    arena = wire_arena_new();
}

/* Until the answer is there; false: none will come, or not in time. */
static bool answer(struct link_event *v, int ms)
{
    uint64_t end = proc_now_ns() + (uint64_t)ms * NS_MS;
    while (proc_now_ns() < end) {
        while (link_box_take(box, v))
            if (v->what == LINK_ANSWER || v->what == LINK_FAILED)
                return v->what == LINK_ANSWER;
        link_box_wait(box, 50);
    }
    return false;
}

static uint64_t print(const struct link_event *v)
{
    struct wire_frame f;
    const uint8_t *p = v->p;
    size_t n = v->n;
    uint64_t n_frame = 0;
    wire_arena_reset(arena);
    for (; link_msg_next(&e, &f, arena, &p, &n); n_frame++) {
        char *line;
        must(wire_to_json(&e, &line, &f, NULL, false));
        puts(line);
        free(line);
    }
    must(e.code);
    return n_frame;
}

static int once(const struct wire_frame *f)
{
    struct link_event v;
    must(link_msg_add(&e, &m, f));
    must(link_ask(&e, to, &m, NULL));
    if (!answer(&v, 5000))
        return 1;
    return print(&v) && f->kind == WIRE_KNOB;
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

static void add_submit(uint64_t k, bool again)
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
    must(link_msg_add(&e, &m, &f));
}

static void add_cancel(uint64_t k)
{
    struct wire_frame f = {.kind = WIRE_CANCEL, .cancel = {.gw = wire_str_of(name), .job = k + 1}};
    must(link_msg_add(&e, &m, &f));
    request[k].state = CANCELLED;
}

static void send_off(void)
{
    if (m.n)
        must(link_ask(&e, to, &m, &m));
}

static void submit_again(void)
{
    n_again++;
    for (uint64_t k = 0; k < n_begun; k++) {
        if (request[k].state == DONE)
            continue;
        add_submit(k, true);
        if (request[k].state == CANCELLED)
            add_cancel(k);
    }
    send_off();
}

/* What ended before a scheduler asked for everything again may end once more. */
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

static void told(const struct wire_frame *f)
{
    if (f->kind == WIRE_ACK && f->ack.job && f->ack.job <= n_begun)
        request[f->ack.job - 1].attempt = f->ack.attempt;
    if (f->kind == WIRE_DONE)
        ended(f->done.job, &counts[f->done.reason]);
    if (f->kind == WIRE_REFUSE && !f->refuse.job)
        submit_again();
    if (f->kind == WIRE_REFUSE && f->refuse.job)
        ended(f->refuse.job, &n_refused);
}

static void poll_again(void)
{
    struct link_msg p = {0};
    struct wire_frame f = {.kind = WIRE_POLL, .poll = {.gw = wire_str_of(name)}};
    must(link_msg_add(&e, &p, &f));
    must(link_ask(&e, to, &p, NULL));
    link_msg_free(&p);
}

/* Not before the scheduler has heard of this gateway, or all would be submitted twice. */
static void begin_some(void)
{
    while (n_again && n_open < n_max && n_begun < n_all) {
        request[n_begun].state = OPEN;
        add_submit(n_begun++, false);
        n_open++;
        if (cancel_every && n_begun % cancel_every == 0)
            add_cancel(n_begun - 1);
    }
    send_off();
}

static int gateway(char **arg)
{
    struct wire_frame f;
    struct link_event v;
    name = arg[0];
    n_all = number(arg[1]);
    n_max = number(arg[2]);
    max_tokens = (uint32_t)number(arg[3]);
    cancel_every = number(arg[4]);
    request = calloc(n_all + 1, sizeof *request);
    poll_again();
    while (n_begun < n_all || n_open) {
        begin_some();
        link_box_wait(box, 1000);
        while (link_box_take(box, &v)) {
            if (v.what != LINK_ANSWER && v.what != LINK_FAILED)
                continue;
            const uint8_t *p = v.p;
            size_t n = v.n;
            wire_arena_reset(arena);
            while (v.what == LINK_ANSWER && link_msg_next(&e, &f, arena, &p, &n))
                told(&f);
            if (!v.arg) /* the poll */
                poll_again();
        }
    }
    printf("submitted %d stop %d length %d cancelled %d error %d refused %d twice %d again %d\n", (int)n_begun,
           (int)counts[WIRE_STOP], (int)counts[WIRE_LENGTH], (int)counts[WIRE_CANCELLED], (int)counts[WIRE_ERROR],
           (int)n_refused, (int)n_twice, (int)n_again);
    free(request);
    return 0;
}

/* ---- a worker ---- */

#define ORDERS_MAX 1024

static struct task {
    struct worker_told *told;
    uint64_t end_ns;
} task[ORDERS_MAX];
static struct worker_link *worker;
static uint32_t n_task;

static void report(const struct task *t, const char *what)
{
    static uint32_t ids[65536];
    static const uint8_t handle[16] = {1};
    const struct wire_order *o = t->told->o;
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
    must(worker_link_report(&e, worker, t->told->order, &r));
}

static void close_task(uint32_t i, const char *what)
{
    report(&task[i], what);
    worker_told_free(task[i].told);
    task[i] = task[--n_task];
}

static void take_told(struct worker_told *t, uint64_t prefill_ns, uint64_t token_ns)
{
    if (t->what == TOLD_ORDER && n_task < ORDERS_MAX) {
        const struct wire_order *o = t->o;
        bool prefill = o->phase.n == 7 && !memcmp(o->phase.p, "prefill", 7);
        bool decode = o->phase.n == 6 && !memcmp(o->phase.p, "decode", 6);
        uint64_t ns = decode ? 0 : prefill_ns;
        if (!prefill)
            ns += token_ns * (o->max_tokens - o->n_out);
        task[n_task++] = (struct task){t, proc_now_ns() + ns};
        return;
    }
    for (uint32_t i = 0; i < n_task && (t->what == TOLD_CANCEL || t->what == TOLD_PREEMPT); i++)
        if (task[i].told->order == t->order) {
            close_task(i, t->what == TOLD_CANCEL ? "cancelled" : "preempted");
            break;
        }
    worker_told_free(t);
}

static void finish_some(void)
{
    uint64_t now = proc_now_ns();
    for (uint32_t i = n_task; i-- > 0;) {
        const struct wire_order *o = task[i].told->o;
        bool prefill = o->phase.n == 7 && !memcmp(o->phase.p, "prefill", 7);
        if (task[i].end_ns <= now)
            close_task(i, prefill && o->max_tokens > 1 ? "prefilled" : "ended");
    }
}

static void work(const char *url, char **arg)
{
    uint32_t seqs = (uint32_t)number(arg[2]);
    uint64_t prefill_ns = number(arg[3]) * NS_MS, token_ns = number(arg[4]) * NS_MS;
    const struct worker_link_opts o = {.sched = url,
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
        struct worker_told *t;
        while ((t = worker_link_take(worker)))
            take_told(t, prefill_ns, token_ns);
        finish_some();
        if (n_task != before) {
            uint32_t left = n_task < seqs ? seqs - n_task : 0;
            const struct worker_room r = {.seqs = left, .tokens = left * 4096, .blocks = 65536 - n_task * 16};
            worker_link_room(worker, &r);
        }
        before = n_task;
        usleep(1000);
    }
}

/* ---- somebody who means no good ---- */

static uint64_t n_refusal;

static void raw(const void *p, size_t n)
{
    struct link_event v;
    struct link_msg x = {.p = malloc(n + 1), .n = n};
    struct wire_frame f;
    memcpy(x.p, p, n);
    must(link_ask(&e, to, &x, NULL));
    link_msg_free(&x);
    if (!answer(&v, 300))
        return;
    const uint8_t *q = v.p;
    size_t left = v.n;
    wire_arena_reset(arena);
    while (link_msg_next(&e, &f, arena, &q, &left))
        n_refusal += f.kind == WIRE_REFUSE;
}

static void wrong_frame(const struct wire_frame *f)
{
    link_msg_clear(&m);
    must(link_msg_add(&e, &m, f));
    raw(m.p, m.n);
}

static int hostile(void)
{
    static const uint8_t huge[] = {0xce, 0x0f, 0xff, 0xff, 0xff, 0x81}, cut[] = {0xce, 0, 0, 0, 9, 0x81, 0xa1, 'k'};
    struct wire_str me = wire_str_of("hostile");
    raw("", 0);
    raw("GET / HTTP/1.1\r\n\r\n", 18);
    raw(huge, sizeof huge);
    raw(cut, sizeof cut);
    wrong_frame(&(struct wire_frame){.kind = WIRE_IDLE, .idle = {.to = me}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_GONE, .gone = {.worker = wire_str_of("w1")}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_BLOCKS, .blocks = {.store = me, .reset = true}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = me}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_ORDER,
                                     .order = {.to = me, .n = 1, .order = 1, .gw = me, .job = 1, .phase = me}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_POLL, .poll = {.worker = me, .inc = 7}});
    wrong_frame(&(struct wire_frame){
        .kind = WIRE_REPORT,
        .report = {
            .worker = me, .inc = 7, .gw = wire_str_of("g1"), .job = 1, .order = 1, .what = wire_str_of("ended")}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_REPORT, .report = {.gw = me, .job = 1, .order = 1, .what = me}});
    wrong_frame(&(struct wire_frame){
        .kind = WIRE_JOIN, .join = {.worker = me, .role = me, .seqs = 1, .blocks = 1, .max_len = 1, .chunk = 1}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_CANCEL, .cancel = {.gw = me, .job = UINT64_MAX}});
    wrong_frame(&(struct wire_frame){.kind = WIRE_KNOB, .knob = {.name = me, .value = -1}});
    size_t n = LINK_MESSAGE_BYTES_MAX + 65536;
    void *big = calloc(1, n);
    raw(big, n);
    free(big);
    printf("%d refused\n", (int)n_refusal);
    return 0;
}

static int crowd(const char *url, unsigned long n)
{
    static const char header[] = "\0SP\0\0\60\0\0";
    int *s = calloc(n, sizeof *s);
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(url + 6) >= sizeof a.sun_path)
        return 1;
    memcpy(a.sun_path, url + 6, strlen(url + 6) + 1);
    for (unsigned long i = 0; i < n; i++) {
        s[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (s[i] < 0 || connect(s[i], (struct sockaddr *)&a, sizeof a))
            return 1;
        if (i % 2 && write(s[i], header, 8) != 8)
            return 1;
        /* size, number of the question, and the rest that is no frame */
        if (i % 4 == 1 && write(s[i], "\1\0\0\0\0\0\0\0\7\200\0\0\1abc", 16) != 16)
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
    dial(argv[2]);
    int rc = ERR_USAGE;
    if (!strcmp(what, "gateway") && argc > 7)
        rc = gateway(arg);
    else if (!strcmp(what, "stat"))
        rc = once(&(struct wire_frame){.kind = WIRE_STAT});
    else if (!strcmp(what, "knob") && argc > 4)
        rc = once(&(struct wire_frame){.kind = WIRE_KNOB,
                                       .knob = {.name = wire_str_of(arg[0]),
                                                .value = strtof(arg[1], NULL),
                                                .worker = wire_str_of(argc > 5 ? arg[2] : "")}});
    else if (!strcmp(what, "hostile"))
        rc = hostile();
    link_dialer_free(to);
    link_box_free(box);
    link_msg_free(&m);
    wire_arena_free(arena);
    return rc;
}
