/* The flags that prefill and decode share. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "phase/phase.h"

void phase_flags_table(struct cli_opt *table, struct phase_flags *f)
{
    struct phase_opts *o = &f->o;
    const struct cli_opt opts[PHASE_FLAGS] = {
        {'m', "model", CLI_STR, &o->model, "MODEL", "GGUF file; the default model of the cache directory where absent",
         .lo = 0},
        {0, "max-num-batched-tokens", CLI_U64, &o->batched_tokens, "N", "rows of a step at most (512)", .lo = 1,
         .hi = 65536},
        {0, "max-model-len", CLI_U64, &o->model_len, "N", "window, where smaller than the model's", .lo = 1,
         .hi = UINT32_MAX},
        {0, "kv-cache-dtype", CLI_CHOICE, &o->kv_type, "TYPE", "auto (int8), f16, bf16 or int8",
         .choices = "auto|f16|bf16|int8"},
        {0, "kv-cache-memory-bytes", CLI_SIZE, &o->kv_bytes, "B", "budget for KV blocks (a quarter of the memory)",
         .lo = 0},
        {0, "threads", CLI_U64, &f->threads, "N", "compute threads (by affinity and quota)", .lo = 1, .hi = 1024},
        {0, "profile", CLI_FLAG, &o->profile, NULL, "at the end, time of each part of the steps on stderr", .lo = 0},
        {'v', "verbose", CLI_FLAG, &o->verbose, NULL, "say at start what runs: instruction set, threads, KV budget",
         .lo = 0},
    };
    memcpy(table, opts, sizeof opts);
}

int phase_flags_done(struct err *e, struct phase_flags *f)
{
    f->o.threads = (int)f->threads;
    f->o.isa = getenv("PHASEPIPE_ISA");
    const char *delay = getenv("PHASEPIPE_TEST_DELAY");
    if (delay)
        return cli_u64(e, "PHASEPIPE_TEST_DELAY", delay, &f->o.delay_seed, 0, UINT64_MAX);
    return 0;
}
