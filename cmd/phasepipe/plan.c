/* The plan: the services, their command lines and their cores. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/api.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"
#include "http/http.h"
#include "model/model.h"
#include "proc/proc.h"
#include "text/text.h"

/* The order of a shutdown: the gateway refuses new requests and ends after its answers, then the scheduler ends, then
 * all others. */
enum { ORDER_GATEWAY, ORDER_SCHED, ORDER_WORKER, ORDER_TOKENIZE, ORDER_STORE };

static int words(struct err *e, struct command *c, const char *const *w)
{
    int rc = 0;
    for (; *w && !rc; w++)
        rc = command_add(e, c, *w);
    return rc;
}

/* Adds an option and its value, or nothing if value is NULL: the default of the program applies. */
static int option(struct err *e, struct command *c, const char *name, const char *value)
{
    return value ? words(e, c, (const char *const[]){name, value, NULL}) : 0;
}

static int begin(struct err *e, struct command *c, const char *program)
{
    char dir[PATH_MAX];
    int n;
    if (strchr(program, '/')) {
        n = snprintf(c->path, sizeof c->path, "%s", program);
    } else {
        if (programs_dir(e, dir, sizeof dir))
            return e->code;
        n = snprintf(c->path, sizeof c->path, "%s/%s", dir, program);
    }
    if (n < 0 || (size_t)n >= sizeof c->path)
        return err_set(e, ERR_USAGE, "the path of program %.80s exceeds %zu bytes", program, sizeof c->path - 1);
    if (access(c->path, X_OK))
        return err_sys(e, "%s", c->path);
    return command_add(e, c, command_program(c));
}

int plan_sched(struct err *e, struct command *out, const struct plan *p, const char *run, const char *policy)
{
    char program[PATH_MAX], listen[RUN_BYTES_MAX + 32], kv[RUN_BYTES_MAX + 32];
    char drain[24];
    size_t n = strcspn(policy, " ");
    if (n == 0 || n >= sizeof program)
        return err_set(e, ERR_USAGE, "'%.60s' does not name a policy", policy);
    memcpy(program, policy, n);
    program[n] = 0;
    snprintf(listen, sizeof listen, "ipc://%s/sched.sock", run);
    snprintf(kv, sizeof kv, "unix:%s/kv.sock", run);
    snprintf(drain, sizeof drain, "%" PRIu64, p->drain_s);
    int rc = begin(e, out, program);
    if (rc == ERR_SYS && errno == ENOENT)
        rc = err_set(e, ERR_USAGE, "unknown policy '%.60s'", program);
    if (!rc && policy[n])
        rc = command_add(e, out, policy + n + 1);
    /* Its SIGTERM is the end of all services; a restart kills it (crash_only). */
    return rc ? rc
              : words(e, out, (const char *const[]){"--listen", listen, "--kv", kv, "--drain-seconds", drain, NULL});
}

/* The KV kind of workers with --engine fake: (see decode(1)). */
static int fake_kind(struct err *e, struct command *c)
{
    char fingerprint[65];
    for (int i = 0; i < 32; i++)
        memcpy(fingerprint + 2 * i, "fa", 3);
    return words(e, c,
                 (const char *const[]){"--model-fingerprint", fingerprint, "--layers", "1", "--kv-heads", "1",
                                       "--head-dim", "8", "--arithmetic", "fake1", NULL});
}

static int plan_kvstore(struct err *e, struct command *c, const struct plan *p, const char *run)
{
    char url[RUN_BYTES_MAX + 32];
    snprintf(url, sizeof url, "unix:%s/kv.sock", run);
    int rc = begin(e, c, "kvstore");
    rc = rc ? rc : option(e, c, "--listen", url);
    if (!rc)
        rc = p->engine && !strncmp(p->engine, "fake:", 5) ? fake_kind(e, c) : option(e, c, "--model", p->model);
    rc = rc ? rc : option(e, c, "--kv-cache-dtype", p->kv_type);
    rc = rc ? rc : option(e, c, "--kv-cache-memory-bytes", p->kv_bytes);
    rc = rc ? rc : option(e, c, "--verify", p->verify);
    rc = rc ? rc : option(e, c, "--disk", p->disk);
    return rc ? rc : option(e, c, "--disk-size", p->disk_size);
}

