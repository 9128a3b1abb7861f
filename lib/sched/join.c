/* Workers join with the work items they run: after their own start, or after a new session to the scheduler. */
#include "sched/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int store_find(const struct sched *s, struct wire_str name)
{
    int i = (int)s->n_store - 1;
    while (i >= 0 && !str_is(name, s->store[i].name))
        i--;
    return i;
}

int store_get(struct err *e, int *out, struct sched *s, struct wire_str name)
{
    *out = store_find(s, name);
    if (*out >= 0 || !name.n || s->n_store == SCHED_STORES_MAX)
        return 0;
    char *copy = strndup(name.p, name.n);
    if (!copy)
        return err_nomem(e, "a store", name.n);
    s->store[s->n_store] = (struct store){.name = copy};
    *out = (int)s->n_store++;
    return 0;
}

static int set_worker(struct err *e, struct sched *s, struct worker *w, const struct wire_join *f)
{
    struct sched_worker *p = &w->pub;
    int rc = store_get(e, &p->store, s, f->store);
    if (rc)
        return rc;
    w->incarnation = f->inc;
    p->role = (enum sched_role)str_index(f->role, sched_role_names, 4);
    p->seqs_all = f->seqs;
    p->blocks_all = f->blocks;
    p->max_len = f->max_len;
    p->chunk = f->chunk;
    fit_set(&p->prefill, f->pre_a, f->pre_b, f->pre_c, 1e3, 1e7);
    fit_set(&p->step, f->dec_a, f->dec_b, f->dec_c, 1e5, 1e2);
    s->recheck = s->recheck || !s->blocks_max;
    s->blocks_max = f->blocks > s->blocks_max ? f->blocks : s->blocks_max;
    s->max_len = f->max_len > s->max_len ? f->max_len : s->max_len;
    return 0;
}

/* Adds an attempt for a work item with which the worker joins. */
static int adopt(struct err *e, struct sched *s, struct worker *w, const struct wire_run *f)
{
    struct gateway *g;
    struct attempt *a;
    int rc = gateway_get(e, &g, s, f->gw);
    if (rc)
        return rc;
    struct request *r = req_find(s, g, f->job);
    bool is_new = !r;
    if (is_new) {
        rc = req_new(e, &r, s, g, f->job);
        if (rc)
            return rc;
        r->unclaimed = true;
        r->attempt = f->attempt;
        r->pub.n_prompt = f->n_prompt ? f->n_prompt : 1;
        r->pub.max_tokens = f->max_tokens;
    }
    bool wanted = is_new || (r->state == REQUEST_IN_GRACE && f->attempt >= r->attempt);
    rc = attempt_new(e, &a, s, r, w, (enum sched_phase)str_index(f->phase, sched_phase_names, 3));
    if (rc)
        return rc;
    a->order = f->order;
    a->number = f->attempt;
    attempt_clear(a); /* whether it is fresh is unknown */
    if (!wanted) {    /* another worker has it, or it has ended */
        attempt_cancel(s, a);
        return 0;
    }
    list_remove(&r->grace);
    r->attempt = f->attempt;
    r->current = a;
    r->pub.running = a->phase;
    req_set_state(s, r, REQUEST_RUNNING);
    if (is_new)
        list_push_back(&s->grace, &r->grace);
    return 0;
}

static int check(struct err *e, const struct wire_join *f)
{
    if (!f->worker.n)
        return err_set(e, ERR_PROTO, "join: the name of the worker is empty");
    if (str_index(f->role, sched_role_names, 4) <= 0)
        return err_set(e, ERR_PROTO, "join: role '%.*s' must be prefill, decode or both", (int)f->role.n, f->role.p);
    for (uint32_t i = 0; i < f->n_run; i++)
        if (str_index(f->run[i].phase, sched_phase_names, 3) < 0)
            return err_set(e, ERR_PROTO, "join: phase '%.*s' must be prefill, decode or whole", (int)f->run[i].phase.n,
                           f->run[i].phase.p);
    return 0;
}

int join_event(struct err *e, struct sched *s, const struct wire_join *f)
{
    char text[320];
    int rc = check(e, f);
    if (rc)
        return rc;
    if (s->kv_identity && !str_is(f->compat, s->kv_identity)) {
        snprintf(text, sizeof text,
                 "this worker computes KV of '%.*s', the others of '%s': start all workers with the same model, KV "
                 "type and release",
                 (int)f->compat.n, f->compat.p, s->kv_identity);
        worker_refuse(s, f->worker, text);
        return 0;
    }
    if (!s->kv_identity && f->compat.n) {
        s->kv_identity = strndup(f->compat.p, f->compat.n);
        if (!s->kv_identity)
            return err_nomem(e, "a name", f->compat.n);
    }
    struct worker *w = worker_find(s, f->worker);
    if (w) /* an earlier session, whose end was not reported */
        worker_gone(s, w);
    suspects_rejoined(s, f->inc);
    rc = worker_new(e, &w, s, f->worker);
    rc = rc ? rc : set_worker(e, s, w, f);
    for (uint32_t i = 0; i < f->n_run && !rc; i++)
        rc = adopt(e, s, w, &f->run[i]);
    for (uint32_t i = 0; i < DRAINED_MAX && !rc && f->inc; i++)
        if (s->drained[i] == f->inc) { /* it is the same process as before its session broke, so it stays drained */
            s->drained[i] = 0;
            worker_drain(s, w, true);
        }
    s->dirty = true;
    return rc;
}
