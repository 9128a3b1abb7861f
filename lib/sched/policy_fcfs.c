/* First come, first served: requests are placed strictly in order, on the worker of the pool with the most free
 * sequence slots. Ignores caches and SLOs; a baseline for other policies. */
#include "sched/pool.h"

static const struct sched_worker *freest(const struct sched *s, const struct pools *p, const struct sched_request *r,
                                         enum sched_role role, enum sched_phase phase)
{
    const struct sched_worker *best = NULL;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (pool_has(p, w, role) && sched_room(s, r, w, phase) &&
            (!best || w->seqs > best->seqs || (w->seqs == best->seqs && w->number < best->number)))
            best = w;
    }
    return best;
}

/* True if the prompt is too large for every worker of the prefill pool; it then runs whole on a decode worker. */
static bool whole(const struct sched *s, const struct pools *p, const struct sched_request *r)
{
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (pool_has(p, w, SCHED_PREFILL) && pool_fits(s, r, w, SCHED_ON_PREFILL))
            return false;
    }
    return true;
}

static int decide(struct err *e, void *state, struct sched *s)
{
    struct pools p;
    (void)e;
    (void)state;
    pools_count(&p, s);
    for (const struct sched_request *r; p.open_decode && (r = sched_waiting(s, true, NULL));) {
        const struct sched_worker *w = freest(s, &p, r, SCHED_DECODE, SCHED_ON_DECODE);
        if (!w || !sched_place(s, r, w, SCHED_ON_DECODE, 0))
            break;
    }
    pools_count(&p, s);
    for (const struct sched_request *r; (p.open_prefill || p.open_decode) && (r = sched_waiting(s, false, NULL));) {
        bool all = whole(s, &p, r);
        enum sched_phase phase = all ? SCHED_ON_WHOLE : SCHED_ON_PREFILL;
        const struct sched_worker *w = freest(s, &p, r, all ? SCHED_DECODE : SCHED_PREFILL, phase);
        if (!w || !sched_place(s, r, w, phase, 0))
            break;
    }
    return 0;
}

const struct sched_policy sched_policy_fcfs = {.name = "fcfs", .decide = decide};
