/*
 * Few rows: every operation is a stage of all threads, shared out by columns of its matrix, so that each weight is read
 * once.
 */
#include "engine/layer.h"

#define ROWS_STREAMED 16 /* up to here the kernels read packed weights as streams */
#define RUN_MAX 64       /* panels of a unit: 16 rows of them fit where row_max rows of one panel do */

/* A panel is two groups, 32 output rows. */
int64_t panels(const struct kern_mat *w)
{
    return (groups(w) + 1) / 2;
}

/*
 * Panels of a unit. Many rows: one, whose weights are unpacked once. Few rows: weights are read as streams, and long
 * ones read fastest, so a thread gets one unit (several a thread were no help against a disturbed core either).
 */
static int64_t run_of(const struct cpu *g, int64_t n_panel)
{
    if (g->s.n_row > ROWS_STREAMED)
        return 1;
    int64_t n = (n_panel + g->width - 1) / g->width;
    return n > RUN_MAX ? RUN_MAX : n;
}

/* Long runs are claimed, so that each thread has its own; single panels are taken as they come. */
static bool claimed(int64_t n_panel, int64_t run)
{
    return run > 1 && (n_panel + run - 1) / run <= THREADS_CLAIMS_MAX;
}

/* Takes a run of panels and returns the first, or -1. */
int64_t take_run(struct cpu *g, int tid, int stage, int64_t n_panel, int64_t run)
{
    if (!claimed(n_panel, run))
        return threads_take(g->threads, tid, stage, n_panel, run);
    int64_t n = (n_panel + run - 1) / run, u = threads_claim(g->threads, tid, stage, n, own_unit(g, tid, n));
    return u < 0 ? u : u * run;
}

/* Each thread computes its own copy of the activations: waiting for the others would cost more. */
static bool alone(const struct cpu *g)
{
    return g->s.n_row <= ROWS_ALONE;
}

static void embed(struct pass *p)
{
    struct cpu *g = p->g;
    int64_t n = g->s.n_row;
    for (int64_t r0; (r0 = threads_take(g->threads, p->tid, p->stage, n, KERN_TILE)) >= 0;) {
        embed_rows(g, r0, min64(r0 + KERN_TILE, n));
        threads_done(g->threads, p->stage, n, min64(KERN_TILE, n - r0));
    }
    threads_sync(g->threads, p->tid, p->stage++, n);
}

/* Many rows: threads share the tiles, and wait for all. Few: see normed(). */
static void norm(struct pass *p, const float *w)
{
    struct cpu *g = p->g;
    int64_t n = g->s.n_row;
    p->norm = w;
    if (alone(g))
        return;
    for (int64_t r0; (r0 = threads_take(g->threads, p->tid, p->stage, n, KERN_TILE)) >= 0;) {
        int64_t rows = min64(KERN_TILE, n - r0);
        norm_tile(g, p->t, &g->act, r0, w, r0, rows);
        threads_done(g->threads, p->stage, n, rows);
    }
    threads_sync(g->threads, p->tid, p->stage++, n);
}

/*
 * The normed rows, as input of a matrix. Called by a thread that holds a unit of the matrix: until that unit is done no
 * thread passes the stage, so none writes the rows of x that this thread reads for its own copy.
 */
static const struct kern_act *normed(struct pass *p)
{
    struct cpu *g = p->g;
    struct kern_act *a = &p->t->act;
    if (!alone(g))
        return &g->act;
    a->n_row = g->s.n_row;
    a->k = g->e.m->c.hidden;
    norm_tile(g, p->t, a, 0, p->norm, 0, a->n_row);
    part_time(g, p->tid, PART_NORM);
    return a;
}

/* q, k and v in one stage; a unit is a run of panels, which may extend from one matrix into the next. */
static void qkv(struct pass *p, int64_t layer)
{
    struct cpu *g = p->g;
    const struct model_layer *l = &g->e.m->layer[layer];
    const struct kern_mat *w[3] = {&l->wq, &l->wk, &l->wv};
    const struct kern_act *a = NULL;
    int64_t n_panel[3], n = 0;
    for (int i = 0; i < 3; i++)
        n += n_panel[i] = panels(w[i]);
    int64_t run = run_of(g, n);
    for (int64_t u; (u = take_run(g, p->tid, p->stage, n, run)) >= 0;) {
        int i = 0;
        int64_t from = u, end = min64(u + run, n), base = 0;
        a = a ? a : normed(p);
        for (; u < end; u = base) {
            while (u >= base + n_panel[i])
                base += n_panel[i++];
            qkv_panels(g, p->t, l, i, g->qkv, a, 2 * (u - base), min64(2 * (end - base), groups(w[i])), g->s.n_row);
            base += n_panel[i++];
        }
        threads_done(g->threads, p->stage, n, end - from);
    }
    attend_ahead(g, p->tid, layer);
    threads_sync(g->threads, p->tid, p->stage++, n);
}

static void layer_done(struct pass *p, int64_t layer)
{
    if (!p->tid && p->g->s.layer_done)
        p->g->s.layer_done(p->g->s.layer_arg, layer);
}

