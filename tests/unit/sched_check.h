/* Linked with the tests that the Makefile names. */
#ifndef SCHED_CHECK_H
#define SCHED_CHECK_H

#include "sched/sched.h"

/* Recounts the requests, attempts, workers and queues of s. ERR_PROTO: a count of s is wrong, and which. */
int sched_check(struct err *e, const struct sched *s);

#endif
