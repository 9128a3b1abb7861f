/*
 * A line of JSON as a frame: encoded as msgpack by the table, then decoded like a received frame, so that the same
 * limits and error texts apply.
 */
#include "wire/encode.h"
#include "wire/value_json.h"

#include <errno.h>
#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

struct reading {
    struct err *e;
    msgpack_packer pk;
    const char *kind;
    uint8_t *data; /* payload of blk */
    size_t n_data;
};

static int pack_rec(struct reading *d, const struct wire_rec *rec, const json_t *j);

static int bad_field(struct reading *d, const struct wire_field *f, const char *reason)
{
    if (!strcmp(reason, "out of memory"))
        return err_nomem(d->e, f->name, 0);
    return wire_bad(d->e, d->kind, f, -1, "%s", reason);
}

static int packed(struct reading *d, const struct wire_field *f, int rc)
{
    return rc ? bad_field(d, f, "out of memory") : 0;
}

static int pack_u64(struct reading *d, const struct wire_field *f, const json_t *j)
{
    if (json_is_integer(j) && json_integer_value(j) >= 0)
        return packed(d, f, msgpack_pack_uint64(&d->pk, (uint64_t)json_integer_value(j)));
    const char *text = json_string_value(j);
    size_t n = json_string_length(j);
    if (!text || !n || strspn(text, "0123456789") != n)
        return bad_field(d, f, "a decimal string should be here");
    errno = 0;
    uint64_t v = strtoull(text, NULL, 10);
    if (errno)
        return bad_field(d, f, "it is outside 64 bits");
    return packed(d, f, msgpack_pack_uint64(&d->pk, v));
}

static int pack_float(struct reading *d, const struct wire_field *f, const json_t *j)
{
    if (json_is_null(j) && f->type == TY_LOGPROB)
        return packed(d, f, msgpack_pack_nil(&d->pk));
    if (!json_is_number(j))
        return bad_field(d, f, "a number should be here");
    int rc = wire_check_float(d->e, d->kind, f, -1, json_number_value(j));
    return rc ? rc : packed(d, f, msgpack_pack_float(&d->pk, (float)json_number_value(j)));
}

static int pack_str(struct reading *d, const struct wire_field *f, const json_t *j)
{
    uint8_t *p;
    size_t n;
    const char *bad = text_bytes(&p, &n, j);
    if (bad)
        return bad_field(d, f, bad);
    int rc = msgpack_pack_str(&d->pk, n) || (n && msgpack_pack_str_body(&d->pk, p, n));
    free(p);
    return packed(d, f, rc);
}

static int pack_hex(struct reading *d, const struct wire_field *f, const json_t *j)
{
    size_t len = json_string_length(j), n;
    if (!json_is_string(j))
        return bad_field(d, f, "a string in hex should be here");
    uint8_t *p = malloc(len / 2 + 1);
    const char *end;
    if (!p)
        return bad_field(d, f, "out of memory");
    if (sodium_hex2bin(p, len / 2 + 1, json_string_value(j), len, NULL, &n, &end) ||
        end != json_string_value(j) + len) {
        free(p);
        return bad_field(d, f, "it is not hex");
    }
    int rc = msgpack_pack_bin(&d->pk, n) || (n && msgpack_pack_bin_body(&d->pk, p, n));
    free(p);
    return packed(d, f, rc);
}

static int pack_scalar(struct reading *d, const struct wire_field *f, const json_t *j)
{
    switch (f->type) {
    case TY_U64:
        return pack_u64(d, f, j);
    case TY_F32:
    case TY_LOGPROB:
        return pack_float(d, f, j);
    case TY_STR:
    case TY_NAME:
    case TY_STRS:
        return pack_str(d, f, j);
    case TY_BIN:
        return pack_hex(d, f, j);
    case TY_BOOL:
        if (!json_is_boolean(j))
            return bad_field(d, f, "true or false should be here");
        return packed(d, f, json_is_true(j) ? msgpack_pack_true(&d->pk) : msgpack_pack_false(&d->pk));
    case TY_REASON: {
        enum wire_reason r = json_is_string(j) ? wire_reason_of(json_string_value(j), json_string_length(j)) : 0;
        if (!r)
            return bad_field(d, f, "stop, length, cancelled or error should be here");
        return packed(d, f, msgpack_pack_uint64(&d->pk, (uint64_t)r));
    }
    default:
        if (!json_is_integer(j))
            return bad_field(d, f, "an integer should be here");
        return packed(d, f, msgpack_pack_int64(&d->pk, json_integer_value(j)));
    }
}

/* Keeps the payload in d->data; pack_frame writes the head of its bin last. */
static int take_data(struct reading *d, const struct wire_field *f, const json_t *j)
{
    if (json_is_object(j))
        return bad_field(d, f, "it is only a summary of the payload; frames --full writes the whole payload");
    const char *bad = base64_bytes(&d->data, &d->n_data, j);
    return bad ? bad_field(d, f, bad) : 0;
}

