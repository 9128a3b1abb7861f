/* The process and its host: processors, memory, signals. */
#ifndef PROC_H
#define PROC_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

/* Number of threads to run: min(affinity, floor(cgroup quota)), at least 1. Reads all levels of the cgroup tree, v1 and
 * v2. root: "", or in tests a directory that stands for / (its proc/self/cgroup and sys/fs/cgroup are read). */
int proc_cpus(const char *root);

/* floor(cgroup quota), at least 1; INT_MAX if no group sets one. */
int proc_quota(const char *root);

/* Bytes that this process may use: min(physical memory, cgroup limits). */
uint64_t proc_memory(const char *root);
/* One of `parts` equal parts of it, for a default limit in bytes: at least `least`, at most `most`. */
uint64_t proc_memory_part(uint64_t parts, uint64_t least, uint64_t most);

/*
 * Once a second, gives freed memory back to the system: large requests leave holes in the heap, which free() keeps for
 * ever. Called in each turn of an event loop. It takes about a ms for each 10 MB given back; without much to give back,
 * a few µs. No effect before proc_signals, which opens what it reads.
 */
void proc_trim(void);
void proc_trim_open(void);

const char *proc_host(void); /* host name, cached */

/*
 * For threads that compute little at a time: the calling thread, and threads that it creates, get a processor at once
 * when they wake, even if other threads compute on it; otherwise they wait up to the end of a time slice of some ms.
 * false: an ordinary thread again. Best effort; Linux 6.12 or later.
 */
void proc_wake_soon(bool on);

/* Raises the soft limit of open descriptors to the hard one, and returns the limit; UINT64_MAX: none. proc_signals
 * calls it, so that every service has it. */
uint64_t proc_descriptors(void);

/* For programs that run long. Ignores SIGPIPE (writes return EPIPE), raises the limit of descriptors. Counts SIGTERM
 * and SIGINT: at the first the program drains, the second ends it. */
int proc_signals(struct err *e);
int proc_term_count(void);

/* For programs that leave SIGTERM at its default: a write to a pipe without a reader, or past the file size limit,
 * returns an error (EPIPE, EFBIG) instead of raising a signal. proc_signals does this too. */
void proc_write_errors(void);

/* For filters that write text, after proc_signals: if the reader has what it wants (head), the program ends by SIGPIPE
 * without a message, as its neighbours in a shell do. Not for programs that write to sockets or write frames. */
void proc_text_output(void);

#endif
