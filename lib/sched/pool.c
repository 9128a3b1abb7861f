#include "sched/pool.h"

void pools_count(struct pools *p, const struct sched *s)
{
    *p = (struct pools){0};
    uint32_t n = 0, open = 0;
    for (uint32_t i = 0; i < sched_n_worker(s); i++) {
        const struct sched_worker *w = sched_worker_at(s, i);
        if (w->draining)
            continue;
        bool is_open = w->seqs > 0;
        n++;
        open += is_open;
        p->n_prefill += (w->role & SCHED_PREFILL) != 0;
        p->n_decode += (w->role & SCHED_DECODE) != 0;
        p->open_prefill += is_open && (w->role & SCHED_PREFILL);
        p->open_decode += is_open && (w->role & SCHED_DECODE);
    }
    if (!p->n_prefill)
        p->open_prefill = n ? open : 0;
    if (!p->n_decode)
        p->open_decode = n ? open : 0;
}

bool pool_fits(const struct sched *s, const struct sched_request *r, const struct sched_worker *w,
               enum sched_phase phase)
{
    return sched_need(s, r, w, phase) <= w->blocks_all;
}
