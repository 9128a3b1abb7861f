/*
 * The forward pass of a llama layer: its operations in order, and what each of them computes.
 *
 *     x = embed[id]                              one row for each token
 *     for each layer: layer_keys, layer_rest
 *     logits = output · norm(x, output_norm)     step.c, for the wanted rows
 *
 * A schedule decides how threads share an operation: columns.c if a step has few rows, blocks.c if it has many. It
 * changes no bit of a result: one thread computes a whole sum, in the order of docs/arithmetic.md.
 */
#include "engine/layer.h"

#include "proc/notify.h"

/* The part of a layer that other rows depend on: its keys and values. */
void layer_keys(const struct schedule *s, struct pass *p, int64_t layer)
{
    const struct model_layer *l = &p->g->e.m->layer[layer];
    if (!p->tid)
        proc_alive();         /* a step may take minutes */
    s->norm(p, l->attn_norm); /* a = norm(x) * attn_norm */
    part_time(p->g, p->tid, PART_NORM);
    s->qkv(p, layer); /* q = wq·a + bq, k = wk·a + bk, v = wv·a + bv */
    part_time(p->g, p->tid, PART_QKV);
    s->store(p, layer); /* q, k = rope(q, k); KV of the layer at the row's position = k, v */
    part_time(p->g, p->tid, PART_ROPE);
}

/* The rest of the layer, from attention on. */
void layer_rest(const struct schedule *s, struct pass *p, int64_t layer)
{
    const struct model_layer *l = &p->g->e.m->layer[layer];
    s->attend(p, layer); /* a = softmax(q·K / sqrt(head_dim))·V, each head over the positions up to the row's own */
    part_time(p->g, p->tid, PART_ATTN);
    s->out(p, l); /* x += wo·a */
    part_time(p->g, p->tid, PART_OUT);
    s->norm(p, l->ffn_norm); /* a = norm(x) * ffn_norm */
    part_time(p->g, p->tid, PART_NORM);
    s->gate_up(p, l); /* h = silu(gate·a) * (up·a) */
    part_time(p->g, p->tid, PART_FFN);
    s->down(p, l); /* x += down·h */
    part_time(p->g, p->tid, PART_DOWN);
}

/* ---- parts of the operations ---- */

int64_t groups(const struct kern_mat *w)
{
    return (w->rows + 15) / 16;
}

void embed_rows(struct cpu *g, int64_t r0, int64_t r1)
{
    struct step *s = &g->s;
    const struct model_config *c = &g->e.m->c;
    for (int64_t r = r0; r < r1; r++) {
        int64_t ci = chunk_of(s, r);
        const struct engine_chunk *ch = &s->chunk[ci];
        int64_t at = r - s->row0[ci];
        g->k->get_row(g->x + r * c->hidden, &g->e.m->embed, ch->ids[at]);
        float *cs = g->cs + r * c->n_rot;
        for (int i = 0; i < c->n_rot / 2; i++) {
            double sn, cn;
            model_sincos(&sn, &cn, (double)(ch->pos + at) * c->rope_freq[i]);
            cs[2 * i] = (float)(cn * (double)c->rope_attn_factor);
            cs[2 * i + 1] = (float)(sn * (double)c->rope_attn_factor);
        }
    }
}

void norm_tile(struct cpu *g, struct thread_ctx *t, struct kern_act *a, int64_t at, const float *w, int64_t r0,
               int64_t n)
{
    int64_t k = g->e.m->c.hidden;
    for (int64_t r = 0; r < n; r++)
        g->k->norm(t->norm + r * k, g->x + (r0 + r) * k, w, k, g->e.m->c.eps);
    g->k->quantize_act(a, at, n, 0, k, t->norm, (size_t)k);
}

