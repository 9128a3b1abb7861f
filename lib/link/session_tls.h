/*
 * Private to lib/link: TLS of one connection, without sockets. Received bytes and plain bytes to send are its input;
 * plain bytes that were received and bytes to write are its output.
 */
#ifndef LINK_SESSION_TLS_H
#define LINK_SESSION_TLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "err/err.h"
#include "link/peer_tls.h"

struct session_tls;

/* Starts a handshake. ERR_SYS: no memory. */
int session_tls_new(struct err *e, struct session_tls **out, struct peer_tls *t, bool dialed);
void session_tls_free(struct session_tls *t); /* NULL is allowed */

/* Takes n received bytes, and continues the handshake. ERR_PROTO: the peer is refused, or has refused this side; an
 * alert for it may be queued. */
int session_tls_feed(struct err *e, struct session_tls *t, const uint8_t *p, size_t n);
bool session_tls_is_up(const struct session_tls *t); /* the handshake is complete; the peer is authenticated */
/* Of the peer's certificate, separated by spaces; "" before the handshake is complete. names NULL: any name. */
const char *session_tls_roles(const struct session_tls *t);
const char *session_tls_names(const struct session_tls *t);

/* Appends the plain bytes received to out. ERR_PROTO: the peer violated TLS. */
int session_tls_recv(struct err *e, struct session_tls *t, struct buf *out);
/* Encrypts at most n plain bytes; returns how many. Fewer if the handshake is not complete, or if bytes wait to be
 * written already. */
size_t session_tls_send(struct session_tls *t, const uint8_t *p, size_t n);

/* Bytes to write now; n 0: none. They do not move until session_tls_wrote has counted all of them. */
const uint8_t *session_tls_out(struct session_tls *t, size_t *n);
void session_tls_wrote(struct session_tls *t, size_t n);
bool session_tls_has_out(const struct session_tls *t);

#endif
