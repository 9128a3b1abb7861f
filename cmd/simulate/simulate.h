/* Private to simulate: traces, a simulated cluster of workers in virtual time, and the report. */
#ifndef SIMULATE_H
#define SIMULATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/time.h"
#include "engine/engine.h"
#include "err/err.h"
#include "sched/sched.h"
#include "wire/wire.h"

#define PROG "simulate"

struct request {
    uint64_t at_ns; /* arrival */
    uint32_t n_prompt, n_out;
    uint64_t *block; /* hashes of its blocks of KV_BLOCK tokens; each includes the tokens before it */
    uint32_t n_block;
    uint64_t first_ns, last_ns;
    uint32_t n_received, cached;
    bool done, refused, failed;
};

struct trace {
    struct request *v;
    size_t n, size;
};

/* Appends a Mooncake file (JSON lines), an Azure file (CSV), or gen:KEY=VALUE,… to the trace; its times begin at the
 * last request of the trace. */
int trace_read(struct err *e, struct trace *t, const char *what, uint64_t limit);
void trace_free(struct trace *t);

struct cluster_options {
    uint32_t n_prefill, n_decode, n_both, seqs, chunk, max_len;
    uint64_t blocks, cache_blocks; /* of a worker's pool; of a store's cache */
    bool shared;                   /* all workers have one store */
    double transfer_ns, rtt_ns;
    struct engine_cost cost;
    uint64_t slo_ttft_ns, slo_tpot_ns;
    struct wire_writer *record; /* receives every event, as input of a filter; may be NULL */
};

struct cluster;
int cluster_run(struct err *e, struct sched *s, struct trace *t, const struct cluster_options *o, uint64_t *end_ns);

/* ---- store.c: the cached blocks of a store ---- */

struct store;
struct store *store_new(uint64_t n_block);
void store_free(struct store *s);
uint32_t store_prefix(const struct store *s, const uint64_t *block, uint32_t n);
/* Caches the blocks of a prompt; on_change is called for each block that is stored or evicted. */
void store_add(struct store *s, const uint64_t *block, uint32_t n,
               void (*on_change)(void *arg, uint64_t block, bool stored), void *arg);

/* ---- report.c ---- */

struct report {
    size_t n, n_done, n_refused, n_failed, n_good;
    double seconds, goodput, attained; /* good requests a second; share of all */
    double ttft_ms[4], tpot_ms[4];     /* p50, p90, p99, mean */
    double hit;                        /* share of prompt tokens that were cached */
};
int report_make(struct err *e, struct report *r, const struct trace *t, uint64_t slo_ttft_ns, uint64_t slo_tpot_ns,
                uint64_t end_ns);

#endif
