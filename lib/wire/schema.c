#include "wire/fields.h"

#include <float.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/kv_block.h"

/* ---- parts ---- */

static const struct wire_field bias_fields[] = {
    U32(wire_bias, "id", id, REQ),
    F32(wire_bias, "bias", bias, -1e6, 1e6, REQ),
};
static const struct wire_rec bias_rec = {"bias", bias_fields, N_OF(bias_fields), sizeof(struct wire_bias),
                                         true,   FIELD_ALONE};

static const struct wire_field top_fields[] = {
    U32(wire_top, "id", id, REQ),
    {.name = "logprob", .type = TY_LOGPROB, AT(wire_top, logprob), ALONE, .flo = -FLT_MAX, .fhi = FLT_MAX, REQ},
};
static const struct wire_rec top_rec = {"top", top_fields, N_OF(top_fields), sizeof(struct wire_top),
                                        true,  FIELD_ALONE};

static const struct wire_field logprob_fields[] = {
    U32(wire_logprob, "id", id, REQ),
    {.name = "logprob", .type = TY_LOGPROB, AT(wire_logprob, logprob), ALONE, .flo = -FLT_MAX, .fhi = FLT_MAX, REQ},
    LIST(wire_logprob, "top", TY_TUPLES, top, n_top, WIRE_TOP_MAX, .rec = &top_rec, REQ),
    U32(wire_logprob, "rank", rank, REQ),
};
static const struct wire_rec logprob_rec = {
    "logprob", logprob_fields, N_OF(logprob_fields), sizeof(struct wire_logprob), true, FIELD_ALONE};

static const struct wire_field span_fields[] = {
    NAME(wire_span, "stage", stage, REQ),   NAME(wire_span, "host", host),        U32(wire_span, "pid", pid),
    U64(wire_span, "queued_ns", queued_ns), U64(wire_span, "start_ns", start_ns), U64(wire_span, "end_ns", end_ns),
    U64(wire_span, "tokens", tokens),       U64(wire_span, "bytes", bytes),
};
const struct wire_rec wire_span_rec = {
    "span", span_fields, N_OF(span_fields), sizeof(struct wire_span), false, offsetof(struct wire_span, extra)};

static const struct wire_field vocab_fields[] = {
    BIN(wire_hello, "fp", vocab_fp, 32, 32, REQ),
    U32(wire_hello, "n", vocab_n, REQ),
};
static const struct wire_rec vocab_rec = {"vocab", vocab_fields, N_OF(vocab_fields),
                                          0,       false,        offsetof(struct wire_hello, vocab_extra)};

static const struct wire_field kv_section_fields[] = {
    KV_KIND(wire_hello),
};
static const struct wire_rec kv_section_rec = {
    "kv_section", kv_section_fields, N_OF(kv_section_fields), 0, false, offsetof(struct wire_hello, kv_extra)};

/* ---- kinds ---- */

static const struct wire_field hello_fields[] = {
    INT(wire_hello, "version", TY_U32, version, WIRE_VERSION, WIRE_VERSION, REQ),
    NAME(wire_hello, "from", from, REQ),
    SECTION(wire_hello, "vocab", has_vocab, &vocab_rec),
    SECTION(wire_hello, "kv", has_kv, &kv_section_rec),
};

/* Sampling fields are in the same map as the others, so that a sampling field of a later version is forwarded as an
 * unknown field. */
