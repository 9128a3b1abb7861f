/* sched-exec: the scheduler with a child process as policy (lib/sched/exec.c). */
#include "cli/cli.h"
#include "sched/exec.h"
#include "sched/main.h"

static const char prog[] = "sched-exec";

int main(int argc, char **argv)
{
    struct err e = {0};
    int rc = sched_main(&e, argc, argv, prog, "decides which worker does what and when: by a child process",
                        &sched_policy_exec);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : cli_close_stdout(&e);
    return rc ? cli_fail(prog, &e) : 0;
}
