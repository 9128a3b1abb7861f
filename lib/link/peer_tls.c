/* The credentials of a process, and what the certificate of its peer states. */
#include "link/peer_tls_impl.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <gnutls/x509.h>

#include "base/file.h"

#define FILE_BYTES_MAX ((size_t)1 << 20)
#define CHAIN_MAX 8
#define PRIORITY "NORMAL:-VERS-ALL:+VERS-TLS1.3"

/* Appends " text" to a list of at most PEER_LIST_BYTES. False: the list is full, or text has blanks. */
static bool add(char list[PEER_LIST_BYTES], const char *text, size_t n)
{
    size_t at = strlen(list);
    if (!n || at + n + 2 > PEER_LIST_BYTES || memchr(text, ' ', n) || memchr(text, 0, n))
        return false;
    if (at)
        list[at++] = ' ';
    memcpy(list + at, text, n);
    list[at + n] = 0;
    return true;
}

static bool add_uri(struct peer_identity *id, const char *uri, size_t n)
{
    size_t role = strlen(PEER_TLS_ROLE_URI), name = strlen(PEER_TLS_NAME_URI);
    if (n > role && !memcmp(uri, PEER_TLS_ROLE_URI, role))
        return add(id->roles, uri + role, n - role);
    if (n > name && !memcmp(uri, PEER_TLS_NAME_URI, name)) {
        id->has_names = true;
        return add(id->names, uri + name, n - name);
    }
    return true;
}

int peer_identity_read(struct err *e, struct peer_identity *id, gnutls_x509_crt_t crt)
{
    *id = (struct peer_identity){.has_names = false};
    for (unsigned i = 0;; i++) {
        char text[512];
        size_t n = sizeof text;
        int type = gnutls_x509_crt_get_subject_alt_name(crt, i, text, &n, NULL);
        if (type == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
            break;
        if (type < 0 && type != GNUTLS_E_SHORT_MEMORY_BUFFER)
            return err_set(e, ERR_PROTO, "the certificate cannot be read: %s", gnutls_strerror(type));
        if (type == GNUTLS_SAN_URI && !add_uri(id, text, n))
            return err_set(e, ERR_PROTO, "the certificate has a malformed name, or too many: %.*s", (int)n, text);
    }
    return *id->roles
               ? 0
               : err_set(e, ERR_PROTO, "the certificate states no role: it has no name %sROLE", PEER_TLS_ROLE_URI);
}

bool peer_list_has(const char *list, const char *word, size_t n)
{
    for (const char *p = list; *p;) {
        size_t k = strcspn(p, " ");
        if (k && k == n && !memcmp(p, word, n))
            return true;
        p += k + (p[k] == ' ');
    }
    return false;
}

/* ---- files ---- */

static int path_of(struct err *e, char path[PATH_MAX], const char *dir, const char *name, const char *suffix)
{
    int n = snprintf(path, PATH_MAX, "%s/%s%s", dir, name, suffix);
    return n > 0 && n < PATH_MAX ? 0 : err_set(e, ERR_USAGE, "%s: the path exceeds %d bytes", dir, PATH_MAX - 1);
}

/* The authorities are public, but who may change them decides whom to trust. */
static int read_trust(struct err *e, struct peer_tls *t, const char *dir)
{
    char path[PATH_MAX];
    uint8_t *p;
    size_t n;
    int rc = path_of(e, path, dir, "ca", ".pem");
    rc = rc ? rc : file_load(e, &p, &n, path, FILE_BYTES_MAX, "list of authorities", FILE_TRUSTED);
    if (rc)
        return rc;
    int k =
        gnutls_certificate_set_x509_trust_mem(t->credentials, &(gnutls_datum_t){p, (unsigned)n}, GNUTLS_X509_FMT_PEM);
    file_forget(p, n);
    if (k <= 0)
        return err_set(e, ERR_NO, "%s: no PEM certificates: %s", path, k ? gnutls_strerror(k) : "the file has none");
    rc = path_of(e, path, dir, "crl", ".pem");
    if (rc || access(path, F_OK))
        return rc;
    rc = file_load(e, &p, &n, path, FILE_BYTES_MAX, "list of revoked certificates", FILE_TRUSTED);
    if (rc)
        return rc;
    k = gnutls_certificate_set_x509_crl_mem(t->credentials, &(gnutls_datum_t){p, (unsigned)n}, GNUTLS_X509_FMT_PEM);
    file_forget(p, n);
    return k > 0 ? 0 : err_set(e, ERR_NO, "%s: no PEM list of revoked certificates", path);
}

/* This side's certificate, as its peers will read it. */
static int check_own(struct err *e, const gnutls_datum_t *pem, const char *role)
{
    gnutls_x509_crt_t crt[CHAIN_MAX];
    unsigned n = CHAIN_MAX;
    struct peer_identity id;
    int k = gnutls_x509_crt_list_import(crt, &n, pem, GNUTLS_X509_FMT_PEM, 0);
    if (k <= 0)
        return err_set(e, ERR_NO, "no PEM certificate: %s", k ? gnutls_strerror(k) : "the file has none");
    time_t now = time(NULL), until = gnutls_x509_crt_get_expiration_time(crt[0]);
    int rc = peer_identity_read(e, &id, crt[0]);
    if (!rc && now > until)
        rc = err_set(e, ERR_NO, "the certificate has expired: issue a new one (phasepipe tls-init)");
    if (!rc && !peer_list_has(id.roles, role, strlen(role)))
        rc = err_set(e, ERR_NO, "the certificate is for the roles '%s', not for '%s'", id.roles, role);
    e->code = rc ? ERR_NO : 0;
    for (unsigned i = 0; i < n; i++)
        gnutls_x509_crt_deinit(crt[i]);
    return e->code;
}

static int read_own(struct err *e, struct peer_tls *t, const char *dir, const char *role)
{
    char path[PATH_MAX];
    uint8_t *p;
    size_t n;
    int rc = path_of(e, path, dir, role, ".pem");
    rc = rc ? rc : file_load(e, &p, &n, path, FILE_BYTES_MAX, "private key", FILE_SECRET);
    if (rc)
        return rc;
    gnutls_datum_t pem = {p, (unsigned)n};
    rc = check_own(e, &pem, role);
    int k = rc ? 0 : gnutls_certificate_set_x509_key_mem(t->credentials, &pem, &pem, GNUTLS_X509_FMT_PEM);
    if (k < 0)
        rc = err_set(e, ERR_NO, "no private key that matches the certificate: %s", gnutls_strerror(k));
    file_forget(p, n);
    return rc ? err_prefix(e, "%s", path) : 0;
}

int peer_tls_open(struct err *e, struct peer_tls **out, const char *dir, const char *role)
{
    struct peer_tls *t = calloc(1, sizeof *t);
    if (!t || gnutls_certificate_allocate_credentials(&t->credentials) < 0) {
        free(t);
        return err_nomem(e, "credentials", sizeof *t);
    }
    int rc = 0;
    if (gnutls_priority_init(&t->priority, PRIORITY, NULL) < 0)
        rc = err_set(e, ERR_SYS, "GnuTLS does not accept the priorities %s", PRIORITY);
    rc = rc ? rc : read_trust(e, t, dir);
    rc = rc ? rc : read_own(e, t, dir, role);
    if (rc) {
        peer_tls_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

void peer_tls_close(struct peer_tls *t)
{
    if (!t)
        return;
    if (t->priority)
        gnutls_priority_deinit(t->priority);
    gnutls_certificate_free_credentials(t->credentials);
    free(t);
}
