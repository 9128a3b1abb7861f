#include "link/session_core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/peer_tls_impl.h"

/* ---- the end ---- */

static size_t unwritten(const struct core *c)
{
    return buf_left(&c->out) + buf_left(&c->writing);
}

static void set_down(struct core *c, int code, const char *text)
{
    c->state = CORE_ENDED;
    c->down_due = true;
    c->taken = 0; /* the caller may still read the last frame: core_next drops its bytes */
    err_set(&c->err, code, "%s", text);
}

/* Queues a session_* frame. Neither the counts nor the window include it. */
static void put(struct core *c, const struct wire_frame *f, uint64_t now)
{
    struct err e;
    if (c->lost || c->o.plain)
        return;
    if (wire_encode_add(&e, &c->out.p, &c->out.n, &c->out.cap, f) && c->state != CORE_ENDED)
        set_down(c, e.code, e.text); /* no memory: closing the connection informs the peer */
    c->queued_ms = now;
}

static void put_bye(struct core *c, const char *reason, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_SESSION_BYE, .session_bye = {.reason = wire_str_of(reason)}};
    if (c->bye_sent)
        return;
    c->bye_sent = true;
    put(c, &f, now);
}

static void put_ack(struct core *c, uint64_t now)
{
    struct wire_frame f = {.kind = WIRE_SESSION_ACK, .session_ack = {.n = c->processed}};
    if (c->processed == c->acknowledged)
        return;
    c->acknowledged = c->processed;
    c->unacknowledged_bytes = 0;
    put(c, &f, now);
}

void core_end(struct core *c, int code, const char *reason, uint64_t now, const char *text, ...)
{
    char line[sizeof c->err.text];
    va_list ap;
    if (c->state == CORE_ENDED)
        return;
    va_start(ap, text);
    vsnprintf(line, sizeof line, text, ap);
    va_end(ap);
    set_down(c, code, line);
    c->end_ms = now + CORE_LINGER_MS;
    c->await_close = reason && !c->o.plain;
    if (reason)
        put_bye(c, reason, now);
}

/* The peer violated the protocol; it gets the same text. */
static void refuse(struct core *c, uint64_t now, const struct err *reason)
{
    c->refused = true;
    core_end(c, ERR_PROTO, reason->text, now, "%s", reason->text);
}

void core_lost(struct core *c, const char *text)
{
    if (!c->lost && c->state != CORE_ENDED)
        err_set(&c->err, ERR_SYS, "%s", text);
    c->lost = true;
}

/* ---- hello ---- */

static bool is_one_of(const char *list, struct wire_str word)
{
    return word.n && peer_list_has(list, word.p, word.n);
}

static void put_hello(struct core *c, uint64_t now)
{
    const struct session_self *self = c->o.self;
    struct wire_frame f = {.kind = WIRE_SESSION_HELLO,
                           .session_hello = {.version = WIRE_VERSION,
                                             .role = wire_str_of(self->role),
                                             .name = wire_str_of(self->name),
                                             .inc = self->inc,
                                             .silence_ms = c->o.silence_ms}};
    put(c, &f, now);
}

static void accept_hello(struct core *c, const struct wire_session_hello *h, uint64_t now)
{
    struct err e;
    if (h->version != WIRE_VERSION) {
        err_set(&e, ERR_PROTO, "wire version %u from %.*s, this side (%s) has %u: run programs of one release",
                h->version, (int)h->role.n, h->role.p, c->o.self->role, WIRE_VERSION);
        refuse(c, now, &e);
        return;
    }
    if (!is_one_of(c->o.roles, h->role)) {
        err_set(&e, ERR_PROTO, "role %.*s is not accepted here, only: %s", (int)h->role.n, h->role.p, c->o.roles);
        refuse(c, now, &e);
        return;
    }
    if (c->o.names && !is_one_of(c->o.names, h->name)) {
        err_set(&e, ERR_PROTO, "name %.*s is not accepted, the certificate permits only: %s", (int)h->name.n,
                h->name.n ? h->name.p : "", c->o.names);
        refuse(c, now, &e);
        return;
    }
    memcpy(c->role, h->role.p, h->role.n);
    if (h->name.n)
        memcpy(c->name, h->name.p, h->name.n);
    c->inc = h->inc;
    if (h->silence_ms && h->silence_ms / 3 < c->ping_ms)
        c->ping_ms = h->silence_ms / 3 > CORE_PING_MS_MIN ? h->silence_ms / 3 : CORE_PING_MS_MIN;
    c->state = CORE_UP;
    if (!c->o.dialed)
        put_hello(c, now);
}

