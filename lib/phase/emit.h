/* prefill's output: a queue and a thread that writes it, so that KV is sent while the next layers are computed. Frames
 * are written in the order they were queued. Private to lib/phase. */
#ifndef PHASE_EMIT_H
#define PHASE_EMIT_H

#include "phase/request.h"

struct emit;
int emit_new(struct err *e, struct emit **out, struct stage *s);
void emit_free(struct emit *m); /* does not write what is queued; NULL is safe */

int emit_frame(struct err *e, struct emit *m, const struct wire_frame *f);
/* Queues layers layer … layer+n_layer-1 of the block in `slot`, n_token tokens of it. Fast. A failure is returned by
 * the next emit_check, emit_wait or emit_flush. */
void emit_block(struct emit *m, const struct request *q, int64_t block, int32_t slot, int64_t layer, int64_t n_layer,
                int n_token);
/* Frees q and its blocks after all that was queued before has been written. */
void emit_done(struct emit *m, struct request *q);

/* Requests passed to emit_done and not yet freed. */
int64_t emit_pending(struct emit *m);
/* Waits until at most n are pending. Returns the first error of the thread. */
int emit_wait(struct err *e, struct emit *m, int64_t n);
/* Back pressure for frames without KV blocks: waits while more than 16,384 frames are queued. */
int emit_room(struct err *e, struct emit *m);
/* Returns the first error of the thread so far; does not wait. */
int emit_check(struct err *e, struct emit *m);
/* Waits until all is written. Returns the first error of the thread. */
int emit_flush(struct err *e, struct emit *m);

#endif
