/* A run beside a saved one. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "cmd/bench/bench.h"

/* More of these is better; of what ends in _ms less is. */
static const char *const rates[] = {"request_throughput", "request_goodput", "output_throughput",
                                    "total_token_throughput", "max_output_tokens_per_s"};

/* 1: more is better, -1: less is better, 0: neither is judged. */
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

/* By how many percent it is worse than it was. */
static double worse(int way, double was, double is)
{
    if (!way || was <= 0 || is <= 0)
        return 0;
    return ((way > 0 ? was / is : is / was) - 1) * 100;
}

int compare_print(struct err *e, const struct result *r)
{
    json_error_t at;
    json_t *old = json_load_file(r->opts->compare, 0, &at);
    const char *key, *first_bad = NULL;
    json_t *value;
    void *now = NULL;
    double limit = r->opts->fail_above;
    int n_bad = 0;
    if (!json_is_object(old)) {
        json_decref(old);
        return err_set(e, ERR_NO, "%.300s: %s", r->opts->compare, old ? "no result of a run" : at.text);
    }
    int rc = save_json(e, &now, r);
    FILE *out = r->opts->save && !strcmp(r->opts->save, "-") ? stderr : stdout;
    if (!rc)
        fprintf(out, "\n%-36s %12s %12s %8s\n", "against the saved run", "was", "is", "ratio");
    json_object_foreach((json_t *)now, key, value)
    {
        const json_t *was = json_object_get(old, key);
        if (rc || !shown(key) || !json_is_number(value) || !json_is_number(was))
            continue;
        double a = json_number_value(was), b = json_number_value(value);
        bool bad = limit >= 0 && worse(better(key), a, b) > limit;
        fprintf(out, "%-36s %12.3f %12.3f ", key, a, b);
        if (a > 0)
            fprintf(out, "%8.3f%s\n", b / a, bad ? "  worse" : "");
        else
            fprintf(out, "%8s\n", "-");
        first_bad = bad && !first_bad ? key : first_bad;
        n_bad += bad;
    }
    if (!rc && n_bad)
        rc = err_set(e, ERR_NO, "%d figures are more than %g %% worse than in %.200s, %s first", n_bad, limit,
                     r->opts->compare, first_bad);
    json_decref(now);
    json_decref(old);
    return rc;
}
