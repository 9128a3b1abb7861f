/* The state machine: dispatches events, and at the end of an instant runs the timers and the policy, and sends the
 * acks.
 */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>

bool str_is(struct wire_str s, const char *what)
{
    size_t n = strlen(what);
    return s.n == n && !memcmp(s.p, what, n);
}

int str_index(struct wire_str s, const char *const *names, int n)
{
    int i = 0;
    while (i < n && !str_is(s, names[i]))
        i++;
    return i < n ? i : -1;
}

/* ---- settings ---- */

static const struct sched_setting own_settings[] = {
    {"heartbeat_ms", 1000},    /* a session without a frame for three of these is closed */
    {"grace_ms", 3000},        /* after a restart: how long workers and gateways wait for each other */
    {"lease_ms", 10000},       /* how long a disconnected worker keeps its work items */
    {"retry_ms", 1000},        /* the least delay before a refused request is submitted again */
    {"queue_max", 100000},     /* requests that wait for prefill */
    {"queue_bytes", 1 << 30},  /* bytes of the bodies of all requests */
    {"worker_bytes", 1 << 28}, /* bytes of the bodies of the work items of a worker, unless it has only one */
    {"tenant_share", 0.5},     /* the share of queue_max and queue_bytes that one tenant may have */
    {"retries", 3},            /* of a request, after failures of its workers */
    {"deaths", 2},             /* workers that may die while they begin to compute a request, before it fails */
    {"reserve", 1},            /* share of max_tokens for which blocks must be free */
};

static uint64_t ns_of(const struct sched *s, const char *name)
{
    double ms = sched_get(s, name);
    return ms < 1 ? NS_MS : ms > 1e12 ? (uint64_t)1e18 : (uint64_t)(ms * 1e6);
}

static uint64_t count_of(const struct sched *s, const char *name)
{
    double v = sched_get(s, name);
    return v < 0 ? 0 : v > 1e15 ? (uint64_t)1e15 : (uint64_t)v;
}

static void read_settings(struct sched *s)
{
    s->grace_ns = ns_of(s, "grace_ms");
    s->lease_ns = ns_of(s, "lease_ms");
    s->retry_ns = ns_of(s, "retry_ms");
    s->queue_max = count_of(s, "queue_max");
    s->queue_bytes = count_of(s, "queue_bytes");
    s->worker_bytes = count_of(s, "worker_bytes");
    s->retries_max = (uint32_t)(count_of(s, "retries") < 1000 ? count_of(s, "retries") : 1000);
    s->deaths_max = (uint32_t)(count_of(s, "deaths") < 1000 ? count_of(s, "deaths") : 1000);
    s->tenant_share = sched_get(s, "tenant_share");
    s->reserve = sched_get(s, "reserve");
}

int sched_set(struct err *e, struct sched *s, const char *name, double value)
{
    if (!strncmp(name, "weight:", 7))
        return tenant_set_weight(e, s, name + 7, value);
    for (size_t i = 0; i < s->n_setting; i++)
        if (!strcmp(s->setting[i].name, name)) {
            s->setting[i].value = value;
            read_settings(s);
            s->dirty = true;
            return 0;
        }
    return err_set(e, ERR_USAGE, "unknown setting '%.60s': neither the scheduler nor the policy %s has it", name,
                   s->policy->name);
}

static void add_settings(struct sched *s, const struct sched_setting *k, size_t n)
{
    for (size_t i = 0; i < n && s->n_setting < SCHED_SETTINGS_MAX; i++)
        s->setting[s->n_setting++] = k[i];
}

/* ---- start and end ---- */

void sched_set_sink(struct sched *s, const struct sched_sink *sink)
{
    s->sink = *sink;
}

int sched_new(struct err *e, struct sched **out, const struct sched_policy *p, const struct sched_sink *sink)
{
    struct sched *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, "the scheduler", sizeof *s);
    s->policy = p;
    if (sink)
        s->sink = *sink;
    list_init(&s->unacked);
    list_init(&s->grace);
    list_init(&s->suspects);
    add_settings(s, own_settings, sizeof own_settings / sizeof *own_settings);
    add_settings(s, p->settings, p->n_setting);
    read_settings(s);
    s->policy_state = calloc(1, p->n_state + 1);
    int rc = s->policy_state ? 0 : err_nomem(e, "the policy", p->n_state);
    if (!rc && p->open)
        rc = p->open(e, s->policy_state, p->arg);
    if (rc) {
        free(s->policy_state);
        free(s);
        return rc;
    }
    *out = s;
    return 0;
}

void sched_free(struct sched *s)
{
    if (!s)
        return;
    if (s->policy->close)
        s->policy->close(s->policy_state);
    sched_set_sink(s, &(struct sched_sink){0});
    s->retries_max = 0;
    while (s->n_worker)
        worker_gone(s, s->worker[0]);
    for (size_t i = 0; s->gateways.slot && i <= s->gateways.mask;) {
        struct gateway *g = s->gateways.slot[i].p;
        if (g)
            gateway_gone(s, g); /* frees it, since no worker has joined */
        else
            i++;
    }
    for (uint32_t i = 0; i < s->n_store; i++)
        free(s->store[i].name);
    map_free(&s->workers);
    map_free(&s->gateways);
    map_free(&s->requests);
    map_free(&s->tenants);
    free(s->weight);
    index_free(&s->index);
    free(s->worker);
    free(s->kv_identity);
    free(s->policy_state);
    free(s);
}

/* ---- events ---- */

