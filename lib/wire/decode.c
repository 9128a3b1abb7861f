/*
 * Bytes to structs, by the table. Memory for a count is allocated only after cursor_next has compared it with the bytes
 * left, and after the field's limit was checked.
 */
#include "wire/cursor.h"
#include "wire/schema.h"

#include <math.h>
#include <string.h>

struct decoder {
    struct err *e;
    struct wire_arena *arena;
    struct cursor c;
    const char *kind;
};

static int dec_rec(struct decoder *d, const struct wire_rec *rec, void *base);

static int want(struct decoder *d, const struct wire_field *f, struct tok *t, enum tok_type type)
{
    const char *bad = cursor_next(&d->c, t);
    if (bad)
        return wire_bad(d->e, d->kind, f, (int64_t)d->c.at, "%s", bad);
    if (t->type != type)
        return wire_bad(d->e, d->kind, f, (int64_t)t->at, "%s where %s should be", tok_name(t->type), tok_name(type));
    return 0;
}

static int dec_uint(struct decoder *d, const struct wire_field *f, uint64_t *v)
{
    struct tok t;
    int rc = want(d, f, &t, TOK_UINT);
    if (rc)
        return rc;
    *v = t.u;
    return wire_check_uint(d->e, d->kind, f, (int64_t)t.at, t.u);
}

static int dec_int(struct decoder *d, const struct wire_field *f, int32_t *v)
{
    struct tok t;
    const char *bad = cursor_next(&d->c, &t);
    if (bad)
        return wire_bad(d->e, d->kind, f, (int64_t)d->c.at, "%s", bad);
    if (t.type != TOK_UINT && t.type != TOK_INT)
        return wire_bad(d->e, d->kind, f, (int64_t)t.at, "%s where an integer should be", tok_name(t.type));
    int64_t i = t.type == TOK_INT ? t.i : t.u > INT64_MAX ? INT64_MAX : (int64_t)t.u;
    int rc = wire_check_int(d->e, d->kind, f, (int64_t)t.at, i);
    if (!rc)
        *v = (int32_t)i;
    return rc;
}

/* Other writers encode 1 as an integer and 0.7 as a float64; both are accepted. Our encoder writes float32. */
static int dec_float(struct decoder *d, const struct wire_field *f, float *v)
{
    struct tok t;
    const char *bad = cursor_next(&d->c, &t);
    if (bad)
        return wire_bad(d->e, d->kind, f, (int64_t)d->c.at, "%s", bad);
    double x;
    if (t.type == TOK_F32 || t.type == TOK_F64) {
        x = t.f;
    } else if (t.type == TOK_UINT) {
        x = (double)t.u;
    } else if (t.type == TOK_INT) {
        x = (double)t.i;
    } else if (t.type == TOK_NIL && f->type == TY_LOGPROB) {
        *v = NAN;
        return 0;
    } else {
        return wire_bad(d->e, d->kind, f, (int64_t)t.at, "%s where a float should be", tok_name(t.type));
    }
    int rc = wire_check_float(d->e, d->kind, f, (int64_t)t.at, x);
    if (rc)
        return rc;
    *v = (float)x;
    return wire_check_float(d->e, d->kind, f, (int64_t)t.at, *v); /* rounding may leave the range */
}

static int dec_str(struct decoder *d, const struct wire_field *f, struct wire_str *s)
{
    struct tok t;
    int rc = want(d, f, &t, TOK_STR);
    if (rc)
        return rc;
    *s = (struct wire_str){(const char *)t.p, (size_t)t.u};
    if (f->type == TY_NAME)
        return wire_check_name(d->e, d->kind, f, (int64_t)t.at, *s);
    return wire_check_count(d->e, d->kind, f, (int64_t)t.at, t.u);
}

static int dec_bin(struct decoder *d, const struct wire_field *f, struct wire_bytes *b)
{
    struct tok t;
    int rc = want(d, f, &t, TOK_BIN);
    if (rc)
        return rc;
    *b = (struct wire_bytes){t.p, (size_t)t.u};
    return wire_check_count(d->e, d->kind, f, (int64_t)t.at, t.u);
}

/* The payload's head, which must end the buffer; its bytes are not in the buffer. */
static int dec_data(struct decoder *d, const struct wire_field *f, uint64_t *n)
{
    struct tok t;
    const char *bad = cursor_bin_head(&d->c, &t);
    if (bad)
        return wire_bad(d->e, d->kind, f, (int64_t)d->c.at, "%s", bad);
    *n = t.u;
    return wire_check_count(d->e, d->kind, f, (int64_t)t.at, t.u);
}

