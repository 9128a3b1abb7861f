#include "link/session_impl.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/time.h"

#define SILENCE_ACCEPTED_MS 3000
#define SILENCE_DIALED_MS 10000

uint64_t session_now_ms(void)
{
    return time_now_ns() / NS_MS;
}

/* ---- the hub ---- */

/* Copies role and name into one allocation; to->role owns it. */
static int copy_self(struct err *e, struct session_self *to, const struct session_self *from)
{
    const char *name = from->name ? from->name : "";
    size_t n_role = from->role ? strlen(from->role) : 0, n_name = strlen(name);
    if (n_role < 1 || n_role > WIRE_ROLE_BYTES_MAX || n_name > WIRE_NAME_BYTES_MAX)
        return err_set(e, ERR_USAGE, "a role has 1 to %d bytes, a name at most %d", WIRE_ROLE_BYTES_MAX,
                       WIRE_NAME_BYTES_MAX);
    char *p = malloc(n_role + n_name + 2);
    if (!p)
        return err_nomem(e, "a session hub", n_role + n_name + 2);
    memcpy(p, from->role, n_role + 1);
    memcpy(p + n_role + 1, name, n_name + 1);
    *to = (struct session_self){.role = p, .name = p + n_role + 1, .inc = from->inc};
    return 0;
}

int session_hub_new(struct err *e, struct session_hub **out, const struct session_hub_opts *o)
{
    struct session_hub *h = calloc(1, sizeof *h);
    if (!h)
        return err_nomem(e, "a session hub", sizeof *h);
    h->o = *o;
    h->o.window = o->window ? o->window : SESSION_WINDOW_BYTES;
    h->o.silence_accepted_ms = o->silence_accepted_ms ? o->silence_accepted_ms : SILENCE_ACCEPTED_MS;
    h->o.silence_dialed_ms = o->silence_dialed_ms ? o->silence_dialed_ms : SILENCE_DIALED_MS;
    list_init(&h->conns);
    list_init(&h->sessions);
    list_init(&h->listeners);
    list_init(&h->pending);
    list_init(&h->dirty);
    list_init(&h->ready);
    h->due_ms = UINT64_MAX;
    h->ran_ms = session_now_ms();
    pthread_mutex_init(&h->lock, NULL);
    h->arena = wire_arena_new();
    h->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = h->fd < 0 ? err_sys(e, "eventfd") : h->arena ? 0 : err_nomem(e, "a session hub", sizeof *h);
    rc = rc ? rc : copy_self(e, &h->self, &o->self);
    if (rc) {
        session_hub_free(h);
        return rc;
    }
    *out = h;
    return 0;
}

void session_hub_wake(struct session_hub *h)
{
    int was = errno;
    const uint64_t one = 1;
    ssize_t n = write(h->fd, &one, sizeof one); /* fails only if the counter is full: then fd is readable */
    (void)n;
    errno = was;
}

void hub_mark(struct ready *r, unsigned flags)
{
    struct session_hub *h = r->h;
    pthread_mutex_lock(&h->lock);
    if (!r->flags)
        list_push_back(&h->ready, &r->node);
    r->flags |= flags;
    bool wake = !h->raised;
    h->raised = true;
    pthread_mutex_unlock(&h->lock);
    if (wake)
        session_hub_wake(h);
}

static struct ready *next_ready(struct session_hub *h, unsigned *flags)
{
    pthread_mutex_lock(&h->lock);
    struct list *n = list_pop_front(&h->ready);
    struct ready *r = n ? list_entry(n, struct ready, node) : NULL;
    if (r) {
        *flags = r->flags;
        r->flags = 0;
    }
    pthread_mutex_unlock(&h->lock);
    return r;
}

void hub_unmark(struct ready *r)
{
    struct session_hub *h = r->h;
    pthread_mutex_lock(&h->lock);
    if (r->flags)
        list_remove(&r->node);
    r->flags = 0;
    pthread_mutex_unlock(&h->lock);
}