static int plan_tokenize(struct err *e, struct command *c, const struct plan *p, const char *run)
{
    char url[RUN_BYTES_MAX + 32];
    snprintf(url, sizeof url, "ipc://%s/tokenize.sock", run);
    int rc = begin(e, c, "tokenize");
    rc = rc ? rc : option(e, c, "--listen", url);
    return rc ? rc : option(e, c, "--model", p->model);
}

static int plan_worker(struct err *e, struct service *v, const struct plan *p, const char *run, const char *cpus)
{
    char sched[RUN_BYTES_MAX + 32], kv[RUN_BYTES_MAX + 32];
    struct command *c = &v->command;
    snprintf(sched, sizeof sched, "ipc://%s/sched.sock", run);
    snprintf(kv, sizeof kv, "unix:%s/kv.sock", run);
    int rc = begin(e, c, v->role);
    rc = rc ? rc : words(e, c, (const char *const[]){"--sched", sched, "--kv", kv, "--name", v->name, NULL});
    rc = rc ? rc : option(e, c, "--model", p->model);
    rc = rc ? rc : option(e, c, "--kv-cache-dtype", p->kv_type);
    rc = rc ? rc : option(e, c, "--max-num-batched-tokens", p->batched);
    rc = rc ? rc : option(e, c, "--max-num-seqs", p->seqs);
    rc = rc ? rc : option(e, c, "--engine", p->engine);
    rc = rc || !p->verify_weights ? rc : command_add(e, c, "--verify-weights");
    rc = rc ? rc : option(e, c, "--cpus", cpus);
    return rc ? rc : option(e, c, "--cores", cpus ? p->cores : NULL);
}

const struct plan_http_option plan_http_option[PLAN_HTTP_OPTIONS] = {
    {"allowed-hosts", "LIST", "names allowed as Host at loopback addresses, separated by commas, or *"},
    {"sse-keepalive", "SECONDS", "comment in an event stream after so long without an event (15)"},
    {"max-body", "B", "limit of a request body (16M)"},
    {"max-bodies", "B", "limit of all request bodies together (a 16th of the memory)"},
    {"max-outputs", "B", "limit of all unread output together (a 16th of the memory)"},
    {"max-prompts", "B", "limit of the prompts of all requests together (an eighth of the memory)"},
    {"max-connections", "N", "limit of open connections (4096)"},
    {"max-connections-per-address", "N", "limit of open connections of a client address (3/4 of all)"},
    {"max-waiting", "N", "limit of answers without a first token (4096)"},
    {"max-logprob-entries", "N", "limit of log-probabilities in a response (262144)"},
};

