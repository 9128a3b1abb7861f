/* Private to lib/http: connections and requests. */
#ifndef HTTP_IMPL_H
#define HTTP_IMPL_H

#include <netinet/in.h>
#include <sys/socket.h>

#include "base/buf.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/map.h"
#include "base/str.h"
#include "base/time.h"
#include "http/http.h"
#include "http/listen.h"
#include "http/parse.h"

#define BODY_BYTES_MAX ((uint64_t)32 << 20)
#define BODIES_BYTES_MAX ((uint64_t)512 << 20)
#define QUEUED_BYTES_MAX ((uint64_t)64 << 20)
#define OUTPUTS_BYTES_MAX ((uint64_t)1 << 30)
#define OUTPUT_SHARE ((uint64_t)1 << 20) /* unsent bytes of one connection while all exceed OUTPUTS_BYTES_MAX */
#define CONNECTIONS_MAX 4096
#define IDLE_S 60
#define HEAD_S 15
#define STALL_IDLES 5 /* idle timeouts that a client with unread output has */
#define LISTENERS_MAX 16
#define HEADERS_MAX 16 /* of a response that the caller adds */
#define LINGER_NS (2 * NS_S)
#define LINGERS_MAX 256
#define REPLACE_NS NS_S              /* a younger connection is not closed for a new one */
#define PROBE_NS (50 * NS_MS)        /* from the first probe of a half-closed connection to the second */
#define PROBE_AGAIN_NS NS_S          /* … and to each further one */
#define TURN_BYTES ((size_t)1 << 20) /* read or sent of one connection before others have their turn */

struct listener {
    struct http *h;
    int fd; /* -1: accepts no more connections */
    struct loop_fd io;
    struct loop_timer again; /* without descriptors, accepts again */
    int dialect;
    char address[HTTP_NAME_BYTES];
    char path[108]; /* of a Unix socket, unlinked at the end; "" */
    bool adopted;   /* its socket belongs to a service manager, which keeps it open */
};

/* The clients of one address. */
struct peer {
    uint8_t key[16];
    uint32_t n;       /* connections */
    struct list idle; /* conn.peer_idle, the oldest first */
};

enum conn_state {
    CONN_HANDSHAKE, /* of TLS */
    CONN_HEAD,      /* no complete head: `in` has its begin */
    CONN_BODY,      /* the body of r is incomplete */
    CONN_BUSY,      /* r is delivered, and its response not completely passed to the kernel */
    CONN_LINGER,    /* the response is sent: input is discarded, so that the client receives no reset */
};

struct conn {
    struct list node;            /* http.conns, or http.lingers */
    struct list idle, peer_idle; /* in CONN_HANDSHAKE and CONN_HEAD: http.idle and peer.idle */
    struct list due;             /* http.due: it has something to do that no descriptor signals */
    struct http *h;
    struct listener *l;
    struct peer *peer; /* NULL: a Unix socket */
    struct loop_fd io;
    struct loop_timer timer;
    struct tls_session *tls; /* NULL: no TLS */
    int fd;
    enum conn_state state;
    struct http_request *r; /* in CONN_BODY and CONN_BUSY */
    struct buf in;          /* received, not parsed */
    size_t searched;        /* bytes of `in` without the end of a head */
    struct buf out;         /* to be sent; then the parts */
    struct str *part;       /* [n_part]; sent up to at_byte of at_part */
    size_t n_part, at_part, at_byte;
    uint64_t n_queued;   /* bytes of out and parts, as counted in http.n_queued */
    uint64_t since_ns;   /* begin of the state; in CONN_HEAD also the time of its first byte */
    uint64_t moved_ns;   /* time of the last byte received in CONN_BODY, or sent */
    uint64_t written_ns; /* time of the last write to a stream */
    uint64_t probe_ns;   /* half-closed: time of the next probe; 0: open in both directions */
    uint64_t unsent;     /* bytes queued here and in the kernel at the last check of http_unsent */
    uint64_t look_ns;    /* time at which `unsent` last changed; 0: not checked yet */
    int kernel_unsent;   /* SIOCOUTQ when moved_ns was set */
    bool used;           /* it had a complete request */
    bool probed;         /* a probe was sent */
    bool blocked;        /* the socket takes no more output now */
    bool dead;           /* to be freed */
    bool eof;            /* the client has ended its stream, and all of it was read */
    bool loopback;       /* its local address is of the loopback */
    char name[48];       /* of the client */
};

/* Its listener accepts no more connections: the present request is the last of this one (http_leave, http_stop). */
static inline bool conn_is_leaving(const struct conn *k)
{
    return k->l->fd < 0;
}

