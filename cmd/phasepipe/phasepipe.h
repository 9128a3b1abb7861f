/* Private to cmd/phasepipe. */
#ifndef PHASEPIPE_H
#define PHASEPIPE_H

#include <stddef.h>
#include <sys/types.h>

#include "err/err.h"

/* The directory of the programs: that of this binary where they lie beside it, else ../libexec/phasepipe. */
int programs_dir(struct err *e, char *out, size_t n);

/* pipeline.c: tokenize | prefill | decode as children, in a process group of their own, so that a Ctrl-C in the
 * terminal is for the conversation alone. */
#define PIPELINE_N 3
struct pipeline {
    pid_t pid[PIPELINE_N];
    int in;  /* JSON lines to tokenize */
    int out; /* frames of decode */
};
/* model: NULL for the default one; threads: NULL for what the machine has. */
int pipeline_start(struct err *e, struct pipeline *p, const char *model, const char *threads);
/* Closes `in`; with `now` the children are killed, otherwise they end by themselves once `out` was read to its end.
 * ERR_NO naming the first program that failed. */
int pipeline_end(struct err *e, struct pipeline *p, int now);

/* The commands: of up.c, ps.c, top.c, ctl.c and chat.c. The exit status. */
int chat(int argc, char **argv);
int up(int argc, char **argv);
int ps(int argc, char **argv);
int down(int argc, char **argv);
int top(int argc, char **argv);
int ctl(int argc, char **argv);

#endif
