/* phasepipe tls-init: a private certificate authority for the services of a cluster, and certificates for their roles
 * (lib/link/peer_tls.h). */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>

#include "base/file.h"
#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "link/peer_tls.h"

#define TLS_INIT "phasepipe tls-init"
#define PEM_BYTES_MAX ((size_t)64 << 10)
#define DAY_S 86400

static const struct {
    const char *role;
    const char *roles[3]; /* of its certificate */
} known[] = {
    {"sched", {"sched"}},
    {"tokenize", {"tokenize"}},
    {"gateway", {"gateway", "monitor"}}, /* stream also reads statistics */
    {"worker", {"worker"}},
    {"tool", {"tool"}},
};
#define N_ROLE (sizeof known / sizeof *known)

struct authority {
    gnutls_x509_privkey_t key;
    gnutls_x509_crt_t crt;
    gnutls_datum_t pem; /* of crt */
};

struct init {
    const char *dir, *to;
    struct cli_list roles, names;
    uint64_t days;
    struct authority ca;
};

static int failed(struct err *e, const char *what, int rc)
{
    return err_set(e, ERR_SYS, "%s: %s", what, gnutls_strerror(rc));
}

/* ---- files ---- */

/* Creates a file with the contents a, then b. ERR_NO: it exists. */
static int write_new(struct err *e, const char *dir, const char *name, mode_t mode, gnutls_datum_t a, gnutls_datum_t b)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/%s.pem", dir, name) >= sizeof path)
        return err_set(e, ERR_USAGE, "%s: the path exceeds %d bytes", dir, PATH_MAX - 1);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0 && errno == EEXIST)
        return err_set(e, ERR_NO, "%s exists: remove it first to replace it", path);
    if (fd < 0)
        return err_sys(e, "%s", path);
    FILE *f = fdopen(fd, "w");
    bool good = f && fwrite(a.data, 1, a.size, f) == a.size && (!b.size || fwrite(b.data, 1, b.size, f) == b.size) &&
                !fflush(f) && !fsync(fd);
    int rc = good ? 0 : err_sys(e, "%s", path);
    if (f)
        fclose(f);
    else
        close(fd);
    if (rc)
        unlink(path);
    else
        printf("%s\n", path);
    return rc;
}

static int make_dir(struct err *e, const char *dir)
{
    return !mkdir(dir, 0700) || errno == EEXIST ? 0 : err_sys(e, "%s", dir);
}

/* ---- certificates ---- */

static int new_key(struct err *e, gnutls_x509_privkey_t *key)
{
    int rc = gnutls_x509_privkey_init(key);
    if (rc < 0)
        return failed(e, "a private key", rc);
    rc = gnutls_x509_privkey_generate(*key, GNUTLS_PK_ECDSA, GNUTLS_CURVE_TO_BITS(GNUTLS_ECC_CURVE_SECP256R1), 0);
    return rc < 0 ? failed(e, "a private key", rc) : 0;
}

/* The fields that each certificate has. */
static int begin(gnutls_x509_crt_t crt, gnutls_x509_privkey_t key, const char *subject, uint64_t days)
{
    unsigned char serial[16];
    time_t now = time(NULL);
    int rc = gnutls_rnd(GNUTLS_RND_NONCE, serial, sizeof serial);
    serial[0] = (serial[0] & 0x7f) | 0x40; /* positive, and never short */
    rc = rc < 0 ? rc : gnutls_x509_crt_set_version(crt, 3);
    rc = rc < 0 ? rc : gnutls_x509_crt_set_serial(crt, serial, sizeof serial);
    rc = rc < 0 ? rc : gnutls_x509_crt_set_activation_time(crt, now - DAY_S); /* clocks differ */
    rc = rc < 0 ? rc : gnutls_x509_crt_set_expiration_time(crt, now + (time_t)days * DAY_S);
    rc = rc < 0
             ? rc
             : gnutls_x509_crt_set_dn_by_oid(crt, GNUTLS_OID_X520_COMMON_NAME, 0, subject, (unsigned)strlen(subject));
    rc = rc < 0 ? rc : gnutls_x509_crt_set_key(crt, key);
    unsigned char id[64];
    size_t n = sizeof id;
    rc = rc < 0 ? rc : gnutls_x509_crt_get_key_id(crt, 0, id, &n);
    return rc < 0 ? rc : gnutls_x509_crt_set_subject_key_id(crt, id, n);
}

static int add_uri(gnutls_x509_crt_t crt, const char *prefix, const char *text)
{
    char uri[512];
    int n = snprintf(uri, sizeof uri, "%s%s", prefix, text);
    return gnutls_x509_crt_set_subject_alt_name(crt, GNUTLS_SAN_URI, uri, (unsigned)n, GNUTLS_FSAN_APPEND);
}

