/* The service manager: messages to it (sd_notify), and descriptors it keeps for the next process of a service. */
#ifndef PROC_NOTIFY_H
#define PROC_NOTIFY_H

#include "err/err.h"

/* Sends `text` ("READY=1") to $NOTIFY_SOCKET, with a descriptor (-1: none). Without that variable: nothing, 0. */
int proc_notify(struct err *e, const char *text, int fd);
/*
 * A service is ready: READY=1 is sent to the manager, and the readiness message is written to fd (-1: none), which is
 * closed: a line "ready", then a line KEY=VALUE for each address. All of it is one write, which a pipe takes whole.
 * *manager: if the manager cannot be reached, why, and the rest is done all the same; NULL: that is an error too.
 * addresses: those lines, PROC_READY_BYTES_MAX at most; "": none.
 */
#define PROC_READY_BYTES_MAX 4000
int proc_ready(struct err *e, struct err *manager, int fd);
int proc_ready_at(struct err *e, struct err *manager, int fd, const char *addresses);
/*
 * Keeps the manager's watchdog from expiring: sends WATCHDOG=1 when a quarter of $WATCHDOG_USEC has passed since the
 * last time, unless $WATCHDOG_PID is another process. Without that variable: nothing. A service calls it in each
 * iteration of its loop, at least once a second, and a long computation calls it whenever a part of its work is done,
 * so a busy service differs from one that hangs. Called by one thread of a process.
 */
void proc_alive(void);
/* A descriptor of this name that the manager kept ($LISTEN_FDS); -1: none. The caller's from here on. */
int proc_kept_fd(const char *name);

#endif
