/* For tests: linked with those that the Makefile names. */
#ifndef SCHED_CHECK_H
#define SCHED_CHECK_H

#include "sched/sched.h"

/* Walks all that s keeps, and compares it with its counts: ERR_PROTO says what does not add up. */
int sched_check(struct err *e, const struct sched *s);

#endif
