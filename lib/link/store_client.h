/*
 * A client of kvstore, with its arena mapped. A call blocks until the response, at most timeout_ms. A thread renews the
 * lease, and connects again after kvstore has restarted; it passes the arena to the new kvstore, so that sequences and
 * slots survive. Calls may come from any thread; a lock serializes them.
 *
 * A call that fails because kvstore restarted may or may not have taken effect: the state of the sequence in the arena
 * shows which.
 *
 * ERR_NO with store_client_why KV_WHY_EXPIRED: the lease has expired (this client was silent for too long, or kvstore
 * has started without its arena), and all slots and sequences of this client are lost. The caller must stop using them
 * and call store_client_renew_all.
 */
#ifndef LINK_STORE_CLIENT_H
#define LINK_STORE_CLIENT_H

#include "kv/store.h"
#include "wire/wire.h"

struct store_client;

struct store_client_opts {
    const char *url;            /* "unix:PATH" */
    const char *name;           /* of this program */
    const struct kv_kind *kind; /* NULL: the client can only call stat, has no lease and no thread */
    int timeout_ms;             /* of a call and of connecting; 0: 10 s */
};

/* Blocks until kvstore is ready, at most timeout_ms. ERR_PROTO: kvstore holds KV of another model or layout. */
int store_client_open(struct err *e, struct store_client **out, const struct store_client_opts *o);
void store_client_close(struct store_client *c); /* releases all slots and sequences; NULL is allowed */
/* NULL without a kind; borrowed, and replaced by store_client_renew_all. */
struct kv_arena *store_client_arena(const struct store_client *c);
/* The reason of the last call that failed; 0: not refused by kvstore (a timeout, a lost connection). */
enum kv_why store_client_why(const struct store_client *c);
/* Whether a call would not wait for a connection. Also true when the lease has expired: calls then fail at once. */
bool store_client_up(const struct store_client *c);
/* The socket of the current connection, to poll for store_client_next_event; it changes with each reconnect. */
int store_client_fd(const struct store_client *c);

/* As in kv/store.h. */
int store_client_lease(struct err *e, struct store_client *c, struct kv_seq_info *out, const uint32_t *ids,
                       uint64_t n_id, const uint8_t *digests, uint64_t n_block, bool wait);
int store_client_reserve(struct err *e, struct store_client *c, uint32_t *slot, uint64_t *got, uint64_t n, bool some);
int store_client_release_slots(struct err *e, struct store_client *c, const uint32_t *slot, uint64_t n);
int store_client_publish(struct err *e, struct store_client *c, uint32_t *out, const struct kv_publish *p);
int store_client_transfer_out(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq,
                              uint64_t gen);
int store_client_transfer_in(struct err *e, struct store_client *c, struct kv_seq_info *out, uint64_t seq,
                             uint64_t gen);
int store_client_release(struct err *e, struct store_client *c, uint64_t seq, uint64_t gen);
int store_client_renew(struct err *e, struct store_client *c);
int store_client_stat(struct err *e, struct store_client *c, struct wire_kv_stat *out);

/* The next notification that a waiting sequence has grown. Blocks for at most timeout_ms; ERR_NO: none in time. */
int store_client_next_event(struct err *e, struct store_client *c, struct kv_seq_info *out, int timeout_ms);

/* After KV_WHY_EXPIRED: registers as a new client on a new connection. The arena may be another one; the old mapping is
 * then invalid. */
int store_client_renew_all(struct err *e, struct store_client *c);

#endif
