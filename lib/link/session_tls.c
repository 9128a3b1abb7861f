/* TLS of one connection in memory. */
#include "link/session_tls.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <gnutls/x509.h>

#include "link/peer_tls_impl.h"

#define RECORD_BYTES ((size_t)16 << 10) /* plain bytes of a record at most (RFC 8446, 5.1) */
#define OUT_BYTES ((size_t)256 << 10)   /* with more unwritten bytes nothing further is encrypted */

struct session_tls {
    gnutls_session_t s;
    struct peer_identity peer;
    bool up;
    struct buf in;           /* received, not decrypted */
    struct buf out, writing; /* encrypted; in writing, whose bytes must not move */
};

static ssize_t push(gnutls_transport_ptr_t arg, const void *p, size_t n)
{
    struct session_tls *t = arg;
    if (!buf_reserve(&t->out, n)) {
        gnutls_transport_set_errno(t->s, ENOMEM);
        return -1;
    }
    memcpy(t->out.p + t->out.n, p, n);
    t->out.n += n;
    return (ssize_t)n;
}

static ssize_t pull(gnutls_transport_ptr_t arg, void *p, size_t n)
{
    struct session_tls *t = arg;
    size_t left = buf_left(&t->in), k = n < left ? n : left;
    if (!k) {
        gnutls_transport_set_errno(t->s, EAGAIN);
        return -1;
    }
    memcpy(p, buf_front(&t->in), k);
    buf_take(&t->in, k);
    return (ssize_t)k;
}

static int pull_timeout(gnutls_transport_ptr_t arg, unsigned ms)
{
    const struct session_tls *t = arg;
    (void)ms;
    return buf_left(&t->in) ? 1 : 0;
}

int session_tls_new(struct err *e, struct session_tls **out, struct peer_tls *p, bool dialed)
{
    struct session_tls *t = calloc(1, sizeof *t);
    unsigned flags = GNUTLS_NONBLOCK | GNUTLS_NO_SIGNAL | GNUTLS_NO_TICKETS;
    if (!t || gnutls_init(&t->s, flags | (dialed ? GNUTLS_CLIENT : GNUTLS_SERVER)) < 0) {
        free(t);
        return err_nomem(e, "a TLS connection", sizeof *t);
    }
    gnutls_priority_set(t->s, p->priority);
    gnutls_credentials_set(t->s, GNUTLS_CRD_CERTIFICATE, p->credentials);
    gnutls_session_set_verify_cert(t->s, NULL, 0);
    if (!dialed)
        gnutls_certificate_server_set_request(t->s, GNUTLS_CERT_REQUIRE);
    gnutls_transport_set_ptr(t->s, t);
    gnutls_transport_set_push_function(t->s, push);
    gnutls_transport_set_pull_function(t->s, pull);
    gnutls_transport_set_pull_timeout_function(t->s, pull_timeout);
    if (dialed)
        (void)gnutls_handshake(t->s); /* queues the first message; the rest follows the peer's */
    *out = t;
    return 0;
}

void session_tls_free(struct session_tls *t)
{
    if (!t)
        return;
    gnutls_deinit(t->s);
    free(t->in.p);
    free(t->out.p);
    free(t->writing.p);
    free(t);
}

/* ---- handshake ---- */

/* Why the handshake failed, in words that name who refused whom. */
static int failure(struct err *e, struct session_tls *t, int rc)
{
    if (rc == GNUTLS_E_FATAL_ALERT_RECEIVED || rc == GNUTLS_E_WARNING_ALERT_RECEIVED)
        return err_set(e, ERR_PROTO, "TLS: the peer has refused this side: %s",
                       gnutls_alert_get_name(gnutls_alert_get(t->s)));
    (void)gnutls_alert_send_appropriate(t->s, rc);
    if (rc == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR) {
        gnutls_datum_t text = {NULL, 0};
        unsigned status = gnutls_session_get_verify_cert_status(t->s);
        int known = gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &text, 0);
        err_set(e, ERR_PROTO, "TLS: the certificate of the peer is refused: %s",
                known >= 0 ? (const char *)text.data : "unknown reason");
        gnutls_free(text.data);
        return e->code;
    }
    if (rc == GNUTLS_E_NO_CERTIFICATE_FOUND || rc == GNUTLS_E_CERTIFICATE_REQUIRED)
        return err_set(e, ERR_PROTO, "TLS: the peer has sent no certificate");
    if (rc == GNUTLS_E_UNEXPECTED_PACKET_LENGTH || rc == GNUTLS_E_UNSUPPORTED_VERSION_PACKET ||
        rc == GNUTLS_E_UNEXPECTED_PACKET || rc == GNUTLS_E_RECORD_OVERFLOW)
        return err_set(e, ERR_PROTO, "TLS: the peer does not speak TLS (%s): is its address tcp:// without TLS?",
                       gnutls_strerror(rc));
    return err_set(e, ERR_PROTO, "TLS: %s", gnutls_strerror(rc));
}

