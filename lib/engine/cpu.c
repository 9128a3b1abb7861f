/* The CPU backend: memory, threads, sampling. step.c runs the steps. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/time.h"
#include "engine/cpu.h"
#include "text/text.h"

/* A bump allocator that runs twice: first to add up the sizes, then to place the arrays. */
struct bump {
    uint8_t *base;
    uint64_t used;
};

static void *take(struct bump *b, uint64_t bytes)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 127) / 64 * 64; /* a cache line between neighbours */
    return p;
}

static void take_act(struct bump *b, struct kern_act *a, int64_t rows, int64_t k, int forms)
{
    void *p = take(b, kern_act_bytes(rows, k, forms));
    if (p)
        kern_act_place(a, p, rows, k, forms);
}

static int64_t pad(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* The forms of activations that the weights of a model need, over all layers. */
struct forms {
    int norm, out, h, head;
};

static struct forms forms_of(const struct model *m)
{
    struct forms f = {.head = kern_type_form(m->output.type)};
    for (int64_t i = 0; i < m->c.n_layer; i++) {
        const struct model_layer *l = &m->layer[i];
        f.norm |= kern_type_form(l->wq.type) | kern_type_form(l->wk.type) | kern_type_form(l->wv.type) |
                  kern_type_form(l->gate.type) | kern_type_form(l->up.type);
        f.out |= kern_type_form(l->wo.type);
        f.h |= kern_type_form(l->down.type);
    }
    return f;
}

static int64_t cols_max(const struct model_config *c)
{
    int64_t n = c->hidden, o = (int64_t)c->n_head * c->head_dim;
    n = n > o ? n : o;
    return n > c->ffn ? n : c->ffn;
}

static void place_ctx(struct cpu *g, struct bump *b, struct thread_ctx *s, struct forms f)
{
    const struct model_config *c = &g->e.m->c;
    int64_t hd = c->head_dim, rows = g->attn_rows;
    struct thread_ctx d = {0};
    take_act(b, &d.act, ROWS_ALONE, cols_max(c), f.norm | f.out);
    d.linear = take(b, kern_matmul_scratch(cols_max(c)));
    uint64_t out = (uint64_t)(g->e.row_max > 1024 ? g->e.row_max : 1024) * 32 * 4; /* or 16 rows of 64 panels */
    d.a = take(b, out);
    d.b = take(b, out);
    d.norm = take(b, (uint64_t)ROWS_ALONE * (uint64_t)c->hidden * 4);
    d.m = take(b, (uint64_t)rows * 4);
    d.l = take(b, (uint64_t)rows * 4);
    d.o = take(b, (uint64_t)(rows * hd) * 4);
    d.M = take(b, (uint64_t)rows * 4);
    d.L = take(b, (uint64_t)rows * 4);
    d.O = take(b, (uint64_t)(rows * hd) * 4);
    d.from = take(b, (uint64_t)rows * 4);
    d.to = take(b, (uint64_t)rows * 4);
    d.attn = take(b, kern_attn_scratch(g->e.kv, c->head_dim, g->attn_rows));
    d.tile = take(b, 8 * sizeof *d.tile);
    d.next = take(b, 8 * sizeof *d.next);
    take_act(b, &d.norm_act, BLOCK_ROWS, c->hidden, f.norm);
    take_act(b, &d.out_act, BLOCK_ROWS, (int64_t)c->n_head * hd, f.out);
    take_act(b, &d.h_act, BLOCK_ROWS, c->ffn, f.h);
    d.qkv = take(b, BLOCK_ROWS * (uint64_t)g->ldq * 4);
    d.out = take(b, BLOCK_ROWS * (uint64_t)(c->n_head * hd) * 4);
    d.h = take(b, c->ffn % 32 ? BLOCK_ROWS * (uint64_t)c->ffn * 4 : 0);
    if (b->base)
        *s = d;
}

static void place(struct cpu *g, struct bump *b)
{
    const struct model_config *c = &g->e.m->c;
    struct forms f = forms_of(g->e.m);
    uint64_t rows = (uint64_t)g->e.row_max, wide = (uint64_t)c->n_head * (uint64_t)c->head_dim;
    g->x = take(b, rows * (uint64_t)c->hidden * 4);
    g->qkv = take(b, rows * (uint64_t)g->ldq * 4);
    g->q = take(b, rows * (uint64_t)c->n_head * g->q_bytes);
    g->o = take(b, rows * wide * 4);
    g->h = take(b, c->ffn % 32 ? rows * (uint64_t)c->ffn * 4 : 0);
    g->cs = take(b, rows * (uint64_t)c->n_rot * 4);
    g->want = take(b, rows * (uint64_t)c->hidden * 4);
    g->s.row0 = take(b, rows * sizeof *g->s.row0);
    g->s.unit0 = take(b, (rows + 1) * sizeof *g->s.unit0);
    g->block = take(b, (rows / 32 + 1) * sizeof *g->block);
    take_act(b, &g->act, g->e.row_max, c->hidden, f.norm);
    take_act(b, &g->act_o, g->e.row_max, (int64_t)wide, f.out);
    take_act(b, &g->act_h, g->e.row_max, c->ffn, f.h);
    take_act(b, &g->act_w, g->e.row_max, c->hidden, f.head);
    for (int i = 0; i < g->e.n_thread; i++)
        place_ctx(g, b, &g->ctx[i], f);
}

static int open_memory(struct err *e, struct cpu *g)
{
    g->ctx = calloc((size_t)g->e.n_thread, sizeof *g->ctx);
    if (!g->ctx)
        return err_nomem(e, "an engine", (size_t)g->e.n_thread * sizeof *g->ctx);
    struct bump b = {0};
    place(g, &b);
    g->mem_bytes = b.used;
    g->mem = mmap(NULL, b.used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (g->mem == MAP_FAILED) {
        g->mem = NULL;
        return err_nomem(e, "activations", b.used);
    }
    madvise(g->mem, b.used, MADV_HUGEPAGE); /* best effort */
    b = (struct bump){.base = g->mem};
    place(g, &b);
    return 0;
}

static int open_samplers(struct err *e, struct cpu *g)
{
    size_t n = LOGITS_ROWS * (size_t)engine_logits_ld(&g->e) * sizeof(float);
    g->sample_logits = aligned_alloc(64, n);
    g->sampler = calloc((size_t)g->e.n_thread, sizeof *g->sampler);
    if (!g->sample_logits || !g->sampler)
        return err_nomem(e, "logits", n);
    int rc = 0;
    for (int i = 0; i < g->e.n_thread && !rc; i++)
        rc = sampler_new(e, &g->sampler[i], g->k, g->e.m->c.vocab);
    return rc;
}

static void cpu_close(struct engine *engine)
{
    struct cpu *g = cpu_of(engine);
    threads_free(g->threads);
    for (int i = 0; g->sampler && i < g->e.n_thread; i++)
        sampler_free(g->sampler[i]);
    free(g->sampler);
    free(g->sample_logits);
    if (g->mem)
        munmap(g->mem, g->mem_bytes);
    free(g->part.m);
    free(g->part.l);
    free(g->part.o);
    free(g->ctx);
    free(g);
}

/* The values that all sizes follow from. */
static void shape(struct cpu *g)
{
    const struct model_config *c = &g->e.m->c;
    g->group = c->n_head / c->n_kv_head;
    g->off_k = pad((int64_t)c->n_head * c->head_dim, 16);
    g->off_v = g->off_k + pad((int64_t)c->n_kv_head * c->head_dim, 16);
    g->ldq = g->off_v + pad((int64_t)c->n_kv_head * c->head_dim, 16);
    g->attn_tokens = 32;
    g->attn_rows = g->attn_tokens * g->group;
    g->q_bytes = kern_q_bytes(g->e.kv, c->head_dim);
    g->scale = 1.0f / __builtin_sqrtf((float)c->head_dim);
}

static int cpu_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                    const struct engine_opts *o)
{
    const struct model_config *c = &m->c;
    if (c->n_layer * 12 + 8 > THREADS_STAGES_MAX)
        return err_set(e, ERR_NO, "%s: the model has %lld layers, the limit is %d", m->path, (long long)c->n_layer,
                       (THREADS_STAGES_MAX - 8) / 12);
    if (c->head_dim > KERN_HEAD_MAX)
        return err_set(e, ERR_NO, "%s: the model has a head size of %d, the limit is %d", m->path, c->head_dim,
                       KERN_HEAD_MAX);
    struct cpu *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, "an engine", sizeof *g);
    g->e = (struct engine){.backend = &engine_cpu,
                           .m = m,
                           .pool = pool,
                           .text = o->text,
                           .kv = o->kv,
                           .row_max = pad(o->row_max, KERN_TILE)};
    shape(g);
    struct threads_opts to = {.threads = o->threads, .cores = o->cores, .delay_seed = o->delay_seed};
    int rc = kern_select(e, &g->k, o->isa);
    rc = rc ? rc : threads_new(e, &g->threads, &to);
    if (!rc) {
        g->e.isa = g->k->name;
        g->width = g->e.n_thread = threads_size(g->threads);
        rc = open_memory(e, g);
    }
    rc = rc ? rc : open_samplers(e, g);
    if (rc) {
        cpu_close(&g->e);
        return rc;
    }
    kern_thread_init();
    *out = &g->e;
    return 0;
}

