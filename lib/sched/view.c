/* What policies see and do (policy.h). */
#include "sched/machine.h"

#include <string.h>

static struct sched *of(const struct sched_view *v)
{
    return (struct sched *)(uintptr_t)v; /* the view is the machine's first member */
}

const char *const sched_role_names[4] = {"", "prefill", "decode", "both"};
const char *const sched_phase_names[3] = {"prefill", "decode", "whole"};

uint64_t sched_view_now(const struct sched_view *v)
{
    return of(v)->now_ns;
}

double sched_view_knob(const struct sched_view *v, const char *name)
{
    const struct sched *s = of(v);
    for (size_t i = 0; i < s->n_knob; i++) /* a policy's own words are mostly the very same */
        if (s->knob[i].name == name)
            return s->knob[i].value;
    for (size_t i = 0; i < s->n_knob; i++)
        if (!strcmp(s->knob[i].name, name))
            return s->knob[i].value;
    return 0;
}

uint32_t sched_n_worker(const struct sched_view *v)
{
    return of(v)->n_worker;
}

const struct sched_worker *sched_worker_at(const struct sched_view *v, uint32_t i)
{
    return &of(v)->worker[i]->pub;
}

const struct sched_job *sched_waiting(const struct sched_view *v, bool ready, const struct sched_job *before)
{
    const struct sched *s = of(v);
    const struct job *j = before ? job_of(before)->skip.next[0] : (ready ? &s->ready : &s->queued)->first[0];
    return j ? &j->pub : NULL;
}

uint64_t sched_n_waiting(const struct sched_view *v, bool ready)
{
    return (ready ? &of(v)->ready : &of(v)->queued)->n;
}

uint64_t sched_waiting_tokens(const struct sched_view *v)
{
    return of(v)->queued.tokens;
}

const struct sched_job *sched_fresh(const struct sched_view *v, const struct sched_job *before)
{
    const struct list *head = &of(v)->fresh, *n = before ? &job_of(before)->fresh : head;
    while ((n = n->next) != head) {
        const struct job *j = list_entry(n, struct job, fresh);
        if (j->state == JOB_QUEUED)
            return &j->pub;
    }
    return NULL;
}

const struct sched_job *sched_running(const struct sched_view *v, const struct sched_worker *w,
                                      const struct sched_job *before)
{
    (void)v;
    const struct list *head = &worker_of(w)->runs, *n = before ? &job_of(before)->cur->of_worker : head;
    while ((n = n->next) != head) {
        const struct run *r = list_entry(n, struct run, of_worker);
        if (r->current && !r->j->unasked)
            return &r->j->pub;
    }
    return NULL;
}

int32_t sched_priority_last(const struct sched_view *v)
{
    return of(v)->priority_last;
}

uint32_t sched_n_store(const struct sched_view *v)
{
    return of(v)->n_store;
}

#define WORDS (SCHED_STORES_MAX / 64)

static void set_all(uint32_t *out, uint32_t n, const uint64_t set[WORDS], uint32_t tokens)
{
    for (uint32_t word = 0; word < WORDS; word++)
        for (uint64_t bits = set[word]; bits; bits &= bits - 1) {
            uint32_t store = 64 * word + (uint32_t)__builtin_ctzll(bits);
            if (store < n)
                out[store] = tokens;
        }
}

/* The stores of the set hold the first lo blocks, none holds hi: halves, each look serving all stores of its set. */
static void narrow(const struct sched *s, const struct job *j, uint32_t *out, uint32_t n, uint32_t lo, uint32_t hi,
                   const uint64_t set[WORDS])
{
    uint64_t any = 0, yes[WORDS], no[WORDS];
    for (uint32_t i = 0; i < WORDS; i++)
        any |= set[i];
    if (!any)
        return;
    if (lo + 1 == hi) {
        uint32_t tokens = lo * KV_BLOCK;
        set_all(out, n, set, tokens < j->pub.n_prompt ? tokens : j->pub.n_prompt - 1);
        return;
    }
    uint32_t mid = lo + (hi - lo) / 2;
    const struct block *b = index_get(&s->index, j->digests + (size_t)(mid - 1) * 32);
    for (uint32_t i = 0; i < WORDS; i++) {
        yes[i] = b ? set[i] & b->stores[i] : 0;
        no[i] = b ? set[i] & ~b->stores[i] : set[i];
    }
    narrow(s, j, out, n, mid, hi, yes);
    narrow(s, j, out, n, lo, mid, no);
}

