/* Look-ups in a parsed GGUF header, with type and range checked. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf_impl.h"

struct gguf_shown gguf_show(struct gguf_str s)
{
    struct gguf_shown out;
    size_t room = sizeof out.s - 4;
    size_t n = s.n < room ? s.n : room;
    for (size_t i = 0; i < n; i++)
        out.s[i] = s.p[i] >= 0x20 && s.p[i] < 0x7f ? s.p[i] : '?';
    memcpy(out.s + n, "...", 4);
    if (n == s.n)
        out.s[n] = '\0';
    return out;
}

const char *gguf_value_name(uint32_t type)
{
    static const char *const name[GGUF_VALUES] = {"u8",   "i8",     "u16",   "i16", "u32", "i32", "f32",
                                                  "bool", "string", "array", "u64", "i64", "f64"};
    return type < GGUF_VALUES ? name[type] : "unknown";
}

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    size_t n = a.n < b.n ? a.n : b.n;
    int c = n ? memcmp(a.p, b.p, n) : 0;
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key)
{
    struct gguf_str want = {key, strlen(key)};
    uint64_t lo = 0, hi = g->n_kv;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gguf_kv *kv = &g->kv[g->kv_order[mid]];
        int c = gguf_str_compare(kv->key, want);
        if (!c)
            return kv;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name)
{
    struct gguf_str want = {name, strlen(name)};
    uint64_t lo = 0, hi = g->n_tensor;
    while (lo < hi) {
        uint64_t mid = lo + (hi - lo) / 2;
        const struct gguf_tensor *t = &g->tensor[g->tensor_order[mid]];
        int c = gguf_str_compare(t->name, want);
        if (!c)
            return t;
        if (c < 0)
            lo = mid + 1;
        else
            hi = mid;
    }
    return NULL;
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

uint64_t gguf_file_bytes(const struct gguf *g)
{
    return g->file_bytes;
}

int gguf_fd(const struct gguf *g)
{
    return g->fd;
}

uint64_t gguf_tensor_count(const struct gguf *g)
{
    return g->n_tensor;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_tensor);
    return &g->tensor[i];
}

bool gguf_has(const struct gguf *g, const char *key)
{
    return gguf_kv_find(g, key) != NULL;
}

uint64_t gguf_key_count(const struct gguf *g)
{
    return g->n_kv;
}

struct gguf_str gguf_key_at(const struct gguf *g, uint64_t i)
{
    assert(i < g->n_kv);
    return g->kv[i].key;
}

static int need(struct err *e, const struct gguf_kv **out, const struct gguf *g, const char *key)
{
    *out = gguf_kv_find(g, key);
    return *out ? 0 : err_set(e, ERR_NO, "%s: key %s is missing", g->path, key);
}

static int wrong_type(struct err *e, const struct gguf *g, const struct gguf_kv *kv, const char *key, const char *want)
{
    bool array = kv->type == GGUF_ARRAY;
    return err_set(e, ERR_NO, "%s: key %s is %s%s, not %s", g->path, key, array ? "an array of " : "of type ",
                   gguf_value_name(array ? kv->etype : kv->type), want);
}

/* Sign-extends a signed value; false if it is not a signed integer. */
static bool signed_value(int64_t *out, const struct gguf_kv *kv)
{
    switch (kv->type) {
    case GGUF_I8:
        *out = (int8_t)kv->raw;
        return true;
    case GGUF_I16:
        *out = (int16_t)kv->raw;
        return true;
    case GGUF_I32:
        *out = (int32_t)kv->raw;
        return true;
    case GGUF_I64:
        *out = (int64_t)kv->raw;
        return true;
    default:
        return false;
    }
}

int gguf_u64(struct err *e, const struct gguf *g, const char *key, uint64_t *out, uint64_t lo, uint64_t hi)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    int64_t s = 0;
    if (signed_value(&s, kv)) {
        if (s < 0)
            return err_set(e, ERR_NO, "%s: key %s is %" PRId64 ", outside %" PRIu64 " to %" PRIu64, g->path, key, s, lo,
                           hi);
    } else if (kv->type != GGUF_U8 && kv->type != GGUF_U16 && kv->type != GGUF_U32 && kv->type != GGUF_U64) {
        return wrong_type(e, g, kv, key, "an integer");
    }
    if (kv->raw < lo || kv->raw > hi)
        return err_set(e, ERR_NO, "%s: key %s is %" PRIu64 ", outside %" PRIu64 " to %" PRIu64, g->path, key, kv->raw,
                       lo, hi);
    *out = kv->raw;
    return 0;
}

int gguf_f64(struct err *e, const struct gguf *g, const char *key, double *out)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type == GGUF_F32) {
        uint32_t bits = (uint32_t)kv->raw;
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = f;
        return 0;
    }
    if (kv->type != GGUF_F64)
        return wrong_type(e, g, kv, key, "a float");
    memcpy(out, &kv->raw, sizeof *out);
    return 0;
}

int gguf_bool(struct err *e, const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type != GGUF_BOOL)
        return wrong_type(e, g, kv, key, "a bool");
    *out = kv->raw != 0;
    return 0;
}

int gguf_string(struct err *e, const struct gguf *g, const char *key, struct gguf_str *out)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type != GGUF_STRING)
        return wrong_type(e, g, kv, key, "a string");
    *out = kv->str;
    return 0;
}

int gguf_strs(struct err *e, const struct gguf *g, const char *key, const struct gguf_str **out, uint64_t *n)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type != GGUF_ARRAY || kv->etype != GGUF_STRING)
        return wrong_type(e, g, kv, key, "an array of strings");
    *out = kv->strs;
    *n = kv->n;
    return 0;
}

int gguf_f32s(struct err *e, const struct gguf *g, const char *key, const float **out, uint64_t *n)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type != GGUF_ARRAY || kv->etype != GGUF_F32)
        return wrong_type(e, g, kv, key, "an array of f32");
    *out = (const float *)(const void *)kv->words;
    *n = kv->n;
    return 0;
}

int gguf_i32s(struct err *e, const struct gguf *g, const char *key, const int32_t **out, uint64_t *n)
{
    const struct gguf_kv *kv;
    int rc = need(e, &kv, g, key);
    if (rc)
        return rc;
    if (kv->type != GGUF_ARRAY || (kv->etype != GGUF_I32 && kv->etype != GGUF_U32))
        return wrong_type(e, g, kv, key, "an array of i32");
    for (uint64_t i = 0; kv->etype == GGUF_U32 && i < kv->n; i++)
        if (kv->words[i] > INT32_MAX)
            return err_set(e, ERR_NO, "%s: element %" PRIu64 " of key %s is %" PRIu32 ", above %" PRId32, g->path, i,
                           key, kv->words[i], INT32_MAX);
    *out = (const int32_t *)kv->words;
    *n = kv->n;
    return 0;
}

int gguf_read(struct err *e, const struct gguf *g, const struct gguf_tensor *t, uint64_t from, void *dst, uint64_t n)
{
    assert(from <= t->bytes && n <= t->bytes - from);
    for (uint64_t got = 0; got < n;) {
        ssize_t r = pread(g->fd, (uint8_t *)dst + got, n - got, (off_t)(t->offset + from + got));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, "%s: reading tensor %s", g->path, gguf_show(t->name).s);
        if (r == 0)
            return err_set(e, ERR_NO,
                           "%s: tensor %s: the file was truncated: it had %" PRIu64 " bytes when it was opened",
                           g->path, gguf_show(t->name).s, g->file_bytes);
        got += (uint64_t)r;
    }
    return 0;
}
