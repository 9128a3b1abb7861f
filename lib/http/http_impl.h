/* Private to lib/http: connections and requests. */
#ifndef HTTP_IMPL_H
#define HTTP_IMPL_H

#include <microhttpd.h>

#include "base/list.h"
#include "base/str.h"
#include "base/time.h"
#include "http/http.h"
#include "http/listen.h"

#define BODY_BYTES_MAX ((uint64_t)32 << 20)
#define QUEUED_BYTES_MAX ((uint64_t)64 << 20)
#define CONNECTIONS_MAX 4096
#define CONNECTIONS_SPARE 64 /* beyond connections_max, to be refused with 503 */
#define IDLE_S 60
#define STALL_IDLES 5     /* idle timeouts that a client with unread output has */
#define STALL_BYTES 65536 /* bytes of output; less is soon in the socket's buffer */
#define LISTENERS_MAX 16
#define HEADERS_MAX 16 /* of a response that the caller adds */
#define SCAN_NS NS_S
#define LINGER_NS (2 * NS_S)
#define LINGERS_MAX 64
#define PROBE_NS                                                                                                       \
    (50 * NS_MS) /* until the first probe of a half-closed connection; the next ones follow each second                \
                  */

struct listener {
    struct http *h;
    struct MHD_Daemon *daemon;
    int dialect;
    char address[HTTP_NAME_BYTES];
    char path[108]; /* of a Unix socket, unlinked at the end; "" */
    bool quiet;     /* accepts no more connections */
};

/* A connection; its descriptor is in the epoll set `hangups`. */
struct conn {
    struct list node; /* http.conns */
    struct http *h;
    struct listener *l;
    struct MHD_Connection *c;
    int fd;
    struct http_request *r;       /* in progress; NULL: none */
    uint64_t since_ns;            /* time of the accept, or of the end of the last request */
    uint64_t probe_ns;            /* half-closed: time of the next probe; 0: open in both directions */
    uint64_t unsent, progress_ns; /* unsent output when last checked, and when that last changed; 0: never checked */
    bool tls;
    bool dead;         /* shut down or to be closed */
    bool probed;       /* a probe was sent */
    bool hung_up;      /* the disconnect has been handled */
    bool long_timeout; /* its timeout is STALL_IDLES times the idle time */
    bool over_limit;   /* accepted beyond connections_max */
    bool body_unread;  /* refused before its body was read */
    char peer[48];
};

enum request_state {
    STATE_READING,   /* the head or body is incomplete */
    STATE_DELIVERED, /* the caller has it and must respond */
    STATE_FINISHED,  /* response complete or client disconnected: the caller no longer knows it */
};

struct http_request {
    struct conn *k;
    enum request_state state;
    char *path;
    const char *method; /* borrowed from MHD for the lifetime of the request */
    struct str body;
    uint64_t arrived_ns;
    void *user; /* of the caller */
    struct {
        char *name, *value;
    } header[HEADERS_MAX];
    size_t n_header;

    struct MHD_Response *response; /* not yet passed to MHD; owned. NULL: none, or passed */
    int status;
    bool queued;    /* the response was passed to MHD */
    bool suspended; /* MHD_suspend_connection is in effect */
    bool streams;   /* a streamed response */
    bool ended;     /* http_end was called */
    bool broken;    /* to be aborted */
    bool head, too_large;
    bool internal;            /* answered here, not delivered to the caller */
    bool accepts_interim;     /* the client accepts "100 Continue": HTTP/1.1 */
    bool absolute_form;       /* the target has scheme and host (RFC 9112, absolute-form) */
    bool raw;                 /* refused by writing to the socket, not through libmicrohttpd */
    size_t n_target;          /* length of the target as received */
    const char *target_error; /* why the target is invalid; NULL: it is valid */
    uint64_t n_discarded;     /* bytes of a body beyond the limit, discarded */
    const char *probe;        /* bytes without meaning in this content type; NULL: none */
    char *out;                /* queued output: bytes at_out to n_out */
    size_t n_out, at_out, cap_out;
};

struct http {
    struct http_opts o;
    struct listener *listener[LISTENERS_MAX];
    size_t n_listener;
    int epoll;   /* all descriptors that http_step serves */
    int hangups; /* epoll set of all connections, for disconnects only */
    struct list conns;
    uint32_t n_conn;
    uint64_t scan_ns;
    uint32_t n_half_closed; /* half-closed connections */
    uint64_t half_scan_ns;  /* time of the next check of these, which walks all connections */
    bool stopped, closing;
    bool due; /* output was queued since MHD_run; no descriptor signals that */
    struct {
        int fd;
        uint64_t end_ns;
    } linger[LINGERS_MAX];
    size_t n_linger;
    struct tls *tls; /* NULL: no TLS */
};

/* ---- conn.c ---- */
void conn_notify(void *listener, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what);
void conn_poll_hangups(struct http *h); /* handles the events of `hangups` */
void conn_scan(struct http *h, uint64_t now);
void conn_probe(struct conn *k); /* sends a probe if it is half-closed; its request is delivered */
uint64_t conn_next_ns(const struct http *h);

/* ---- linger.c ---- */
void linger_add(struct http *h, int fd); /* duplicates fd */
void linger_step(struct http *h, uint64_t now);
uint64_t linger_next_ns(const struct http *h);
void linger_end(struct http *h);

/* ---- check.c ---- */
void check_target(struct http_request *r, const char *target);
const char *check_path(const struct http_request *r,
                       const char *url); /* the path of a target in origin-form or absolute-form */
/* Returns the status that refuses the request and its reason, or 0. */
int check_head(const struct http_request *r, const char *url, const char *version, const char **why);
void check_log(struct listener *l, const char *fmt, va_list ap); /* handles a log line of libmicrohttpd */
void check_reply(struct http_request *r, int status, const char *type, const void *body,
                 size_t n); /* response to a request that is `raw` */

/* ---- request.c ---- */
void *request_uri(void *listener, const char *uri, struct MHD_Connection *c);
enum MHD_Result request_handle(void *listener, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *upload, size_t *n_upload, void **context);
void request_completed(void *listener, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode how);
void request_disconnected(
    struct http_request *r); /* the client disconnected: reports that and lets MHD close the connection */
void request_probe(struct http_request *r);

/* ---- tls.c ---- */
int tls_new(struct err *e, struct tls **out, const char *cert, const char *key);
int tls_load(struct err *e, struct tls *t);
void tls_free(struct tls *t);
void *tls_callback(void); /* for MHD_OPTION_HTTPS_CERT_CALLBACK */

#endif
