/*
 * A gateway that requests many answers and cancels some of them at random times, for tests:
 *
 *     cancel_load SCHED TOKENIZE REQUESTS AT_ONCE SEED
 *
 * Each prompt is requested twice, now and then, so its two whole answers must be equal, and a cancelled one the
 * beginning of a whole one. Prints "asked N ended N cancelled N failed N differ N".
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "gateway/gateway.h"

#define PROMPTS 64
#define IDS 64

struct answer {
    uint32_t ids[IDS], n;
    uint64_t cancel_ns; /* 0: never */
    bool asked, ended;
};

struct load {
    struct gateway *g;
    struct answer *a;
    struct answer whole[PROMPTS]; /* the longest seen */
    uint64_t n, asked, ended, cancelled, failed, differ, random;
};

static uint64_t draw(struct load *l, uint64_t below)
{
    l->random ^= l->random << 13;
    l->random ^= l->random >> 7;
    l->random ^= l->random << 17;
    return l->random % below;
}

static void compare(struct load *l, uint64_t seq)
{
    const struct answer *a = &l->a[seq];
    struct answer *w = &l->whole[seq % PROMPTS];
    uint32_t n = a->n < w->n ? a->n : w->n;
    if (memcmp(a->ids, w->ids, n * sizeof *a->ids))
        l->differ++;
    if (a->n > w->n)
        *w = *a;
}

static void frame(void *arg, const struct wire_frame *f)
{
    struct load *l = arg;
    if (f->kind == WIRE_OUT) {
        struct answer *a = &l->a[f->out.seq];
        for (uint32_t i = 0; i < f->out.n_id && a->n < IDS; i++)
            a->ids[a->n++] = f->out.ids[i];
    } else if (f->kind == WIRE_END) {
        l->ended++;
        l->cancelled += f->end.reason == WIRE_CANCELLED;
        l->a[f->end.seq].ended = true;
        compare(l, f->end.seq);
    } else if (f->kind == WIRE_ERR) {
        l->failed++;
        l->a[f->error.seq].ended = true;
        fprintf(stderr, "request %" PRIu64 ": %.*s\n", f->error.seq, (int)f->error.text.n, f->error.text.p);
    }
}

static int ask(struct err *e, struct load *l)
{
    char line[512];
    uint64_t seq = l->asked++, which = seq % PROMPTS;
    int n =
        snprintf(line, sizeof line,
                 "{\"prompt\":\"%" PRIu64 " is a number that is requested again and again, with a long text around it, "
                 "so that it has a few blocks of its own: %" PRIu64 "\",\"max_tokens\":%d,\"ignore_eos\":true}",
                 which * which, which, 8 + (int)(which % 48));
    struct answer *a = &l->a[seq];
    a->asked = true;
    a->cancel_ns = draw(l, 2) ? time_now_ns() + draw(l, 200000000) : 0;
    return gateway_submit(e, l->g, seq, (struct wire_str){0}, line, (size_t)n);
}

static void cancel_due(struct load *l, uint64_t from)
{
    uint64_t now = time_now_ns();
    for (uint64_t i = from; i < l->asked; i++) {
        struct answer *a = &l->a[i];
        if (a->ended || !a->cancel_ns || a->cancel_ns > now)
            continue;
        a->cancel_ns = 0;
        gateway_cancel(l->g, i);
    }
}

static int run(struct err *e, struct load *l, uint64_t at_once)
{
    uint64_t from = 0;
    int rc = 0;
    while (!rc && l->ended + l->failed < l->n) {
        while (!rc && l->asked < l->n && l->asked - l->ended - l->failed < at_once)
            rc = ask(e, l);
        while (from < l->asked && l->a[from].ended)
            from++;
        cancel_due(l, from);
        uint64_t wait = gateway_next_ms(l->g);
        rc = rc ? rc : gateway_step(e, l->g, wait < 5 ? (int)wait : 5);
    }
    return rc;
}

int main(int argc, char **argv)
{
    static struct load l;
    struct err e = {0};
    if (argc != 6)
        return 100;
    l.n = strtoull(argv[3], NULL, 10);
    l.random = strtoull(argv[5], NULL, 10) * 2 + 88172645463325253ull;
    l.a = calloc(l.n, sizeof *l.a);
    struct gateway_opts o = {
        .sched = argv[1], .tokenize = argv[2], .frame = frame, .patience_ns = UINT64_MAX, .arg = &l};
    int rc = l.a ? gateway_open(&e, &l.g, &o) : 111;
    rc = rc ? rc : run(&e, &l, strtoull(argv[4], NULL, 10));
    if (l.g)
        gateway_close(l.g);
    if (rc)
        fprintf(stderr, "cancel_load: %s\n", e.text);
    printf("asked %" PRIu64 " ended %" PRIu64 " cancelled %" PRIu64 " failed %" PRIu64 " differ %" PRIu64 "\n", l.asked,
           l.ended, l.cancelled, l.failed, l.differ);
    free(l.a);
    return rc;
}
