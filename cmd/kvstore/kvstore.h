/* Private to kvstore: a store behind a socket. */
#ifndef CMD_KVSTORE_H
#define CMD_KVSTORE_H

#include "base/loop.h"
#include "kv/store.h"
#include "kv/tier.h"
#include "link/server.h"

#define PROG "kvstore"

struct late {         /* a lease that is answered when its blocks are read from the file tier */
    struct list node; /* peer.late */
    uint64_t tag, seq, gen;
};

struct digests {
    uint8_t *p;
    size_t n, cap; /* bytes */
};

struct peer { /* of a connection */
    struct link_conn *conn;
    struct list node; /* kvstore.watchers; in none unless it watches */
    bool open, lagging;
    uint32_t client; /* KV_NONE: it only asks and watches */
    struct list late;
    char name[WIRE_NAME_BYTES_MAX + 1];
};

struct kvstore {
    struct kv_kind kind;
    struct kv_store_opts o;
    uint64_t bytes;         /* for slots */
    struct kv_arena *arena; /* NULL: none yet, one may still be brought */
    uint64_t huge_bytes;    /* of it in huge pages, looked up once: the kernel walks every page for it */
    struct kv_store *store;
    struct loop *loop;
    struct loop_fd tier;
    struct link_server *server;
    struct peer **of_client; /* [n_client] */
    struct list watchers;
    bool draining, verbose;
    /* Blocks that came and went since watchers were told last. */
    struct digests stored, evicted;
};

extern const struct link_ops kvstore_ops; /* arg: struct kvstore */

/* Puts a store over an arena (taken): new, or one that is left. */
int kvstore_over(struct err *e, struct kvstore *k, struct kv_arena *a);
void kvstore_say_arena(const struct kvstore *k, const char *what);
void kvstore_news(void *arg, const struct kv_news *n);
/* Tells watchers what has changed. */
void kvstore_tell_watchers(struct kvstore *k);
/* Clients of the store before whose processes have ended are gone. True while some are absent. */
bool kvstore_bury_absent(struct kvstore *k);

/* serve.c: what a client asks for, once it is open. */
void kvstore_serve(struct kvstore *k, struct peer *p, const struct wire_frame *f);
/* What a sequence is now: the answer to the lease that waited for it, or unasked. */
void kvstore_seq_news(struct peer *p, const struct kv_seq_info *q);
void kvstore_refuse(struct peer *p, uint64_t tag, enum kv_why why, const struct err *e);

#endif
