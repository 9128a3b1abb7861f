/* The sessions of workers, gateways and tools: which frames they may send, and which decisions go to which peer. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sched/serve_impl.h"

static const char *const roles[] = {"worker", "gateway", "tool", "monitor"};

static uint64_t hash_of(struct wire_str name, int role)
{
    return map_mix(wire_sum(name.p, name.n) + (uint64_t)role);
}

static struct peer *peer_find(struct serve *v, struct wire_str name, int role)
{
    size_t at;
    uint64_t hash = hash_of(name, role);
    struct peer *p = map_first(&v->peers, hash, &at);
    while (p && ((int)p->role != role || !str_is(name, session_peer_name(p->s))))
        p = map_next(&v->peers, hash, &at);
    return p;
}

void peer_up(struct serve *v, struct session *s)
{
    struct err e;
    int role = 0;
    struct wire_str name = wire_str_of(session_peer_name(s));
    while (strcmp(roles[role], session_peer_role(s)))
        role++;
    if (!name.n && role <= PEER_GATEWAY) {
        session_close(s, "the name of a worker or gateway must not be empty");
        return;
    }
    struct peer *p = calloc(1, sizeof *p);
    int rc = p ? 0 : err_nomem(&e, "a session", sizeof *p);
    if (!rc && role <= PEER_GATEWAY)
        rc = map_put(&e, &v->peers, hash_of(name, role), p);
    if (rc) {
        free(p);
        serve_broken(v, &e);
        return;
    }
    p->s = s;
    p->role = role;
    p->hash = hash_of(name, role);
    list_push_back(&v->all, &p->node);
    session_set_arg(s, p);
}

void peer_free(struct serve *v, struct peer *p)
{
    map_drop(&v->peers, p->hash, p);
    list_remove(&p->node);
    session_set_arg(p->s, NULL);
    free(p->queue);
    free(p);
}

void peers_close(struct serve *v)
{
    list_each (struct peer, p, &v->all, node)
        session_close(p->s, "the scheduler has ended; its successor continues the requests");
}

void peers_free(struct serve *v)
{
    list_each_safe (struct peer, p, &v->all, node)
        peer_free(v, p);
    map_free(&v->peers);
}

void peer_down(struct serve *v, struct peer *p, const struct err *reason)
{
    struct wire_frame f = {.kind = WIRE_GONE};
    struct wire_str name = wire_str_of(session_peer_name(p->s));
    if (reason->code == ERR_PROTO) {
        char line[700];
        snprintf(line, sizeof line, "%.600s", reason->text); /* begins with role and name of the peer */
        serve_log_limited(v, line);
    }
    if (p->role == PEER_WORKER)
        f.gone.worker = name;
    else
        f.gone.gw = name;
    if (p->role <= PEER_GATEWAY)
        serve_event(v, &f);
    peer_free(v, p);
}

bool peers_quiet(const struct serve *v)
{
    list_each (struct peer, p, &v->all, node)
        if (p->role == PEER_GATEWAY && session_unacked_bytes(p->s))
            return false;
    return true;
}

/* ---- received ---- */

/* A session acts for itself only: name and incarnation in its frames must be those of its hello. */
int peer_check(struct err *e, const struct peer *p, const struct wire_frame *f)
{
    const char *kind = wire_kind_name(f->kind), *own = session_peer_name(p->s);
    struct wire_str name = wire_str_of(own);
    uint64_t inc = session_peer_inc(p->s);
    int role = PEER_GATEWAY;
    switch ((int)f->kind) {
    case WIRE_STAT:
        return 0;
    case WIRE_KNOB: /* a gateway names tenants, so it may set their weights */
        if (p->role == PEER_GATEWAY && f->knob.name.n > 7 && !memcmp(f->knob.name.p, "weight:", 7))
            return 0;
        role = PEER_TOOL;
        break;
    case WIRE_SUBMIT:
        name = f->submit.gw;
        break;
    case WIRE_CANCEL:
        name = f->cancel.gw;
        break;
    case WIRE_JOIN:
        role = PEER_WORKER;
        name = f->join.worker;
        inc = f->join.inc;
        break;
    case WIRE_CAPACITY:
        role = PEER_WORKER;
        name = f->capacity.worker;
        inc = f->capacity.inc;
        break;
    case WIRE_REPORT:
        if (p->role == PEER_WORKER || f->report.worker.n) {
            role = PEER_WORKER;
            name = f->report.worker;
            inc = f->report.inc;
        } else {
            name = f->report.gw;
        }
        break;
    default:
        return err_set(e, ERR_PROTO, "a %s frame: the scheduler does not accept this kind", kind);
    }
    if (role != (int)p->role)
        return err_set(e, ERR_PROTO, "a %s frame: only a %s may send it", kind, roles[role]);
    if (!str_is(name, own) || inc != session_peer_inc(p->s))
        return err_set(e, ERR_PROTO, "a %s frame of '%.*s', incarnation %llu: the session is of '%s', incarnation %llu",
                       kind, (int)name.n, name.p ? name.p : "", (unsigned long long)inc, own,
                       (unsigned long long)session_peer_inc(p->s));
    return 0;
}

