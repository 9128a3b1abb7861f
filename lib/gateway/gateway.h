/*
 * A gateway: the client of tokenize, the scheduler and the workers. It has one session (link/session.h) to tokenize,
 * one to the scheduler, and listens for workers. One thread; its descriptor can be polled beside others.
 *
 * A request is one line of JSON (request/ask.h) and has as many answers as it has choices. Each token of an answer is
 * given out once and in order, whatever attempts there were; after a lost connection to the scheduler all that runs is
 * submitted again. A gateway has a name that no other life of a program has.
 */
#ifndef GATEWAY_H
#define GATEWAY_H

#include "err/err.h"
#include "wire/wire.h"

struct gateway;

struct gateway_opts {
    const char *sched, *tokenize; /* urls */
    const char *listen; /* where workers send tokens; NULL: a socket of its own beside sched's (ipc), or a free
                           port of the loopback (tcp) */
    uint64_t deadline_ns, slo_ttft_ns, slo_tpot_ns; /* of every request; 0: none */
    /* What the scheduler cannot take now is submitted again when it says, until the deadline; without one for this
     * long (0: not at all, UINT64_MAX: for ever). Then it is an err frame. */
    uint64_t patience_ns;
    /* What happens, in frames as decode writes them: hello (again if tokenize has another vocabulary than before), then
     * out, end and err, with the seq of the request and the index of the choice. A request that is not known to the
     * scheduler yet has one err or end frame, of index 0. Borrowed. The callback may call gateway_ask and
     * gateway_cancel. */
    void (*frame)(void *arg, const struct wire_frame *f);
    /* The scheduler has taken it, or has it wait: may be NULL. */
    void (*taken)(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns);
    /* tokenize has read it: the prompt of its first choice, borrowed. Its ids are only in the body. May be NULL. */
    void (*read)(void *arg, uint64_t seq, const struct wire_prompt *q);
    /* The err frame that follows is of the scheduler, which cannot take the request now, and says when: may be NULL. */
    void (*full)(void *arg, uint64_t seq, uint64_t retry_ns);
    /* A line for the log, of what concerns no single request: may be NULL. */
    void (*say)(void *arg, const char *text);
    void *arg;
};

int gateway_open(struct err *e, struct gateway **out, const struct gateway_opts *o);
/* Cancels what runs. Blocks for at most 300 ms, for the scheduler to acknowledge what has ended. NULL is allowed. */
void gateway_close(struct gateway *g);

#define GATEWAY_LINE_BYTES_MAX WIRE_STR_BYTES_MAX

/* seq: of the caller's choice, not of one that runs. id: that of the line, for the frames of a request that ends before
 * tokenize has read it; none (n 0) or over WIRE_ID_BYTES_MAX: "req-SEQ". A line over the limit is not looked at and
 * answered by an err frame. Both are copied. */
int gateway_ask(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n);
void gateway_cancel(struct gateway *g, uint64_t seq); /* end frames with reason cancelled follow, in the next step */
uint64_t gateway_running(const struct gateway *g);    /* answers that have not ended */
/* The url of a service that is not connected, and since when (CLOCK_MONOTONIC); NULL: both are. */
const char *gateway_absent(const struct gateway *g, uint64_t *since_ns);

int gateway_fd(const struct gateway *g);
uint64_t gateway_next_ms(const struct gateway *g); /* when to call gateway_step though nothing has come, from now */
/* Does what there is to do, waiting at most timeout_ms for the first thing (0: not at all). */
int gateway_step(struct err *e, struct gateway *g, int timeout_ms);

#endif
