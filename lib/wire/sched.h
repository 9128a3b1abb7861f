/*
 * The scheduler's frames, included by wire.h: events that gateways, workers, stores and tools send to it (submit …
 * tick, capacity, stat), and its decisions (ack … done, and the responses stat and worker). `at_ns` is the scheduler's
 * clock, set by the loop that drives the state machine, so that a recording replays in its own time. Every other time
 * is a duration, since clocks of hosts differ.
 *
 * Gateway and job identify a request, `attempt` one attempt of it, `order` a work item, which a worker executes. Names
 * of workers, gateways and stores have at most 64 bytes. `inc` is the incarnation of a worker: it changes with each
 * restart of its process.
 */
#ifndef WIRE_SCHED_H
#define WIRE_SCHED_H

#ifndef WIRE_H
#error "include wire/wire.h"
#endif

#define WIRE_DIGESTS_BYTES_MAX (16u << 20)
#define WIRE_BODY_BYTES_MAX (16u << 20)
#define WIRE_HANDLE_BYTES_MAX 256
#define WIRE_RUNS_MAX 65536
#define WIRE_URL_BYTES_MAX 1024
#define WIRE_STEPS_MAX 14 /* steps of 1 token, of at most 8, 16, 32 … 16384, and of more */

/* ---- events: to the scheduler ---- */

struct wire_submit { /* a gateway submits a request */
    uint64_t at_ns;
    struct wire_str gw;
    uint64_t job;
    uint32_t n_prompt, max_tokens;
    struct wire_bytes digests;         /* 32 a full block of the prompt, or none */
    int32_t priority;                  /* smaller is scheduled first */
    uint64_t deadline_ns;              /* from now; 0: none */
    uint64_t slo_ttft_ns, slo_tpot_ns; /* 0: the policy's */
    struct wire_str reply;             /* address of the gateway, to which the worker sends tokens */
    struct wire_bytes body;            /* the frames hello and tok for the worker; the scheduler does not decode them */
    bool again;                        /* resync after a reconnect: a worker may be running it already */
    uint32_t attempt, n_out;           /* with again: the last known attempt, the tokens received */
    const uint32_t *out;               /* those tokens */
    uint32_t n_out_id;
    struct wire_str tenant; /* whose request it is, for fair queueing; empty: the gateway */
    struct wire_extra extra;
};

struct wire_cancel {
    uint64_t at_ns;
    struct wire_str gw;
    uint64_t job;
    struct wire_extra extra;
};

struct wire_run { /* a work item that a worker has when it joins */
    struct wire_str gw;
    uint64_t job, order;
    uint32_t attempt;
    struct wire_str phase;
    uint32_t n_prompt, max_tokens, n_out;
    struct wire_extra extra;
};

struct wire_join { /* a worker registers, with its work items */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    struct wire_str role;   /* prefill, decode or both: its preference; every worker can do either */
    struct wire_str store;  /* the kvstore of its host */
    struct wire_str compat; /* KV identity, "model …, vocabulary …, KV type, arithmetic, layout": equal for all */
    uint32_t seqs;          /* maximum of concurrent sequences */
    uint64_t blocks;        /* slots of its pool */
    uint32_t max_len;       /* maximum of tokens of a sequence */
    uint32_t chunk;         /* maximum of prompt tokens in a step */
    float pre_a, pre_b, pre_c; /* ns of a prefill: a + b·new + c·((cached + new)² - cached²); 0: the scheduler learns */
    float dec_a, dec_b, dec_c; /* ns of a decode step: a + b·context + c·batch */
    const struct wire_run *run;
    uint32_t n_run;
    struct wire_extra extra;
};

struct wire_capacity { /* free capacity of a worker and statistics of its steps: after its join, on a change, and every
                          second */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    uint64_t orders;           /* work items since the join on this session that the fields below include; the scheduler
                                  subtracts later ones */
    uint32_t seqs;             /* further sequences */
    uint32_t tokens;           /* further prompt tokens; a longer prompt counts as this many */
    uint64_t blocks;           /* slots free or evictable */
    uint64_t step_ns, context; /* its last decode step: time, tokens of context, sequences */
    uint32_t batch;
    bool drain;            /* it is shutting down: no new work */
    const uint32_t *steps; /* steps since its start by number of tokens (prompts and answers), modulo 2^32 */
    uint32_t n_steps;      /* 0 or WIRE_STEPS_MAX */
    uint64_t step_tokens;  /* the sum of their tokens */
    uint64_t out_bytes, out_bytes_max; /* that gateways have not acknowledged; and the limit */
    struct wire_extra extra;
};