void hub_due(struct session_hub *h, uint64_t at_ms)
{
    h->due_ms = at_ms < h->due_ms ? at_ms : h->due_ms;
}

void hub_pend(struct conn *c, bool first)
{
    if (first) {
        list_remove(&c->pending);
        list_push_front(&c->h->pending, &c->pending);
    } else if (list_empty(&c->pending)) {
        list_push_back(&c->h->pending, &c->pending);
    }
}

/* ---- ready sockets and timers ---- */

static void tick(struct session_hub *h, uint64_t now)
{
    if (now < h->due_ms)
        return;
    h->due_ms = UINT64_MAX;
    list_each_safe (struct conn, c, &h->conns, node)
        conn_tick(c, now);
    list_each (struct session, s, &h->sessions, node)
        dial_tick(s, now);
    list_each (struct session_listener, l, &h->listeners, node)
        listener_tick(l, now);
}

static void step(struct session_hub *h)
{
    struct ready *r;
    unsigned flags;
    uint64_t now = session_now_ms();
    if (now > h->ran_ms + HUB_LATE_MS && now - HUB_LATE_MS > h->due_ms)
        list_each (struct conn, c, &h->conns, node)
            core_allow(&c->core, now - h->ran_ms);
    while ((r = next_ready(h, &flags))) {
        if (flags & READY_ACCEPT)
            listener_ready(r->object);
        else if (flags & READY_DIAL)
            dial_ready(r->object);
        else
            conn_ready(r->object, flags);
    }
    tick(h, now);
    h->ran_ms = now;
    h->n_since_ready = 0;
}

static void push_dirty(struct session_hub *h)
{
    for (struct list *n; (n = list_pop_front(&h->dirty));)
        conn_push(list_entry(n, struct conn, dirty));
}

/* Resets the eventfd if no object is ready; false: one is. */
static bool reset_eventfd(struct session_hub *h)
{
    uint64_t n;
    pthread_mutex_lock(&h->lock);
    bool idle = list_empty(&h->ready);
    if (idle) {
        (void)!read(h->fd, &n, sizeof n);
        h->raised = false;
    }
    pthread_mutex_unlock(&h->lock);
    return idle;
}

/* ---- events ---- */

static void report(struct session_event *out, enum session_event_type type, struct session *s)
{
    out->type = type;
    out->s = s;
    out->p = NULL;
    out->n = 0;
    out->err.code = 0;
    out->err.text[0] = '\0';
}

/* The accepted session that this connection replaces; a peer without a name replaces none. */
static struct session *older(const struct conn *c)
{
    list_each (struct session, s, &c->h->sessions, node)
        if (!s->dialed && s->up && *s->peer_name && !strcmp(s->peer_name, c->core.name) &&
            !strcmp(s->peer_role, c->core.role))
            return s;
    return NULL;
}

static bool came_up(struct conn *c, struct session_event *out, uint64_t now)
{
    struct err e;
    struct session *s = c->s, *old = s ? NULL : older(c);
    if (old) {
        c->up_due = true;
        hub_pend(c, true);
        session_close(old, "replaced by a newer connection of the same name");
        hub_pend(old->conn, true);
        return false;
    }
    if (!s && session_new(&e, &s, c->h, c->l ? c->l->url : "", c->l ? c->l->arg : NULL)) {
        core_end(&c->core, e.code, e.text, now, "%s", e.text);
        return false;
    }
    c->s = s;
    s->conn = c;
    s->up = true;
    s->up_ms = now;
    s->dial_error = NULL;
    memcpy(s->peer_role, c->core.role, sizeof s->peer_role);
    memcpy(s->peer_name, c->core.name, sizeof s->peer_name);
    s->peer_inc = c->core.inc;
    report(out, SESSION_UP, s);
    return true;
}