/* ---- set up ---- */

int core_init(struct err *e, struct core *c, const struct core_opts *o, uint64_t now)
{
    memset(c, 0, sizeof *c);
    c->o = *o;
    c->state = o->plain ? CORE_UP : CORE_HELLO;
    c->up_due = o->plain;
    c->ping_ms = SESSION_PING_MS;
    c->born_ms = c->last_seen_ms = c->queued_ms = now;
    if (o->dialed)
        put_hello(c, now);
    if (c->state != CORE_ENDED)
        return 0;
    *e = c->err;
    return e->code;
}

void core_free(struct core *c)
{
    free(c->in.p);
    free(c->out.p);
    free(c->writing.p);
    free(c->sizes.p);
    memset(c, 0, sizeof *c);
}

/* ---- in ---- */

static uint64_t in_limit(const struct core *c)
{
    uint64_t w = c->o.window > SESSION_WINDOW_BYTES ? c->o.window : SESSION_WINDOW_BYTES;
    return w + SESSION_FRAME_BYTES_MAX + BUF_KEEP_BYTES;
}

void core_received(struct core *c, const uint8_t *p, size_t n, uint64_t now)
{
    c->last_seen_ms = now;
    if (c->state == CORE_ENDED || c->lost || !n)
        return;
    if (buf_left(&c->in) + n > in_limit(c)) {
        struct err e;
        err_set(&e, ERR_PROTO, "more than %llu bytes were sent without waiting for an acknowledgement",
                (unsigned long long)in_limit(c));
        refuse(c, now, &e);
        return;
    }
    if (!buf_reserve(&c->in, n)) {
        core_end(c, ERR_SYS, NULL, now, "out of memory for %zu received bytes", buf_left(&c->in) + n);
        return;
    }
    memcpy(c->in.p + c->in.n, p, n);
    c->in.n += n;
}

/* The kind of an encoded map whose first key is "k"; 0: another map. */
static unsigned kind_of(const uint8_t *p, size_t n)
{
    size_t at = !n ? 0 : (p[0] & 0xf0) == 0x80 ? 1 : p[0] == 0xde ? 3 : p[0] == 0xdf ? 5 : 0;
    if (!at || n < at + 3 || p[at] != 0xa1 || p[at + 1] != 'k')
        return 0;
    at += 2;
    return p[at] < 0x80 ? p[at] : p[at] == 0xcc && n > at + 1 ? p[at + 1] : 0;
}

static bool is_session_kind(unsigned k)
{
    return k >= WIRE_SESSION_HELLO && k <= WIRE_SESSION_BYE;
}

static int on_ack(struct err *e, struct core *c, uint64_t n)
{
    if (n > c->sent || n < c->acked)
        return err_set(e, ERR_PROTO, "%llu frames acknowledged: %llu were acknowledged before, %llu were sent",
                       (unsigned long long)n, (unsigned long long)c->acked, (unsigned long long)c->sent);
    for (uint32_t size; c->acked < n; c->acked++, buf_take(&c->sizes, sizeof size)) {
        memcpy(&size, buf_front(&c->sizes), sizeof size);
        c->unacked_bytes -= size;
    }
    return 0;
}