static int cpu_model(struct err *e, struct model **out, const char *spec, const struct model_opts *o)
{
    (void)spec;
    return model_open(e, out, o);
}

static int cpu_kv_type(struct err *e, enum kern_kv type)
{
    (void)e;
    (void)type;
    return 0;
}

static bool cpu_cost(const struct engine *g, struct engine_cost *out)
{
    (void)g;
    (void)out;
    return false;
}

/* ---- sampling ---- */

static int one_row(struct cpu *g, struct engine_row *r, float *logits, int tid)
{
    struct sampler *s = g->sampler[tid];
    const struct text *t = g->e.text;
    switch (r->use) {
    case ENGINE_SCORE:
        return sample_logprob(&r->err, s, &r->out, logits, r->prompt[r->position], r->n_top);
    case ENGINE_CHOOSE:
        return sample(&r->err, s, &r->out, logits, t ? text_n_token(t) : g->e.m->c.vocab, r->params, r->prompt,
                      r->n_prompt, r->answer, r->n_answer, r->ban, r->n_ban, (uint64_t)r->position);
    case ENGINE_UNUSED:
        break;
    }
    return 0;
}

static void pass_run(void *arg, int tid)
{
    struct cpu *g = arg;
    int64_t ld = engine_logits_ld(&g->e);
    for (int64_t i; (i = threads_take(g->threads, tid, 0, g->n_pass, 1)) >= 0;) {
        one_row(g, &g->row[i], g->sample_logits + i * ld, tid);
        threads_done(g->threads, 0, g->n_pass, 1);
    }
    threads_sync(g->threads, tid, 0, g->n_pass);
}