static int gone_event(struct sched *s, const struct wire_gone *f)
{
    struct worker *w = f->worker.n ? worker_find(s, f->worker) : NULL;
    if (w && (!f->inc || w->incarnation == f->inc))
        worker_gone(s, w);
    struct gateway *g = f->gw.n ? gateway_find(s, f->gw) : NULL;
    if (g)
        gateway_gone(s, g);
    int store = store_find(s, f->store);
    if (store >= 0)
        index_clear_store(&s->index, (uint32_t)store);
    return 0;
}

static int blocks_event(struct err *e, struct sched *s, const struct wire_blocks *f)
{
    int store;
    if (f->stored.n % 32 || f->evicted.n % 32)
        return err_set(e, ERR_PROTO, "blocks: digests must have a multiple of 32 bytes");
    int rc = store_get(e, &store, s, f->store);
    if (rc || store < 0)
        return rc;
    if (f->reset)
        index_clear_store(&s->index, (uint32_t)store);
    for (size_t i = 0; i < f->stored.n; i += 32)
        index_prefetch(&s->index, f->stored.p + i);
    for (size_t i = 0; i < f->evicted.n; i += 32)
        index_clear(&s->index, f->evicted.p + i, (uint32_t)store);
    for (size_t i = 0; i < f->stored.n && !rc; i += 32)
        rc = index_set(e, &s->index, f->stored.p + i, (uint32_t)store);
    return rc;
}

static int setting_event(struct err *e, struct sched *s, const struct wire_knob *f)
{
    char name[WIRE_NAME_BYTES_MAX + 1] = "";
    if (f->name.n)
        memcpy(name, f->name.p, f->name.n);
    name[f->name.n] = 0;
    if (!f->worker.n) {
        int rc = sched_set(e, s, name, (double)f->value);
        return rc ? err_set(e, ERR_PROTO, "knob: unknown setting '%s'", name) : 0;
    }
    struct worker *w = worker_find(s, f->worker);
    if (!w)
        return err_set(e, ERR_PROTO, "knob: unknown worker '%.*s'", (int)f->worker.n, f->worker.p);
    if (!strcmp(name, "drain"))
        worker_drain(s, w, f->value != 0);
    else if (!strcmp(name, "role") && f->value >= 1 && f->value <= 3)
        sched_set_role(s, &w->pub, (enum sched_role)f->value);
    else if (!strcmp(name, "hand_over")) /* its requests continue on other workers */
        for (const struct sched_request *r = NULL; (r = sched_running(&w->pub, r));)
            sched_preempt(s, r);
    else
        return err_set(e, ERR_PROTO, "knob: '%s' of a worker: must be drain, hand_over or role (1 to 3)", name);
    return 0;
}

static void stat_event(struct sched *s, struct wire_str to)
{
    struct wire_frame f = {.kind = WIRE_STAT};
    sched_stat(s, &f.stat);
    f.stat.to = to;
    emit(s, &f);
}

static uint64_t time_of(const struct wire_frame *f)
{
    switch ((int)f->kind) { /* at_ns is the first member of each */
    case WIRE_SUBMIT:
    case WIRE_CANCEL:
    case WIRE_JOIN:
    case WIRE_CAPACITY:
    case WIRE_REPORT ... WIRE_TICK:
    case WIRE_STAT:
        return f->tick.at_ns;
    default:
        return 0;
    }
}

static int event(struct err *e, struct sched *s, const struct wire_frame *f)
{
    switch ((int)f->kind) {
    case WIRE_SUBMIT:
        return submit_event(e, s, &f->submit);
    case WIRE_CANCEL:
        cancel_event(s, &f->cancel);
        return 0;
    case WIRE_JOIN:
        return join_event(e, s, &f->join);
    case WIRE_CAPACITY:
        return capacity_event(s, &f->capacity);
    case WIRE_REPORT:
        return report_event(e, s, &f->report);
    case WIRE_GONE:
        return gone_event(s, &f->gone);
    case WIRE_BLOCKS:
        return blocks_event(e, s, &f->blocks);
    case WIRE_KNOB:
        return setting_event(e, s, &f->knob);
    case WIRE_TICK:
        return 0;
    case WIRE_STAT:
        stat_event(s, f->stat.to);
        return 0;
    default:
        return err_set(e, ERR_PROTO, "a %s frame: the scheduler does not accept this kind", wire_kind_name(f->kind));
    }
}

int sched_event(struct err *e, struct sched *s, const struct wire_frame *f)
{
    uint64_t at = time_of(f);
    s->now_ns = at > s->now_ns ? at : s->now_ns;
    if (!s->started) { /* numbers from the clock are not used again after a restart */
        s->started = true;
        s->next_order = s->now_ns + 1;
        s->scan_ns = s->now_ns;
    }
    return event(e, s, f);
}

int sched_decide(struct err *e, struct sched *s)
{
    int rc = 0;
    submit_timers(s);
    worker_timers(s);
    if (s->dirty) {
        s->dirty = false;
        rc = s->policy->decide(e, s->policy_state, s);
        s->dirty = false; /* the policy's own actions need no second call */
    }
    submit_acks(s);
    if (!rc && s->failure.code) {
        *e = s->failure;
        s->failure.code = 0;
        rc = e->code;
    }
    return rc;
}

uint64_t sched_next_ns(const struct sched *s)
{
    uint64_t next = UINT64_MAX;
    const struct request *r = grace_first(s);
    if (s->n_worker || s->n_gateway)
        next = s->scan_ns;
    if (s->deadlines && s->deadlines->at_ns < next)
        next = s->deadlines->at_ns;
    if (r && r->pub.since_ns + s->grace_ns < next)
        next = r->pub.since_ns + s->grace_ns;
    return next;
}

uint64_t sched_now_ns(const struct sched *s)
{
    return s->now_ns;
}
