/* The life of a gateway: its sockets, its clock, and the step that does what there is to do. */
#include "gateway/gateway.h"

#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "gateway/gateway_impl.h"
#include "proc/proc.h"

#define CLOSE_NS ((uint64_t)300 * 1000 * 1000) /* for the last words */

void gw_timer(struct gateway *g, uint64_t at_ns)
{
    if (at_ns < g->timer_ns)
        g->timer_ns = at_ns;
}

void gw_say(struct gateway *g, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!g->o.say)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->o.say(g->o.arg, text);
}

void gw_broken(struct gateway *g, const struct err *e)
{
    if (!g->broken.code)
        g->broken = *e;
}

/* ---- open and close ---- */

/* No other life of a program has it: a scheduler that still knows the last one must not take this for the same. */
static int make_name(struct err *e, struct gateway *g, uint64_t *random)
{
    char host[25];
    size_t n = 0;
    if (getrandom(random, sizeof *random, 0) != sizeof *random)
        return err_sys(e, "a random name");
    for (const char *p = proc_host(); *p && n + 1 < sizeof host; p++)
        host[n++] = *p > ' ' && *p < 127 ? *p : '_';
    host[n] = 0;
    snprintf(g->name, sizeof g->name, "%s-%ld-%016" PRIx64, host, (long)getpid(), *random);
    return 0;
}

/* A socket beside the scheduler's. Workers have another working directory, so its path is absolute. */
static int ipc_url(struct err *e, char **out, const char *sched, uint64_t random)
{
    char dir[PATH_MAX], full[PATH_MAX];
    const char *path = sched + strlen("ipc://"), *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + (slash == path) : 0;
    if (n >= (int)sizeof dir)
        return err_set(e, ERR_USAGE, "%.100s: the path is too long", sched);
    snprintf(dir, sizeof dir, "%.*s", n ? n : 1, n ? path : ".");
    if (!realpath(dir, full))
        return err_sys(e, "%s", dir);
    size_t size = strlen(full) + 80;
    *out = malloc(size);
    if (!*out)
        return err_nomem(e, "an address", size);
    snprintf(*out, size, "ipc://%s/gw-%ld-%08" PRIx32 ".sock", strcmp(full, "/") ? full : "", (long)getpid(),
             (uint32_t)random);
    return 0;
}

static int listen_for_workers(struct err *e, struct gateway *g, uint64_t random)
{
    char *own = NULL;
    const char *url = g->o.listen;
    if (!url && !strncmp(g->sched_url, "ipc://", 6)) {
        if (ipc_url(e, &own, g->sched_url, random))
            return e->code;
        url = own;
    }
    int rc = link_listen(e, &g->workers, g->box, url ? url : "tcp://127.0.0.1:0", &g->for_workers);
    free(own);
    if (!rc)
        g->reply = link_listener_url(g->workers);
    return rc;
}

static int start(struct err *e, struct gateway *g)
{
    uint64_t random;
    g->sched_url = strdup(g->o.sched);
    g->tokenize_url = strdup(g->o.tokenize);
    g->arena = wire_arena_new();
    g->body_arena = wire_arena_new();
    if (!g->sched_url || !g->tokenize_url || !g->arena || !g->body_arena)
        return err_nomem(e, "a gateway", 0);
    int rc = make_name(e, g, &random);
    rc = rc ? rc : link_box_new(e, &g->box);
    rc = rc ? rc : listen_for_workers(e, g, random);
    rc = rc ? rc : link_dial(e, &g->sched, g->box, g->sched_url, &g->for_sched);
    return rc ? rc : link_dial(e, &g->tokenize, g->box, g->tokenize_url, &g->for_tokenize);
}

