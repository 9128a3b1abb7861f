/*
 * The fake backend computes almost nothing and sleeps as long as a real step would take: for tests of scheduling with
 * real processes. The KV of a token is a running hash of all ids up to it. So the next token depends on the KV alone,
 * and wrong KV (of a block that was reused, or belongs to another sequence) is detected when a token is chosen from it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/map.h"
#include "base/time.h"
#include "engine/backend.h"
#include "kv/bytes.h"
#include "proc/notify.h"
#include "text/text.h"

/* Its KV: one layer, one head of 8, int8; the fingerprint is 32 times this byte. */
#define FAKE_HEAD 8
#define FAKE_BYTE 0xfa

struct fake {
    struct engine e; /* first */
    struct engine_cost cost;
    const struct engine_chunk *chunk; /* [n_chunk] of the last step */
    int64_t n_chunk;
};

static struct fake *fake_of(struct engine *g)
{
    return (struct fake *)g;
}

/* ---- opening ---- */

static int coefficients(struct err *e, struct engine_cost *out, const char *spec)
{
    const char *at = strncmp(spec, "fake:", 5) ? "" : spec + 5;
    char *end = NULL;
    for (int i = 0; i < 6; i++) {
        double ns = strtod(at, &end);
        if (end == at || !(ns >= 0 && ns <= 1e12) || *end != (i < 5 ? ',' : 0))
            return err_set(e, ERR_USAGE, "--engine is fake:A,B,C,D,E,F, six numbers of nanoseconds, 0 to 1e12");
        *(i < 3 ? &out->prefill[i] : &out->decode[i - 3]) = ns;
        at = end + 1;
    }
    return 0;
}

static int fake_kv_type(struct err *e, enum kern_kv type)
{
    return type == KERN_KV_INT8 ? 0 : err_set(e, ERR_USAGE, "--engine fake has KV of type int8 only");
}

static int open_header(struct err *e, struct model *m, const char *path)
{
    char found[4096];
    int rc = path ? 0 : model_default_path(e, found, sizeof found);
    rc = rc ? rc : gguf_open(e, &m->gguf, path ? path : found);
    if (rc)
        return rc;
    m->path = gguf_path(m->gguf);
    rc = model_config_read(e, &m->c, m->gguf);
    m->c.n_layer = m->c.n_kv_head = 1;
    m->c.head_dim = FAKE_HEAD;
    memset(m->fingerprint, FAKE_BYTE, sizeof m->fingerprint);
    return rc;
}

static int fake_model(struct err *e, struct model **out, const char *spec, const struct model_opts *o)
{
    struct engine_cost cost;
    int rc = coefficients(e, &cost, spec);
    if (rc)
        return rc;
    struct model *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, "a model", sizeof *m);
    rc = open_header(e, m, o->path);
    if (rc)
        model_free(m);
    else
        *out = m;
    return rc;
}

static int fake_open(struct err *e, struct engine **out, const struct model *m, struct kv_pool *pool,
                     const struct engine_opts *o)
{
    struct fake *f = calloc(1, sizeof *f);
    if (!f)
        return err_nomem(e, "an engine", sizeof *f);
    f->e = (struct engine){.backend = &engine_fake,
                           .m = m,
                           .pool = pool,
                           .text = o->text,
                           .isa = "no weights",
                           .kv = o->kv,
                           .row_max = o->row_max,
                           .n_thread = o->threads};
    int rc = coefficients(e, &f->cost, o->backend);
    if (rc)
        free(f);
    else
        *out = &f->e;
    return rc;
}

static void fake_close(struct engine *g)
{
    free(g);
}

static bool fake_cost(const struct engine *g, struct engine_cost *out)
{
    *out = ((const struct fake *)g)->cost;
    return true;
}

/* ---- KV ---- */

/* A step of splitmix64. */
static uint64_t mix(uint64_t x)
{
    return map_mix(x + 0x9e3779b97f4a7c15u);
}

/* The eight bytes of a token are stored in place of its K, so that the packed tail of a sequence contains them. */
static uint8_t *place(const struct fake *f, const struct kv_table *kv, int64_t t, int half)
{
    return kv_tile(f->e.pool, kv->slot[t / KV_BLOCK], 0, 0) + half * 4 * KV_BLOCK + t % KV_BLOCK * 4;
}

static uint64_t read_kv(const struct fake *f, const struct kv_table *kv, int64_t t)
{
    uint32_t half[2];
    for (int i = 0; i < 2; i++)
        memcpy(&half[i], place(f, kv, t, i), 4);
    return half[0] | (uint64_t)half[1] << 32;
}

static void write_kv(const struct fake *f, const struct kv_table *kv, int64_t t, uint64_t h)
{
    uint32_t half[2] = {(uint32_t)h, (uint32_t)(h >> 32)};
    for (int i = 0; i < 2; i++)
        memcpy(place(f, kv, t, i), &half[i], 4);
}

