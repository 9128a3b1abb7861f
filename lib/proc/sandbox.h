/*
 * What a process gives up before it reads anything from outside, so that a fault in a parser is worth little:
 *
 *   files           by Landlock: only what the calls below name can be opened, and /usr, /lib, /etc, /proc and /sys for
 *                   reading. Open descriptors and sockets stay usable; connect(2) is not restricted.
 *   system calls    by seccomp, with EPERM: new programs and processes, tracing and memory of other processes, mounts,
 *                   namespaces, kernel modules, keys, BPF, performance events, io_uring, changes of user or clock,
 *                   sockets that are neither Unix nor IP, and memory that is writable and executable
 *   privileges      none can be gained (PR_SET_NO_NEW_PRIVS)
 *
 * A kernel without Landlock or seccomp restricts less; that is no error. PHASEPIPE_SANDBOX=0 in the environment turns
 * all of it off, and so does a build with a sanitizer, whose runtime needs what is refused here.
 */
#ifndef PROC_SANDBOX_H
#define PROC_SANDBOX_H

#include <stdint.h>

#include "err/err.h"

struct sandbox {
    int fd;         /* the Landlock ruleset; -1: none */
    uint64_t write; /* rights within a directory that is kept for writing */
};

void sandbox_begin(struct sandbox *s);
/* What the calls below cannot grant stays refused. NULL, and a path that does not exist, is ignored. */
void sandbox_read(struct sandbox *s, const char *path);         /* a file, or a directory with all below it */
void sandbox_read_beside(struct sandbox *s, const char *path);  /* the directory of a file that may be replaced */
void sandbox_write(struct sandbox *s, const char *dir);         /* make, change and remove files and sockets in it */
void sandbox_write_beside(struct sandbox *s, const char *path); /* the same in the directory of a file */
/* The same in the directory of a Unix socket: ipc://PATH or unix:PATH. Other addresses are ignored. */
void sandbox_socket(struct sandbox *s, const char *address);
/*
 * Enters it; for ever, and for the threads that are created later. So call it before any is. ERR_SYS: the kernel
 * refuses what it offers.
 */
int sandbox_enter(struct err *e, struct sandbox *s);

#endif
