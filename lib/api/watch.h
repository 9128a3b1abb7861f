/*
 * What the scheduler and the store say of themselves, asked once a period and kept: for /metrics, /api/ps, readiness.
 * Never waited for: what cannot be had is old, and its age is known. Tokenize is asked a question of a letter, for
 * nothing but that it answers: one that is stopped keeps its connections.
 */
#ifndef API_WATCH_H
#define API_WATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define WATCH_PERIOD_MS 1000

struct api_watch;
/* Urls; tokenize and kv, a store, may be NULL. period_ms: time between two requests to one of them; WATCH_PERIOD_MS,
 * less in tests. */
int watch_open(struct err *e, struct api_watch **out, const char *sched, const char *tokenize, const char *kv,
               uint32_t period_ms);
void watch_close(struct api_watch *w);
int watch_fd(const struct api_watch *w);
uint64_t watch_next_ms(const struct api_watch *w);
void watch_step(struct api_watch *w); /* does not wait */

/* The last answer, borrowed until the next step; NULL: none yet, or older than 5 periods. */
const struct wire_stat *watch_stat(const struct api_watch *w);
const struct wire_worker *watch_workers(const struct api_watch *w, size_t *n);
const struct wire_kv_stat *watch_store(const struct api_watch *w);

/* Since when tokenize has not answered (CLOCK_MONOTONIC), where that is 5 periods ago or more, without the time in
 * which nobody called watch_step; 0: it answers. */
uint64_t watch_silent_ns(const struct api_watch *w);

/* What they have counted, over all the lives that were seen: it never falls, however old it is. All 0: never heard. */
const struct wire_stat *watch_stat_sum(const struct api_watch *w);
const struct wire_kv_stat *watch_store_sum(const struct api_watch *w);

/* tokenize has answered somebody else's question: one that is busy is not gone. */
void watch_tokenize_lives(struct api_watch *w);

/* Of all steps of workers since this began: tokens, of prompts and answers. */
struct histogram;
const struct histogram *watch_steps(const struct api_watch *w);
/* How long after its time the loop came to watch_step, seconds. */
const struct histogram *watch_lag(const struct api_watch *w);
bool watch_has_store(const struct api_watch *w); /* a url was given */

#endif
