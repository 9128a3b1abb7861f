/* prefill's output: a queue and a thread that writes it, so that KV leaves while the next layers are computed. Frames
 * go out in the order they were queued. Private to lib/phase. */
#ifndef PHASE_EMIT_H
#define PHASE_EMIT_H

#include "phase/request.h"

struct emit;
int emit_new(struct err *e, struct emit **out, struct stage *s);
void emit_free(struct emit *m); /* without waiting: for errors */

int emit_frame(struct err *e, struct emit *m, const struct wire_frame *f);
/* Layers layer … layer+n_layer-1 of a block that lies in `slot`; n_token of it. Never fails; cheap. */
void emit_block(struct emit *m, const struct request *q, int64_t block, int32_t slot, int64_t layer, int64_t n_layer,
                int n_token);
/* Frees q and its blocks after everything before has been written. */
void emit_done(struct emit *m, struct request *q);

/* Requests handed to emit_done and not freed yet. */
int64_t emit_pending(struct emit *m);
/* Waits until at most `n` are pending, or a write failed. */
int emit_wait(struct err *e, struct emit *m, int64_t n);
/* For what takes no KV blocks, whose number bounds the rest: waits while very many frames are queued. */
int emit_room(struct err *e, struct emit *m);
/* The first error of the thread so far; does not wait. */
int emit_check(struct err *e, struct emit *m);
/* Writes all; the first error of the thread. */
int emit_flush(struct err *e, struct emit *m);

#endif
