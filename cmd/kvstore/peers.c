/* Connections: open, close, watchers. */
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "base/vec.h"
#include "cli/cli.h"
#include "cmd/kvstore/kvstore.h"

#define EVENT_BYTES ((size_t)WIRE_KV_EVENT_BYTES_MAX / 2)
#define LAG_BYTES ((uint64_t)8 << 20) /* a watcher with more unsent bytes gets a snapshot later instead of events */

/* When the process started, in clock ticks after the boot; 0: it does not exist. */
static uint64_t pid_start(int64_t pid)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *f = pid > 0 ? fopen(path, "re") : NULL;
    if (!f)
        return 0;
    size_t n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = 0;
    const char *at = strrchr(line, ')'); /* the process name before it may contain any character */
    for (int field = 2; at && field < 22; field++)
        at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

bool kvstore_reap_absent(struct kvstore *k)
{
    uint32_t c = KV_NONE;
    int64_t pid;
    uint64_t start;
    bool any = false;
    while (k->store && kv_store_absent(k->store, &c, &pid, &start)) {
        any = true;
        if (!start || pid_start(pid) != start)
            kv_store_leave(k->store, c, time_now_ns());
    }
    return any;
}

int kvstore_open_store(struct err *e, struct kvstore *k, struct kv_arena *a)
{
    struct kv_store *s;
    struct peer **of = calloc(kv_arena_head(a)->n_client, sizeof(struct peer *));
    int rc = of ? kv_store_new(e, &s, a, &k->o, time_now_ns()) : err_nomem(e, "clients", sizeof(struct peer *));
    if (rc) {
        free(of);
        kv_arena_free(a);
        return rc;
    }
    k->arena = a;
    k->huge_bytes = kv_arena_huge_bytes(a);
    k->store = s;
    k->of_client = of;
    return 0;
}

/* ---- watchers ---- */

/* Omits the digest if memory allocation fails. */
static void add_digest(void *arg, const uint8_t *digest)
{
    struct digests *d = arg;
    if (!vec_grow(&d->p, &d->cap, d->n + KV_DIGEST, 1))
        return;
    memcpy(d->p + d->n, digest, KV_DIGEST);
    d->n += KV_DIGEST;
}

static void warn(void *arg, const char *text)
{
    (void)arg;
    cli_warn(PROG, "%s", text);
}

/* For lines that a peer can cause at will. */
static void __attribute__((format(printf, 2, 3))) peer_warn(struct kvstore *k, const char *format, ...)
{
    char text[sizeof((struct err *)NULL)->text + 64];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    log_limit(&k->peers, time_now_ns(), text, warn, NULL);
}

void kvstore_event(void *arg, const struct kv_event *n)
{
    struct kvstore *k = arg;
    bool of_client = n->kind == KV_EVENT_SEQ || n->kind == KV_EVENT_EXPIRED;
    struct peer *p = of_client ? k->of_client[n->client] : NULL;
    struct err e = {0};
    if (n->kind == KV_EVENT_TIER)
        cli_warn(PROG, "%s", n->text);
    if (n->kind == KV_EVENT_DAMAGED)
        log_limit(&k->damaged, time_now_ns(), n->text, warn, NULL);
    if (n->kind == KV_EVENT_STORED && !list_empty(&k->watchers))
        add_digest(&k->stored, n->digest);
    if (n->kind == KV_EVENT_EVICTED && !list_empty(&k->watchers))
        add_digest(&k->evicted, n->digest);
    if (p && n->kind == KV_EVENT_EXPIRED) {
        cli_warn(PROG, "%s (process %" PRId64 ") is silent: its lease has ended", p->name, link_pid(p->conn));
        err_set(&e, ERR_NO, "the lease has ended: all that the client owned was released");
        kvstore_refuse(p, 0, KV_WHY_EXPIRED, &e);
    } else if (p && n->kind == KV_EVENT_SEQ) {
        kvstore_seq_event(p, &n->seq);
    }
}

