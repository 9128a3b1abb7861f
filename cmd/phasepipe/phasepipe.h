/* Private to cmd/phasepipe. */
#ifndef PHASEPIPE_H
#define PHASEPIPE_H

#include <stddef.h>
#include <sys/types.h>

#include "err/err.h"

/* The directory of the programs: that of this binary if they are in it, otherwise ../libexec/phasepipe. */
int programs_dir(struct err *e, char *out, size_t n);

/* pipeline.c: tokenize | prefill | decode as children in their own process group, so that Ctrl-C in the terminal
 * signals only the conversation. */
#define PIPELINE_N 3
struct pipeline {
    pid_t pid[PIPELINE_N];
    int in;  /* JSON lines to tokenize */
    int out; /* frames of decode */
};
/* model: NULL for the default one; threads: NULL for all processors. */
int pipeline_start(struct err *e, struct pipeline *p, const char *model, const char *threads);
/* Closes `in`; with `now` the children are killed, otherwise they end after `out` was read to its end. ERR_NO: the text
 * names the first program that failed. */
int pipeline_end(struct err *e, struct pipeline *p, int now);

/* The commands: of cache.c, up.c, ps.c, top.c, ctl.c, chat.c, tls_init.c and unit_cores.c. The exit status. */
int chat(int argc, char **argv);
int up(int argc, char **argv);
int ps(int argc, char **argv);
int down(int argc, char **argv);
int top(int argc, char **argv);
int ctl(int argc, char **argv);
int cache(int argc, char **argv);
int tls_init(int argc, char **argv);
int unit_cores(int argc, char **argv);

#endif
