/*
 * A limit on the log lines that peers cause, so that no peer can fill a disk or hold up a log: LOG_LIMIT_LINES a
 * second, then one line with the number of those that were left out. A zeroed struct has logged nothing. One thread.
 */
#ifndef BASE_LOG_LIMIT_H
#define BASE_LOG_LIMIT_H

#include <stdint.h>

#define LOG_LIMIT_LINES 10

struct log_limit {
    uint64_t since_ns; /* begin of the present second */
    uint64_t n;        /* lines in it, those left out too */
};

/* Calls log(arg, text) if the limit permits it, after a line on those left out in an earlier second, if any. log may be
 * NULL. now_ns: CLOCK_MONOTONIC. */
void log_limit(struct log_limit *l, uint64_t now_ns, const char *text, void (*log)(void *arg, const char *text),
               void *arg);

#endif
