/*
 * Lending of cores. A worker owns cores. While it has nothing to compute, another worker of the host may run threads on
 * them; they are off again about ten microseconds after the owner's first step begins.
 *
 * The workers share one mapped file: a slot per worker (its cores, whether it computes, since when it does not) and a
 * word per core (the thread that has borrowed it). A worker holds a lock on its slot, which the kernel releases when it
 * dies, so slots and cores of a killed worker are recognised and released. No call waits for another worker. An owner
 * that finds a borrower on its core sets a bit in the word and moves that thread back to the borrower's own cores,
 * where the thread finishes its unit of work. Moving needs the same user and PID namespace; if it fails, the two share
 * the core until the unit is done.
 */
#ifndef PROC_CORES_H
#define PROC_CORES_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

#define CORES_CPU_MAX 1024
#define CORES_WORKERS_MAX 64

/* A core is lent when its owner has not computed for this long. It is longer than the time between two steps of an
 * owner that has work, so that such an owner finds its core and cache unchanged. */
#define CORES_REST_NS 1000000u

struct cores;

struct cores_opts {
    const int *cpu; /* [n] own ones; n = 0: all that this process may run on */
    int n;
    const int *borrow; /* [n_borrow] those it may borrow; n_borrow = 0: all others that this process may run on */
    int n_borrow;
    const char *path; /* the file shared by the workers of a host, created if it does not exist; NULL: no lending or
                         borrowing */
    uint64_t rest_ns; /* 0: CORES_REST_NS */
};

/* ERR_USAGE: a core out of range; ERR_PROTO: the file is of another release; ERR_NO: too many workers; ERR_SYS. */
int cores_open(struct err *e, struct cores **out, const struct cores_opts *o);
void cores_close(struct cores *c); /* c may be NULL; no thread may hold a core */

/* Parses a list such as "0,2-5": *cpu [n], ascending, allocated; the caller frees it. ERR_USAGE. */
int cores_list(struct err *e, int **cpu, int *n, const char *text);

int cores_own(const struct cores *c, const int **cpu);   /* returns the number; *cpu is borrowed */
int cores_other(const struct cores *c, const int **cpu); /* those it may borrow */

/* Restricts the calling thread, and threads that it creates, to the own cores. ERR_USAGE: one of them does not exist,
 * or this process may not use it. */
int cores_stay(struct err *e, const struct cores *c);

/* Pins the calling thread to a core. Best effort. */
void cores_pin(int cpu);

/* ---- the owner ---- */

/* cores_work: the worker computes from now on; recalls its cores from borrowers. Cheap if none is borrowed. cores_rest:
 * it has stopped. One thread at a time. */
void cores_work(struct cores *c);
void cores_rest(struct cores *c);

/* ---- a borrower: one hold a thread ---- */

struct cores_hold {
    int cpu;
    uint32_t tid;  /* thread id of the holder; 0: not known yet */
    uint64_t word; /* the word in the file while the core is held; 0: not held */
};

/* True if cores_take would probably succeed. One thread at a time. */
bool cores_free(struct cores *c, int cpu, uint64_t now_ns);

/* Pins the calling thread to the core and takes it; true also if it holds the core already. false: the owner computes,
 * or another thread has it. */
bool cores_take(struct cores *c, struct cores_hold *h);

/* False if the owner has recalled the core. One load. */
bool cores_kept(const struct cores *c, const struct cores_hold *h);

/* Returns the core. The caller's thread must run no more work on it. Does nothing if it is not held. */
void cores_give(struct cores *c, struct cores_hold *h);

#endif
