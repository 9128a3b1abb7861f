/* Private to lib/sched: what the policies have in common. A pool is the workers that serve a role; where nobody of the
 * role is there, everybody serves it. */
#ifndef SCHED_POOL_H
#define SCHED_POOL_H

#include "sched/policy.h"

struct pools {
    uint32_t n_prefill, n_decode;       /* not draining */
    uint32_t open_prefill, open_decode; /* of those, with a seat */
};

void pools_count(struct pools *p, const struct sched_view *v);
static inline bool pool_has(const struct pools *p, const struct sched_worker *w, enum sched_role role)
{
    uint32_t n = role == SCHED_PREFILL ? p->n_prefill : p->n_decode;
    return !w->draining && (!n || (w->role & role));
}
/* Could the worker ever take it. */
bool pool_fits(const struct sched_view *v, const struct sched_job *j, const struct sched_worker *w,
               enum sched_phase phase);

#endif