/* The head of an array: checks its count and allocates its elements. */
static int dec_array(struct decoder *d, const struct wire_field *f, uint32_t *n, void **mem, size_t elem_bytes,
                     size_t wire_bytes_min)
{
    struct tok t;
    int rc = want(d, f, &t, TOK_ARRAY);
    if (!rc)
        rc = wire_check_count(d->e, d->kind, f, (int64_t)t.at, t.u);
    if (rc)
        return rc;
    if (t.u > (d->c.n - d->c.at) / wire_bytes_min)
        return wire_bad(d->e, d->kind, f, (int64_t)t.at, "it declares more elements than bytes are left");
    *n = (uint32_t)t.u;
    *mem = NULL;
    if (!*n)
        return 0;
    *mem = wire_arena_alloc(d->e, d->arena, (size_t)t.u * elem_bytes, f->name);
    return *mem ? 0 : ERR_SYS;
}

static int dec_ids(struct decoder *d, const struct wire_field *f, const uint32_t **ids, uint32_t *n)
{
    void *mem;
    int rc = dec_array(d, f, n, &mem, sizeof(uint32_t), 1);
    uint32_t *v = mem;
    for (uint32_t i = 0; !rc && i < *n; i++) {
        struct tok t;
        rc = want(d, f, &t, TOK_UINT);
        if (!rc && t.u > UINT32_MAX)
            rc = wire_bad(d->e, d->kind, f, (int64_t)t.at, "%llu is outside 0 to %u", (unsigned long long)t.u,
                          UINT32_MAX);
        if (!rc)
            v[i] = (uint32_t)t.u;
    }
    if (!rc)
        *ids = v;
    return rc;
}

static int dec_strs(struct decoder *d, const struct wire_field *f, const struct wire_str **strs, uint32_t *n)
{
    static const struct wire_field each = {.name = "stop", .type = TY_STR, .hi = WIRE_STR_BYTES_MAX};
    void *mem;
    int rc = dec_array(d, f, n, &mem, sizeof(struct wire_str), 1);
    struct wire_str *v = mem;
    for (uint32_t i = 0; !rc && i < *n; i++)
        rc = dec_str(d, &each, &v[i]);
    if (!rc)
        *strs = v;
    return rc;
}

static int dec_recs(struct decoder *d, const struct wire_field *f, const void **recs, uint32_t *n)
{
    void *mem;
    int rc = dec_array(d, f, n, &mem, f->rec->size, f->rec->tuple ? 1 + f->rec->n : 1);
    for (uint32_t i = 0; !rc && i < *n; i++) {
        void *elem = (char *)mem + (size_t)i * f->rec->size;
        memset(elem, 0, f->rec->size);
        rc = dec_rec(d, f->rec, elem);
    }
    if (!rc)
        *recs = mem;
    return rc;
}

static int dec_field(struct decoder *d, const struct wire_field *f, void *base)
{
    void *p = (char *)base + f->off;
    void *count = f->n_off == FIELD_ALONE ? NULL : (char *)base + f->n_off;
    uint64_t u = 0;
    int rc;
    switch (f->type) {
    case TY_U32:
        rc = dec_uint(d, f, &u);
        *(uint32_t *)p = (uint32_t)u;
        if (count)
            *(bool *)count = true;
        return rc;
    case TY_REASON:
        rc = dec_uint(d, f, &u);
        if (!rc)
            *(enum wire_reason *)p = (enum wire_reason)u;
        return rc;
    case TY_U64:
        return dec_uint(d, f, p);
    case TY_I32:
        return dec_int(d, f, p);
    case TY_F32:
    case TY_LOGPROB:
        return dec_float(d, f, p);
    case TY_BOOL: {
        struct tok t;
        rc = want(d, f, &t, TOK_BOOL);
        *(bool *)p = !rc && t.u;
        return rc;
    }
    case TY_STR:
    case TY_NAME:
        return dec_str(d, f, p);
    case TY_BIN:
        return dec_bin(d, f, p);
    case TY_IDS:
        return dec_ids(d, f, p, count);
    case TY_STRS:
        return dec_strs(d, f, p, count);
    case TY_TUPLES:
    case TY_MAPS:
        return dec_recs(d, f, p, count);
    case TY_SECTION:
        *(bool *)count = true;
        return dec_rec(d, f->rec, base);
    case TY_TUPLE:
        *(bool *)count = true;
        return dec_rec(d, f->rec, p);
    case TY_DATA:
        return dec_data(d, f, p);
    }
    return 0;
}

