/* Attention of a layer. A unit (chunk, KV head, rows) walks the partitions of the context in order. If rows are few and
 * contexts long, a unit is one partition, and the partials are merged afterwards in the same order. Both give the same
 * bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/layer.h"

/* Partitions that rows before `row` of the chunk attend to. */
static int64_t partitions_to(const struct engine_chunk *c, int64_t row)
{
    return (c->pos + row + KERN_KV_PARTITION - 1) / KERN_KV_PARTITION;
}

static int64_t partitions(const struct engine_chunk *c)
{
    return partitions_to(c, c->n);
}

#define SHORT_TOKENS 8
#define HEADS_UNITS 4 /* a unit is all heads of a partition if there are at least so many units per thread */

int attend_plan(struct err *e, struct cpu *g)
{
    struct step *s = &g->s;
    int64_t whole = 0, split = 0, deep = 0;
    s->whole = true;
    s->part_rows = 0;
    for (int64_t c = 0; c < s->n_chunk; c++) {
        int64_t tiles = (s->chunk[c].n + g->attn_tokens - 1) / g->attn_tokens;
        whole += tiles;
        split += tiles * partitions(&s->chunk[c]);
        s->part_rows = max64(s->part_rows, min64(s->chunk[c].n, g->attn_tokens) * g->group);
        deep = max64(deep, partitions(&s->chunk[c]));
        s->whole &= tiles == 1;
    }
    /*
     * Split if units would be too few to balance the threads; and if all chunks are short (so partials take little
     * memory), contexts long and units many: then a unit is all heads of a partition, which are adjacent in a block and
     * therefore faster to read.
     */
    s->heads = s->part_rows <= SHORT_TOKENS * g->group && deep > 2 && split >= HEADS_UNITS * g->width;
    s->split = s->heads || (deep > 1 && whole * g->e.m->c.n_kv_head < 4 * g->width && split > whole);
    s->whole &= !s->split;
    s->n_unit = 0;
    for (int64_t c = 0; c < s->n_chunk; c++) {
        s->unit0[c] = s->n_unit;
        s->n_unit += (s->chunk[c].n + g->attn_tokens - 1) / g->attn_tokens * (s->split ? partitions(&s->chunk[c]) : 1);
    }
    s->unit0[s->n_chunk] = s->n_unit;
    int64_t rows = s->n_unit * g->e.m->c.n_kv_head * s->part_rows;
    if (!s->split || rows <= g->part.cap)
        return 0;
    struct part p = {malloc((size_t)rows * 4), malloc((size_t)rows * 4),
                     malloc((size_t)rows * 4 * (size_t)g->e.m->c.head_dim), rows};
    if (!p.m || !p.l || !p.o) {
        free(p.m);
        free(p.l);
        free(p.o);
        return err_nomem(e, "attention partials", (size_t)rows * 4 * (size_t)(g->e.m->c.head_dim + 2));
    }
    free(g->part.m);
    free(g->part.l);
    free(g->part.o);
    g->part = p;
    return 0;
}

struct unit {
    int64_t c, first, n; /* chunk; its rows first … first+n-1 */
    int64_t p0, p1;      /* partitions */
    int head;
    float *o; /* output of the first row, all heads */
};

/* Unit u. Heads vary slowest, so threads read the KV of one head at the same time. */
static struct unit unit_of(const struct cpu *g, int64_t u)
{
    const struct step *s = &g->s;
    struct unit t = {.head = (int)(u / s->n_unit)};
    u %= s->n_unit;
    int64_t lo = 0, hi = s->n_chunk;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (s->unit0[mid] <= u)
            lo = mid;
        else
            hi = mid;
    }
    t.c = lo;
    const struct engine_chunk *c = &s->chunk[lo];
    u -= s->unit0[lo];
    int64_t tile = s->split ? u / partitions(c) : u;
    t.first = tile * g->attn_tokens;
    t.n = min64(g->attn_tokens, c->n - t.first);
    t.p0 = s->split ? u % partitions(c) : 0;
    t.p1 = s->split ? t.p0 + 1 : partitions_to(c, t.first + t.n);
    t.o = g->o + (s->row0[t.c] + t.first) * g->e.m->c.n_head * g->e.m->c.head_dim;
    return t;
}

/* Tiles of partition p that any row of the unit attends to. */
static int tiles_of(const struct cpu *g, int64_t layer, const struct unit *u, int64_t p, const uint8_t **tile)
{
    const struct engine_chunk *c = &g->s.chunk[u->c];
    int64_t base = p * KERN_KV_PARTITION, seen = min64(c->pos + u->first + u->n - base, KERN_KV_PARTITION);
    int n = seen <= 0 ? 0 : (int)((seen + KV_BLOCK - 1) / KV_BLOCK);
    for (int b = 0; b < n; b++)
        tile[b] = kv_tile(g->e.pool, c->kv->slot[base / KV_BLOCK + b], layer, u->head);
    return n;
}

