/* Colocation, the baseline that disaggregation is compared with: a request runs whole on the worker with the fewest
 * requests, which computes the prompt in chunks between decode steps. */
#include "sched/pool.h"

static const struct sched_setting settings[] = {{"chunk", 0}}; /* prompt tokens a step; 0: the worker's own limit */

static int decide(struct err *e, void *state, struct sched *s)
{
    uint32_t chunk = (uint32_t)sched_get(s, "chunk");
    (void)e;
    (void)state;
    for (const struct sched_request *r; (r = sched_waiting(s, true, NULL));) { /* prefilled under another policy */
        const struct sched_worker *w = NULL;
        for (uint32_t i = 0; i < sched_n_worker(s) && !w; i++)
            if (sched_room(s, r, sched_worker_at(s, i), SCHED_ON_DECODE))
                w = sched_worker_at(s, i);
        if (!w || !sched_place(s, r, w, SCHED_ON_DECODE, 0))
            break;
    }
    for (const struct sched_request *r; (r = sched_waiting(s, false, NULL));) {
        const struct sched_worker *best = NULL;
        for (uint32_t i = 0; i < sched_n_worker(s); i++) {
            const struct sched_worker *w = sched_worker_at(s, i);
            if (sched_room(s, r, w, SCHED_ON_WHOLE) &&
                (!best || w->n_whole + w->n_decode < best->n_whole + best->n_decode))
                best = w;
        }
        if (!best || !sched_place(s, r, best, SCHED_ON_WHOLE, chunk))
            break;
    }
    return 0;
}

const struct sched_policy sched_policy_colocate = {
    .name = "colocate", .settings = settings, .n_setting = sizeof settings / sizeof *settings, .decide = decide};
