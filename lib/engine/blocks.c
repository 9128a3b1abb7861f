/*
 * The schedule for steps of many rows. A thread computes a whole layer for a block of rows, from attention to the next
 * layer's keys and values, so the intermediate results stay in its cache. Threads wait for each other only if a row
 * reads keys of rows before it. All rows of a block share one copy of the unpacked weights.
 */
#include <stdatomic.h>

#include "engine/layer.h"

#define BLOCK_ROWS_LEAST 32
#define UNITS 2 /* blocks per thread, at least: so that others can take the rest of a delayed thread */

void blocks_plan(struct cpu *g)
{
    struct step *s = &g->s;
    s->block = 0;
    for (int64_t rows = BLOCK_ROWS; rows >= BLOCK_ROWS_LEAST && !s->block; rows /= 2)
        if (s->n_row >= rows * UNITS * g->width)
            s->block = rows;
    s->n_block = s->block ? (s->n_row + s->block - 1) / s->block : 0;
    s->n_reported = 0;
    for (int64_t b = 0; b < s->n_block; b++)
        atomic_store_explicit(&g->block[b].done, 0, memory_order_relaxed);
}

static int64_t first_row(const struct step *s, int64_t b)
{
    return b * s->block;
}

static int64_t end_row(const struct step *s, int64_t b)
{
    return min64((b + 1) * s->block, s->n_row);
}

static void norm(struct pass *p, const float *w)
{
    struct kern_act *a = &p->t->norm_act;
    a->n_row = p->n;
    for (int64_t r = 0; r < p->n; r += KERN_TILE)
        norm_tile(p->g, p->t, a, r, w, p->r0 + r, min64(KERN_TILE, p->n - r));
}

static void qkv(struct pass *p, int64_t layer)
{
    const struct model_layer *l = &p->g->e.m->layer[layer];
    const struct kern_mat *w[3] = {&l->wq, &l->wk, &l->wv};
    for (int i = 0; i < 3; i++)
        qkv_panels(p->g, p->t, l, i, p->t->qkv, &p->t->norm_act, 0, groups(w[i]), p->n);
}

/* Number of rows from r on that are both in chunk c and in the pass. */
static int64_t rows_of(const struct pass *p, int64_t c, int64_t r)
{
    const struct step *s = &p->g->s;
    return min64(s->row0[c] + s->chunk[c].n, p->r0 + p->n) - r;
}

static void store(struct pass *p, int64_t layer)
{
    struct cpu *g = p->g;
    const struct step *s = &g->s;
    for (int64_t r = p->r0, c = chunk_of(s, r); r < p->r0 + p->n; c++) {
        int64_t n = rows_of(p, c, r);
        for (int h = 0; h < g->e.m->c.n_kv_head && n > 0; h++)
            rotate_store(g, layer, c, r - s->row0[c], n, h, p->t->qkv + (r - p->r0) * g->ldq);
        r += n;
    }
}

static void attend(struct pass *p, int64_t layer)
{
    struct cpu *g = p->g;
    const struct step *s = &g->s;
    int64_t wide = (int64_t)g->e.m->c.n_head * g->e.m->c.head_dim;
    for (int64_t r = p->r0, c = chunk_of(s, r); r < p->r0 + p->n; c++) {
        int64_t n = rows_of(p, c, r);
        attend_rows(g, p->tid, layer, c, r - s->row0[c], n, p->t->out + (r - p->r0) * wide);
        r += n;
    }
}

/* x += W·a, one panel at a time, whose sums stay in the L1 cache. */
static void add(struct pass *p, const struct kern_mat *w, const struct kern_act *a)
{
    for (int64_t g0 = 0; g0 < groups(w); g0 += 2)
        add_panels(p->g, p->t, w, a, g0, min64(g0 + 2, groups(w)), p->r0, p->n);
}

static void out(struct pass *p, const struct model_layer *l)
{
    struct kern_act *a = &p->t->out_act;
    int64_t wide = (int64_t)p->g->e.m->c.n_head * p->g->e.m->c.head_dim;
    a->n_row = p->n;
    p->g->k->quantize_act(a, 0, p->n, 0, wide, p->t->out, (size_t)wide);
    add(p, &l->wo, a);
}