static void add_bias(float *out, size_t ld, const float *bias, int64_t first, int64_t last, int64_t rows, int64_t n_row)
{
    if (!bias)
        return;
    int64_t n = min64(last, rows) - first;
    for (int64_t r = 0; r < n_row; r++)
        for (int64_t j = 0; j < n; j++)
            out[(size_t)r * ld + (size_t)j] += bias[first + j];
}

void qkv_panels(struct cpu *g, struct thread_ctx *t, const struct model_layer *l, int which, float *qkv,
                const struct kern_act *a, int64_t g0, int64_t g1, int64_t n)
{
    const struct kern_mat *w[3] = {&l->wq, &l->wk, &l->wv};
    const float *bias[3] = {l->bq, l->bk, l->bv};
    const int64_t off[3] = {0, g->off_k, g->off_v};
    float *out = qkv + off[which] + 16 * g0;
    g->k->matmul(out, (size_t)g->ldq, w[which], g0, g1, a, 0, n, t->linear);
    add_bias(out, (size_t)g->ldq, bias[which], 16 * g0, 16 * g1, w[which]->rows, n);
}

void rotate_store(struct cpu *g, int64_t layer, int64_t ci, int64_t first, int64_t n, int head, float *row)
{
    const struct model_config *c = &g->e.m->c;
    const struct engine_chunk *ch = &g->s.chunk[ci];
    bool neox = c->family->neox;
    for (int64_t i = first; i < first + n; i++, row += g->ldq) {
        int64_t r = g->s.row0[ci] + i, pos = ch->pos + i;
        float *k = row + g->off_k + head * c->head_dim;
        const float *cs = g->cs + r * c->n_rot;
        g->k->rope(k, cs, c->n_rot, neox);
        uint8_t *tile = kv_tile(g->e.pool, ch->kv->slot[pos / KV_BLOCK], layer, head);
        g->k->kv_write(tile, g->e.kv, c->head_dim, (int)(pos % KV_BLOCK), k, row + g->off_v + head * c->head_dim);
        for (int j = head * g->group; j < (head + 1) * g->group; j++) {
            g->k->rope(row + j * c->head_dim, cs, c->n_rot, neox);
            g->k->q_prep(g->q + (size_t)(r * c->n_head + j) * g->q_bytes, g->e.kv, c->head_dim, row + j * c->head_dim,
                         g->scale);
        }
    }
}

void gate_up_panels(struct cpu *g, struct thread_ctx *t, const struct model_layer *l, const struct kern_act *a,
                    struct kern_act *h_act, float *h, int64_t g0, int64_t g1, int64_t n)
{
    int64_t ffn = g->e.m->c.ffn, ld = 16 * (g1 - g0), cols = min64(16 * g1, ffn) - 16 * g0;
    g->k->matmul(t->a, (size_t)ld, &l->gate, g0, g1, a, 0, n, t->linear);
    g->k->matmul(t->b, (size_t)ld, &l->up, g0, g1, a, 0, n, t->linear);
    if (ffn % 32 == 0) {
        g->k->silu_mul(t->a, t->a, t->b, n * ld);
        g->k->quantize_act(h_act, 0, n, 16 * g0, cols, t->a, (size_t)ld);
    } else {
        for (int64_t r = 0; r < n; r++)
            g->k->silu_mul(h + r * ffn + 16 * g0, t->a + r * ld, t->b + r * ld, cols);
    }
}

void add_panels(struct cpu *g, struct thread_ctx *t, const struct kern_mat *w, const struct kern_act *a, int64_t g0,
                int64_t g1, int64_t r0, int64_t n)
{
    int64_t hidden = g->e.m->c.hidden, ld = 16 * (g1 - g0), cols = min64(16 * g1, hidden) - 16 * g0;
    g->k->matmul(t->a, (size_t)ld, w, g0, g1, a, 0, n, t->linear);
    for (int64_t r = 0; r < n; r++)
        g->k->add(g->x + (r0 + r) * hidden + 16 * g0, t->a + r * ld, cols);
}
