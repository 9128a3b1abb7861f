/*
 * A fake scheduler with a worker, for tests of stream alone. It accepts every request and sends max_tokens tokens,
 * "1 2 3 " and so on, one every DELAY_MS ms.
 *
 *   sched_peer URL [DELAY_MS]
 *
 * Prints "ready" on stdout, then a line for each received frame: "submit JOB N_OUT", "cancel JOB", "report JOB N_OUT";
 * at the end "connections N", the number of connections of gateways.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "link/session.h"
#include "proc/proc.h"

#define REQUESTS_MAX 4096

static struct request {
    bool used;
    uint64_t job, next_ns;
    uint32_t n_out, max_tokens, n_prompt;
    char id[64];
    struct session *to;
} requests[REQUESTS_MAX];

static struct session *gateways[64];
static struct session_hub *sched, *worker;
static uint64_t delay_ns, n_connection;
static struct wire_arena *arena, *body_arena;
static struct err e;

static void check(int rc)
{
    if (rc) {
        fprintf(stderr, "sched_peer: %s\n", e.text);
        exit(1);
    }
}

static struct session *dial(struct wire_str url)
{
    struct session **p = gateways;
    char text[256];
    snprintf(text, sizeof text, "%.*s", (int)url.n, url.p);
    while (*p && strcmp(session_url(*p), text))
        p++;
    if (!*p)
        check(session_dial(&e, p, worker, text, "gateway", NULL));
    return *p;
}

static void submit(const struct wire_submit *f)
{
    struct wire_frame hello, tok;
    const uint8_t *p = f->body.p;
    size_t n = f->body.n;
    struct request *j = requests;
    while (j->used && j->job != f->job)
        j++;
    printf("submit %llu %u\n", (unsigned long long)f->job, f->n_out);
    wire_arena_reset(body_arena);
    check(wire_decode_next(&e, &hello, body_arena, &p, &n) || wire_decode_next(&e, &tok, body_arena, &p, &n));
    *j = (struct request){.used = true,
                          .job = f->job,
                          .next_ns = time_now_ns() + delay_ns,
                          .n_out = f->n_out,
                          .max_tokens = f->max_tokens,
                          .n_prompt = f->n_prompt,
                          .to = dial(f->reply)};
    snprintf(j->id, sizeof j->id, "%.*s", (int)tok.req.id.n, tok.req.id.p);
}

static void cancel(uint64_t job)
{
    printf("cancel %llu\n", (unsigned long long)job);
    for (struct request *j = requests; j < requests + REQUESTS_MAX; j++)
        if (j->used && j->job == job)
            j->used = false;
}

static void take(const struct session_event *ev)
{
    struct wire_frame f;
    n_connection += ev->type == SESSION_UP;
    if (ev->type != SESSION_FRAME)
        return;
    wire_arena_reset(arena);
    check(session_frame(&e, &f, arena, ev));
    if (f.kind == WIRE_SUBMIT)
        submit(&f.submit);
    else if (f.kind == WIRE_CANCEL)
        cancel(f.cancel.job);
    else if (f.kind == WIRE_REPORT)
        printf("report %llu %u\n", (unsigned long long)f.report.job, f.report.n_out);
    fflush(stdout);
}

/* Sends the next token of an answer, and the end after the last one. Retries later if the session's window is full. */
static void work(struct request *j)
{
    char text[32];
    uint32_t id = j->n_out + 1;
    if (j->n_out < j->max_tokens) {
        int n = snprintf(text, sizeof text, "%u ", id);
        struct wire_frame f = {.kind = WIRE_OUT};
        f.out = (struct wire_out){.seq = j->job,
                                  .id = {j->id, strlen(j->id)},
                                  .ids = &id,
                                  .n_id = 1,
                                  .text = {text, (size_t)n},
                                  .at = j->n_out};
        if (session_send(&e, j->to, &f))
            return;
        j->n_out++;
        j->next_ns += delay_ns;
    }
    if (j->n_out >= j->max_tokens) {
        struct wire_frame f = {.kind = WIRE_END};
        f.end = (struct wire_end){.seq = j->job,
                                  .id = {j->id, strlen(j->id)},
                                  .reason = WIRE_LENGTH,
                                  .prompt_tokens = j->n_prompt,
                                  .completion_tokens = j->n_out};
        j->used = session_send(&e, j->to, &f) != 0;
    }
}

int main(int argc, char **argv)
{
    struct session_listener *l;
    struct session_event ev;
    struct session_hub_opts o = {.self = {.role = "sched", .name = "sched_peer", .inc = time_now_ns()}}, of_worker = o;
    if (argc < 2)
        return 100;
    of_worker.self.role = "worker";
    delay_ns = argc > 2 ? strtoull(argv[2], NULL, 10) * 1000000 : 0;
    arena = wire_arena_new();
    body_arena = wire_arena_new();
    check(proc_signals(&e) || session_hub_new(&e, &sched, &o) || session_hub_new(&e, &worker, &of_worker) ||
          session_listen(&e, &l, sched, argv[1], "gateway", NULL));
    puts("ready");
    fflush(stdout);
    while (!proc_term_count()) {
        session_hub_wait(sched, 1);
        while (session_hub_next(sched, &ev))
            take(&ev);
        for (struct request *j = requests; j < requests + REQUESTS_MAX; j++)
            if (j->used && j->next_ns <= time_now_ns())
                work(j);
        while (session_hub_next(worker, &ev))
            ;
    }
    printf("connections %llu\n", (unsigned long long)n_connection);
    return 0;
}