static int sign(gnutls_x509_crt_t crt, const struct authority *ca)
{
    unsigned char id[64];
    size_t n = sizeof id;
    int rc = gnutls_x509_crt_get_key_id(ca->crt, 0, id, &n);
    rc = rc < 0 ? rc : gnutls_x509_crt_set_authority_key_id(crt, id, n);
    return rc < 0 ? rc : gnutls_x509_crt_sign2(crt, ca->crt, ca->key, GNUTLS_DIG_SHA256, 0);
}

static int write_pair(struct err *e, const char *dir, const char *name, gnutls_x509_crt_t crt,
                      gnutls_x509_privkey_t key)
{
    gnutls_datum_t cert = {NULL, 0}, secret = {NULL, 0};
    int rc = gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &cert);
    rc = rc < 0 ? rc : gnutls_x509_privkey_export2_pkcs8(key, GNUTLS_X509_FMT_PEM, NULL, GNUTLS_PKCS_PLAIN, &secret);
    rc = rc < 0 ? failed(e, name, rc) : write_new(e, dir, name, 0600, cert, secret);
    if (secret.data)
        gnutls_memset(secret.data, 0, secret.size);
    gnutls_free(cert.data);
    gnutls_free(secret.data);
    return rc;
}

/* ---- the authority ---- */

static int make_authority(struct err *e, struct init *t)
{
    if (new_key(e, &t->ca.key))
        return e->code;
    gnutls_x509_crt_t crt = t->ca.crt;
    int rc = begin(crt, t->ca.key, "phasepipe cluster", t->days);
    rc = rc < 0 ? rc : gnutls_x509_crt_set_basic_constraints(crt, 1, 0);
    rc = rc < 0 ? rc : gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_KEY_CERT_SIGN | GNUTLS_KEY_CRL_SIGN);
    rc = rc < 0 ? rc : sign(crt, &t->ca);
    rc = rc < 0 ? rc : gnutls_x509_crt_export2(crt, GNUTLS_X509_FMT_PEM, &t->ca.pem);
    if (rc < 0)
        return failed(e, "the authority", rc);
    rc = write_pair(e, t->dir, "ca-key", crt, t->ca.key);
    return rc ? rc : write_new(e, t->dir, "ca", 0644, t->ca.pem, (gnutls_datum_t){NULL, 0});
}

static int read_authority(struct err *e, struct init *t, const char *path)
{
    uint8_t *p;
    size_t n;
    int rc = file_load(e, &p, &n, path, PEM_BYTES_MAX, "private key", FILE_SECRET);
    if (rc)
        return rc;
    gnutls_datum_t pem = {p, (unsigned)n};
    int k = gnutls_x509_privkey_init(&t->ca.key);
    k = k < 0 ? k : gnutls_x509_privkey_import2(t->ca.key, &pem, GNUTLS_X509_FMT_PEM, NULL, 0);
    k = k < 0 ? k : gnutls_x509_crt_import(t->ca.crt, &pem, GNUTLS_X509_FMT_PEM);
    k = k < 0 ? k : gnutls_x509_crt_export2(t->ca.crt, GNUTLS_X509_FMT_PEM, &t->ca.pem);
    file_forget(p, n);
    return k < 0 ? err_set(e, ERR_NO, "%s: not an authority's certificate and key: %s", path, gnutls_strerror(k)) : 0;
}

/* That of an earlier call, or a new one. */
static int open_authority(struct err *e, struct init *t)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/ca-key.pem", t->dir) >= sizeof path)
        return err_set(e, ERR_USAGE, "%s: the path exceeds %d bytes", t->dir, PATH_MAX - 1);
    int rc = gnutls_x509_crt_init(&t->ca.crt);
    if (rc < 0)
        return failed(e, "a certificate", rc);
    return access(path, F_OK) ? make_authority(e, t) : read_authority(e, t, path);
}

/* Whether the other directory has this authority already. Another one there is not replaced. */
static bool has_authority(const struct init *t)
{
    struct err unused;
    char path[PATH_MAX];
    uint8_t *p = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/ca.pem", t->to);
    bool same = !file_load(&unused, &p, &n, path, PEM_BYTES_MAX, "certificate", FILE_ANY) && n == t->ca.pem.size &&
                !memcmp(p, t->ca.pem.data, n);
    file_forget(p, n);
    return same;
}

/* ---- the roles ---- */

