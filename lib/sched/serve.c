#include "sched/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "proc/notify.h"
#include "proc/proc.h"
#include "sched/serve_impl.h"

#define WAIT_NS_MAX (250 * NS_MS) /* interval of signal checks */
#define STOPPED_NS (500 * NS_MS)  /* a wait that takes this much longer than intended: the process was stopped */
#define GOODBYE_NS (100 * NS_MS)  /* limit to send the last frames when the service ends */
#define BATCH_MAX 4096            /* events before the next decision */
#define SHUTTING_DOWN "the scheduler is shutting down"

/* ---- the clock ---- */

static uint64_t serve_now(struct serve *v)
{
    uint64_t now = time_now_ns(), took = now - v->last_ns;
    if (v->last_ns && took > v->allowed_ns + STOPPED_NS)
        v->skew_ns += took - v->allowed_ns;
    v->last_ns = now;
    v->allowed_ns = 0;
    return now - v->skew_ns;
}

void serve_broken(struct serve *v, const struct err *e)
{
    if (!v->broken)
        v->failure = *e;
    v->broken = true;
}

void serve_log(struct serve *v, const char *text)
{
    if (v->o->log)
        v->o->log(v->o->log_arg, text);
}

void serve_log_limited(struct serve *v, const char *text)
{
    log_limit(&v->peer_log, time_now_ns(), text, v->o->log, v->o->log_arg);
}

/* ---- frames ---- */

void serve_event(struct serve *v, struct wire_frame *f)
{
    struct err e;
    f->tick.at_ns = serve_now(v); /* the first member of each event */
    if (sched_event(&e, v->s, f) == ERR_SYS)
        serve_broken(v, &e);
}

/* Sends the reason to the sender of an invalid frame. */
static void refuse_frame(struct serve *v, const struct err *e)
{
    if (e->code == ERR_SYS) {
        serve_broken(v, e);
        return;
    }
    char line[700];
    const char *name = session_peer_name(v->sender->s);
    struct wire_frame f = {.kind = WIRE_REFUSE, .refuse = {.to = wire_str_of(name), .text = wire_str_of(e->text)}};
    snprintf(line, sizeof line, "%s %s: %.600s", session_peer_role(v->sender->s), name, e->text);
    serve_log_limited(v, line);
    peer_send(v, v->sender, &f);
}

static void send_worker(struct serve *v, const struct worker *w)
{
    struct wire_frame f = {.kind = WIRE_WORKER};
    f.worker = (struct wire_worker){
        .at_ns = v->s->now_ns,
        .name = wire_str_of(w->name),
        .role = wire_str_of(sched_role_names[w->pub.role]),
        .store = wire_str_of(w->pub.store >= 0 ? v->s->store[w->pub.store].name : ""),
        .draining = w->pub.draining,
        .seqs = w->seqs,
        .seqs_all = w->pub.seqs_all,
        .tokens = w->pub.tokens,
        .blocks = w->pub.blocks,
        .blocks_all = w->pub.blocks_all,
        .n_prefill = w->pub.n_prefill,
        .n_decode = w->pub.n_decode,
        .n_whole = w->pub.n_whole,
        .context = w->last_context,
        .step_ns = w->last_step_ns,
        .batch = w->last_batch,
        .inc = w->incarnation,
        .compat = wire_str_of(v->s->kv_identity ? v->s->kv_identity : ""),
        .steps = w->steps,
        .n_steps = w->n_steps,
        .step_tokens = w->step_tokens,
        .bytes = w->bytes,
        .bytes_max = v->s->worker_bytes,
        .out_bytes = w->out_bytes,
        .out_bytes_max = w->out_bytes_max,
    };
    peer_send(v, v->sender, &f);
}

/* While it drains, new requests are refused: gateways answer 503, and do not submit them again. */
static bool refused_for_shutdown(struct serve *v, const struct wire_frame *f)
{
    if (!v->ending || f->kind != WIRE_SUBMIT)
        return false;
    struct gateway *g = gateway_find(v->s, f->submit.gw);
    if (g && req_find(v->s, g, f->submit.job))
        return false;
    struct wire_frame refusal = {.kind = WIRE_REFUSE};
    refusal.refuse = (struct wire_refuse){.to = f->submit.gw,
                                          .job = f->submit.job,
                                          .ending = true,
                                          .retry_ns = v->s->retry_ns,
                                          .text = wire_str_of(SHUTTING_DOWN)};
    peer_send(v, v->sender, &refusal);
    return true;
}

static void frame(struct serve *v, struct peer *p, const struct session_event *x)
{
    struct err e = {0};
    struct wire_frame f;
    v->sender = p;
    wire_arena_reset(v->arena);
    int rc = session_frame(&e, &f, v->arena, x);
    rc = rc ? rc : peer_check(&e, p, &f);
    if (!rc && f.kind == WIRE_KNOB && str_is(f.knob.name, "heartbeat_ms"))
        rc = err_set(&e, ERR_NO, "heartbeat_ms is read only when the service starts: set it with --knob");
    if (!rc && !refused_for_shutdown(v, &f)) {
        f.tick.at_ns = serve_now(v); /* the first member of each event */
        rc = sched_event(&e, v->s, &f);
    }
    if (rc) {
        refuse_frame(v, &e);
    } else if (f.kind == WIRE_KNOB) {
        peer_send(v, p, &f);
    } else if (f.kind == WIRE_STAT) {
        for (uint32_t i = 0; i < v->s->n_worker; i++)
            send_worker(v, v->s->worker[i]);
    } else if (f.kind == WIRE_JOIN) {
        sched_worker_full(v->s, f.join.worker, p->queue != NULL);
    }
    v->sender = NULL;
}

