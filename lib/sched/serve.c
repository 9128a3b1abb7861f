#include "sched/serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "link/notify.h"
#include "proc/proc.h"
#include "sched/serve_impl.h"

#define NS_S 1000000000ull
#define WAIT_NS_MAX (250 * NS_MS) /* looks at signals */
#define STOPPED_NS (500 * NS_MS)  /* later than meant by this much: the process was stopped */
#define ENDING_NS (60 * NS_S)     /* after SIGTERM answers may take this long */
#define BATCH_MAX 4096            /* messages of an instant */
#define KEEP_NS (5 * NS_S) /* between words to the stores on what waits for decode; well under their --handed-ms */
#define SAY_NS (NS_S / 5)  /* of what peers do wrong, a line this often */

/* ---- the clock ---- */

uint64_t serve_now(struct serve *v)
{
    uint64_t now = proc_now_ns(), took = now - v->last_ns;
    if (v->last_ns && took > v->allowed_ns + STOPPED_NS)
        v->skew_ns += took - v->allowed_ns;
    v->last_ns = now;
    v->allowed_ns = 0;
    return now - v->skew_ns;
}

void serve_broken(struct serve *v, const struct err *e)
{
    if (!v->broken)
        v->why = *e;
    v->broken = true;
}

void serve_say(struct serve *v, const char *text)
{
    if (v->o->say)
        v->o->say(v->o->say_arg, text);
}

/* What peers do wrong must not fill a disk. */
static void say_some(struct serve *v, const char *text)
{
    char line[700];
    uint64_t now = proc_now_ns();
    if (v->said_ns && now - v->said_ns < SAY_NS) {
        v->n_unsaid++;
        return;
    }
    v->said_ns = now;
    if (v->n_unsaid)
        snprintf(line, sizeof line, "%.600s (and %llu more)", text, (unsigned long long)v->n_unsaid);
    else
        snprintf(line, sizeof line, "%.600s", text);
    v->n_unsaid = 0;
    serve_say(v, line);
}

/* ---- messages ---- */

static void refuse(struct serve *v, struct wire_str to, uint64_t job, bool never, const char *text)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_REFUSE};
    f.refuse = (struct wire_refuse){.to = to, .job = job, .never = never, .text = wire_str_of(text)};
    if (link_msg_add(&e, &v->direct, &f))
        serve_broken(v, &e);
}

/* What came with it is not believed, but its answer says why. */
static void wrong(struct serve *v, struct wire_str who, const struct err *e)
{
    if (e->code == ERR_SYS) {
        serve_broken(v, e);
        return;
    }
    char line[700];
    snprintf(line, sizeof line, "%.*s: %.600s", who.n ? (int)who.n : 4, who.n ? who.p : "peer", e->text);
    say_some(v, line);
    refuse(v, who.n ? who : wire_str_of("peer"), 0, false, e->text);
}

static struct wire_str who_of(const struct wire_frame *f, bool *gateway)
{
    *gateway = false;
    switch ((int)f->kind) {
    case WIRE_JOIN:
        return f->join.worker;
    case WIRE_POLL:
        *gateway = !f->poll.worker.n;
        return *gateway ? f->poll.gw : f->poll.worker;
    case WIRE_REPORT:
        *gateway = !f->report.worker.n;
        return *gateway ? f->report.gw : f->report.worker;
    case WIRE_SUBMIT:
        *gateway = true;
        return f->submit.gw;
    case WIRE_CANCEL:
        *gateway = true;
        return f->cancel.gw;
    default:
        return (struct wire_str){0};
    }
}

/* A name belongs to the connection it was last heard on; its older one, if there is one still, has lost it. */
static int heard(struct err *e, struct speaker **out, struct serve *v, const struct wire_frame *f, uint32_t conn)
{
    bool gateway;
    struct wire_str name = who_of(f, &gateway);
    *out = NULL;
    if (!name.n)
        return 0;
    int rc = speaker_get(e, out, v, name, gateway);
    if (rc)
        return rc;
    struct speaker *p = *out;
    if (p->conn != conn) {
        if (p->poll)
            link_answer(p->poll, NULL);
        if (p->control)
            link_answer(p->control, NULL);
        p->poll = p->control = NULL;
        link_msg_clear(&p->to_control);
        p->conn = conn;
    }
    if (f->kind == WIRE_JOIN)
        p->inc = f->join.inc;
    return 0;
}

