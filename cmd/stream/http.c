/* The HTTP server: runs lib/api, which has its own event loop, with the options of the flags. */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "api/api.h"
#include "cmd/stream/stream.h"
#include "model/model.h"
#include "proc/notify.h"
#include "proc/proc.h"

#define CONNECTIONS 4096
#define DESCRIPTORS_OTHER 320 /* of files, services, and connections that are being closed */

struct ready {
    const struct http_flags *f;
    struct api *a;
    uint64_t lost; /* lines that could not be written to stderr */
};

/* Whether a write to stderr would not block: a pipe with any room accepts a line below PIPE_BUF at once. Also true if
 * stderr is broken. */
static bool takes_a_line(void)
{
    struct pollfd p = {.fd = STDERR_FILENO, .events = POLLOUT};
    return poll(&p, 1, 0) > 0;
}

static void log_lost(uint64_t *lost)
{
    if (!*lost || !takes_a_line())
        return;
    cli_warn(PROG, "log lines dropped because stderr was not read: %" PRIu64, *lost);
    *lost = 0;
}

/* The reader of stderr may be stopped, and clients must not wait for it: lines that would block are dropped. */
static void on_log(void *arg, const char *text)
{
    uint64_t *lost = arg;
    log_lost(lost);
    if (!*lost && takes_a_line())
        cli_warn(PROG, "%s", text);
    else
        ++*lost;
}

/* A line "HTTP=URL" or "OLLAMA=URL" for each address; a Unix socket is "unix:PATH". */
static void address_lines(char *out, size_t n, const struct ready *r)
{
    const char *address;
    size_t at = 0;
    *out = 0;
    for (size_t i = 0; (address = api_address(r->a, i)) && at < n; i++) {
        const char *key = api_address_dialect(r->a, i) == API_OLLAMA ? "OLLAMA" : "HTTP";
        const char *scheme = !strncmp(address, "unix:", 5) ? "" : r->f->tls_cert ? "https://" : "http://";
        at += (size_t)snprintf(out + at, n - at, "%s=%s%s\n", key, scheme, address);
    }
}

static void on_ready(void *arg)
{
    struct ready *r = arg;
    char text[256], addresses[PROC_READY_BYTES_MAX];
    struct err e, manager = {0};
    for (size_t i = 0; api_address(r->a, i); i++) {
        snprintf(text, sizeof text, "listening at %s", api_address(r->a, i));
        on_log(&r->lost, text);
    }
    address_lines(addresses, sizeof addresses, r);
    if (proc_ready_at(&e, &manager, r->f->ready_given ? (int)r->f->ready_fd : -1, addresses))
        on_log(&r->lost, e.text);
    if (manager.code)
        on_log(&r->lost, manager.text);
}

/* Blocks signals for all threads: they are read from the descriptor only. */
static int signals(struct err *e)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return fd < 0 ? err_sys(e, "signals") : fd;
}

/* Each client needs a descriptor. Fewer connections than requested are logged; beyond them clients get 503. */
static uint32_t connections(const struct http_flags *f, uint64_t *lost)
{
    char text[200];
    uint64_t limit = proc_descriptors(), most = limit > 2 * DESCRIPTORS_OTHER ? limit - DESCRIPTORS_OTHER : limit / 2;
    uint64_t want = f->connections ? f->connections : CONNECTIONS;
    if (want <= most)
        return (uint32_t)want;
    snprintf(text, sizeof text,
             "--max-connections %" PRIu64 " needs %" PRIu64 " file descriptors, the limit (ulimit -Hn) is %" PRIu64
             ": at most %" PRIu64 " connections",
             want, want + DESCRIPTORS_OTHER, limit, most);
    on_log(lost, text);
    return (uint32_t)most;
}

int http_serve(struct err *e, const struct http_flags *f, const struct service_opts *o, const char *model)
{
    char path[4096];
    struct ready r = {.f = f};
    struct api_opts a = {
        .sched = o->sched,
        .tokenize = o->tokenize,
        .listen = o->listen,
        .security = o->security,
        .kv = f->kv,
        .model = model,
        .name = f->name.v,
        .n_name = f->name.n,
        .http = f->listen.v,
        .n_http = f->listen.n,
        .http_fd = proc_kept_fd("http"),
        .ollama_fd = proc_kept_fd("ollama"),
        .ollama = f->ollama,
        .ollama_if_free = f->ollama_if_free,
        .key_file = f->key_file,
        .shared_cache = f->shared_cache,
        .metrics_by_key = f->metrics_by_key,
        .tls_cert = f->tls_cert,
        .tls_key = f->tls_key,
        .origins = f->origins,
        .hosts = f->hosts,
        .body_bytes_max = f->body_bytes,
        .bodies_bytes_max = f->bodies_bytes,
        .outputs_bytes_max = f->outputs_bytes,
        .prompts_bytes_max = f->prompts_bytes,
        .connections_max = connections(f, &r.lost),
        .address_connections_max = (uint32_t)f->address_connections,
        .keepalive_s = f->keepalive_s,
        .logprob_entries_max = f->logprob_entries,
        .waiting_max = (uint32_t)f->waiting,
        .deadline_s = o->deadline_s,
        .access_log = f->access_log,
        .log = on_log,
        .arg = &r.lost,
    };
    if (!model && model_default_path(e, path, sizeof path))
        return e->code;
    if (!model)
        a.model = path;
    if (!f->tls_cert != !f->tls_key)
        return err_set(e, ERR_USAGE, "--ssl-certfile and --ssl-keyfile must be given together");
    if (!f->key_file && (f->shared_cache || f->metrics_by_key))
        return err_set(e, ERR_USAGE, "--%s needs --api-key-file", f->shared_cache ? "shared-cache" : "metrics-by-key");
    int fd = signals(e);
    if (fd < 0)
        return e->code;
    int rc = api_open(e, &r.a, &a);
    rc = rc ? rc : api_run(e, r.a, fd, f->drain_s, on_ready, &r);
    api_close(r.a);
    log_lost(&r.lost);
    close(fd);
    return rc;
}
