/* Private to lib/sched: pools of workers, for the policies. A pool is the workers that serve a role; if no worker has
 * the role, all serve it. */
#ifndef SCHED_POOL_H
#define SCHED_POOL_H

#include "sched/policy.h"

struct pools {
    uint32_t n_prefill, n_decode;       /* not draining */
    uint32_t open_prefill, open_decode; /* of those, with capacity for a sequence */
};

void pools_count(struct pools *p, const struct sched *s);
static inline bool pool_has(const struct pools *p, const struct sched_worker *w, enum sched_role role)
{
    uint32_t n = role == SCHED_PREFILL ? p->n_prefill : p->n_decode;
    return !w->draining && (!n || (w->role & role));
}
/* True if an idle worker could take it. */
bool pool_fits(const struct sched *s, const struct sched_request *r, const struct sched_worker *w,
               enum sched_phase phase);

#endif
