/*
 * A scheduler and its worker for tests of stream alone: every request is taken, and answered by as many tokens as it
 * asks for, "1 2 3 " and so on, one each DELAY ms. It is no judge of anything but who asked what.
 *
 *   sched_peer URL [DELAY_MS]
 *
 * Says "ready" on stdout, then a line each for what it is told: "submit JOB N_OUT", "cancel JOB", "report JOB N_OUT",
 * "polls N" at the end.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/ask.h"
#include "proc/proc.h"

#define JOBS 4096

static struct job {
    bool used;
    uint64_t job, next_ns;
    uint32_t n_out, max_tokens, n_prompt;
    char id[64];
    struct link_dialer *to;
} jobs[JOBS];

static struct peer {
    char url[256];
    struct link_dialer *d;
} peers[64];

static struct link_box *box;
static struct link_question *parked;
static uint32_t parked_peer;
static uint64_t delay_ns, n_poll, n_open;
static struct wire_arena *arena, *body_arena;
static int for_sched, for_worker;
static struct err e;

static void check(int rc)
{
    if (rc) {
        fprintf(stderr, "sched_peer: %s\n", e.text);
        exit(1);
    }
}

static struct link_dialer *dial(struct wire_str url)
{
    struct peer *p = peers;
    while (p->d && (strlen(p->url) != url.n || memcmp(p->url, url.p, url.n)))
        p++;
    if (!p->d) {
        snprintf(p->url, sizeof p->url, "%.*s", (int)url.n, url.p);
        check(link_dial(&e, &p->d, box, p->url, &for_worker));
    }
    return p->d;
}

static void submit(const struct wire_submit *f)
{
    struct wire_frame hello, tok;
    const uint8_t *p = f->body.p;
    size_t n = f->body.n;
    struct job *j = jobs;
    while (j->used && j->job != f->job)
        j++;
    printf("submit %llu %u\n", (unsigned long long)f->job, f->n_out);
    wire_arena_reset(body_arena);
    if (!link_msg_next(&e, &hello, body_arena, &p, &n) || !link_msg_next(&e, &tok, body_arena, &p, &n))
        check(e.code ? e.code : 1);
    *j = (struct job){.used = true,
                      .job = f->job,
                      .next_ns = proc_now_ns() + delay_ns,
                      .n_out = f->n_out,
                      .max_tokens = f->max_tokens,
                      .n_prompt = f->n_prompt,
                      .to = dial(f->reply)};
    snprintf(j->id, sizeof j->id, "%.*s", (int)tok.req.id.n, tok.req.id.p);
}

static void cancel(uint64_t job)
{
    printf("cancel %llu\n", (unsigned long long)job);
    for (struct job *j = jobs; j < jobs + JOBS; j++)
        if (j->used && j->job == job)
            j->used = false;
}

static void question(struct link_event *v)
{
    struct wire_frame f;
    bool poll = false;
    wire_arena_reset(arena);
    while (link_msg_next(&e, &f, arena, &v->p, &v->n)) {
        if (f.kind == WIRE_SUBMIT)
            submit(&f.submit);
        else if (f.kind == WIRE_CANCEL)
            cancel(f.cancel.job);
        else if (f.kind == WIRE_REPORT)
            printf("report %llu %u\n", (unsigned long long)f.report.job, f.report.n_out);
        poll = poll || f.kind == WIRE_POLL;
    }
    check(e.code);
    fflush(stdout);
    if (!poll) {
        link_answer(v->q, NULL);
        return;
    }
    n_poll++;
    if (parked)
        link_answer(parked, NULL);
    parked = v->q;
    parked_peer = v->peer;
}

/* The next token of each answer that is due, and the end behind the last. */
static void work(struct job *j)
{
    struct link_msg m = {0};
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
                                  .at = j->n_out++};
        check(link_msg_add(&e, &m, &f));
        j->next_ns += delay_ns;
    }
    if (j->n_out >= j->max_tokens) {
        struct wire_frame f = {.kind = WIRE_END};
        f.end = (struct wire_end){.seq = j->job,
                                  .id = {j->id, strlen(j->id)},
                                  .reason = WIRE_LENGTH,
                                  .prompt_tokens = j->n_prompt,
                                  .completion_tokens = j->n_out};
        check(link_msg_add(&e, &m, &f));
        j->used = false;
    }
    check(link_ask(&e, j->to, &m, &for_worker));
    n_open++;
    link_msg_free(&m);
}

int main(int argc, char **argv)
{
    struct link_listener *l;
    struct link_event v;
    if (argc < 2)
        return 100;
    delay_ns = argc > 2 ? strtoull(argv[2], NULL, 10) * 1000000 : 0;
    arena = wire_arena_new();
    body_arena = wire_arena_new();
    check(proc_signals(&e) || link_box_new(&e, &box) || link_listen(&e, &l, box, argv[1], &for_sched));
    puts("ready");
    fflush(stdout);
    while (!proc_term_count()) {
        link_box_wait(box, 1);
        while (link_box_take(box, &v)) {
            if (v.what == LINK_DOWN && v.peer == parked_peer)
                parked = NULL;
            n_open -= v.what == LINK_ANSWER || v.what == LINK_FAILED;
            if (v.what == LINK_QUESTION)
                question(&v);
        }
        for (struct job *j = jobs; j < jobs + JOBS; j++)
            if (j->used && j->next_ns <= proc_now_ns() && n_open < 1000)
                work(j);
    }
    printf("polls %llu\n", (unsigned long long)n_poll);
    return 0;
}