static int cpu_sample(struct err *e, struct engine *engine, struct engine_row *row, int64_t first, int64_t n)
{
    struct cpu *g = cpu_of(engine);
    for (int64_t i = 0; i < n; i += LOGITS_ROWS) {
        g->row = row + i;
        g->n_pass = min64(LOGITS_ROWS, n - i);
        int rc = cpu_logits(e, engine, g->sample_logits, first + i, g->n_pass);
        if (rc)
            return rc;
        if (g->n_pass == 1) { /* not worth waking threads */
            one_row(g, g->row, g->sample_logits, 0);
            continue;
        }
        threads_select(g->threads);
        threads_run(g->threads, pass_run, g);
    }
    return 0;
}

const struct engine_backend engine_cpu = {
    .arith = "pp1",
    .layout = "cpu-hl1",
    .kv_type = cpu_kv_type,
    .model = cpu_model,
    .open = cpu_open,
    .close = cpu_close,
    .step = cpu_step,
    .logits = cpu_logits,
    .sample = cpu_sample,
    .kv_read = host_kv_read,
    .kv_place = host_kv_place,
    .kv_write = host_kv_write,
    .cost = cpu_cost,
};

/* Adds the time since the last call to part p. Only thread 0 measures. */
void part_time(struct cpu *g, int tid, enum engine_part p)
{
    if (tid)
        return;
    uint64_t now = time_now_ns(), waited = threads_waited_ns(g->threads);
    if (p < PART_N) {
        g->e.time_ns[p] += now - g->mark - (waited - g->waited);
        g->e.time_ns[PART_WAIT] += waited - g->waited;
    }
    g->mark = now;
    g->waited = waited;
}
