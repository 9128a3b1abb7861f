/* Sums counters of other processes over their restarts, so that they never fall. */
#include <stddef.h>

#include "api/stats_poller_impl.h"

static const size_t of_stat[] = {
    offsetof(struct wire_stat, submitted), offsetof(struct wire_stat, stop),    offsetof(struct wire_stat, length),
    offsetof(struct wire_stat, cancelled), offsetof(struct wire_stat, expired), offsetof(struct wire_stat, error),
    offsetof(struct wire_stat, refused),   offsetof(struct wire_stat, retried), offsetof(struct wire_stat, preempted),
    offsetof(struct wire_stat, stale),     offsetof(struct wire_stat, placed),
};
static const size_t of_store[] = {
    offsetof(struct wire_kv_stat, hit_blocks), offsetof(struct wire_kv_stat, miss_blocks),
    offsetof(struct wire_kv_stat, published),  offsetof(struct wire_kv_stat, duplicate),
    offsetof(struct wire_kv_stat, evicted),    offsetof(struct wire_kv_stat, disk_hits),
    offsetof(struct wire_kv_stat, disk_bad),
};

static uint64_t *at(void *p, size_t offset)
{
    return (uint64_t *)(void *)((char *)p + offset);
}

static uint64_t value(const void *p, size_t offset)
{
    return *(const uint64_t *)(const void *)((const char *)p + offset);
}

/* A counter that has fallen shows that the process restarted and all its counters began at 0. */
static void add(void *sum, const void *last, const void *now, const size_t *offset, size_t n)
{
    bool restarted = false;
    for (size_t i = 0; i < n; i++)
        restarted = restarted || value(now, offset[i]) < value(last, offset[i]);
    for (size_t i = 0; i < n; i++)
        *at(sum, offset[i]) += value(now, offset[i]) - (restarted ? 0 : value(last, offset[i]));
}

void stat_add(struct wire_stat *sum, struct wire_stat *last, const struct wire_stat *now)
{
    add(sum, last, now, of_stat, sizeof of_stat / sizeof *of_stat);
    *last = *now;
}

void store_stat_add(struct wire_kv_stat *sum, struct wire_kv_stat *last, const struct wire_kv_stat *now)
{
    add(sum, last, now, of_store, sizeof of_store / sizeof *of_store);
    *last = *now;
}
