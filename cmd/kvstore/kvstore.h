/* Private to kvstore: a store, and its clients on a socket. */
#ifndef CMD_KVSTORE_H
#define CMD_KVSTORE_H

#include "base/log_limit.h"
#include "base/loop.h"
#include "kv/store.h"
#include "kv/tier.h"
#include "link/server.h"

#define PROG "kvstore"

struct late {         /* a lease whose response is sent when its blocks are read from the file tier */
    struct list node; /* peer.late */
    uint64_t tag, seq, gen;
};

struct digests {
    uint8_t *p;
    size_t n, cap; /* bytes */
};

struct peer { /* a connection */
    struct link_conn *conn;
    struct list node; /* kvstore.watchers, if it watches */
    bool open, lagging;
    uint32_t client; /* KV_NONE: it has no KV kind, and can only request stat and watch */
    struct list late;
    char name[WIRE_NAME_BYTES_MAX + 1];
};

struct kvstore {
    struct kv_kind kind;
    struct kv_store_opts o;
    uint64_t bytes;         /* memory budget of the slots */
    struct kv_arena *arena; /* NULL: none yet; a client may still bring one */
    uint64_t huge_bytes;    /* of the arena in huge pages; computed once, since the kernel walks every page for it */
    struct kv_store *store;
    struct loop *loop;
    struct loop_fd tier;
    struct link_server *server;
    struct peer **of_client; /* [n_client] */
    struct list watchers;
    bool draining, verbose;
    struct log_limit damaged, peers; /* of log lines on blocks, and of those that peers cause */
    /* Blocks stored and evicted since the last events to watchers. */
    struct digests stored, evicted;
};

extern const struct link_ops kvstore_ops; /* arg: struct kvstore */

/* Opens a store over an arena, new or left by an earlier kvstore. Owns the arena, also on failure. */
int kvstore_open_store(struct err *e, struct kvstore *k, struct kv_arena *a);
void kvstore_report_arena(const struct kvstore *k, const char *what);
void kvstore_event(void *arg, const struct kv_event *n);
/* Sends the changes to watchers. */
void kvstore_notify_watchers(struct kvstore *k);
/* Removes absent clients whose processes have ended. True while some are absent. */
bool kvstore_reap_absent(struct kvstore *k);

/* serve.c: the requests of an open client. */
void kvstore_serve(struct kvstore *k, struct peer *p, const struct wire_frame *f);
/* Sends the state of a sequence: the response to its lease if that is still owed, otherwise an event. */
void kvstore_seq_event(struct peer *p, const struct kv_seq_info *q);
void kvstore_refuse(struct peer *p, uint64_t tag, enum kv_why why, const struct err *e);

#endif
