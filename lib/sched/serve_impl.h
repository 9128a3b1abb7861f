/* Private to lib/sched: the service. serve.c has its loop, serve_peers.c the sessions of workers, gateways and tools,
 * serve_stores.c the sessions with the stores. */
#ifndef SCHED_SERVE_IMPL_H
#define SCHED_SERVE_IMPL_H

#include "base/list.h"
#include "base/log_limit.h"
#include "link/session.h"
#include "sched/machine.h"
#include "sched/serve.h"

#define SERVE_QUEUE_BYTES_MAX (64u << 20) /* queued for a worker; with more its session is closed */

struct serve;

struct peer { /* an accepted session */
    struct session *s;
    enum { PEER_WORKER, PEER_GATEWAY, PEER_TOOL, PEER_MONITOR } role; /* those after a gateway have no name */
    uint64_t hash;
    uint8_t *queue; /* of a worker: encoded frames for which its session has no room yet; the first at queue_at */
    size_t queue_at, queue_n, queue_size;
    struct list node;
};

struct store_watch { /* a plain session to a kvstore, for its events */
    struct session *s;
    const char *name;
    bool refusal_logged;
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
    struct peer *sender; /* of the frame that is being processed: receives decisions that name no peer */
    bool broken;
    struct err failure; /* if broken */

    bool ending; /* graceful shutdown, at the latest at end_ns */
    uint64_t end_ns;
    struct log_limit peer_log;

    struct store_watch store[SCHED_SERVE_STORES_MAX];
    size_t n_store;
};

void serve_broken(struct serve *v, const struct err *e); /* ends the loop with this error: no memory */
void serve_log(struct serve *v, const char *text);
void serve_log_limited(struct serve *v, const char *text); /* for lines that peers can cause (log_limit) */
void serve_event(struct serve *v, struct wire_frame *f);   /* an event of the service itself; sets at_ns */

/* ---- serve_peers.c ---- */

void peer_up(struct serve *v, struct session *s);
/* Sends `gone` of the peer to the state machine, logs the reason if the peer broke the protocol, and frees it. */
void peer_down(struct serve *v, struct peer *p, const struct err *reason);
void peer_acked(struct serve *v, struct peer *p);
void peers_close(struct serve *v); /* ends all sessions with a reason; SESSION_DOWN follows for each */
void peer_free(struct serve *v, struct peer *p);
void peers_free(struct serve *v);
bool peers_quiet(const struct serve *v); /* the gateways have acknowledged all frames */
/* ERR_PROTO: this peer must not send this frame, or it names another peer as its sender. */
int peer_check(struct err *e, const struct peer *p, const struct wire_frame *f);
/* Does not block. If the session of a worker is full, work items and controls are queued: at most SERVE_QUEUE_BYTES_MAX
 * and one frame. For any other frame or peer a full session is closed, since the peer does not read. */
void peer_send(struct serve *v, struct peer *p, const struct wire_frame *f);
/* emit of the sink; arg: struct serve. */
void peers_emit(void *arg, const struct wire_frame *f);

/* ---- serve_stores.c ---- */

int stores_open(struct err *e, struct serve *v);
void stores_close(struct serve *v);
struct store_watch *store_of(struct serve *v, const struct session *s); /* NULL: the session of a peer */
void store_session(struct serve *v, struct store_watch *w, const struct session_event *x);
/* release of the sink; arg: struct serve. */
void stores_release(void *arg, const char *store, struct wire_bytes handle);

#endif
