/* Orders and controls as they come: each is told once, whatever came twice, too early or too late. */
#include "link/worker_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/kv_block.h"

static struct order **bucket(const struct worker_link *w, uint64_t id)
{
    return (struct order **)(uintptr_t)&w->order[(id * 0x9e3779b97f4a7c15u) >> 54];
}

struct order *order_find(const struct worker_link *w, uint64_t id)
{
    struct order *o = *bucket(w, id);
    while (o && o->id != id)
        o = o->next;
    return o;
}

static bool str_is(struct wire_str s, const char *what)
{
    size_t n = strlen(what);
    return s.n == n && !memcmp(s.p, what, n);
}

static void str_to(char *out, size_t size, struct wire_str s)
{
    size_t n = s.n < size ? s.n : size - 1;
    if (n)
        memcpy(out, s.p, n);
    out[n] = 0;
}

/* ---- what is told ---- */

static void put_told(struct worker_link *w, struct told *t)
{
    *w->end = t;
    w->end = &t->next;
    uint64_t one = 1;
    (void)!write(w->fd, &one, sizeof one);
}

void order_tell(struct worker_link *w, enum worker_told_what what, uint64_t order, struct wire_str role)
{
    struct told *t = calloc(1, sizeof *t);
    if (!t) /* a cancel that is not told costs work, no more: its tokens and reports are dropped */
        return;
    t->pub.what = what;
    t->pub.order = order;
    str_to(t->pub.role, sizeof t->pub.role, role);
    put_told(w, t);
}

void worker_told_free(struct worker_told *p)
{
    struct told *t = (struct told *)p; /* pub is its first member */
    if (!t)
        return;
    wire_arena_free(t->mem);
    free(t->bytes);
    free(t);
}

void order_untell(struct worker_link *w)
{
    for (struct told *t = w->first, *next; t; t = next) {
        next = t->next;
        worker_told_free(&t->pub);
    }
    w->first = NULL;
    w->end = &w->first;
}

static void need_add(struct need *n, const struct need *d)
{
    n->seqs += d->seqs;
    n->tokens += d->tokens;
    n->blocks += d->blocks;
}

static void need_sub(struct need *n, const struct need *d)
{
    n->seqs -= d->seqs;
    n->tokens -= d->tokens;
    n->blocks -= d->blocks;
}

/* An order that was taken is still in `coming` until the caller says its room anew: only then is it in there. */
struct worker_told *worker_link_take(struct worker_link *w)
{
    pthread_mutex_lock(&w->lock);
    struct told *t = w->first;
    if (t) {
        w->first = t->next;
        w->end = w->first ? w->end : &w->first;
        t->next = NULL;
        need_add(&w->taken, &t->need);
    }
    if (!w->first) {
        uint64_t n;
        (void)!read(w->fd, &n, sizeof n);
    }
    pthread_mutex_unlock(&w->lock);
    return t ? &t->pub : NULL;
}

void worker_link_room(struct worker_link *w, const struct worker_room *r)
{
    pthread_mutex_lock(&w->lock);
    need_sub(&w->coming, &w->taken);
    w->taken = (struct need){0};
    w->room = *r;
    pthread_mutex_unlock(&w->lock);
    link_box_wake(w->box);
}

/* ---- orders ---- */

/* A copy of the frame that lives by itself. */
static struct told *told_new(const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct told *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    t->bytes = malloc(n);
    t->mem = wire_arena_new();
    if (t->bytes && t->mem) {
        memcpy(t->bytes, p, n);
        const uint8_t *at = t->bytes;
        if (link_msg_next(&e, &t->f, t->mem, &at, &n))
            return t;
    }
    worker_told_free(&t->pub);
    return NULL;
}

static void fill(struct order *o, const struct wire_order *f)
{
    o->id = f->order;
    o->job = f->job;
    o->lease_ns = f->lease_ns;
    o->attempt = f->attempt;
    o->n_prompt = f->n_prompt;
    o->max_tokens = f->max_tokens;
    o->n_out = f->n_out;
    str_to(o->gw, sizeof o->gw, f->gw);
    str_to(o->phase, sizeof o->phase, f->phase);
}

static struct need need_of(const struct worker_link *w, const struct wire_order *f)
{
    bool prefill = str_is(f->phase, "prefill"), decode = str_is(f->phase, "decode");
    uint64_t all = (uint64_t)f->n_prompt + (prefill ? (uint64_t)f->n_out + 1 : f->max_tokens);
    uint64_t most = w->o.max_len ? w->o.max_len : UINT32_MAX;
    uint32_t n_new = f->n_prompt > f->cached ? f->n_prompt - f->cached : 0;
    return (struct need){1, decode ? 0 : n_new, ((all < most ? all : most) + KV_BLOCK - 1) / KV_BLOCK};
}