/* Partition p of a unit into m, l, o: rows in the order (token, head of the group). n_next: tiles in t->next. */
static void one_partition(struct cpu *g, struct thread_ctx *t, int64_t layer, const struct unit *u, int64_t p,
                          int n_next, float *m, float *l, float *o)
{
    const struct engine_chunk *c = &g->s.chunk[u->c];
    for (int64_t i = 0; i < u->n; i++) {
        int64_t to = c->pos + u->first + i + 1 - p * KERN_KV_PARTITION;
        to = to < 0 ? 0 : min64(to, KERN_KV_PARTITION);
        for (int j = 0; j < g->group; j++) {
            t->from[i * g->group + j] = 0;
            t->to[i * g->group + j] = (int32_t)to;
        }
    }
    struct kern_attn a = {.type = g->e.kv,
                          .hd = g->e.m->c.head_dim,
                          .n_row = (int)u->n * g->group,
                          .q = g->q + (size_t)((g->s.row0[u->c] + u->first) * g->e.m->c.n_head + u->head * g->group) *
                                          g->q_bytes,
                          .run = g->group,
                          .step = (size_t)g->e.m->c.n_head * g->q_bytes,
                          .from = t->from,
                          .to = t->to,
                          .tile = t->tile,
                          .n_tile = tiles_of(g, layer, u, p, t->tile),
                          .next = t->next,
                          .n_next = n_next,
                          .scratch = t->attn};
    g->k->attn(m, l, o, &a);
}

static void start(struct thread_ctx *t, int64_t rows, int64_t hd)
{
    for (int64_t i = 0; i < rows; i++) {
        t->M[i] = -INFINITY;
        t->L[i] = 0;
    }
    memset(t->O, 0, (size_t)(rows * hd) * sizeof *t->O);
}

static void store(struct cpu *g, struct thread_ctx *t, const struct unit *u)
{
    int hd = g->e.m->c.head_dim;
    int64_t wide = (int64_t)g->e.m->c.n_head * hd;
    for (int64_t i = 0; i < u->n; i++)
        for (int j = 0; j < g->group; j++) {
            int64_t row = i * g->group + j;
            g->k->attn_finish(u->o + i * wide + (u->head * g->group + j) * hd, t->L[row], t->O + row * hd, hd);
        }
}

static void merge(struct cpu *g, struct thread_ctx *t, int64_t rows, const float *m, const float *l, const float *o)
{
    int hd = g->e.m->c.head_dim;
    for (int64_t i = 0; i < rows; i++)
        g->k->attn_merge(&t->M[i], &t->L[i], t->O + i * hd, m[i], l[i], o + i * hd, hd);
}

/* Tiles of the first partition of unit u, which this thread will probably take next, into t->next; u = -1: none. */
static int tiles_ahead(const struct cpu *g, struct thread_ctx *t, int64_t layer, int64_t u)
{
    if (u < 0)
        return 0;
    struct unit un = unit_of(g, u);
    return tiles_of(g, layer, &un, un.p0, t->next);
}

/* All partitions of a unit in order; the first partition of unit `after` is prefetched during the last one. */
static void walk(struct cpu *g, struct thread_ctx *t, int64_t layer, const struct unit *u, const struct unit *after)
{
    start(t, u->n * g->group, g->e.m->c.head_dim);
    for (int64_t p = u->p0; p < u->p1; p++) {
        int n = p + 1 < u->p1 ? tiles_of(g, layer, u, p + 1, t->next)
                : after       ? tiles_of(g, layer, after, after->p0, t->next)
                              : 0;
        one_partition(g, t, layer, u, p, n, t->m, t->l, t->o);
        merge(g, t, u->n * g->group, t->m, t->l, t->o);
    }
    store(g, t, u);
}

/*
 * The units of a stage in the order in which one thread takes them: first its own share, then what the others have
 * left. Since the order is known, the thread can prefetch the KV of its next unit. If there are more than
 * THREADS_CLAIMS_MAX units, a claim is a run of several.
 */
struct claims {
    int64_t n, run;  /* units; units of a run */
    int64_t at, end; /* the next unit of the present run; its end */
};

static struct claims claims_of(int64_t n)
{
    return (struct claims){.n = n, .run = (n + THREADS_CLAIMS_MAX - 1) / THREADS_CLAIMS_MAX};
}

static int64_t own_run(const struct cpu *g, int tid, const struct claims *w)
{
    return own_unit(g, tid, (w->n + w->run - 1) / w->run);
}

/* The next unit of this thread, or -1; *next: the one that it will probably get after it, or -1. */
static int64_t claim_unit(struct cpu *g, int tid, int stage, struct claims *w, int64_t *next)
{
    if (w->at == w->end) {
        int64_t n_run = (w->n + w->run - 1) / w->run;
        int64_t r =
            threads_claim(g->threads, tid, stage, n_run, w->end ? (w->at - 1) / w->run + 1 : own_run(g, tid, w));
        if (r < 0)
            return -1;
        w->at = r * w->run;
        w->end = min64(w->at + w->run, w->n);
    }
    int64_t u = w->at++;
    bool goes_on = w->at < w->end || (w->at < w->n && threads_is_free(g->threads, stage, w->at / w->run));
    *next = goes_on ? w->at : -1;
    return u;
}

