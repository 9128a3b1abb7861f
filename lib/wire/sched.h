/*
 * The scheduler's frames, included by wire.h: what gateways, workers, stores and tools send to it (submit … tick,
 * capacity, stat), and what it decides (ack … done, and the responses stat and worker). `at_ns` is the scheduler's
 * clock, set by the loop that feeds the machine, so a recording replays in its own time; every other time is a
 * duration, since clocks of hosts differ.
 *
 * A request is named by gateway and job, an attempt of it by attempt, a piece of work given to a worker by order. Names
 * of workers, gateways and stores are at most 64 bytes; a worker's `inc` tells one life of its process from the next.
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

/* ---- in ---- */

struct wire_submit { /* a gateway has a request */
    uint64_t at_ns;
    struct wire_str gw;
    uint64_t job;
    uint32_t n_prompt, max_tokens;
    struct wire_bytes digests;         /* 32 a full block of the prompt, or none */
    int32_t priority;                  /* smaller goes first */
    uint64_t deadline_ns;              /* from now; 0: none */
    uint64_t slo_ttft_ns, slo_tpot_ns; /* 0: the policy's */
    struct wire_str reply;             /* where the tokens go */
    struct wire_bytes body;            /* for the worker; not looked into: the tok frame */
    bool again;                        /* the scheduler was restarted: a worker may run it already */
    uint32_t attempt, n_out;           /* with again: the try that was known, the tokens that came */
    const uint32_t *out;               /* those tokens */
    uint32_t n_out_id;
    struct wire_extra extra;
};

struct wire_cancel {
    uint64_t at_ns;
    struct wire_str gw;
    uint64_t job;
    struct wire_extra extra;
};

struct wire_run { /* what a worker runs while it joins */
    struct wire_str gw;
    uint64_t job, order;
    uint32_t attempt;
    struct wire_str phase;
    uint32_t n_prompt, max_tokens, n_out;
    struct wire_extra extra;
};

struct wire_join { /* a worker registers, with what it runs */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    struct wire_str role;      /* prefill, decode or both: what it likes; it can do either */
    struct wire_str store;     /* of its host */
    struct wire_str compat;    /* "model …, vocabulary …, KV type, arithmetic, layout": all workers say the same */
    uint32_t seqs;             /* sequences at once */
    uint64_t blocks;           /* slots of its pool */
    uint32_t max_len;          /* tokens of a sequence */
    uint32_t chunk;            /* tokens of a step */
    float pre_a, pre_b, pre_c; /* ns of a prefill: a + b·new + c·((cached + new)² - cached²); 0: to be learned */
    float dec_a, dec_b, dec_c; /* ns of a decode step: a + b·context + c·batch */
    const struct wire_run *run;
    uint32_t n_run;
    struct wire_extra extra;
};

struct wire_capacity { /* what a worker can take: after its join, when it changed, and with the statistics of its steps
                        */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    uint64_t orders; /* since the join on this session, that the room below counts: later ones are to be subtracted */
    uint32_t seqs;   /* sequences it can still take */
    uint32_t tokens; /* prompt tokens it can still take; a longer prompt counts as this much */
    uint64_t blocks; /* slots free or evictable */
    uint64_t step_ns, context; /* its last decode step: time, tokens of context, sequences */
    uint32_t batch;
    bool drain;            /* it wants to end: no new work */
    const uint32_t *steps; /* of this life, counted by their tokens (prompts and answers), modulo 2^32 */
    uint32_t n_steps;      /* 0 or WIRE_STEPS_MAX */
    uint64_t step_tokens;  /* the sum of their tokens */
    struct wire_extra extra;
};

