#include "wire/value_json.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXACT ((int64_t)1 << 53) /* every JSON tool represents integers up to this exactly */

json_t *base64_json(const uint8_t *p, size_t n)
{
    size_t size = sodium_base64_encoded_len(n, sodium_base64_VARIANT_ORIGINAL);
    char *text = malloc(size);
    if (!text)
        return NULL;
    sodium_bin2base64(text, size, p, n, sodium_base64_VARIANT_ORIGINAL);
    json_t *j = json_stringn_nocheck(text, size - 1);
    free(text);
    return j;
}

const char *base64_bytes(uint8_t **p, size_t *n, const json_t *j)
{
    if (!json_is_string(j))
        return "a string in base64 should be here";
    size_t len = json_string_length(j), max = len / 4 * 3 + 3;
    const char *end;
    *p = malloc(max);
    if (!*p)
        return "out of memory";
    if (!sodium_base642bin(*p, max, json_string_value(j), len, NULL, n, &end, sodium_base64_VARIANT_ORIGINAL) &&
        end == json_string_value(j) + len)
        return NULL;
    free(*p);
    *p = NULL;
    return "it is not base64";
}

json_t *tagged_json(const char *key, json_t *value)
{
    json_t *j = json_object();
    if (json_object_set_new(j, key, value)) { /* NULL of either is an error too */
        json_decref(j);
        return NULL;
    }
    return j;
}

json_t *text_json(const char *p, size_t n)
{
    json_t *j = json_stringn(n ? p : "", n);
    return j ? j : tagged_json("base64", base64_json((const uint8_t *)p, n));
}

const char *text_bytes(uint8_t **p, size_t *n, const json_t *j)
{
    if (json_is_object(j) && json_object_size(j) == 1 && json_object_get(j, "base64"))
        return base64_bytes(p, n, json_object_get(j, "base64"));
    if (!json_is_string(j))
        return "a string should be here";
    *n = json_string_length(j);
    *p = malloc(*n + 1);
    if (!*p)
        return "out of memory";
    memcpy(*p, json_string_value(j), *n + 1);
    return NULL;
}

json_t *float_json(float f)
{
    char text[32];
    for (int digits = 6; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, (double)f);
        if ((float)strtod(text, NULL) == f)
            break;
    }
    return json_real(strtod(text, NULL));
}

/* ---- plain values ---- */

static json_t *plain(struct cursor *c, unsigned depth);

static json_t *plain_integer(const struct tok *t)
{
    bool small = t->type == TOK_INT ? t->i >= -EXACT : t->u <= (uint64_t)EXACT;
    if (small)
        return json_integer(t->type == TOK_INT ? (json_int_t)t->i : (json_int_t)t->u);
    char text[24];
    if (t->type == TOK_INT)
        snprintf(text, sizeof text, "%lld", (long long)t->i);
    else
        snprintf(text, sizeof text, "%llu", (unsigned long long)t->u);
    return tagged_json("int", json_string(text));
}

static json_t *plain_array(struct cursor *c, uint64_t n, unsigned depth)
{
    json_t *j = json_array();
    for (uint64_t i = 0; i < n; i++)
        if (json_array_append_new(j, plain(c, depth - 1))) {
            json_decref(j);
            return NULL;
        }
    return j;
}

static json_t *plain_map(struct cursor *c, uint64_t n, unsigned depth)
{
    json_t *j = json_object();
    for (uint64_t i = 0; i < n; i++) {
        struct tok key;
        bool text = !cursor_next(c, &key) && key.type == TOK_STR && !memchr(key.p, 0, (size_t)key.u);
        char *name = text ? strndup((const char *)key.p, (size_t)key.u) : NULL;
        int rc = name ? json_object_set_new(j, name, plain(c, depth - 1)) : -1;
        free(name);
        if (rc) {
            json_decref(j);
            return NULL;
        }
    }
    return j;
}

/* NULL: the value has no plain form. */
static json_t *plain(struct cursor *c, unsigned depth)
{
    struct tok t;
    if (!depth || cursor_next(c, &t))
        return NULL;
    switch (t.type) {
    case TOK_NIL:
        return json_null();
    case TOK_BOOL:
        return json_boolean(t.u);
    case TOK_UINT:
    case TOK_INT:
        return plain_integer(&t);
    case TOK_F64: {
        char text[40];
        snprintf(text, sizeof text, "%.15g", t.f);
        return isfinite(t.f) ? json_real(strtod(text, NULL)) : NULL;
    }
    case TOK_STR:
        return json_stringn(t.u ? (const char *)t.p : "", (size_t)t.u);
    case TOK_BIN:
        return tagged_json("base64", base64_json(t.p, (size_t)t.u));
    case TOK_ARRAY:
        return plain_array(c, t.u, depth);
    case TOK_MAP:
        return plain_map(c, t.u, depth);
    default:
        return NULL;
    }
}

