/* UTF-8 decoding and encoding. Invalid sequences are delimited as Python's decoder does. */
#include <stdlib.h>
#include <string.h>

#include "text/text_private.h"

/* The range of the second byte depends on the first, which excludes overlong forms, surrogates and values above
 * U+10FFFF. */
static int second_byte_range(uint8_t lead, uint8_t *lo, uint8_t *hi)
{
    *lo = 0x80;
    *hi = 0xbf;
    if (lead >= 0xc2 && lead <= 0xdf)
        return 2;
    if (lead >= 0xe0 && lead <= 0xef) {
        if (lead == 0xe0)
            *lo = 0xa0;
        if (lead == 0xed)
            *hi = 0x9f;
        return 3;
    }
    if (lead >= 0xf0 && lead <= 0xf4) {
        if (lead == 0xf0)
            *lo = 0x90;
        if (lead == 0xf4)
            *hi = 0x8f;
        return 4;
    }
    return 0;
}

int text_utf8_step(const uint8_t *s, size_t n, uint32_t *cp)
{
    uint8_t lo, hi;
    if (s[0] < 0x80) {
        *cp = s[0];
        return 1;
    }
    int len = second_byte_range(s[0], &lo, &hi);
    if (len == 0)
        return -1;
    uint32_t c = s[0] & (0x7fu >> len);
    for (int i = 1; i < len; i++) {
        if ((size_t)i == n)
            return 0;
        if (s[i] < lo || s[i] > hi)
            return -i;
        c = c << 6 | (s[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *cp = c;
    return len;
}

int text_utf8_put(uint8_t out[4], uint32_t cp)
{
    if (cp < 0x80) {
        out[0] = (uint8_t)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (uint8_t)(0xc0 | cp >> 6);
        out[1] = (uint8_t)(0x80 | (cp & 0x3f));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (uint8_t)(0xe0 | cp >> 12);
        out[1] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
        out[2] = (uint8_t)(0x80 | (cp & 0x3f));
        return 3;
    }
    out[0] = (uint8_t)(0xf0 | cp >> 18);
    out[1] = (uint8_t)(0x80 | (cp >> 12 & 0x3f));
    out[2] = (uint8_t)(0x80 | (cp >> 6 & 0x3f));
    out[3] = (uint8_t)(0x80 | (cp & 0x3f));
    return 4;
}

bool text_utf8_valid(const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int k = text_utf8_step(p + i, n - i, &cp);
        if (k <= 0)
            return false;
        i += (size_t)k;
    }
    return true;
}

bool text_is_space(uint32_t c)
{
    if (c < 0x80)
        return c == ' ' || (c >= '\t' && c <= '\r');
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

int text_utf8_repair(struct err *e, char **out, size_t *n_out, const char *s, size_t n)
{
    const uint8_t *p = (const uint8_t *)s;
    size_t size = 0;
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int k = text_utf8_step(p + i, n - i, &cp);
        size += k > 0 ? (size_t)k : 3;
        i += k > 0 ? (size_t)k : k < 0 ? (size_t)-k : n - i;
    }
    char *o = malloc(size + 1);
    if (!o)
        return err_nomem(e, "repaired text", size + 1);
    size_t at = 0;
    for (size_t i = 0; i < n;) {
        int k = text_utf8_step(p + i, n - i, &cp);
        if (k > 0) {
            memcpy(o + at, p + i, (size_t)k);
            at += (size_t)k;
            i += (size_t)k;
            continue;
        }
        memcpy(o + at, "\xef\xbf\xbd", 3);
        at += 3;
        i += k < 0 ? (size_t)-k : n - i;
    }
    o[at] = 0;
    *out = o;
    *n_out = at;
    return 0;
}
