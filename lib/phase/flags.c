/* The flags that prefill and decode share. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "model/model.h"
#include "phase/phase.h"
#include "proc/sandbox.h"

void phase_flags_table(struct cli_opt *table, struct phase_flags *f)
{
    struct phase_opts *o = &f->o;
    const struct cli_opt opts[PHASE_FLAGS] = {
        {'m', "model", CLI_STR, &o->model, "MODEL", "GGUF file (default: the default model in the cache directory)",
         .lo = 0},
        {0, "verify-weights", CLI_FLAG, &o->verify_weights, NULL,
         "compare all packed weights with their checksums, even if that was done since the host started", .lo = 0},
        {0, "max-num-batched-tokens", CLI_U64, &o->batched_tokens, "N", "rows of a step at most (512)", .lo = 1,
         .hi = 65536},
        {0, "max-model-len", CLI_U64, &o->model_len, "N", "context length, if smaller than the model's", .lo = 1,
         .hi = UINT32_MAX},
        {0, "kv-cache-dtype", CLI_CHOICE, &o->kv_type, "TYPE", "auto (int8), f16, bf16 or int8",
         .choices = "auto|f16|bf16|int8"},
        {0, "kv-cache-memory-bytes", CLI_SIZE, &o->kv_bytes, "B", "budget for KV blocks (a quarter of the memory)",
         .lo = 0},
        {0, "threads", CLI_U64, &f->threads, "N", "compute threads (by affinity and quota)", .lo = 1, .hi = 1024},
        {0, "profile", CLI_FLAG, &o->profile, NULL, "at the end, time of each part of the steps on stderr", .lo = 0},
        {0, "engine", CLI_STR, &o->engine, "ENGINE",
         "fake:A,B,C,D,E,F: computes nothing; a step takes the time that these coefficients (ns) give", .lo = 0},
        {0, "sched", CLI_STR, &o->sched, "URL", "run as a worker of this scheduler", .lo = 0},
        {0, "peer-tls", CLI_STR, &f->peer_tls, "DIR", "credentials for tls+tcp://: ca.pem and worker.pem", .lo = 0},
        {0, "peer-plaintext", CLI_FLAG, &o->security.plaintext, NULL,
         "permit tcp:// beyond this host: neither encrypted nor authenticated", .lo = 0},
        {0, "kv", CLI_STR, &o->kv, "URL", "store KV in this kvstore, unix:PATH", .lo = 0},
        {0, "run", CLI_STR, &f->run, "DIR", "directory of the services' sockets, for both", .lo = 0},
        {0, "name", CLI_STR, &o->name, "NAME", "of this worker (PROGRAM-PID@HOST)", .lo = 0},
        {0, "store-name", CLI_STR, &o->store, "NAME", "of its kvstore, as the scheduler knows it (the host's)",
         .lo = 0},
        {0, "cpus", CLI_STR, &o->cpus, "LIST", "own processors, like 0,2-3: a compute thread pinned to each", .lo = 0},
        {0, "cores", CLI_CHOICE, &o->cores, "HOW", "with --cpus: lease (borrow and lend idle ones) or fixed (lease)",
         .choices = "lease|fixed"},
        {0, "cores-file", CLI_STR, &o->cores_file, "FILE", "file in which workers of a host share their idle cores",
         .lo = 0},
        {0, "drain-timeout", CLI_U64, &o->drain_s, "SECONDS", "seconds for running requests after SIGTERM (30)",
         .lo = 0, .hi = 86400},
        {0, "ready-fd", CLI_U64, &f->ready_fd, "N", "descriptor for the readiness message", .lo = 3, .hi = 1 << 20,
         .given = &f->has_ready},
        {'v', "verbose", CLI_FLAG, &o->verbose, NULL, "log model, instruction set, threads, KV budget at start",
         .lo = 0},
    };
    memcpy(table, opts, sizeof opts);
}

bool phase_flags_service(const struct phase_flags *f)
{
    return f->o.sched || f->o.kv || f->run;
}

/* The default URL, in the services' directory. */
static int default_url(struct err *e, const char **out, char *buf, size_t n, const char *run, const char *scheme,
                       const char *socket, const char *flag)
{
    if (*out)
        return 0;
    if (!run)
        return err_set(e, ERR_USAGE, "%s or --run is required", flag);
    int k = snprintf(buf, n, "%s%s/%s", scheme, run, socket);
    if (k < 0 || (size_t)k >= n)
        return err_set(e, ERR_USAGE, "--run %s: the path of a socket in it exceeds %zu bytes", run, n - 1);
    *out = buf;
    return 0;
}

