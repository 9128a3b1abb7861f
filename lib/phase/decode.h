/* decode's two halves: the thread that takes frames in, and the loop that computes. Private to lib/phase. */
#ifndef PHASE_DECODE_H
#define PHASE_DECODE_H

#include <pthread.h>

#include "base/list.h"
#include "phase/runner.h"

struct incoming {      /* a request, and what has come of it */
    struct request q;  /* first */
    struct list node;  /* of a list below */
    bool prefilled;    /* its KV and first token come from prefill */
    bool streaming;    /* blocks are coming */
    bool dropped;      /* they are thrown away: the pool was full */
    bool kv_seen;      /* the kv frame, or the error, is here */
    bool running;      /* it is the runner's */
    uint32_t *arrived; /* [n_block] layers that have come */
    int64_t n_block;   /* blocks of the prompt */
    int64_t n_whole;   /* complete ones */
};

/*
 * Requests move from `waiting` (no blocks) to `held` (blocks, in part or whole) to the end. All lists, counters and
 * flags are under `lock`; a request's own fields belong to the input thread until it is ready, to the runner
 * afterwards.
 */
struct decode {
    struct runner r; /* first */
    struct wire_reader *in;
    uint8_t *packed; /* of the input thread: room for engine_kv_place */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work; /* something to compute, or the input's state changed */
    pthread_cond_t room; /* something ended: the input thread may go on */
    struct list waiting; /* need blocks, in the order they came */
    struct list held;
    int64_t n_waiting, n_held, n_streaming; /* n_streaming: of the held ones, those not ready */
    bool bye, end, quit;
    struct wire_bye last;
    struct err in_err; /* the input thread's end */
    uint64_t n_ok, n_error;
};

/* The input thread. */
void *decode_input(void *d);

/* With the lock held: the request gets its blocks, or false where the pool has no room now. */
bool decode_admit(struct decode *d, struct incoming *in);
static inline struct incoming *incoming_of(struct list *node)
{
    return list_entry(node, struct incoming, node);
}

/* Nothing more of it is due from the input. */
bool decode_ready(const struct incoming *in);
void decode_free(struct decode *d, struct incoming *in); /* with its blocks */

#endif