static bool among(const uint64_t *v, uint32_t n, uint64_t x)
{
    bool found = false;
    for (uint32_t i = 0; i < n; i++)
        found |= v[i] == x;
    return found;
}

static void preempt(struct worker_link *w, struct order *o)
{
    if (o->preempted || o->cancelled || o->closed)
        return;
    o->preempted = true;
    order_tell(w, TOLD_PREEMPT, o->id, (struct wire_str){0});
}

static bool open_order(struct worker_link *w, const struct wire_order *f, const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct outlet *outlet;
    char url[WIRE_URL_BYTES_MAX + 1];
    str_to(url, sizeof url, f->reply);
    struct told *t = told_new(p, n);
    struct order *o = calloc(1, sizeof *o);
    if (!t || !o) {
        worker_told_free(t ? &t->pub : NULL);
        free(o);
        return false;
    }
    if (outlet_get(&e, &outlet, w, url)) {
        report_orphan(w, "failed", f->gw, f->job, f->order, f->attempt, &e);
        worker_told_free(&t->pub);
        free(o);
        return true;
    }
    fill(o, f);
    o->outlet = outlet;
    outlet->n_order++;
    o->next = *bucket(w, o->id);
    *bucket(w, o->id) = o;
    w->n_order++;
    t->pub.what = TOLD_ORDER;
    t->pub.order = o->id;
    t->pub.o = &t->f.order;
    t->need = need_of(w, f);
    need_add(&w->coming, &t->need);
    put_told(w, t);
    if (among(w->early, WORKER_EARLY, o->id))
        preempt(w, o);
    return true;
}

bool order_frame(struct worker_link *w, const struct wire_order *f, const uint8_t *p, size_t n)
{
    if (f->n <= w->got)
        return true;
    bool seen = order_find(w, f->order) || among(w->tomb, WORKER_TOMBS, f->order);
    if (!seen && !open_order(w, f, p, n))
        return false;
    w->got = f->n;
    return true;
}

/* Its last piece, or the scheduler's knowledge of it, has gone. */
static void free_if_done(struct order *o)
{
    if (o->gone && !o->n_piece) {
        o->outlet->n_order--;
        free(o);
    }
}

void order_drop_piece(struct order *o)
{
    o->n_piece--;
    free_if_done(o);
}

void order_gone(struct worker_link *w, struct order *o)
{
    struct order **at = bucket(w, o->id);
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    w->n_order--;
    o->gone = true;
    free_if_done(o);
}

/* Its tokens need not arrive any more, nor do its reports wait for them. */
void order_cancel(struct worker_link *w, struct order *o)
{
    if (o->cancelled)
        return;
    o->cancelled = true;
    o->outlet->sweep = true;
    if (!o->closed)
        order_tell(w, TOLD_CANCEL, o->id, (struct wire_str){0});
}

/* Nobody renews what it runs: it belongs to others by now. */
void order_leases(struct worker_link *w, uint64_t now_ns)
{
    for (uint32_t i = 0; i < WORKER_BUCKETS && w->n_order; i++)
        for (struct order *o = w->order[i]; o; o = o->next)
            if (!o->closed && o->lease_ns && now_ns > w->heard_ns && now_ns - w->heard_ns >= o->lease_ns)
                order_cancel(w, o);
}

/* ---- controls ---- */

static void cancel(struct worker_link *w, const struct wire_control *f)
{
    struct order *o = order_find(w, f->order);
    if (o) {
        order_cancel(w, o);
        return;
    }
    w->tomb[w->tomb_at++ % WORKER_TOMBS] = f->order;
    report_orphan(w, "cancelled", f->gw, f->job, f->order, f->attempt, NULL);
}

static void set_role(struct worker_link *w, struct wire_str role)
{
    if (str_is(role, w->role))
        return;
    str_to(w->role, sizeof w->role, role);
    order_tell(w, TOLD_ROLE, 0, role);
}

void control_frame(struct worker_link *w, const struct wire_control *f)
{
    if (f->n <= w->got_ctl)
        return;
    w->got_ctl = f->n;
    struct order *o = order_find(w, f->order);
    if (str_is(f->what, "cancel")) {
        cancel(w, f);
    } else if (str_is(f->what, "preempt")) {
        if (o)
            preempt(w, o);
        else
            w->early[w->early_at++ % WORKER_EARLY] = f->order;
    } else if (str_is(f->what, "drain") && !w->draining) {
        w->draining = true;
        order_tell(w, TOLD_DRAIN, 0, (struct wire_str){0});
    } else if (str_is(f->what, "resume") && w->draining) {
        w->draining = false;
        order_tell(w, TOLD_RESUME, 0, (struct wire_str){0});
    } else if (str_is(f->what, "role")) {
        set_role(w, f->role);
    }
}
