/*
 * The main loops of prefill and decode as filters: frames in, frames out, over one engine. The mains parse flags and
 * call these; tests call them too.
 */
#ifndef PHASE_H
#define PHASE_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

struct phase_opts {
    const char *prog;        /* "prefill", "decode": the `from` of the stream, and in spans */
    const char *model;       /* NULL: the default one */
    const char *kv_type;     /* "auto", "f16", "bf16", "int8"; auto is int8 on a CPU, or what the stream brings */
    const char *isa;         /* NULL: the best there is */
    int threads;             /* 0: by affinity and quota */
    uint64_t kv_bytes;       /* budget; 0: a quarter of the memory this process may use */
    uint64_t batched_tokens; /* rows of a step */
    uint64_t seqs;           /* decode: answers that grow at once */
    uint64_t model_len;      /* window; 0: the model's */
    uint64_t delay_seed;     /* tests: random waits at phase ends */
    int fd_in, fd_out;
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* packing the weights; may be NULL */
    void *progress_arg;
    void (*say)(void *arg, const char *text); /* one line for a person; may be NULL */
    void *say_arg;
    bool verbose; /* says at start how it runs */
    bool profile; /* says at the end how long each part of the steps took */

    const char *cpus;       /* its own processors, "0,2-3"; NULL: wherever the system puts its threads */
    const char *cores;      /* with cpus: "lease" or "fixed" */
    const char *cores_file; /* where workers tell each other which cores rest (proc/cores.h); NULL: nothing is lent */

    const char *engine; /* "fake:A,B,C,D,E,F": takes the time that a real one would; NULL: a real one */

    /* services */
    const char *sched, *kv;   /* urls */
    const char *name, *store; /* of this worker, of its kvstore; NULL: by program, process and host */
    uint64_t drain_s;         /* after SIGTERM */
    int ready_fd;             /* -1: none */
};

/* Each runs to the end of the input. After an error the caller exits: a thread may still wait for input. ERR_PROTO: the
 * stream is broken or does not fit; ERR_SYS: the next stage has gone. */
int phase_prefill(struct err *e, const struct phase_opts *o);
int phase_decode(struct err *e, const struct phase_opts *o);

/*
 * Either program as a worker of a scheduler: orders come, KV lies in a kvstore's arena, tokens go to gateways. The role
 * ("prefill" or "decode") is what it likes; it does whatever it is told to. Runs until SIGTERM (proc_signals), then
 * until its orders are done. ERR_PROTO: the store holds other KV.
 */
int phase_serve(struct err *e, const struct phase_opts *o, const char *role);

/*
 * The flags that both programs have: fills `table` (PHASE_FLAGS of them) with options that write into f.
 * phase_flags_done checks what they gave, reads the environment, and completes f->o but for what is the program's own.
 */
#define PHASE_FLAGS 19
struct cli_opt;
struct phase_flags {
    struct phase_opts o;
    uint64_t threads, ready_fd;
    bool has_ready;
    const char *run;  /* the services' directory */
    char url[2][256]; /* what o points to where they were not given */
    char cores_file[256];
};
void phase_flags_table(struct cli_opt *table, struct phase_flags *f);
int phase_flags_done(struct err *e, struct phase_flags *f);
bool phase_flags_service(const struct phase_flags *f); /* it is to run as a service */

#endif