static const struct wire_field req_fields[] = {
    U64(wire_req, "seq", seq, REQ),
    U32(wire_req, "index", index, REQ),
    STR(wire_req, "id", id, WIRE_ID_BYTES_MAX, REQ),
    LIST(wire_req, "ids", TY_IDS, ids, n_id, WIRE_IDS_MAX, REQ),
    U64(wire_req, "seed", s.seed),
    U32(wire_req, "max_tokens", s.max_tokens, .def = UINT32_MAX),
    U32(wire_req, "min_tokens", s.min_tokens),
    F32(wire_req, "temperature", s.temperature, 0, 1e4),
    U32(wire_req, "top_k", s.top_k),
    F32(wire_req, "top_p", s.top_p, 0, 1, .def = 1),
    F32(wire_req, "typical_p", s.typical_p, FLT_MIN, 1, .def = 1),
    F32(wire_req, "min_p", s.min_p, 0, 1),
    F32(wire_req, "repetition_penalty", s.repetition_penalty, FLT_MIN, 1e6, .def = 1),
    F32(wire_req, "presence_penalty", s.presence_penalty, -1e6, 1e6),
    F32(wire_req, "frequency_penalty", s.frequency_penalty, -1e6, 1e6),
    INT(wire_req, "penalty_last_n", TY_I32, s.penalty_last_n, -1, INT32_MAX, .def = -1),
    BOOL(wire_req, "ignore_eos", s.ignore_eos),
    BOOL(wire_req, "echo", s.echo),
    BOOL(wire_req, "keep_stop", s.keep_stop),
    BOOL(wire_req, "special_text", s.special_text),
    INT(wire_req, "logprobs", TY_I32, s.logprobs, -1, WIRE_TOP_MAX, .def = -1),
    INT(wire_req, "prompt_logprobs", TY_I32, s.prompt_logprobs, -1, WIRE_TOP_MAX, .def = -1),
    LIST(wire_req, "stop", TY_STRS, s.stop, s.n_stop, WIRE_STOPS_MAX),
    LIST(wire_req, "stop_ids", TY_IDS, s.stop_ids, s.n_stop_id, WIRE_STOP_IDS_MAX),
    LIST(wire_req, "bias", TY_TUPLES, s.bias, s.n_bias, WIRE_BIAS_MAX, .rec = &bias_rec),
    LIST(wire_req, "allowed", TY_IDS, s.allowed, s.n_allowed, WIRE_ALLOWED_MAX),
    LIST(wire_req, "bad_ids", TY_IDS, s.bad_ids, s.n_bad_id, WIRE_BAD_IDS_MAX),
    LIST(wire_req, "bad_lens", TY_IDS, s.bad_lens, s.n_bad, WIRE_BAD_MAX),
    BIN(wire_req, "digests", digests, 0, WIRE_IDS_MAX),
    BIN(wire_req, "salt", salt, 0, WIRE_SALT_BYTES_MAX),
    INT(wire_req, "priority", TY_I32, priority, INT32_MIN, INT32_MAX),
    U64(wire_req, "born_ns", born_ns),
    U64(wire_req, "load_ns", load_ns),
    LIST(wire_req, "spans", TY_MAPS, span, n_span, WIRE_SPANS_MAX, .rec = &wire_span_rec),
};

static const struct wire_field blk_fields[] = {
    U64(wire_blk, "seq", seq, REQ),
    U32(wire_blk, "index", index, REQ),
    INT(wire_blk, "block", TY_U64, block, 0, UINT32_MAX, REQ),
    INT(wire_blk, "layer", TY_U32, layer, 0, 65535, REQ),
    INT(wire_blk, "n_layer", TY_U32, n_layer, 1, 65536, REQ),
    INT(wire_blk, "n_token", TY_U32, n_token, 1, KV_BLOCK, REQ),
    U64(wire_blk, "sum", sum, REQ),
    {.name = "data", .type = TY_DATA, AT(wire_blk, n_data), ALONE, .hi = WIRE_FRAME_BYTES_MAX, REQ},
};

static const struct wire_field kv_fields[] = {
    U64(wire_kv, "seq", seq, REQ),
    U32(wire_kv, "index", index, REQ),
    INT(wire_kv, "n_token", TY_U32, n_token, 0, WIRE_IDS_MAX, REQ),
    {.name = "first", .type = TY_TUPLE, AT(wire_kv, first), COUNTED(wire_kv, has_first), .rec = &logprob_rec},
    LIST(wire_kv, "prompt", TY_TUPLES, prompt, n_prompt, WIRE_IDS_MAX, .rec = &logprob_rec),
    U32(wire_kv, "cached", cached),
    U64(wire_kv, "load_ns", load_ns),
    LIST(wire_kv, "spans", TY_MAPS, span, n_span, WIRE_SPANS_MAX, .rec = &wire_span_rec),
};

static const struct wire_field out_fields[] = {
    U64(wire_out, "seq", seq, REQ),
    U32(wire_out, "index", index, REQ),
    STR(wire_out, "id", id, WIRE_ID_BYTES_MAX, REQ),
    LIST(wire_out, "ids", TY_IDS, ids, n_id, WIRE_IDS_MAX),
    STR(wire_out, "text", text, WIRE_STR_BYTES_MAX),
    LIST(wire_out, "lp", TY_TUPLES, lp, n_lp, WIRE_IDS_MAX, .rec = &logprob_rec),
    BOOL(wire_out, "prompt", prompt),
    BOOL(wire_out, "silent", silent),
    U32(wire_out, "at", at),
    U32(wire_out, "cached", cached),
};

