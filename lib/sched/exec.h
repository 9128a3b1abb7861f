/* A policy in any language: a child process that reads the state of an instant as a line of JSON and writes a line of
 * decisions. sched-exec(1) describes both. */
#ifndef SCHED_EXEC_H
#define SCHED_EXEC_H

#include "sched/policy.h"

/* sched_policy.arg: the command, for /bin/sh -c. */
extern const struct sched_policy sched_policy_exec;

#endif
