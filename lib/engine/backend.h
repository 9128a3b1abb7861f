/*
 * A backend computes for the engine: it is a table of functions, and its engine a struct that begins with struct
 * engine. engine.h states the contract of each function; engine.c calls them. Private to lib/engine.
 */
#ifndef BACKEND_H
#define BACKEND_H

#include "engine/engine.h"

struct engine_backend {
    /* Ids of the KV that it computes. Backends with the same ids compute the same bits. */
    const char *arith;                                /* changes with any rule of docs/arithmetic.md */
    const char *layout;                               /* of a block in memory: [layer][head][K, scales, V, scales] */
    int (*kv_type)(struct err *e, enum kern_kv type); /* refuses a type that it does not compute */

    int (*model)(struct err *e, struct model **out, const char *spec, const struct model_opts *o);
    int (*open)(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o);
    void (*close)(struct engine *g);

    int (*step)(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                engine_layer_fn *layer_done, void *arg);
    int (*logits)(struct err *e, struct engine *g, float *out, int64_t first, int64_t n);
    int (*sample)(struct err *e, struct engine *g, struct engine_row *row, int64_t first, int64_t n);

    int (*kv_read)(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room);
    uint8_t *(*kv_place)(struct engine *g, const struct kv_part *p, uint8_t *room);
    int (*kv_write)(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed);

    bool (*cost)(const struct engine *g, struct engine_cost *out);
};

/* The fields of every engine; open sets them. */
struct engine {
    const struct engine_backend *backend;
    const struct model *m;
    struct kv_pool *pool;
    const struct text *text; /* may be NULL */
    const char *isa;
    enum kern_kv kv;
    int64_t row_max;
    int n_thread;
    uint64_t time_ns[PART_N]; /* engine_times */
};

extern const struct engine_backend engine_cpu, engine_fake;

/* engine_kv_* for a pool whose slots are in host memory. */
int host_kv_read(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room);
uint8_t *host_kv_place(struct engine *g, const struct kv_part *p, uint8_t *room);
int host_kv_write(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed);

#endif
