/* Private to lib/link: see peer_tls.h. */
#ifndef LINK_PEER_TLS_IMPL_H
#define LINK_PEER_TLS_IMPL_H

#include <stdbool.h>
#include <stddef.h>

#include <gnutls/gnutls.h>

#include "link/peer_tls.h"

#define PEER_LIST_BYTES 1024

struct peer_tls {
    gnutls_certificate_credentials_t credentials;
    gnutls_priority_t priority;
};

/* What a certificate permits. Lists are separated by spaces. */
struct peer_identity {
    char roles[PEER_LIST_BYTES], names[PEER_LIST_BYTES];
    bool has_names; /* otherwise any name */
};

/* ERR_PROTO: the certificate states no role, or a name with blanks. */
int peer_identity_read(struct err *e, struct peer_identity *id, gnutls_x509_crt_t crt);
/* Whether the list has this word of n bytes. */
bool peer_list_has(const char *list, const char *word, size_t n);

#endif
