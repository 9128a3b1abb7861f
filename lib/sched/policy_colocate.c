/* Colocation, the baseline that disaggregation is compared with: a request runs whole on the worker with the fewest
 * requests, which computes the prompt in chunks between decode steps. */
#include "sched/pool.h"

static const struct sched_setting settings[] = {{"chunk", 0}}; /* prompt tokens a step; 0: the worker's own limit */

static int decide(struct err *e, void *state, struct sched_view *v)
{
    uint32_t chunk = (uint32_t)sched_view_setting(v, "chunk");
    (void)e;
    (void)state;
    for (const struct sched_request *r; (r = sched_waiting(v, true, NULL));) { /* prefilled under another policy */
        const struct sched_worker *w = NULL;
        for (uint32_t i = 0; i < sched_n_worker(v) && !w; i++)
            if (sched_room(v, r, sched_worker_at(v, i), SCHED_ON_DECODE))
                w = sched_worker_at(v, i);
        if (!w || !sched_place(v, r, w, SCHED_ON_DECODE, 0))
            break;
    }
    for (const struct sched_request *r; (r = sched_waiting(v, false, NULL));) {
        const struct sched_worker *best = NULL;
        for (uint32_t i = 0; i < sched_n_worker(v); i++) {
            const struct sched_worker *w = sched_worker_at(v, i);
            if (sched_room(v, r, w, SCHED_ON_WHOLE) &&
                (!best || w->n_whole + w->n_decode < best->n_whole + best->n_decode))
                best = w;
        }
        if (!best || !sched_place(v, r, best, SCHED_ON_WHOLE, chunk))
            break;
    }
    return 0;
}

const struct sched_policy sched_policy_colocate = {
    .name = "colocate", .settings = settings, .n_setting = sizeof settings / sizeof *settings, .decide = decide};
