/* JSON into a buffer. */
#include "api/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_write_free(struct json_write *w)
{
    free(w->p);
    *w = (struct json_write){0};
}

void json_write_clear(struct json_write *w)
{
    w->n = 0;
    w->broken = false;
}

static bool room(struct json_write *w, size_t n)
{
    if (w->cap - w->n >= n)
        return true;
    size_t cap = 2 * w->cap + n + 256;
    char *grown = w->broken ? NULL : realloc(w->p, cap);
    if (!grown) {
        w->broken = true;
        return false;
    }
    w->p = grown;
    w->cap = cap;
    return true;
}

void json_write_raw(struct json_write *w, const char *p, size_t n)
{
    if (!n || !room(w, n))
        return;
    memcpy(w->p + w->n, p, n);
    w->n += n;
}

void json_write_lit(struct json_write *w, const char *text)
{
    json_write_raw(w, text, strlen(text));
}

void json_write_u64(struct json_write *w, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    json_write_raw(w, digits + at, sizeof digits - at);
}

void json_write_i64(struct json_write *w, int64_t v)
{
    if (v < 0)
        json_write_raw(w, "-", 1);
    json_write_u64(w, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

void json_write_f32(struct json_write *w, float v)
{
    char text[40];
    if (!isfinite(v)) {
        json_write_raw(w, "null", 4);
        return;
    }
    int n = snprintf(text, sizeof text, "%.9g", (double)v);
    json_write_raw(w, text, (size_t)n);
    if (!strpbrk(text, ".e"))
        json_write_raw(w, ".0", 2); /* a number with a point, for readers that tell the two apart */
}

/* Length of the character at p, 0 where it is none (RFC 3629). */
static size_t character(const unsigned char *p, size_t n)
{
    size_t k = p[0] < 0x80                   ? 1
               : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
               : (p[0] & 0xf0) == 0xe0       ? 3
               : p[0] >= 0xf0 && p[0] < 0xf5 ? 4
                                             : 0;
    if (!k || k > n)
        return 0;
    for (size_t i = 1; i < k; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return k;
}

static void escape(struct json_write *w, unsigned char c)
{
    char text[8];
    const char *at = c ? strchr("\"\\\b\f\n\r\t", c) : NULL;
    if (at) {
        static const char letter[] = "\"\\bfnrt";
        static const char from[] = "\"\\\b\f\n\r\t";
        text[0] = '\\';
        text[1] = letter[strchr(from, c) - from];
        json_write_raw(w, text, 2);
        return;
    }
    snprintf(text, sizeof text, "\\u%04x", c);
    json_write_raw(w, text, 6);
}

void json_write_escaped(struct json_write *w, const char *p, size_t n)
{
    const unsigned char *s = (const unsigned char *)p;
    size_t from = 0, i = 0;
    while (i < n) {
        if (s[i] >= 0x20 && s[i] < 0x80 && s[i] != '"' && s[i] != '\\') {
            i++;
            continue;
        }
        size_t k = s[i] >= 0x80 ? character(s + i, n - i) : 0;
        if (k) {
            i += k;
            continue;
        }
        json_write_raw(w, p + from, i - from);
        if (s[i] >= 0x80)
            json_write_raw(w, "\xef\xbf\xbd", 3);
        else
            escape(w, s[i]);
        from = ++i;
    }
    json_write_raw(w, p + from, n - from);
}

void json_write_string(struct json_write *w, const char *p, size_t n)
{
    json_write_raw(w, "\"", 1);
    if (n)
        json_write_escaped(w, p, n);
    json_write_raw(w, "\"", 1);
}

void json_write_u32s(struct json_write *w, const uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i)
            json_write_raw(w, ",", 1);
        json_write_u64(w, v[i]);
    }
}

void json_write_bytes(struct json_write *w, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i)
            json_write_raw(w, ",", 1);
        json_write_u64(w, (unsigned char)p[i]);
    }
}

void json_write_value(struct json_write *w, const json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (text)
        json_write_lit(w, text);
    else if (v)
        w->broken = true;
    else
        json_write_raw(w, "null", 4);
    free(text);
}