void sched_hits(const struct sched_view *v, const struct sched_job *p, uint32_t *out, uint32_t n)
{
    const struct sched *s = of(v);
    const struct job *j = job_of(p);
    memset(out, 0, n * sizeof *out);
    const struct block *b = p->n_block ? index_get(&s->index, j->digests) : NULL;
    if (b)
        narrow(s, j, out, n, 1, p->n_block + 1, b->stores);
}

/* Of one store; -1: none. */
static uint32_t hit(const struct sched *s, const struct job *j, int store)
{
    uint32_t out[SCHED_STORES_MAX] = {0};
    uint64_t set[WORDS] = {0};
    const struct block *b = j->pub.n_block && store >= 0 ? index_get(&s->index, j->digests) : NULL;
    if (!b)
        return 0;
    set[store / 64] = b->stores[store / 64] & (uint64_t)1 << store % 64;
    narrow(s, j, out, s->n_store, 1, j->pub.n_block + 1, set);
    return out[store];
}

uint64_t sched_need(const struct sched_view *v, const struct sched_job *j, const struct sched_worker *w,
                    enum sched_phase phase)
{
    return job_wants(of(v), job_of(j), w->store, w->max_len, phase);
}

bool sched_room(const struct sched_view *v, const struct sched_job *p, const struct sched_worker *w,
                enum sched_phase phase)
{
    const struct sched *s = of(v);
    const struct job *j = job_of(p);
    if (w->draining || !w->seqs)
        return false;
    if (phase != SCHED_ON_DECODE && !w->tokens)
        return false;
    if (j->avoid == w->number && s->n_worker > 1 && s->now_ns < p->since_ns + s->grace_ns)
        return false;
    return job_wants(s, j, w->store, w->max_len, phase) <= w->blocks;
}

double sched_prefill_ns(const struct sched_worker *w, uint32_t n_new, uint32_t n_cached)
{
    double all = (double)n_new + n_cached, had = n_cached;
    return fit_at(&w->prefill, n_new, all * all - had * had);
}

double sched_step_ns(const struct sched_worker *w, uint64_t context, uint32_t batch)
{
    return fit_at(&w->step, (double)context, batch);
}

/* ---- actions ---- */

bool sched_place(struct sched_view *v, const struct sched_job *p, const struct sched_worker *pw, enum sched_phase phase,
                 uint32_t chunk)
{
    struct sched *s = of(v);
    struct job *j = job_of(p);
    struct worker *w = worker_of(pw);
    struct run *r;
    bool fits = phase == SCHED_ON_DECODE ? j->state == JOB_READY : j->state == JOB_QUEUED;
    if (!fits || !sched_room(v, p, pw, phase))
        return false;
    if (run_open(&s->broken, &r, s, j, w, phase))
        return false;
    r->order = s->next_order++;
    r->chunk = phase == SCHED_ON_PREFILL ? 0 : chunk ? chunk : pw->chunk;
    r->current = true;
    if (phase != SCHED_ON_DECODE) {
        r->cached = hit(s, j, pw->store);
        r->n_new = p->n_prompt + p->n_out - r->cached;
        run_progress(r, (uint64_t)sched_prefill_ns(pw, r->n_new, r->cached));
    }
    j->cur = r;
    j->pub.running = phase;
    job_set(s, j, JOB_RUNNING);
    s->placed++;
    worker_send(s, r);
    return true;
}

bool sched_refuse(struct sched_view *v, const struct sched_job *p, bool never, uint64_t retry_ns, const char *text)
{
    struct sched *s = of(v);
    struct job *j = job_of(p);
    if (j->state != JOB_QUEUED)
        return false;
    refuse_job(s, j, never, retry_ns > s->retry_ns ? retry_ns : s->retry_ns, text);
    return true;
}

bool sched_preempt(struct sched_view *v, const struct sched_job *p)
{
    struct sched *s = of(v);
    struct job *j = job_of(p);
    if (j->state != JOB_RUNNING || !j->cur || j->cur->preempted || j->unasked)
        return false;
    j->cur->preempted = true;
    worker_control(s, j->cur->w, "preempt", j->cur);
    return true;
}

bool sched_set_role(struct sched_view *v, const struct sched_worker *pw, enum sched_role role)
{
    struct sched *s = of(v);
    struct worker *w = worker_of(pw);
    if (w->pub.role == role)
        return false;
    w->pub.role = role;
    worker_control(s, w, "role", NULL);
    return true;
}

void sched_set_eta(struct sched_view *v, const struct sched_job *p, uint64_t eta_ns)
{
    (void)v;
    job_of(p)->eta_ns = eta_ns;
}

void sched_note(struct sched_view *v, const struct sched_job *p, uint32_t worker, uint64_t until_ns)
{
    (void)v;
    job_of(p)->pub.note_worker = worker;
    job_of(p)->pub.note_ns = until_ns;
}