static int issue(struct err *e, struct init *t, size_t role)
{
    gnutls_x509_privkey_t key = NULL;
    gnutls_x509_crt_t crt = NULL;
    char subject[64];
    snprintf(subject, sizeof subject, "phasepipe %s", known[role].role);
    int rc = new_key(e, &key);
    int k = rc ? 0 : gnutls_x509_crt_init(&crt);
    k = rc || k < 0 ? k : begin(crt, key, subject, t->days);
    for (size_t i = 0; !rc && k >= 0 && i < 3 && known[role].roles[i]; i++)
        k = add_uri(crt, PEER_TLS_ROLE_URI, known[role].roles[i]);
    for (size_t i = 0; !rc && k >= 0 && i < t->names.n; i++)
        k = add_uri(crt, PEER_TLS_NAME_URI, t->names.v[i]);
    if (!rc && k >= 0)
        k = gnutls_x509_crt_set_basic_constraints(crt, 0, -1);
    if (!rc && k >= 0)
        k = gnutls_x509_crt_set_key_usage(crt, GNUTLS_KEY_DIGITAL_SIGNATURE);
    if (!rc && k >= 0)
        k = gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_SERVER, 0);
    if (!rc && k >= 0)
        k = gnutls_x509_crt_set_key_purpose_oid(crt, GNUTLS_KP_TLS_WWW_CLIENT, 0);
    if (!rc && k >= 0)
        k = sign(crt, &t->ca);
    if (!rc)
        rc = k < 0 ? failed(e, "a certificate", k) : write_pair(e, t->to, known[role].role, crt, key);
    if (crt)
        gnutls_x509_crt_deinit(crt);
    if (key)
        gnutls_x509_privkey_deinit(key);
    return rc;
}

static int role_of(struct err *e, size_t *out, const char *name)
{
    for (*out = 0; *out < N_ROLE; ++*out)
        if (!strcmp(known[*out].role, name))
            return 0;
    return err_set(e, ERR_USAGE, "--role %.40s: must be sched, tokenize, gateway, worker or tool", name);
}

static int check(struct err *e, const struct init *t)
{
    size_t role;
    int rc = 0;
    for (size_t i = 0; i < t->roles.n && !rc; i++)
        rc = role_of(e, &role, t->roles.v[i]);
    for (size_t i = 0; i < t->names.n && !rc; i++)
        if (!*t->names.v[i] || strlen(t->names.v[i]) > 64 || strchr(t->names.v[i], ' '))
            rc = err_set(e, ERR_USAGE, "--name: 1 to 64 characters without blanks");
    if (!rc && t->names.n && t->roles.n != 1)
        rc = err_set(e, ERR_USAGE, "--name is for the certificate of one role: give --role");
    return rc;
}

static int run(struct err *e, struct init *t)
{
    int rc = check(e, t);
    rc = rc ? rc : make_dir(e, t->dir);
    rc = rc ? rc : make_dir(e, t->to);
    rc = rc ? rc : open_authority(e, t);
    if (!rc && t->to != t->dir && !has_authority(t))
        rc = write_new(e, t->to, "ca", 0644, t->ca.pem, (gnutls_datum_t){NULL, 0});
    for (size_t i = 0; i < t->roles.n && !rc; i++) {
        size_t role;
        rc = role_of(e, &role, t->roles.v[i]);
        rc = rc ? rc : issue(e, t, role);
    }
    for (size_t i = 0; i < N_ROLE && !t->roles.n && !rc; i++)
        rc = issue(e, t, i);
    return rc;
}

int tls_init(int argc, char **argv)
{
    struct err e = {0};
    struct init t = {.days = 3650};
    const struct cli_opt opts[] = {
        {0, "role", CLI_LIST, &t.roles, "ROLE", "sched, tokenize, gateway, worker or tool (all)", .lo = 0},
        {0, "name", CLI_LIST, &t.names, "NAME", "the holder must have this name, as --name of a worker (any)", .lo = 0},
        {0, "to", CLI_STR, &t.to, "DIR2", "write the certificate and a copy of ca.pem there, for another host (DIR)",
         .lo = 0},
        {0, "days", CLI_U64, &t.days, "N", "validity of what is made (3650)", .lo = 1, .hi = 36500},
    };
    const struct cli_prog prog = {TLS_INIT,
                                  "DIR [--role ROLE ...] [--name NAME ...] [--to DIR2] [--days N]",
                                  "Makes a private authority and certificates for services on several hosts.",
                                  opts,
                                  sizeof opts / sizeof *opts,
                                  1};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    if (!r && !n_arg)
        r = err_set(&e, ERR_USAGE, "DIR is missing: the directory of the authority");
    t.dir = argv[1];
    t.to = t.to ? t.to : t.dir;
    r = r ? r : run(&e, &t);
    if (t.ca.key)
        gnutls_x509_privkey_deinit(t.ca.key);
    if (t.ca.crt)
        gnutls_x509_crt_deinit(t.ca.crt);
    gnutls_free(t.ca.pem.data);
    cli_list_free(&t.roles);
    cli_list_free(&t.names);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(TLS_INIT, &e) : 0;
}