/* The HTTP server. It inherits its sockets (up_http.c). */
static int plan_gateway(struct err *e, struct command *c, const struct plan *p, const char *run)
{
    char sched[RUN_BYTES_MAX + 32], tokenize[RUN_BYTES_MAX + 32], kv[RUN_BYTES_MAX + 32];
    snprintf(sched, sizeof sched, "ipc://%s/sched.sock", run);
    snprintf(tokenize, sizeof tokenize, "ipc://%s/tokenize.sock", run);
    snprintf(kv, sizeof kv, "unix:%s/kv.sock", run);
    int rc = begin(e, c, "stream");
    rc = rc ? rc : words(e, c, (const char *const[]){"--sched", sched, "--tokenize", tokenize, "--kv", kv, NULL});
    for (size_t i = 0; i < p->names.n && !rc; i++)
        rc = option(e, c, "--served-model-name", p->names.v[i]);
    rc = rc ? rc : option(e, c, "--model", p->model);
    rc = rc ? rc : option(e, c, "--api-key-file", p->key_file);
    rc = rc ? rc : option(e, c, "--ssl-certfile", p->tls_cert);
    rc = rc ? rc : option(e, c, "--ssl-keyfile", p->tls_key);
    rc = rc ? rc : option(e, c, "--allowed-origins", p->origins);
    for (size_t i = 0; i < PLAN_HTTP_OPTIONS && !rc; i++) {
        char name[64];
        snprintf(name, sizeof name, "--%s", plan_http_option[i].name);
        rc = option(e, c, name, p->http_option[i]);
    }
    if (!rc && p->shared_cache)
        rc = command_add(e, c, "--shared-cache");
    if (!rc && p->metrics_by_key)
        rc = command_add(e, c, "--metrics-by-key");
    return !rc && p->access_log ? command_add(e, c, "--access-log") : rc;
}

/* ---- files ---- */

int plan_check_files(struct err *e, const struct plan *p)
{
    const char *const file[] = {p->key_file, p->tls_cert, p->tls_key};
    char path[PATH_MAX];
    struct gguf *g = NULL;
    struct text *t = NULL;
    struct model_config c;
    for (size_t i = 0; i < sizeof file / sizeof *file; i++)
        if (file[i] && access(file[i], R_OK))
            return err_sys(e, "%s", file[i]);
    if (!p->tls_cert != !p->tls_key)
        return err_set(e, ERR_USAGE, "--ssl-certfile and --ssl-keyfile must be given together");
    if (p->tls_cert && http_check_tls(e, p->tls_cert, p->tls_key))
        return e->code;
    if (!p->key_file && (p->shared_cache || p->metrics_by_key))
        return err_set(e, ERR_USAGE, "--%s needs --api-key-file", p->shared_cache ? "shared-cache" : "metrics-by-key");
    if (p->key_file && api_check_keys(e, p->key_file, p->metrics_by_key))
        return e->code;
    if (!p->model && model_default_path(e, path, sizeof path))
        return e->code;
    int rc = gguf_open(e, &g, p->model ? p->model : path);
    rc = rc ? rc : model_config_read(e, &c, g);
    rc = rc ? rc : text_open(e, &t, g);
    text_free(t);
    gguf_free(g);
    return rc;
}

/* ---- cores ---- */

struct cpus {
    int cpu[CPU_SETSIZE];
    size_t n;
};

/* As many processors as proc_cpus counts: under a quota fewer than the affinity allows. With only one, threads are not
 * pinned, so that the kernel can schedule freely. */
static void cpus_of_process(struct cpus *out)
{
    cpu_set_t set;
    size_t n = (size_t)proc_cpus("");
    out->n = 0;
    if (n < 2 || sched_getaffinity(0, sizeof set, &set))
        return;
    for (int i = 0; i < CPU_SETSIZE && out->n < n; i++)
        if (CPU_ISSET(i, &set))
            out->cpu[out->n++] = i;
}

/* Prefill gets the first processors, in proportion to its number of workers; each pool gets at least one. */
static size_t cpus_of_prefill(const struct cpus *all, const struct plan *p)
{
    if (!p->n_prefill || !p->n_decode)
        return p->n_prefill ? all->n : 0;
    size_t n = (all->n * p->n_prefill + (p->n_prefill + p->n_decode) / 2) / (p->n_prefill + p->n_decode);
    return n < 1 ? 1 : n > all->n - 1 ? all->n - 1 : n;
}

/* "0,1,2": the processors of the i-th of n workers of a pool. More workers than processors share them. NULL: none. */
static const char *part(char *out, size_t n_out, const int *cpu, size_t n_cpu, size_t i, size_t n)
{
    size_t from = n_cpu >= n ? i * n_cpu / n : i % (n_cpu ? n_cpu : 1),
           to = n_cpu >= n ? (i + 1) * n_cpu / n : from + 1;
    size_t at = 0;
    if (!n_cpu)
        return NULL;
    for (size_t k = from; k < to && at + 8 < n_out; k++)
        at += (size_t)snprintf(out + at, n_out - at, "%s%d", k > from ? "," : "", cpu[k]);
    return out;
}

