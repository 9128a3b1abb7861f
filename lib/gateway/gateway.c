/* Opens and closes a gateway; its timers and its step. */
#include "gateway/gateway.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/socket.h"
#include "gateway/gateway_impl.h"
#include "proc/proc.h"

#define TURN_NS (10 * NS_MS)   /* of events in one step, so that the caller's other clients have their turn */
#define CLOSE_NS (300 * NS_MS) /* limit to send the last reports and receive their acknowledgements */

void gw_timer(struct gateway *g, uint64_t at_ns)
{
    if (at_ns < g->timer_ns)
        g->timer_ns = at_ns;
}

void gw_log(struct gateway *g, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!g->o.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    g->o.log(g->o.arg, text);
}

/* For lines that peers can cause: at a limited rate. */
static void log_peer(struct gateway *g, const char *text)
{
    log_limit(&g->peer_log, time_now_ns(), text, g->o.log, g->o.arg);
}

bool gw_frame(struct gateway *g, struct wire_frame *f, const struct session_event *ev)
{
    struct err e;
    char text[700];
    wire_arena_reset(g->arena);
    if (!session_frame(&e, f, g->arena, ev))
        return true;
    snprintf(text, sizeof text, "%.100s: %.500s", session_url(ev->s), e.text);
    log_peer(g, text);
    return false;
}

void gw_unexpected(struct gateway *g, const struct wire_frame *f, const struct session_event *ev)
{
    char text[300];
    snprintf(text, sizeof text, "%.100s: a frame of kind %s, which a %s must not send to a gateway", session_url(ev->s),
             wire_kind_name(f->kind), session_peer_role(ev->s));
    log_peer(g, text);
}

void gw_fail(struct gateway *g, const struct err *e)
{
    if (!g->failure.code)
        g->failure = *e;
}

/* ---- open and close ---- */

/* A unique name, so that the scheduler does not confuse this gateway with an earlier one. */
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

/* Places the socket of this gateway in the directory of the scheduler's socket. The path is absolute, since workers
 * have other working directories. */
static int ipc_url(struct err *e, char **out, const char *sched, uint64_t random)
{
    char dir[PATH_MAX], full[PATH_MAX];
    const char *path = sched + strlen("ipc://"), *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + (slash == path) : 0;
    if (n >= (int)sizeof dir)
        return err_set(e, ERR_USAGE, "%.100s: the path exceeds %d bytes", sched, PATH_MAX - 1);
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

/* Removes the sockets of gateways that were killed: nobody listens, and their process does not exist. */
static void remove_stale(const char *url)
{
    char path[PATH_MAX];
    const char *file = url + strlen("ipc://"), *slash = strrchr(file, '/');
    snprintf(path, sizeof path, "%.*s", (int)(slash - file) + (slash == file), file);
    DIR *d = opendir(path);
    size_t n = strlen(path);
    for (const struct dirent *i; d && (i = readdir(d));) {
        struct stat st;
        long pid = 0;
        unsigned random;
        int len = 0;
        if (sscanf(i->d_name, "gw-%ld-%8x.sock%n", &pid, &random, &len) != 2 || !len || i->d_name[len] || pid <= 0)
            continue;
        snprintf(path + n, sizeof path - n, "/%s", i->d_name);
        if (!lstat(path, &st) && S_ISSOCK(st.st_mode) && kill((pid_t)pid, 0) && errno == ESRCH &&
            !socket_is_listening(path))
            unlink(path);
    }
    if (d)
        closedir(d);
}

static int listen_for_workers(struct err *e, struct gateway *g, uint64_t random)
{
    char *own = NULL;
    const char *url = g->o.listen;
    if (url && session_url_is_any(url))
        return err_set(e, ERR_USAGE, "%s: workers connect to this address: name one of this host", url);
    if (!url && !session_url_is_local(g->o.sched))
        return err_set(e, ERR_USAGE,
                       "the scheduler is at %s: give an address of this host, to which its workers can connect "
                       "(--listen URL)",
                       g->o.sched);
    if (!url && !strncmp(g->o.sched, "ipc://", 6)) {
        if (ipc_url(e, &own, g->o.sched, random))
            return e->code;
        url = own;
        remove_stale(own);
    }
    const char *loopback = session_url_is_tls(g->o.sched) ? "tls+tcp://127.0.0.1:0" : "tcp://127.0.0.1:0";
    int rc = session_listen(e, &g->workers, g->hub, url ? url : loopback, "worker", NULL);
    free(own);
    return rc;
}

static int start(struct err *e, struct gateway *g)
{
    uint64_t random = 0;
    struct session_hub_opts o = {.self = {.role = "gateway", .name = g->name}, .security = g->o.security};
    g->arena = wire_arena_new();
    g->prompt_arena = wire_arena_new();
    if (!g->arena || !g->prompt_arena)
        return err_nomem(e, "a gateway", 0);
    int rc = make_name(e, g, &random);
    o.self.inc = random;
    rc = rc ? rc : session_hub_new(e, &g->hub, &o);
    rc = rc ? rc : listen_for_workers(e, g, random);
    rc = rc ? rc : session_dial(e, &g->sched, g->hub, g->o.sched, "sched", NULL);
    return rc ? rc : session_dial(e, &g->tokenize, g->hub, g->o.tokenize, "tokenize", NULL);
}

int gateway_open(struct err *e, struct gateway **out, const struct gateway_opts *o)
{
    struct gateway *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, "a gateway", sizeof *g);
    g->o = *o;
    g->timer_ns = UINT64_MAX;
    for (size_t i = 0; i < BUCKETS; i++) {
        list_init(&g->by_seq[i]);
        list_init(&g->by_job[i]);
    }
    for (int state = 0; state < GW_STATES; state++)
        list_init(&g->requests[state]);
    list_init(&g->to_send);
    g->sched_down_ns = g->tokenize_down_ns = time_now_ns();
    int rc = start(e, g);
    if (rc) {
        gateway_close(g);
        return rc;
    }
    *out = g;
    return 0;
}

