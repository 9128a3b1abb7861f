/*
 * prefill and decode: as filters (frames in, frames out, over one engine) and as workers of a scheduler. The mains
 * parse flags and call these functions; tests call them too.
 */
#ifndef PHASE_H
#define PHASE_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "link/session.h"

struct phase_opts {
    const char *prog;        /* "prefill", "decode": the `from` of the stream, and in spans */
    const char *model;       /* NULL: the default model */
    const char *kv_type;     /* "auto", "f16", "bf16", "int8"; auto is int8 on a CPU, or the type of the stream */
    const char *isa;         /* NULL: the best available */
    int threads;             /* 0: by CPU affinity and quota */
    uint64_t kv_bytes;       /* KV budget; 0: a quarter of the memory that this process may use */
    uint64_t batched_tokens; /* rows of a step */
    uint64_t seqs;           /* decode: sequences that are decoded at once */
    uint64_t model_len;      /* context length; 0: the model's */
    uint64_t delay_seed;     /* tests: random waits at the ends of stages */
    int fd_in, fd_out;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* packing the weights; may be NULL */
    void *progress_arg;
    void (*log)(void *arg, const char *text); /* logs one line; may be NULL */
    void *log_arg;
    bool verbose;        /* logs the configuration at start */
    bool profile;        /* logs the time of each part of the steps at the end */
    bool verify_weights; /* compare the packed weights with their checksums at this start too */

    const char *cpus;       /* own processors, "0,2-3"; NULL: the kernel chooses */
    const char *cores;      /* with cpus: "lease" or "fixed" */
    const char *cores_file; /* shared by workers to lend idle cores (proc/cores.h); NULL: no lending */

    const char *engine; /* "fake:A,B,C,D,E,F": the fake backend (engine/engine.h); NULL: a real one */

    /* services */
    const char *sched, *kv; /* urls */
    struct session_security security;
    const char *name, *store; /* of this worker and of its kvstore; NULL: derived from program, process and host */
    uint64_t drain_s;         /* limit for running work after SIGTERM, seconds */
    int ready_fd;             /* -1: none */
};

/* Each runs to the end of its input. After an error the caller exits, since a thread may still be blocked in a read.
 * ERR_PROTO: the stream is invalid or does not match the model; ERR_SYS: the next stage has ended. */
int phase_prefill(struct err *e, const struct phase_opts *o);
int phase_decode(struct err *e, const struct phase_opts *o);

/*
 * Either program as a worker of a scheduler: it receives work items, keeps KV in a kvstore's arena, and sends tokens to
 * gateways. The role ("prefill" or "decode") is a preference for the scheduler; a worker runs any work item. Runs until
 * SIGTERM (proc_signals), then until its work items are done. ERR_PROTO: the store holds KV of another kind.
 */
int phase_serve(struct err *e, const struct phase_opts *o, const char *role);

/*
 * The flags that both programs share: fills `table` (PHASE_FLAGS entries) with options that write into f.
 * phase_flags_done checks them, reads the environment, and completes f->o except for the fields that only one program
 * has.
 */
#define PHASE_FLAGS 22
struct cli_opt;
struct phase_flags {
    struct phase_opts o;
    uint64_t threads, ready_fd;
    bool has_ready;
    const char *run; /* the services' directory */
    const char *peer_tls;
    char url[2][256]; /* default URLs, which o points to */
    char cores_file[256];
};
void phase_flags_table(struct cli_opt *table, struct phase_flags *f);
int phase_flags_done(struct err *e, struct phase_flags *f);
bool phase_flags_service(const struct phase_flags *f); /* whether to run as a service */
/* After phase_flags_done and before any thread exists: keeps the model, the packed weights and the runtime directory,
 * gives up the rest (proc/sandbox.h). */
int phase_flags_sandbox(struct err *e, const struct phase_flags *f);

#endif
