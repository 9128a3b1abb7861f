/* The text format of Prometheus, 0.0.4: families, samples, labels, numbers. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/metrics_impl.h"

#define LABEL_BYTES_MAX 256 /* of a label value; longer ones are truncated */

struct label label_of(const char *name, const char *value)
{
    return (struct label){name, value, strlen(value)};
}

struct label label_str(const char *name, struct wire_str value)
{
    return (struct label){name, value.n ? value.p : "", value.n};
}

/* Length of the UTF-8 character at p; 0: invalid. */
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

/* Invalid UTF-8, for which a scraper would refuse the whole page, becomes '?', as do control characters. */
static void put_label(struct page *p, const struct label *l)
{
    str_add_text(&p->out, l->name);
    str_add_text(&p->out, "=\"");
    size_t n = l->n < LABEL_BYTES_MAX ? l->n : LABEL_BYTES_MAX;
    for (size_t i = 0, k; i < n; i += k ? k : 1) {
        const char *s = l->value + i;
        k = character((const unsigned char *)s, l->n - i);
        if (k > n - i)
            break;
        if (*s == '\\' || *s == '"' || *s == '\n')
            str_add_text(&p->out, *s == '\n' ? "\\n" : *s == '"' ? "\\\"" : "\\\\");
        else if (!k || (unsigned char)*s < ' ' || *s == 127)
            str_add_text(&p->out, "?");
        else
            str_add(&p->out, s, k);
    }
    str_add_text(&p->out, "\"");
}

/* The vllm: families have the labels model_name and engine; there is one engine here. */
static void put_name(struct page *p, const char *suffix, const struct label *l, size_t n, const struct label *le)
{
    const struct label every[] = {label_of("engine", "0"), label_of("model_name", p->model)};
    size_t n_every = strncmp(p->family, "vllm:", 5) ? 0 : 2, k = 0;
    str_add_text(&p->out, p->family);
    str_add_text(&p->out, suffix);
    if (n_every + n + (le ? 1 : 0)) {
        str_add_text(&p->out, "{");
        for (size_t i = 0; i < n_every + n; i++, k++) {
            str_add_text(&p->out, k ? "," : "");
            put_label(p, i < n_every ? &every[i] : &l[i - n_every]);
        }
        if (le) {
            str_add_text(&p->out, k ? "," : "");
            put_label(p, le);
        }
        str_add_text(&p->out, "}");
    }
    str_add_text(&p->out, " ");
}

void page_family(struct page *p, const char *name, const char *type, const char *help)
{
    p->family = name;
    str_add_text(&p->out, "# HELP ");
    str_add_text(&p->out, name);
    str_add_text(&p->out, " ");
    str_add_text(&p->out, help); /* our own texts, without line feeds and backslashes */
    str_add_text(&p->out, "\n# TYPE ");
    str_add_text(&p->out, name);
    str_add_text(&p->out, " ");
    str_add_text(&p->out, type);
    str_add_text(&p->out, "\n");
}

/* As short as it can be and still be read as the same number. */
static void number_text(char out[32], double v)
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
    str_add(&p->out, text, (size_t)n);
}

static void put_number(struct page *p, double v)
{
    char text[32];
    number_text(text, v);
    str_add_text(&p->out, text);
    str_add_text(&p->out, "\n");
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

/* Bounds are spelled as by Python's client, and so by vLLM: 1.0, 1e+06. So the labels of both are equal. */
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
