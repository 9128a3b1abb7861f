/* Traces: arrival times, lengths, and which blocks the prompts share. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "cli/cli.h"
#include "cmd/simulate/simulate.h"

#define MOONCAKE_BLOCK 512 /* tokens of a hash id */
#define PER_ID (MOONCAKE_BLOCK / KV_BLOCK)
#define TOKENS_MAX (1u << 22)

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return (x ^ (x >> 31)) | 1;
}

void trace_free(struct trace *t)
{
    for (size_t i = 0; i < t->n; i++)
        free(t->v[i].block);
    free(t->v);
}

static int add(struct err *e, struct request **out, struct trace *t, uint64_t at_ns, uint32_t n_prompt, uint32_t n_out)
{
    int rc = vec_reserve(e, &t->v, &t->size, t->n + 1, sizeof *t->v, "the trace");
    if (rc)
        return rc;
    *out = &t->v[t->n++];
    **out = (struct request){.at_ns = at_ns, .n_prompt = n_prompt, .n_out = n_out};
    (*out)->block = calloc(n_prompt / KV_BLOCK + 1, sizeof *(*out)->block);
    return (*out)->block ? 0 : err_nomem(e, "the trace", n_prompt);
}

static int lengths(struct err *e, double prompt, double out)
{
    if (prompt >= 1 && out >= 0 && prompt <= TOKENS_MAX && out <= TOKENS_MAX)
        return 0;
    return err_set(e, ERR_NO, "%.0f prompt tokens and %.0f answer tokens: at least 1 and 0, at most %u", prompt, out,
                   TOKENS_MAX);
}

static int mooncake(struct err *e, struct trace *t, const char *line, size_t n, uint64_t from_ns)
{
    json_error_t at;
    json_t *j = json_loadb(line, n, 0, &at);
    double ms = json_number_value(json_object_get(j, "timestamp"));
    double prompt = json_number_value(json_object_get(j, "input_length"));
    double out = json_number_value(json_object_get(j, "output_length"));
    const json_t *ids = json_object_get(j, "hash_ids");
    struct request *r;
    int rc = j ? lengths(e, prompt, out) : err_set(e, ERR_NO, "column %d: %.200s", at.column, at.text);
    if (!rc && !(ms >= 0 && ms < 1e12))
        rc = err_set(e, ERR_NO, "timestamp %g: must be 0 to 1e12 ms", ms);
    rc = rc ? rc : add(e, &r, t, from_ns + (uint64_t)(ms * 1e6), (uint32_t)prompt, out < 1 ? 1 : (uint32_t)out);
    for (uint32_t b = 0; !rc && b < r->n_prompt / KV_BLOCK && b / PER_ID < json_array_size(ids); b++) {
        uint64_t id = (uint64_t)json_integer_value(json_array_get(ids, b / PER_ID));
        r->block[r->n_block++] = mix(id * PER_ID + b % PER_ID + 1);
    }
    json_decref(j);
    return rc;
}

/* 2023-11-16 18:17:03.9799600: the date is ignored, since a trace lasts an hour. */
static int azure(struct err *e, struct trace *t, const char *line, double *zero, uint64_t from_ns)
{
    int h, m, used = 0;
    double s, prompt, out;
    struct request *r;
    if (sscanf(line, "%*d-%*d-%*d %d:%d:%lf,%lf,%lf%n", &h, &m, &s, &prompt, &out, &used) != 5 || !used)
        return err_set(e, ERR_NO, "must be TIMESTAMP,ContextTokens,GeneratedTokens");
    double at = h * 3600.0 + m * 60.0 + s;
    *zero = *zero < 0 ? at : *zero;
    int rc = lengths(e, prompt, out);
    if (!rc && at < *zero)
        rc = err_set(e, ERR_NO, "the time is before that of the first request");
    rc = rc ? rc
            : add(e, &r, t, from_ns + (uint64_t)((at - *zero) * 1e9), (uint32_t)prompt, out < 1 ? 1 : (uint32_t)out);
    for (uint32_t b = 0; !rc && b < r->n_prompt / KV_BLOCK; b++) /* the file has no data about shared prefixes */
        r->block[r->n_block++] = mix(((uint64_t)t->n << 24) + b + ((uint64_t)1 << 60));
    return rc;
}

