/* A policy in any language: a child that reads the state of an instant as a line of JSON and answers with a line of
 * decisions. sched-exec(1) describes both. */
#ifndef SCHED_EXEC_H
#define SCHED_EXEC_H

#include "sched/policy.h"

/* arg of the policy is its command, for /bin/sh -c. */
extern const struct sched_policy sched_policy_exec;

#endif