static void process_events(struct serve *v)
{
    struct session_event x;
    for (int i = 0; i < BATCH_MAX && !v->broken && session_hub_next(v->hub, &x); i++) {
        struct store_watch *w = store_of(v, x.s);
        struct peer *p = w ? NULL : session_arg(x.s);
        if (w)
            store_session(v, w, &x);
        else if (x.type == SESSION_UP)
            peer_up(v, x.s);
        else if (!p) /* peer_up has closed it */
            continue;
        else if (x.type == SESSION_FRAME)
            frame(v, p, &x);
        else if (x.type == SESSION_ACKED)
            peer_acked(v, p);
        else if (x.type == SESSION_DOWN)
            peer_down(v, p, &x.err);
    }
}

/* ---- the loop ---- */

static void decide(struct serve *v)
{
    struct err e = {0};
    int rc = sched_decide(&e, v->s);
    if (rc == ERR_SYS)
        serve_broken(v, &e);
    else if (rc)
        serve_log_limited(v, e.text);
}

/* While it drains, waiting requests are refused, except for prefilled ones while a worker can decode them. */
static void end_waiting(struct serve *v)
{
    for (struct request *r; (r = v->s->queued.first[0]);)
        req_refuse(v->s, r, REFUSE_ENDING, v->s->retry_ns, SHUTTING_DOWN);
    for (struct request *r; (r = grace_first(v->s));)
        req_refuse(v->s, r, REFUSE_ENDING, v->s->retry_ns, SHUTTING_DOWN);
    bool any_worker = false;
    for (uint32_t i = 0; i < v->s->n_worker; i++)
        any_worker |= !v->s->worker[i]->pub.draining;
    for (struct request *r; !any_worker && (r = v->s->ready.first[0]);)
        req_refuse(v->s, r, REFUSE_ENDING, v->s->retry_ns, SHUTTING_DOWN);
}

static bool finished(struct serve *v)
{
    if (proc_term_count() > 1 || (proc_term_count() && !v->o->drain_ns))
        return true;
    if (proc_term_count() && !v->ending) {
        v->ending = true;
        v->end_ns = time_now_ns() + v->o->drain_ns;
    }
    if (!v->ending)
        return false;
    end_waiting(v);
    return time_now_ns() > v->end_ns || (!v->s->n_running && !v->s->n_waiting && peers_quiet(v));
}

static void wait_for_events(struct serve *v)
{
    uint64_t now = serve_now(v), next = sched_next_ns(v->s);
    uint64_t ns = next > now ? next - now : 0;
    ns = ns < WAIT_NS_MAX ? ns : WAIT_NS_MAX;
    if (v->ending && ns > 20 * NS_MS)
        ns = 20 * NS_MS;
    session_hub_wait(v->hub, (int)((ns + NS_MS - 1) / NS_MS));
    v->allowed_ns = ns;
}

static int run(struct err *e, struct serve *v)
{
    for (;;) {
        struct wire_frame tick = {.kind = WIRE_TICK};
        process_events(v);
        serve_event(v, &tick);
        if (finished(v))
            return 0;
        decide(v);
        if (v->broken) {
            *e = v->failure;
            return e->code;
        }
        proc_alive();
        proc_trim();
        wait_for_events(v);
    }
}

/* Ends all sessions with a reason, so that peers see a planned end and no crash. Frames that were not taken stay
 * unacknowledged: peers send them to the successor. */
static void goodbye(struct serve *v)
{
    struct session_event x;
    uint64_t end = time_now_ns() + GOODBYE_NS;
    session_listener_free(v->listener);
    v->listener = NULL;
    peers_close(v);
    while (!list_empty(&v->all) && time_now_ns() < end) {
        while (session_hub_next(v->hub, &x))
            if (x.type == SESSION_DOWN && !store_of(v, x.s) && session_arg(x.s))
                peer_free(v, session_arg(x.s));
        session_hub_wait(v->hub, 5);
    }
}

static int ready(struct err *e, const struct serve *v)
{
    char address[WIRE_URL_BYTES_MAX + 64];
    session_listener_line(address, sizeof address, v->listener);
    return proc_ready_at(e, NULL, v->o->ready_fd, address);
}

int sched_serve(struct err *e, struct sched *s, const struct sched_serve_opts *o)
{
    struct serve v = {.s = s, .o = o};
    struct sched_sink sink = {.emit = peers_emit, .arg = &v, .release = stores_release};
    struct session_hub_opts opts = {.self = {.role = "sched", .name = o->prog, .inc = time_now_ns()},
                                    .security = o->security};
    opts.silence_accepted_ms = (uint32_t)(3 * sched_get(s, "heartbeat_ms"));
    list_init(&v.all);
    sched_set_sink(s, &sink);
    v.arena = wire_arena_new();
    int rc = v.arena ? 0 : err_nomem(e, "frames", 65536);
    rc = rc ? rc : session_hub_new(e, &v.hub, &opts);
    rc = rc ? rc : session_listen(e, &v.listener, v.hub, o->url, "worker gateway monitor tool", NULL);
    rc = rc ? rc : stores_open(e, &v);
    rc = rc ? rc : ready(e, &v);
    rc = rc ? rc : run(e, &v);
    sched_set_sink(s, &(struct sched_sink){0});
    if (!rc)
        goodbye(&v);
    stores_close(&v);
    peers_free(&v);
    session_listener_free(v.listener);
    session_hub_free(v.hub);
    wire_arena_free(v.arena);
    return rc;
}
