/* kvstore: owns the KV blocks of a host, and leases them to workers. The store is in lib/kv, the socket in lib/link. */
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "cli/cli.h"
#include "cmd/kvstore/kvstore.h"
#include "engine/engine.h"
#include "model/model.h"
#include "proc/notify.h"
#include "proc/proc.h"
#include "proc/sandbox.h"

#define BYTES_DEFAULT ((uint64_t)1 << 30)
#define META_NAME "arena-meta"
#define SLOTS_NAME "arena"
#define ADOPT_MS 500  /* after a kvstore was killed: time for its clients to bring the arena */
#define ABSENT_MS 200 /* between checks whether the processes of absent clients exist */
#define DRAIN_MS_STEP 100

struct flags {
    const char *listen, *model, *type, *disk, *fingerprint, *arith, *verify;
    uint64_t bytes, disk_bytes, layers, heads, head_dim, lease_ms, transfer_ms, disk_ms, drain_s, ready_fd;
    bool has_ready, verbose;
};

static int kind_of_model(struct err *e, struct kv_kind *k, const char *path, enum kern_kv type)
{
    struct cli_progress bar;
    struct model *m;
    static char prog[] = PROG;
    struct model_opts o = {
        .path = path, .progress = cli_progress, .progress_arg = &bar, .log = cli_log, .log_arg = prog};
    cli_progress_start(&bar, PROG, "packing weights");
    int rc = model_open(e, &m, &o);
    if (rc)
        return rc;
    rc = engine_kv_kind(e, k, NULL, m, type);
    model_free(m);
    return rc;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static int fingerprint(struct err *e, uint8_t out[32], const char *hex)
{
    for (int i = 0; i < 64; i++) {
        int d = hex_digit(hex[i]);
        if (d < 0)
            return err_set(e, ERR_USAGE, "--model-fingerprint: must be 64 digits of 0-9a-f");
        out[i / 2] = (uint8_t)(out[i / 2] << 4 | d);
    }
    return hex[64] ? err_set(e, ERR_USAGE, "--model-fingerprint: must be 64 digits of 0-9a-f") : 0;
}

static int kind_of(struct err *e, struct kv_kind *k, const struct flags *f)
{
    bool numbers = f->fingerprint || f->layers || f->heads || f->head_dim;
    enum kern_kv type = !strcmp(f->type, "f16") ? KERN_KV_F16 : !strcmp(f->type, "bf16") ? KERN_KV_BF16 : KERN_KV_INT8;
    int rc = numbers ? engine_kv_kind(e, k, NULL, NULL, type) : kind_of_model(e, k, f->model, type);
    if (f->arith)
        snprintf(k->arith, sizeof k->arith, "%s", f->arith);
    if (rc || !numbers)
        return rc;
    if (f->model || !f->fingerprint || !f->layers || !f->heads || !f->head_dim)
        return err_set(e, ERR_USAGE,
                       "--model-fingerprint, --layers, --kv-heads and --head-dim go together, in place of --model");
    k->n_layer = (uint32_t)f->layers;
    k->n_kv_head = (uint32_t)f->heads;
    k->head_dim = (uint32_t)f->head_dim;
    return fingerprint(e, k->model, f->fingerprint);
}

/* In place of the one of that name which the service manager has from an earlier kvstore. */
static void keep_fd(const char *name, int fd)
{
    struct err e = {0};
    char text[64];
    snprintf(text, sizeof text, "FDSTOREREMOVE=1\nFDNAME=%s", name);
    int rc = proc_notify(&e, text, -1);
    snprintf(text, sizeof text, "FDSTORE=1\nFDNAME=%s\nFDPOLL=0", name);
    rc = rc ? rc : proc_notify(&e, text, fd);
    if (rc)
        cli_warn(PROG, "%s", e.text);
}

void kvstore_report_arena(const struct kvstore *k, const char *what)
{
    const struct kv_arena_head *h = kv_arena_head(k->arena);
    if (k->verbose)
        cli_warn(PROG, "arena %s: %" PRIu64 " blocks of %d tokens, %.1f MiB, %.1f of them in huge pages%s%s", what,
                 h->n_slot, KV_BLOCK, (double)h->bytes / 1048576.0, (double)k->huge_bytes / 1048576.0,
                 *kv_arena_huge_reason(k->arena) ? "; " : "", kv_arena_huge_reason(k->arena));
    keep_fd(META_NAME, kv_arena_fds(k->arena)[0]);
    keep_fd(SLOTS_NAME, kv_arena_fds(k->arena)[1]);
}

/* Adopts the arena in the descriptor store of the service manager. One of another kind is not used. */
static void adopt_stored(struct kvstore *k)
{
    struct err e = {0};
    struct kv_arena *a;
    int fd[KV_ARENA_FDS] = {proc_kept_fd(META_NAME), proc_kept_fd(SLOTS_NAME)};
    if (fd[0] < 0 || fd[1] < 0) {
        socket_fds_close(fd); /* an earlier version stored one; its memory is freed with it */
        return;
    }
    int rc = kv_arena_adopt(&e, &a, fd, &k->kind);
    rc = rc ? rc : kvstore_open_store(&e, k, a);
    if (rc)
        cli_warn(PROG, "the arena in the descriptor store of the service manager is not used: %s", e.text);
    else
        kvstore_report_arena(k, "adopted from the service manager");
}

static int new_arena(struct err *e, struct kvstore *k)
{
    struct kv_arena *a;
    uint64_t memory = proc_memory("");
    if (k->bytes > memory)
        return err_set(e, ERR_USAGE,
                       "a KV budget of %" PRIu64 " bytes is over the %" PRIu64 " bytes of memory this process may use",
                       k->bytes, memory);
    int rc = kv_arena_new(e, &a, &k->kind, k->bytes);
    rc = rc ? rc : kvstore_open_store(e, k, a);
    if (!rc)
        kvstore_report_arena(k, "created");
    return rc;
}

static int until_ms(uint64_t ns, uint64_t now)
{
    int ms = time_left_ms(ns, now);
    return ms < 0 || ms > 1000 ? 1000 : ms;
}

static void tier_ready(void *arg, uint32_t events)
{
    struct kvstore *k = arg;
    (void)events;
    if (k->store)
        kv_store_tier(k->store);
}

/* One iteration: timers, one block to the file tier, then events of clients and of the file tier. */
static int turn(struct err *e, struct kvstore *k, bool absent)
{
    uint64_t now = time_now_ns();
    int wait = k->store ? until_ms(kv_store_tick(k->store, now), now) : 20;
    if (k->store && kv_store_flush(k->store))
        wait = 0;
    if (absent && wait > ABSENT_MS)
        wait = ABSENT_MS;
    if (k->draining && wait > DRAIN_MS_STEP)
        wait = DRAIN_MS_STEP;
    kvstore_notify_watchers(k);
    proc_alive();
    proc_trim();
    return loop_step(e, k->loop, NULL, wait);
}

/* At exit: writes the blocks that are not in the file tier, until the disk stalls. */
static void write_dirty(struct kvstore *k)
{
    bool more = k->o.tier != NULL;
    while (more) {
        while (kv_store_flush(k->store))
            ;
        more = kv_tier_wait(k->o.tier, (int)(k->o.tier_ns / NS_MS));
        kv_store_tier(k->store);
    }
}

static int serve(struct err *e, struct kvstore *k, const struct flags *f, bool stale)
{
    uint64_t adopt_ns = time_now_ns() + (stale ? ADOPT_MS * NS_MS : 0), drain_ns = 0, look_ns = 0;
    bool absent = false, ready = false;
    int rc = 0;
    while (!rc) {
        uint64_t now = time_now_ns();
        if (!k->store && now >= adopt_ns)
            rc = new_arena(e, k);
        if (!rc && k->store && !ready) {
            ready = true;
            absent = true;
            struct err manager = {0};
            rc = proc_ready(e, &manager, f->has_ready ? (int)f->ready_fd : -1);
            if (manager.code)
                cli_warn(PROG, "%s", manager.text);
        }
        if (proc_term_count() && !k->draining) {
            struct err n = {0};
            k->draining = true;
            drain_ns = now + f->drain_s * NS_S;
            proc_notify(&n, "STOPPING=1", -1);
        }
        if (k->draining && (!k->store || !kv_store_busy(k->store) || now >= drain_ns))
            break;
        if (absent && now >= look_ns) {
            absent = kvstore_reap_absent(k);
            look_ns = now + ABSENT_MS * NS_MS;
        }
        rc = rc ? rc : turn(e, k, absent);
    }
    if (!rc && k->store)
        write_dirty(k);
    return rc;
}

static enum kv_verify verify_of(const char *word)
{
    return !strcmp(word, "none")      ? KV_VERIFY_NONE
           : !strcmp(word, "publish") ? KV_VERIFY_PUBLISH
           : !strcmp(word, "first")   ? KV_VERIFY_FIRST
                                      : KV_VERIFY_ALWAYS;
}

static int run(struct err *e, const struct flags *f)
{
    struct kvstore k = {.bytes = f->bytes, .verbose = f->verbose};
    bool stale = false;
    list_init(&k.watchers);
    int rc = kind_of(e, &k.kind, f);
    k.o = (struct kv_store_opts){.lease_ns = f->lease_ms * NS_MS,
                                 .transfer_ns = f->transfer_ms * NS_MS,
                                 .tier_ns = f->disk_ms * NS_MS,
                                 .verify = verify_of(f->verify),
                                 .on_event = kvstore_event,
                                 .event_arg = &k};
    if (!rc && f->disk)
        rc = kv_tier_open(e, &k.o.tier, f->disk, f->disk_bytes, &k.kind);
    rc = rc ? rc : loop_new(e, &k.loop);
    rc = rc ? rc : link_server_new(e, &k.server, &stale, k.loop, f->listen, &kvstore_ops, &k);
    if (!rc && k.o.tier)
        rc = loop_fd_add(e, k.loop, &k.tier, kv_tier_fd(k.o.tier), EPOLLIN, tier_ready, &k);
    if (!rc) {
        adopt_stored(&k);
        rc = serve(e, &k, f, stale);
    }
    struct link_server *s = k.server;
    k.server = NULL; /* on_closed then does not release what its client owns: the next kvstore adopts it */
    link_server_free(s);
    kv_store_free(k.store);
    kv_arena_free(k.arena);
    kv_tier_free(k.o.tier);
    free(k.of_client);
    free(k.stored.p);
    free(k.evicted.p);
    loop_free(k.loop);
    return rc;
}

/* Restricts file access to the model, its packed weights, which have its fingerprint, and the directories of the socket
 * and of the file tier. */
static int enter_sandbox(struct err *e, const struct flags *f)
{
    char path[PATH_MAX];
    struct err unused;
    struct sandbox s;
    sandbox_begin(&s);
    model_allow(&s, f->model);
    if (!f->fingerprint && !model_packed_dir(&unused, path, sizeof path))
        sandbox_write(&s, path);
    sandbox_socket(&s, f->listen);
    sandbox_write_beside(&s, f->disk);
    return sandbox_enter(e, &s);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct flags f = {.type = "auto",
                      .verify = "first",
                      .bytes = 0,
                      .lease_ms = 10000,
                      .transfer_ms = 30000,
                      .disk_ms = 2000,
                      .drain_s = 30};
    const struct cli_opt opts[] = {
        {0, "listen", CLI_STR, &f.listen, "URL", "socket to serve, unix:PATH", .lo = 0},
        {'m', "model", CLI_STR, &f.model, "MODEL", "GGUF file whose KV it stores (the default model)", .lo = 0},
        {0, "kv-cache-dtype", CLI_CHOICE, &f.type, "TYPE", "auto (int8), f16, bf16 or int8",
         .choices = "auto|f16|bf16|int8"},
        {0, "kv-cache-memory-bytes", CLI_SIZE, &f.bytes, "B", "memory for blocks (1 GiB, or a quarter of the memory)",
         .lo = 0},
        {0, "model-fingerprint", CLI_STR, &f.fingerprint, "HEX", "in place of a model: its fingerprint", .lo = 0},
        {0, "layers", CLI_U64, &f.layers, "N", "in place of a model: its layers", .lo = 1, .hi = 65536},
        {0, "kv-heads", CLI_U64, &f.heads, "N", "in place of a model: its KV heads", .lo = 1, .hi = 65536},
        {0, "head-dim", CLI_U64, &f.head_dim, "N", "in place of a model: elements of a head", .lo = 1, .hi = 65536},
        {0, "arithmetic", CLI_STR, &f.arith, "ID", "arithmetic that made the KV (this release's)", .lo = 0},
        {0, "disk", CLI_STR, &f.disk, "FILE", "store blocks in this file too", .lo = 0},
        {0, "disk-size", CLI_SIZE, &f.disk_bytes, "B", "maximum size of that file (16G)", .lo = 0},
        {0, "disk-ms", CLI_U64, &f.disk_ms, "N",
         "time limit of a read from the disk, after which the block is missing (2000)", .lo = 10, .hi = 3600000},
        {0, "lease-ms", CLI_U64, &f.lease_ms, "N", "lease of a client: silent for longer, it loses its blocks (10000)",
         .lo = 50, .hi = 3600000},
        {0, "handed-ms", CLI_U64, &f.transfer_ms, "N", "time limit of a transfer from prefill to decode (30000)",
         .lo = 50, .hi = 3600000},
        {0, "drain-seconds", CLI_U64, &f.drain_s, "N", "after SIGTERM, wait for clients at most this long (30)",
         .lo = 0, .hi = 86400},
        {0, "verify", CLI_CHOICE, &f.verify, "WHEN",
         "compare blocks with their checksums: none, publish, first (also their first lease and a sample), always",
         .choices = "none|publish|first|always"},
        {0, "ready-fd", CLI_U64, &f.ready_fd, "N", "descriptor that gets a line when ready", .lo = 3, .hi = 1 << 20,
         .given = &f.has_ready},
        {'v', "verbose", CLI_FLAG, &f.verbose, NULL, "log the size of the arena and its huge pages", .lo = 0},
    };
    const struct cli_prog p = {PROG,
                               "--listen unix:PATH [-m MODEL] [options]",
                               "owns the KV blocks of a host, and leases them to workers",
                               opts,
                               sizeof opts / sizeof *opts,
                               0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    f.disk_bytes = f.disk_bytes ? f.disk_bytes : (uint64_t)16 << 30;
    if (!f.bytes) /* the whole budget is populated at start, so the default is small enough for a fast start */
        f.bytes = proc_memory_part(4, 0, BYTES_DEFAULT);
    if (!rc && !f.listen)
        rc = err_set(&e, ERR_USAGE, "--listen unix:PATH is required");
    rc = rc ? rc : proc_signals(&e);
    proc_wake_soon(true);
    rc = rc ? rc : enter_sandbox(&e, &f);
    rc = rc ? rc : run(&e, &f);
    return rc ? cli_fail(PROG, &e) : 0;
}
