/* The program around a policy: options, knobs, filter. For mains only. */
#ifndef SCHED_MAIN_H
#define SCHED_MAIN_H

#include "sched/policy.h"

/* CLI_DONE where an option asked for text; the caller prints errors and closes the output. */
int sched_main(struct err *e, int argc, char **argv, const char *prog, const char *about,
               const struct sched_policy *policy);

#endif
