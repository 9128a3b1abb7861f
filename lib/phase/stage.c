#include "phase/stage.h"
#include "base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "phase/batch.h"
#include "proc/cores.h"
#include "proc/proc.h"

int kv_type_parse(struct err *e, enum kern_kv *out, const char *name)
{
    static const enum kern_kv all[] = {KERN_KV_INT8, KERN_KV_BF16, KERN_KV_F16};
    if (!strcmp(name, "auto"))
        name = "int8";
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(name, kern_kv_name(all[i]))) {
            *out = all[i];
            return 0;
        }
    return err_set(e, ERR_PROTO, "unknown KV type '%s': int8, bf16 or f16 are known", name);
}

/* Reads which processors the process may use before it restricts itself to its own. */
static int open_cores(struct err *e, struct stage *s)
{
    const struct phase_opts *o = s->o;
    int *cpu = NULL, n = 0;
    if (!o->cpus)
        return 0;
    int rc = cores_list(e, &cpu, &n, o->cpus);
    struct cores_opts co = {.cpu = cpu, .n = n, .path = o->cores && !strcmp(o->cores, "fixed") ? NULL : o->cores_file};
    if (!rc)
        rc = cores_open(e, &s->cores, &co);
    free(cpu);
    if (!rc)
        rc = cores_stay(e, s->cores);
    s->n_thread = n;
    return rc ? err_prefix(e, "--cpus %s", o->cpus) : 0;
}

int stage_open(struct err *e, struct stage *s, const struct phase_opts *o)
{
    *s = (struct stage){.o = o};
    uint64_t t0 = time_now_ns();
    s->n_thread = o->threads ? o->threads : proc_cpus("");
    if (open_cores(e, s))
        return e->code;
    struct model_opts mo = {.path = o->model,
                            .progress = o->progress,
                            .progress_arg = o->progress_arg,
                            .verify = o->verify_weights,
                            .log = o->log,
                            .log_arg = o->log_arg};
    int rc = engine_model(e, &s->m, o->engine, &mo);
    rc = rc ? rc : kv_type_parse(e, &s->kv, o->kv_type);
    rc = rc ? rc : engine_kv_kind(e, &s->kind, o->engine, s->m, s->kv);
    if (!rc)
        rc = text_open(e, &s->text, s->m->gguf);
    if (!rc && text_n_token(s->text) > s->m->c.vocab) /* fewer are allowed: the matrix is padded */
        rc = err_set(e, ERR_NO, "%s: the vocabulary has %u entries, the embedding %lld rows", s->m->path,
                     text_n_token(s->text), (long long)s->m->c.vocab);
    if (!rc)
        rc = wire_writer_new(e, &s->out, o->fd_out, "stdout");
    if (rc)
        return rc;
    s->context = s->m->c.context;
    if (o->model_len > (uint64_t)s->context)
        return err_set(e, ERR_USAGE, "--max-model-len %llu is over the context length of %s, %lld",
                       (unsigned long long)o->model_len, s->m->path, (long long)s->context);
    if (o->model_len)
        s->context = (int64_t)o->model_len;
    s->load_ns = time_now_ns() - t0;
    return 0;
}

static void close_engine(struct stage *s)
{
    batch_free(s->batch);
    engine_free(s->g);
    kv_pool_free(s->pool);
    s->batch = NULL;
    s->g = NULL;
    s->pool = NULL;
}

void stage_close(struct stage *s)
{
    close_engine(s);
    wire_writer_free(s->out);
    text_free(s->text);
    cores_close(s->cores);
    model_free(s->m);
}

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static void log_start(const struct stage *s)
{
    char line[2048];
    if (!s->o->log || !s->o->verbose)
        return;
    snprintf(
        line, sizeof line,
        "%s: %s, %d thread%s, weights %.1f MiB %s, %.1f MiB in huge pages; %s KV, %lld blocks of %d tokens, %.1f MiB",
        s->m->path, engine_isa(s->g), s->n_thread, s->n_thread == 1 ? "" : "s", mib(s->m->weight_bytes),
        s->m->shared ? "shared" : s->m->not_shared.text, mib(model_huge_bytes(s->m)), kern_kv_name(s->kv),
        (long long)kv_pool_slots(s->pool), KV_BLOCK, mib((uint64_t)kv_pool_slots(s->pool) * s->layout.slot_bytes));
    s->o->log(s->o->log_arg, line);
}

void stage_log_profile(const struct stage *s)
{
    uint64_t ns[PART_N];
    char line[64];
    if (!s->g || !s->o->log || !s->o->profile)
        return;
    engine_times(s->g, ns);
    for (int i = 0; i < PART_N; i++) {
        snprintf(line, sizeof line, "profile: %-10s %10.3f ms", engine_part_name((enum engine_part)i),
                 (double)ns[i] / 1e6);
        s->o->log(s->o->log_arg, line);
    }
}

