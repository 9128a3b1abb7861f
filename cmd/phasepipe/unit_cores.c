/* phasepipe unit-cores: processors for the worker units of systemd, as phasepipe up gives them to its workers, in
 * drop-ins. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"

#define UNIT_CORES "phasepipe unit-cores"
#define CONF "cores.conf"

static bool is_worker_folder(const char *name)
{
    const char *end = strstr(name, ".service.d");
    return (!strncmp(name, "phasepipe-prefill@", 18) || !strncmp(name, "phasepipe-decode@", 17)) && end && !end[10];
}

/* Removes the drop-ins of an earlier call. Otherwise those for other pools could assign the same processors again. */
static int remove_former(struct err *e, const char *dir)
{
    char path[PATH_MAX];
    int rc = 0;
    DIR *d = opendir(dir);
    if (!d)
        return err_sys(e, "%s", dir);
    for (struct dirent *i; !rc && (i = readdir(d));) {
        if (!is_worker_folder(i->d_name) ||
            (size_t)snprintf(path, sizeof path, "%s/%s/" CONF, dir, i->d_name) >= sizeof path)
            continue;
        if (unlink(path) && errno != ENOENT)
            rc = err_sys(e, "%s", path);
        *strrchr(path, '/') = 0;
        (void)rmdir(path); /* unless it has other drop-ins */
    }
    closedir(d);
    return rc;
}

static int write_drop_in(struct err *e, const char *dir, const char *role, uint64_t i, const char *cpus)
{
    char path[PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/phasepipe-%s@%u.service.d", dir, role, (unsigned)i);
    if (n < 0 || (size_t)n + sizeof "/" CONF > sizeof path)
        return err_set(e, ERR_USAGE, "%s: the path exceeds %d bytes", dir, PATH_MAX - 1);
    if (mkdir(path, 0755) && errno != EEXIST)
        return err_sys(e, "%s", path);
    memcpy(path + n, "/" CONF, sizeof "/" CONF);
    FILE *f = fopen(path, "we");
    bool good = f && fprintf(f,
                             "# Written by phasepipe unit-cores.\n[Service]\n"
                             "Environment=\"CORES=--cpus %s --cores-file /run/phasepipe/cores\"\n",
                             cpus) > 0;
    if ((f && fclose(f)) || !good)
        return err_sys(e, "%s", path);
    printf("%s: processors %s\n", path, cpus);
    return 0;
}

static int run(struct err *e, const struct plan *p, const char *dir)
{
    char cpus[PLAN_CORES_BYTES];
    if (p->n_prefill + p->n_decode == 0)
        return err_set(e, ERR_USAGE, "no workers: --prefill or --decode must be at least 1");
    if (!plan_cores(cpus, sizeof cpus, p, p->n_prefill > 0, 0))
        return err_set(e, ERR_NO, "with a single processor workers are not given their own: nothing was written");
    int rc = remove_former(e, dir);
    for (uint64_t i = 0; i < p->n_prefill && !rc; i++)
        rc = write_drop_in(e, dir, "prefill", i, plan_cores(cpus, sizeof cpus, p, true, i));
    for (uint64_t i = 0; i < p->n_decode && !rc; i++)
        rc = write_drop_in(e, dir, "decode", i, plan_cores(cpus, sizeof cpus, p, false, i));
    return rc;
}

int unit_cores(int argc, char **argv)
{
    struct err e = {0};
    struct plan p = {.n_prefill = 1, .n_decode = 1};
    const char *dir = "/etc/systemd/system";
    const struct cli_opt opts[] = {
        {'P', "prefill", CLI_U64, &p.n_prefill, "N", "prefill workers: units phasepipe-prefill@0 to N-1 (1)", .lo = 0,
         .hi = WORKERS_MAX},
        {'D', "decode", CLI_U64, &p.n_decode, "N", "decode workers: units phasepipe-decode@0 to N-1 (1)", .lo = 0,
         .hi = WORKERS_MAX},
        {0, "dir", CLI_STR, &dir, "DIR", "directory of units (/etc/systemd/system)", .lo = 0},
    };
    const struct cli_prog prog = {UNIT_CORES,
                                  "[-P N] [-D N] [--dir DIR]",
                                  "Gives the worker units of systemd their processors, which they lend to each other.",
                                  opts,
                                  sizeof opts / sizeof *opts,
                                  0};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    r = r ? r : run(&e, &p, dir);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(UNIT_CORES, &e) : 0;
}
