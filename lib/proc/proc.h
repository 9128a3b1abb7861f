/* The process and its host: processors, memory, signals. */
#ifndef PROC_H
#define PROC_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

/* Threads to run: min(affinity, floor(cgroup quota)), at least 1; walks up the cgroup tree, v1 and v2. root: "" or, in
 * tests, a directory that stands for / (its proc/self/cgroup and sys/fs/cgroup are read). */
int proc_cpus(const char *root);

/* floor(cgroup quota), at least 1; INT_MAX where no group sets one. */
int proc_quota(const char *root);

/* Bytes this process may use: min(physical, cgroup limits). */
uint64_t proc_memory(const char *root);

const char *proc_host(void); /* host name, cached */

/*
 * The calling thread and those that it makes do little at a time: they get a processor at once when they wake, also one
 * on which others compute, where they would else wait for the end of a slice of some ms. false: an ordinary thread
 * again. Best effort; Linux 6.12 or later.
 */
void proc_wake_soon(bool on);

/* SIGPIPE ignored (writes give EPIPE); SIGTERM and SIGINT counted: first one: drain, second one: leave at once. */
int proc_signals(struct err *e);
int proc_term_count(void);

/* For programs that leave SIGTERM as it is: a write to a pipe without a reader, or past the limit of a file's size,
 * gives an error (EPIPE, EFBIG) instead of a signal. proc_signals does this too. */
void proc_write_errors(void);

#endif