static const struct wire_field end_fields[] = {
    U64(wire_end, "seq", seq, REQ),
    U32(wire_end, "index", index, REQ),
    STR(wire_end, "id", id, WIRE_ID_BYTES_MAX, REQ),
    INT(wire_end, "reason", TY_REASON, reason, 1, 4, REQ),
    STR(wire_end, "stop_text", stop_text, WIRE_STR_BYTES_MAX),
    {.name = "stop_id", .type = TY_U32, AT(wire_end, stop_id), COUNTED(wire_end, has_stop_id), .hi = UINT32_MAX},
    U32(wire_end, "prompt_tokens", prompt_tokens),
    U32(wire_end, "completion_tokens", completion_tokens),
    U32(wire_end, "cached_tokens", cached_tokens),
    U64(wire_end, "load_ns", load_ns),
    U64(wire_end, "born_ns", born_ns),
    U64(wire_end, "first_ns", first_ns),
    U64(wire_end, "last_ns", last_ns),
    LIST(wire_end, "spans", TY_MAPS, span, n_span, WIRE_SPANS_MAX, .rec = &wire_span_rec),
};

static const struct wire_field err_fields[] = {
    U64(wire_error, "seq", seq, REQ),
    U32(wire_error, "index", index, REQ),
    STR(wire_error, "id", id, WIRE_ID_BYTES_MAX, REQ),
    INT(wire_error, "code", TY_U32, code, 1, 255, REQ),
    STR(wire_error, "text", text, WIRE_ERROR_BYTES_MAX, REQ),
};

static const struct wire_field bye_fields[] = {
    NAME(wire_bye, "from", from, REQ),
    U64(wire_bye, "n_ok", n_ok, REQ),
    U64(wire_bye, "n_error", n_error, REQ),
};

static const struct wire_field ask_fields[] = {
    NAME(wire_ask, "what", what, REQ),
    U64(wire_ask, "seq", seq),
    STR(wire_ask, "id", id, WIRE_ID_BYTES_MAX),
    STR(wire_ask, "text", text, WIRE_STR_BYTES_MAX),
    LIST(wire_ask, "ids", TY_IDS, ids, n_id, WIRE_IDS_MAX),
};

static const struct wire_rec kinds[] = {
    [WIRE_HELLO] = KIND("hello", hello_fields, wire_hello),
    [WIRE_TOK] = KIND("tok", req_fields, wire_req),
    [WIRE_OPEN] = KIND("open", req_fields, wire_req),
    [WIRE_BLK] = KIND("blk", blk_fields, wire_blk),
    [WIRE_KV] = KIND("kv", kv_fields, wire_kv),
    [WIRE_OUT] = KIND("out", out_fields, wire_out),
    [WIRE_END] = KIND("end", end_fields, wire_end),
    [WIRE_ERR] = KIND("err", err_fields, wire_error),
    [WIRE_BYE] = KIND("bye", bye_fields, wire_bye),
    [WIRE_ASK] = KIND("ask", ask_fields, wire_ask),
};
#define N_KIND (sizeof kinds / sizeof *kinds)

static const char *const reasons[] = {
    [WIRE_STOP] = "stop", [WIRE_LENGTH] = "length", [WIRE_CANCELLED] = "cancelled", [WIRE_ERROR] = "error"};
#define N_REASON (sizeof reasons / sizeof *reasons)

/* ---- look-up ---- */

const struct wire_rec *wire_rec_of(uint64_t kind)
{
    if (kind >= WIRE_STORE_FIRST && kind <= WIRE_STORE_LAST)
        return wire_store_rec(kind);
    if (kind >= WIRE_SERVICE_FIRST && kind <= WIRE_SERVICE_LAST)
        return wire_service_rec(kind);
    return kind < N_KIND && kinds[kind].name ? &kinds[kind] : NULL;
}

const char *wire_kind_name(enum wire_kind k)
{
    const struct wire_rec *r = wire_rec_of((uint64_t)k);
    return r ? r->name : "unknown";
}

const char *wire_reason_name(enum wire_reason r)
{
    return (size_t)r < N_REASON && reasons[r] ? reasons[r] : "unknown";
}

enum wire_kind wire_kind_of(const char *name, size_t n)
{
    for (uint64_t k = 1; k <= WIRE_KIND_LAST; k++) {
        const struct wire_rec *r = wire_rec_of(k);
        if (r && strlen(r->name) == n && !memcmp(r->name, name, n))
            return (enum wire_kind)k;
    }
    return 0;
}

enum wire_reason wire_reason_of(const char *name, size_t n)
{
    for (size_t r = 1; r < N_REASON; r++)
        if (strlen(reasons[r]) == n && !memcmp(reasons[r], name, n))
            return (enum wire_reason)r;
    return 0;
}

