/* Private to lib/sched: the service inside. serve.c has its loop, serve_peers.c the sessions of workers, gateways and
 * tools, serve_stores.c those with the stores. */
#ifndef SCHED_SERVE_IMPL_H
#define SCHED_SERVE_IMPL_H

#include "base/list.h"
#include "base/log_limit.h"
#include "link/session.h"
#include "sched/machine.h"
#include "sched/serve.h"

#define SERVE_QUEUE_BYTES_MAX (64u << 20) /* that wait for a worker; more, and its session is closed */

struct serve;

struct peer { /* an accepted session */
    struct session *s;
    enum { PEER_WORKER, PEER_GATEWAY, PEER_TOOL } role;
    uint64_t hash;
    uint8_t *queue; /* of a worker: encoded frames that its window does not take yet; the first starts at queue_at */
    size_t queue_at, queue_n, queue_size;
    struct list node;
};

struct store_watch { /* a plain session with a kvstore */
    struct session *s;
    const char *name;
    bool said; /* that it refuses to be watched */
};

struct serve {
    struct sched *s;
    const struct sched_serve_opts *o;
    struct session_hub *hub;
    struct session_listener *listener;
    struct wire_arena *arena;
    uint64_t last_ns, allowed_ns, skew_ns; /* the clock */

    struct map peers;    /* workers and gateways, by role and name */
    struct list all;     /* peers, tools too */
    struct peer *sender; /* of the frame that is being processed: gets what the machine emits without a name */
    bool broken;
    struct err why;

    bool ending;
    uint64_t end_ns;
    struct log_limit peer_log;

    struct store_watch store[SCHED_SERVE_STORES_MAX];
    size_t n_store;
};

void serve_broken(struct serve *v, const struct err *e); /* no memory: the loop ends with it */
void serve_say(struct serve *v, const char *text);
void serve_say_some(struct serve *v, const char *text);  /* for what peers cause: log_limit */
void serve_event(struct serve *v, struct wire_frame *f); /* one that the service makes; sets at_ns */

/* ---- serve_peers.c ---- */

void peer_up(struct serve *v, struct session *s);
/* Reports the peer to the machine as gone, logs why if it broke the protocol, and frees it. */
void peer_down(struct serve *v, struct peer *p, const struct err *why);
void peer_acked(struct serve *v, struct peer *p);
void peers_free(struct serve *v);
bool peers_quiet(const struct serve *v); /* gateways have processed all that was sent to them */
/* ERR_PROTO: this peer may not send this frame. */
int peer_check(struct err *e, const struct peer *p, const struct wire_frame *f);
/* Does not wait. Orders and controls are queued while a worker's window is full, at most SERVE_QUEUE_BYTES_MAX and a
 * frame of them until it is empty again; any other peer whose window is full, and any other frame, closes the session.
 */
void peer_send(struct serve *v, struct peer *p, const struct wire_frame *f);
/* The sink of the machine; arg is the service. */
void peers_emit(void *arg, const struct wire_frame *f);

/* ---- serve_stores.c ---- */

int stores_open(struct err *e, struct serve *v);
void stores_close(struct serve *v);
struct store_watch *store_of(struct serve *v, const struct session *s); /* NULL: the session of a peer */
void store_session(struct serve *v, struct store_watch *w, const struct session_event *x);
/* let_go of the machine's sink; arg is the service. */
void stores_let_go(void *arg, const char *store, struct wire_bytes handle);

#endif
