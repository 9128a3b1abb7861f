/*
 * The scheduler as a service: a loop that receives frames of gateways, workers and tools over sessions, and events of
 * the stores, passes them to the state machine (sched.h), and sends its decisions. One thread. Its clock stands still
 * while the process is stopped (SIGSTOP).
 */
#ifndef SCHED_SERVE_H
#define SCHED_SERVE_H

#include "link/session.h"
#include "sched/sched.h"

#define SCHED_SERVE_STORES_MAX 16

struct sched_serve_store {
    const char *name, *url; /* the name with which its workers join; "unix:PATH" */
};

struct sched_serve_opts {
    const char *prog, *url; /* as session_listen takes it */
    struct session_security security;
    const struct sched_serve_store *store;
    size_t n_store;
    int ready_fd;                             /* -1: none */
    uint64_t drain_ns;                        /* 0: SIGTERM ends it at once */
    void (*log)(void *arg, const char *text); /* may be NULL */
    void *log_arg;
};

/* Runs until SIGTERM (proc_signals). Without drain_ns it then returns at once: no request is refused or ended, since a
 * successor at the same address learns all of them from gateways and workers. With drain_ns it refuses new requests
 * (`ending`) and returns when no request is running, after drain_ns, or at the second signal. Sets the sink of s. */
int sched_serve(struct err *e, struct sched *s, const struct sched_serve_opts *o);

#endif
