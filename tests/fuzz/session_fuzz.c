/*
 * Two ends of a session without sockets: the input chooses their operations, which of their bytes arrive, which bytes a
 * hostile peer injects, when the connection breaks, and how time passes. A naive model counts frames. Each operation is
 * one byte, the end in bit 7 and the operation in the low bits, followed by its arguments.
 */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link/session_core.h"

#define WINDOW 4096
#define TEXT_MAX 12000 /* of a frame: more than the window */
#define OUT_MAX (WINDOW + TEXT_MAX + 65536)

struct end {
    struct core c;
    struct session_self self;
    bool hostile; /* it received bytes that the other end did not send: only its own limits are checked */
    bool up, down;
    uint64_t sent, received, processed; /* frames: sent, reported by an event, and those followed by another event */
    bool holds;                         /* the last event was a frame */
    uint64_t sizes[1 << 16];            /* of the frames sent */
};

static struct end ends[2];
static struct wire_arena *core_arena, *arena;
static uint64_t now;
static const uint8_t *in;
static size_t n_in;

static unsigned byte(void)
{
    return n_in ? n_in--, *in++ : 0;
}

static void connect_ends(void)
{
    struct err e;
    for (int i = 0; i < 2; i++) {
        struct end *s = &ends[i];
        core_free(&s->c);
        memset(s, 0, offsetof(struct end, sizes));
        s->self = (struct session_self){.role = i ? "sched" : "worker", .name = i ? "s" : "w", .inc = 3};
        struct core_opts o = {.self = &s->self,
                              .roles = i ? "worker tool" : "sched",
                              .dialed = !i,
                              .silence_ms = i ? 3000 : 10000,
                              .window = WINDOW,
                              .arena = core_arena};
        int rc = core_init(&e, &s->c, &o, now);
        assert(!rc);
    }
}

static void check(const struct end *s)
{
    const struct core *c = &s->c;
    const struct end *other = &ends[s == ends];
    uint64_t bytes = 0;
    assert(c->acked <= c->sent && c->sent == s->sent);
    for (uint64_t i = c->acked; i < c->sent; i++)
        bytes += s->sizes[i];
    assert(bytes == c->unacked_bytes);
    assert(bytes <= WINDOW || c->sent - c->acked == 1);
    assert(buf_left(&c->in) <= SESSION_WINDOW_BYTES + SESSION_FRAME_BYTES_MAX + BUF_KEEP_BYTES);
    assert(buf_left(&c->out) + buf_left(&c->writing) <= OUT_MAX);
    assert(c->acknowledged <= c->processed && c->processed <= s->received);
    if (!s->hostile) /* never more than the other end has processed */
        assert(c->acked <= other->processed);
    if (!s->hostile && !other->hostile)
        assert(s->received <= other->sent);
}

static void send_one(struct end *s, size_t n)
{
    static char text[TEXT_MAX];
    struct err e = {0};
    struct wire_frame f = {.kind = WIRE_ERR, .error = {.seq = s->sent, .code = 1, .text = {text, n}}};
    uint64_t before = s->c.unacked_bytes;
    memset(text, 'x', sizeof text);
    if (s->sent >= sizeof s->sizes / sizeof *s->sizes)
        return;
    bool can = s->c.state == CORE_UP && !s->c.lost;
    bool fits = core_has_room(&s->c, n + 40);
    int rc = core_send(&e, &s->c, &f, now);
    assert(can ? rc == 0 || rc == ERR_NO : rc == ERR_USAGE);
    assert(rc == 0 || !fits);
    assert(rc != ERR_NO || before + n + 60 > WINDOW);
    if (!rc)
        s->sizes[s->sent++] = s->c.unacked_bytes - before;
}

static void on_frame(struct end *s, const uint8_t *p, size_t n)
{
    struct err e;
    struct wire_frame f;
    struct session_event ev = {.type = SESSION_FRAME, .p = p, .n = n};
    assert(s->up && !s->down);
    wire_arena_reset(arena);
    int rc = session_frame(&e, &f, arena, &ev);
    if (!s->hostile)
        assert(!rc && f.kind == WIRE_ERR && f.error.seq == s->received);
    s->received++;
    s->holds = true;
}

static void take_event(struct end *s)
{
    const uint8_t *p = NULL;
    size_t n = 0;
    bool closing = s->c.state == CORE_CLOSING;
    s->processed += s->holds;
    s->holds = false;
    switch (core_next(&s->c, &p, &n, now)) {
    case CORE_EV_NONE:
        assert(s->c.state == CORE_ENDED || s->c.lost || s->c.acknowledged == s->c.processed);
        break;
    case CORE_EV_UP:
        assert(!s->up && !s->down);
        s->up = true;
        break;
    case CORE_EV_FRAME:
        on_frame(s, p, n);
        break;
    case CORE_EV_ACKED:
        assert(s->up && !s->down);
        break;
    case CORE_EV_DOWN:
        assert(!s->down && s->c.state == CORE_ENDED);
        assert(s->c.err.code || (closing && s->c.acked == s->c.sent));
        s->down = true;
        break;
    }
}

