/*
 * The stats poller: requests statistics from the scheduler and the store once a period and keeps the last, for
 * /metrics, /api/ps and readiness. Nobody waits for it: missing data is old data of known age. It also sends tokenize a
 * one-letter prompt, as a health check: a stopped process keeps its connections.
 */
#ifndef API_STATS_POLLER_H
#define API_STATS_POLLER_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define POLLER_PERIOD_MS 1000

struct stats_poller;
struct session_security;
/* Addresses; tokenize and kv (the store) may be NULL. period_ms: time between two requests to one of them:
 * POLLER_PERIOD_MS, less in tests. Its role is "monitor". */
int poller_open(struct err *e, struct stats_poller **out, const char *sched, const char *tokenize, const char *kv,
                const struct session_security *security, uint32_t period_ms);
void poller_close(struct stats_poller *w);
int poller_fd(const struct stats_poller *w);
uint64_t poller_next_ms(const struct stats_poller *w);
void poller_step(struct stats_poller *w); /* does not block */

/* The last statistics, borrowed until the next step; NULL: none yet, or older than 5 periods. */
const struct wire_stat *poller_stat(const struct stats_poller *w);
const struct wire_worker *poller_workers(const struct stats_poller *w, size_t *n);
const struct wire_kv_stat *poller_store(const struct stats_poller *w);
/* Bytes of the queues of tokenize, and their limit. False: none yet, or older than 5 periods. */
bool poller_tokenize(const struct stats_poller *w, uint64_t *bytes, uint64_t *bytes_max);

/* Since when tokenize has not responded (CLOCK_MONOTONIC), if that is 5 periods or more; time in which nobody called
 * poller_step does not count. 0: it responds. */
uint64_t poller_silent_ns(const struct stats_poller *w);

/* Counters summed over all lives of the process that were seen; they never fall. All 0: never received. */
const struct wire_stat *poller_stat_sum(const struct stats_poller *w);
const struct wire_kv_stat *poller_store_sum(const struct stats_poller *w);

/* Reports that tokenize responded to another request: a busy process is not dead. */
void poller_tokenize_responded(struct stats_poller *w);

/* The number of rows (tokens of prompts and answers) of each step of any worker since the poller started. */
struct histogram;
const struct histogram *poller_steps(const struct stats_poller *w);
/* Seconds by which poller_step came late. */
const struct histogram *poller_lag(const struct stats_poller *w);
bool poller_has_store(const struct stats_poller *w); /* an address was given */

#endif