static void send_events(struct peer *p, bool reset, const struct digests *stored, const struct digests *evicted)
{
    static const uint8_t none[1];
    size_t at_s = 0, at_v = 0;
    do {
        size_t s = stored->n - at_s < EVENT_BYTES ? stored->n - at_s : EVENT_BYTES;
        size_t v = evicted->n - at_v < EVENT_BYTES ? evicted->n - at_v : EVENT_BYTES;
        struct wire_frame f = {.kind = WIRE_KV_EVENT,
                               .kv_event = {.reset = reset,
                                            .stored = {s ? stored->p + at_s : none, s},
                                            .evicted = {v ? evicted->p + at_v : none, v}}};
        link_send(p->conn, &f, NULL);
        reset = false;
        at_s += s;
        at_v += v;
    } while (at_s < stored->n || at_v < evicted->n);
}

static void send_snapshot(struct kvstore *k, struct peer *p)
{
    struct digests all = {0}, none = {0};
    if (k->store)
        kv_store_each(k->store, add_digest, &all);
    send_events(p, true, &all, &none);
    free(all.p);
    p->lagging = false;
}

void kvstore_notify_watchers(struct kvstore *k)
{
    list_each (struct peer, p, &k->watchers, node) {
        if (p->lagging && !link_queued(p->conn))
            send_snapshot(k, p);
        else if (!p->lagging && (k->stored.n || k->evicted.n)) {
            p->lagging = link_queued(p->conn) > LAG_BYTES;
            if (!p->lagging)
                send_events(p, false, &k->stored, &k->evicted);
        }
    }
    k->stored.n = k->evicted.n = 0;
}

/* ---- opening ---- */

static int name_of(struct err *e, char *out, struct wire_str s, const char *what)
{
    if (s.n >= KV_NAME_BYTES)
        return err_set(e, ERR_PROTO, "the name of the %s has %zu bytes, the limit is %d", what, (size_t)s.n,
                       KV_NAME_BYTES - 1);
    memset(out, 0, KV_NAME_BYTES);
    memcpy(out, s.p, s.n);
    return 0;
}

static int kind_of(struct err *e, struct kv_kind *out, const struct wire_kv_open *o)
{
    static const enum kern_kv all[] = {KERN_KV_INT8, KERN_KV_BF16, KERN_KV_F16};
    size_t i = 0, n = sizeof all / sizeof *all;
    *out = (struct kv_kind){.n_layer = o->n_layer, .n_kv_head = o->n_kv_head, .head_dim = o->head_dim};
    memcpy(out->model, o->model_fp.p, sizeof out->model);
    while (i < n &&
           (strlen(kern_kv_name(all[i])) != o->kv_type.n || memcmp(kern_kv_name(all[i]), o->kv_type.p, o->kv_type.n)))
        i++;
    if (i == n)
        return err_set(e, ERR_PROTO, "KV of unknown type %.*s", (int)o->kv_type.n, o->kv_type.p);
    out->type = all[i];
    int rc = name_of(e, out->arith, o->arith, "arithmetic");
    return rc ? rc : name_of(e, out->layout, o->layout, "layout");
}

/* Adopts the arena that the first client of the previous kvstore brings. */
static void adopt_from(struct kvstore *k, struct peer *p)
{
    struct err e = {0};
    struct kv_arena *a;
    int fd[KV_ARENA_FDS];
    link_take_fds(p->conn, fd);
    if (fd[1] < 0) {
        socket_fds_close(fd);
        return;
    }
    int rc = kv_arena_adopt(&e, &a, fd, &k->kind);
    rc = rc ? rc : kvstore_open_store(&e, k, a);
    if (rc)
        cli_warn(PROG, "the arena that %s transferred is not used: %s", p->name, e.text);
    else
        kvstore_report_arena(k, "adopted from a client");
}

static int join(struct err *e, struct kvstore *k, struct peer *p, const struct wire_kv_open *o, enum kv_why *why,
                bool *kept)
{
    struct kv_kind theirs;
    *why = KV_WHY_REFUSED;
    *kept = false;
    int rc = kind_of(e, &theirs, o);
    rc = rc ? rc : kv_kind_check(e, &k->kind, &theirs, p->name);
    if (rc)
        return rc;
    if (!k->store && o->brings_arena)
        adopt_from(k, p);
    *why = k->draining ? KV_WHY_DRAINING : KV_WHY_NOT_NOW;
    if (!k->store)
        return err_set(e, ERR_NO, "kvstore is starting: retry");
    if (o->client) {
        rc = kv_store_rejoin(e, k->store, &p->client, o->client, o->key, time_now_ns());
        *kept = !rc;
        *why = KV_WHY_EXPIRED;
    } else if (k->draining) {
        return err_set(e, ERR_NO, "kvstore is shutting down");
    } else {
        int64_t pid = link_pid(p->conn);
        rc = kv_store_join(e, k->store, &p->client, pid, pid_start(pid), time_now_ns());
    }
    return rc;
}

