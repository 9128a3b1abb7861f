/* decode: reads prompts with their KV, outputs answers. The implementation is lib/phase. */
#include <unistd.h>

#include "cli/cli.h"
#include "phase/phase.h"
#include "proc/proc.h"

static char prog[] = "decode";

static int filter(struct err *e, const struct phase_opts *o)
{
    int rc = cli_no_tty(e, STDOUT_FILENO, "frames");
    return rc ? rc : phase_decode(e, o);
}

static int serve(struct err *e, const struct phase_opts *o)
{
    int rc = proc_signals(e);
    return rc ? rc : phase_serve(e, o, "decode");
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct cli_progress bar;
    struct phase_flags f = {.o = {.prog = prog,
                                  .kv_type = "auto",
                                  .batched_tokens = 512,
                                  .seqs = 64,
                                  .fd_in = STDIN_FILENO,
                                  .fd_out = STDOUT_FILENO,
                                  .drain_s = 30,
                                  .progress = cli_progress,
                                  .progress_arg = &bar,
                                  .log = cli_log,
                                  .log_arg = prog}};
    struct cli_opt opts[PHASE_FLAGS + 1];
    phase_flags_table(opts, &f);
    opts[PHASE_FLAGS] = (struct cli_opt){
        0, "max-num-seqs", CLI_U64, &f.o.seqs, "N", "sequences that are decoded at once (64)", .lo = 1, .hi = 4096};
    const struct cli_prog p = {prog,
                               "[-m MODEL] [options] < kv-frames > out-frames, or --sched URL --kv URL",
                               "reads prompts with their KV, writes answers",
                               opts,
                               PHASE_FLAGS + 1,
                               0};
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    cli_progress_start(&bar, prog, "packing weights");
    proc_write_errors();
    cli_on_bus_error(prog, "the file of packed weights in the cache directory was truncated while in use");
    if (!rc)
        rc = phase_flags_done(&e, &f);
    if (!rc && f.o.seqs > f.o.batched_tokens)
        rc = err_set(&e, ERR_USAGE, "--max-num-seqs %llu is over --max-num-batched-tokens %llu",
                     (unsigned long long)f.o.seqs, (unsigned long long)f.o.batched_tokens);
    rc = rc ? rc : phase_flags_sandbox(&e, &f);
    if (!rc)
        rc = phase_flags_service(&f) ? serve(&e, &f.o) : filter(&e, &f.o);
    peer_tls_close(f.o.security.tls);
    if (!rc)
        rc = cli_close_stdout(&e);
    return rc ? cli_fail(prog, &e) : 0;
}
