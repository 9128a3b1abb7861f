/*
 * A client of kvstore: calls that block for an answer, at most timeout_ms each; the arena, mapped; a thread that keeps
 * the lease alive, and that connects again when kvstore has gone, bringing the arena to the new one so that nothing is
 * lost. Calls may come from any thread, one at a time goes through.
 *
 * A call that fails while kvstore changes may have been done or not: the sequence in the arena says which.
 * ERR_NO with store_client_why KV_WHY_EXPIRED: this client was silent for too long, or another store has begun anew;
 * all it held is gone. It stops using slots and sequences, then calls store_client_renew_all.
 */
#ifndef LINK_STORE_CLIENT_H
#define LINK_STORE_CLIENT_H

#include "kv/store.h"
#include "wire/wire.h"

struct store_client;

struct store_client_opts {
    const char *url;            /* "unix:PATH" */
    const char *name;           /* of this program */
    const struct kv_kind *kind; /* NULL: only stat; nothing is held, so there is no thread */
    int timeout_ms;             /* of a call; 0: 10 s. To connect too */
};

/* Waits for a kvstore that is just starting. ERR_PROTO: it holds other KV, in words. */
int store_client_open(struct err *e, struct store_client **out, const struct store_client_opts *o);
void store_client_close(struct store_client *c);                   /* gives all back */
struct kv_arena *store_client_arena(const struct store_client *c); /* NULL without a kind; changes in _renew_all */
enum kv_why store_client_why(const struct store_client *c); /* of the last call that failed; 0: none of its reasons */
/* Its connection is there; a call would not wait for one. True too where the lease has ended, which a call says. */
bool store_client_up(const struct store_client *c);
/* Of the present connection, to be polled for what comes unasked; another one after each time it broke. */
int store_client_fd(const struct store_client *c);

/* As in kv/store.h. */
int store_client_lease(struct err *e, struct store_client *c, struct kv_seq_info *out, const uint32_t *ids,
                       uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait);
int store_client_credit(struct err *e, struct store_client *c, uint32_t *slot, uint64_t *got, uint64_t n, bool some);
int store_client_uncredit(struct err *e, struct store_client *c, const uint32_t *slot, uint64_t n);
int store_client_publish(struct err *e, struct store_client *c, uint32_t *out, const struct kv_publish *p);
int store_client_hand(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq, uint64_t gen);
int store_client_take(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq, uint64_t gen);
int store_client_release(struct err *e, struct store_client *c, uint64_t seq, uint64_t gen);
int store_client_renew(struct err *e, struct store_client *c);
int store_client_stat(struct err *e, struct store_client *c, struct wire_kv_stat *out);

/* News of a sequence that waited: ERR_NO where none came in time. */
int store_client_news(struct err *e, struct store_client *c, struct kv_seq_info *out, int timeout_ms);

/* After KV_WHY_EXPIRED: a new client on a new connection. The arena may be another one: the old mapping is gone. */
int store_client_renew_all(struct err *e, struct store_client *c);

#endif
