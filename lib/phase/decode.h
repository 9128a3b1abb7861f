/* decode's two halves: the thread that takes frames in, and the loop that computes. Private to lib/phase. */
#ifndef PHASE_DECODE_H
#define PHASE_DECODE_H

#include <pthread.h>

#include "phase/stage.h"

/*
 * Requests move from `waiting` (no blocks) to `held` (blocks, in part or whole) to the end. All lists, counters and
 * flags are under `lock`; a request's own fields belong to the input thread while it is `streaming`, to the loop
 * afterwards.
 */
struct decode {
    struct stage s;
    struct wire_reader *in;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work;                     /* something to compute, or the input's state changed */
    pthread_cond_t room;                     /* something ended: the input thread may go on */
    struct request *waiting, **waiting_tail; /* need blocks, in the order they came */
    struct request *held, **held_tail;
    int64_t n_waiting, n_held, n_streaming; /* n_streaming: of the held ones, those not ready */
    bool bye, end, quit;
    struct wire_bye last;
    struct err in_err; /* the input thread's end */
    uint64_t n_ok, n_error;
};

/* The input thread. */
void *decode_input(void *d);

/* With the lock held: the request gets its blocks, or false where the pool has no room now. */
bool decode_admit(struct decode *d, struct request *q);
/* Nothing more of it is due from the input. */
bool decode_ready(const struct request *q);
void decode_push(struct request ***tail, struct request *q);

#endif
