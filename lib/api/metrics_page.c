/* The text format of Prometheus, 0.0.4: families, samples, labels, numbers. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"

#define LABEL_BYTES_MAX 256 /* of a value; longer ones are cut */

static void put(struct page *p, const char *s, size_t n)
{
    if (p->failed)
        return;
    if (p->cap - p->n < n) {
        size_t cap = 2 * p->cap + n + 4096;
        char *grown = realloc(p->p, cap);
        if (!grown) {
            p->failed = true;
            return;
        }
        p->p = grown;
        p->cap = cap;
    }
    memcpy(p->p + p->n, s, n);
    p->n += n;
}

static void put_str(struct page *p, const char *s)
{
    put(p, s, strlen(s));
}

struct label label_of(const char *name, const char *value)
{
    return (struct label){name, value, strlen(value)};
}

struct label label_str(const char *name, struct wire_str value)
{
    return (struct label){name, value.n ? value.p : "", value.n};
}

/* How many bytes of UTF-8 begin at p; 0: none that are valid. */
static size_t character(const unsigned char *p, size_t n)
{
    size_t k = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    if (k > n)
        return 0;
    for (size_t i = 1; i < k; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if (k == 3 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] > 0x9f)))
        return 0;
    if (k == 4 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] > 0x8f)))
        return 0;
    return k;
}

/* A scraper refuses a whole page for one byte that is no UTF-8, so such a byte becomes '?', as control characters do,
 * which would mislead whoever reads the page. */
static void put_label(struct page *p, const struct label *l)
{
    put_str(p, l->name);
    put_str(p, "=\"");
    size_t n = l->n < LABEL_BYTES_MAX ? l->n : LABEL_BYTES_MAX;
    for (size_t i = 0, k; i < n; i += k ? k : 1) {
        const char *s = l->value + i;
        k = character((const unsigned char *)s, l->n - i);
        if (k > n - i)
            break;
        if (*s == '\\' || *s == '"' || *s == '\n')
            put_str(p, *s == '\n' ? "\\n" : *s == '"' ? "\\\"" : "\\\\");
        else if (!k || (unsigned char)*s < ' ' || *s == 127)
            put_str(p, "?");
        else
            put(p, s, k);
    }
    put_str(p, "\"");
}

/* vLLM's have the model and the engine, of which there is one here. */
static void put_name(struct page *p, const char *suffix, const struct label *l, size_t n, const struct label *le)
{
    const struct label every[] = {label_of("engine", "0"), label_of("model_name", p->model)};
    size_t n_every = strncmp(p->family, "vllm:", 5) ? 0 : 2, k = 0;
    put_str(p, p->family);
    put_str(p, suffix);
    if (n_every + n + (le ? 1 : 0)) {
        put_str(p, "{");
        for (size_t i = 0; i < n_every + n; i++, k++) {
            put_str(p, k ? "," : "");
            put_label(p, i < n_every ? &every[i] : &l[i - n_every]);
        }
        if (le) {
            put_str(p, k ? "," : "");
            put_label(p, le);
        }
        put_str(p, "}");
    }
    put_str(p, " ");
}

void page_family(struct page *p, const char *name, const char *type, const char *help)
{
    p->family = name;
    put_str(p, "# HELP ");
    put_str(p, name);
    put_str(p, " ");
    put_str(p, help); /* of our own: without line feeds and backslashes */
    put_str(p, "\n# TYPE ");
    put_str(p, name);
    put_str(p, " ");
    put_str(p, type);
    put_str(p, "\n");
}

void number_text(char out[32], double v)
{
    if (!isfinite(v)) {
        snprintf(out, 32, "%s", isnan(v) ? "NaN" : v > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            return;
    }
}

static void put_u64(struct page *p, uint64_t v)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%llu\n", (unsigned long long)v);
    put(p, text, (size_t)n);
}

static void put_number(struct page *p, double v)
{
    char text[32];
    number_text(text, v);
    put_str(p, text);
    put_str(p, "\n");
}

void page_u64(struct page *p, const struct label *l, size_t n, uint64_t v)
{
    put_name(p, "", l, n, NULL);
    put_u64(p, v);
}

void page_number(struct page *p, const struct label *l, size_t n, double v)
{
    put_name(p, "", l, n, NULL);
    put_number(p, v);
}

/* As Python's client spells a bound, and so vLLM: 1.0, 1e+06. Series of the two then have the same labels. */
static void bound_text(char out[32], double v)
{
    snprintf(out, 32, "%g", v);
    if (!strpbrk(out, ".e")) {
        size_t n = strlen(out);
        snprintf(out + n, 32 - n, ".0");
    }
}

void page_histogram(struct page *p, const struct label *l, size_t n, const struct histogram *h)
{
    uint64_t below = 0;
    char text[32];
    for (size_t i = 0; i < h->n_le; i++) {
        bound_text(text, h->le[i]);
        const struct label le = label_of("le", text);
        below += h->bucket ? h->bucket[i] : 0;
        put_name(p, "_bucket", l, n, &le);
        put_u64(p, below);
    }
    const struct label inf = label_of("le", "+Inf");
    put_name(p, "_bucket", l, n, &inf);
    put_u64(p, h->n);
    put_name(p, "_sum", l, n, NULL);
    put_number(p, h->sum);
    put_name(p, "_count", l, n, NULL);
    put_u64(p, h->n);
}