enum request_state {
    REQUEST_READING,   /* the body is incomplete */
    REQUEST_DELIVERED, /* the caller has it and must respond */
    REQUEST_FINISHED,  /* response complete or client disconnected: the caller no longer knows it */
};

struct http_request {
    struct conn *k;
    enum request_state state;
    struct parse_head head;
    char *text; /* of the head */
    struct str body;
    struct parse_chunks chunks;
    uint64_t arrived_ns;
    void *user; /* of the caller */
    struct {
        char *name, *value;
    } header[HEADERS_MAX];
    size_t n_header;

    int status;
    bool replied;      /* http_reply, or http_end */
    bool streams;      /* a streamed response */
    bool begun;        /* its head is queued */
    bool close;        /* the connection is closed after the response */
    bool internal;     /* answered here, not delivered to the caller */
    bool keepalive;    /* event stream: sends comments */
    const char *probe; /* bytes without meaning in this content type; NULL: none */
    char *type;        /* of a streamed response to HEAD, whose head is sent at its end */
};

struct http {
    struct http_opts o;
    struct listener *listener[LISTENERS_MAX];
    size_t n_listener;
    struct loop *loop;
    struct list conns, idle, lingers, due;
    uint32_t n_conn, n_idle, n_linger;
    struct map peers;
    uint64_t n_body, n_queued; /* bytes */
    uint64_t n_replaced, n_refused, n_timed_out;
    uint64_t logged_ns; /* time of the last line about refused connections; 0: never */
    uint64_t n_unlogged;
    int spare; /* a descriptor to be closed when there are none left; -1: none */
    bool closing;
    struct tls *tls; /* NULL: no TLS */
};

/* ---- accept.c ---- */
void accept_ready(void *listener, uint32_t events);
void accept_again(void *listener);
void peer_leave(struct conn *k);

/* ---- conn.c ---- */
/* Takes fd over; NULL: no memory, and it is closed. */
struct conn *conn_open(struct listener *l, int fd, const struct sockaddr_storage *a);
int conn_add(struct conn *k);    /* to the loop only */
int conn_start(struct conn *k);  /* adds it to the loop and reads what has arrived */
void conn_close(struct conn *k); /* reports a disconnect */
void conn_kill(struct conn *k);  /* frees it in the next turn: for callers that still use it */
void conn_due(struct conn *k);
void conn_turn(struct conn *k); /* sends, and continues with the next request; may free it */
void conn_linger(struct conn *k);
void conn_arm(struct conn *k); /* sets its timer */
void conn_set_idle(struct conn *k, bool idle);

/* ---- send.c ---- */
void send_bytes(struct conn *k, const void *p,
                size_t n);        /* queues a copy; closes the connection if memory allocation fails */
void send_count(struct conn *k);  /* updates the counts of queued bytes */
bool send_queued(struct conn *k); /* passes to the kernel what it takes; false: an error */
size_t send_left(const struct conn *k);
uint64_t send_unsent(const struct conn *k); /* including the kernel's buffer; for comparison only */

/* ---- request.c ---- */
/* Parses the input; returns false if more is needed. */
bool request_input(struct conn *k);
/* Appends body bytes; returns how many of p were used. */
size_t request_body(struct conn *k, const char *p, size_t n);
void request_fail(struct conn *k, int status, const char *text);
void request_free(struct http_request *r); /* reports a disconnect */
void request_probe(struct http_request *r);

/* ---- response.c ---- */
void send_interim(struct conn *k); /* 100 Continue */

/* ---- guard.c ---- */
void guard_cors(const struct http_request *r, struct str *head);
bool guard_is_preflight(const struct http_request *r);
void guard_preflight(struct http_request *r); /* responds */
/* False: a web page of another site may have sent r, so r must be refused; `why` receives the reason. */
bool guard_passes(const struct http_request *r, char *why, size_t n);

/* ---- tls.c ---- */
int tls_new(struct err *e, struct tls **out, const char *cert, const char *key);
int tls_load(struct err *e, struct tls *t);
void tls_free(struct tls *t);
struct tls_session *tls_open(struct tls *t, int fd); /* NULL: no memory */
int tls_handshake(struct tls_session *s);            /* 1: complete, 0: not yet, -1: failed */
bool tls_wants_write(const struct tls_session *s);
/* Returns the number of bytes; 0: the end of the stream, -1: none now, -2: failed. */
ssize_t tls_recv(struct tls_session *s, void *p, size_t n);
ssize_t tls_send(struct tls_session *s, const void *p, size_t n); /* the same; after -1 with the same bytes again */
void tls_close(struct tls_session *s, bool bye);

#endif