/* A unit is a KV block and a head. If a unit of attention is all rows of a chunk, it stores them itself. */
static void store(struct pass *p, int64_t layer)
{
    struct cpu *g = p->g;
    struct step *s = &g->s;
    if (s->whole)
        return;
    int n_head = g->e.m->c.n_kv_head;
    int64_t n_unit = 0, ci = 0, base = 0;
    for (int64_t c = 0; c < s->n_chunk; c++)
        n_unit += (s->chunk[c].pos + s->chunk[c].n - 1) / KV_BLOCK - s->chunk[c].pos / KV_BLOCK + 1;
    n_unit *= n_head;
    for (int64_t u; (u = threads_take(g->threads, p->tid, p->stage, n_unit, 1)) >= 0;) {
        int64_t b = u / n_head;
        for (;; ci++) { /* units come in rising order, so the search continues from the last chunk */
            int64_t pos = s->chunk[ci].pos, n = (pos + s->chunk[ci].n - 1) / KV_BLOCK - pos / KV_BLOCK + 1;
            if (b < base + n)
                break;
            base += n;
        }
        const struct engine_chunk *ch = &s->chunk[ci];
        int64_t block = ch->pos / KV_BLOCK + b - base;
        int64_t from = block * KV_BLOCK - ch->pos, to = min64(from + KV_BLOCK, ch->n);
        from = from < 0 ? 0 : from;
        rotate_store(g, layer, ci, from, to - from, (int)(u % n_head), g->qkv + (s->row0[ci] + from) * g->ldq);
        threads_done(g->threads, p->stage, n_unit, 1);
    }
    threads_sync(g->threads, p->tid, p->stage++, n_unit);
    layer_done(p, layer);
}

static void attend(struct pass *p, int64_t layer)
{
    attend_units(p->g, p->tid, layer, &p->stage);
    if (p->g->s.whole)
        layer_done(p, layer);
}

/* The output of attention as input of wo; with few rows called as normed(). */
static const struct kern_act *attended(struct pass *p)
{
    struct cpu *g = p->g;
    struct kern_act *a = &p->t->act;
    if (!alone(g))
        return &g->act_o;
    a->n_row = g->s.n_row;
    a->k = (int64_t)g->e.m->c.n_head * g->e.m->c.head_dim;
    g->k->quantize_act(a, 0, a->n_row, 0, a->k, g->o, (size_t)a->k);
    return a;
}

/* h as input of down. */
static const struct kern_act *gated(struct pass *p)
{
    return &p->g->act_h;
}

/* x += W·input; one thread adds all outputs of a unit. */
static void add(struct pass *p, const struct kern_mat *w, const struct kern_act *(*input)(struct pass *p))
{
    struct cpu *g = p->g;
    const struct kern_act *a = NULL;
    int64_t n_panel = panels(w), run = run_of(g, n_panel);
    for (int64_t u; (u = take_run(g, p->tid, p->stage, n_panel, run)) >= 0;) {
        a = a ? a : input(p);
        add_panels(g, p->t, w, a, 2 * u, min64(2 * (u + run), groups(w)), 0, g->s.n_row);
        threads_done(g->threads, p->stage, n_panel, min64(run, n_panel - u));
    }
    threads_sync(g->threads, p->tid, p->stage++, n_panel);
}

/* Quantizes the rows of x [n_row][k] into a, tile by tile, in a stage of its own. */
static void make_act(struct pass *p, struct kern_act *a, const float *x, int64_t k)
{
    struct cpu *g = p->g;
    int64_t n = g->s.n_row;
    for (int64_t r0; (r0 = threads_take(g->threads, p->tid, p->stage, n, KERN_TILE)) >= 0;) {
        int64_t rows = min64(KERN_TILE, n - r0);
        g->k->quantize_act(a, r0, rows, 0, k, x + r0 * k, (size_t)k);
        threads_done(g->threads, p->stage, n, rows);
    }
    threads_sync(g->threads, p->tid, p->stage++, n);
}

static void out(struct pass *p, const struct model_layer *l)
{
    struct cpu *g = p->g;
    if (!alone(g))
        make_act(p, &g->act_o, g->o, (int64_t)g->e.m->c.n_head * g->e.m->c.head_dim);
    add(p, &l->wo, attended);
}

/* The thread that computes columns of h also quantizes them, if ffn is a multiple of 32. */
static void gate_up(struct pass *p, const struct model_layer *l)
{
    struct cpu *g = p->g;
    const struct kern_act *a = NULL;
    int64_t n_panel = panels(&l->gate), run = run_of(g, n_panel);
    for (int64_t u; (u = take_run(g, p->tid, p->stage, n_panel, run)) >= 0;) {
        a = a ? a : normed(p);
        gate_up_panels(g, p->t, l, a, &g->act_h, g->h, 2 * u, min64(2 * (u + run), groups(&l->gate)), g->s.n_row);
        threads_done(g->threads, p->stage, n_panel, min64(run, n_panel - u));
    }
    threads_sync(g->threads, p->tid, p->stage++, n_panel);
    if (g->e.m->c.ffn % 32)
        make_act(p, &g->act_h, g->h, g->e.m->c.ffn);
}

static void down(struct pass *p, const struct model_layer *l)
{
    add(p, &l->down, gated);
}

static const struct schedule columns = {norm, qkv, store, attend, out, gate_up, down};

void columns_run(struct cpu *g, int tid, int *stage)
{
    struct pass p = {.g = g, .t = &g->ctx[tid], .tid = tid, .stage = *stage};
    embed(&p);
    part_time(g, tid, PART_EMBED);
    for (int64_t i = 0; i < g->e.m->c.n_layer; i++) {
        layer_keys(&columns, &p, i);
        layer_rest(&columns, &p, i);
    }
    *stage = p.stage;
}