/* Number of units in the first stage of a layer's attention. */
static int64_t units_taken(const struct cpu *g)
{
    return g->s.heads ? g->s.n_unit : g->s.n_unit * g->e.m->c.n_kv_head;
}

/* Whole units are taken from the last to the first: the longest first, so that threads finish at nearly the same time.
 */
static struct unit whole_unit(const struct cpu *g, int64_t u)
{
    return unit_of(g, g->s.n_unit * g->e.m->c.n_kv_head - 1 - u);
}

void attend_ahead(struct cpu *g, int tid, int64_t layer)
{
    struct claims w = claims_of(units_taken(g));
    int64_t u = own_run(g, tid, &w) * w.run;
    struct unit un = g->s.split ? unit_of(g, u) : whole_unit(g, u);
    const uint8_t **tile = g->ctx[tid].next;
    int n = tiles_of(g, layer, &un, un.p0, tile);
    size_t bytes = kern_kv_tile_bytes(g->e.kv, g->e.m->c.head_dim);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < bytes; k += 64)
            __builtin_prefetch(tile[i] + k, 0, 2);
}

static void attend_whole(struct cpu *g, int tid, int64_t layer, int stage)
{
    int64_t n_unit = units_taken(g), next;
    struct claims claims = claims_of(n_unit);
    for (int64_t u; (u = claim_unit(g, tid, stage, &claims, &next)) >= 0;) {
        struct unit un = whole_unit(g, u), after;
        if (g->s.whole)
            rotate_store(g, layer, un.c, 0, un.n, un.head, g->qkv + g->s.row0[un.c] * g->ldq);
        if (next >= 0)
            after = whole_unit(g, next);
        walk(g, &g->ctx[tid], layer, &un, next >= 0 ? &after : NULL);
        threads_done(g->threads, stage, n_unit, 1);
    }
    threads_sync(g->threads, tid, stage, n_unit);
}

void attend_rows(struct cpu *g, int tid, int64_t layer, int64_t c, int64_t first, int64_t n, float *o)
{
    const struct engine_chunk *ch = &g->s.chunk[c];
    int64_t wide = (int64_t)g->e.m->c.n_head * g->e.m->c.head_dim;
    for (int64_t i = 0; i < n; i += g->attn_tokens) {
        struct unit u = {.c = c, .first = first + i, .n = min64(g->attn_tokens, n - i), .o = o + i * wide};
        u.p1 = partitions_to(ch, u.first + u.n);
        for (u.head = 0; u.head < g->e.m->c.n_kv_head; u.head++) {
            struct unit after = u;
            after.head++;
            walk(g, &g->ctx[tid], layer, &u, after.head < g->e.m->c.n_kv_head ? &after : NULL);
        }
    }
}

/* Computes the partials of unit u; `after`: the unit that this thread will probably take next, or -1. */
static void part(struct cpu *g, struct thread_ctx *t, int64_t layer, int64_t u, int64_t after)
{
    struct unit un = unit_of(g, u);
    int64_t at = u * g->s.part_rows;
    int n = tiles_ahead(g, t, layer, after);
    one_partition(g, t, layer, &un, un.p0, n, g->part.m + at, g->part.l + at, g->part.o + at * g->e.m->c.head_dim);
}

static void attend_split(struct cpu *g, int tid, int64_t layer, int stage)
{
    struct thread_ctx *t = &g->ctx[tid];
    int64_t hd = g->e.m->c.head_dim, rows = g->s.part_rows, n_unit = g->s.n_unit * g->e.m->c.n_kv_head;
    int64_t n = units_taken(g), next;
    struct claims claims = claims_of(n);
    for (int64_t u; (u = claim_unit(g, tid, stage, &claims, &next)) >= 0;) {
        for (int64_t h = u; h < n_unit; h += n)
            part(g, t, layer, h, h + n < n_unit ? h + n : next);
        threads_done(g->threads, stage, n, 1);
    }
    threads_sync(g->threads, tid, stage, n);
    for (int64_t u; (u = threads_take(g->threads, tid, stage + 1, n_unit, 1)) >= 0;) {
        struct unit un = unit_of(g, u);
        if (!un.p0) { /* the unit of the first partition merges all */
            start(t, un.n * g->group, hd);
            for (int64_t p = 0; p < partitions(&g->s.chunk[un.c]); p++)
                merge(g, t, un.n * g->group, g->part.m + (u + p) * rows, g->part.l + (u + p) * rows,
                      g->part.o + (u + p) * rows * hd);
            store(g, t, &un);
        }
        threads_done(g->threads, stage + 1, n_unit, 1);
    }
    threads_sync(g->threads, tid, stage + 1, n_unit);
}

void attend_units(struct cpu *g, int tid, int64_t layer, int *stage)
{
    if (g->s.split) {
        attend_split(g, tid, layer, *stage);
        *stage += 2;
    } else {
        attend_whole(g, tid, layer, (*stage)++);
    }
}
