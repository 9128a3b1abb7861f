/*
 * A strict parser of Prometheus' text format 0.0.4, by its description (prometheus.io, "Exposition formats"): names,
 * HELP and TYPE once and before the samples, escapes, numbers, no duplicate series, complete histograms. Any deviation
 * fails the test.
 */
#ifndef EXPOSITION_H
#define EXPOSITION_H

#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPO_LABELS 16
#define EXPO_SAMPLES 8192
#define EXPO_FAMILIES 512

struct expo_label {
    char name[64], value[600];
};

struct expo_sample {
    char name[128];
    struct expo_label l[EXPO_LABELS];
    size_t n_label;
    double value;
    int family;
};

struct expo_family {
    char name[128], type[16], help[512];
    size_t n_sample;
};

struct expo {
    struct expo_sample *s; /* [EXPO_SAMPLES] */
    size_t n_sample;
    struct expo_family f[EXPO_FAMILIES];
    size_t n_family, n_line;
};

#define EXPO_BAD(...)                                                                                                  \
    do {                                                                                                               \
        print_error("line %zu: ", x->n_line);                                                                          \
        fail_msg(__VA_ARGS__);                                                                                         \
    } while (0)

static inline const char *expo_name(struct expo *x, char *out, size_t cap, const char *p, bool colon)
{
    size_t n = 0;
    if (!isalpha((unsigned char)*p) && *p != '_' && !(colon && *p == ':'))
        EXPO_BAD("no name at: %.40s", p);
    while (isalnum((unsigned char)*p) || *p == '_' || (colon && *p == ':')) {
        if (n == cap - 1)
            EXPO_BAD("a name is too long");
        out[n++] = *p++;
    }
    out[n] = 0;
    return p;
}

