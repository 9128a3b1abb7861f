/* phasepipe cache: lists and prunes the packed weights. */
#include "model/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"

#define CACHE "phasepipe-cache"

static double mib(uint64_t bytes)
{
    return (double)bytes / 1048576.0;
}

static const char *plural(size_t n)
{
    return n == 1 ? "" : "s";
}

/* The longest column is the last one. */
static int list(struct err *e)
{
    char dir[4096], when[32];
    struct model_cached *c = NULL;
    size_t n = 0;
    uint64_t bytes = 0;
    int rc = model_cache_list(e, &c, &n, dir, sizeof dir);
    if (rc)
        return rc;
    if (n)
        printf("%12s  %-16s  %-6s  %s\n", "SIZE", "LAST USED", "IN USE", "MODEL");
    for (size_t i = 0; i < n; i++) {
        time_t t = (time_t)c[i].used_s;
        struct tm tm;
        strftime(when, sizeof when, "%Y-%m-%d %H:%M", localtime_r(&t, &tm));
        printf("%8.1f MiB  %-16s  %-6s  %s\n", mib(c[i].bytes), when, c[i].in_use ? "yes" : "no",
               c[i].model[0] ? c[i].model : "(packed by another version)");
        bytes += c[i].bytes;
    }
    printf("%zu packed model%s, %.1f MiB in %s\n", n, plural(n), mib(bytes), dir);
    free(c);
    return 0;
}

static int prune(struct err *e, const struct model_cache_bounds *b)
{
    struct model_cache_pruned p;
    int rc = model_cache_prune(e, &p, b);
    if (!rc)
        printf("removed %zu packed model%s, %.1f MiB; kept %zu, %.1f MiB\n", p.n, plural(p.n), mib(p.bytes), p.kept,
               mib(p.kept_bytes));
    return rc;
}

int cache(int argc, char **argv)
{
    struct err e = {0};
    bool pruning = false, has_bytes = false, has_age = false;
    uint64_t bytes = 0, days = 0;
    const struct cli_opt opts[] = {
        {0, "prune", CLI_FLAG, &pruning, NULL, "remove what is over the bounds and not in use", .lo = 0},
        {0, "max-bytes", CLI_SIZE, &bytes, "B", "bound of all packed models (64G, or a quarter of the file system)",
         .lo = 0, .given = &has_bytes},
        {0, "max-age", CLI_U64, &days, "DAYS", "bound of the days since the last use (30)", .lo = 0, .hi = 36500,
         .given = &has_age},
    };
    const struct cli_prog prog = {CACHE,
                                  "[--prune [--max-bytes B] [--max-age DAYS]]",
                                  "Lists and prunes the packed weights of models.",
                                  opts,
                                  sizeof opts / sizeof *opts,
                                  0};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    if (!r && !pruning && (has_bytes || has_age))
        r = err_set(&e, ERR_USAGE, "--max-bytes and --max-age are for --prune");
    struct model_cache_bounds b = model_cache_bounds();
    if (has_bytes)
        b.bytes = bytes;
    if (has_age)
        b.age_s = days * 86400;
    if (!r)
        r = pruning ? prune(&e, &b) : list(&e);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(CACHE, &e) : 0;
}