const struct wire_field *wire_field_of(const struct wire_rec *rec, const char *key, size_t n, uint32_t *hint)
{
    for (uint32_t k = 0; k < rec->n; k++) {
        uint32_t i = *hint + k < rec->n ? *hint + k : *hint + k - rec->n;
        const char *name = rec->f[i].name;
        if (strlen(name) == n && !memcmp(name, key, n)) {
            *hint = i + 1 < rec->n ? i + 1 : 0;
            return &rec->f[i];
        }
    }
    return NULL;
}

bool wire_is_name(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (p[i] < 0x20 || p[i] > 0x7e)
            return false;
    return true;
}

void wire_set_defaults(const struct wire_rec *rec, void *base)
{
    for (uint32_t i = 0; i < rec->n; i++) {
        const struct wire_field *f = &rec->f[i];
        void *p = (char *)base + f->off;
        if (f->def == 0)
            continue;
        if (f->type == TY_F32)
            *(float *)p = (float)f->def;
        else if (f->type == TY_I32)
            *(int32_t *)p = (int32_t)f->def;
        else
            *(uint32_t *)p = (uint32_t)f->def;
    }
}

void wire_sampling_default(struct wire_sampling *s)
{
    struct wire_req r = {0};
    wire_set_defaults(&kinds[WIRE_TOK], &r);
    *s = r.s;
}

/* ---- checks ---- */

int wire_bad(struct err *e, const char *kind, const struct wire_field *f, int64_t at, const char *fmt, ...)
{
    char what[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    char where[48] = "";
    if (at >= 0)
        snprintf(where, sizeof where, " (at byte %lld of the frame)", (long long)at);
    if (!f)
        return err_set(e, ERR_PROTO, "%s frame: %s%s", kind, what, where);
    return err_set(e, ERR_PROTO, "%s frame: field %s: %s%s", kind, f->name, what, where);
}

int wire_check_uint(struct err *e, const char *kind, const struct wire_field *f, int64_t at, uint64_t v)
{
    if (v >= (uint64_t)f->lo && v <= f->hi)
        return 0;
    if (f->lo == WIRE_VERSION && f->hi == WIRE_VERSION && !strcmp(f->name, "version"))
        return wire_bad(e, kind, f, at, "the stream has wire version %llu, this program has %d", (unsigned long long)v,
                        WIRE_VERSION);
    return wire_bad(e, kind, f, at, "%llu is outside %lld to %llu", (unsigned long long)v, (long long)f->lo,
                    (unsigned long long)f->hi);
}

int wire_check_int(struct err *e, const char *kind, const struct wire_field *f, int64_t at, int64_t v)
{
    if (v >= f->lo && v <= (int64_t)f->hi)
        return 0;
    return wire_bad(e, kind, f, at, "%lld is outside %lld to %lld", (long long)v, (long long)f->lo, (long long)f->hi);
}

int wire_check_float(struct err *e, const char *kind, const struct wire_field *f, int64_t at, double v)
{
    if (v >= f->flo && v <= f->fhi)
        return 0;
    return wire_bad(e, kind, f, at, "%.9g is outside %.9g to %.9g", v, f->flo, f->fhi);
}

int wire_check_count(struct err *e, const char *kind, const struct wire_field *f, int64_t at, uint64_t n)
{
    const char *unit =
        f->type == TY_STR || f->type == TY_NAME || f->type == TY_BIN || f->type == TY_DATA ? "bytes" : "elements";
    if (n > f->hi)
        return wire_bad(e, kind, f, at, "%llu %s, the limit is %llu", (unsigned long long)n, unit,
                        (unsigned long long)f->hi);
    if (n < (uint64_t)f->lo)
        return wire_bad(e, kind, f, at, "%llu %s, must be %lld", (unsigned long long)n, unit, (long long)f->lo);
    return 0;
}

int wire_check_name(struct err *e, const char *kind, const struct wire_field *f, int64_t at, struct wire_str s)
{
    int rc = wire_check_count(e, kind, f, at, s.n);
    if (rc || wire_is_name(s.p, s.n))
        return rc;
    return wire_bad(e, kind, f, at, "a name may contain printable ASCII only");
}

/* The sampler iterates over these sequences without a check of its own. */
static int check_bad(struct err *e, const char *kind, const struct wire_sampling *s)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < s->n_bad; i++) {
        if (!s->bad_lens[i])
            return err_set(e, ERR_PROTO, "%s frame: field bad_lens: 0 at index %u, the minimum is 1", kind, i);
        sum += s->bad_lens[i];
    }
    if (sum != s->n_bad_id)
        return err_set(e, ERR_PROTO, "%s frame: field bad_lens: its sum is %llu, there are %u bad_ids", kind,
                       (unsigned long long)sum, s->n_bad_id);
    return 0;
}

