/*
 * Private to cmd/stream: requests to the services. Three threads, so that none waits for another's end of the line: one
 * reads requests, one has the gateway and its heartbeat, and the main one prints. What is read and not yet printed is
 * bounded by the number of slots.
 */
#ifndef STREAM_SERVICE_H
#define STREAM_SERVICE_H

#include <pthread.h>
#include <signal.h>

#include "cmd/stream/stream.h"
#include "gateway/gateway.h"

struct slot {         /* a line that is not answered in print */
    bool used, taken; /* taken: the scheduler knows it */
    uint64_t seq, line;
    uint32_t left; /* answers that are not shown; 0: not known yet */
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
    int wake; /* eventfd of the gateway's thread */

    pthread_mutex_t lock;
    pthread_cond_t changed; /* frames, over, or room */
    struct pieces lines, frames;
    struct slot *slot; /* [running_max] */
    uint64_t n_used, next_seq;
    bool input_over;   /* no more lines */
    bool reader_over;  /* its thread has ended */
    bool over;         /* the gateway has nothing more to say */
    uint64_t heard_ns; /* when a frame or a line came last; of the thread of the gateway */
    bool quit;         /* the printer has ended */
    struct err reader_err, gateway_err;
    struct show *show;
};

void pieces_add(struct pieces *l, struct piece *x);
void service_wake(struct service *s);

/* reader.c: the thread that reads requests. */
void *reader(void *service);

#endif