static int pack_field(struct reading *d, const struct wire_field *f, const json_t *j)
{
    if (f->type == TY_DATA)
        return take_data(d, f, j);
    if (f->type == TY_SECTION || f->type == TY_TUPLE)
        return pack_rec(d, f->rec, j);
    if (f->type != TY_IDS && f->type != TY_STRS && !f->rec)
        return pack_scalar(d, f, j);
    if (!json_is_array(j))
        return bad_field(d, f, "an array should be here");
    int rc = packed(d, f, msgpack_pack_array(&d->pk, json_array_size(j)));
    for (size_t i = 0; i < json_array_size(j) && !rc; i++)
        rc = f->rec ? pack_rec(d, f->rec, json_array_get(j, i)) : pack_scalar(d, f, json_array_get(j, i));
    return rc;
}

static int pack_pair(struct reading *d, const struct wire_rec *rec, const char *key, const json_t *value)
{
    uint32_t hint = 0;
    const struct wire_field *f = wire_field_of(rec, key, strlen(key), &hint);
    const struct wire_field unknown = {.name = key};
    if (!f || f->type != TY_DATA) {
        int rc =
            packed(d, &unknown,
                   msgpack_pack_str(&d->pk, strlen(key)) || (*key && msgpack_pack_str_body(&d->pk, key, strlen(key))));
        if (rc)
            return rc;
    }
    if (f)
        return pack_field(d, f, value);
    const char *bad = value_from_json(&d->pk, value, WIRE_DEPTH_MAX + 1);
    return bad ? bad_field(d, &unknown, bad) : 0;
}

static int pack_rec(struct reading *d, const struct wire_rec *rec, const json_t *j)
{
    if (rec->tuple) {
        if (!json_is_array(j) || json_array_size(j) != rec->n)
            return wire_bad(d->e, d->kind, NULL, -1, "%s must be an array of %u", rec->name, rec->n);
        int rc = msgpack_pack_array(&d->pk, rec->n) ? err_nomem(d->e, rec->name, 0) : 0;
        for (uint32_t i = 0; i < rec->n && !rc; i++)
            rc = pack_field(d, &rec->f[i], json_array_get(j, i));
        return rc;
    }
    if (!json_is_object(j))
        return wire_bad(d->e, d->kind, NULL, -1, "%s must be an object", rec->name);
    int rc = msgpack_pack_map(&d->pk, json_object_size(j)) ? err_nomem(d->e, rec->name, 0) : 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        rc = rc ? rc : pack_pair(d, rec, key, value);
    }
    return rc;
}

/* All pairs of the frame, "k" first and the payload's head last. */
static int pack_frame(struct reading *d, const struct wire_rec *rec, uint64_t kind, const json_t *j)
{
    int rc = msgpack_pack_map(&d->pk, json_object_size(j)) || msgpack_pack_str(&d->pk, 1) ||
             msgpack_pack_str_body(&d->pk, "k", 1) || msgpack_pack_uint64(&d->pk, kind);
    rc = rc ? err_nomem(d->e, "a frame", 0) : 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        if (!rc && strcmp(key, "k"))
            rc = pack_pair(d, rec, key, value);
    }
    if (rc || !json_object_get(j, "data") || kind != WIRE_BLK)
        return rc;
    rc = msgpack_pack_str(&d->pk, 4) || msgpack_pack_str_body(&d->pk, "data", 4) || msgpack_pack_bin(&d->pk, d->n_data);
    return rc ? err_nomem(d->e, "a frame", 0) : 0;
}

static int read_frame(struct reading *d, struct wire_frame *f, struct wire_arena *a, const json_t *j)
{
    const json_t *k = json_object_get(j, "k");
    uint64_t kind = json_is_string(k) ? (uint64_t)wire_kind_of(json_string_value(k), json_string_length(k)) : 0;
    const struct wire_rec *rec = wire_rec_of(kind);
    if (!rec)
        return err_set(d->e, ERR_PROTO, "an object with \"k\", the kind of a frame, should be here");
    d->kind = rec->name;
    int rc = pack_frame(d, rec, kind, j);
    if (rc)
        return rc;
    msgpack_sbuffer *buf = d->pk.data;
    uint8_t *mem = wire_arena_alloc(d->e, a, buf->size, "a frame");
    if (!mem)
        return ERR_SYS;
    memcpy(mem, buf->data, buf->size);
    return wire_decode(d->e, f, a, mem, buf->size);
}

int wire_from_json(struct err *e, struct wire_frame *f, struct wire_arena *a, uint8_t **data, const char *line,
                   size_t n)
{
    json_error_t at;
    *data = NULL;
    json_t *j = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &at);
    if (!j)
        return err_set(e, ERR_PROTO, "column %d: %s", at.column, at.text);
    msgpack_sbuffer buf;
    msgpack_sbuffer_init(&buf);
    struct reading d = {.e = e, .kind = "unknown"};
    msgpack_packer_init(&d.pk, &buf, msgpack_sbuffer_write);
    int rc = read_frame(&d, f, a, j);
    msgpack_sbuffer_destroy(&buf);
    json_decref(j);
    if (rc)
        free(d.data);
    else
        *data = d.data;
    return rc;
}
