/* Certificates. GnuTLS requests them at each handshake, so that reloaded ones take effect without a restart. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include "http/http_impl.h"

#define CHAIN_MAX 16
#define FILE_BYTES_MAX (1u << 20)

struct chain { /* previous chains stay allocated: a handshake may be using them */
    struct chain *previous;
    gnutls_pcert_st cert[CHAIN_MAX];
    unsigned n;
    gnutls_privkey_t key;
};

struct tls {
    char *cert, *key;
    struct chain *current;
};

/* Global, since the callback has no argument: all listeners of a process share the same files. */
static struct tls *active;

static void chain_free(struct chain *c)
{
    for (unsigned i = 0; i < c->n; i++)
        gnutls_pcert_deinit(&c->cert[i]);
    if (c->key)
        gnutls_privkey_deinit(c->key);
    free(c);
}

static int chain_load(struct err *e, struct chain *c, const struct tls *t)
{
    gnutls_datum_t cert = {NULL, 0}, key = {NULL, 0};
    int rc = gnutls_load_file(t->cert, &cert);
    if (rc < 0)
        return err_set(e, ERR_NO, "%s: %s", t->cert, gnutls_strerror(rc));
    c->n = CHAIN_MAX;
    rc = gnutls_pcert_list_import_x509_raw(c->cert, &c->n, &cert, GNUTLS_X509_FMT_PEM, 0);
    gnutls_free(cert.data);
    if (rc < 0 || !c->n) {
        c->n = 0;
        return err_set(e, ERR_NO, "%s: no PEM certificates: %s", t->cert, gnutls_strerror(rc));
    }
    rc = gnutls_load_file(t->key, &key);
    if (rc < 0)
        return err_set(e, ERR_NO, "%s: %s", t->key, gnutls_strerror(rc));
    rc = gnutls_privkey_init(&c->key);
    if (rc >= 0)
        rc = gnutls_privkey_import_x509_raw(c->key, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
    gnutls_memset(key.data, 0, key.size);
    gnutls_free(key.data);
    if (rc < 0)
        return err_set(e, ERR_NO, "%s: no PEM private key: %s", t->key, gnutls_strerror(rc));
    gnutls_pubkey_t pub = NULL;
    unsigned char a[64], b[64];
    size_t n_a = sizeof a, n_b = sizeof b;
    rc = gnutls_pubkey_init(&pub);
    rc = rc < 0 ? rc : gnutls_pubkey_import_privkey(pub, c->key, 0, 0);
    rc = rc < 0 ? rc : gnutls_pubkey_get_key_id(pub, 0, a, &n_a);
    rc = rc < 0 ? rc : gnutls_pubkey_get_key_id(c->cert[0].pubkey, 0, b, &n_b);
    if (pub)
        gnutls_pubkey_deinit(pub);
    if (rc < 0 || n_a != n_b || memcmp(a, b, n_a))
        return err_set(e, ERR_NO, "%s: this private key does not match the certificate %s", t->key, t->cert);
    return 0;
}

int tls_load(struct err *e, struct tls *t)
{
    struct chain *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, "certificates", sizeof *c);
    if (chain_load(e, c, t)) {
        chain_free(c);
        return e->code;
    }
    c->previous = t->current;
    t->current = c;
    return 0;
}

int tls_new(struct err *e, struct tls **out, const char *cert, const char *key)
{
    struct tls *t = calloc(1, sizeof *t);
    if (!t || !(t->cert = strdup(cert)) || !(t->key = strdup(key ? key : ""))) {
        tls_free(t);
        return err_nomem(e, "certificates", 0);
    }
    if (tls_load(e, t)) {
        tls_free(t);
        return e->code;
    }
    *out = active = t;
    return 0;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    while (t->current) {
        struct chain *c = t->current;
        t->current = c->previous;
        chain_free(c);
    }
    if (active == t)
        active = NULL;
    free(t->cert);
    free(t->key);
    free(t);
}

static int retrieve(gnutls_session_t session, const gnutls_datum_t *ca, int n_ca, const gnutls_pk_algorithm_t *algo,
                    int n_algo, gnutls_pcert_st **cert, unsigned *n, gnutls_privkey_t *key)
{
    (void)session, (void)ca, (void)n_ca, (void)algo, (void)n_algo;
    if (!active || !active->current)
        return -1;
    *cert = active->current->cert;
    *n = active->current->n;
    *key = active->current->key;
    return 0;
}

void *tls_callback(void)
{
    return (void *)retrieve;
}
