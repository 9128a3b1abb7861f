/* phasepipe up: the services of a runtime directory, in the terminal or detached. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"
#include "proc/notify.h"
#include "proc/proc.h"

static int parse(struct err *e, struct plan *p, int argc, char **argv)
{
    const struct cli_opt own[] = {
        {'m', "model", CLI_STR, &p->model, "MODEL", "GGUF file (the default model of the cache directory)", .lo = 0},
        {'P', "prefill", CLI_U64, &p->n_prefill, "N", "prefill workers (1)", .lo = 0, .hi = WORKERS_MAX},
        {'D', "decode", CLI_U64, &p->n_decode, "N", "decode workers (1)", .lo = 0, .hi = WORKERS_MAX},
        {0, "run", CLI_STR, &p->run, "DIR", "runtime directory ($XDG_RUNTIME_DIR/phasepipe)", .lo = 0},
        {0, "detach", CLI_FLAG, &p->detach, NULL, "return when all are ready; logs go to DIR/log", .lo = 0},
        {0, "sched", CLI_STR, &p->sched, "POLICY", "scheduler program, and an argument after a space (sched)", .lo = 0},
        {0, "any-policy", CLI_FLAG, &p->any_policy, NULL, "let ctl sched-swap start any program as policy", .lo = 0},
        {0, "kv-cache-dtype", CLI_CHOICE, &p->kv_type, "TYPE", "auto (int8), f16, bf16 or int8",
         .choices = "auto|f16|bf16|int8"},
        {0, "kv-cache-memory-bytes", CLI_STR, &p->kv_bytes, "B",
         "memory for KV blocks (1 GiB, or a quarter of the memory)", .lo = 0},
        {0, "disk", CLI_STR, &p->disk, "FILE", "store KV blocks in this file too", .lo = 0},
        {0, "verify", CLI_CHOICE, &p->verify, "WHEN", "when kvstore compares blocks with their checksums (first)",
         .choices = "none|publish|first|always"},
        {0, "verify-weights", CLI_FLAG, &p->verify_weights, NULL,
         "workers compare all packed weights with their checksums at each start", .lo = 0},
        {0, "disk-size", CLI_STR, &p->disk_size, "B", "maximum size of that file (16G)", .lo = 0},
        {0, "max-num-batched-tokens", CLI_STR, &p->batched, "N", "maximum rows of a step (512)", .lo = 0},
        {0, "max-num-seqs", CLI_STR, &p->seqs, "N", "sequences that a worker decodes at once (64)", .lo = 0},
        {0, "cores", CLI_CHOICE, &p->cores, "HOW", "lease (a pool lends its idle cores) or fixed (lease)",
         .choices = "lease|fixed"},
        {0, "engine", CLI_STR, &p->engine, "SPEC", "engine of the workers, fake:COEFFICIENTS for tests", .lo = 0},
        {0, "http", CLI_STR, &p->http, "ADDR",
         "OpenAI API and metrics at [HOST:]PORT, unix:PATH or off (127.0.0.1:8000)", .lo = 0},
        {0, "ollama", CLI_STR, &p->ollama, "ADDR", "Ollama API, or off (127.0.0.1:11434 if that is free)", .lo = 0,
         .given = &p->ollama_given},
        {0, "served-model-name", CLI_LIST, &p->names, "NAME", "name of the model in requests; further ones are aliases",
         .lo = 0},
        {0, "api-key-file", CLI_STR, &p->key_file, "FILE",
         "keys, one a line, with their limits; requests without a key are refused", .lo = 0},
        {0, "shared-cache", CLI_FLAG, &p->shared_cache, NULL, "let different API keys share cached prompts", .lo = 0},
        {0, "metrics-by-key", CLI_FLAG, &p->metrics_by_key, NULL,
         "metrics with the names of API keys, for keys with role=admin", .lo = 0},
        {0, "ssl-certfile", CLI_STR, &p->tls_cert, "FILE", "certificates in PEM: HTTPS", .lo = 0},
        {0, "ssl-keyfile", CLI_STR, &p->tls_key, "FILE", "private key of the certificate", .lo = 0},
        {0, "allowed-origins", CLI_STR, &p->origins, "LIST", "allowed origins (CORS), separated by commas, or *",
         .lo = 0},
        {0, "access-log", CLI_FLAG, &p->access_log, NULL, "log a line for each HTTP response", .lo = 0},
        {0, "watchdog-seconds", CLI_U64, &p->watchdog_s, "N",
         "services that hang for longer are killed and started again; 0: never (10)", .lo = 0, .hi = 86400},
        {0, "drain-seconds", CLI_U64, &p->drain_s, "N", "services that run longer after SIGTERM are killed (40)",
         .lo = 0, .hi = 86400},
    };
    struct cli_opt opts[sizeof own / sizeof *own + PLAN_HTTP_OPTIONS];
    memcpy(opts, own, sizeof own);
    for (size_t i = 0; i < PLAN_HTTP_OPTIONS; i++)
        opts[sizeof own / sizeof *own + i] = (struct cli_opt){.name = plan_http_option[i].name,
                                                              .kind = CLI_STR,
                                                              .out = &p->http_option[i],
                                                              .arg = plan_http_option[i].arg,
                                                              .help = plan_http_option[i].help};
    const struct cli_prog prog = {UP,
                                  "[-m MODEL] [-P N] [-D N] [--run DIR] [--detach] [OPTION ...]",
                                  "Starts the services, and restarts those that crash.",
                                  opts,
                                  sizeof opts / sizeof *opts,
                                  0};
    size_t n_arg;
    uint64_t v;
    int r = cli_parse(e, &prog, argc, argv, &n_arg);
    if (!r && p->kv_bytes)
        r = cli_size(e, "--kv-cache-memory-bytes", p->kv_bytes, &v);
    if (!r && p->disk_size)
        r = cli_size(e, "--disk-size", p->disk_size, &v);
    if (!r && p->batched)
        r = cli_u64(e, "--max-num-batched-tokens", p->batched, &v, 1, 65536);
    if (!r && p->seqs)
        r = cli_u64(e, "--max-num-seqs", p->seqs, &v, 1, 4096);
    return r;
}

/* ---- with --detach ---- */

