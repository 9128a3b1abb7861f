/* What policies read, and their actions (policy.h). */
#include "sched/machine.h"

#include <string.h>

const char *const sched_role_names[4] = {"", "prefill", "decode", "both"};
const char *const sched_phase_names[3] = {"prefill", "decode", "whole"};

double sched_get(const struct sched *s, const char *name)
{
    for (size_t i = 0; i < s->n_setting; i++) /* fast path: the pointer from the policy's own table */
        if (s->setting[i].name == name)
            return s->setting[i].value;
    for (size_t i = 0; i < s->n_setting; i++)
        if (!strcmp(s->setting[i].name, name))
            return s->setting[i].value;
    return 0;
}

uint32_t sched_n_worker(const struct sched *s)
{
    return s->n_worker;
}

const struct sched_worker *sched_worker_at(const struct sched *s, uint32_t i)
{
    return &s->worker[i]->pub;
}

const struct sched_request *sched_waiting(const struct sched *s, bool prefilled, const struct sched_request *before)
{
    const struct request *r =
        before ? request_of(before)->skip.next[0] : (prefilled ? &s->ready : &s->queued)->first[0];
    return r ? &r->pub : NULL;
}

uint64_t sched_n_waiting(const struct sched *s, bool prefilled)
{
    return (prefilled ? &s->ready : &s->queued)->n;
}

uint64_t sched_waiting_tokens(const struct sched *s)
{
    return s->queued.tokens;
}

const struct sched_request *sched_arrived(const struct sched *s, const struct sched_request *before)
{
    const struct list *head = &s->unacked, *n = before ? &request_of(before)->unacked : head;
    while ((n = n->next) != head) {
        const struct request *r = list_entry(n, struct request, unacked);
        if (r->state == REQUEST_QUEUED)
            return &r->pub;
    }
    return NULL;
}

const struct sched_request *sched_running(const struct sched_worker *w, const struct sched_request *before)
{
    const struct list *head = &worker_of(w)->attempts, *n = before ? &request_of(before)->current->of_worker : head;
    while ((n = n->next) != head) {
        const struct attempt *a = list_entry(n, struct attempt, of_worker);
        if (a->r->current == a && !a->r->unclaimed)
            return &a->r->pub;
    }
    return NULL;
}

int32_t sched_priority_last(const struct sched *s)
{
    return s->priority_last;
}

uint32_t sched_n_store(const struct sched *s)
{
    return s->n_store;
}

#define SET_WORDS (SCHED_STORES_MAX / 64)

static void set_all(uint32_t *out, uint32_t n, const uint64_t set[SET_WORDS], uint32_t tokens)
{
    for (uint32_t word = 0; word < SET_WORDS; word++)
        for (uint64_t bits = set[word]; bits; bits &= bits - 1) {
            uint32_t store = 64 * word + (uint32_t)__builtin_ctzll(bits);
            if (store < n)
                out[store] = tokens;
        }
}

/* A binary search for the cached prefix in all stores of a set at once: each has the first lo blocks, none has hi. */
static void find_prefixes(const struct sched *s, const struct request *r, uint32_t *out, uint32_t n, uint32_t lo,
                          uint32_t hi, const uint64_t set[SET_WORDS])
{
    uint64_t any = 0, have[SET_WORDS], lack[SET_WORDS];
    for (uint32_t i = 0; i < SET_WORDS; i++)
        any |= set[i];
    if (!any)
        return;
    if (lo + 1 == hi) {
        uint32_t tokens = lo * KV_BLOCK;
        set_all(out, n, set, tokens < r->pub.n_prompt ? tokens : r->pub.n_prompt - 1);
        return;
    }
    uint32_t mid = lo + (hi - lo) / 2;
    const struct block *b = index_get(&s->index, r->digests + (size_t)(mid - 1) * 32);
    for (uint32_t i = 0; i < SET_WORDS; i++) {
        have[i] = b ? set[i] & b->stores[i] : 0;
        lack[i] = b ? set[i] & ~b->stores[i] : set[i];
    }
    find_prefixes(s, r, out, n, mid, hi, have);
    find_prefixes(s, r, out, n, lo, mid, lack);
}