/* False: no event is reported. */
static bool went_down(struct conn *c, struct session_event *out, uint64_t now)
{
    struct session *s = c->s;
    if (!s)
        return false;
    bool up = s->up, refused = c->core.refused;
    report(out, up ? SESSION_DOWN : SESSION_REFUSED, s);
    out->err = c->core.err;
    if (out->err.code && s->dialed)
        err_prefix(&out->err, "%s", s->url);
    else if (out->err.code)
        err_prefix(&out->err, "%s %s", s->peer_role, s->peer_name);
    s->up = false;
    conn_detach(c);
    if (s->dialed)
        dial_again(s, refused && !up, now);
    else
        c->h->dead = s;
    return up || refused;
}

/* The next event of a connection; false: it has none, and is no longer pending. */
static bool event_of(struct conn *c, struct session_event *out)
{
    uint64_t now = session_now_ms();
    const uint8_t *p = NULL;
    size_t n = 0;
    enum core_event ev = CORE_EV_UP;
    list_remove(&c->pending);
    if (!c->up_due)
        ev = core_next(&c->core, &p, &n, now);
    c->up_due = false;
    conn_dirty(c);
    hub_due(c->h, core_due_ms(&c->core));
    if (ev == CORE_EV_NONE)
        return false;
    if (ev == CORE_EV_DOWN)
        return went_down(c, out, now);
    hub_pend(c, false);
    if (ev == CORE_EV_UP)
        return came_up(c, out, now);
    report(out, ev == CORE_EV_FRAME ? SESSION_FRAME : SESSION_ACKED, c->s);
    out->p = p;
    out->n = n;
    return true;
}

bool session_hub_next(struct session_hub *h, struct session_event *out)
{
    if (h->dead)
        session_delete(h->dead);
    h->dead = NULL;
    push_dirty(h);
    do {
        if (list_empty(&h->pending) || h->n_since_ready >= HUB_READY_EVERY)
            step(h);
        while (!list_empty(&h->pending))
            if (event_of(list_entry(h->pending.next, struct conn, pending), out)) {
                h->n_since_ready++;
                return true;
            }
        push_dirty(h);
    } while (!reset_eventfd(h));
    return false;
}

int session_hub_fd(const struct session_hub *h)
{
    return h->fd;
}

int session_hub_timeout_ms(const struct session_hub *h)
{
    uint64_t now = session_now_ms();
    if (!list_empty(&h->pending) || !list_empty(&h->dirty) || h->due_ms <= now)
        return 0;
    if (h->due_ms == UINT64_MAX)
        return -1;
    return h->due_ms - now > INT32_MAX ? INT32_MAX : (int)(h->due_ms - now);
}

void session_hub_wait(struct session_hub *h, int timeout_ms)
{
    struct pollfd p = {.fd = h->fd, .events = POLLIN};
    push_dirty(h);
    int due = session_hub_timeout_ms(h);
    (void)poll(&p, 1, timeout_ms < 0 || (due >= 0 && due < timeout_ms) ? due : timeout_ms);
}

/* Whether an ended connection still has to write a reason or its last acknowledgement. */
static bool has_ended_conns(const struct session_hub *h)
{
    list_each (struct conn, c, &h->conns, node)
        if (c->core.state == CORE_ENDED && !conn_is_over(c, session_now_ms()))
            return true;
    return false;
}

void session_hub_free(struct session_hub *h)
{
    if (!h)
        return;
    list_each_safe (struct session_listener, l, &h->listeners, node)
        session_listener_free(l);
    list_each_safe (struct session, s, &h->sessions, node)
        session_delete(s);
    list_each_safe (struct conn, c, &h->conns, node) {
        c->core.down_due = false;
        if (c->core.state != CORE_ENDED)
            conn_free(c);
    }
    uint64_t end = session_now_ms() + CORE_LINGER_MS;
    while (has_ended_conns(h) && session_now_ms() < end) {
        push_dirty(h);
        struct pollfd p = {.fd = h->fd, .events = POLLIN};
        (void)poll(&p, 1, 10);
        step(h);
        reset_eventfd(h);
    }
    list_each_safe (struct conn, c, &h->conns, node)
        conn_free(c);
    if (h->fd >= 0)
        close(h->fd);
    wire_arena_free(h->arena);
    pthread_mutex_destroy(&h->lock);
    free((char *)(uintptr_t)h->self.role);
    free(h);
}

