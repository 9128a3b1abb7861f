/*
 * A step of many rows: a thread takes a block of rows through a whole layer, from attention to the next layer's keys
 * and values, so what passes between the parts of a layer stays in its own cache, and threads meet only where a row
 * reads the keys of rows before it. All rows of a block see one copy of the unpacked weights.
 */
#include <stdatomic.h>

#include "engine/cpu.h"

#define BLOCK_ROWS_LEAST 32
#define UNITS 2 /* blocks a thread at least: what a disturbed thread leaves, others take */

void blocks_plan(struct cpu *g)
{
    struct step *s = &g->s;
    s->block = 0;
    for (int64_t rows = BLOCK_ROWS; rows >= BLOCK_ROWS_LEAST && !s->block; rows /= 2)
        if (s->n_row >= rows * UNITS * g->width)
            s->block = rows;
    s->n_block = s->block ? (s->n_row + s->block - 1) / s->block : 0;
    s->told = 0;
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

static void norm_rows(struct cpu *g, struct seat *t, const float *w, int64_t r0, int64_t n)
{
    t->norm_act.n_row = n;
    for (int64_t r = 0; r < n; r += KERN_TILE)
        norm_tile(g, t, &t->norm_act, r, w, r0 + r, min64(KERN_TILE, n - r));
}

/* q, k and v of the block: rotated, stored. */
static void keys(struct cpu *g, int tid, int64_t layer, int64_t b)
{
    struct step *s = &g->s;
    struct seat *t = &g->seat[tid];
    const struct model_layer *l = &g->e.m->layer[layer];
    const struct kern_mat *w[3] = {&l->wq, &l->wk, &l->wv};
    const float *bias[3] = {l->bq, l->bk, l->bv};
    const int64_t off[3] = {0, g->off_k, g->off_v};
    int64_t r0 = first_row(s, b), r1 = end_row(s, b), n = r1 - r0;
    norm_rows(g, t, l->attn_norm, r0, n);
    part_time(g, tid, PART_NORM);
    for (int i = 0; i < 3; i++) {
        g->k->linear(t->qkv + off[i], (size_t)g->ldq, w[i], 0, groups(w[i]), &t->norm_act, 0, n, t->linear);
        add_bias(t->qkv + off[i], (size_t)g->ldq, bias[i], 0, 16 * groups(w[i]), w[i]->rows, n);
    }
    part_time(g, tid, PART_QKV);
    for (int64_t r = r0, c = chunk_of(s, r0); r < r1; c++) {
        int64_t first = r - s->row0[c], rows = min64(s->chunk[c].n - first, r1 - r);
        for (int h = 0; h < g->e.m->c.n_kv_head && rows > 0; h++)
            rotate_store(g, layer, c, first, rows, h, t->qkv + (r - r0) * g->ldq);
        r += rows;
    }
    part_time(g, tid, PART_ROPE);
}

/* x += W·a, a panel at a time, whose sums stay in the first-level cache. */
static void add_linear(struct cpu *g, struct seat *t, const struct kern_mat *w, const struct kern_act *a, int64_t r0,
                       int64_t n)
{
    for (int64_t g0 = 0; g0 < groups(w); g0 += 2)
        add_panels(g, t, w, a, g0, min64(g0 + 2, groups(w)), r0, n);
}

static void feed_forward(struct cpu *g, int tid, const struct model_layer *l, int64_t r0, int64_t n)
{
    struct seat *t = &g->seat[tid];
    int64_t ffn = g->e.m->c.ffn;
    norm_rows(g, t, l->ffn_norm, r0, n);
    part_time(g, tid, PART_NORM);
    t->h_act.n_row = n;
    for (int64_t g0 = 0; g0 < groups(&l->gate); g0 += 2)
        gate_up_panels(g, t, l, &t->norm_act, &t->h_act, t->h, g0, min64(g0 + 2, groups(&l->gate)), n);
    if (ffn % 32)
        g->k->act(&t->h_act, 0, n, 0, ffn, t->h, (size_t)ffn);
    part_time(g, tid, PART_FFN);
    add_linear(g, t, &l->down, &t->h_act, r0, n);
    part_time(g, tid, PART_DOWN);
}

/* From attention to the end of the layer. */
static void rest(struct cpu *g, int tid, int64_t layer, int64_t b)
{
    struct step *s = &g->s;
    struct seat *t = &g->seat[tid];
    const struct model_layer *l = &g->e.m->layer[layer];
    int64_t r0 = first_row(s, b), r1 = end_row(s, b), n = r1 - r0,
            wide = (int64_t)g->e.m->c.n_head * g->e.m->c.head_dim;
    for (int64_t r = r0, c = chunk_of(s, r0); r < r1; c++) {
        int64_t first = r - s->row0[c], rows = min64(s->chunk[c].n - first, r1 - r);
        attend_rows(g, tid, layer, c, first, rows, t->out + (r - r0) * wide);
        r += rows;
    }
    part_time(g, tid, PART_ATTN);
    t->out_act.n_row = n;
    g->k->act(&t->out_act, 0, n, 0, wide, t->out, (size_t)wide);
    add_linear(g, t, &l->wo, &t->out_act, r0, n);
    part_time(g, tid, PART_OUT);
    feed_forward(g, tid, l, r0, n);
}

/* The last layer serves only rows whose logits are wanted. */
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

/* Waits until the rows that block b attends to have their keys: those of its chunks before it, and itself. */
static void wait_for(struct cpu *g, int tid, int64_t b, int32_t done)
{
    for (int64_t i = g->s.row0[chunk_of(&g->s, first_row(&g->s, b))] / g->s.block; i <= b; i++)
        team_reach(g->team, tid, &g->block[i].done, done);
}

/* Tells of the layers whose keys are all there. */
static void tell(struct cpu *g)
{
    struct step *s = &g->s;
    int32_t least = INT32_MAX;
    if (!s->layer_done)
        return;
    for (int64_t b = 0; b < s->n_block; b++) {
        int32_t done = atomic_load_explicit(&g->block[b].done, memory_order_acquire);
        least = done < least ? done : least;
    }
    for (; s->told < least && s->told < g->e.m->c.n_layer; s->told++)
        s->layer_done(s->layer_arg, s->told);
}

void blocks_run(struct cpu *g, int tid, int *phase)
{
    struct step *s = &g->s;
    int64_t n_layer = g->e.m->c.n_layer, n = s->n_block, n_unit = n * (n_layer + 1);
    /* one run of units, layer by layer: nobody waits at the end of a layer */
    for (int64_t u; (u = team_take(g->team, tid, 0, n_unit, 1)) >= 0;) {
        int64_t p = u / n, b = u % n;
        wait_for(g, tid, b, (int32_t)p);
        part_time(g, tid, PART_WAIT);
        if (!p) {
            embed_rows(g, first_row(s, b), end_row(s, b));
            part_time(g, tid, PART_EMBED);
        } else if (p < n_layer || wanted(s, b)) {
            rest(g, tid, p - 1, b);
        }
        if (p < n_layer)
            keys(g, tid, p, b);
        team_raise(g->team, tid, &g->block[b].done, (int32_t)p + 1);
        team_done(g->team, 0, n_unit, 1);
        if (!tid) {
            tell(g);
            team_invite(g->team); /* a unit is long enough to look again */
        }
    }
    team_sync(g->team, tid, 0, n_unit);
    if (!tid)
        tell(g);
    *phase = 1;
}