void sched_hits(const struct sched *s, const struct sched_request *p, uint32_t *out, uint32_t n)
{
    const struct request *r = request_of(p);
    memset(out, 0, n * sizeof *out);
    const struct block *b = p->n_block ? index_get(&s->index, r->digests) : NULL;
    if (b)
        find_prefixes(s, r, out, n, 1, p->n_block + 1, b->stores);
}

/* Tokens of the prefix that one store has; store -1: 0. */
static uint32_t hit(const struct sched *s, const struct request *r, int store)
{
    uint32_t out[SCHED_STORES_MAX] = {0};
    uint64_t set[SET_WORDS] = {0};
    const struct block *b = r->pub.n_block && store >= 0 ? index_get(&s->index, r->digests) : NULL;
    if (!b)
        return 0;
    set[store / 64] = b->stores[store / 64] & (uint64_t)1 << store % 64;
    find_prefixes(s, r, out, s->n_store, 1, r->pub.n_block + 1, set);
    return out[store];
}

uint64_t sched_need(const struct sched *s, const struct sched_request *r, const struct sched_worker *w,
                    enum sched_phase phase)
{
    return req_more_blocks(s, request_of(r), w->store, w->max_len, phase);
}

bool sched_room(const struct sched *s, const struct sched_request *p, const struct sched_worker *w,
                enum sched_phase phase)
{
    const struct request *r = request_of(p);
    if (w->draining || !w->seqs)
        return false;
    if (phase != SCHED_ON_DECODE && !w->tokens)
        return false;
    if (r->failed_worker_number == w->number && s->n_worker > 1 && s->now_ns < p->since_ns + s->grace_ns)
        return false;
    if (!suspect_room(s, r, worker_of(w)))
        return false;
    uint64_t bytes = worker_of(w)->bytes;
    if (bytes && bytes + r->n_body > s->worker_bytes)
        return false;
    return req_more_blocks(s, r, w->store, w->max_len, phase) <= w->blocks;
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

bool sched_place(struct sched *s, const struct sched_request *p, const struct sched_worker *pw, enum sched_phase phase,
                 uint32_t chunk)
{
    struct request *r = request_of(p);
    struct worker *w = worker_of(pw);
    struct attempt *a;
    bool fits = phase == SCHED_ON_DECODE ? r->state == REQUEST_READY : r->state == REQUEST_QUEUED;
    if (!fits || !sched_room(s, p, pw, phase))
        return false;
    if (attempt_new(&s->failure, &a, s, r, w, phase))
        return false;
    a->order = s->next_order++;
    a->chunk = phase == SCHED_ON_PREFILL ? 0 : chunk ? chunk : pw->chunk;
    if (phase != SCHED_ON_DECODE) {
        a->cached = hit(s, r, pw->store);
        a->n_new = p->n_prompt + p->n_out - a->cached;
        attempt_set_left(a, (uint64_t)sched_prefill_ns(pw, a->n_new, a->cached));
    }
    r->current = a;
    r->pub.running = phase;
    req_set_state(s, r, REQUEST_RUNNING);
    s->placed++;
    tenant_placed(s, r);
    worker_send(s, a);
    return true;
}

bool sched_refuse(struct sched *s, const struct sched_request *p, bool never, uint64_t retry_ns, const char *text)
{
    struct request *r = request_of(p);
    if (r->state != REQUEST_QUEUED)
        return false;
    req_refuse(s, r, never ? REFUSE_NEVER : REFUSE_FOR_NOW, retry_ns > s->retry_ns ? retry_ns : s->retry_ns, text);
    return true;
}

bool sched_preempt(struct sched *s, const struct sched_request *p)
{
    struct request *r = request_of(p);
    if (r->state != REQUEST_RUNNING || !r->current || r->current->preempted || r->unclaimed)
        return false;
    r->current->preempted = true;
    worker_control(s, r->current->w, "preempt", r->current);
    return true;
}

bool sched_set_role(struct sched *s, const struct sched_worker *pw, enum sched_role role)
{
    struct worker *w = worker_of(pw);
    if (w->pub.role == role)
        return false;
    w->pub.role = role;
    worker_control(s, w, "role", NULL);
    return true;
}

void sched_set_eta(const struct sched_request *p, uint64_t eta_ns)
{
    request_of(p)->eta_ns = eta_ns;
}

void sched_note(const struct sched_request *p, uint32_t worker, uint64_t until_ns)
{
    request_of(p)->pub.note_worker = worker;
    request_of(p)->pub.note_ns = until_ns;
}
