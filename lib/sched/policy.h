/*
 * The interface of scheduling policies: what a policy sees, and what it may decide. `decide` reads the state of one
 * instant and calls the actions. The state machine checks each action first, so that no policy can lose a request,
 * place it twice or overfill a worker, and applies it at once, so that later reads include it. Preemption is the
 * exception: it is asynchronous (sched_preempt).
 *
 * Everything that these functions return is read-only and valid until `decide` returns.
 */
#ifndef SCHED_POLICY_H
#define SCHED_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kv_block.h"
#include "err/err.h"

#define SCHED_STORES_MAX 128 /* stores (hosts) whose cached blocks are tracked; workers of others are used without */

enum sched_role { SCHED_PREFILL = 1, SCHED_DECODE = 2, SCHED_BOTH = 3 };
enum sched_phase { SCHED_ON_PREFILL = 0, SCHED_ON_DECODE = 1, SCHED_ON_WHOLE = 2 };
extern const char *const sched_role_names[4];  /* [0]: "" */
extern const char *const sched_phase_names[3]; /* as in the frames */

struct sched_fit { /* y = k[0] + k[1]·x + k[2]·z in ns, fitted to measurements; p: covariance */
    double k[3], scale[3], p[3][3];
};

struct sched_worker {
    uint32_t number; /* of this session of the worker, never used again */
    const char *name;
    enum sched_role role;
    bool draining;
    uint32_t seqs, seqs_all;     /* sequences it can take now (0 while its session is full); sequences in all */
    uint32_t tokens;             /* prompt tokens it can take now */
    uint64_t blocks, blocks_all; /* free slots; slots of its pool */
    uint32_t max_len, chunk;     /* limits: tokens of a sequence, tokens of a step */
    int store;                   /* -1: unknown */
    uint32_t n_prefill, n_decode, n_whole;
    uint64_t context;         /* tokens of its decoding requests, estimated */
    uint64_t prefill_left_ns; /* prefill that it still has to compute, estimated */
    struct sched_fit prefill; /* of (new, (cached + new)² - cached²) */
    struct sched_fit step;    /* of (context, batch) */
};

struct sched_request {
    uint64_t number;          /* in the order of arrival */
    const char *gw;           /* its gateway … */
    uint64_t job;             /* … and its number there */
    const char *tenant;       /* whose request it is; "": unknown */
    enum sched_phase running; /* if it runs: the phase */
    bool prefilled;           /* it waits for decode, and its KV is in kv_store */
    uint32_t n_prompt, max_tokens, n_out;
    uint32_t n_block;                           /* digests of its prompt's blocks */
    int32_t priority;                           /* smaller is served first */
    uint64_t arrival_ns, deadline_ns, since_ns; /* since_ns: when it entered its state */
    uint64_t slo_ttft_ns, slo_tpot_ns;          /* 0: none */
    int kv_store;
    uint32_t retries, preempts;
    uint32_t note_worker; /* set by sched_note */
    uint64_t note_ns;
};

struct sched; /* opaque to policies */

uint64_t sched_now_ns(const struct sched *s);
double sched_get(const struct sched *s, const char *name); /* 0: unknown name */

/* Workers that have joined, including draining ones; i < n. */
uint32_t sched_n_worker(const struct sched *s);
const struct sched_worker *sched_worker_at(const struct sched *s, uint32_t i);

/* Iterates over waiting requests by priority, fair share of their tenant, deadline and arrival; NULL begins and ends.
 * Read the next request before you place or refuse one. A policy may place them in another order; priorities and fair
 * shares are then its own concern. */
const struct sched_request *sched_waiting(const struct sched *s, bool prefilled, const struct sched_request *before);
uint64_t sched_n_waiting(const struct sched *s, bool prefilled);
uint64_t sched_waiting_tokens(const struct sched *s); /* prompt tokens that wait for prefill */
/* Iterates over the requests that arrived at this instant and wait for prefill; NULL begins and ends. */
const struct sched_request *sched_arrived(const struct sched *s, const struct sched_request *before);
int32_t sched_priority_last(const struct sched *s); /* the largest that any request has had */
/* Iterates over the requests that run on a worker, the newest last; NULL begins and ends. */
const struct sched_request *sched_running(const struct sched_worker *w, const struct sched_request *before);

/* out[store], for stores below n: the tokens of the request's cached prefix at the store: a multiple of KV_BLOCK,
 * or n_prompt - 1 if the whole prompt is cached. */
void sched_hits(const struct sched *s, const struct sched_request *r, uint32_t *out, uint32_t n);
uint32_t sched_n_store(const struct sched *s);

/* Slots that the request needs at most on a worker in a phase, in addition to those it holds there. */
uint64_t sched_need(const struct sched *s, const struct sched_request *r, const struct sched_worker *w,
                    enum sched_phase phase);
/* True if the worker can take the request now: it is not draining and has capacity for its sequence, tokens and slots,
 * and for the bytes of its body (setting worker_bytes).
 * Tokens are not checked for SCHED_ON_DECODE. False also on the worker where the request last failed, if others exist
 * and it has waited less than the setting grace_ms; and for a while after workers died with a request (setting deaths).
 */
bool sched_room(const struct sched *s, const struct sched_request *r, const struct sched_worker *w,
                enum sched_phase phase);

/* Estimated duration, ns. */
double sched_prefill_ns(const struct sched_worker *w, uint32_t n_new, uint32_t n_cached);
double sched_step_ns(const struct sched_worker *w, uint64_t context, uint32_t batch);

/* ---- actions: true if applied ---- */

/* chunk: for SCHED_ON_WHOLE, prompt tokens a step (0: the worker's own limit). */
bool sched_place(struct sched *s, const struct sched_request *r, const struct sched_worker *w, enum sched_phase phase,
                 uint32_t chunk);
/* Refuses a request that waits for prefill; false for any other. never: it can never run, so the gateway must not retry
 * it. retry_ns is raised to the setting retry_ms. */
bool sched_refuse(struct sched *s, const struct sched_request *r, bool never, uint64_t retry_ns, const char *text);
/* Asynchronous: the request stays running until the worker reports `preempted`, which releases its slots; it is queued
 * again with the tokens it has. False if it does not run, or already is to be preempted. */
bool sched_preempt(struct sched *s, const struct sched_request *r);
bool sched_set_role(struct sched *s, const struct sched_worker *w, enum sched_role role);
/* The estimated time to the first token, for the request's ack. */
void sched_set_eta(const struct sched_request *r, uint64_t eta_ns);

/* Stores two numbers with a request for the policy's own use, e.g. to cache a choice. */
void sched_note(const struct sched_request *r, uint32_t worker, uint64_t until_ns);

struct sched_setting {
    const char *name;
    double value;
};

struct sched_policy {
    const char *name;
    const struct sched_setting *settings; /* the policy's settings with their defaults */
    size_t n_setting;
    size_t n_state;                                           /* bytes of the policy's own state, zeroed at start */
    const void *arg;                                          /* passed to open */
    int (*open)(struct err *e, void *state, const void *arg); /* may be NULL */
    int (*decide)(struct err *e, void *state, struct sched *s);
    void (*close)(void *state); /* may be NULL */
};

extern const struct sched_policy sched_policy_kv;       /* by cached prefixes and SLOs */
extern const struct sched_policy sched_policy_fcfs;     /* first come, first served */
extern const struct sched_policy sched_policy_colocate; /* both phases of a request on one worker */

#endif