static void put_worker(struct serve *v, const struct worker *w)
{
    static const char *const roles[] = {"", "prefill", "decode", "both"};
    struct err e;
    struct wire_frame f = {.kind = WIRE_WORKER};
    f.worker = (struct wire_worker){
        .at_ns = v->s->now_ns,
        .name = wire_str_of(w->name),
        .role = wire_str_of(roles[w->pub.role]),
        .store = wire_str_of(w->pub.store >= 0 ? v->s->store[w->pub.store].name : ""),
        .alive = w->pub.alive,
        .draining = w->pub.draining,
        .seqs = w->pub.seqs,
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
        .inc = w->inc,
        .compat = wire_str_of(v->s->compat ? v->s->compat : ""),
        .steps = w->steps,
        .n_steps = w->n_steps,
        .step_tokens = w->step_tokens,
    };
    if (link_msg_add(&e, &v->direct, &f))
        serve_broken(v, &e);
}

/* While it ends, what is new is refused for good, so that nobody waits for a scheduler that does not come. */
static bool taken_at_the_end(struct serve *v, const struct wire_frame *f)
{
    if (!v->ending || f->kind != WIRE_SUBMIT)
        return false;
    struct gateway *g = gateway_find(v->s, f->submit.gw);
    if (g && job_find(v->s, g, f->submit.job))
        return false;
    struct wire_frame r = {.kind = WIRE_REFUSE};
    r.refuse = (struct wire_refuse){
        .to = f->submit.gw, .job = f->submit.job, .never = true, .text = wire_str_of("the scheduler is ending")};
    speaker_tell(v, &r);
    return true;
}

struct parked { /* polls of the message that is being read */
    struct speaker *poll, *control;
};

static void frame(struct serve *v, struct wire_frame *f, uint32_t conn, uint64_t now, struct parked *parked)
{
    struct err e = {0};
    struct speaker *p;
    bool gateway;
    if (f->kind < WIRE_SUBMIT || (f->kind > WIRE_TICK && f->kind != WIRE_STAT) || f->kind == WIRE_GONE ||
        f->kind == WIRE_BLOCKS) { /* those two are for the service itself to say */
        err_set(&e, ERR_PROTO, "a frame %s is nothing that a scheduler is told", wire_kind_name(f->kind));
        wrong(v, (struct wire_str){0}, &e);
        return;
    }
    if (heard(&e, &p, v, f, conn)) {
        serve_broken(v, &e);
        return;
    }
    f->tick.at_ns = now; /* at_ns is the first member of each */
    if (taken_at_the_end(v, f))
        return;
    size_t before = v->direct.n;
    if (sched_event(&e, v->s, f))
        wrong(v, who_of(f, &gateway), &e);
    if (f->kind == WIRE_POLL && p && v->direct.n == before)
        *(f->poll.ctl && !p->gateway ? &parked->control : &parked->poll) = p;
    for (uint32_t i = 0; f->kind == WIRE_STAT && i < v->s->n_worker; i++)
        put_worker(v, v->s->worker[i]);
}

/* A poll is parked, unless its message is to be answered at once. */
static void message(struct serve *v, struct link_event *q)
{
    struct err e = {0};
    struct wire_frame f;
    struct parked parked = {0};
    uint64_t now = serve_now(v);
    link_msg_clear(&v->direct);
    while (wire_arena_reset(v->arena), link_msg_next(&e, &f, v->arena, &q->p, &q->n))
        frame(v, &f, q->peer, now, &parked);
    if (e.code)
        wrong(v, (struct wire_str){0}, &e);
    if (v->direct.n || (!parked.poll && !parked.control))
        link_answer(q->q, &v->direct);
    else if (parked.poll)
        speaker_park(v, parked.poll, q->q, false, now);
    else
        speaker_park(v, parked.control, q->q, true, now);
}

static void take(struct serve *v)
{
    struct link_event x;
    for (int i = 0; i < BATCH_MAX && !v->broken && link_box_take(v->box, &x); i++)
        if (x.what == LINK_QUESTION)
            message(v, &x);
        else if (x.what == LINK_DOWN)
            speakers_gone(v, x.peer);
    for (struct news *n; !v->broken && (n = stores_take(v)); news_free(n)) {
        struct err e;
        struct wire_frame f = {.kind = WIRE_BLOCKS, .blocks = n->blocks};
        f.blocks.at_ns = serve_now(v);
        if (sched_event(&e, v->s, &f) == ERR_SYS)
            serve_broken(v, &e);
    }
}