/* After core_bye: the peer has sent session_bye too and has acknowledged everything. */
static bool is_closed_gracefully(const struct core *c)
{
    if (c->state != CORE_CLOSING)
        return false;
    return c->o.plain ? !unwritten(c) : c->bye_received && c->acked == c->sent;
}

static void on_bye(struct core *c, const struct wire_session_bye *b, uint64_t now)
{
    c->bye_received = true;
    if (c->state == CORE_CLOSING)
        return;
    struct wire_str text = b->reason.n ? b->reason : wire_str_of("the peer ended the session");
    c->refused = true;
    put_ack(c, now);
    core_end(c, ERR_NO, "", now, "%.*s", (int)text.n, text.p);
    /* With a reason the peer has dropped the session and waits for this side to close. Without one it still processes
     * and acknowledges frames in flight, and closes after this side's session_bye. */
    c->await_close = !b->reason.n;
}

/* A session_* frame, or any frame before the hello. */
static enum core_event on_session_frame(struct core *c, const uint8_t *p, size_t n, uint64_t now)
{
    struct err e;
    struct wire_frame f;
    wire_arena_reset(c->o.arena);
    int rc = wire_decode(&e, &f, c->o.arena, p, n);
    if (!rc && c->state == CORE_HELLO && f.kind != WIRE_SESSION_HELLO && f.kind != WIRE_SESSION_BYE)
        rc = err_set(&e, ERR_PROTO, "a %s frame before session_hello", wire_kind_name(f.kind));
    if (!rc && c->state != CORE_HELLO && f.kind == WIRE_SESSION_HELLO)
        rc = err_set(&e, ERR_PROTO, "a second session_hello");
    if (!rc && c->bye_received && f.kind != WIRE_SESSION_ACK)
        rc = err_set(&e, ERR_PROTO, "a %s frame after session_bye", wire_kind_name(f.kind));
    if (!rc && f.kind == WIRE_SESSION_ACK && !(rc = on_ack(&e, c, f.session_ack.n)))
        return CORE_EV_ACKED;
    if (rc) {
        refuse(c, now, &e);
    } else if (f.kind == WIRE_SESSION_BYE) {
        on_bye(c, &f.session_bye, now);
    } else if (f.kind == WIRE_SESSION_HELLO) {
        accept_hello(c, &f.session_hello, now);
        return c->state == CORE_UP ? CORE_EV_UP : CORE_EV_NONE;
    }
    return CORE_EV_NONE;
}

/* True: a whole frame was taken; *ev is its event, which may be CORE_EV_NONE. */
static bool take_frame(struct core *c, enum core_event *ev, const uint8_t **p, size_t *n, uint64_t now)
{
    struct err e;
    *ev = CORE_EV_NONE;
    *p = buf_front(&c->in);
    if (wire_frame_size(&e, n, *p, buf_left(&c->in),
                        c->state == CORE_HELLO ? CORE_HELLO_BYTES_MAX : SESSION_FRAME_BYTES_MAX)) {
        refuse(c, now, &e);
        return false;
    }
    if (!*n)
        return false;
    c->in.at += *n; /* the bytes do not move until the next event is taken */
    const uint8_t *map = *p + WIRE_PREFIX_BYTES;
    size_t n_map = *n - WIRE_PREFIX_BYTES;
    if (!c->o.plain && (c->state == CORE_HELLO || c->bye_received || is_session_kind(kind_of(map, n_map)))) {
        *ev = on_session_frame(c, map, n_map, now);
        return c->state != CORE_ENDED;
    }
    c->taken = (uint32_t)*n;
    *ev = CORE_EV_FRAME;
    return true;
}

static void count_processed(struct core *c, uint64_t now)
{
    if (!c->taken)
        return;
    c->processed++;
    c->unacknowledged_bytes += c->taken;
    c->taken = 0;
    if (c->processed - c->acknowledged >= CORE_ACK_FRAMES || c->unacknowledged_bytes >= CORE_ACK_BYTES)
        put_ack(c, now);
}

