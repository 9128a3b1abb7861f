/* One step: its rows, the layers by one of the two schedules, the final norm, and the logits. */
#include "engine/layer.h"

/* First row of each chunk; number of wanted rows; sizes of the shared activations. */
static void plan_rows(struct cpu *g)
{
    struct step *s = &g->s;
    s->n_row = s->n_want = 0;
    for (int64_t c = 0; c < s->n_chunk; c++) {
        s->row0[c] = s->n_row;
        s->n_row += s->chunk[c].n;
        s->n_want += s->chunk[c].want == ENGINE_ALL ? s->chunk[c].n : s->chunk[c].want == ENGINE_LAST;
    }
    g->act.n_row = g->act_o.n_row = g->act_h.n_row = s->n_row;
    g->act_w.n_row = s->n_want;
}

int64_t chunk_of(const struct step *s, int64_t r)
{
    int64_t lo = 0, hi = s->n_chunk;
    while (hi - lo > 1) {
        int64_t mid = (lo + hi) / 2;
        if (s->row0[mid] <= r)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Final norm of the wanted rows, quantized for the head. */
static void finish(struct cpu *g, int tid, int stage)
{
    struct step *s = &g->s;
    int64_t k = g->e.m->c.hidden, base = 0, c = 0;
    for (int64_t w0; (w0 = threads_take(g->threads, tid, stage, s->n_want, KERN_TILE)) >= 0;) {
        int64_t w1 = min64(w0 + KERN_TILE, s->n_want);
        for (int64_t w = w0; w < w1; w++) {
            for (;; c++) {
                int64_t n = s->chunk[c].want == ENGINE_ALL ? s->chunk[c].n : s->chunk[c].want == ENGINE_LAST;
                if (w < base + n)
                    break;
                base += n;
            }
            int64_t r = s->row0[c] + (s->chunk[c].want == ENGINE_ALL ? w - base : s->chunk[c].n - 1);
            g->k->norm(g->want + w * k, g->x + r * k, g->e.m->output_norm, k, g->e.m->c.eps);
        }
        g->k->quantize_act(&g->act_w, w0, w1 - w0, 0, k, g->want + w0 * k, (size_t)k);
        threads_done(g->threads, stage, s->n_want, w1 - w0);
    }
    threads_sync(g->threads, tid, stage, s->n_want);
}

static void step_run(void *arg, int tid)
{
    struct cpu *g = arg;
    int stage = 0;
    part_time(g, tid, PART_N);
    (g->s.block ? blocks_run : columns_run)(g, tid, &stage);
    finish(g, tid, stage);
    part_time(g, tid, PART_NORM);
}

int cpu_step(struct err *e, struct engine *engine, const struct engine_chunk *chunk, int64_t n_chunk,
             engine_layer_fn *layer_done, void *arg)
{
    struct cpu *g = cpu_of(engine);
    struct step *s = &g->s;
    s->chunk = chunk;
    s->n_chunk = n_chunk;
    s->layer_done = layer_done;
    s->layer_arg = arg;
    g->width = threads_select(g->threads);
    plan_rows(g);
    blocks_plan(g);
    int rc = attend_plan(e, g);
    if (!rc) {
        threads_run(g->threads, step_run, g);
        part_time(g, 0, PART_WAIT);
    }
    return rc;
}

static void logits_run(void *arg, int tid)
{
    struct cpu *g = arg;
    const struct kern_mat *w = &g->e.m->output;
    int64_t ld = engine_logits_ld(&g->e), n_panel = panels(w), run = (n_panel + g->width - 1) / g->width;
    part_time(g, tid, PART_N);
    for (int64_t u; (u = take_run(g, tid, 0, n_panel, run)) >= 0;) {
        g->k->matmul(g->logits + 32 * u, (size_t)ld, w, 2 * u, min64(2 * (u + run), groups(w)), &g->act_w,
                     g->logits_first, g->logits_first + g->logits_n, g->ctx[tid].linear);
        threads_done(g->threads, 0, n_panel, min64(run, n_panel - u));
    }
    threads_sync(g->threads, tid, 0, n_panel);
    part_time(g, tid, PART_HEAD);
}

int cpu_logits(struct err *e, struct engine *engine, float *out, int64_t first, int64_t n)
{
    struct cpu *g = cpu_of(engine);
    (void)e;
    g->logits = out;
    g->logits_first = first;
    g->logits_n = n;
    g->width = threads_select(g->threads);
    threads_run(g->threads, logits_run, g);
    part_time(g, 0, PART_WAIT);
    return 0;
}
