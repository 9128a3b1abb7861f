/* Private to lib/api: the watch of the store, which is asked in the background. */
#ifndef API_WATCH_IMPL_H
#define API_WATCH_IMPL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/time.h"
#include "err/err.h"
#include "wire/wire.h"

/* A store's client waits for its answers: a background thread does it, once a period, by a timer of the loop. */
struct loop;
struct store_watch;
int store_watch_open(struct err *e, struct store_watch **out, const char *url, struct loop *l, uint64_t period_ns);
/* Waits for a question that is out, half a second at most. */
void store_watch_close(struct store_watch *s);
/* What came since; false: nothing did. */
bool store_watch_take(struct store_watch *s, struct wire_kv_stat *out);

/* Counters of a process that may begin anew: sum goes on from there. last: as it was heard, zeroed to begin with. */
void stat_add(struct wire_stat *sum, struct wire_stat *last, const struct wire_stat *now);
void store_stat_add(struct wire_kv_stat *sum, struct wire_kv_stat *last, const struct wire_kv_stat *now);

#endif
