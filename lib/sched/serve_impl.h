/* Private to lib/sched: the service inside. serve.c has its loop, serve_peers.c who is connected and what waits to be
 * told, serve_stores.c the news of stores. */
#ifndef SCHED_SERVE_IMPL_H
#define SCHED_SERVE_IMPL_H

#include <pthread.h>

#include "link/ask.h"
#include "sched/machine.h"
#include "sched/serve.h"

#define SERVE_QUEUE_BYTES_MAX (16u << 20) /* what waits for a gateway's poll; more, and it is to submit again */

/* Somebody with a name: a worker, or a gateway. */
struct speaker {
    char *name;
    uint64_t hash, inc;
    bool gateway;
    uint32_t conn;                        /* 0: gone */
    struct link_question *poll, *control; /* parked; control: of workers */
    struct link_msg to_poll, to_control;  /* what the machine has for them, in this instant or (gateways) since */
    uint64_t parked_ns;
    bool touched, overrun;
    struct speaker *next_touched, *next, *prev;
};

struct news { /* of a store */
    struct news *next;
    struct wire_blocks blocks;
};

struct kept { /* a handed sequence that still waits for its decode worker, or that none will come for */
    uint64_t seq, gen;
};

struct watch {
    struct serve *v;
    char name[WIRE_NAME_BYTES_MAX + 1], url[WIRE_URL_BYTES_MAX + 1];
    pthread_t thread;
    struct kept *keep; /* to be told to the store; under the service's lock */
    size_t n_keep;
    struct kept *go; /* to be ended there; the same */
    size_t n_go, size_go;
};

struct serve {
    struct sched *s;
    const struct sched_serve_opts *o;
    struct link_box *box;
    struct link_listener *listener;
    struct wire_arena *arena;
    uint64_t last_ns, allowed_ns, skew_ns; /* the clock */

    struct map speakers;
    struct speaker *first, *touched;
    struct link_msg direct; /* the answer to the message that is being read */
    bool broken;
    struct err why;

    bool ending;
    uint64_t end_ns, said_ns, n_unsaid, keep_ns;

    struct watch watch[SCHED_SERVE_STORES_MAX];
    size_t n_watch;
    pthread_mutex_t lock; /* of the news, and stop */
    struct news *news, **last_news;
    uint64_t news_bytes;
    pthread_cond_t room;
    bool stop;
};

uint64_t serve_now(struct serve *v);
void serve_broken(struct serve *v, const struct err *e); /* no memory: the loop ends with it */
void serve_say(struct serve *v, const char *text);

struct speaker *speaker_find(struct serve *v, struct wire_str name, bool gateway);
int speaker_get(struct err *e, struct speaker **out, struct serve *v, struct wire_str name, bool gateway);
/* The sink of the machine. */
void speaker_tell(void *arg, const struct wire_frame *f);
void speaker_park(struct serve *v, struct speaker *p, struct link_question *q, bool control, uint64_t now_ns);
void speakers_flush(struct serve *v);
/* Polls of gateways come back empty after a heartbeat; *next_ns: when the next one is due, where that is sooner. */
void speakers_timers(struct serve *v, uint64_t now_ns, uint64_t *next_ns);
/* Of a connection that is gone: the machine is told. */
void speakers_gone(struct serve *v, uint32_t conn);
void speakers_free(struct serve *v);
bool speakers_quiet(const struct serve *v); /* nothing waits for a gateway */

int stores_open(struct err *e, struct serve *v);
void stores_close(struct serve *v);
/* What waits for decode is not to end before it is taken: called now and then. */
void stores_keep(struct serve *v);
/* Nobody will take it: the machine's let_go. */
void stores_let_go(void *arg, const char *store, const uint8_t handle[16]);
struct news *stores_take(struct serve *v); /* oldest first, or NULL; freed by news_free */
void news_free(struct news *n);

#endif