/* ---- sessions ---- */

int session_new(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg)
{
    struct session *s = calloc(1, sizeof *s);
    char *copy = s ? strdup(url) : NULL;
    if (!copy) {
        free(s);
        return err_nomem(e, "a session", sizeof *s);
    }
    *s = (struct session){.h = h, .url = copy, .arg = arg};
    list_push_back(&h->sessions, &s->node);
    *out = s;
    return 0;
}

void session_delete(struct session *s)
{
    struct session_hub *h = s->h;
    if (s->conn)
        conn_detach(s->conn);
    dial_stop(s);
    list_remove(&s->node);
    h->dead = h->dead == s ? NULL : h->dead;
    free(s->url);
    free(s->role);
    free(s);
}

void session_close(struct session *s, const char *reason)
{
    struct conn *c = s->conn;
    if (!c)
        return;
    core_end(&c->core, ERR_NO, reason, session_now_ms(), "closed by this side%s%s", reason && *reason ? ": " : "",
             reason ? reason : "");
    conn_dirty(c);
    hub_pend(c, false);
}

void session_free(struct session *s)
{
    if (!s)
        return;
    session_close(s, "the peer ended the session");
    session_delete(s);
}

void session_bye(struct session *s, uint32_t timeout_ms)
{
    struct conn *c = s->conn;
    s->closing = true;
    if (!c)
        return;
    core_bye(&c->core, timeout_ms, session_now_ms());
    conn_dirty(c);
    hub_pend(c, false);
    hub_due(s->h, core_due_ms(&c->core));
}

static int not_connected(struct err *e, const struct session *s)
{
    return err_set(e, ERR_USAGE, "%s: the session is not connected", s->url);
}

int session_send(struct err *e, struct session *s, const struct wire_frame *f)
{
    if (!s->up || !s->conn)
        return not_connected(e, s);
    int rc = core_send(e, &s->conn->core, f, session_now_ms());
    conn_dirty(s->conn);
    return rc;
}

int session_send_bytes(struct err *e, struct session *s, const uint8_t *p, size_t n)
{
    if (!s->up || !s->conn)
        return not_connected(e, s);
    int rc = core_send_bytes(e, &s->conn->core, p, n, session_now_ms());
    conn_dirty(s->conn);
    return rc;
}

bool session_has_room(const struct session *s, size_t n)
{
    return s->up && s->conn && core_has_room(&s->conn->core, n);
}

uint64_t session_sent(const struct session *s)
{
    return s->up && s->conn ? s->conn->core.sent : 0;
}

uint64_t session_acked(const struct session *s)
{
    return s->up && s->conn ? s->conn->core.acked : 0;
}

uint64_t session_unacked_bytes(const struct session *s)
{
    return s->up && s->conn ? s->conn->core.unacked_bytes : 0;
}

bool session_is_up(const struct session *s)
{
    return s->up;
}

const char *session_peer_name(const struct session *s)
{
    return s->peer_name;
}

const char *session_peer_role(const struct session *s)
{
    return s->peer_role;
}

const char *session_dial_error(const struct session *s)
{
    return s->dial_error && !s->up ? s->dial_error : "";
}

uint64_t session_peer_inc(const struct session *s)
{
    return s->peer_inc;
}

const char *session_url(const struct session *s)
{
    return s->url;
}

void *session_arg(const struct session *s)
{
    return s->arg;
}

void session_set_arg(struct session *s, void *arg)
{
    s->arg = arg;
}
