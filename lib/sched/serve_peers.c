/* Workers and gateways as the service sees them: by name, with the polls they have parked and what waits for those. */
#include <stdlib.h>
#include <string.h>

#include "sched/serve_impl.h"

static uint64_t hash_of(struct wire_str name, bool gateway)
{
    return mix64(wire_sum(name.p, name.n) + gateway);
}

struct speaker *speaker_find(struct serve *v, struct wire_str name, bool gateway)
{
    size_t at;
    uint64_t hash = hash_of(name, gateway);
    struct speaker *p = map_first(&v->speakers, hash, &at);
    while (p && (p->gateway != gateway || !str_is(name, p->name)))
        p = map_next(&v->speakers, hash, &at);
    return p;
}

int speaker_get(struct err *e, struct speaker **out, struct serve *v, struct wire_str name, bool gateway)
{
    *out = speaker_find(v, name, gateway);
    if (*out)
        return 0;
    struct speaker *p = calloc(1, sizeof *p);
    if (p)
        p->name = strndup(name.p ? name.p : "", name.n);
    if (!p || !p->name) {
        free(p);
        return err_nomem(e, "a peer", sizeof *p);
    }
    p->hash = hash_of(name, gateway);
    p->gateway = gateway;
    int rc = map_put(e, &v->speakers, p->hash, p);
    if (rc) {
        free(p->name);
        free(p);
        return rc;
    }
    p->next = v->first;
    if (v->first)
        v->first->prev = p;
    v->first = p;
    *out = p;
    return 0;
}

static void touch(struct serve *v, struct speaker *p)
{
    if (p->touched)
        return;
    p->touched = true;
    p->next_touched = v->touched;
    v->touched = p;
}

static void speaker_free(struct serve *v, struct speaker *p)
{
    for (struct speaker **at = &v->touched; *at; at = &(*at)->next_touched)
        if (*at == p) {
            *at = p->next_touched;
            break;
        }
    map_drop(&v->speakers, p->hash, p);
    if (p->prev)
        p->prev->next = p->next;
    else
        v->first = p->next;
    if (p->next)
        p->next->prev = p->prev;
    link_msg_free(&p->to_poll);
    link_msg_free(&p->to_control);
    free(p->name);
    free(p);
}

void speakers_free(struct serve *v)
{
    while (v->first)
        speaker_free(v, v->first);
    map_free(&v->speakers);
}

static struct wire_str to_of(const struct wire_frame *f, bool *gateway, bool *control, bool *direct)
{
    *gateway = *control = *direct = false;
    switch ((int)f->kind) {
    case WIRE_ORDER:
        return f->order.to;
    case WIRE_CONTROL:
        *control = true;
        return f->control.to;
    case WIRE_IDLE:
        *control = f->idle.ctl;
        return f->idle.to;
    case WIRE_ACK:
        *gateway = true;
        return f->ack.to;
    case WIRE_DONE:
        *gateway = true;
        return f->done.to;
    case WIRE_REFUSE:
        *gateway = f->refuse.job != 0;
        *direct = !f->refuse.job;
        return f->refuse.to;
    default:
        *direct = true;
        return (struct wire_str){0};
    }
}

void speaker_tell(void *arg, const struct wire_frame *f)
{
    struct serve *v = arg;
    struct err e;
    bool gateway, control, direct;
    struct wire_str to = to_of(f, &gateway, &control, &direct);
    if (direct) {
        if (link_msg_add(&e, &v->direct, f))
            serve_broken(v, &e);
        return;
    }
    struct speaker *p = speaker_find(v, to, gateway);
    if (!p)
        return;
    struct link_msg *m = control ? &p->to_control : &p->to_poll;
    if (m->n > SERVE_QUEUE_BYTES_MAX && p->gateway) {
        p->overrun = true;
        return;
    }
    if (link_msg_add(&e, m, f))
        serve_broken(v, &e);
    touch(v, p);
}

/* What came for a gateway while it had no poll here leaves by this one. */
void speaker_park(struct serve *v, struct speaker *p, struct link_question *q, bool control, uint64_t now_ns)
{
    struct link_question **at = control ? &p->control : &p->poll;
    if (*at)
        link_answer(*at, NULL);
    *at = q;
    if (!control)
        p->parked_ns = now_ns;
    if (p->to_poll.n)
        touch(v, p);
}

/* What no poll is there for is dropped where it is numbered and will be sent again; a gateway's waits. */
static void flush(struct speaker *p)
{
    if (p->poll && p->to_poll.n) {
        link_answer(p->poll, &p->to_poll);
        p->poll = NULL;
    }
    if (p->control && p->to_control.n) {
        link_answer(p->control, &p->to_control);
        p->control = NULL;
    }
    if (!p->gateway)
        link_msg_clear(&p->to_poll);
    link_msg_clear(&p->to_control);
}

void speakers_flush(struct serve *v)
{
    while (v->touched) {
        struct speaker *p = v->touched;
        v->touched = p->next_touched;
        p->touched = false;
        flush(p);
    }
}

static void tell_gone(struct serve *v, const struct speaker *p)
{
    struct err e;
    struct wire_frame f = {.kind = WIRE_GONE};
    f.gone.at_ns = serve_now(v);
    *(p->gateway ? &f.gone.gw : &f.gone.worker) = wire_str_of(p->name);
    f.gone.inc = p->inc;
    if (sched_event(&e, v->s, &f) == ERR_SYS)
        serve_broken(v, &e);
}

void speakers_gone(struct serve *v, uint32_t conn)
{
    for (struct speaker *p = v->first, *next; p; p = next) {
        next = p->next;
        if (p->conn != conn)
            continue;
        tell_gone(v, p);
        speaker_free(v, p);
    }
}

void speakers_timers(struct serve *v, uint64_t now_ns, uint64_t *next_ns)
{
    for (struct speaker *p = v->first, *next; p; p = next) {
        next = p->next;
        if (!p->gateway)
            continue;
        if (p->overrun) { /* too much for it was dropped: it submits again what it still wants */
            tell_gone(v, p);
            speaker_free(v, p);
            continue;
        }
        if (!p->poll)
            continue;
        uint64_t due = p->parked_ns + v->s->heartbeat_ns;
        if (due <= now_ns) {
            link_answer(p->poll, NULL);
            p->poll = NULL;
        } else if (due < *next_ns) {
            *next_ns = due;
        }
    }
}

bool speakers_quiet(const struct serve *v)
{
    for (const struct speaker *p = v->first; p; p = p->next)
        if (p->gateway && p->to_poll.n)
            return false;
    return true;
}