/* Uses the plain form only if it converts back to the same bytes. */
json_t *value_to_json(const uint8_t *p, size_t n)
{
    struct cursor c = {p, n, 0};
    json_t *j = plain(&c, WIRE_DEPTH_MAX + 1);
    msgpack_sbuffer buf;
    msgpack_packer pk;
    msgpack_sbuffer_init(&buf);
    msgpack_packer_init(&pk, &buf, msgpack_sbuffer_write);
    bool same = j && !value_from_json(&pk, j, WIRE_DEPTH_MAX + 2) && buf.size == n && !memcmp(buf.data, p, n);
    msgpack_sbuffer_destroy(&buf);
    if (same)
        return j;
    json_decref(j);
    return tagged_json("msgpack", base64_json(p, n));
}

/* ---- back ---- */

static const char *int_from_json(msgpack_packer *pk, const json_t *j)
{
    const char *text = json_string_value(j);
    char *end;
    if (!text || !*text || strspn(text, "-0123456789") != strlen(text))
        return "{\"int\"} should hold a decimal string";
    errno = 0;
    int rc;
    if (*text == '-')
        rc = msgpack_pack_int64(pk, strtoll(text, &end, 10));
    else
        rc = msgpack_pack_uint64(pk, strtoull(text, &end, 10));
    if (errno || *end)
        return "{\"int\"} is outside 64 bits";
    return rc ? "out of memory" : NULL;
}

static const char *tagged_from_json(msgpack_packer *pk, const char *key, const json_t *value, bool *taken)
{
    *taken = true;
    if (!strcmp(key, "int"))
        return int_from_json(pk, value);
    bool raw = !strcmp(key, "msgpack");
    if (!raw && strcmp(key, "base64")) {
        *taken = false;
        return NULL;
    }
    uint8_t *p;
    size_t n;
    const char *bad = base64_bytes(&p, &n, value);
    if (bad)
        return bad;
    struct cursor c = {p, n, 0};
    if (raw && (cursor_skip(&c, WIRE_DEPTH_MAX) || c.at != n))
        bad = "{\"msgpack\"} is not one value of msgpack";
    else if (raw ? msgpack_sbuffer_write(pk->data, (const char *)p, n)
                 : msgpack_pack_bin(pk, n) || (n && msgpack_pack_bin_body(pk, p, n)))
        bad = "out of memory";
    free(p);
    return bad;
}

static int pack_text(msgpack_packer *pk, const char *p, size_t n)
{
    return msgpack_pack_str(pk, n) || (n && msgpack_pack_str_body(pk, p, n));
}

static const char *map_from_json(msgpack_packer *pk, const json_t *j, unsigned depth)
{
    const char *key, *bad = NULL;
    json_t *value;
    if (json_object_size(j) == 1) {
        void *it = json_object_iter((json_t *)(uintptr_t)j);
        bool taken;
        bad = tagged_from_json(pk, json_object_iter_key(it), json_object_iter_value(it), &taken);
        if (taken)
            return bad;
    }
    int rc = msgpack_pack_map(pk, json_object_size(j));
    json_object_foreach((json_t *)(uintptr_t)j, key, value)
    {
        rc = rc || pack_text(pk, key, strlen(key));
        bad = rc ? "out of memory" : value_from_json(pk, value, depth - 1);
        if (bad)
            break;
    }
    return bad;
}

const char *value_from_json(msgpack_packer *pk, const json_t *j, unsigned depth)
{
    const char *bad = NULL;
    int rc = 0;
    if (!depth)
        return "it is nested too deeply";
    switch (json_typeof(j)) {
    case JSON_OBJECT:
        return map_from_json(pk, j, depth);
    case JSON_ARRAY:
        rc = msgpack_pack_array(pk, json_array_size(j));
        for (size_t i = 0; i < json_array_size(j) && !bad && !rc; i++)
            bad = value_from_json(pk, json_array_get(j, i), depth - 1);
        break;
    case JSON_STRING:
        rc = pack_text(pk, json_string_value(j), json_string_length(j));
        break;
    case JSON_INTEGER:
        rc = msgpack_pack_int64(pk, json_integer_value(j));
        break;
    case JSON_REAL:
        rc = msgpack_pack_double(pk, json_real_value(j));
        break;
    case JSON_NULL:
        rc = msgpack_pack_nil(pk);
        break;
    default:
        rc = json_is_true(j) ? msgpack_pack_true(pk) : msgpack_pack_false(pk);
    }
    return bad ? bad : rc ? "out of memory" : NULL;
}
