/* Private to lib/api: the part of the stats poller for the store, in the background. */
#ifndef API_STATS_POLLER_IMPL_H
#define API_STATS_POLLER_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/time.h"
#include "err/err.h"
#include "wire/wire.h"

/* The store's client blocks until the response: a background thread calls it, once a period, triggered by a timer of
 * the loop. */
struct loop;
struct store_poller;
int store_poller_open(struct err *e, struct store_poller **out, const char *url, struct loop *l, uint64_t period_ns);
/* Blocks until a request in flight ends, half a second at most. */
void store_poller_close(struct store_poller *s);
/* Takes statistics received since the last call; false: none. */
bool store_poller_take(struct store_poller *s, struct wire_kv_stat *out);

/* Adds the growth of counters since `last` to sum, also if the process restarted and its counters begin at 0 again.
 * last: zeroed at first, updated here. */
void stat_add(struct wire_stat *sum, struct wire_stat *last, const struct wire_stat *now);
void store_stat_add(struct wire_kv_stat *sum, struct wire_kv_stat *last, const struct wire_kv_stat *now);

#endif