/* Delivers at most `max` bytes of an end to the other. */
static void deliver(struct end *s, size_t max)
{
    size_t n;
    struct end *to = &ends[s == ends];
    const uint8_t *p = core_out(&s->c, &n);
    n = n > max ? max : n;
    if (!n)
        return;
    core_received(&to->c, p, n, now);
    core_wrote(&s->c, n);
}

static void inject_frame(struct end *s)
{
    uint8_t *p = NULL;
    size_t n = 0, cap = 0;
    struct err e;
    struct wire_frame f = {.kind = WIRE_SESSION_PING};
    switch (byte() % 6) {
    case 0:
        f.kind = WIRE_SESSION_HELLO;
        f.session_hello = (struct wire_session_hello){.version = byte() % 8,
                                                      .role = wire_str_of(byte() & 1 ? "worker" : "sched"),
                                                      .name = wire_str_of(byte() & 1 ? "w" : ""),
                                                      .silence_ms = byte() * 16};
        break;
    case 1:
        f.kind = WIRE_SESSION_ACK;
        f.session_ack.n = s->c.acked + byte() - 2;
        break;
    case 2:
        f.kind = WIRE_SESSION_BYE;
        f.session_bye.reason = wire_str_of(byte() & 1 ? "because" : NULL);
        break;
    case 3:
        f.kind = WIRE_ERR;
        f.error = (struct wire_error){.seq = byte(), .code = 1};
        break;
    case 4:
        f.kind = WIRE_TICK;
        break;
    }
    if (!wire_encode_add(&e, &p, &n, &cap, &f))
        core_received(&s->c, p, n, now);
    free(p);
    s->hostile = true;
}

static void inject_bytes(struct end *s)
{
    size_t n = byte() % 32;
    n = n > n_in ? n_in : n;
    core_received(&s->c, in, n, now);
    in += n;
    n_in -= n;
    s->hostile = true;
}

static void pass_time(uint64_t ms)
{
    now += ms;
    for (int i = 0; i < 2; i++) {
        core_tick(&ends[i].c, now);
        if (ends[i].c.state != CORE_ENDED) /* an event loop must not spin */
            assert(core_due_ms(&ends[i].c) > now);
    }
}

static void operate(struct end *s, unsigned op)
{
    switch (op % 16) {
    case 0:
    case 1:
        send_one(s, byte());
        break;
    case 2:
        send_one(s, byte() * 47u);
        break;
    case 3:
    case 4:
        deliver(s, SIZE_MAX);
        break;
    case 5:
        deliver(s, byte());
        break;
    case 6:
    case 7:
    case 8:
        take_event(s);
        break;
    case 9:
        pass_time(byte());
        break;
    case 10:
        pass_time(byte() * 50u);
        break;
    case 11:
        core_bye(&s->c, byte() * 10, now);
        break;
    case 12:
        core_end(&s->c, ERR_NO, byte() & 1 ? "a reason" : NULL, now, "closed");
        break;
    case 13:
        if (byte() & 1)
            core_lost(&s->c, "the connection broke");
        else
            connect_ends();
        break;
    case 14:
        inject_frame(s);
        break;
    case 15:
        if (byte() & 1)
            inject_bytes(s);
        else
            core_allow(&s->c, byte());
        break;
    }
}

/* Runs both ends until nothing changes: undisturbed ends have processed and acknowledged every frame. */
static void settle(void)
{
    uint64_t last = 0;
    for (int same = 0; same < 4;) {
        uint64_t progress = 0; /* changes while either end makes progress */
        for (int i = 0; i < 2; i++) {
            size_t n;
            struct core *c = &ends[i].c;
            deliver(&ends[i], SIZE_MAX);
            take_event(&ends[i]);
            check(&ends[0]);
            check(&ends[1]);
            core_out(c, &n);
            progress += n + buf_left(&c->in);
            progress += 1000003 * (ends[i].received + c->processed + c->acknowledged + c->acked);
        }
        same = progress == last ? same + 1 : 0;
        last = progress;
    }
    for (int i = 0; i < 2; i++) {
        const struct end *s = &ends[i], *other = &ends[!i];
        if (s->c.state != CORE_UP || other->c.state != CORE_UP || s->hostile || other->hostile || s->c.lost ||
            other->c.lost)
            continue;
        assert(s->received == other->sent && other->c.acked == other->sent && !other->c.unacked_bytes);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    core_arena = core_arena ? core_arena : wire_arena_new();
    arena = arena ? arena : wire_arena_new();
    in = data;
    n_in = size;
    now = 1000;
    connect_ends();
    while (n_in) {
        unsigned op = byte();
        operate(&ends[op >> 7], op & 0x7f);
        check(&ends[0]);
        check(&ends[1]);
    }
    settle();
    core_free(&ends[0].c);
    core_free(&ends[1].c);
    return 0;
}
