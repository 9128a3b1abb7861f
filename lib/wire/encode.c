/*
 * Structs to bytes, by the table: required fields, other fields that differ from their default, unknown fields
 * unchanged, and the payload's head last. So the encoding of a frame is unique.
 */
#include "wire/encode.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct encoder {
    struct err *e;
    msgpack_packer pk;
    const char *kind;
};

static int enc_rec(struct encoder *d, const struct wire_rec *rec, const void *base, int kind);

static int no_memory(struct encoder *d)
{
    return err_nomem(d->e, "a frame", ((msgpack_sbuffer *)d->pk.data)->alloc * 2);
}

static int packed(struct encoder *d, int rc)
{
    return rc ? no_memory(d) : 0;
}

static int put_str(struct encoder *d, const char *p, size_t n)
{
    if (msgpack_pack_str(&d->pk, n) || (n && msgpack_pack_str_body(&d->pk, p, n)))
        return no_memory(d);
    return 0;
}

static bool present(const struct wire_field *f, const void *base)
{
    const void *p = (const char *)base + f->off;
    if (f->required)
        return true;
    if (f->type == TY_IDS || f->type == TY_STRS || f->type == TY_TUPLES || f->type == TY_MAPS)
        return *(const uint32_t *)((const char *)base + f->n_off) > 0;
    if (f->n_off != FIELD_ALONE)
        return *(const bool *)((const char *)base + f->n_off);
    switch (f->type) {
    case TY_U32:
        return *(const uint32_t *)p != (uint32_t)f->def;
    case TY_U64:
        return *(const uint64_t *)p != (uint64_t)f->def;
    case TY_I32:
        return *(const int32_t *)p != (int32_t)f->def;
    case TY_F32:
        return !(*(const float *)p == (float)f->def);
    case TY_BOOL:
        return *(const bool *)p;
    case TY_REASON:
        return *(const enum wire_reason *)p != 0;
    case TY_STR:
    case TY_NAME:
        return ((const struct wire_str *)p)->n > 0;
    case TY_BIN:
        return ((const struct wire_bytes *)p)->n > 0;
    default:
        return true;
    }
}

static int enc_uint(struct encoder *d, const struct wire_field *f, uint64_t v)
{
    int rc = wire_check_uint(d->e, d->kind, f, -1, v);
    return rc ? rc : packed(d, msgpack_pack_uint64(&d->pk, v));
}

/* A log-probability of minus infinity (a banned token) is written as -FLT_MAX, because JSON has no infinity. */
static int enc_float(struct encoder *d, const struct wire_field *f, float v)
{
    if (f->type == TY_LOGPROB && isnan(v))
        return packed(d, msgpack_pack_nil(&d->pk));
    if (f->type == TY_LOGPROB && v < -FLT_MAX)
        v = -FLT_MAX;
    int rc = wire_check_float(d->e, d->kind, f, -1, v);
    return rc ? rc : packed(d, msgpack_pack_float(&d->pk, v));
}

static int enc_str(struct encoder *d, const struct wire_field *f, struct wire_str s)
{
    int rc =
        f->type == TY_NAME ? wire_check_name(d->e, d->kind, f, -1, s) : wire_check_count(d->e, d->kind, f, -1, s.n);
    return rc ? rc : put_str(d, s.p, s.n);
}

static int enc_bin(struct encoder *d, const struct wire_field *f, struct wire_bytes b)
{
    int rc = wire_check_count(d->e, d->kind, f, -1, b.n);
    if (rc)
        return rc;
    return packed(d, msgpack_pack_bin(&d->pk, b.n) || (b.n && msgpack_pack_bin_body(&d->pk, b.p, b.n)));
}

static int enc_array(struct encoder *d, const struct wire_field *f, uint32_t n)
{
    int rc = wire_check_count(d->e, d->kind, f, -1, n);
    return rc ? rc : packed(d, msgpack_pack_array(&d->pk, n));
}

static int enc_ids(struct encoder *d, const struct wire_field *f, const uint32_t *ids, uint32_t n)
{
    int rc = enc_array(d, f, n);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = packed(d, msgpack_pack_uint32(&d->pk, ids[i]));
    return rc;
}

static int enc_strs(struct encoder *d, const struct wire_field *f, const struct wire_str *s, uint32_t n)
{
    static const struct wire_field each = {.name = "stop", .type = TY_STR, .hi = WIRE_STR_BYTES_MAX};
    int rc = enc_array(d, f, n);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = enc_str(d, &each, s[i]);
    return rc;
}

static int enc_recs(struct encoder *d, const struct wire_field *f, const char *recs, uint32_t n)
{
    int rc = enc_array(d, f, n);
    for (uint32_t i = 0; i < n && !rc; i++)
        rc = enc_rec(d, f->rec, recs + (size_t)i * f->rec->size, 0);
    return rc;
}