static void ignore(void *arg, const struct wire_frame *f)
{
    (void)arg;
    (void)f;
}

/* Sends the reports of ends first; without them the scheduler would count those requests as cancelled. It cancels the
 * unfinished ones when the session ends. */
void gateway_close(struct gateway *g)
{
    if (!g)
        return;
    uint64_t end = time_now_ns() + CLOSE_NS;
    struct err e = {0};
    g->o = (struct gateway_opts){.frame = ignore};
    while (g->sched && !g->sched_down_ns && (!list_empty(&g->to_send) || session_unacked_bytes(g->sched)) &&
           time_now_ns() < end && !gateway_step(&e, g, 10))
        ;
    gw_free_all(g);
    session_free(g->sched);
    session_free(g->tokenize);
    session_listener_free(g->workers);
    session_hub_free(g->hub);
    wire_arena_free(g->arena);
    wire_arena_free(g->prompt_arena);
    free(g->weight);
    free(g);
}

/* ---- the step ---- */

int gateway_submit_for(struct err *e, struct gateway *g, const char *tenant, uint64_t seq, struct wire_str id,
                       const char *line, size_t n)
{
    if (gw_request_find(g, seq))
        return err_set(e, ERR_USAGE, "request %" PRIu64 " is already running", seq);
    return gw_request_new(e, g, tenant, seq, id, line, n);
}

int gateway_submit(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n)
{
    return gateway_submit_for(e, g, "", seq, id, line, n);
}

void gateway_cancel(struct gateway *g, uint64_t seq)
{
    struct gw_request *r = gw_request_find(g, seq);
    if (!r)
        return;
    r->cancelled = true;
    gw_timer(g, 0);
}

uint64_t gateway_running(const struct gateway *g)
{
    return g->n_running;
}

uint64_t gateway_bytes(const struct gateway *g)
{
    return g->bytes;
}

const char *gateway_absent(const struct gateway *g, uint64_t *since_ns)
{
    *since_ns = g->sched_down_ns ? g->sched_down_ns : g->tokenize_down_ns;
    return g->sched_down_ns ? session_url(g->sched) : g->tokenize_down_ns ? session_url(g->tokenize) : NULL;
}

int gateway_fd(const struct gateway *g)
{
    return session_hub_fd(g->hub);
}

uint64_t gateway_next_ms(const struct gateway *g)
{
    if (g->failure.code || g->more || gw_line_ready(g))
        return 0;
    int own = time_left_ms(g->timer_ns, time_now_ns()), hub = session_hub_timeout_ms(g->hub);
    int least = own < 0 || (hub >= 0 && hub < own) ? hub : own;
    return least < 0 ? UINT64_MAX : (uint64_t)least;
}

