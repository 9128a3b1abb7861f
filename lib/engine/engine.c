#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "engine/private.h"

/* A bump allocator run twice: once to count, once to hand out. */
struct bump {
    uint8_t *base;
    uint64_t used;
};

static void *take(struct bump *b, uint64_t bytes)
{
    void *p = b->base ? b->base + b->used : NULL;
    b->used += (bytes + 127) / 64 * 64; /* one line between neighbours */
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

/* Forms of activation that the weights of a model read, over all layers. */
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

static void place_seat(struct engine *g, struct bump *b, struct seat *s, struct forms f)
{
    const struct model_config *c = &g->m->c;
    int64_t hd = c->head_dim, rows = g->attn_rows;
    struct seat d = {0};
    take_act(b, &d.act, ROWS_ALONE, cols_max(c), f.norm | f.out);
    d.linear = take(b, kern_linear_scratch(cols_max(c)));
    uint64_t out = (uint64_t)(g->row_max > 1024 ? g->row_max : 1024) * 32 * 4; /* or 16 rows of 64 panels */
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
    d.attn = take(b, kern_attn_scratch(g->kv, c->head_dim, g->attn_rows));
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

static void place(struct engine *g, struct bump *b)
{
    const struct model_config *c = &g->m->c;
    struct forms f = forms_of(g->m);
    uint64_t rows = (uint64_t)g->row_max, wide = (uint64_t)c->n_head * (uint64_t)c->head_dim;
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
    take_act(b, &g->act, g->row_max, c->hidden, f.norm);
    take_act(b, &g->act_o, g->row_max, (int64_t)wide, f.out);
    take_act(b, &g->act_h, g->row_max, c->ffn, f.h);
    take_act(b, &g->act_w, g->row_max, c->hidden, f.head);
    for (int i = 0; i < g->n_thread; i++)
        place_seat(g, b, &g->seat[i], f);
}

int engine_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                const struct engine_opts *o)
{
    const struct model_config *c = &m->c;
    if (c->n_layer * 12 + 8 > TEAM_PHASES)
        return err_set(e, ERR_NO, "%s: %lld layers, the engine takes %d", m->path, (long long)c->n_layer,
                       (TEAM_PHASES - 8) / 12);
    if (c->head_dim > KERN_HEAD_MAX)
        return err_set(e, ERR_NO, "%s: head size %d, the engine takes %d", m->path, c->head_dim, KERN_HEAD_MAX);
    struct engine *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, "an engine", sizeof *g);
    g->m = m;
    g->pool = pool;
    g->kv = o->kv;
    g->row_max = pad(o->row_max, KERN_TILE);
    g->group = c->n_head / c->n_kv_head;
    g->off_k = pad((int64_t)c->n_head * c->head_dim, 16);
    g->off_v = g->off_k + pad((int64_t)c->n_kv_head * c->head_dim, 16);
    g->ldq = g->off_v + pad((int64_t)c->n_kv_head * c->head_dim, 16);
    g->attn_tokens = 32;
    g->attn_rows = g->attn_tokens * g->group;
    g->q_bytes = kern_q_bytes(g->kv, c->head_dim);
    g->scale = 1.0f / __builtin_sqrtf((float)c->head_dim);
    struct team_opts to = {.threads = o->threads, .cores = o->cores, .delay_seed = o->delay_seed};
    int rc = kern_select(e, &g->k, o->isa);
    if (!rc)
        rc = team_new(e, &g->team, &to);
    g->width = g->n_thread = rc ? 0 : team_size(g->team);
    g->seat = rc ? NULL : calloc((size_t)g->n_thread, sizeof *g->seat);
    if (!rc && !g->seat)
        rc = err_nomem(e, "an engine", (size_t)g->n_thread * sizeof *g->seat);
    if (!rc) {
        struct bump b = {0};
        place(g, &b);
        g->mem_bytes = b.used;
        g->mem = mmap(NULL, b.used, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (g->mem == MAP_FAILED) {
            g->mem = NULL;
            rc = err_nomem(e, "activations", b.used);
        } else {
            madvise(g->mem, b.used, MADV_HUGEPAGE); /* best effort */
            b = (struct bump){.base = g->mem};
            place(g, &b);
        }
    }
    if (rc) {
        engine_free(g);
        return rc;
    }
    kern_thread_init();
    *out = g;
    return 0;
}

void engine_free(struct engine *g)
{
    if (!g)
        return;
    team_free(g->team);
    if (g->mem)
        munmap(g->mem, g->mem_bytes);
    free(g->part.m);
    free(g->part.l);
    free(g->part.o);
    free(g->seat);
    free(g);
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
    return g->k->name;
}

const struct kern_ops *engine_ops(const struct engine *g)
{
    return g->k;
}

void engine_layout(struct kv_layout *out, const struct model *m, enum kern_kv kv)
{
    kv_layout_init(out, kv, m->c.n_layer, m->c.n_kv_head, m->c.head_dim);
}

static void each_run(void *arg, int tid)
{
    struct engine *g = arg;
    for (int64_t i; (i = team_take(g->team, tid, 0, g->each_n, 1)) >= 0;) {
        g->each_fn(g->each_arg, i, tid);
        team_done(g->team, 0, g->each_n, 1);
    }
    team_sync(g->team, tid, 0, g->each_n);
}

void engine_each(struct engine *g, void (*fn)(void *arg, int64_t i, int tid), void *arg, int64_t n)
{
    if (n == 1) { /* nobody is to be woken for it */
        fn(arg, 0, 0);
        return;
    }
    g->each_fn = fn;
    g->each_arg = arg;
    g->each_n = n;
    team_look(g->team);
    team_run(g->team, each_run, g);
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

/* Charges the time since the last call to `p`; only the caller's thread keeps the clock. */
void part_time(struct engine *g, int tid, enum engine_part p)
{
    if (tid)
        return;
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    uint64_t now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec, waited = team_waited(g->team);
    if (p < PART_N) {
        g->time_ns[p] += now - g->mark - (waited - g->waited);
        g->time_ns[PART_WAIT] += waited - g->waited;
    }
    g->mark = now;
    g->waited = waited;
}
