#include "phase/fake.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proc/proc.h"

#define LOOKED_AT 64 /* blocks of a sequence that are compared anew each step, beside the last */

struct fake {
    double ns[6];
    int64_t turn;
};

/* ---- opening ---- */

static int coefficients(struct err *e, struct fake *f, const char *spec)
{
    const char *at = strncmp(spec, "fake:", 5) ? "" : spec + 5;
    char *end = NULL;
    for (int i = 0; i < 6; i++) {
        f->ns[i] = strtod(at, &end);
        if (end == at || !(f->ns[i] >= 0 && f->ns[i] <= 1e12) || *end != (i < 5 ? ',' : 0))
            return err_set(e, ERR_USAGE, "--engine is fake:A,B,C,D,E,F, six numbers of nanoseconds, 0 to 1e12");
        at = end + 1;
    }
    return 0;
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

int fake_open(struct err *e, struct fake **out, struct model **m, const struct phase_opts *o)
{
    struct fake *f = *out = calloc(1, sizeof *f);
    *m = calloc(1, sizeof **m);
    if (!f || !*m)
        return err_nomem(e, "an engine", sizeof **m);
    int rc = coefficients(e, f, o->engine);
    if (!rc && strcmp(o->kv_type, "auto") && strcmp(o->kv_type, "int8"))
        rc = err_set(e, ERR_USAGE, "--engine fake has KV of type int8 only");
    return rc ? rc : open_header(e, *m, o->model);
}

void fake_free(struct fake *f)
{
    free(f);
}

void fake_cost(const struct fake *f, float pre[3], float dec[3])
{
    for (int i = 0; i < 3; i++) {
        pre[i] = (float)f->ns[i];
        dec[i] = (float)f->ns[3 + i];
    }
}

/* ---- KV ---- */

/* The finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A token's eight bytes take the place of its K, so that a tail travels with them through a pipe too. */
static uint8_t *place(const struct stage *s, const struct request *q, int64_t t, int half)
{
    return kv_tile(s->pool, q->kv.slot[t / KERN_KV_BLOCK], 0, 0) + half * 4 * KERN_KV_BLOCK + t % KERN_KV_BLOCK * 4;
}

static uint64_t read_kv(const struct stage *s, const struct request *q, int64_t t)
{
    uint32_t half[2];
    for (int i = 0; i < 2; i++)
        memcpy(&half[i], place(s, q, t, i), 4);
    return half[0] | (uint64_t)half[1] << 32;
}

static void write_kv(const struct stage *s, const struct request *q, int64_t t, uint64_t h)
{
    uint32_t half[2] = {(uint32_t)h, (uint32_t)(h >> 32)};
    for (int i = 0; i < 2; i++)
        memcpy(place(s, q, t, i), &half[i], 4);
}

static uint32_t id_at(const struct request *q, int64_t t)
{
    size_t n;
    if (q->all)
        return q->all[t];
    return t < q->r->n_id ? q->r->ids[t] : answer_ids(q->answer, &n)[t - q->r->n_id];
}

/* What the KV of the first n tokens must be. */
static int know(struct err *e, struct request *q, int64_t n)
{
    if (n > q->cap_truth) {
        int64_t cap = n + n / 2 + 64;
        uint64_t *p = realloc(q->truth, (size_t)cap * sizeof *p);
        if (!p)
            return err_nomem(e, "a fake sequence", (size_t)cap * sizeof *p);
        q->truth = p;
        q->cap_truth = cap;
    }
    for (; q->n_truth < n; q->n_truth++)
        q->truth[q->n_truth] = mix((q->n_truth ? q->truth[q->n_truth - 1] : 0) ^ id_at(q, q->n_truth));
    return 0;
}

/* The last token of a block, of those before pos. */
static void check_block(struct stage *s, struct request *q, int64_t block, int64_t pos)
{
    int64_t t = (block + 1) * KERN_KV_BLOCK - 1;
    t = t < pos ? t : pos - 1;
    if (read_kv(s, q, t) != q->truth[t])
        err_set(&q->err, ERR_NO, "KV block %lld was changed", (long long)block);
}

static void check_read(struct stage *s, struct request *q, int64_t pos)
{
    int64_t n = (pos + KERN_KV_BLOCK - 1) / KERN_KV_BLOCK;
    if (q->n_checked > n)
        q->n_checked = n;
    for (; q->n_checked < n; q->n_checked++)
        check_block(s, q, q->n_checked, pos);
    for (int64_t i = 0; i < LOOKED_AT && i < n; i++)
        check_block(s, q, (s->fake->turn * LOOKED_AT + i) % n, pos);
    if (n)
        check_block(s, q, n - 1, pos);
}

/* ---- steps ---- */

/* Ids that are text: so an answer ends by its length, or by a stop of its own. */
static uint32_t choose(const struct stage *s, uint64_t h)
{
    uint32_t n = text_n_token(s->text), id = 0;
    for (int i = 0; i < 64; i++) {
        h = mix(h);
        id = (uint32_t)(h % n);
        if (!text_is_control(s->text, id) && !text_is_end(s->text, id))
            break;
    }
    return id;
}

static int one_chunk(struct err *e, struct stage *s, struct request *q, const struct engine_chunk *c, bool sampled)
{
    int rc = know(e, q, c->pos + c->n);
    if (rc)
        return rc;
    check_read(s, q, c->pos);
    uint64_t h = c->pos ? read_kv(s, q, c->pos - 1) : 0;
    for (int64_t i = 0; i < c->n; i++) {
        h = mix(h ^ c->ids[i]);
        write_kv(s, q, c->pos + i, h);
        if (q->want_prompt && c->pos + i > 0 && c->pos + i < (int64_t)q->r->n_id)
            q->pos.lp[c->pos + i] = (struct wire_logprob){.id = c->ids[i]};
    }
    if (sampled)
        q->now = (struct sample_result){.id = choose(s, h)};
    return 0;
}

static double step_ns(const struct stage *s, const struct batch *b)
{
    const double *k = s->fake->ns;
    double ns = 0, context = 0;
    int64_t batch = 0;
    bool prompts = false;
    for (int64_t i = 0; i < batch_n(b); i++) {
        const struct engine_chunk *c = batch_chunk(b, i);
        double old = (double)c->pos, all = (double)(c->pos + c->n);
        if (c->n == 1 && c->pos >= (int64_t)batch_at(b, i)->r->n_id) {
            context += all;
            batch++;
        } else {
            ns += k[1] * (double)c->n + k[2] * (all * all - old * old);
            prompts = true;
        }
    }
    ns += prompts ? k[0] : 0;
    return ns + (batch ? k[3] + k[4] * context + k[5] * (double)batch : 0);
}

static void sleep_until(uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR)
        ;
}

int fake_step(struct err *e, struct stage *s, struct batch *b)
{
    uint64_t end = proc_now_ns() + (uint64_t)step_ns(s, b);
    int rc = 0;
    s->fake->turn++;
    for (int64_t i = 0; i < batch_n(b) && !rc; i++)
        rc = one_chunk(e, s, batch_at(b, i), batch_chunk(b, i), batch_sampled(b, i));
    if (!rc)
        sleep_until(end);
    return rc;
}