struct wire_report { /* of a worker about a work item; of a gateway (worker empty): tokens received, or the end */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    struct wire_str gw;
    uint64_t job, order;
    uint32_t attempt;
    struct wire_str what;    /* progress, prefilled, tokens, ended, failed, preempted or cancelled */
    uint32_t n_done, cached; /* prompt tokens in KV, and those of them that were cached */
    uint32_t n_out;          /* tokens of the answer so far */
    const uint32_t *out;     /* the last n_out_id of them */
    uint32_t n_out_id;
    uint64_t busy_ns; /* of prefilled: computing time */
    struct wire_bytes handle;
    struct wire_str store;
    enum wire_reason reason; /* of ended */
    uint32_t code;           /* of failed; ERR_NO: caused by the request, so it is not retried */
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_gone { /* the session of a worker, gateway or store ended; one of the three is set */
    uint64_t at_ns;
    struct wire_str worker, gw, store;
    uint64_t inc; /* 0: any incarnation */
    struct wire_extra extra;
};

struct wire_blocks { /* a store's events */
    uint64_t at_ns;
    struct wire_str store;
    bool reset;                        /* its cache was reset: only `stored` of this and later events remain */
    struct wire_bytes stored, evicted; /* digests of 32 */
    struct wire_extra extra;
};

struct wire_knob { /* changes a setting */
    uint64_t at_ns;
    struct wire_str name;
    struct wire_str worker; /* of drain (0: resume), hand_over and role */
    float value;
    struct wire_extra extra;
};

struct wire_tick {
    uint64_t at_ns;
    struct wire_extra extra;
};

/* ---- decisions: from the scheduler ---- */

struct wire_ack { /* to a gateway: the request is queued */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    uint32_t attempt, n_before;
    uint64_t eta_ns; /* estimated time until the first token; 0: unknown */
    struct wire_extra extra;
};

struct wire_refuse { /* to a gateway; to a worker that the scheduler does not accept (job 0) */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    bool never;        /* no worker can ever run it; otherwise retry later */
    bool ending;       /* this scheduler is shutting down: the request is valid, but not for it */
    uint64_t retry_ns; /* Retry-After */
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_order { /* to a worker: a work item */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t order;
    struct wire_str gw;
    uint64_t job;
    uint32_t attempt;
    struct wire_str phase; /* prefill, decode, or whole: prefill in chunks, then decode */
    uint32_t n_prompt, max_tokens;
    uint32_t cached;   /* prompt tokens that its store is expected to have */
    uint32_t chunk;    /* if phase is whole: prompt tokens per step, at most */
    uint64_t lease_ns; /* a worker whose session has been down for this long cancels the item */
    int32_t priority;
    struct wire_str from; /* if phase is decode: the store that has the KV */
    struct wire_bytes handle;
    struct wire_str reply;
    uint32_t n_out; /* tokens of the answer that were delivered: the worker continues after them */
    const uint32_t *out;
    uint32_t n_out_id;
    struct wire_bytes body;
    struct wire_extra extra;
};

struct wire_control { /* to a worker */
    uint64_t at_ns;
    struct wire_str to;
    struct wire_str what; /* cancel, preempt, drain, resume (no longer drain) or role */
    struct wire_str gw;
    uint64_t job, order;
    uint32_t attempt;
    struct wire_str role;
    struct wire_extra extra;
};

struct wire_done { /* to a gateway: the request has ended */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    uint32_t attempt, n_out;
    enum wire_reason reason;
    uint32_t code;
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_stat { /* the request (empty), and the response */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t submitted, running, waiting;
    uint64_t stop, length, cancelled, expired, error, refused; /* ended by reason */
    uint64_t retried, preempted, stale, placed;
    uint32_t workers, gateways, stores, tombs;
    /* of about the last thousand that gateways and workers have reported; 0: none yet */
    uint64_t ttft_p50_ns, ttft_p99_ns; /* from submit to the gateway's first report of tokens */
    uint64_t itl_p50_ns, itl_p99_ns;   /* of decode steps */
    struct wire_str policy;
    uint64_t bytes, bytes_max; /* of the bodies of all requests; of tokenize: of its queues; and the limit */
    struct wire_extra extra;
};

struct wire_worker { /* follows the response stat, once for each worker that has joined and whose session is up */
    uint64_t at_ns;
    struct wire_str name, role, store;
    bool draining;
    uint32_t seqs, seqs_all, tokens; /* free sequences; their maximum; free prompt tokens */
    uint64_t blocks, blocks_all;     /* free slots; all slots of its pool */
    uint32_t n_prefill, n_decode, n_whole;
    uint64_t context, step_ns; /* of its last decode step */
    uint32_t batch;
    uint64_t inc;
    struct wire_str compat; /* of its join */
    const uint32_t *steps;  /* of its last capacity */
    uint32_t n_steps;
    uint64_t step_tokens;
    uint64_t bytes, bytes_max;         /* of the bodies of its work items; and the limit */
    uint64_t out_bytes, out_bytes_max; /* that gateways have not acknowledged, by its last capacity; and the limit */
    struct wire_extra extra;
};

#endif
