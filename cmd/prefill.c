/* prefill: reads prompts, writes their KV and first tokens. The work is lib/phase. */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "phase/phase.h"

#define PROG "prefill"

static void say(void *arg, const char *text)
{
    (void)arg;
    cli_warn(PROG, "%s", text);
}

static void profile(void *arg, const char *part, uint64_t ns)
{
    (void)arg;
    cli_warn(PROG, "profile: %-10s %10.3f ms", part, (double)ns / 1e6);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct phase_opts o = {.prog = PROG,
                           .kv_type = "auto",
                           .batched_tokens = 512,
                           .seqs = 1,
                           .fd_in = STDIN_FILENO,
                           .fd_out = STDOUT_FILENO,
                           .isa = getenv("PHASEPIPE_ISA")};
    uint64_t threads = 0;
    bool verbose = false, times = false;
    const struct cli_opt opts[] = {
        {'m', "model", CLI_STR, &o.model, "MODEL", "GGUF file; the default model of the cache directory where absent",
         .lo = 0},
        {0, "max-num-batched-tokens", CLI_U64, &o.batched_tokens, "N", "rows of a step at most (512)", .lo = 1,
         .hi = 65536},
        {0, "max-model-len", CLI_U64, &o.model_len, "N", "window, where smaller than the model's", .lo = 1,
         .hi = UINT32_MAX},
        {0, "kv-cache-dtype", CLI_CHOICE, &o.kv_type, "TYPE", "auto (int8), f16, bf16 or int8",
         .choices = "auto|f16|bf16|int8"},
        {0, "kv-cache-memory-bytes", CLI_SIZE, &o.kv_bytes, "B", "budget for KV blocks (a quarter of the memory)",
         .lo = 0},
        {0, "threads", CLI_U64, &threads, "N", "compute threads (by affinity and quota)", .lo = 1, .hi = 1024},
        {0, "profile", CLI_FLAG, &times, NULL, "at the end, time of each part of the steps on stderr", .lo = 0},
        {'v', "verbose", CLI_FLAG, &verbose, NULL, "say at start what runs: instruction set, threads, KV budget",
         .lo = 0},
    };
    const struct cli_prog p = {PROG,
                               "[-m MODEL] [options] < tok-frames > kv-frames",
                               "reads prompts, writes their KV and first tokens",
                               opts,
                               sizeof opts / sizeof *opts,
                               0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    struct cli_progress bar;
    cli_progress_start(&bar, PROG, "packing weights");
    o.threads = (int)threads;
    o.progress = cli_progress;
    o.progress_arg = &bar;
    o.say = verbose ? say : NULL;
    o.profile = times ? profile : NULL;
    const char *delay = getenv("PHASEPIPE_TEST_DELAY");
    if (!rc && delay)
        rc = cli_u64(&e, "PHASEPIPE_TEST_DELAY", delay, &o.delay_seed, 0, UINT64_MAX);
    if (!rc)
        signal(SIGPIPE, SIG_IGN); /* a write gives EPIPE, which names what happened */
    if (!rc)
        rc = cli_no_tty(&e, STDOUT_FILENO, "frames");
    if (!rc)
        rc = phase_prefill(&e, &o);
    if (!rc)
        rc = cli_close_stdout(&e);
    return rc ? cli_fail(PROG, &e) : 0;
}