struct parting {
    int words;  /* stderr of the supervisor, until it is ready */
    int status; /* the exit code as an int */
};

static void tell_status(const struct parting *p, int status)
{
    if (write(p->status, &status, sizeof status) < 0)
        return; /* the starting process has ended */
    close(p->status);
}

/* Lets the process that started it exit. */
static void parted(void *arg)
{
    struct parting *p = arg;
    struct err e = {0};
    if (proc_notify(&e, "READY=1", -1))
        cli_warn(UP, "%s", e.text);
    if (p->words < 0)
        return;
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    dup2(null, STDERR_FILENO);
    close(null);
    tell_status(p, 0);
    p->status = -1;
}

static volatile sig_atomic_t waiting_for;

static void pass_on(int sig)
{
    (void)sig;
    if (waiting_for)
        kill((pid_t)waiting_for, SIGTERM);
}

/* In the starting process: copies the output of the supervisor until it is ready or has failed. */
static int wait_ready(pid_t pid, int words, int status)
{
    char text[1024];
    ssize_t n;
    int code = ERR_SYS;
    struct sigaction pass = {.sa_handler = pass_on};
    waiting_for = pid;
    sigaction(SIGINT, &pass, NULL);
    sigaction(SIGTERM, &pass, NULL);
    while ((n = read(words, text, sizeof text)) > 0 || (n < 0 && errno == EINTR))
        if (n > 0 && write(STDERR_FILENO, text, (size_t)n) < 0)
            break;
    while ((n = read(status, &code, sizeof code)) < 0 && errno == EINTR)
        ;
    if (n != (ssize_t)sizeof code) {
        cli_warn(UP, "the supervisor was killed before all services were ready");
        return ERR_SYS;
    }
    return code;
}