int gateway_open(struct err *e, struct gateway **out, const struct gateway_opts *o)
{
    struct gateway *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, "a gateway", sizeof *g);
    g->o = *o;
    g->timer_ns = UINT64_MAX;
    g->for_sched = FOR_SCHED;
    g->for_tokenize = FOR_TOKENIZE;
    g->for_workers = FOR_WORKERS;
    g->for_poll = FOR_POLL;
    g->for_tell = FOR_TELL;
    g->sched_down_ns = g->tokenize_down_ns = proc_now_ns();
    int rc = start(e, g);
    if (rc) {
        gateway_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

static void unheard(void *arg, const struct wire_frame *f)
{
    (void)arg;
    (void)f;
}

/* What has ended is still said, or it would count as given up. The scheduler cancels what runs when it sees the
 * connection end. */
void gateway_close(struct gateway *g)
{
    if (!g)
        return;
    uint64_t end = proc_now_ns() + CLOSE_NS;
    struct err e = {0};
    g->o.frame = unheard; /* whoever closes it wants to hear no more */
    g->o.taken = NULL;
    g->o.read = NULL;
    g->o.full = NULL;
    while (g->box && g->sched && !g->sched_down_ns && (g->telling || g->n_last_word) && proc_now_ns() < end &&
           !gateway_step(&e, g, 10))
        ;
    link_dialer_free(g->sched);
    link_dialer_free(g->tokenize);
    link_listener_free(g->workers);
    link_box_free(g->box);
    gw_free_all(g);
    wire_arena_free(g->arena);
    wire_arena_free(g->body_arena);
    link_msg_free(&g->msg);
    free(g->last_word);
    free(g->sched_url);
    free(g->tokenize_url);
    free(g);
}

/* ---- the step ---- */

int gateway_ask(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n)
{
    if (gw_request_find(g, seq))
        return err_set(e, ERR_USAGE, "request %" PRIu64 " runs already", seq);
    return gw_request_new(e, g, seq, id, line, n);
}

void gateway_cancel(struct gateway *g, uint64_t seq)
{
    struct gw_request *r = gw_request_find(g, seq);
    if (!r)
        return;
    r->cancelled = true;
    g->to_cancel = true;
}

uint64_t gateway_running(const struct gateway *g)
{
    return g->n_running;
}

const char *gateway_absent(const struct gateway *g, uint64_t *since_ns)
{
    *since_ns = g->sched_down_ns ? g->sched_down_ns : g->tokenize_down_ns;
    return g->sched_down_ns ? g->sched_url : g->tokenize_down_ns ? g->tokenize_url : NULL;
}

int gateway_fd(const struct gateway *g)
{
    return link_box_fd(g->box);
}

uint64_t gateway_next_ms(const struct gateway *g)
{
    uint64_t now = proc_now_ns(), poll = gw_tell_next_ns(g), at = poll < g->timer_ns ? poll : g->timer_ns;
    if (g->to_ask || g->to_cancel || g->broken.code || at <= now)
        return 0;
    return at == UINT64_MAX ? UINT64_MAX : (at - now) / 1000000 + 1;
}

/* The end frame of an answer that the scheduler counts as done has not come. */
static void late_end(struct gateway *g, struct gw_choice *c)
{
    struct err e;
    if (c->done == WIRE_LENGTH && c->n_out >= c->max_tokens) { /* its worker died between the last token and the end */
        gw_choice_end_here(g, c, WIRE_LENGTH);
        return;
    }
    err_set(&e, ERR_SYS, "its worker has not sent the end of the answer");
    gw_choice_fail(g, c, &e);
}

static void choice_timers(struct gateway *g, struct gw_choice *c, uint64_t now)
{
    if (c->done_ns && c->done_ns + END_NS <= now) {
        late_end(g, c);
        return;
    }
    if (c->done_ns)
        gw_timer(g, c->done_ns + END_NS);
    else if (c->told == TOLD_NOT)
        gw_tell_add(g, c);
    else if (c->n_out > c->n_told && c->told_ns + REPORT_NS <= now)
        gw_tell_add(g, c);
    else if (c->n_out > c->n_told)
        gw_timer(g, c->told_ns + REPORT_NS);
}

static void timers(struct gateway *g, uint64_t now)
{
    struct gw_request *next;
    if (g->timer_ns > now)
        return;
    g->timer_ns = UINT64_MAX;
    for (struct gw_request *r = g->first; r; r = next) {
        struct gw_choice *c_next;
        struct err e;
        next = r->next;
        if (r->over)
            continue;
        if (r->deadline_ns && r->deadline_ns <= now) {
            err_set(&e, ERR_NO, "the deadline of %.3g s has passed", (double)g->o.deadline_ns / 1e9);
            gw_request_fail(g, r, &e);
            continue;
        }
        if (r->deadline_ns)
            gw_timer(g, r->deadline_ns);
        g->to_ask = g->to_ask || !r->choices;
        for (struct gw_choice *c = r->choices; c; c = c_next) {
            c_next = c->next;
            choice_timers(g, c, now);
        }
    }
}

static void cancels(struct gateway *g)
{
    struct gw_request *next;
    g->to_cancel = false;
    for (struct gw_request *r = g->first; r; r = next) {
        next = r->next;
        if (r->cancelled && !r->over)
            gw_request_cancel(g, r);
    }
}

/* What the callback asks and cancels meanwhile is done here too. */
static void flush(struct gateway *g)
{
    do {
        uint64_t now = proc_now_ns();
        timers(g, now);
        if (g->to_cancel)
            cancels(g);
        if (g->to_ask)
            gw_line_ask(g, now);
        gw_tell_send(g, now);
    } while (!g->broken.code && g->to_cancel);
}

static void event(struct gateway *g, const struct link_event *v)
{
    uint64_t now = proc_now_ns();
    switch (*(const enum gw_for *)v->arg) {
    case FOR_SCHED:
    case FOR_POLL:
    case FOR_TELL:
        gw_tell_event(g, v, now);
        break;
    case FOR_TOKENIZE:
        g->tokenize_down_ns = v->what == LINK_UP ? 0 : now;
        break;
    case FOR_WORKERS:
        gw_out_event(g, v, now);
        break;
    case FOR_LINE:
        gw_line_event(g, v->arg, v);
        break;
    }
}

int gateway_step(struct err *e, struct gateway *g, int timeout_ms)
{
    struct link_event v;
    flush(g);
    uint64_t wait = gateway_next_ms(g);
    if (timeout_ms >= 0 && (uint64_t)timeout_ms < wait)
        wait = (uint64_t)timeout_ms;
    if (wait)
        link_box_wait(g->box, wait > INT_MAX ? -1 : (int)wait);
    while (!g->broken.code && link_box_take(g->box, &v))
        event(g, &v);
    flush(g);
    if (g->broken.code) {
        *e = g->broken;
        return e->code;
    }
    return 0;
}