static int enc_field(struct encoder *d, const struct wire_field *f, const void *base)
{
    const void *p = (const char *)base + f->off;
    uint32_t n = 0;
    if (f->type == TY_IDS || f->type == TY_STRS || f->type == TY_TUPLES || f->type == TY_MAPS)
        n = *(const uint32_t *)((const char *)base + f->n_off);
    switch (f->type) {
    case TY_U32:
        return enc_uint(d, f, *(const uint32_t *)p);
    case TY_REASON:
        return enc_uint(d, f, (uint64_t) * (const enum wire_reason *)p);
    case TY_U64:
        return enc_uint(d, f, *(const uint64_t *)p);
    case TY_I32: {
        int rc = wire_check_int(d->e, d->kind, f, -1, *(const int32_t *)p);
        return rc ? rc : packed(d, msgpack_pack_int32(&d->pk, *(const int32_t *)p));
    }
    case TY_F32:
    case TY_LOGPROB:
        return enc_float(d, f, *(const float *)p);
    case TY_BOOL:
        return packed(d, *(const bool *)p ? msgpack_pack_true(&d->pk) : msgpack_pack_false(&d->pk));
    case TY_STR:
    case TY_NAME:
        return enc_str(d, f, *(const struct wire_str *)p);
    case TY_BIN:
        return enc_bin(d, f, *(const struct wire_bytes *)p);
    case TY_IDS:
        return enc_ids(d, f, *(const uint32_t *const *)p, n);
    case TY_STRS:
        return enc_strs(d, f, *(const struct wire_str *const *)p, n);
    case TY_TUPLES:
    case TY_MAPS:
        return enc_recs(d, f, *(const char *const *)p, n);
    case TY_SECTION:
        return enc_rec(d, f->rec, base, 0);
    case TY_TUPLE:
        return enc_rec(d, f->rec, p, 0);
    case TY_DATA: {
        uint64_t bytes = *(const uint64_t *)p;
        int rc = wire_check_count(d->e, d->kind, f, -1, bytes);
        return rc ? rc : packed(d, msgpack_pack_bin(&d->pk, bytes));
    }
    }
    return 0;
}

static int enc_key_and_field(struct encoder *d, const struct wire_field *f, const void *base)
{
    int rc = put_str(d, f->name, strlen(f->name));
    return rc ? rc : enc_field(d, f, base);
}

static int enc_extra(struct encoder *d, const struct wire_extra *x)
{
    if (x->n_pair > WIRE_EXTRA_MAX)
        return wire_bad(d->e, d->kind, NULL, -1, "more than %d unknown fields", WIRE_EXTRA_MAX);
    if (!x->n_pair)
        return 0;
    return packed(d, msgpack_sbuffer_write(d->pk.data, (const char *)x->raw.p, x->raw.n));
}

/* kind: the value of the first field "k" of a frame; 0 for an inner map. */
static int enc_map(struct encoder *d, const struct wire_rec *rec, const void *base, int kind)
{
    const struct wire_extra *x = (const void *)((const char *)base + rec->extra_off);
    uint32_t n = (kind != 0) + x->n_pair;
    for (uint32_t i = 0; i < rec->n; i++)
        n += present(&rec->f[i], base);
    int rc = packed(d, msgpack_pack_map(&d->pk, n));
    if (kind && !rc) {
        rc = put_str(d, "k", 1);
        rc = rc ? rc : packed(d, msgpack_pack_uint8(&d->pk, (uint8_t)kind));
    }
    const struct wire_field *last = NULL;
    for (uint32_t i = 0; i < rec->n && !rc; i++) {
        if (rec->f[i].type == TY_DATA)
            last = &rec->f[i];
        else if (present(&rec->f[i], base))
            rc = enc_key_and_field(d, &rec->f[i], base);
    }
    rc = rc ? rc : enc_extra(d, x);
    return rc || !last ? rc : enc_key_and_field(d, last, base);
}

static int enc_rec(struct encoder *d, const struct wire_rec *rec, const void *base, int kind)
{
    if (!rec->tuple)
        return enc_map(d, rec, base, kind);
    int rc = packed(d, msgpack_pack_array(&d->pk, rec->n));
    for (uint32_t i = 0; i < rec->n && !rc; i++)
        rc = enc_field(d, &rec->f[i], base);
    return rc;
}

int wire_encode_into(struct err *e, msgpack_sbuffer *buf, const struct wire_frame *f)
{
    const struct wire_rec *rec = wire_rec_of((uint64_t)f->kind);
    if (!rec)
        return err_set(e, ERR_PROTO, "%d is not a kind of frame", (int)f->kind);
    struct encoder d = {.e = e, .kind = rec->name};
    msgpack_packer_init(&d.pk, buf, msgpack_sbuffer_write);
    size_t before = buf->size;
    int rc = wire_check_frame(e, f);
    rc = rc ? rc : enc_rec(&d, rec, &f->hello, (int)f->kind);
    if (!rc && buf->size - before > WIRE_HEAD_BYTES_MAX)
        rc = err_set(e, ERR_PROTO, "%s frame: %zu bytes, the limit is %u", rec->name, buf->size - before,
                     WIRE_HEAD_BYTES_MAX);
    return rc;
}

int wire_encode(struct err *e, uint8_t **out, size_t *n, const struct wire_frame *f)
{
    msgpack_sbuffer buf;
    msgpack_sbuffer_init(&buf);
    int rc = wire_encode_into(e, &buf, f);
    if (!rc) {
        *n = buf.size;
        *out = (uint8_t *)msgpack_sbuffer_release(&buf);
    }
    msgpack_sbuffer_destroy(&buf);
    return rc;
}

int wire_encode_add(struct err *e, uint8_t **p, size_t *n, size_t *cap, const struct wire_frame *f)
{
    static const char room[WIRE_PREFIX_BYTES] = {(char)0xce};
    msgpack_sbuffer buf = {.size = *n, .data = (char *)*p, .alloc = *cap};
    int rc = msgpack_sbuffer_write(&buf, room, WIRE_PREFIX_BYTES) ? err_nomem(e, "a frame", buf.alloc * 2) : 0;
    rc = rc ? rc : wire_encode_into(e, &buf, f);
    if (!rc) {
        size_t size = buf.size - *n - WIRE_PREFIX_BYTES;
        for (int i = 0; i < 4; i++)
            buf.data[*n + 1 + (size_t)i] = (char)(size >> (24 - 8 * i));
        *n = buf.size;
    }
    *p = (uint8_t *)buf.data;
    *cap = buf.alloc;
    return rc;
}