/* In the supervisor: detaches from terminal, session and inherited descriptors. */
static void part(struct parting *p, int words, int status)
{
    int null = open("/dev/null", O_RDWR);
    setsid();
    int high_words = fcntl(words, F_DUPFD, 64), high_status = fcntl(status, F_DUPFD, 64);
    dup2(null, STDIN_FILENO);
    dup2(null, STDOUT_FILENO);
    dup2(high_words, STDERR_FILENO);
    p->words = STDERR_FILENO;
    p->status = STDERR_FILENO + 1;
    dup3(high_status, p->status, O_CLOEXEC);
    close_range(STDERR_FILENO + 2, ~0u, 0);
}

/* ---- the supervisor ---- */

static int supervise(struct err *e, struct super *s, const struct plan *p)
{
    bool made = false;
    size_t stale = 0;
    int lock = -1;
    int rc = run_make(e, s->run, &made, p->run);
    rc = rc ? rc : run_lock(e, &lock, s->run);
    bool held = !rc;
    rc = rc ? rc : log_open(e, &s->log, s->run, "up", p->detach);
    rc = rc ? rc : plan_services(e, s->service, &s->n, p, s->run);
    rc = rc ? rc : plan_check_files(e, p);
    rc = rc ? rc : state_end_stale(e, &stale, s->run);
    if (!rc && stale)
        super_log(s, "adopted %s; %zu processes of a killed supervisor have ended", s->run, stale);
    if (!rc)
        run_fresh(s->run);
    rc = rc ? rc
            : http_front_bind(
                  e,
                  s); /* after all processes of an earlier supervisor have ended: they may have used the same address */
    rc = rc ? rc : super_run(e, s);
    http_front_close(s);
    if (!rc && p->detach && !s->all_ready)
        rc = err_set(e, ERR_NO, "ended before all services were ready");
    if (held)
        run_clean(s->run, made);
    if (rc && *s->log.path)
        log_line(&s->log, "up", e->text, strlen(e->text));
    log_close(&s->log);
    if (held) { /* `phasepipe down` waits for this response, so it is sent last */
        close(lock);
        control_end(s);
    }
    return rc;
}

int up(int argc, char **argv)
{
    struct err e = {0};
    struct plan p = {.sched = "sched",
                     .n_prefill = 1,
                     .n_decode = 1,
                     .cores = "lease",
                     .http = "127.0.0.1:8000",
                     .ollama = "127.0.0.1:11434",
                     .drain_s = DRAIN_MS / 1000,
                     .watchdog_s = WATCHDOG_S};
    struct parting parting = {-1, -1};
    int words[2], status[2];
    const char *http = getenv("PHASEPIPE_HTTP");
    (void)proc_descriptors();
    if (http && *http) {
        p.http = http;
        p.ollama = "off";
    }
    int r = parse(&e, &p, argc, argv);
    if (r == CLI_DONE) {
        cli_list_free(&p.names);
        return 0;
    }
    if (!r && p.detach && (pipe2(words, O_CLOEXEC) || pipe2(status, O_CLOEXEC)))
        r = err_sys(&e, "pipe");
    if (!r && p.detach) {
        pid_t pid = fork();
        if (pid > 0) {
            close(words[1]);
            close(status[1]);
            cli_list_free(&p.names);
            return wait_ready(pid, words[0], status[0]);
        }
        r = pid < 0 ? err_sys(&e, "fork") : 0;
        if (!r)
            part(&parting, words[1], status[1]);
    }
    struct super *s = r ? NULL : calloc(1, sizeof *s);
    if (!r && !s)
        r = err_nomem(&e, "supervisor", sizeof *s);
    if (!r) {
        s->plan = &p;
        s->ready = parted;
        s->ready_arg = &parting;
        for (size_t i = 0; i < CLIENTS_MAX; i++)
            s->client[i].fd = -1;
        r = supervise(&e, s, &p);
    }
    free(s);
    cli_list_free(&p.names);
    int code = r ? cli_fail(UP, &e) : 0;
    if (parting.status >= 0)
        tell_status(&parting, code);
    return code;
}
