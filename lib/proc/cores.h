/*
 * Cores are leased, like blocks. A worker owns cores; while it has nothing to compute another worker of the host may
 * run threads on them, and is off them again within some ten microseconds of the owner's first step.
 *
 * What the workers tell each other is one mapped file: a seat a worker (its cores, whether it computes, since when it
 * does not) and a word a core (the thread that has borrowed it). A worker holds a lock on its seat, which the system
 * drops when it dies, so whatever a killed worker left behind is known for what it is. Nobody waits for anybody: an
 * owner that finds a borrower on its core marks the word and moves that thread back to the borrower's own cores, where
 * it ends the unit of work it sits on. That needs the same user and PID namespace; where it fails the two share the
 * core until the unit is done.
 */
#ifndef PROC_CORES_H
#define PROC_CORES_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

#define CORES_CPU_MAX 1024
#define CORES_WORKERS_MAX 64

/* A core is lent when its owner has not computed for so long: longer than what lies between two steps of an owner that
 * has work, so that it finds its core and its cache as it left them. */
#define CORES_REST_NS 1000000u

struct cores;

struct cores_opts {
    const int *cpu; /* [n] own ones; n = 0: those this process may run on */
    int n;
    const int *borrow; /* [n_borrow] those it may try to borrow; n_borrow = 0: whatever else this process may run on */
    int n_borrow;
    const char *path; /* the file that workers of a host share, made where it is not there; NULL: nothing is lent or
                         borrowed */
    uint64_t rest_ns; /* 0: CORES_REST_NS */
};

/* ERR_PROTO: the file is of another release; ERR_NO: too many workers. */
int cores_open(struct err *e, struct cores **out, const struct cores_opts *o);
void cores_close(struct cores *c); /* NULL is safe; no thread may hold a core */

/* Reads a list as "0,2-5": *cpu [n], rising, to be freed. ERR_USAGE. */
int cores_list(struct err *e, int **cpu, int *n, const char *text);

int cores_own(const struct cores *c, const int **cpu);   /* how many */
int cores_other(const struct cores *c, const int **cpu); /* those it may try to borrow */

/* Keeps the calling thread, and threads that it makes, to the own cores. ERR_USAGE: the system has none of them. */
int cores_stay(struct err *e, const struct cores *c);

/* Ties the calling thread to a core, as well as the system lets it. */
void cores_pin(int cpu);

/* ---- the owner ---- */

/* It computes: who has borrowed its cores is sent away. Cheap where nobody has. By one thread at a time. */
void cores_work(struct cores *c);
void cores_rest(struct cores *c);

/* ---- a borrower: one hold a thread ---- */

struct cores_hold {
    int cpu;
    uint32_t tid;  /* of the thread, 0: not known yet */
    uint64_t word; /* what stands in the file while it is held; 0: not held */
};

/* The core looks as if cores_take would give it. For one thread at a time. */
bool cores_free(struct cores *c, int cpu, uint64_t now_ns);

/* Ties the calling thread to the core and takes it; true where it holds it already. false: its owner computes, or
 * another has it. */
bool cores_take(struct cores *c, struct cores_hold *h);

/* The owner has not asked for it. One load. */
bool cores_kept(const struct cores *c, const struct cores_hold *h);

/* No more of the borrower's work runs on it. */
void cores_give(struct cores *c, struct cores_hold *h);

#endif