/* No whole frame is left: acknowledges the processed ones, and reports the end if there was one. */
static void drained(struct core *c, uint64_t now)
{
    put_ack(c, now);
    if (is_closed_gracefully(c)) {
        core_end(c, 0, NULL, now, "%s", "");
    } else if (c->lost && c->state != CORE_ENDED) {
        c->state = CORE_ENDED;
        c->down_due = true;
    }
}

enum core_event core_next(struct core *c, const uint8_t **p, size_t *n, uint64_t now)
{
    enum core_event ev;
    count_processed(c, now);
    if (c->up_due) {
        c->up_due = false;
        return CORE_EV_UP;
    }
    while (c->state != CORE_ENDED && take_frame(c, &ev, p, n, now))
        if (ev)
            return ev;
    if (c->state != CORE_ENDED)
        drained(c, now);
    buf_take(&c->in, c->state == CORE_ENDED ? buf_left(&c->in) : 0);
    if (!c->down_due)
        return CORE_EV_NONE;
    c->down_due = false;
    return CORE_EV_DOWN;
}

int session_frame(struct err *e, struct wire_frame *f, struct wire_arena *a, const struct session_event *ev)
{
    int rc = wire_decode(e, f, a, ev->p + WIRE_PREFIX_BYTES, ev->n - WIRE_PREFIX_BYTES);
    return rc || f->kind != WIRE_BLK ? rc : err_set(e, ERR_PROTO, "a blk frame was sent over a session");
}

/* ---- out ---- */

const uint8_t *core_out(struct core *c, size_t *n)
{
    if (c->lost) {
        *n = 0;
        return NULL;
    }
    if (!buf_left(&c->writing)) {
        struct buf b = c->writing;
        c->writing = c->out;
        c->out = b;
    }
    *n = buf_left(&c->writing);
    return buf_front(&c->writing);
}

void core_wrote(struct core *c, size_t n)
{
    buf_take(&c->writing, n);
}

bool core_has_room(const struct core *c, size_t n)
{
    uint64_t ahead = c->o.plain ? unwritten(c) : c->unacked_bytes;
    return c->state == CORE_UP && !c->lost && (!ahead || ahead + n <= c->o.window);
}

static int can_send(struct err *e, struct core *c)
{
    if (c->state != CORE_UP || c->lost)
        return err_set(e, ERR_USAGE, "the session is not connected");
    return buf_reserve(&c->sizes, sizeof(uint32_t)) ? 0 : err_nomem(e, "a session", buf_left(&c->sizes));
}

/* The frame follows the first `before` bytes of out: it is counted, or removed again if it is refused. */
static int queued(struct err *e, struct core *c, size_t before, uint64_t now)
{
    size_t n = c->out.n - before;
    int rc = 0;
    c->out.n = before; /* core_has_room of a plain session must not count this frame */
    if (n > SESSION_FRAME_BYTES_MAX + WIRE_PREFIX_BYTES)
        rc = err_set(e, ERR_PROTO, "a frame has %zu bytes, the limit is %u", n, SESSION_FRAME_BYTES_MAX);
    else if (!core_has_room(c, n))
        rc = err_set(e, ERR_NO, "the window of the session is full: %llu bytes are not acknowledged",
                     (unsigned long long)(c->o.plain ? unwritten(c) : c->unacked_bytes));
    if (rc) {
        buf_take(&c->out, 0);
        return rc;
    }
    c->out.n = before + n;
    if (!c->o.plain) {
        uint32_t size = (uint32_t)n;
        memcpy(c->sizes.p + c->sizes.n, &size, sizeof size);
        c->sizes.n += sizeof size;
        c->unacked_bytes += n;
    }
    c->sent++;
    c->queued_ms = now;
    return 0;
}

