/*
 * What comes to a gateway from tokenize, the scheduler and workers: whatever it is, the gateway goes on. Sockets are
 * stood in for: what is asked stays open until the input answers it. The first byte of a piece says who speaks, the
 * next two how long it is; answers to what was asked are asked for in order.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/gateway.h"
#include "link/ask.h"

#define OPEN_MAX 64

struct link_box {
    struct link_event v[4];
    size_t n, at;
};
struct link_listener {
    void *arg;
};
struct link_dialer {
    void *arg;
    struct link_box *box;
};

static struct link_box *the_box;
static struct link_dialer *dialers[2];
static struct link_listener *listener;
static struct asked {
    struct link_dialer *d;
    void *arg;
} asked[OPEN_MAX];
static size_t n_asked;

int link_box_new(struct err *e, struct link_box **out)
{
    (void)e;
    *out = the_box = calloc(1, sizeof **out);
    return 0;
}
void link_box_free(struct link_box *b)
{
    free(b);
}
int link_box_fd(const struct link_box *b)
{
    (void)b;
    return -1;
}
bool link_box_take(struct link_box *b, struct link_event *out)
{
    if (b->at == b->n)
        return false;
    *out = b->v[b->at++];
    return true;
}
void link_box_wait(struct link_box *b, int timeout_ms)
{
    (void)b, (void)timeout_ms;
}
void link_box_wake(struct link_box *b)
{
    (void)b;
}
int link_listen(struct err *e, struct link_listener **out, struct link_box *b, const char *url, void *arg)
{
    (void)e, (void)b, (void)url;
    *out = listener = calloc(1, sizeof **out);
    listener->arg = arg;
    return 0;
}
void link_listener_free(struct link_listener *l)
{
    free(l);
}
const char *link_listener_url(const struct link_listener *l)
{
    (void)l;
    return "tcp://127.0.0.1:1";
}
void link_answer(struct link_question *q, struct link_msg *m)
{
    (void)q;
    if (m)
        link_msg_clear(m);
}
int link_dial(struct err *e, struct link_dialer **out, struct link_box *b, const char *url, void *arg)
{
    (void)e, (void)url;
    *out = calloc(1, sizeof **out);
    **out = (struct link_dialer){arg, b};
    dialers[dialers[0] != NULL] = *out;
    return 0;
}
void link_dialer_free(struct link_dialer *d)
{
    free(d);
}
bool link_dialer_up(const struct link_dialer *d)
{
    (void)d;
    return true;
}
int link_ask(struct err *e, struct link_dialer *d, struct link_msg *m, void *arg)
{
    if (n_asked == OPEN_MAX)
        return err_set(e, ERR_NO, "too many questions");
    link_msg_clear(m);
    asked[n_asked++] = (struct asked){d, arg};
    return 0;
}

static struct gateway *g;
static uint64_t next_seq;

static void on_frame(void *arg, const struct wire_frame *f)
{
    (void)arg;
    /* What goes out is what a stream could carry. */
    uint8_t *p;
    size_t n;
    struct err e;
    if (!wire_encode(&e, &p, &n, f))
        free(p);
    if (f->kind == WIRE_END && f->end.seq % 3 == 0 && next_seq < 200) {
        if (gateway_ask(&e, g, next_seq, (struct wire_str){0}, "{\"prompt\":\"x\"}", 14))
            abort();
        next_seq++;
    }
    if (f->kind == WIRE_OUT && f->out.seq % 5 == 0)
        gateway_cancel(g, f->out.seq);
}

static void on_say(void *arg, const char *text)
{
    (void)arg;
    assert(strlen(text) < 1024);
}

static void event(const struct link_event *v)
{
    struct err e;
    the_box->v[0] = *v;
    the_box->n = 1;
    the_box->at = 0;
    (void)gateway_step(&e, g, 0);
}

/* The first question that is open to this dialer. */
static bool answer(struct link_dialer *d, enum link_what what, const uint8_t *p, size_t n)
{
    for (size_t i = 0; i < n_asked; i++)
        if (asked[i].d == d) {
            struct link_event v = {.what = what, .arg = asked[i].arg, .peer = 1, .p = p, .n = n};
            memmove(asked + i, asked + i + 1, (--n_asked - i) * sizeof *asked);
            event(&v);
            return true;
        }
    return false;
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    const struct gateway_opts o = {.sched = "tcp://127.0.0.1:2",
                                   .tokenize = "tcp://127.0.0.1:3",
                                   .patience_ns = UINT64_MAX,
                                   .frame = on_frame,
                                   .say = on_say};
    n_asked = 0;
    dialers[0] = dialers[1] = NULL;
    next_seq = 4;
    if (gateway_open(&e, &g, &o))
        abort();
    for (int i = 0; i < 2; i++)
        event(&(struct link_event){.what = LINK_UP, .arg = dialers[i]->arg, .peer = 1});
    for (uint64_t i = 0; i < next_seq; i++)
        if (gateway_ask(&e, g, i, (struct wire_str){"a", 1}, "{\"prompt\":\"x\",\"id\":\"a\"}", 23))
            abort();
    while (n >= 3) {
        size_t len = p[1] | (size_t)p[2] << 8;
        len = len < n - 3 ? len : n - 3;
        struct link_event v = {.what = LINK_QUESTION, .arg = listener->arg, .peer = 1, .p = p + 3, .n = len};
        switch (p[0] % 8) {
        case 0:
            event(&v);
            break;
        case 1:
            answer(dialers[0], LINK_ANSWER, p + 3, len);
            break;
        case 2:
            answer(dialers[1], LINK_ANSWER, p + 3, len);
            break;
        case 3:
            answer(dialers[p[0] / 8 % 2], LINK_FAILED, NULL, 0);
            break;
        case 4:
            v = (struct link_event){.what = p[0] & 16 ? LINK_UP : LINK_DOWN, .arg = dialers[p[0] / 32 % 2]->arg};
            event(&v);
            break;
        case 5:
            gateway_cancel(g, p[0] / 8);
            break;
        default:
            (void)gateway_step(&e, g, 0);
        }
        p += 3 + len;
        n -= 3 + len;
    }
    (void)gateway_step(&e, g, 0);
    /* Nobody answers the last words. */
    event(&(struct link_event){.what = LINK_DOWN, .arg = dialers[0]->arg, .peer = 1});
    gateway_close(g);
    return 0;
}