static void gate_up(struct pass *p, const struct model_layer *l)
{
    struct kern_act *a = &p->t->h_act;
    int64_t ffn = p->g->e.m->c.ffn, n_group = groups(&l->gate);
    a->n_row = p->n;
    for (int64_t g0 = 0; g0 < n_group; g0 += 2)
        gate_up_panels(p->g, p->t, l, &p->t->norm_act, a, p->t->h, g0, min64(g0 + 2, n_group), p->n);
    if (ffn % 32)
        p->g->k->quantize_act(a, 0, p->n, 0, ffn, p->t->h, (size_t)ffn);
}

static void down(struct pass *p, const struct model_layer *l)
{
    add(p, &l->down, &p->t->h_act);
}

static const struct schedule blocks = {norm, qkv, store, attend, out, gate_up, down};

/* Whether the block has rows whose logits are wanted: the last layer is computed for these only. */
static bool wanted(const struct step *s, int64_t b)
{
    int64_t r0 = first_row(s, b), r1 = end_row(s, b);
    for (int64_t c = chunk_of(s, r0); c < s->n_chunk && s->row0[c] < r1; c++) {
        int64_t last = s->row0[c] + s->chunk[c].n - 1;
        if (s->chunk[c].n &&
            (s->chunk[c].want == ENGINE_ALL || (s->chunk[c].want == ENGINE_LAST && last >= r0 && last < r1)))
            return true;
    }
    return false;
}

/*
 * The last block of rows whose keys are in KV blocks that block b reads: b itself, or the one after it if a KV block
 * holds keys of both. Those keys are masked, but their bytes are read.
 */
static int64_t last_read(const struct step *s, int64_t b)
{
    int64_t r1 = end_row(s, b), c = chunk_of(s, r1 - 1), pos = s->chunk[c].pos + r1 - s->row0[c];
    bool ends = r1 == s->row0[c] + s->chunk[c].n;
    return !ends && pos % KV_BLOCK ? b + 1 : b;
}

/* Waits until the keys that block b reads are written: its own, and those of its chunks in earlier blocks. */
static void wait_for(struct cpu *g, int tid, int64_t b, int32_t done)
{
    int64_t last = last_read(&g->s, b);
    for (int64_t i = g->s.row0[chunk_of(&g->s, first_row(&g->s, b))] / g->s.block; i <= last; i++)
        threads_await(g->threads, tid, &g->block[i].done, done);
}

/* Calls layer_done for the layers whose keys are all written. */
static void report_layers(struct cpu *g)
{
    struct step *s = &g->s;
    int32_t least = INT32_MAX;
    if (!s->layer_done)
        return;
    for (int64_t b = 0; b < s->n_block; b++) {
        int32_t done = atomic_load_explicit(&g->block[b].done, memory_order_acquire);
        least = done < least ? done : least;
    }
    for (; s->n_reported < least && s->n_reported < g->e.m->c.n_layer; s->n_reported++)
        s->layer_done(s->layer_arg, s->n_reported);
}

void blocks_run(struct cpu *g, int tid, int *stage)
{
    struct step *s = &g->s;
    int64_t n_layer = g->e.m->c.n_layer, n = s->n_block, n_unit = n * (n_layer + 1);
    /* one stage for all layers: no thread waits at the end of a layer */
    for (int64_t u; (u = threads_take(g->threads, tid, 0, n_unit, 1)) >= 0;) {
        int64_t layer = u / n, b = u % n, r0 = first_row(s, b), r1 = end_row(s, b);
        struct pass p = {.g = g, .t = &g->ctx[tid], .tid = tid, .r0 = r0, .n = r1 - r0};
        wait_for(g, tid, b, (int32_t)layer);
        part_time(g, tid, PART_WAIT);
        if (!layer) {
            embed_rows(g, r0, r1);
            part_time(g, tid, PART_EMBED);
        } else if (layer < n_layer || wanted(s, b)) {
            layer_rest(&blocks, &p, layer - 1);
        }
        if (layer < n_layer)
            layer_keys(&blocks, &p, layer);
        threads_post(g->threads, tid, &g->block[b].done, (int32_t)layer + 1);
        threads_done(g->threads, 0, n_unit, 1);
        if (!tid) {
            report_layers(g);
            threads_admit(g->threads); /* units are long, so look for idle cores after each */
        }
    }
    threads_sync(g->threads, tid, 0, n_unit);
    if (!tid)
        report_layers(g);
    *stage = 1;
}