void gw_deadline_passed(struct err *e, const struct gateway *g)
{
    err_set(e, ERR_NO, "the deadline of %.3g s has passed", (double)g->o.deadline_ns / 1e9);
}

static void choice_timers(struct gateway *g, struct gw_choice *c, uint64_t now)
{
    struct err e;
    if (!c->done_ns) {
        if (!c->submitted || c->n_out > c->n_reported)
            gw_send_add(g, c);
    } else if (c->done_ns + END_NS > now) {
        gw_timer(g, c->done_ns + END_NS);
    } else if (c->done == WIRE_LENGTH && c->n_out >= c->max_tokens) { /* the worker died before it sent the end */
        gw_choice_end(g, c, WIRE_LENGTH, NULL);
    } else {
        err_set(&e, ERR_SYS, "the worker did not send the end of the answer");
        gw_choice_end(g, c, 0, &e);
    }
}

static void request_timers(struct gateway *g, struct gw_request *r, uint64_t now)
{
    struct err e;
    bool over = r->deadline_ns && r->deadline_ns <= now;
    if (r->too_long)
        err_set(&e, ERR_NO, "the request has more than %u bytes, the limit of a service", GATEWAY_LINE_BYTES_MAX);
    else if (over)
        gw_deadline_passed(&e, g);
    if (r->cancelled || r->too_long || over) {
        gw_request_end(g, r, r->cancelled ? NULL : &e);
        return;
    }
    if (r->deadline_ns)
        gw_timer(g, r->deadline_ns);
    struct list *next = r->choices.next;
    for (uint32_t n = r->state == GW_PARSED ? r->n_choice : 0; n; n--) { /* the last one to end frees r */
        struct gw_choice *c = list_entry(next, struct gw_choice, node);
        next = next->next;
        choice_timers(g, c, now);
    }
}

static void run_timers(struct gateway *g, uint64_t now)
{
    if (g->timer_ns > now)
        return;
    g->timer_ns = UINT64_MAX;
    gw_suspects_timer(g, now);
    for (int state = 0; state < GW_STATES; state++)
        list_each_safe (struct gw_request, r, &g->requests[state], node)
            request_timers(g, r, now);
}

/* Repeats while callbacks submit or cancel requests. */
static void flush(struct gateway *g)
{
    do {
        uint64_t now = time_now_ns();
        run_timers(g, now);
        gw_line_send(g);
        gw_send_all(g, now);
    } while (!g->failure.code && !g->timer_ns);
}

/* Of the dialed sessions: records since when they are down, and logs once that the peer refuses them. */
static void track_connection(struct gateway *g, uint64_t *down_ns, const struct session_event *ev, uint64_t now)
{
    if (ev->type == SESSION_UP) {
        *down_ns = 0;
        g->refusal_logged = false;
    } else if (ev->type == SESSION_DOWN) {
        *down_ns = now;
    } else if (ev->type == SESSION_REFUSED && !g->refusal_logged) {
        g->refusal_logged = true;
        gw_log(g, "%s", ev->err.text);
    }
}

static void event(struct gateway *g, const struct session_event *ev)
{
    uint64_t now = time_now_ns();
    if (ev->s == g->sched) {
        track_connection(g, &g->sched_down_ns, ev, now);
        gw_sched_event(g, ev, now);
    } else if (ev->s == g->tokenize) {
        track_connection(g, &g->tokenize_down_ns, ev, now);
        gw_line_event(g, ev);
    } else {
        gw_out_event(g, ev, now);
    }
}

int gateway_step(struct err *e, struct gateway *g, int timeout_ms)
{
    struct session_event ev;
    flush(g);
    uint64_t wait = gateway_next_ms(g);
    if (timeout_ms >= 0 && (uint64_t)timeout_ms < wait)
        wait = (uint64_t)timeout_ms;
    if (wait)
        session_hub_wait(g->hub, wait > INT_MAX ? -1 : (int)wait);
    uint64_t end = time_now_ns() + TURN_NS;
    g->more = false;
    while (!g->failure.code && !g->more && session_hub_next(g->hub, &ev)) {
        event(g, &ev);
        g->more = time_now_ns() >= end;
    }
    flush(g);
    if (g->failure.code) {
        *e = g->failure;
        return e->code;
    }
    return 0;
}