/* The positions of unknown fields while a map is read. */
struct unknown {
    size_t at[WIRE_EXTRA_MAX], len[WIRE_EXTRA_MAX];
    struct wire_str key[WIRE_EXTRA_MAX];
    uint32_t n;
};

static int note_unknown(struct decoder *d, struct unknown *u, const struct tok *key)
{
    struct wire_str s = {(const char *)key->p, (size_t)key->u};
    if (s.n < 1 || s.n > WIRE_NAME_BYTES_MAX || !wire_is_name(s.p, s.n))
        return wire_bad(d->e, d->kind, NULL, (int64_t)key->at, "a key must be 1 to %d bytes of printable ASCII",
                        WIRE_NAME_BYTES_MAX);
    for (uint32_t i = 0; i < u->n; i++)
        if (u->key[i].n == s.n && !memcmp(u->key[i].p, s.p, s.n))
            return wire_bad(d->e, d->kind, NULL, (int64_t)key->at, "the field %.*s comes twice", (int)s.n, s.p);
    if (u->n == WIRE_EXTRA_MAX)
        return wire_bad(d->e, d->kind, NULL, (int64_t)key->at, "more than %d unknown fields", WIRE_EXTRA_MAX);
    const char *bad = cursor_skip(&d->c, WIRE_DEPTH_MAX);
    if (bad)
        return wire_bad(d->e, d->kind, NULL, (int64_t)d->c.at, "the field %.*s: %s", (int)s.n, s.p, bad);
    u->key[u->n] = s;
    u->at[u->n] = key->at;
    u->len[u->n] = d->c.at - key->at;
    u->n++;
    return 0;
}

/* Borrows unknown fields that are contiguous, as our encoder writes them; copies them otherwise. */
static int keep_unknown(struct decoder *d, const struct unknown *u, struct wire_extra *x)
{
    size_t total = 0;
    bool together = true;
    for (uint32_t i = 0; i < u->n; i++) {
        together = together && u->at[i] == u->at[0] + total;
        total += u->len[i];
    }
    x->n_pair = u->n;
    x->raw = (struct wire_bytes){u->n ? d->c.p + u->at[0] : NULL, total};
    if (together)
        return 0;
    uint8_t *mem = wire_arena_alloc(d->e, d->arena, total, "unknown fields");
    if (!mem)
        return ERR_SYS;
    x->raw.p = mem;
    for (uint32_t i = 0; i < u->n; i++) {
        memcpy(mem, d->c.p + u->at[i], u->len[i]);
        mem += u->len[i];
    }
    return 0;
}

/* Decodes the pairs of a map, after its head. */
static int dec_pairs(struct decoder *d, const struct wire_rec *rec, void *base, uint64_t n_pair, bool is_frame)
{
    struct unknown unknown;
    unknown.n = 0;
    uint64_t seen = 0; /* no record has more than 64 fields */
    uint32_t hint = 0;
    int rc = 0;
    for (uint64_t i = 0; i < n_pair && !rc; i++) {
        struct tok key;
        rc = want(d, NULL, &key, TOK_STR);
        if (rc)
            return rc;
        const struct wire_field *f = wire_field_of(rec, (const char *)key.p, (size_t)key.u, &hint);
        if (!f && !(is_frame && key.u == 1 && key.p[0] == 'k')) {
            rc = note_unknown(d, &unknown, &key);
            continue;
        }
        if (!f)
            return wire_bad(d->e, d->kind, NULL, (int64_t)key.at, "the field k comes twice");
        uint64_t bit = (uint64_t)1 << (f - rec->f);
        if (seen & bit)
            return wire_bad(d->e, d->kind, f, (int64_t)key.at, "it comes twice");
        seen |= bit;
        if (f->type == TY_DATA && i + 1 != n_pair)
            return wire_bad(d->e, d->kind, f, (int64_t)key.at, "it must come last");
        rc = dec_field(d, f, base);
    }
    for (uint32_t i = 0; i < rec->n && !rc; i++)
        if (rec->f[i].required && !(seen >> i & 1))
            rc = wire_bad(d->e, d->kind, &rec->f[i], (int64_t)d->c.at, "it is missing");
    return rc ? rc : keep_unknown(d, &unknown, (struct wire_extra *)((char *)base + rec->extra_off));
}

