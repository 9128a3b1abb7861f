/* Appends JSON to a buffer. */
#include "api/json_write.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void json_write_u64(struct str *w, uint64_t v)
{
    char digits[20];
    size_t at = sizeof digits;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v);
    str_add(w, digits + at, sizeof digits - at);
}

void json_write_i64(struct str *w, int64_t v)
{
    if (v < 0)
        str_add(w, "-", 1);
    json_write_u64(w, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
}

void json_write_f32(struct str *w, float v)
{
    char text[40];
    if (!isfinite(v)) {
        str_add(w, "null", 4);
        return;
    }
    int n = snprintf(text, sizeof text, "%.9g", (double)v);
    str_add(w, text, (size_t)n);
    if (!strpbrk(text, ".e"))
        str_add(w, ".0", 2); /* some readers treat numbers without a point as integers */
}

/* Length of the UTF-8 character at p; 0: invalid (RFC 3629). */
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

static void escape(struct str *w, unsigned char c)
{
    char text[8];
    const char *at = c ? strchr("\"\\\b\f\n\r\t", c) : NULL;
    if (at) {
        static const char letter[] = "\"\\bfnrt";
        static const char from[] = "\"\\\b\f\n\r\t";
        text[0] = '\\';
        text[1] = letter[strchr(from, c) - from];
        str_add(w, text, 2);
        return;
    }
    snprintf(text, sizeof text, "\\u%04x", c);
    str_add(w, text, 6);
}

void json_write_escaped(struct str *w, const char *p, size_t n)
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
        str_add(w, p + from, i - from);
        if (s[i] >= 0x80)
            str_add(w, "\xef\xbf\xbd", 3);
        else
            escape(w, s[i]);
        from = ++i;
    }
    str_add(w, p + from, n - from);
}

void json_write_string(struct str *w, const char *p, size_t n)
{
    str_add(w, "\"", 1);
    if (n)
        json_write_escaped(w, p, n);
    str_add(w, "\"", 1);
}

void json_write_u32s(struct str *w, const uint32_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i)
            str_add(w, ",", 1);
        json_write_u64(w, v[i]);
    }
}

void json_write_bytes(struct str *w, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i)
            str_add(w, ",", 1);
        json_write_u64(w, (unsigned char)p[i]);
    }
}

void json_write_value(struct str *w, const json_t *v)
{
    char *text = v ? json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (text)
        str_add_text(w, text);
    else if (v)
        w->failed = true;
    else
        str_add(w, "null", 4);
    free(text);
}
