/*
 * Private to cmd/stream: requests to the services. Three threads, so that blocking input or output delays no session:
 * one reads requests, one runs the gateway client, and the main one prints. The number of slots bounds the requests
 * that are read and not printed.
 */
#ifndef STREAM_SERVICE_H
#define STREAM_SERVICE_H

#include <pthread.h>
#include <signal.h>

#include "cmd/stream/stream.h"
#include "gateway/gateway.h"

struct slot {         /* a request whose answers are not all printed */
    bool used, taken; /* taken: the scheduler has accepted it */
    uint64_t seq, line;
    uint32_t left; /* answers that are not printed; 0: not known yet */
};

struct piece { /* a line for the gateway, or a frame for the printer; p: malloc'd, NULL: over the limit */
    struct piece *next;
    uint64_t seq;
    char *id; /* of a line; malloc'd, NULL: none */
    size_t n_id;
    uint8_t *p;
    size_t n;
};

struct pieces {
    struct piece *first, **last;
};

struct service {
    const struct service_opts *o;
    struct gateway *g;
    int wake; /* eventfd that wakes the gateway thread */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* frames, over, or room */
    struct pieces lines, frames;
    struct slot *slot; /* [running_max] */
    uint64_t n_used, next_seq;
    bool input_over;           /* no more lines */
    bool reader_over;          /* its thread has ended */
    bool over;                 /* no frame of the gateway follows */
    uint64_t last_received_ns; /* when the last frame or line arrived; used by the gateway thread only */
    bool quit;                 /* the printer has ended */
    struct err reader_err, gateway_err;
    struct show *show;
};

void pieces_add(struct pieces *l, struct piece *x);
void service_wake(struct service *s);

/* reader.c: the thread that reads requests. */
void *reader(void *service);

#endif
