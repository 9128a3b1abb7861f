#include "sched/main.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "proc/proc.h"
#include "proc/sandbox.h"
#include "sched/exec.h"
#include "sched/sched.h"
#include "sched/serve.h"

/* NAME=VALUE */
static int set_setting(struct err *e, struct sched *s, const char *text)
{
    char name[64];
    const char *eq = strchr(text, '=');
    double v;
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof name)
        return err_set(e, ERR_USAGE, "--knob %.80s: must be NAME=VALUE", text);
    memcpy(name, text, (size_t)(eq - text));
    name[eq - text] = 0;
    int rc = cli_f64(e, name, eq + 1, &v, 0, 1e15);
    return rc ? rc : sched_set(e, s, name, v);
}

struct flags {
    const char *listen, *run, *peer_tls;
    struct cli_list settings, kv;
    uint64_t ready_fd;
    bool ready_given;
    double drain_s;
    struct sched_filter filter;
    /* made from the flags above, for the service */
    char url[WIRE_URL_BYTES_MAX + 32], kv_url[WIRE_URL_BYTES_MAX + 32];
    char names[SCHED_SERVE_STORES_MAX][WIRE_NAME_BYTES_MAX + 1];
    struct sched_serve_store store[SCHED_SERVE_STORES_MAX];
    struct sched_serve_opts serve;
};

/* text: [NAME=]URL; without NAME the name of this host. */
static int add_store(struct err *e, struct flags *f, const char *text)
{
    const char *eq = strchr(text, '='), *url = eq ? eq + 1 : text;
    size_t n = eq ? (size_t)(eq - text) : strlen(proc_host()), i = f->serve.n_store;
    if (i == SCHED_SERVE_STORES_MAX)
        return err_set(e, ERR_USAGE, "--kv: at most %d stores", SCHED_SERVE_STORES_MAX);
    if (!n || n > WIRE_NAME_BYTES_MAX || strncmp(url, "unix:", 5) || !url[5])
        return err_set(e, ERR_USAGE, "--kv %.200s: must be [NAME=]unix:PATH, with a NAME of at most %d bytes", text,
                       WIRE_NAME_BYTES_MAX);
    memcpy(f->names[i], eq ? text : proc_host(), n);
    f->names[i][n] = 0;
    f->store[i] = (struct sched_serve_store){f->names[i], url};
    f->serve.n_store++;
    return 0;
}

/* The sockets are in the run directory unless a flag names them. */
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
    f->serve.drain_ns = (uint64_t)(f->drain_s * 1e9);
    f->serve.ready_fd = f->ready_given ? (int)f->ready_fd : -1;
    if (!rc && !f->listen && (f->ready_given || f->kv.n))
        rc = err_set(e, ERR_USAGE, "%s needs a service: give --listen or --run, too", f->kv.n ? "--kv" : "--ready-fd");
    if (!rc && f->listen && (f->filter.jsonl || f->filter.stat))
        rc = err_set(e, ERR_USAGE, "%s is for a filter; it does not go with --listen and --run",
                     f->filter.jsonl ? "--jsonl" : "--stat");
    return rc;
}

/* A service keeps the directory of its socket. The policy of sched-exec is a program, which needs more. */
static int enter_sandbox(struct err *e, const struct flags *f, const struct sched_policy *p)
{
    struct sandbox s;
    if (!f->listen || p->open == sched_policy_exec.open)
        return 0;
    sandbox_begin(&s);
    sandbox_socket(&s, f->listen);
    return sandbox_enter(e, &s);
}

static int run(struct err *e, const struct sched_policy *p, struct flags *f)
{
    struct sched *s;
    int rc = f->listen || f->filter.jsonl ? 0 : cli_no_tty(e, STDOUT_FILENO, "frames");
    rc = rc ? rc : sched_new(e, &s, p, NULL);
    if (rc)
        return rc;
    if (f->listen)
        rc = sched_set(e, s, "queue_bytes", (double)proc_memory_part(8, 0, (uint64_t)sched_get(s, "queue_bytes")));
    if (f->listen && !rc)
        rc = sched_set(e, s, "worker_bytes", (double)proc_memory_part(32, 0, (uint64_t)sched_get(s, "worker_bytes")));
    for (size_t i = 0; i < f->settings.n && !rc; i++)
        rc = set_setting(e, s, f->settings.v[i]);
    if (!rc && f->peer_tls)
        rc = peer_tls_open(e, &f->serve.security.tls, f->peer_tls, "sched");
    rc = rc ? rc : enter_sandbox(e, f, p);
    if (!rc && f->listen) {
        proc_wake_soon(true);
        rc = proc_signals(e);
    }
    if (!rc)
        rc = f->listen ? sched_serve(e, s, &f->serve) : sched_run_filter(e, s, &f->filter);
    sched_free(s);
    peer_tls_close(f->serve.security.tls);
    return rc;
}

int sched_main(struct err *e, int argc, char **argv, const char *prog, const char *about,
               const struct sched_policy *policy)
{
    void *arg = (void *)(uintptr_t)prog;
    struct flags f = {
        .filter = {.fd_in = STDIN_FILENO, .fd_out = STDOUT_FILENO, .prog = prog, .log = cli_log, .log_arg = arg},
        .serve = {.prog = prog, .log = cli_log, .log_arg = arg},
    };
    const struct cli_opt opts[] = {
        {0, "listen", CLI_STR, &f.listen, "URL", "run as a service at ipc://PATH or tls+tcp://HOST:PORT", .lo = 0},
        {0, "peer-tls", CLI_STR, &f.peer_tls, "DIR", "credentials for tls+tcp://: ca.pem and sched.pem", .lo = 0},
        {0, "peer-plaintext", CLI_FLAG, &f.serve.security.plaintext, NULL,
         "permit tcp:// beyond this host: neither encrypted nor authenticated", .lo = 0},
        {0, "kv", CLI_LIST, &f.kv, "[NAME=]URL", "track the blocks of a kvstore: unix:PATH, on host NAME", .lo = 0},
        {0, "run", CLI_STR, &f.run, "DIR", "runtime directory: use its sched.sock and kv.sock by default", .lo = 0},
        {0, "ready-fd", CLI_U64, &f.ready_fd, "N", "write a line to this descriptor when ready", .lo = 3, .hi = 1 << 20,
         .given = &f.ready_given},
        {0, "drain-seconds", CLI_F64, &f.drain_s, "N",
         "after SIGTERM let running requests end for N seconds (0: end at once)", .flo = 0, .fhi = 86400},
        {0, "jsonl", CLI_FLAG, &f.filter.jsonl, NULL, "read and write lines of JSON", .lo = 0},
        {'k', "knob", CLI_LIST, &f.settings, "NAME=VALUE", "change a setting of scheduler or policy", .lo = 0},
        {0, "stat", CLI_FLAG, &f.filter.stat, NULL, "write a stat frame at the end", .lo = 0},
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
    struct sched_policy with_arg = *policy;
    if (!rc && exec && !n_arg)
        rc = err_set(e, ERR_USAGE, "COMMAND is missing: the policy to run");
    if (!rc && exec)
        with_arg.arg = argv[1];
    rc = rc ? rc : service_flags(e, &f);
    rc = rc ? rc : run(e, &with_arg, &f);
    cli_list_free(&f.settings);
    cli_list_free(&f.kv);
    return rc;
}
