/*
 * NFC by utf8proc's tables. utf8proc orders combining marks by exchanging neighbours, which is quadratic in a long run
 * of marks, so this file orders them by counting sort.
 *
 * Hugging Face's tokenizers 0.23 uses the tables of Unicode 9 and does not reorder marks added since; this file follows
 * the current Unicode version.
 */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "text/text_private.h"

static bool is_ascii(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((uint8_t)s[i] >= 0x80)
            return false;
    return true;
}

static uint32_t combining_class(int32_t c)
{
    return (uint32_t)utf8proc_get_property(c)->combining_class & 0xff;
}

static void order_few(int32_t *p, size_t n)
{
    for (size_t i = 1; i < n; i++) {
        int32_t c = p[i];
        size_t j = i;
        for (; j > 0 && combining_class(p[j - 1]) > combining_class(c); j--)
            p[j] = p[j - 1];
        p[j] = c;
    }
}

/* Stable sort of a run of marks by combining class. `spare` has room for n. */
static void order_marks(int32_t *p, int32_t *spare, size_t n)
{
    if (n < 16) {
        order_few(p, n);
        return;
    }
    size_t at[257] = {0};
    for (size_t i = 0; i < n; i++)
        at[combining_class(p[i]) + 1]++;
    for (int c = 0; c < 256; c++)
        at[c + 1] += at[c];
    for (size_t i = 0; i < n; i++)
        spare[at[combining_class(p[i])]++] = p[i];
    memcpy(p, spare, n * sizeof *p);
}

static size_t decompose(int32_t *out, size_t cap, const char *s, size_t n)
{
    size_t at = 0;
    uint32_t cp;
    for (size_t i = 0; i < n;) {
        int k = text_utf8_step((const uint8_t *)s + i, n - i, &cp);
        i += (size_t)k;
        if (cp < 0x80) {
            out[at++] = (int32_t)cp;
            continue;
        }
        int boundary = 0;
        utf8proc_ssize_t got = utf8proc_decompose_char((int32_t)cp, out + at, (utf8proc_ssize_t)(cap - at),
                                                       UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
        if (got > 0 && (size_t)got <= cap - at)
            at += (size_t)got;
        else
            out[at++] = (int32_t)cp;
    }
    return at;
}

int text_nfc(struct err *e, char **out, size_t *n_out, const char *s, size_t n)
{
    *out = NULL;
    *n_out = 0;
    if (is_ascii(s, n))
        return 0;
    /* No character decomposes into more than four code points, and a one-byte character into one, so two code points
     * per byte suffice. */
    size_t cap = 2 * n + 8;
    int32_t *cps = malloc(2 * cap * sizeof *cps);
    char *o = malloc(4 * cap);
    if (!cps || !o) {
        free(cps);
        free(o);
        return err_nomem(e, "text in NFC", 12 * cap);
    }
    size_t n_cp = decompose(cps, cap, s, n);
    for (size_t i = 0; i < n_cp;) {
        size_t j = i;
        while (j < n_cp && combining_class(cps[j]) != 0)
            j++;
        if (j - i > 1)
            order_marks(cps + i, cps + cap, j - i);
        i = j + 1;
    }
    utf8proc_ssize_t kept = utf8proc_normalize_utf32(cps, (utf8proc_ssize_t)n_cp, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    size_t at = 0;
    for (utf8proc_ssize_t i = 0; i < kept; i++)
        at += (size_t)text_utf8_put((uint8_t *)o + at, (uint32_t)cps[i]);
    free(cps);
    *out = o;
    *n_out = at;
    return 0;
}