int core_send(struct err *e, struct core *c, const struct wire_frame *f, uint64_t now)
{
    size_t before = c->out.n;
    if (f->kind == WIRE_BLK || is_session_kind(f->kind))
        return err_set(e, ERR_PROTO, "a %s frame cannot be sent over a session", wire_kind_name(f->kind));
    int rc = can_send(e, c);
    rc = rc ? rc : wire_encode_add(e, &c->out.p, &c->out.n, &c->out.cap, f);
    return rc ? rc : queued(e, c, before, now);
}

int core_send_bytes(struct err *e, struct core *c, const uint8_t *p, size_t n, uint64_t now)
{
    size_t before = c->out.n, size;
    int rc = can_send(e, c);
    rc = rc ? rc : wire_frame_size(e, &size, p, n, SESSION_FRAME_BYTES_MAX);
    if (!rc && (!size || size != n || is_session_kind(kind_of(p + WIRE_PREFIX_BYTES, n - WIRE_PREFIX_BYTES))))
        rc = err_set(e, ERR_PROTO, "%zu bytes are not exactly one frame", n);
    if (!rc && !core_has_room(c, n))
        rc = err_set(e, ERR_NO, "the window of the session is full");
    if (!rc && !buf_reserve(&c->out, n))
        rc = err_nomem(e, "a frame", n);
    if (rc)
        return rc;
    memcpy(c->out.p + c->out.n, p, n);
    c->out.n += n;
    return queued(e, c, before, now);
}

/* ---- time ---- */

void core_bye(struct core *c, uint32_t timeout_ms, uint64_t now)
{
    if (c->state != CORE_UP)
        return;
    c->state = CORE_CLOSING;
    c->end_ms = now + timeout_ms;
    put_bye(c, NULL, now);
}

static bool ping_is_possible(const struct core *c)
{
    return c->state == CORE_UP && !c->o.plain && !unwritten(c) && !c->lost;
}

uint64_t core_due_ms(const struct core *c)
{
    if (c->state == CORE_HELLO)
        return c->born_ms + SESSION_HELLO_MS;
    if (c->state == CORE_ENDED)
        return c->end_ms;
    uint64_t due = c->o.plain ? UINT64_MAX : c->last_seen_ms + c->o.silence_ms;
    if (ping_is_possible(c) && c->queued_ms + c->ping_ms < due)
        due = c->queued_ms + c->ping_ms;
    if (c->state == CORE_CLOSING && c->end_ms < due)
        due = c->end_ms;
    return due;
}

void core_tick(struct core *c, uint64_t now)
{
    if (c->state == CORE_HELLO && now >= c->born_ms + SESSION_HELLO_MS)
        core_end(c, ERR_SYS, "no session_hello was received in time", now, "no session_hello within %d ms",
                 SESSION_HELLO_MS);
    if ((c->state == CORE_UP || c->state == CORE_CLOSING) && !c->o.plain && now >= c->last_seen_ms + c->o.silence_ms)
        core_end(c, ERR_SYS, "nothing was received from this side", now, "nothing was received for %u ms",
                 c->o.silence_ms);
    if (c->state == CORE_CLOSING && now >= c->end_ms)
        core_end(c, ERR_SYS, NULL, now, "%llu of %llu frames were not acknowledged in time",
                 (unsigned long long)(c->sent - c->acked), (unsigned long long)c->sent);
    if (ping_is_possible(c) && now >= c->queued_ms + c->ping_ms)
        put(c, &(struct wire_frame){.kind = WIRE_SESSION_PING}, now);
}

void core_allow(struct core *c, uint64_t ms)
{
    c->born_ms += ms;
    c->last_seen_ms += ms;
}

bool core_is_over(const struct core *c, uint64_t now)
{
    return c->state == CORE_ENDED && !c->down_due &&
           (c->lost || now >= c->end_ms || (!unwritten(c) && !c->await_close));
}
