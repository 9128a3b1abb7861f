/* sched-fcfs: the scheduler with the policy first come, first served (lib/sched/policy_fcfs.c). */
#include "cli/cli.h"
#include "sched/main.h"
#include "sched/policy.h"

static const char prog[] = "sched-fcfs";

int main(int argc, char **argv)
{
    struct err e = {0};
    int rc = sched_main(&e, argc, argv, prog, "decides which worker does what and when: first come, first served",
                        &sched_policy_fcfs);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : cli_close_stdout(&e);
    return rc ? cli_fail(prog, &e) : 0;
}
