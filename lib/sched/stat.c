/* The counts and percentiles of the stat frame. */
#include "sched/machine.h"

#include <stdlib.h>
#include <string.h>

void times_add(struct times *t, uint64_t ns)
{
    t->ns[t->at] = ns;
    t->at = (t->at + 1) % TIMES;
    t->n += t->n < TIMES;
}

static int by_time(const void *a, const void *b)
{
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* By nearest rank. */
static void percentiles(uint64_t *p50, uint64_t *p99, const struct times *t)
{
    uint64_t v[TIMES];
    *p50 = *p99 = 0;
    if (!t->n)
        return;
    memcpy(v, t->ns, t->n * sizeof *v);
    qsort(v, t->n, sizeof *v, by_time);
    *p50 = v[(t->n + 1) / 2 - 1];
    *p99 = v[(t->n * 99 + 99) / 100 - 1];
}

void sched_stat(const struct sched *s, struct wire_stat *out)
{
    *out = (struct wire_stat){.at_ns = s->now_ns,
                              .submitted = s->submitted,
                              .running = s->n_running,
                              .waiting = s->n_waiting,
                              .stop = s->ended[END_STOP],
                              .length = s->ended[END_LENGTH],
                              .cancelled = s->ended[END_CANCELLED],
                              .expired = s->ended[END_EXPIRED],
                              .error = s->ended[END_ERROR],
                              .refused = s->ended[END_REFUSED],
                              .retried = s->retried,
                              .preempted = s->preempted,
                              .stale = s->stale,
                              .placed = s->placed,
                              .workers = s->n_worker,
                              .gateways = s->n_gateway,
                              .stores = s->n_store,
                              .tombs = (uint32_t)s->n_ended,
                              .policy = wire_str_of(s->policy->name),
                              .bytes = s->bytes,
                              .bytes_max = s->queue_bytes};
    percentiles(&out->ttft_p50_ns, &out->ttft_p99_ns, &s->ttft);
    percentiles(&out->itl_p50_ns, &out->itl_p99_ns, &s->itl);
}