const char *plan_cores(char *out, size_t n, const struct plan *p, bool prefill, uint64_t i)
{
    struct cpus all;
    cpus_of_process(&all);
    size_t n_pre = all.n ? cpus_of_prefill(&all, p) : 0;
    return prefill ? part(out, n, all.cpu, n_pre, i, p->n_prefill)
                   : part(out, n, all.cpu + n_pre, all.n - n_pre, i, p->n_decode);
}

/* ---- all ---- */

static struct service *add(struct service *v, size_t *n, const char *name, const char *role, int shutdown_order)
{
    struct service *s = &v[(*n)++];
    *s = (struct service){.role = role, .shutdown_order = shutdown_order, .ready_fd = -1, .err_fd = -1};
    snprintf(s->name, sizeof s->name, "%s", name);
    return s;
}

static int plan_pool(struct err *e, struct service *v, size_t *n, const struct plan *p, const char *run,
                     const char *role, uint64_t n_worker, const int *cpu, size_t n_cpu)
{
    char name[32], cpus[PLAN_CORES_BYTES];
    int rc = 0;
    for (uint64_t i = 0; i < n_worker && !rc; i++) {
        snprintf(name, sizeof name, "%s-%u", role, (unsigned)i);
        struct service *s = add(v, n, name, role, ORDER_WORKER);
        s->needs_store = true;
        rc = plan_worker(e, s, p, run, part(cpus, sizeof cpus, cpu, n_cpu, i, n_worker));
    }
    return rc;
}

/* Services that are no workers run on the cores of prefill, so that decode has its cores for itself. */
static void pin(struct service *s, const int *cpu, size_t n)
{
    CPU_ZERO(&s->cpus);
    for (size_t i = 0; i < n; i++)
        CPU_SET((size_t)cpu[i], &s->cpus);
    s->pinned = n > 0;
}

int plan_services(struct err *e, struct service *v, size_t *n, const struct plan *p, const char *run)
{
    struct cpus all;
    *n = 0;
    if (p->n_prefill + p->n_decode == 0)
        return err_set(e, ERR_USAGE, "no workers: --prefill or --decode must be at least 1");
    cpus_of_process(&all);
    size_t n_pre = all.n ? cpus_of_prefill(&all, p) : 0;
    struct service *s = add(v, n, "kvstore", "store", ORDER_STORE);
    s->crash_only = true; /* its arena is in the descriptor store, and its clients reconnect */
    int rc = plan_kvstore(e, &s->command, p, run);
    pin(s, all.cpu, n_pre);
    s = add(v, n, "sched", "scheduler", ORDER_SCHED);
    s->crash_only = true; /* workers and gateways send the state to the next one */
    rc = rc ? rc : plan_sched(e, &s->command, p, run, p->sched);
    pin(s, all.cpu, n_pre);
    s = add(v, n, "tokenize", "tokenizer", ORDER_TOKENIZE);
    rc = rc ? rc : plan_tokenize(e, &s->command, p, run);
    pin(s, all.cpu, n_pre);
    if (strcmp(p->http, "off")) {
        s = add(v, n, "stream", "edge", ORDER_GATEWAY);
        rc = rc ? rc : plan_gateway(e, &s->command, p, run);
        pin(s, all.cpu, n_pre);
    }
    rc = rc ? rc : plan_pool(e, v, n, p, run, "prefill", p->n_prefill, all.cpu, n_pre);
    return rc ? rc : plan_pool(e, v, n, p, run, "decode", p->n_decode, all.cpu + n_pre, all.n - n_pre);
}