static int identify(struct err *e, struct session_tls *t)
{
    unsigned n = 0;
    const gnutls_datum_t *der = gnutls_certificate_get_peers(t->s, &n);
    gnutls_x509_crt_t crt;
    if (!der || !n)
        return err_set(e, ERR_PROTO, "TLS: the peer has sent no certificate");
    if (gnutls_x509_crt_init(&crt) < 0)
        return err_nomem(e, "a certificate", der->size);
    int rc = gnutls_x509_crt_import(crt, &der[0], GNUTLS_X509_FMT_DER) < 0
                 ? err_set(e, ERR_PROTO, "the certificate cannot be read")
                 : peer_identity_read(e, &t->peer, crt);
    gnutls_x509_crt_deinit(crt);
    return rc ? err_prefix(e, "TLS: the peer is refused") : 0;
}

int session_tls_feed(struct err *e, struct session_tls *t, const uint8_t *p, size_t n)
{
    if (!buf_reserve(&t->in, n))
        return err_nomem(e, "received bytes", n);
    memcpy(t->in.p + t->in.n, p, n);
    t->in.n += n;
    while (!t->up) {
        int rc = gnutls_handshake(t->s);
        if (rc == GNUTLS_E_AGAIN || (rc < 0 && rc != GNUTLS_E_WARNING_ALERT_RECEIVED && !gnutls_error_is_fatal(rc)))
            return 0;
        if (rc < 0)
            return failure(e, t, rc);
        rc = identify(e, t);
        if (rc)
            return rc;
        t->up = true;
    }
    return 0;
}

bool session_tls_is_up(const struct session_tls *t)
{
    return t->up;
}

const char *session_tls_roles(const struct session_tls *t)
{
    return t->peer.roles;
}

const char *session_tls_names(const struct session_tls *t)
{
    return t->peer.has_names ? t->peer.names : NULL;
}

/* ---- data ---- */

int session_tls_recv(struct err *e, struct session_tls *t, struct buf *out)
{
    while (t->up) {
        if (!buf_reserve(out, RECORD_BYTES))
            return err_nomem(e, "received bytes", RECORD_BYTES);
        ssize_t k = gnutls_record_recv(t->s, out->p + out->n, RECORD_BYTES);
        if (k > 0)
            out->n += (size_t)k;
        else if (!k || k == GNUTLS_E_AGAIN)
            return 0; /* after the peer's end of TLS its connection ends, too */
        else if (gnutls_error_is_fatal((int)k))
            return failure(e, t, (int)k);
    }
    return 0;
}

size_t session_tls_send(struct session_tls *t, const uint8_t *p, size_t n)
{
    size_t done = 0;
    while (t->up && done < n && buf_left(&t->out) < OUT_BYTES) {
        size_t k = n - done < RECORD_BYTES ? n - done : RECORD_BYTES;
        ssize_t sent = gnutls_record_send(t->s, p + done, k);
        if (sent <= 0)
            break;
        done += (size_t)sent;
    }
    return done;
}

const uint8_t *session_tls_out(struct session_tls *t, size_t *n)
{
    if (!buf_left(&t->writing)) {
        struct buf b = t->writing;
        t->writing = t->out;
        t->out = b;
    }
    *n = buf_left(&t->writing);
    return buf_front(&t->writing);
}

void session_tls_wrote(struct session_tls *t, size_t n)
{
    buf_take(&t->writing, n);
}

bool session_tls_has_out(const struct session_tls *t)
{
    return buf_left(&t->out) || buf_left(&t->writing);
}
