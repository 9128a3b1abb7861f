/* The main of a scheduler program with a given policy: options, settings, filter or service. For mains only. */
#ifndef SCHED_MAIN_H
#define SCHED_MAIN_H

#include "sched/policy.h"

/* CLI_DONE: an option printed its text (--help). The caller prints errors and closes the output. */
int sched_main(struct err *e, int argc, char **argv, const char *prog, const char *about,
               const struct sched_policy *policy);

#endif
