/*
 * The scheduler as a service: a loop around the machine that receives frames of gateways, workers and tools over
 * sessions, watches the events of the stores, and sends what the machine decides. One thread. Its clock stands still
 * while the process is stopped.
 */
#ifndef SCHED_SERVE_H
#define SCHED_SERVE_H

#include "sched/sched.h"

#define SCHED_SERVE_STORES_MAX 16

struct sched_serve_store {
    const char *name, *url; /* the name that its workers join with; "unix:PATH" */
};

struct sched_serve_opts {
    const char *prog, *url; /* ipc://PATH or tcp://HOST:PORT */
    const struct sched_serve_store *store;
    size_t n_store;
    int ready_fd; /* -1: none */
    void (*say)(void *arg, const char *text);
    void *say_arg;
};

/* Sets the sink of s. Runs until SIGTERM (proc_signals); then new requests are refused, and it ends when no answer is
 * running, or at the second signal. */
int sched_serve(struct err *e, struct sched *s, const struct sched_serve_opts *o);

#endif
