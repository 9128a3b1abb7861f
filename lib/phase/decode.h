/* decode as a filter: the thread that reads frames, and the runner. Private to lib/phase. */
#ifndef PHASE_DECODE_H
#define PHASE_DECODE_H

#include <pthread.h>

#include "base/list.h"
#include "phase/runner.h"

struct incoming {      /* a request and the parts of it that were read */
    struct request q;  /* first */
    struct list node;  /* of waiting or held */
    bool prefilled;    /* prefill sends its KV and first token */
    bool streaming;    /* its blocks are being read */
    bool dropped;      /* its blocks are discarded, because the pool was full */
    bool kv_seen;      /* the kv frame or the error was read */
    bool running;      /* it was given to the runner */
    uint32_t *arrived; /* [n_block] layers that were read */
    int64_t n_block;   /* blocks of the prompt */
    int64_t n_whole;   /* complete blocks */
};

/*
 * A request is in `waiting` (no blocks), then in `held` (some or all blocks). `lock` protects all lists, counters and
 * flags; the fields of a request belong to the input thread until it is ready, and to the runner afterwards.
 */
struct decode {
    struct runner r; /* first */
    struct wire_reader *in;
    uint8_t *packed; /* of the input thread: buffer for engine_kv_place */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work; /* a request is ready, or the state of the input changed */
    pthread_cond_t room; /* a request ended: the input thread may continue */
    struct list waiting; /* in order of arrival */
    struct list held;
    int64_t n_waiting, n_held, n_streaming; /* n_streaming: held and not ready */
    bool bye, end, quit;
    struct wire_bye last;
    struct err in_err; /* why the input thread ended */
    uint64_t n_ok, n_error;
};

/* Main function of the input thread. */
void *decode_input(void *d);

/* With the lock held: allocates the blocks of the request; false if the pool has not enough free. */
bool decode_admit(struct decode *d, struct incoming *in);
static inline struct incoming *incoming_of(struct list *node)
{
    return list_entry(node, struct incoming, node);
}

/* Whether its input is complete. */
bool decode_ready(const struct incoming *in);
void decode_free(struct decode *d, struct incoming *in); /* with its blocks */

#endif
