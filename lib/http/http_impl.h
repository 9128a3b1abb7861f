/* Private to lib/http: what is behind a connection and a request. */
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
#define CONNECTIONS_SPARE 64 /* beyond, for those that are told 503 */
#define IDLE_S 60
#define STALL_IDLES 5     /* a client that does not take its answer has so many idle times */
#define STALL_BYTES 65536 /* ... of more than this; less is soon with its kernel */
#define LISTENERS_MAX 16
#define HEADERS_MAX 16 /* that an answer is given */
#define SCAN_NS NS_S
#define LINGER_NS (2 * NS_S)
#define LINGERS_MAX 64
#define PROBE_NS (50 * NS_MS) /* first of a connection that is half closed; then a second each */

struct listener {
    struct http *h;
    struct MHD_Daemon *daemon;
    int surface;
    char address[HTTP_NAME_BYTES];
    char path[108]; /* of a Unix socket, to be removed; "" */
    bool quiet;     /* takes no more connections */
};

/* A connection; its descriptor is watched for its end. */
struct conn {
    struct list node; /* http.conns */
    struct http *h;
    struct listener *l;
    struct MHD_Connection *c;
    int fd;
    struct http_request *r;  /* the one that is on; NULL: none */
    uint64_t since_ns;       /* of the accept, or of the end of the last request */
    uint64_t probe_ns;       /* when a half-closed one is asked next; 0: it is whole */
    uint64_t left, moved_ns; /* what its client had not taken yet when last looked at, and when that changed last; 0: it
                                was not looked at */
    bool tls, dead;
    bool probed;  /* once at least */
    bool over;    /* its end has been seen */
    bool patient; /* has more than the idle time to take what waits for it */
    bool extra;   /* came when there were as many as there may be */
    bool unread;  /* was answered before its body had come */
    char peer[48];
};

enum phase {
    PHASE_HEAD, /* the body is coming */
    PHASE_OUT,  /* given out; whoever has it answers */
    PHASE_OVER, /* answered whole, or gone: the caller knows it no more */
};

struct http_request {
    struct conn *k;
    enum phase phase;
    char *path;
    const char *method; /* of MHD, for the life of the request */
    struct str body;
    uint64_t arrived_ns;
    void *state;
    struct {
        char *name, *value;
    } header[HEADERS_MAX];
    size_t n_header;

    struct MHD_Response *response; /* to be queued, or queued; owned until queued */
    int status;
    bool queued;    /* given to MHD */
    bool suspended; /* of MHD: nothing to do until resumed */
    bool streams;   /* answered in pieces */
    bool ended;     /* nothing more is written */
    bool broken;    /* is to be cut off */
    bool head, too_large;
    bool own;          /* answered here: nobody has been given it */
    bool interim;      /* its client knows "100 Continue" */
    bool absolute;     /* asked for with scheme and host */
    bool raw;          /* refused past libmicrohttpd */
    size_t n_target;   /* bytes of what is asked for, as they came */
    const char *fault; /* in them; NULL: none */
    uint64_t n_past;   /* bytes of a body that is too large, not kept */
    const char *probe; /* a piece that says nothing, by the content type */
    char *out;         /* what is to be sent: from at to n */
    size_t n_out, at_out, cap_out;
};

struct http {
    struct http_opts o;
    struct listener *listener[LISTENERS_MAX];
    size_t n_listener;
    int epoll, watch; /* all descriptors; those of connections, for their end */
    struct list conns;
    uint32_t n_conn;
    uint64_t scan_ns;
    uint32_t n_half;  /* connections that are half closed */
    uint64_t half_ns; /* when these are looked at next: not at each step, it takes a walk over all */
    bool stopped, closing;
    bool due; /* something was written since the daemons ran, which none of their descriptors tells */
    struct {
        int fd;
        uint64_t end_ns;
    } linger[LINGERS_MAX];
    size_t n_linger;
    struct tls *tls; /* NULL: none */
};

/* ---- conn.c ---- */
void conn_notify(void *listener, struct MHD_Connection *c, void **context, enum MHD_ConnectionNotificationCode what);
void conn_watch(struct http *h); /* takes what the watch has seen */
void conn_scan(struct http *h, uint64_t now);
void conn_half_check(struct conn *k); /* its request has been given out: is the other end still there? */
uint64_t conn_next_ns(const struct http *h);

/* ---- linger.c ---- */
void linger_add(struct http *h, int fd); /* takes a copy of it */
void linger_step(struct http *h, uint64_t now);
uint64_t linger_next_ns(const struct http *h);
void linger_end(struct http *h);

/* ---- check.c ---- */
void check_target(struct http_request *r, const char *target);
const char *check_path(const struct http_request *r, const char *url); /* of a target that may name the host */
/* The status that refuses it, and why; 0: it may be read on. */
int check_head(const struct http_request *r, const char *url, const char *version, const char **why);
void check_log(struct listener *l, const char *fmt, va_list ap); /* libmicrohttpd says that */
void check_reply(struct http_request *r, int status, const char *type, const void *body, size_t n); /* of a raw one */

/* ---- request.c ---- */
void *request_uri(void *listener, const char *uri, struct MHD_Connection *c);
enum MHD_Result request_handle(void *listener, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *upload, size_t *n_upload, void **context);
void request_completed(void *listener, struct MHD_Connection *c, void **context, enum MHD_RequestTerminationCode how);
void request_gone(struct http_request *r); /* its client has gone: says so, and has MHD close the connection */
void request_probe(struct http_request *r);

/* ---- tls.c ---- */
int tls_new(struct err *e, struct tls **out, const char *cert, const char *key);
int tls_load(struct err *e, struct tls *t);
void tls_free(struct tls *t);
void *tls_callback(void); /* for MHD_OPTION_HTTPS_CERT_CALLBACK */

#endif
