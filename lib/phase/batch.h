/* The rows of a step: the next ids of some requests, any mix of prompt chunks and newest tokens. Private to lib/phase.
 */
#ifndef PHASE_BATCH_H
#define PHASE_BATCH_H

#include "engine/engine.h"
#include "phase/request.h"

struct batch_row; /* one row of logits and its use */

struct batch {
    struct engine *g;
    struct request **q;         /* [n] */
    struct engine_chunk *chunk; /* [n] the rows of each */
    int64_t n, room;            /* requests; rows that may be added */

    struct batch_row *row;      /* [n_row] */
    struct engine_row *sampled; /* for a call of engine_sample */
    int64_t n_row, cap;
};

int batch_new(struct err *e, struct batch **out, struct engine *g);
void batch_free(struct batch *b);
void batch_clear(struct batch *b);
/* Adds the next n ids of q that have no KV yet; 1 <= n <= room. If no id is left after them, the step chooses the next
 * token, if an answer is wanted. A request is added at most once. */
void batch_add(struct batch *b, struct request *q, int64_t n);
/* Runs the step and samples: increments n_kv; sets token and has_token, or err if the numbers of a request are damaged.
 */
int batch_run(struct err *e, struct batch *b, engine_layer_fn *layer_done, void *arg);

#endif
