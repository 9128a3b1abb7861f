#include "sched/main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "proc/proc.h"
#include "sched/exec.h"
#include "sched/sched.h"
#include "sched/serve.h"

/* NAME=VALUE */
static int set_knob(struct err *e, struct sched *s, const char *text)
{
    char name[64];
    const char *eq = strchr(text, '=');
    double v;
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof name)
        return err_set(e, ERR_USAGE, "--knob %.80s: NAME=VALUE should be here", text);
    memcpy(name, text, (size_t)(eq - text));
    name[eq - text] = 0;
    int rc = cli_f64(e, name, eq + 1, &v, 0, 1e15);
    return rc ? rc : sched_knob(e, s, name, v);
}

struct flags {
    const char *listen, *run;
    struct cli_list knobs, kv;
    uint64_t ready_fd;
    bool ready_given;
    struct sched_filter filter;
    /* what the service gets of them */
    char url[WIRE_URL_BYTES_MAX + 32], kv_url[WIRE_URL_BYTES_MAX + 32];
    char names[SCHED_SERVE_STORES_MAX][WIRE_NAME_BYTES_MAX + 1];
    struct sched_serve_store store[SCHED_SERVE_STORES_MAX];
    struct sched_serve_opts serve;
};

/* [NAME=]URL; the store of a host is called like the host. */
static int add_store(struct err *e, struct flags *f, const char *text)
{
    const char *eq = strchr(text, '='), *url = eq ? eq + 1 : text;
    size_t n = eq ? (size_t)(eq - text) : strlen(proc_host()), i = f->serve.n_store;
    if (i == SCHED_SERVE_STORES_MAX)
        return err_set(e, ERR_USAGE, "--kv: at most %d stores", SCHED_SERVE_STORES_MAX);
    if (!n || n > WIRE_NAME_BYTES_MAX || strncmp(url, "unix:", 5) || !url[5])
        return err_set(e, ERR_USAGE, "--kv %.200s: [NAME=]unix:PATH should be here, NAME of at most %d bytes", text,
                       WIRE_NAME_BYTES_MAX);
    memcpy(f->names[i], eq ? text : proc_host(), n);
    f->names[i][n] = 0;
    f->store[i] = (struct sched_serve_store){f->names[i], url};
    f->serve.n_store++;
    return 0;
}

/* The run directory says where the sockets are, where no flag does. */
static int service_flags(struct err *e, struct flags *f)
{
    int rc = 0;
    const char *run = f->run;
    if (run && strlen(run) > WIRE_URL_BYTES_MAX)
        return err_set(e, ERR_USAGE, "--run: the path has more than %d bytes", WIRE_URL_BYTES_MAX);
    if (run && !f->listen) {
        snprintf(f->url, sizeof f->url, "ipc://%.*s/sched.sock", WIRE_URL_BYTES_MAX, run);
        f->listen = f->url;
    }
    for (size_t i = 0; i < f->kv.n && !rc; i++)
        rc = add_store(e, f, f->kv.v[i]);
    if (!rc && run && !f->kv.n) {
        snprintf(f->kv_url, sizeof f->kv_url, "unix:%.*s/kv.sock", WIRE_URL_BYTES_MAX, run);
        rc = add_store(e, f, f->kv_url);
    }
    f->serve.store = f->store;
    f->serve.url = f->listen;
    f->serve.ready_fd = f->ready_given ? (int)f->ready_fd : -1;
    if (!rc && !f->listen && (f->ready_given || f->kv.n))
        rc =
            err_set(e, ERR_USAGE, "%s is for a service: --listen or --run is missing", f->kv.n ? "--kv" : "--ready-fd");
    if (!rc && f->listen && (f->filter.jsonl || f->filter.stat))
        rc = err_set(e, ERR_USAGE, "%s is for a filter, not for a service", f->filter.jsonl ? "--jsonl" : "--stat");
    return rc;
}

static int run(struct err *e, const struct sched_policy *p, struct flags *f)
{
    struct sched *s;
    int rc = f->listen || f->filter.jsonl ? 0 : cli_no_tty(e, STDOUT_FILENO, "frames");
    rc = rc ? rc : sched_new(e, &s, p, NULL);
    if (rc)
        return rc;
    for (size_t i = 0; i < f->knobs.n && !rc; i++)
        rc = set_knob(e, s, f->knobs.v[i]);
    if (!rc && f->listen) {
        proc_wake_soon(true);
        rc = proc_signals(e);
    }
    if (!rc)
        rc = f->listen ? sched_serve(e, s, &f->serve) : sched_run_filter(e, s, &f->filter);
    sched_free(s);
    return rc;
}

int sched_main(struct err *e, int argc, char **argv, const char *prog, const char *about,
               const struct sched_policy *policy)
{
    void *arg = (void *)(uintptr_t)prog;
    struct flags f = {
        .filter = {.fd_in = STDIN_FILENO, .fd_out = STDOUT_FILENO, .prog = prog, .say = cli_say, .say_arg = arg},
        .serve = {.prog = prog, .say = cli_say, .say_arg = arg},
    };
    const struct cli_opt opts[] = {
        {.name = "listen",
         .kind = CLI_STR,
         .out = &f.listen,
         .arg = "URL",
         .help = "run as a service there: ipc://PATH or tcp://HOST:PORT"},
        {.name = "kv",
         .kind = CLI_LIST,
         .out = &f.kv,
         .arg = "[NAME=]URL",
         .help = "a kvstore whose blocks are to be known: unix:PATH, as workers of host NAME use it"},
        {.name = "run",
         .kind = CLI_STR,
         .out = &f.run,
         .arg = "DIR",
         .help = "runtime directory: sched.sock and kv.sock there, where no flag says otherwise"},
        {.name = "ready-fd",
         .kind = CLI_U64,
         .out = &f.ready_fd,
         .arg = "N",
         .help = "write a line there when ready",
         .lo = 3,
         .hi = 1 << 20,
         .given = &f.ready_given},
        {.name = "jsonl", .kind = CLI_FLAG, .out = &f.filter.jsonl, .help = "events and decisions as lines of JSON"},
        {.letter = 'k',
         .name = "knob",
         .kind = CLI_LIST,
         .out = &f.knobs,
         .arg = "NAME=VALUE",
         .help = "set a knob of machine or policy"},
        {.name = "stat", .kind = CLI_FLAG, .out = &f.filter.stat, .help = "end with a stat frame: the accounting"},
    };
    bool exec = policy == &sched_policy_exec;
    const struct cli_prog p = {prog,
                               exec ? "[--listen URL | --run DIR | < events > decisions] [options] COMMAND"
                                    : "[--listen URL | --run DIR | < events > decisions] [options]",
                               about,
                               opts,
                               sizeof opts / sizeof *opts,
                               exec};
    size_t n_arg;
    int rc = cli_parse(e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return rc;
    signal(SIGPIPE, SIG_IGN);
    struct sched_policy mine = *policy;
    if (!rc && exec && !n_arg)
        rc = err_set(e, ERR_USAGE, "the command of the policy is missing");
    if (!rc && exec)
        mine.arg = argv[1];
    rc = rc ? rc : service_flags(e, &f);
    rc = rc ? rc : run(e, &mine, &f);
    cli_list_free(&f.knobs);
    cli_list_free(&f.kv);
    return rc;
}
