/* frames: converts a stream of frames to JSON lines and back; deals it out to several processes, and merges streams. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/frames/frames.h"

static int run(struct err *e, char **args, size_t n_arg, bool encode, bool full)
{
    bool deal = n_arg && !strcmp(args[0], "deal"), merge = n_arg && !strcmp(args[0], "merge");
    if ((encode || deal || merge) && full)
        return err_set(e, ERR_USAGE, "--full applies to showing frames only");
    if (encode && n_arg)
        return err_set(e, ERR_USAGE, "-e takes no file: it reads stdin");
    if ((deal || merge) && n_arg < 2)
        return err_set(e, ERR_USAGE, "%s requires the names of files or fifos", args[0]);
    if (!deal && !merge && n_arg > 1)
        return err_set(e, ERR_USAGE, "'%s': expected one FILE, or deal or merge with files", args[0]);
    if (!encode && !deal && !merge) /* SIGPIPE stays at its default: if the reader leaves (head), the program ends
                                       without an error message */
        return frames_show(e, n_arg ? args[0] : NULL, full);
    signal(SIGPIPE, SIG_IGN);
    int rc = deal ? 0 : cli_no_tty(e, STDOUT_FILENO, "frames");
    if (rc)
        return rc;
    return encode ? frames_encode(e)
           : deal ? frames_deal(e, args + 1, n_arg - 1)
                  : frames_merge(e, args + 1, n_arg - 1);
}

int main(int argc, char **argv)
{
    bool encode = false, full = false;
    const struct cli_opt opts[] = {
        {.letter = 'e', .name = "encode", .kind = CLI_FLAG, .out = &encode, .help = "JSON lines to frames"},
        {.name = "full", .kind = CLI_FLAG, .out = &full, .help = "show the payload of blocks whole, in base64"},
    };
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[--full] [FILE] | -e | deal OUT ... | merge IN ...",
        .about = "show frames as JSON lines and back; deal requests out to several streams and merge streams",
        .opts = opts,
        .n_opt = sizeof opts / sizeof *opts,
        .n_arg_max = 1025,
    };
    struct err e = {0};
    size_t n_arg;
    int rc = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : run(&e, argv + 1, n_arg, encode, full);
    rc = rc ? rc : cli_close_stdout(&e);
    if (!rc)
        return 0;
    cli_fail(PROG, &e);
    fflush(stdout);
    _exit(rc); /* threads of deal and merge may still wait for a fifo, so nothing is freed */
}