static void open_peer(struct kvstore *k, struct peer *p, const struct wire_kv_open *o)
{
    struct err e = {0};
    enum kv_why why = KV_WHY_REFUSED;
    bool kept = false;
    size_t n = o->from.n < WIRE_NAME_BYTES_MAX ? o->from.n : WIRE_NAME_BYTES_MAX;
    memcpy(p->name, o->from.p, n);
    int rc = p->open ? err_set(&e, ERR_PROTO, "a second kv_open") : 0;
    if (!rc && o->has_kv)
        rc = join(&e, k, p, o, &why, &kept);
    if (rc) {
        if (rc == ERR_PROTO)
            peer_warn(k, "refused: %s", e.text);
        kvstore_refuse(p, o->tag, why, &e);
        link_close(p->conn);
        return;
    }
    p->open = true;
    struct wire_frame f = {.kind = WIRE_KV_ARENA, .kv_arena = {.tag = o->tag, .kept = kept}};
    if (o->has_kv) {
        struct peer *old = k->of_client[p->client];
        if (old && old != p) { /* its former connection broke, which is not detected yet */
            old->client = KV_NONE;
            link_close(old->conn);
        }
        k->of_client[p->client] = p;
        kv_store_identity(k->store, p->client, &f.kv_arena.client, &f.kv_arena.key);
        f.kv_arena.arena = kv_arena_head(k->arena)->id;
        f.kv_arena.bytes = kv_arena_head(k->arena)->bytes;
        f.kv_arena.lease_ms = k->o.lease_ns / NS_MS;
        link_send(p->conn, &f, kv_arena_fds(k->arena));
        if (kept)
            kv_store_resend(k->store, p->client);
    } else {
        f.kv_arena.lease_ms = k->o.lease_ns / NS_MS;
        link_send(p->conn, &f, NULL);
    }
}

/* ---- callbacks of the server ---- */

static void on_frame(void *arg, struct link_conn *c, const struct wire_frame *f)
{
    struct kvstore *k = arg;
    struct peer *p = link_data(c);
    struct err e = {0};
    if (!p) {
        p = calloc(1, sizeof *p);
        if (!p) {
            link_close(c);
            return;
        }
        p->conn = c;
        p->client = KV_NONE;
        list_init(&p->node);
        list_init(&p->late);
        link_set_data(c, p);
    }
    if (f->kind == WIRE_KV_OPEN) {
        open_peer(k, p, &f->kv_open);
    } else if (!p->open) {
        err_set(&e, ERR_PROTO, "a %s frame before kv_open", wire_kind_name(f->kind));
        kvstore_refuse(p, 0, KV_WHY_REFUSED, &e);
        link_close(c);
    } else if (f->kind == WIRE_KV_WATCH) {
        link_send(c, f, NULL);
        if (list_empty(&p->node))
            list_push_front(&k->watchers, &p->node);
        send_snapshot(k, p);
    } else {
        kvstore_serve(k, p, f);
    }
}

static void on_bad(void *arg, struct link_conn *c, const struct err *e)
{
    struct kvstore *k = arg;
    struct peer *p = link_data(c), anonymous = {.conn = c};
    peer_warn(k, "process %" PRId64 ": %s", link_pid(c), e->text);
    kvstore_refuse(p ? p : &anonymous, 0, KV_WHY_REFUSED, e);
}

static void on_closed(void *arg, struct link_conn *c)
{
    struct kvstore *k = arg;
    struct peer *p = link_data(c);
    if (!p)
        return;
    list_remove(&p->node);
    if (p->client != KV_NONE) {
        k->of_client[p->client] = NULL;
        if (k->server) /* at exit the arena is left unchanged for the next kvstore */
            kv_store_leave(k->store, p->client, time_now_ns());
    }
    list_each_safe (struct late, l, &p->late, node)
        free(l);
    free(p);
}

const struct link_ops kvstore_ops = {on_frame, on_bad, on_closed};
