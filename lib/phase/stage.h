/* The state that prefill and decode share: a model, its engine and KV pool. Private to lib/phase. */
#ifndef PHASE_STAGE_H
#define PHASE_STAGE_H

#include "engine/engine.h"
#include "phase/phase.h"
#include "text/text.h"
#include "wire/wire.h"

#define EMPTY_STREAM "stdin: empty, not even a hello: the stage before failed"

struct batch;
struct cores;

struct stage {
    const struct phase_opts *o;
    struct model *m;
    struct text *text;
    struct kv_pool *pool;
    struct engine *g;
    struct kv_kind kind; /* of the engine's KV; before it exists, of --kv-cache-dtype */
    struct kv_layout layout;
    enum kern_kv kv;
    int64_t context;
    uint64_t load_ns;
    int n_thread;
    struct cores *cores; /* NULL without --cpus */
    struct wire_writer *out;
    struct batch *batch;
};

/* Opens model and vocabulary; stage_engine makes the pool and the engine when the KV type is known. */
int stage_open(struct err *e, struct stage *s, const struct phase_opts *o);
/* Makes pool and engine for a KV type, or keeps those of the same type; no request may hold blocks. */
int stage_engine(struct err *e, struct stage *s, enum kern_kv kv);
/* The same over an existing pool, which s owns from here on, also after a failure. */
int stage_engine_take(struct err *e, struct stage *s, enum kern_kv kv, struct kv_pool *pool);
void stage_log_profile(const struct stage *s); /* logs the times, with --profile */
void stage_close(struct stage *s);

int kv_type_parse(struct err *e, enum kern_kv *out, const char *name);
/* The hello and bye of this stage in response to those that it read. */
void stage_hello(const struct stage *s, struct wire_frame *out, const struct wire_hello *in, bool with_kv);
void stage_bye(const struct stage *s, struct wire_frame *out, uint64_t n_ok, uint64_t n_error,
               const struct wire_bye *in);
/* Checks the vocabulary section, and the KV section if there is one. ERR_PROTO: they do not match the model. */
int stage_check_hello(struct err *e, const struct stage *s, const struct wire_hello *h);

#endif