static int read_file(struct err *e, struct trace *t, const char *name, uint64_t limit, uint64_t from_ns)
{
    FILE *in = fopen(name, "r");
    char *line = NULL;
    size_t size = 0, n_line = 0;
    ssize_t n;
    double zero = -1;
    int rc = in ? 0 : err_sys(e, "%s", name);
    for (uint64_t taken = 0; !rc && taken < limit && (n = getline(&line, &size, in)) >= 0;) {
        n_line++;
        if (strspn(line, " \t\r\n") == (size_t)n || (n_line <= 2 && !strncmp(line, "TIMESTAMP", 9)) || *line == '#')
            continue;
        rc = *line == '{' ? mooncake(e, t, line, (size_t)n, from_ns) : azure(e, t, line, &zero, from_ns);
        if (rc)
            err_prefix(e, "%s: line %zu", name, n_line);
        taken++;
    }
    if (!rc && ferror(in))
        rc = err_sys(e, "%s", name);
    free(line);
    if (in)
        fclose(in);
    return rc;
}

/* ---- generated traces ---- */

struct generator {
    double n, rate, prompt, out, shared, groups, seed;
};

static int parse_generator(struct err *e, struct generator *g, const char *text)
{
    const struct {
        const char *name;
        double *v, lo, hi;
    } keys[] = {{"n", &g->n, 1, 1e8},      {"rate", &g->rate, 1e-3, 1e9}, {"prompt", &g->prompt, 1, 1e6},
                {"out", &g->out, 1, 1e6},  {"shared", &g->shared, 0, 1},  {"groups", &g->groups, 1, 1e6},
                {"seed", &g->seed, 0, 1e9}};
    for (const char *at = text; *at;) {
        char pair[80] = "";
        size_t n = strcspn(at, ","), k = 0;
        memcpy(pair, at, n < sizeof pair - 1 ? n : sizeof pair - 1);
        char *eq = strchr(pair, '=');
        if (eq)
            *eq = 0;
        while (eq && k < sizeof keys / sizeof *keys && strcmp(keys[k].name, pair))
            k++;
        if (!eq || k == sizeof keys / sizeof *keys)
            return err_set(e, ERR_USAGE,
                           "gen: '%.60s': must be KEY=NUMBER, with KEY n, rate, prompt, out, shared, groups or seed",
                           at);
        int rc = cli_f64(e, pair, eq + 1, keys[k].v, keys[k].lo, keys[k].hi);
        if (rc)
            return rc;
        at += n + (at[n] == ',');
    }
    return 0;
}

/* Poisson arrivals, lengths uniform from 0.5 to 1.5 of the mean; prompts of a group share a prefix. */
static int generate(struct err *e, struct trace *t, const char *text, uint64_t limit, uint64_t from_ns)
{
    struct generator g = {1000, 10, 1000, 100, 0, 10, 1};
    int rc = parse_generator(e, &g, text);
    uint64_t seed = (uint64_t)g.seed;
    double at = (double)from_ns;
    for (uint64_t i = 0; !rc && i < (uint64_t)g.n && i < limit; i++) {
        double u[4];
        for (int k = 0; k < 4; k++)
            u[k] = (double)(mix(++seed * 0x9e3779b97f4a7c15ull) >> 11) / 9007199254740992.0;
        struct request *r;
        at += -log(1 - u[0]) / g.rate * 1e9;
        rc = add(e, &r, t, (uint64_t)at, (uint32_t)(g.prompt * (0.5 + u[1])) + 1, (uint32_t)(g.out * (0.5 + u[2])) + 1);
        uint64_t group = (uint64_t)(u[3] * g.groups);
        for (uint32_t b = 0; !rc && b < r->n_prompt / KV_BLOCK; b++) {
            bool shared = b * KV_BLOCK < g.shared * g.prompt / 2 + g.shared * r->n_prompt / 2;
            r->block[r->n_block++] = mix(shared ? (group << 24) + b + ((uint64_t)2 << 60) + ((uint64_t)g.seed << 50)
                                                : ((uint64_t)t->n << 24) + b + ((uint64_t)1 << 60));
        }
    }
    return rc;
}

int trace_read(struct err *e, struct trace *t, const char *what, uint64_t limit)
{
    uint64_t from_ns = t->n ? t->v[t->n - 1].at_ns : 0;
    if (!strncmp(what, "gen:", 4))
        return generate(e, t, what + 4, limit, from_ns);
    return read_file(e, t, what, limit, from_ns);
}