/* ---- the loop ---- */

static void tick(struct serve *v)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_TICK};
    f.tick.at_ns = serve_now(v);
    if (sched_event(&e, v->s, &f))
        serve_broken(v, &e);
}

static void decide(struct serve *v)
{
    struct err e = {0};
    int rc = sched_decide(&e, v->s);
    if (rc == ERR_SYS)
        serve_broken(v, &e);
    else if (rc)
        say_some(v, e.text);
}

/* What waits and has not begun is told that it will not; what runs may end. */
static void end_waiting(struct serve *v)
{
    for (struct job *j; (j = v->s->queued.first[0]);)
        job_end(v->s, j, END_ERROR, ERR_SYS, "the scheduler is ending");
    for (struct job *j; (j = v->s->held_first);) {
        job_hold(v->s, j, false);
        job_end(v->s, j, END_ERROR, ERR_SYS, "the scheduler is ending");
    }
    bool decodes = false;
    for (uint32_t i = 0; i < v->s->n_worker; i++)
        decodes |= v->s->worker[i]->pub.alive && !v->s->worker[i]->pub.draining;
    for (struct job *j; !decodes && (j = v->s->ready.first[0]);)
        job_end(v->s, j, END_ERROR, ERR_SYS, "the scheduler is ending");
}

static bool over(struct serve *v)
{
    if (proc_term_count() > 1)
        return true;
    if (proc_term_count() && !v->ending) {
        v->ending = true;
        v->end_ns = proc_now_ns() + ENDING_NS;
    }
    if (!v->ending)
        return false;
    end_waiting(v);
    return proc_now_ns() > v->end_ns || (!v->s->n_running && !v->s->n_waiting && speakers_quiet(v));
}

static void wait(struct serve *v)
{
    uint64_t now = serve_now(v), next = sched_next_ns(v->s);
    speakers_timers(v, now, &next);
    uint64_t ns = next > now ? next - now : 0;
    ns = ns < WAIT_NS_MAX ? ns : WAIT_NS_MAX;
    if (v->ending && ns > 20 * NS_MS)
        ns = 20 * NS_MS;
    link_box_wait(v->box, (int)((ns + NS_MS - 1) / NS_MS));
    v->allowed_ns = ns;
}

static int run(struct err *e, struct serve *v)
{
    for (;;) {
        take(v);
        tick(v);
        if (over(v)) {
            speakers_flush(v);
            break;
        }
        decide(v);
        speakers_flush(v);
        if (proc_now_ns() > v->keep_ns) {
            v->keep_ns = proc_now_ns() + KEEP_NS;
            stores_keep(v);
        }
        if (v->broken) {
            *e = v->why;
            return e->code;
        }
        wait(v);
    }
    return 0;
}

int sched_serve(struct err *e, struct sched *s, const struct sched_serve_opts *o)
{
    struct serve v = {.s = s, .o = o};
    struct sched_sink sink = {speaker_tell, &v};
    pthread_mutex_init(&v.lock, NULL);
    pthread_cond_init(&v.room, NULL);
    sched_set_sink(s, &sink);
    handle_tell(s, stores_let_go, &v);
    v.arena = wire_arena_new();
    int rc = v.arena ? 0 : err_nomem(e, "messages", 65536);
    rc = rc ? rc : link_box_new(e, &v.box);
    rc = rc ? rc : link_listen(e, &v.listener, v.box, o->url, NULL);
    rc = rc ? rc : stores_open(e, &v);
    rc = rc ? rc : link_ready(e, NULL, o->ready_fd);
    rc = rc ? rc : run(e, &v);
    stores_close(&v);
    sched_set_sink(s, &(struct sched_sink){0});
    handle_tell(s, NULL, NULL);
    speakers_free(&v);
    link_listener_free(v.listener);
    link_box_free(v.box);
    link_msg_free(&v.direct);
    wire_arena_free(v.arena);
    pthread_mutex_destroy(&v.lock);
    pthread_cond_destroy(&v.room);
    return rc;
}