/* Over s->pool. */
static int open_engine(struct err *e, struct stage *s)
{
    struct engine_opts eo = {.backend = s->o->engine,
                             .text = s->text,
                             .isa = s->o->isa,
                             .threads = s->n_thread,
                             .cores = s->cores,
                             .kv = s->kv,
                             .row_max = (int64_t)s->o->batched_tokens,
                             .delay_seed = s->o->delay_seed};
    int rc = engine_open(e, &s->g, s->m, s->pool, &eo);
    if (rc)
        return rc;
    s->n_thread = engine_threads(s->g);
    return batch_new(e, &s->batch, s->g);
}

int stage_engine_take(struct err *e, struct stage *s, enum kern_kv kv, struct kv_pool *pool)
{
    uint64_t t0 = time_now_ns();
    close_engine(s);
    s->kv = kv;
    s->pool = pool;
    s->layout = *kv_pool_layout(pool);
    int rc = engine_kv_kind(e, &s->kind, s->o->engine, s->m, kv);
    rc = rc ? rc : open_engine(e, s);
    s->load_ns += time_now_ns() - t0;
    if (!rc)
        log_start(s);
    return rc;
}

int stage_engine(struct err *e, struct stage *s, enum kern_kv kv)
{
    if (s->pool && s->kv == kv)
        return 0;
    uint64_t memory = proc_memory(""), bytes = s->o->kv_bytes ? s->o->kv_bytes : memory / 4;
    struct kv_pool *pool;
    if (bytes > memory)
        return err_set(e, ERR_USAGE, "KV budget of %llu bytes is over the %llu bytes of memory this process may use",
                       (unsigned long long)bytes, (unsigned long long)memory);
    struct kv_layout l;
    close_engine(s);
    kv_layout_init(&l, kv, s->m->c.n_layer, s->m->c.n_kv_head, s->m->c.head_dim);
    int rc = kv_pool_new(e, &pool, &l, bytes);
    return rc ? rc : stage_engine_take(e, s, kv, pool);
}

void stage_hello(const struct stage *s, struct wire_frame *out, const struct wire_hello *in, bool with_kv)
{
    struct wire_hello *h = &out->hello;
    *out = (struct wire_frame){.kind = WIRE_HELLO};
    *h = (struct wire_hello){.version = WIRE_VERSION,
                             .from = wire_str_of(s->o->prog),
                             .has_vocab = true,
                             .vocab_fp = {text_fingerprint(s->text), 32},
                             .vocab_n = text_n_token(s->text),
                             .extra = in->extra};
    if (!with_kv)
        return;
    h->has_kv = true;
    h->model_fp = (struct wire_bytes){s->m->fingerprint, 32};
    h->kv_type = wire_str_of(kern_kv_name(s->kv));
    h->arith = wire_str_of(s->kind.arith);
    h->layout = wire_str_of(s->kind.layout);
    h->n_layer = (uint32_t)s->m->c.n_layer;
    h->n_kv_head = (uint32_t)s->m->c.n_kv_head;
    h->head_dim = (uint32_t)s->m->c.head_dim;
}

void stage_bye(const struct stage *s, struct wire_frame *out, uint64_t n_ok, uint64_t n_error,
               const struct wire_bye *in)
{
    *out = (struct wire_frame){.kind = WIRE_BYE};
    out->bye = (struct wire_bye){.from = wire_str_of(s->o->prog), .n_ok = n_ok, .n_error = n_error, .extra = in->extra};
}

static int differs(struct wire_str a, const char *b)
{
    return a.n != strlen(b) || memcmp(a.p, b, a.n);
}

int stage_check_hello(struct err *e, const struct stage *s, const struct wire_hello *h)
{
    const struct model_config *c = &s->m->c;
    int from = (int)h->from.n;
    if (!h->has_vocab)
        return err_set(e, ERR_PROTO, "stream of %.*s has no vocabulary section", from, h->from.p);
    if (h->vocab_fp.n != 32 || memcmp(h->vocab_fp.p, text_fingerprint(s->text), 32))
        return err_set(e, ERR_PROTO, "vocabulary of %.*s is not that of %s: both must run the same model", from,
                       h->from.p, s->m->path);
    if (!h->has_kv)
        return 0;
    if (h->model_fp.n != 32 || memcmp(h->model_fp.p, s->m->fingerprint, 32))
        return err_set(e, ERR_PROTO, "KV of %.*s was made by another model than %s", from, h->from.p, s->m->path);
    if (differs(h->arith, s->kind.arith))
        return err_set(e, ERR_PROTO, "KV of %.*s was made by arithmetic %.*s, here it is %s", from, h->from.p,
                       (int)h->arith.n, h->arith.p, s->kind.arith);
    if (differs(h->layout, s->kind.layout))
        return err_set(e, ERR_PROTO, "KV of %.*s has layout %.*s, here it is %s", from, h->from.p, (int)h->layout.n,
                       h->layout.p, s->kind.layout);
    if (h->n_layer != c->n_layer || (int)h->n_kv_head != c->n_kv_head || (int)h->head_dim != c->head_dim)
        return err_set(e, ERR_PROTO, "KV of %.*s has %u layers with %u KV heads of size %u; %s has %lld with %d of %d",
                       from, h->from.p, h->n_layer, h->n_kv_head, h->head_dim, s->m->path, (long long)c->n_layer,
                       c->n_kv_head, c->head_dim);
    return 0;
}
