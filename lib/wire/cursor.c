#include "wire/cursor.h"

#include <string.h>

static uint64_t big_endian(const uint8_t *p, unsigned n)
{
    uint64_t v = 0;
    for (unsigned i = 0; i < n; i++)
        v = v << 8 | p[i];
    return v;
}

static int64_t sign_extend(uint64_t v, unsigned n)
{
    unsigned shift = 64 - 8 * n;
    return (int64_t)(v << shift) >> shift;
}

static double float_of(uint64_t bits, unsigned n)
{
    if (n == 4) {
        uint32_t b = (uint32_t)bits;
        float f;
        memcpy(&f, &b, sizeof f);
        return f;
    }
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

/* For each first byte from 0xc0 to 0xdf: the type, and the width of the number after it. An ext also has a type byte.
 */
static const struct {
    uint8_t type, width;
} heads[32] = {
    {TOK_NIL, 0},   {0xff, 0},      {TOK_BOOL, 0}, {TOK_BOOL, 0}, {TOK_BIN, 1}, {TOK_BIN, 2},  {TOK_BIN, 4},
    {TOK_EXT, 1},   {TOK_EXT, 2},   {TOK_EXT, 4},  {TOK_F32, 4},  {TOK_F64, 8}, {TOK_UINT, 1}, {TOK_UINT, 2},
    {TOK_UINT, 4},  {TOK_UINT, 8},  {TOK_INT, 1},  {TOK_INT, 2},  {TOK_INT, 4}, {TOK_INT, 8},  {TOK_EXT, 0},
    {TOK_EXT, 0},   {TOK_EXT, 0},   {TOK_EXT, 0},  {TOK_EXT, 0},  {TOK_STR, 1}, {TOK_STR, 2},  {TOK_STR, 4},
    {TOK_ARRAY, 2}, {TOK_ARRAY, 4}, {TOK_MAP, 2},  {TOK_MAP, 4},
};

/* Reads the first byte and the number after it; *used: their bytes. */
static const char *head_of(const struct cursor *c, struct tok *t, size_t *used)
{
    size_t left = c->n - c->at;
    if (left < 1)
        return "the bytes end where a value should begin";
    const uint8_t *p = c->p + c->at;
    uint8_t b = *p;
    *used = 1;
    if (b < 0x80 || b >= 0xe0) {
        t->type = b < 0x80 ? TOK_UINT : TOK_INT;
        t->u = b;
        t->i = (int8_t)b;
        return NULL;
    }
    if (b < 0xc0) {
        t->type = b < 0x90 ? TOK_MAP : b < 0xa0 ? TOK_ARRAY : TOK_STR;
        t->u = b < 0xa0 ? b & 15u : b & 31u;
        return NULL;
    }
    unsigned width = heads[b - 0xc0].width;
    if (b == 0xc1)
        return "byte 0xc1 is not msgpack";
    if (left - 1 < width)
        return "the bytes end inside a number";
    t->type = (enum tok_type)heads[b - 0xc0].type;
    uint64_t v = big_endian(p + 1, width);
    *used = 1 + width;
    t->u = v;
    if (t->type == TOK_BOOL) {
        t->u = b == 0xc3;
    } else if (t->type == TOK_F32 || t->type == TOK_F64) {
        t->f = float_of(v, width);
    } else if (t->type == TOK_INT) {
        t->i = sign_extend(v, width);
        t->u = (uint64_t)t->i;
        if (t->i >= 0)
            t->type = TOK_UINT;
    } else if (t->type == TOK_EXT) {
        t->u = (width ? v : 1u << (b - 0xd4)) + 1; /* the type byte counts among its bytes */
    }
    return NULL;
}

const char *cursor_next(struct cursor *c, struct tok *t)
{
    size_t used;
    t->at = c->at;
    const char *bad = head_of(c, t, &used);
    if (bad)
        return bad;
    size_t left = c->n - c->at - used;
    if (t->type == TOK_STR || t->type == TOK_BIN || t->type == TOK_EXT) {
        if (t->u > left)
            return "its declared length is more than the bytes left";
        t->p = c->p + c->at + used;
        used += (size_t)t->u;
    } else if (t->type == TOK_ARRAY && t->u > left) {
        return "it declares more elements than bytes are left";
    } else if (t->type == TOK_MAP && t->u > left / 2) {
        return "it declares more pairs than bytes are left";
    }
    c->at += used;
    return NULL;
}

const char *cursor_bin_head(struct cursor *c, struct tok *t)
{
    size_t used;
    t->at = c->at;
    const char *bad = head_of(c, t, &used);
    if (bad)
        return bad;
    if (t->type != TOK_BIN)
        return "it is not a bin";
    c->at += used;
    return NULL;
}

const char *cursor_skip(struct cursor *c, unsigned depth)
{
    struct tok t;
    const char *bad = cursor_next(c, &t);
    if (bad || (t.type != TOK_ARRAY && t.type != TOK_MAP))
        return bad;
    if (depth <= 1)
        return "it is nested too deeply";
    uint64_t n = t.type == TOK_MAP ? 2 * t.u : t.u;
    for (uint64_t i = 0; i < n && !bad; i++)
        bad = cursor_skip(c, depth - 1);
    return bad;
}

const char *tok_name(enum tok_type t)
{
    static const char *const names[] = {"nil",
                                        "a bool",
                                        "an unsigned integer",
                                        "a negative integer",
                                        "a float",
                                        "a float",
                                        "a str",
                                        "a bin",
                                        "an array",
                                        "a map",
                                        "an ext"};
    return names[t];
}
