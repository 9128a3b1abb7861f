/*
 * A gateway: the client of tokenize, the scheduler and the workers. It has one session (link/session.h) to tokenize,
 * one to the scheduler, and listens for workers. One thread: the caller polls gateway_fd and calls gateway_step.
 *
 * A request is one line of JSON (request/ask.h) and has an answer for each of its choices. Each token of an answer is
 * output once and in order, however many attempts there are. After a lost connection to the scheduler all unfinished
 * requests are submitted again, except for one with which the scheduler has died twice. The name of a gateway is
 * unique, also over restarts.
 */
#ifndef GATEWAY_H
#define GATEWAY_H

#include "err/err.h"
#include "link/session.h"
#include "wire/wire.h"

struct gateway;

struct gateway_opts {
    const char *sched, *tokenize; /* URLs */
    struct session_security security;
    const char *listen; /* URL for workers; NULL: a new socket in the directory of sched's (ipc), or, if sched's is
                           on the loopback, a free port there */
    uint64_t deadline_ns, slo_ttft_ns, slo_tpot_ns; /* of every request; 0: none */
    /* A request that the scheduler refuses for now is submitted again after the time that it states, until the
     * deadline; without a deadline for this long (0: not at all, UINT64_MAX: for ever). Then it fails. */
    uint64_t patience_ns;
    /* Limit of gateway_bytes: a request that would exceed it when tokenize responds is refused for now, unless there is
     * no other. 0: none. */
    uint64_t bytes_max;
    /* Receives the output, in frames as decode writes them: hello (again if the vocabulary of tokenize changes), then
     * out, end and err, with the seq of the request and the index of the choice. A request that ends before tokenize
     * has parsed it has one err or end frame, of index 0. Borrowed. The callback may call gateway_submit and
     * gateway_cancel. */
    void (*frame)(void *arg, const struct wire_frame *f);
    /* The scheduler has accepted a choice: n_before requests are queued before it, its first token is expected in
     * eta_ns (0: unknown). May be NULL. */
    void (*accepted)(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns);
    /* tokenize has parsed the line. q: the prompt of its first choice, borrowed; the ids are only in the body. May be
     * NULL. */
    void (*parsed)(void *arg, uint64_t seq, const struct wire_prompt *q);
    /* Called before an err frame if the scheduler has refused the request for now, or bytes_max has; retry_ns is its
     * advice. ending: the scheduler is shutting down, so it was not submitted again; otherwise there is too much work.
     * May be NULL. */
    void (*refused)(void *arg, uint64_t seq, uint64_t retry_ns, bool ending);
    /* Receives log lines. May be NULL. */
    void (*log)(void *arg, const char *text);
    void *arg;
};

int gateway_open(struct err *e, struct gateway **out, const struct gateway_opts *o);
/* Cancels unfinished requests. Blocks for at most 300 ms, until the scheduler has acknowledged the ends of the others.
 * NULL is safe. */
void gateway_close(struct gateway *g);

#define GATEWAY_LINE_BYTES_MAX WIRE_STR_BYTES_MAX

/* Submits a request. seq: chosen by the caller, unused by unfinished requests (otherwise ERR_USAGE). id: that of the
 * line, for the frames of a request that ends before tokenize has parsed it; with n 0, or over WIRE_ID_BYTES_MAX,
 * "req-SEQ". A line over the limit is not parsed; the request ends with an err frame. id and line are copied. */
int gateway_submit(struct err *e, struct gateway *g, uint64_t seq, struct wire_str id, const char *line, size_t n);
/* The same for a tenant, of at most WIRE_NAME_BYTES_MAX bytes of printable ASCII: the scheduler shares its workers
 * fairly among tenants. Without: the gateway is one. */
int gateway_submit_for(struct err *e, struct gateway *g, const char *tenant, uint64_t seq, struct wire_str id,
                       const char *line, size_t n);
/* The weight of a tenant in the scheduler's fair queueing, above 0: sent now and to each scheduler that is connected
 * later. The newest one of a tenant counts, also if tools or other gateways set it. */
int gateway_set_weight(struct err *e, struct gateway *g, const char *tenant, float weight);
void gateway_cancel(struct gateway *g, uint64_t seq); /* the next step emits its end frames, with reason cancelled */
/* The number of answers that have not ended; a request that tokenize has not parsed yet counts as one. */
uint64_t gateway_running(const struct gateway *g);
/* Bytes of the lines and prompts of all requests that have not ended. */
uint64_t gateway_bytes(const struct gateway *g);
/* The URL of a service that is not connected, and since when (CLOCK_MONOTONIC); NULL: both are connected. */
const char *gateway_absent(const struct gateway *g, uint64_t *since_ns);

int gateway_fd(const struct gateway *g);
/* Milliseconds after which gateway_step has work even if gateway_fd is not readable; UINT64_MAX: none. */
uint64_t gateway_next_ms(const struct gateway *g);
/* Processes all events and timers that are due. Blocks at most timeout_ms until the first one (0: does not block). */
int gateway_step(struct err *e, struct gateway *g, int timeout_ms);

#endif
