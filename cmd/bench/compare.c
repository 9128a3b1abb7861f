/* Compares a run with a saved one. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"

/* Higher is better for these figures; lower is better for those ending in _ms. */
static const char *const rates[] = {"request_throughput", "request_goodput", "output_throughput",
                                    "total_token_throughput", "max_output_tokens_per_s"};

/* 1: higher is better, -1: lower is better, 0: not judged. */
static int better(const char *key)
{
    size_t n = strlen(key);
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++)
        if (!strcmp(key, rates[i]))
            return 1;
    return n > 3 && !strcmp(key + n - 3, "_ms") && strncmp(key, "std_", 4) ? -1 : 0;
}

static bool shown(const char *key)
{
    return better(key) || !strncmp(key, "std_", 4) || !strcmp(key, "duration") || !strcmp(key, "completed") ||
           !strcmp(key, "failed");
}

/* By how many percent the figure is worse; infinite if a rate fell to 0 or a latency rose from 0. */
static double worse(int way, double saved, double now)
{
    double less = way > 0 ? now : saved, more = way > 0 ? saved : now;
    if (!way || more <= 0)
        return 0;
    return less > 0 ? (more / less - 1) * 100 : INFINITY;
}

/* The figures of a run of no requests, which has the keys of any run with these options. */
static int own_keys(struct err *e, void **out, const struct opts *o)
{
    static const struct server nobody;
    static const struct run nothing;
    struct result r;
    *out = NULL;
    int rc = result_make(e, &r, o, &nobody, &nothing);
    rc = rc ? rc : save_json(e, out, &r);
    result_free(&r);
    return rc;
}

int compare_open(struct err *e, void **saved, const struct opts *o)
{
    json_error_t at;
    json_t *old = json_load_file(o->compare, 0, &at);
    const char *key;
    json_t *value;
    void *own = NULL;
    size_t n = 0;
    *saved = old;
    if (!json_is_object(old))
        return err_set(e, ERR_NO, "%.300s: %s", o->compare, old ? "not a result of bench" : at.text);
    int rc = own_keys(e, &own, o);
    json_object_foreach(old, key, value) n +=
        better(key) && json_is_number(value) && json_is_number(json_object_get(own, key));
    json_decref(own);
    return rc || n ? rc : err_set(e, ERR_NO, "%.300s: no figure to compare with this run", o->compare);
}

int compare_print(struct err *e, const struct result *r)
{
    const char *key, *first_bad = NULL;
    json_t *value;
    void *now = NULL;
    double limit = r->opts->fail_above;
    int n_bad = 0;
    int rc = save_json(e, &now, r);
    FILE *out = r->opts->save && !strcmp(r->opts->save, "-") ? stderr : stdout;
    if (!rc)
        fprintf(out, "\n%-36s %12s %12s %8s\n", "against the saved run", "saved", "this run", "ratio");
    json_object_foreach((json_t *)now, key, value)
    {
        const json_t *saved = json_object_get(r->saved, key);
        if (rc || !shown(key) || !json_is_number(value) || !json_is_number(saved))
            continue;
        double a = json_number_value(saved), b = json_number_value(value);
        bool bad = limit >= 0 && worse(better(key), a, b) > limit;
        fprintf(out, "%-36s %12.3f %12.3f ", key, a, b);
        if (a > 0)
            fprintf(out, "%8.3f", b / a);
        else
            fprintf(out, "%8s", "-");
        fprintf(out, "%s\n", bad ? "  worse" : "");
        first_bad = bad && !first_bad ? key : first_bad;
        n_bad += bad;
    }
    if (!rc && n_bad)
        rc = err_set(e, ERR_NO, "%d figures are more than %g %% worse than in %.200s, %s first", n_bad, limit,
                     r->opts->compare, first_bad);
    json_decref(now);
    return rc;
}