int wire_check_frame(struct err *e, const struct wire_frame *f)
{
    const char *kind = wire_kind_name(f->kind);
    if (f->kind == WIRE_TOK || f->kind == WIRE_OPEN) {
        size_t want = (size_t)(f->req.n_id / KV_BLOCK) * KV_DIGEST;
        if (f->req.digests.n && f->req.digests.n != want)
            return err_set(e, ERR_PROTO, "%s frame: field digests: %zu bytes, must be 0 or %zu for %u ids", kind,
                           f->req.digests.n, want, f->req.n_id);
        return check_bad(e, kind, &f->req.s);
    } else if (f->kind == WIRE_PROMPT) {
        if (f->prompt.index >= f->prompt.n)
            return err_set(e, ERR_PROTO, "%s frame: field index: %u, must be below n, %u", kind, f->prompt.index,
                           f->prompt.n);
    } else if (f->kind == WIRE_OUT) {
        if (f->out.n_lp && f->out.n_lp != f->out.n_id)
            return err_set(e, ERR_PROTO, "%s frame: field lp: %u elements, must be 0 or %u, one for each id", kind,
                           f->out.n_lp, f->out.n_id);
    }
    return 0;
}

/* ---- the text of the table ---- */

static const char *const type_names[] = {
    [TY_U32] = "uint32",   [TY_U64] = "uint64",          [TY_I32] = "int32",
    [TY_F32] = "float32",  [TY_LOGPROB] = "float32|nil", [TY_BOOL] = "bool",
    [TY_STR] = "str",      [TY_NAME] = "str(ascii)",     [TY_BIN] = "bin",
    [TY_IDS] = "[uint32]", [TY_STRS] = "[str]",          [TY_REASON] = "uint(reason)",
    [TY_SECTION] = "map",  [TY_TUPLE] = "tuple",         [TY_TUPLES] = "[tuple]",
    [TY_MAPS] = "[map]",   [TY_DATA] = "bin(last)",
};

static size_t put_rec(char *out, size_t size, size_t at, const struct wire_rec *rec, int number)
{
    if (number)
        at += (size_t)snprintf(out + at, size - at, "kind %s %d\n", rec->name, number);
    else
        at += (size_t)snprintf(out + at, size - at, "%s %s\n", rec->tuple ? "tuple" : "map", rec->name);
    for (uint32_t i = 0; i < rec->n; i++) {
        const struct wire_field *f = &rec->f[i];
        bool real = f->type == TY_F32 || f->type == TY_LOGPROB;
        at += (size_t)snprintf(out + at, size - at, "  %s %s%s%s", f->name, type_names[f->type], f->rec ? " " : "",
                               f->rec ? f->rec->name : "");
        if (f->type == TY_STRS)
            at += (size_t)snprintf(out + at, size - at, " each %u", WIRE_STR_BYTES_MAX);
        if (real)
            at += (size_t)snprintf(out + at, size - at, " %.9g..%.9g", f->flo, f->fhi);
        else if (f->type != TY_BOOL && f->type != TY_SECTION && f->type != TY_TUPLE)
            at += (size_t)snprintf(out + at, size - at, " %lld..%llu", (long long)f->lo, (unsigned long long)f->hi);
        if (f->required)
            at += (size_t)snprintf(out + at, size - at, " required\n");
        else
            at += (size_t)snprintf(out + at, size - at, " default %.17g\n", f->def);
    }
    return at;
}

static char schema_text[65536];

static void make_schema(void)
{
    static const struct wire_rec *const parts[] = {&vocab_rec,    &kv_section_rec,   &wire_span_rec,
                                                   &logprob_rec,  &top_rec,          &bias_rec,
                                                   &wire_run_rec, &wire_kv_kind_rec, &wire_kv_block_rec};
    size_t size = sizeof schema_text;
    size_t at = (size_t)snprintf(schema_text, size, "version %d frame %u head %u depth %d extra %d\n", WIRE_VERSION,
                                 WIRE_FRAME_BYTES_MAX, WIRE_HEAD_BYTES_MAX, WIRE_DEPTH_MAX, WIRE_EXTRA_MAX);
    for (uint64_t k = 1; k <= WIRE_KIND_LAST; k++)
        if (wire_rec_of(k))
            at = put_rec(schema_text, size, at, wire_rec_of(k), (int)k);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        at = put_rec(schema_text, size, at, parts[i], 0);
    for (size_t r = 1; r < N_REASON; r++)
        at += (size_t)snprintf(schema_text + at, size - at, "reason %s %zu\n", reasons[r], r);
}

const char *wire_schema(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_schema);
    return schema_text;
}
