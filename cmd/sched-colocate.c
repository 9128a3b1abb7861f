/* sched-colocate: the scheduler that runs both phases of a request on one worker (lib/sched/policy_colocate.c). */
#include "cli/cli.h"
#include "sched/main.h"
#include "sched/policy.h"

static const char prog[] = "sched-colocate";

int main(int argc, char **argv)
{
    struct err e = {0};
    int rc = sched_main(&e, argc, argv, prog, "decides which worker does what and when: both phases on one worker",
                        &sched_policy_colocate);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : cli_close_stdout(&e);
    return rc ? cli_fail(prog, &e) : 0;
}