/* Length of one UTF-8 character. */
static inline size_t expo_utf8(const char *s)
{
    const unsigned char *p = (const unsigned char *)s;
    size_t k = *p < 0x80 ? 1 : *p < 0xc2 ? 0 : *p < 0xe0 ? 2 : *p < 0xf0 ? 3 : *p < 0xf5 ? 4 : 0;
    for (size_t i = 1; i < k; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    return k;
}

static inline const char *expo_label_value(struct expo *x, char *out, size_t cap, const char *p)
{
    size_t n = 0;
    if (*p++ != '"')
        EXPO_BAD("a label's value is not in quotes");
    while (*p != '"') {
        if (!*p || *p == '\n')
            EXPO_BAD("a label's value does not end");
        size_t k = *p == '\\' ? 1 : expo_utf8(p);
        if (!k)
            EXPO_BAD("a label's value is not UTF-8");
        if (n + k >= cap)
            EXPO_BAD("a label's value is too long");
        if (*p == '\\') {
            p++;
            if (*p != '\\' && *p != '"' && *p != 'n')
                EXPO_BAD("an escape that there is not: \\%c", *p);
            out[n++] = *p == 'n' ? '\n' : *p;
            p++;
        } else {
            memcpy(out + n, p, k);
            n += k;
            p += k;
        }
    }
    out[n] = 0;
    return p + 1;
}

static inline const char *expo_labels(struct expo *x, struct expo_sample *s, const char *p)
{
    if (*p != '{')
        return p;
    p++;
    while (*p != '}') {
        struct expo_label *l = &s->l[s->n_label++];
        if (s->n_label == EXPO_LABELS)
            EXPO_BAD("too many labels");
        p = expo_name(x, l->name, sizeof l->name, p, false);
        if (!strncmp(l->name, "__", 2) || *p++ != '=')
            EXPO_BAD("label %s", l->name);
        p = expo_label_value(x, l->value, sizeof l->value, p);
        for (struct expo_label *o = s->l; o < l; o++)
            if (!strcmp(o->name, l->name))
                EXPO_BAD("label %s twice", l->name);
        if (*p != ',' && *p != '}')
            EXPO_BAD("after label %s: %.10s", l->name, p);
        p += *p == ',';
    }
    return p + 1;
}

static inline const char *expo_label_of(const struct expo_sample *s, const char *name)
{
    for (size_t i = 0; i < s->n_label; i++)
        if (!strcmp(s->l[i].name, name))
            return s->l[i].value;
    return NULL;
}

/* Whether two series have the same labels, in any order; `but`: a label to ignore. */
static inline bool expo_same(const struct expo_sample *a, const struct expo_sample *b, const char *but)
{
    size_t n = 0, m = 0;
    for (size_t i = 0; i < a->n_label; i++) {
        const char *v = expo_label_of(b, a->l[i].name);
        if (but && !strcmp(a->l[i].name, but))
            continue;
        if (!v || strcmp(v, a->l[i].value))
            return false;
        n++;
    }
    for (size_t i = 0; i < b->n_label; i++)
        m += !but || strcmp(b->l[i].name, but);
    return n == m;
}

static inline const char *expo_comment(struct expo *x, const char *p)
{
    char name[128];
    struct expo_family *f = x->n_family ? &x->f[x->n_family - 1] : NULL;
    size_t n = strcspn(p, "\n");
    if (!strncmp(p, "# HELP ", 7)) {
        const char *q = expo_name(x, name, sizeof name, p + 7, true);
        for (size_t i = 0; i < x->n_family; i++)
            if (!strcmp(x->f[i].name, name))
                EXPO_BAD("family %s twice", name);
        f = &x->f[x->n_family++];
        if (x->n_family == EXPO_FAMILIES || *q != ' ' || (size_t)(p + n - q) >= sizeof f->help)
            EXPO_BAD("HELP of %s", name);
        snprintf(f->name, sizeof f->name, "%s", name);
        memcpy(f->help, q + 1, (size_t)(p + n - q - 1));
    } else if (!strncmp(p, "# TYPE ", 7)) {
        const char *q = expo_name(x, name, sizeof name, p + 7, true);
        size_t k = (size_t)(p + n - q - 1);
        if (!f || strcmp(f->name, name) || *f->type || f->n_sample || *q != ' ' || k >= sizeof f->type)
            EXPO_BAD("TYPE of %s does not follow its HELP", name);
        memcpy(f->type, q + 1, k);
        if (strcmp(f->type, "counter") && strcmp(f->type, "gauge") && strcmp(f->type, "histogram"))
            EXPO_BAD("type %s", f->type);
    } else {
        EXPO_BAD("a comment of no use: %.40s", p);
    }
    return p + n + 1;
}

/* Which name of its family a sample has; gauges and counters have the family's own. */
static inline bool expo_belongs(const struct expo_family *f, const char *name)
{
    size_t n = strlen(f->name);
    if (strncmp(f->name, name, n))
        return false;
    if (strcmp(f->type, "histogram"))
        return !name[n];
    return !strcmp(name + n, "_bucket") || !strcmp(name + n, "_sum") || !strcmp(name + n, "_count");
}

static inline double expo_number(struct expo *x, const char *p, const char **end)
{
    char *stop;
    if (!strncmp(p, "+Inf", 4) || !strncmp(p, "-Inf", 4) || !strncmp(p, "NaN", 3)) {
        *end = p + (*p == 'N' ? 3 : 4);
        return *p == 'N' ? NAN : *p == '+' ? INFINITY : -INFINITY;
    }
    if (!isdigit((unsigned char)*p) && *p != '-')
        EXPO_BAD("no number: %.20s", p);
    double v = strtod(p, &stop);
    *end = stop;
    return v;
}

static inline const char *expo_sample_line(struct expo *x, const char *p)
{
    struct expo_sample *s = &x->s[x->n_sample++];
    struct expo_family *f = x->n_family ? &x->f[x->n_family - 1] : NULL;
    if (x->n_sample == EXPO_SAMPLES)
        EXPO_BAD("too many samples");
    memset(s, 0, sizeof *s);
    p = expo_name(x, s->name, sizeof s->name, p, true);
    p = expo_labels(x, s, p);
    if (*p != ' ')
        EXPO_BAD("after %s: %.10s", s->name, p);
    s->value = expo_number(x, p + 1, &p);
    if (*p != '\n')
        EXPO_BAD("after the value of %s: %.10s", s->name, p);
    if (!f || !*f->type || !expo_belongs(f, s->name))
        EXPO_BAD("%s is not of the family before it", s->name);
    if (!strcmp(f->type, "counter") && (s->value < 0 || isnan(s->value)))
        EXPO_BAD("counter %s is %g", s->name, s->value);
    f->n_sample++;
    s->family = (int)x->n_family - 1;
    for (struct expo_sample *o = s - 1; o >= x->s && o->family == s->family; o--)
        if (!strcmp(o->name, s->name) && expo_same(o, s, NULL))
            EXPO_BAD("series %s twice", s->name);
    return p + 1;
}

/* Checks a histogram from its first bucket at i to its count; returns the number of samples. */
static inline size_t expo_histogram(struct expo *x, size_t i)
{
    const struct expo_family *f = &x->f[x->s[i].family];
    double le = -INFINITY, n = 0;
    size_t k = i;
    for (; k < x->n_sample && !strcmp(x->s[k].name + strlen(f->name), "_bucket") && expo_same(&x->s[i], &x->s[k], "le");
         k++) {
        const char *text = expo_label_of(&x->s[k], "le"), *end;
        double v = text ? expo_number(x, text, &end) : NAN;
        if (!(v > le) || *end)
            fail_msg("%s: le %s is not above %g", f->name, text, le);
        if (x->s[k].value < n)
            fail_msg("%s: bucket %s has less than the one below", f->name, text);
        le = v;
        n = x->s[k].value;
    }
    if (k == i || !isinf(le))
        fail_msg("%s: no bucket +Inf", f->name);
    if (k + 1 >= x->n_sample || strcmp(x->s[k].name + strlen(f->name), "_sum") ||
        strcmp(x->s[k + 1].name + strlen(f->name), "_count") || !expo_same(&x->s[i], &x->s[k], "le") ||
        !expo_same(&x->s[i], &x->s[k + 1], "le"))
        fail_msg("%s: _sum and _count do not follow the buckets", f->name);
    if (x->s[k + 1].value != n)
        fail_msg("%s: _count %g, bucket +Inf %g", f->name, x->s[k + 1].value, n);
    return k + 2 - i;
}

static inline void expo_free(struct expo *x)
{
    free(x->s);
    x->s = NULL;
}

static inline void expo_read(struct expo *x, const char *text, size_t n)
{
    memset(x, 0, sizeof *x);
    x->s = calloc(EXPO_SAMPLES, sizeof *x->s);
    if (memchr(text, 0, n) || !n || text[n - 1] != '\n')
        fail_msg("the page has a NUL, or no line feed at its end");
    for (const char *p = text; p < text + n;) {
        x->n_line++;
        p = *p == '#' ? expo_comment(x, p) : expo_sample_line(x, p);
    }
    for (size_t i = 0; i < x->n_sample;)
        i += strcmp(x->f[x->s[i].family].type, "histogram") ? 1 : expo_histogram(x, i);
}

/* The value of the series with this name and at least these labels ("name=value,name=value"). -1: none. */
static inline const struct expo_sample *expo_find(const struct expo *x, const char *name, const char *labels)
{
    for (size_t i = 0; i < x->n_sample; i++) {
        char want[256], *save = NULL;
        bool ok = !strcmp(x->s[i].name, name);
        snprintf(want, sizeof want, "%s", labels);
        for (char *t = strtok_r(want, ",", &save); ok && t; t = strtok_r(NULL, ",", &save)) {
            char *eq = strchr(t, '=');
            *eq = 0;
            const char *v = expo_label_of(&x->s[i], t);
            ok = v && !strcmp(v, eq + 1);
        }
        if (ok)
            return &x->s[i];
    }
    return NULL;
}

static inline double expo_value(const struct expo *x, const char *name, const char *labels)
{
    const struct expo_sample *s = expo_find(x, name, labels);
    return s ? s->value : -1;
}

#endif
