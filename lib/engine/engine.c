/* The functions of engine.h: each calls the backend. */
#include "engine/engine.h"

#include <string.h>

#include "engine/backend.h"
#include "kv/bytes.h"
#include "text/text.h"

static const struct engine_backend *backend_of(const char *spec)
{
    return spec ? &engine_fake : &engine_cpu; /* the fake backend refuses unknown specs */
}

int engine_model(struct err *e, struct model **out, const char *backend, const struct model_opts *o)
{
    return backend_of(backend)->model(e, out, backend, o);
}

int engine_kv_kind(struct err *e, struct kv_kind *out, const char *backend, const struct model *m, enum kern_kv type)
{
    const struct engine_backend *b = backend_of(backend);
    *out = (struct kv_kind){.type = type};
    memccpy(out->arith, b->arith, 0, sizeof out->arith);
    memccpy(out->layout, b->layout, 0, sizeof out->layout);
    if (m) {
        memcpy(out->model, m->fingerprint, sizeof out->model);
        out->n_layer = (uint32_t)m->c.n_layer;
        out->n_kv_head = (uint32_t)m->c.n_kv_head;
        out->head_dim = (uint32_t)m->c.head_dim;
    }
    return b->kv_type(e, type);
}

int engine_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o)
{
    return backend_of(o->backend)->open(e, out, m, pool, o);
}

void engine_free(struct engine *g)
{
    if (g)
        g->backend->close(g);
}

int64_t engine_row_max(const struct engine *g)
{
    return g->row_max;
}

int engine_threads(const struct engine *g)
{
    return g->n_thread;
}

const char *engine_isa(const struct engine *g)
{
    return g->isa;
}

int engine_step(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                engine_layer_fn *layer_done, void *arg)
{
    return g->backend->step(e, g, chunk, n_chunk, layer_done, arg);
}

int64_t engine_logits_ld(const struct engine *g)
{
    return (g->m->c.vocab + 31) / 32 * 32;
}

int engine_logits(struct err *e, struct engine *g, float *out, int64_t first, int64_t n)
{
    return g->backend->logits(e, g, out, first, n);
}

int engine_sample(struct err *e, struct engine *g, struct engine_row *row, int64_t first, int64_t n)
{
    return g->backend->sample(e, g, row, first, n);
}

int engine_kv_read(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room)
{
    return g->backend->kv_read(e, g, out, p, room);
}

uint8_t *engine_kv_place(struct engine *g, const struct kv_part *p, uint8_t *room)
{
    return g->backend->kv_place(g, p, room);
}

int engine_kv_write(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed)
{
    return g->backend->kv_write(e, g, p, packed);
}

/* A full block is transferred as it is in memory; the tail of a sequence is packed. */
int host_kv_read(struct err *e, struct engine *g, const uint8_t **out, const struct kv_part *p, uint8_t *room)
{
    (void)e;
    const uint8_t *at = kv_layer(g->pool, p->slot, p->layer);
    if (p->n_token < KV_BLOCK)
        kv_pack(room, kv_pool_layout(g->pool), at, p->n_layer, p->n_token);
    *out = p->n_token < KV_BLOCK ? room : at;
    return 0;
}

uint8_t *host_kv_place(struct engine *g, const struct kv_part *p, uint8_t *room)
{
    return p->n_token < KV_BLOCK ? room : kv_layer(g->pool, p->slot, p->layer);
}

int host_kv_write(struct err *e, struct engine *g, const struct kv_part *p, const uint8_t *packed)
{
    (void)e;
    uint8_t *at = kv_layer(g->pool, p->slot, p->layer);
    if (packed != at)
        kv_unpack(at, kv_pool_layout(g->pool), packed, p->n_layer, p->n_token);
    return 0;
}

bool engine_cost(const struct engine *g, struct engine_cost *out)
{
    return g->backend->cost(g, out);
}

const char *engine_part_name(enum engine_part p)
{
    static const char *const name[PART_N] = {"embed", "norm",    "qkv",  "rope", "attention",
                                             "out",   "gate-up", "down", "head", "wait"};
    return p < PART_N ? name[p] : "?";
}

void engine_times(const struct engine *g, uint64_t out_ns[PART_N])
{
    memcpy(out_ns, g->time_ns, sizeof g->time_ns);
}
