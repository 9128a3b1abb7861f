/* A frame as one line of JSON: converts its msgpack encoding by the table, which determines the form of each field. */
#include "wire/encode.h"
#include "wire/value_json.h"

#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static json_t *u64_json(uint64_t v)
{
    char text[24];
    snprintf(text, sizeof text, "%llu", (unsigned long long)v);
    return json_string(text);
}

static json_t *hex_json(const uint8_t *p, size_t n)
{
    char *text = malloc(2 * n + 1);
    if (!text)
        return NULL;
    sodium_bin2hex(text, 2 * n + 1, p, n);
    json_t *j = json_stringn_nocheck(text, 2 * n);
    free(text);
    return j;
}

static json_t *rec_json(struct cursor *c, const struct wire_rec *rec, uint64_t n_pair);

static json_t *scalar_json(const struct wire_field *f, const struct tok *t)
{
    switch (t->type) {
    case TOK_NIL:
        return json_null();
    case TOK_BOOL:
        return json_boolean(t->u);
    case TOK_UINT:
        if (f->type == TY_REASON)
            return json_string(wire_reason_name((enum wire_reason)t->u));
        return f->type == TY_U64 ? u64_json(t->u) : json_integer((json_int_t)t->u);
    case TOK_INT:
        return json_integer(t->i);
    case TOK_F32:
        return float_json((float)t->f);
    case TOK_BIN:
        return hex_json(t->p, (size_t)t->u);
    case TOK_STR:
        return text_json((const char *)t->p, (size_t)t->u);
    default:
        return NULL;
    }
}

static json_t *field_json(struct cursor *c, const struct wire_field *f)
{
    struct tok t;
    if (cursor_next(c, &t))
        return NULL;
    if (f->type == TY_SECTION || f->type == TY_TUPLE)
        return rec_json(c, f->rec, t.u);
    if (t.type != TOK_ARRAY)
        return scalar_json(f, &t);
    json_t *j = json_array();
    for (uint64_t i = 0; i < t.u; i++) {
        struct tok elem;
        json_t *value = cursor_next(c, &elem) ? NULL : f->rec ? rec_json(c, f->rec, elem.u) : scalar_json(f, &elem);
        if (json_array_append_new(j, value)) {
            json_decref(j);
            return NULL;
        }
    }
    return j;
}

static int pair_json(json_t *j, struct cursor *c, const struct wire_rec *rec)
{
    struct tok key;
    uint32_t hint = 0;
    char name[WIRE_NAME_BYTES_MAX + 1];
    if (cursor_next(c, &key) || key.u > WIRE_NAME_BYTES_MAX)
        return -1;
    memcpy(name, key.p, (size_t)key.u);
    name[key.u] = 0;
    const struct wire_field *f = wire_field_of(rec, name, (size_t)key.u, &hint);
    if (f && f->type == TY_DATA) {
        c->at = c->n;
        return 0;
    }
    if (f)
        return json_object_set_new(j, name, field_json(c, f));
    size_t from = c->at;
    if (cursor_skip(c, WIRE_DEPTH_MAX))
        return -1;
    return json_object_set_new(j, name, value_to_json(c->p + from, c->at - from));
}

/* The pairs of a map, or the elements of a tuple, after its head. */
static json_t *rec_json(struct cursor *c, const struct wire_rec *rec, uint64_t n)
{
    json_t *j = rec->tuple ? json_array() : json_object();
    int rc = 0;
    for (uint64_t i = 0; i < n && !rc; i++)
        rc = rec->tuple ? json_array_append_new(j, field_json(c, &rec->f[i])) : pair_json(j, c, rec);
    if (!rc)
        return j;
    json_decref(j);
    return NULL;
}

static json_t *data_json(const struct wire_frame *f, const uint8_t *data, bool full)
{
    if (data && full)
        return base64_json(data, (size_t)f->blk.n_data);
    json_t *j = tagged_json("bytes", u64_json(f->blk.n_data));
    if (data && json_object_set_new(j, "sum", u64_json(wire_sum(data, (size_t)f->blk.n_data)))) {
        json_decref(j);
        return NULL;
    }
    return j;
}

static json_t *frame_json(struct cursor *c, const struct wire_frame *f, const uint8_t *data, bool full)
{
    struct tok map, t;
    if (cursor_next(c, &map) || cursor_next(c, &t) || cursor_next(c, &t)) /* the map, "k" and the kind */
        return NULL;
    const struct wire_rec *rec = wire_rec_of((uint64_t)f->kind);
    json_t *j = tagged_json("k", json_string(rec->name));
    int rc = j ? 0 : -1;
    for (uint64_t i = 1; i < map.u && !rc; i++)
        rc = pair_json(j, c, rec);
    if (!rc && f->kind == WIRE_BLK)
        rc = json_object_set_new(j, "data", data_json(f, data, full));
    if (!rc)
        return j;
    json_decref(j);
    return NULL;
}

int wire_to_json(struct err *e, char **out, const struct wire_frame *f, const uint8_t *data, bool full)
{
    uint8_t *buf;
    size_t n;
    int rc = wire_encode(e, &buf, &n, f);
    if (rc)
        return rc;
    struct cursor c = {buf, n, 0};
    json_t *j = frame_json(&c, f, data, full);
    free(buf);
    *out = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(j);
    return *out ? 0 : err_nomem(e, "a line of JSON", n);
}