struct wire_report { /* of a worker about an order; of a gateway (worker empty): tokens that came, or ended */
    uint64_t at_ns;
    struct wire_str worker;
    uint64_t inc;
    struct wire_str gw;
    uint64_t job, order;
    uint32_t attempt;
    struct wire_str what;    /* progress, prefilled, tokens, ended, failed, preempted or cancelled */
    uint32_t n_done, cached; /* prompt tokens in KV, and those of them that were found */
    uint32_t n_out;          /* tokens of the answer so far, from its first */
    const uint32_t *out;     /* its newest, up to n_out */
    uint32_t n_out_id;
    uint64_t busy_ns; /* of prefilled: time it computed */
    struct wire_bytes handle;
    struct wire_str store;
    enum wire_reason reason; /* of ended */
    uint32_t code;           /* of failed; ERR_NO: the request's own fault, not tried again */
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_gone { /* a socket closed: one of the three */
    uint64_t at_ns;
    struct wire_str worker, gw, store;
    uint64_t inc; /* 0: whatever life */
    struct wire_extra extra;
};

struct wire_blocks { /* a store's events */
    uint64_t at_ns;
    struct wire_str store;
    bool reset;                        /* it holds nothing but what follows */
    struct wire_bytes stored, evicted; /* digests of 32 */
    struct wire_extra extra;
};

struct wire_knob {
    uint64_t at_ns;
    struct wire_str name;
    struct wire_str worker; /* of drain, undrain and role */
    float value;
    struct wire_extra extra;
};

struct wire_tick {
    uint64_t at_ns;
    struct wire_extra extra;
};

/* ---- out ---- */

struct wire_ack { /* to a gateway: taken, and waits */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    uint32_t attempt, n_before;
    uint64_t eta_ns; /* estimate of the first token, from now; 0: none yet */
    struct wire_extra extra;
};

struct wire_refuse { /* to a gateway; to a worker (job 0) that does not belong here */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    bool never;        /* it fits nowhere; otherwise not now */
    uint64_t retry_ns; /* Retry-After */
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_order { /* to a worker */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t order;
    struct wire_str gw;
    uint64_t job;
    uint32_t attempt;
    struct wire_str phase; /* prefill, decode, or whole: prefill in chunks, then decode */
    uint32_t n_prompt, max_tokens;
    uint32_t cached;   /* prompt tokens that its store should have */
    uint32_t chunk;    /* whole: prompt tokens a step */
    uint64_t lease_ns; /* a worker whose session has been broken for this long drops it */
    int32_t priority;
    struct wire_str from; /* of decode: the store that has the KV */
    struct wire_bytes handle;
    struct wire_str reply;
    uint32_t n_out; /* tokens of the answer that were delivered: it goes on behind them */
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

struct wire_done { /* to a gateway: nothing more comes */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t job;
    uint32_t attempt, n_out;
    enum wire_reason reason;
    uint32_t code;
    struct wire_str text;
    struct wire_extra extra;
};

struct wire_stat { /* asked, and answered */
    uint64_t at_ns;
    struct wire_str to;
    uint64_t submitted, running, waiting;
    uint64_t stop, length, cancelled, expired, error, refused; /* ended by reason */
    uint64_t retried, preempted, stale, placed;
    uint32_t workers, gateways, stores, tombs;
    /* of the last thousand or so, as far as gateways and workers have told; 0: none yet */
    uint64_t ttft_p50_ns, ttft_p99_ns; /* from submit to the gateway's first report of tokens */
    uint64_t itl_p50_ns, itl_p99_ns;   /* of decode steps */
    struct wire_str policy;
    struct wire_extra extra;
};

struct wire_worker { /* after a stat that was answered, one a worker that has joined and whose session is up */
    uint64_t at_ns;
    struct wire_str name, role, store;
    bool draining;
    uint32_t seqs, seqs_all, tokens; /* that it can take; at once; prompt tokens that it can take */
    uint64_t blocks, blocks_all;     /* slots free; of its pool */
    uint32_t n_prefill, n_decode, n_whole;
    uint64_t context, step_ns; /* of its last decode step */
    uint32_t batch;
    uint64_t inc;
    struct wire_str compat; /* as it joined */
    const uint32_t *steps;  /* of its newest capacity */
    uint32_t n_steps;
    uint64_t step_tokens;
    struct wire_extra extra;
};

#endif