/* ---- sent ---- */

/* Queues a work item or control until the session has room. The state machine decides no further work item meanwhile,
 * so only a worker that does not read reaches the limit. */
static void queue_frame(struct serve *v, struct peer *p, const struct wire_frame *f)
{
    struct err e;
    if ((f->kind != WIRE_ORDER && f->kind != WIRE_CONTROL) || p->queue_n > SERVE_QUEUE_BYTES_MAX) {
        session_close(p->s, "the peer does not read what the scheduler sends");
        return;
    }
    if (wire_encode_add(&e, &p->queue, &p->queue_n, &p->queue_size, f))
        serve_broken(v, &e);
    sched_worker_full(v->s, wire_str_of(session_peer_name(p->s)), true);
}

void peer_send(struct serve *v, struct peer *p, const struct wire_frame *f)
{
    struct err e;
    int rc = p->queue_n ? ERR_NO : session_send(&e, p->s, f);
    if (rc == ERR_NO && p->role == PEER_WORKER)
        queue_frame(v, p, f);
    else if (rc == ERR_NO)
        session_close(p->s, "the peer does not read what the scheduler sends");
    else if (rc == ERR_SYS)
        serve_broken(v, &e);
    else if (rc == ERR_PROTO)
        serve_log_limited(v, e.text);
}

void peer_acked(struct serve *v, struct peer *p)
{
    struct err e;
    while (p->queue_at < p->queue_n) {
        const uint8_t *q = p->queue + p->queue_at;
        size_t n = p->queue_n - p->queue_at;
        int rc = wire_frame_size(&e, &n, q, n, SESSION_FRAME_BYTES_MAX);
        rc = rc ? rc : session_send_bytes(&e, p->s, q, n);
        if (rc == ERR_NO)
            return;
        if (rc == ERR_SYS)
            serve_broken(v, &e);
        p->queue_at += n;
    }
    if (!p->queue)
        return;
    free(p->queue);
    p->queue = NULL;
    p->queue_at = p->queue_n = p->queue_size = 0;
    sched_worker_full(v->s, wire_str_of(session_peer_name(p->s)), false);
}

void peers_emit(void *arg, const struct wire_frame *f)
{
    struct serve *v = arg;
    struct wire_frame stat;
    struct peer *p = v->sender; /* for stat, and for refuse of a frame */
    switch ((int)f->kind) {
    case WIRE_ORDER:
        p = peer_find(v, f->order.to, PEER_WORKER);
        break;
    case WIRE_CONTROL:
        p = peer_find(v, f->control.to, PEER_WORKER);
        break;
    case WIRE_ACK:
        p = peer_find(v, f->ack.to, PEER_GATEWAY);
        break;
    case WIRE_DONE:
        p = peer_find(v, f->done.to, PEER_GATEWAY);
        break;
    case WIRE_REFUSE:
        p = f->refuse.job ? peer_find(v, f->refuse.to, PEER_GATEWAY) : p;
        break;
    case WIRE_STAT: /* the state machine does not know idle gateways */
        stat = *f;
        stat.stat.gateways = 0;
        list_each (struct peer, q, &v->all, node)
            stat.stat.gateways += q->role == PEER_GATEWAY;
        f = &stat;
        break;
    }
    if (p)
        peer_send(v, p, f);
}
