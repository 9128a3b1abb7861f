/*
 * What a policy sees and what it may decide. A policy is one small file: `decide` looks at the state of one instant and
 * calls the actions; the machine applies each at once, so that what is looked at next has it in, and checks each again,
 * so that no policy can break an order, lose a request or overfill a worker.
 *
 * Everything handed out is read-only and lives until `decide` returns.
 */
#ifndef SCHED_POLICY_H
#define SCHED_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/kv_block.h"
#include "err/err.h"

#define SCHED_STORES_MAX 128 /* stores (hosts) whose blocks are known; others are served without */

enum sched_role { SCHED_PREFILL = 1, SCHED_DECODE = 2, SCHED_BOTH = 3 };
enum sched_phase { SCHED_ON_PREFILL = 0, SCHED_ON_DECODE = 1, SCHED_ON_WHOLE = 2 };
extern const char *const sched_role_names[4];  /* [0]: "" */
extern const char *const sched_phase_names[3]; /* as in the frames */

struct sched_fit { /* y = k[0] + k[1]·x + k[2]·z, in ns, learned as it goes */
    double k[3], scale[3], p[3][3];
};

struct sched_worker {
    uint32_t number; /* of this life of the worker, never used twice */
    const char *name;
    enum sched_role role;
    bool draining;
    uint32_t seqs, seqs_all;     /* that it can take now (0 while its session is full); at once */
    uint32_t tokens;             /* prompt tokens that it can take */
    uint64_t blocks, blocks_all; /* slots free; of the pool */
    uint32_t max_len, chunk;
    int store; /* -1: none known */
    uint32_t n_prefill, n_decode, n_whole;
    uint64_t context;         /* tokens of its decoding requests, estimated */
    uint64_t prefill_left_ns; /* estimate of what it has still to prefill */
    struct sched_fit prefill; /* of (new, (cached + new)² - cached²) */
    struct sched_fit step;    /* of (context, batch) */
};

struct sched_job {
    uint64_t number; /* in the order of arrival */
    const char *gw;
    uint64_t job;
    enum sched_phase running; /* where it runs, for those of sched_running */
    bool prefilled;           /* its KV is there (in kv_store) and it waits for decode */
    uint32_t n_prompt, max_tokens, n_out;
    uint32_t n_block;                           /* of digests */
    int32_t priority;                           /* smaller goes first */
    uint64_t arrival_ns, deadline_ns, since_ns; /* since: in this state */
    uint64_t slo_ttft_ns, slo_tpot_ns;          /* 0: none */
    int kv_store;
    uint32_t retries, preempts;
    uint32_t note_worker; /* sched_note: the policy's own */
    uint64_t note_ns;
};

struct sched_view;

uint64_t sched_view_now(const struct sched_view *v);
double sched_view_knob(const struct sched_view *v, const char *name);

/* Those that have joined, draining ones too; i < n. */
uint32_t sched_n_worker(const struct sched_view *v);
const struct sched_worker *sched_worker_at(const struct sched_view *v, uint32_t i);

/* Waiting requests in order (priority, deadline, arrival); NULL begins and ends. A request may be placed or refused
 * only after the next one was asked for. */
const struct sched_job *sched_waiting(const struct sched_view *v, bool prefilled, const struct sched_job *before);
uint64_t sched_n_waiting(const struct sched_view *v, bool prefilled);
uint64_t sched_waiting_tokens(const struct sched_view *v); /* prompt tokens that wait for prefill */
/* Requests of this instant that wait for prefill; iterated as those that wait. */
const struct sched_job *sched_fresh(const struct sched_view *v, const struct sched_job *before);
/* Requests running on a worker, newest last. */
int32_t sched_priority_last(const struct sched_view *v); /* the largest that any request has had */
const struct sched_job *sched_running(const struct sched_view *v, const struct sched_worker *w,
                                      const struct sched_job *before);

/* Prompt tokens of the request that each store holds from the front, out[store], n of them: whole blocks, always less
 * than the prompt. */
void sched_hits(const struct sched_view *v, const struct sched_job *j, uint32_t *out, uint32_t n);
uint32_t sched_n_store(const struct sched_view *v);

/* Slots the request needs at most on a worker in a phase, beside those that it has there already. */
uint64_t sched_need(const struct sched_view *v, const struct sched_job *j, const struct sched_worker *w,
                    enum sched_phase phase);
/* Could it take the request now: not draining, seats, tokens and slots. */
bool sched_room(const struct sched_view *v, const struct sched_job *j, const struct sched_worker *w,
                enum sched_phase phase);

double sched_prefill_ns(const struct sched_worker *w, uint32_t n_new, uint32_t n_cached);
double sched_step_ns(const struct sched_worker *w, uint64_t context, uint32_t batch);

/* ---- actions: true where applied ---- */

/* chunk: for whole, prompt tokens a step (0: the worker's own). */
bool sched_place(struct sched_view *v, const struct sched_job *j, const struct sched_worker *w, enum sched_phase phase,
                 uint32_t chunk);
bool sched_refuse(struct sched_view *v, const struct sched_job *j, bool never, uint64_t retry_ns, const char *text);
/* The worker gives its slots back; the request waits again, with the tokens it has. */
bool sched_preempt(struct sched_view *v, const struct sched_job *j);
bool sched_set_role(struct sched_view *v, const struct sched_worker *w, enum sched_role role);
void sched_set_eta(struct sched_view *v, const struct sched_job *j, uint64_t eta_ns); /* goes into its ack */

/* Two numbers that a policy keeps with a request, so that what it found out is not looked for again. */
void sched_note(struct sched_view *v, const struct sched_job *j, uint32_t worker, uint64_t until_ns);

struct sched_default {
    const char *name;
    double value;
};

struct sched_policy {
    const char *name;
    const struct sched_default *knobs; /* those the policy has, with their defaults */
    size_t n_knob;
    size_t n_state;                                           /* bytes of its own memory, zeroed at start */
    const void *arg;                                          /* given to open */
    int (*open)(struct err *e, void *state, const void *arg); /* may be NULL */
    int (*decide)(struct err *e, void *state, struct sched_view *v);
    void (*close)(void *state); /* may be NULL */
};

extern const struct sched_policy sched_policy_kv;       /* KV- and SLO-aware */
extern const struct sched_policy sched_policy_fcfs;     /* in order, to whoever has room */
extern const struct sched_policy sched_policy_colocate; /* no split: both phases on one worker */

#endif