static int dec_tuple(struct decoder *d, const struct wire_rec *rec, void *base)
{
    struct tok t;
    const char *bad = cursor_next(&d->c, &t);
    if (bad)
        return wire_bad(d->e, d->kind, NULL, (int64_t)d->c.at, "%s: %s", rec->name, bad);
    if (t.type != TOK_ARRAY || t.u != rec->n)
        return wire_bad(d->e, d->kind, NULL, (int64_t)t.at, "%s must be an array of %u", rec->name, rec->n);
    int rc = 0;
    for (uint32_t i = 0; i < rec->n && !rc; i++)
        rc = dec_field(d, &rec->f[i], base);
    return rc;
}

static int dec_rec(struct decoder *d, const struct wire_rec *rec, void *base)
{
    if (rec->tuple)
        return dec_tuple(d, rec, base);
    struct tok t;
    const char *bad = cursor_next(&d->c, &t);
    if (bad)
        return wire_bad(d->e, d->kind, NULL, (int64_t)d->c.at, "%s: %s", rec->name, bad);
    if (t.type != TOK_MAP)
        return wire_bad(d->e, d->kind, NULL, (int64_t)t.at, "%s must be a map", rec->name);
    return dec_pairs(d, rec, base, t.u, false);
}

/* The field "k" of a map after its head; returns the record of its kind. NULL: an error. */
static const struct wire_rec *dec_kind(struct decoder *d, struct wire_frame *f, const struct tok *map)
{
    static const struct wire_field k = {.name = "k", .type = TY_U32, .hi = UINT32_MAX};
    struct tok key;
    uint64_t kind = 0;
    if (map->u && want(d, NULL, &key, TOK_STR))
        return NULL;
    if (!map->u || key.u != 1 || key.p[0] != 'k') {
        wire_bad(d->e, d->kind, NULL, (int64_t)map->at, "its first field must be k, the kind");
        return NULL;
    }
    if (dec_uint(d, &k, &kind))
        return NULL;
    const struct wire_rec *rec = wire_rec_of(kind);
    if (!rec)
        wire_bad(d->e, d->kind, &k, (int64_t)key.at, "%llu is not a kind of wire version %d", (unsigned long long)kind,
                 WIRE_VERSION);
    f->kind = (enum wire_kind)kind;
    return rec;
}

int wire_decode(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t *buf, size_t n)
{
    struct decoder d = {e, a, {buf, n, 0}, "unknown"};
    struct tok map;
    memset(f, 0, sizeof *f);
    if (n > WIRE_HEAD_BYTES_MAX)
        return err_set(e, ERR_PROTO, "a frame of %zu bytes, the limit is %u", n, WIRE_HEAD_BYTES_MAX);
    int rc = want(&d, NULL, &map, TOK_MAP);
    if (rc)
        return rc;
    const struct wire_rec *rec = dec_kind(&d, f, &map);
    if (!rec)
        return e->code;
    d.kind = rec->name;
    wire_set_defaults(rec, wire_frame_base(f));
    rc = dec_pairs(&d, rec, wire_frame_base(f), map.u - 1, true);
    if (rc)
        return rc;
    if (d.c.at != n)
        return wire_bad(e, d.kind, NULL, (int64_t)d.c.at, "%zu bytes after its end", n - d.c.at);
    return wire_check_frame(e, f);
}

int wire_frame_size(struct err *e, size_t *size, const uint8_t *p, size_t n, size_t max)
{
    *size = 0;
    if (n && p[0] != 0xce)
        return err_set(e, ERR_PROTO, "not a frame (byte 0x%02x)", p[0]);
    if (n < WIRE_PREFIX_BYTES)
        return 0;
    size_t body = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
    if (body > max)
        return err_set(e, ERR_PROTO, "a frame of %zu bytes, the limit is %zu", body, max);
    *size = body <= n - WIRE_PREFIX_BYTES ? WIRE_PREFIX_BYTES + body : 0;
    return 0;
}

int wire_decode_next(struct err *e, struct wire_frame *f, struct wire_arena *a, const uint8_t **p, size_t *n)
{
    size_t size;
    int rc = wire_frame_size(e, &size, *p, *n, WIRE_FRAME_BYTES_MAX);
    if (!rc && !size)
        rc = err_set(e, ERR_PROTO, "%zu bytes that are not a whole frame", *n);
    rc = rc ? rc : wire_decode(e, f, a, *p + WIRE_PREFIX_BYTES, size - WIRE_PREFIX_BYTES);
    if (rc)
        return rc;
    *p += size;
    *n -= size;
    return 0;
}
