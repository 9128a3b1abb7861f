/* sched: the scheduler with the default policy (lib/sched/policy_kv.c). */
#include "cli/cli.h"
#include "sched/main.h"
#include "sched/policy.h"

static const char prog[] = "sched";

int main(int argc, char **argv)
{
    struct err e = {0};
    int rc = sched_main(&e, argc, argv, prog,
                        "decides which worker does what and when: by cached prefixes and by service levels",
                        &sched_policy_kv);
    if (rc == CLI_DONE)
        return 0;
    rc = rc ? rc : cli_close_stdout(&e);
    return rc ? cli_fail(prog, &e) : 0;
}
