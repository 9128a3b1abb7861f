/* Workers register, with what they run: after their own start, or after the scheduler's. */
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

static int role_of(struct wire_str s)
{
    return str_among(s, sched_role_names, 4);
}

static int phase_of(struct wire_str s)
{
    return str_among(s, sched_phase_names, 3);
}

static int describe(struct err *e, struct sched *s, struct worker *w, const struct wire_join *f)
{
    struct sched_worker *p = &w->pub;
    int rc = store_get(e, &p->store, s, f->store);
    if (rc)
        return rc;
    w->inc = f->inc;
    p->role = (enum sched_role)role_of(f->role);
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

/* A run that the worker has and that has no try here. */
static int adopt(struct err *e, struct sched *s, struct worker *w, const struct wire_run *f)
{
    struct gateway *g;
    struct run *r;
    int rc = gateway_get(e, &g, s, f->gw);
    if (rc)
        return rc;
    struct job *j = job_find(s, g, f->job);
    bool is_new = !j;
    if (is_new) {
        rc = job_new(e, &j, s, g, f->job);
        if (rc)
            return rc;
        j->unasked = true;
        j->attempt = f->attempt;
        j->pub.n_prompt = f->n_prompt ? f->n_prompt : 1;
        j->pub.max_tokens = f->max_tokens;
    }
    bool wanted = is_new || (j->state == JOB_HELD && f->attempt >= j->attempt);
    rc = run_open(e, &r, s, j, w, (enum sched_phase)phase_of(f->phase));
    if (rc)
        return rc;
    r->order = f->order;
    r->attempt = f->attempt;
    if (!wanted) { /* another has it, or it has ended */
        run_abandon(s, r);
        return 0;
    }
    list_remove(&j->held);
    j->attempt = f->attempt;
    j->cur = r;
    r->current = true;
    j->pub.running = r->phase;
    job_set(s, j, JOB_RUNNING);
    if (is_new)
        list_push_back(&s->held, &j->held);
    return 0;
}

static int check(struct err *e, const struct wire_join *f)
{
    if (!f->worker.n)
        return err_set(e, ERR_PROTO, "join: a worker without a name");
    if (role_of(f->role) <= 0)
        return err_set(e, ERR_PROTO, "join: role '%.*s' is none of prefill, decode, both", (int)f->role.n, f->role.p);
    for (uint32_t i = 0; i < f->n_run; i++)
        if (phase_of(f->run[i].phase) < 0)
            return err_set(e, ERR_PROTO, "join: phase '%.*s' is none of prefill, decode, whole", (int)f->run[i].phase.n,
                           f->run[i].phase.p);
    return 0;
}

int join_event(struct err *e, struct sched *s, const struct wire_join *f)
{
    char text[320];
    int rc = check(e, f);
    if (rc)
        return rc;
    if (s->compat && !str_is(f->compat, s->compat)) {
        snprintf(text, sizeof text, "this worker computes '%.*s', the others '%s': their KV would not fit together",
                 (int)f->compat.n, f->compat.p, s->compat);
        worker_refuse(s, f->worker, text);
        return 0;
    }
    if (!s->compat && f->compat.n) {
        s->compat = strndup(f->compat.p, f->compat.n);
        if (!s->compat)
            return err_nomem(e, "a name", f->compat.n);
    }
    struct worker *w = worker_find(s, f->worker);
    if (w) /* its session, which must have ended, is that of an earlier life */
        worker_gone(s, w);
    rc = worker_new(e, &w, s, f->worker);
    rc = rc ? rc : describe(e, s, w, f);
    for (uint32_t i = 0; i < f->n_run && !rc; i++)
        rc = adopt(e, s, w, &f->run[i]);
    for (uint32_t i = 0; i < DRAINED_MAX && !rc && f->inc; i++)
        if (s->drained[i] == f->inc) { /* its session broke, the wish of who drained it stays */
            s->drained[i] = 0;
            worker_drain(s, w, true);
        }
    s->dirty = true;
    return rc;
}
