/* TLS 1.2 and 1.3. A connection holds the certificates with which it began, so that reloaded ones take effect without a
 * restart and the previous ones are freed with their last connection. */
#include <stdlib.h>
#include <string.h>

#include <gnutls/abstract.h>
#include <gnutls/gnutls.h>

#include "base/file.h"
#include "http/http_impl.h"

#define CHAIN_MAX 16
#define FILE_BYTES_MAX ((size_t)1 << 20)
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2"

struct chain {
    uint32_t n_ref;
    gnutls_certificate_credentials_t credentials;
};

struct tls {
    char *cert, *key;
    gnutls_priority_t priority;
    struct chain *current;
};

struct tls_session {
    gnutls_session_t s;
    struct chain *chain;
    bool bye; /* the handshake is complete */
};

static void chain_release(struct chain *c)
{
    if (!c || --c->n_ref)
        return;
    if (c->credentials)
        gnutls_certificate_free_credentials(c->credentials);
    free(c);
}

/* out->data is freed by file_forget. */
static int read_pem(struct err *e, gnutls_datum_t *out, const char *path, const char *what, enum file_access access)
{
    size_t n;
    int rc = file_load(e, &out->data, &n, path, FILE_BYTES_MAX, what, access);
    out->size = rc ? 0 : (unsigned)n;
    return rc;
}

static int read_certs(struct err *e, gnutls_pcert_st cert[CHAIN_MAX], unsigned *n, const char *path)
{
    gnutls_datum_t pem;
    if (read_pem(e, &pem, path, "certificate", FILE_ANY))
        return e->code;
    *n = CHAIN_MAX;
    int rc = gnutls_pcert_list_import_x509_raw(cert, n, &pem, GNUTLS_X509_FMT_PEM, 0);
    file_forget(pem.data, pem.size);
    if (rc >= 0 && *n)
        return 0;
    *n = 0;
    return err_set(e, ERR_NO, "%s: no PEM certificates: %s", path, gnutls_strerror(rc));
}

static int read_key(struct err *e, gnutls_privkey_t *key, const char *path)
{
    gnutls_datum_t pem;
    if (read_pem(e, &pem, path, "private key", FILE_SECRET))
        return e->code;
    int rc = gnutls_privkey_init(key);
    if (rc >= 0)
        rc = gnutls_privkey_import_x509_raw(*key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    file_forget(pem.data, pem.size);
    return rc < 0 ? err_set(e, ERR_NO, "%s: no PEM private key: %s", path, gnutls_strerror(rc)) : 0;
}

static bool match(const gnutls_pcert_st *cert, gnutls_privkey_t key)
{
    gnutls_pubkey_t pub = NULL;
    unsigned char a[64], b[64];
    size_t n_a = sizeof a, n_b = sizeof b;
    int rc = gnutls_pubkey_init(&pub);
    rc = rc < 0 ? rc : gnutls_pubkey_import_privkey(pub, key, 0, 0);
    rc = rc < 0 ? rc : gnutls_pubkey_get_key_id(pub, 0, a, &n_a);
    rc = rc < 0 ? rc : gnutls_pubkey_get_key_id(cert->pubkey, 0, b, &n_b);
    if (pub)
        gnutls_pubkey_deinit(pub);
    return rc >= 0 && n_a == n_b && !memcmp(a, b, n_a);
}

static int chain_load(struct err *e, struct chain *c, const struct tls *t)
{
    gnutls_pcert_st cert[CHAIN_MAX];
    gnutls_privkey_t key = NULL;
    unsigned n = 0;
    int rc = read_certs(e, cert, &n, t->cert);
    rc = rc ? rc : read_key(e, &key, t->key);
    if (!rc && !match(&cert[0], key))
        rc = err_set(e, ERR_NO, "%s: this private key does not match the certificate %s", t->key, t->cert);
    if (!rc && gnutls_certificate_allocate_credentials(&c->credentials) < 0)
        rc = err_nomem(e, "certificates", 0);
    if (!rc && gnutls_certificate_set_key(c->credentials, NULL, 0, cert, (int)n, key) >= 0)
        return 0; /* which owns certificates and key now */
    if (!rc)
        rc = err_set(e, ERR_NO, "%s: GnuTLS cannot use this certificate and its key", t->cert);
    for (unsigned i = 0; i < n; i++)
        gnutls_pcert_deinit(&cert[i]);
    if (key)
        gnutls_privkey_deinit(key);
    return rc;
}

int tls_load(struct err *e, struct tls *t)
{
    struct chain *c = calloc(1, sizeof *c);
    if (!c)
        return err_nomem(e, "certificates", sizeof *c);
    c->n_ref = 1;
    if (chain_load(e, c, t)) {
        chain_release(c);
        return e->code;
    }
    chain_release(t->current);
    t->current = c;
    return 0;
}

int tls_new(struct err *e, struct tls **out, const char *cert, const char *key)
{
    struct tls *t = calloc(1, sizeof *t);
    int rc = t && (t->cert = strdup(cert)) && (t->key = strdup(key ? key : "")) ? 0 : err_nomem(e, "certificates", 0);
    if (!rc && gnutls_priority_init(&t->priority, PRIORITY, NULL) < 0)
        rc = err_set(e, ERR_SYS, "GnuTLS does not accept the priorities %s", PRIORITY);
    rc = rc ? rc : tls_load(e, t);
    *out = rc ? NULL : t;
    if (rc)
        tls_free(t);
    return rc;
}

void tls_free(struct tls *t)
{
    if (!t)
        return;
    chain_release(t->current);
    if (t->priority)
        gnutls_priority_deinit(t->priority);
    free(t->cert);
    free(t->key);
    free(t);
}

/* ---- sessions ---- */

struct tls_session *tls_open(struct tls *t, int fd)
{
    struct tls_session *s = calloc(1, sizeof *s);
    if (!s || gnutls_init(&s->s, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL) < 0) {
        free(s);
        return NULL;
    }
    s->chain = t->current;
    s->chain->n_ref++;
    gnutls_priority_set(s->s, t->priority);
    gnutls_credentials_set(s->s, GNUTLS_CRD_CERTIFICATE, s->chain->credentials);
    gnutls_transport_set_int(s->s, fd);
    return s;
}

int tls_handshake(struct tls_session *s)
{
    int rc = gnutls_handshake(s->s);
    s->bye = rc >= 0;
    return rc >= 0 ? 1 : gnutls_error_is_fatal(rc) ? -1 : 0;
}

bool tls_wants_write(const struct tls_session *s)
{
    return gnutls_record_get_direction(s->s) == 1;
}

ssize_t tls_recv(struct tls_session *s, void *p, size_t n)
{
    ssize_t k = gnutls_record_recv(s->s, p, n);
    return k >= 0 ? k : k == GNUTLS_E_PREMATURE_TERMINATION ? 0 : gnutls_error_is_fatal((int)k) ? -2 : -1;
}

ssize_t tls_send(struct tls_session *s, const void *p, size_t n)
{
    ssize_t k = gnutls_record_send(s->s, p, n);
    return k >= 0 ? k : gnutls_error_is_fatal((int)k) ? -2 : -1;
}

void tls_close(struct tls_session *s, bool bye)
{
    if (!s)
        return;
    if (bye && s->bye)
        (void)gnutls_bye(s->s, GNUTLS_SHUT_WR);
    gnutls_deinit(s->s);
    chain_release(s->chain);
    free(s);
}