/* ---- steps ---- */

static double step_ns(const struct fake *f, const struct engine_chunk *chunk, int64_t n_chunk)
{
    const struct engine_cost *k = &f->cost;
    double ns = 0, context = 0;
    int64_t batch = 0;
    bool prompts = false;
    for (const struct engine_chunk *c = chunk; c < chunk + n_chunk; c++) {
        double all = (double)(c->pos + c->n);
        if (c->n == 1 && c->pos >= c->n_prompt) {
            context += all;
            batch++;
        } else {
            ns += engine_prefill_ns(k, 0, (double)c->pos, all);
            prompts = true;
        }
    }
    ns += prompts ? k->prefill[0] : 0;
    return ns + (batch ? k->decode[0] + engine_decode_ns(k, context, (double)batch) : 0);
}

static void sleep_until(uint64_t ns)
{
    for (uint64_t now; (now = time_now_ns()) < ns; proc_alive()) {
        struct timespec t = time_spec(ns - now > NS_S ? now + NS_S : ns);
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
            ;
    }
}

static int fake_step(struct err *e, struct engine *g, const struct engine_chunk *chunk, int64_t n_chunk,
                     engine_layer_fn *layer_done, void *arg)
{
    struct fake *f = fake_of(g);
    uint64_t begin = time_now_ns();
    (void)e;
    f->chunk = chunk;
    f->n_chunk = n_chunk;
    for (const struct engine_chunk *c = chunk; c < chunk + n_chunk; c++) {
        uint64_t h = c->pos ? read_kv(f, c->kv, c->pos - 1) : 0;
        for (int64_t i = 0; i < c->n; i++) {
            h = mix(h ^ c->ids[i]);
            write_kv(f, c->kv, c->pos + i, h);
        }
    }
    sleep_until(begin + (uint64_t)step_ns(f, chunk, n_chunk));
    f->e.time_ns[PART_WAIT] += time_now_ns() - begin;
    if (layer_done)
        layer_done(arg, 0);
    return 0;
}

static int fake_logits(struct err *e, struct engine *g, float *out, int64_t first, int64_t n)
{
    (void)g;
    (void)out;
    (void)first;
    (void)n;
    return err_set(e, ERR_NO, "the fake engine has no logits");
}

/* ---- sampling ---- */

/* Chooses ids that are text, so that an answer ends by its length or by the stops of its request. */
static uint32_t choose(const struct text *text, uint64_t h)
{
    uint32_t n = text_n_token(text), id = 0;
    for (int i = 0; i < 64; i++) {
        h = mix(h);
        id = (uint32_t)(h % n);
        if (!text_is_control(text, id) && !text_is_end(text, id))
            break;
    }
    return id;
}

/* Compares the KV of all tokens before the row's position with the hash of the ids, at the last token of each block. */
static void check(const struct fake *f, const struct kv_table *kv, struct engine_row *r)
{
    uint64_t h = 0;
    for (int64_t t = 0; t < r->position; t++) {
        h = mix(h ^ (t < r->n_prompt ? r->prompt[t] : r->answer[t - r->n_prompt]));
        if ((t % KV_BLOCK == KV_BLOCK - 1 || t == r->position - 1) && read_kv(f, kv, t) != h) {
            err_set(&r->err, ERR_NO, "KV block %lld was changed", (long long)(t / KV_BLOCK));
            return;
        }
    }
}

static int64_t wanted(const struct engine_chunk *c)
{
    return c->want == ENGINE_ALL ? c->n : c->want == ENGINE_LAST;
}

static int fake_sample(struct err *e, struct engine *g, struct engine_row *row, int64_t first, int64_t n)
{
    struct fake *f = fake_of(g);
    const struct engine_chunk *c = f->chunk;
    int64_t base = 0; /* the first wanted row of c */
    (void)e;
    for (int64_t i = 0; i < n; i++) {
        struct engine_row *r = &row[i];
        for (; first + i >= base + wanted(c); c++)
            base += wanted(c);
        if (first + i == base) /* once a chunk: its other rows read the same KV */
            check(f, c->kv, r);
        r->out = (struct sample_result){0};
        if (r->use == ENGINE_SCORE)
            r->out.id = r->prompt[r->position];
        else if (r->use == ENGINE_CHOOSE)
            r->out.id = choose(f->e.text, read_kv(f, c->kv, r->position - 1));
    }
    return 0;
}

const struct engine_backend engine_fake = {
    .arith = "fake1",
    .layout = "cpu-hl1",
    .kv_type = fake_kv_type,
    .model = fake_model,
    .open = fake_open,
    .close = fake_close,
    .step = fake_step,
    .logits = fake_logits,
    .sample = fake_sample,
    .kv_read = host_kv_read,
    .kv_place = host_kv_place,
    .kv_write = host_kv_write,
    .cost = fake_cost,
};