static int name_fits(struct err *e, const char *flag, const char *name)
{
    bool good = !name || (*name && strlen(name) <= 64);
    for (const char *c = name; c && *c; c++)
        good = good && *c > ' ' && *c <= '~';
    return good ? 0 : err_set(e, ERR_USAGE, "%s: must be 1 to 64 printable ASCII characters without blanks", flag);
}

static int service_done(struct err *e, struct phase_flags *f)
{
    const char *run = f->run ? f->run : getenv("PHASEPIPE_RUN");
    if (run && !f->o.cores_file) {
        int n = snprintf(f->cores_file, sizeof f->cores_file, "%s/cores", run);
        if (n > 0 && (size_t)n < sizeof f->cores_file)
            f->o.cores_file = f->cores_file;
    }
    int rc = default_url(e, &f->o.sched, f->url[0], sizeof f->url[0], run, "ipc://", "sched.sock", "--sched URL");
    rc = rc ? rc : default_url(e, &f->o.kv, f->url[1], sizeof f->url[1], run, "unix:", "kv.sock", "--kv URL");
    rc = rc ? rc : name_fits(e, "--name", f->o.name);
    if (!rc && f->peer_tls)
        rc = peer_tls_open(e, &f->o.security.tls, f->peer_tls, "worker");
    rc = rc ? rc : session_url_check(e, f->o.sched, &f->o.security); /* before anything else is waited for */
    return rc ? rc : name_fits(e, "--store-name", f->o.store);
}

int phase_flags_done(struct err *e, struct phase_flags *f)
{
    f->o.threads = (int)f->threads;
    f->o.isa = getenv("PHASEPIPE_ISA");
    f->o.ready_fd = f->has_ready ? (int)f->ready_fd : -1;
    const char *delay = getenv("PHASEPIPE_TEST_DELAY");
    int rc = delay ? cli_u64(e, "PHASEPIPE_TEST_DELAY", delay, &f->o.delay_seed, 0, UINT64_MAX) : 0;
    if (!rc && f->o.cpus && f->threads)
        rc = err_set(e, ERR_USAGE, "--cpus gives a thread to each processor: --threads cannot stand beside it");
    if (!rc && !f->o.cpus && (f->o.cores || f->o.cores_file))
        rc = err_set(e, ERR_USAGE, "--cores and --cores-file need --cpus");
    if (!rc && phase_flags_service(f))
        rc = service_done(e, f);
    if (!rc && !phase_flags_service(f) && (f->o.name || f->o.store || f->has_ready || f->peer_tls))
        rc = err_set(e, ERR_USAGE,
                     "--name, --store-name, --ready-fd and --peer-tls are for workers: give --sched and --kv too");
    return rc;
}

int phase_flags_sandbox(struct err *e, const struct phase_flags *f)
{
    char path[PATH_MAX];
    struct err unused;
    struct sandbox s;
    sandbox_begin(&s);
    model_allow(&s, f->o.model);
    if (!model_packed_dir(&unused, path, sizeof path)) /* without it the weights are packed into memory */
        sandbox_write(&s, path);
    if (phase_flags_service(f))
        sandbox_socket(&s, f->o.sched);
    sandbox_write_beside(&s, f->o.cores_file);
    return sandbox_enter(e, &s);
}
