/*
 * Credentials for sessions over tls+tcp://: TLS 1.3, in which each side presents a certificate and checks that of the
 * other. A directory holds them, all in PEM:
 *
 *     ca.pem     certificates of the authorities whose certificates are accepted
 *     ROLE.pem   the certificate of this process, further ones up to its authority if there are any, and the private
 * key crl.pem    certificates that were revoked; may be absent
 *
 * What a peer may be is in its certificate, as URIs among the subject's alternative names (RFC 5280, 4.2.1.6):
 *
 *     urn:phasepipe:role:ROLE   worker, gateway, monitor, sched, tokenize or tool; one is needed, more are allowed
 *     urn:phasepipe:name:NAME   the peer must have one of these names; without any it may have every name
 *
 * The host name of a peer is not checked: a private authority and the role take its place, so an address may change.
 */
#ifndef LINK_PEER_TLS_H
#define LINK_PEER_TLS_H

#include "err/err.h"

#define PEER_TLS_ROLE_URI "urn:phasepipe:role:"
#define PEER_TLS_NAME_URI "urn:phasepipe:name:"

struct peer_tls;

/* Reads DIR/ca.pem, DIR/ROLE.pem and DIR/crl.pem. ERR_NO: a file is absent, not PEM, or the private key can be read by
 * other users; the certificate has expired, or states another role. May be called before the sandbox only. Used by one
 * thread at a time. */
int peer_tls_open(struct err *e, struct peer_tls **out, const char *dir, const char *role);
void peer_tls_close(struct peer_tls *t); /* after all hubs that use it; NULL is allowed */

#endif
