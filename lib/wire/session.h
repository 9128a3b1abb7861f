/*
 * The frames of every session (lib/link/session.h), kinds 65 to 68, and the response of tokenize as a service, kind 70;
 * part of wire/wire.h, which includes this.
 */
#ifndef WIRE_SESSION_H
#define WIRE_SESSION_H

#ifndef WIRE_H
#error "include wire/wire.h"
#endif

#define WIRE_ROLE_BYTES_MAX 16
#define WIRE_CHOICES_MAX 128
#define WIRE_BYE_BYTES_MAX 1024

struct wire_session_hello { /* the first frame of a connection, in each direction */
    uint32_t version;       /* any value decodes; the receiver refuses another version with session_bye */
    struct wire_str role;   /* worker, gateway, monitor, sched, tokenize or tool */
    struct wire_str name;
    uint64_t inc;        /* incarnation of the process */
    uint32_t silence_ms; /* receive timeout of the sender, after which it closes the connection; 0: not stated */
    struct wire_extra extra;
};

struct wire_session_ack {
    uint64_t n; /* frames that the sender of the ack has processed on this connection, without session_* frames */
    struct wire_extra extra;
};

struct wire_session_ping { /* keepalive: nothing else was sent for a second */
    struct wire_extra extra;
};

struct wire_session_bye { /* the sender sends no more frames */
    struct wire_str reason;
    struct wire_extra extra;
};

/* tokenize to a gateway: one choice of an ask. The gateway and the scheduler forward body to the worker unread. */
struct wire_prompt {
    uint64_t seq;      /* of the ask */
    uint32_t index, n; /* number of the choice, below n; choices of the ask */
    struct wire_str id;
    uint32_t n_prompt, max_tokens;
    struct wire_bytes digests; /* 32 a full block of the prompt, or none */
    int32_t priority;
    uint64_t born_ns, load_ns; /* see wire_req */
    const struct wire_span *span;
    uint32_t n_span;
    struct wire_bytes body;  /* two frames, each with its length prefix: hello of tokenize, tok */
    struct wire_extra extra; /* the unknown fields of the tok */
};

#endif
