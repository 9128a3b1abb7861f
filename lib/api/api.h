/*
 * The edge as HTTP: requests of the OpenAI and the Ollama API become requests to a gateway (gateway/gateway.h), and
 * what comes back becomes their answers. One loop: connections, the gateway, the watch of the scheduler; only long
 * bodies are read by another thread (base/job.h).
 *
 * This is the core that both surfaces share: routes, keys, limits, the calls that run, the model that is served. What a
 * request and an answer look like is in openai*.c and ollama*.c; metrics.h counts.
 */
#ifndef API_H
#define API_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "err/err.h"
#include "gateway/gateway.h"
#include "http/http.h"
#include "model/gguf.h"
#include "text/text.h"
#include "wire/wire.h"

#define API_ID_BYTES_MAX 128 /* an id of a request, from a header or a field */

enum api_surface { API_OPENAI = 1, API_OLLAMA = 2 };

struct api;
struct metrics;

struct api_opts {
    const char *sched, *tokenize, *listen, *kv; /* urls; listen and kv may be NULL */
    const char *model;                          /* GGUF: its vocabulary and facts; tokenize must serve the same */
    const char *const *name; /* served names, the first is what answers say; n_name 0: made of the file */
    size_t n_name;
    const char *const *http; /* addresses of the OpenAI surface */
    size_t n_http;
    int http_fd, ollama_fd; /* listening sockets of a service manager, owned; -1: none */
    const char *ollama;     /* NULL: none */
    bool ollama_if_free;    /* an address in use is said and done without */
    const char *key_file;   /* a key a line, # comments; NULL: open */
    const char *tls_cert, *tls_key, *origins;
    uint64_t body_bytes_max;
    uint32_t connections_max, waiting_max; /* waiting_max: answers without a first token; beyond: 429. 0: 4096 */
    double deadline_s;                     /* of each request; 0: none */
    uint32_t default_max_tokens;           /* completions without max_tokens; 0: 16 */
    bool access_log;                       /* a line of `say` for each answer */
    void (*say)(void *arg, const char *text);
    void *arg;
};

int api_open(struct err *e, struct api **out, const struct api_opts *o);
/*
 * Serves until a SIGTERM or SIGINT comes out of signal_fd (a signalfd of those and SIGHUP), then drains: what runs goes
 * on to its end for drain_s at most, as does what clients still read, what is new is refused by 503; a second one ends
 * at once. SIGHUP: keys and TLS files are read again. `ready` is called once, when the scheduler and tokenize are
 * connected.
 */
int api_run(struct err *e, struct api *a, int signal_fd, double drain_s, void (*ready)(void *arg), void *arg);
void api_close(struct api *a);
const char *api_address(const struct api *a, size_t i); /* as http_address */
enum api_surface api_address_surface(const struct api *a, size_t i);

/* ---- for the surfaces: the model that is served ---- */

struct api_model {
    const struct gguf *gguf;
    const struct text *text;
    const char *name; /* first served name */
    const char *path;
    uint64_t context;          /* tokens of prompt and answer: the smaller of the file's and what workers say */
    uint64_t vocab;            /* rows */
    uint64_t bytes;            /* of the file */
    uint64_t n_param;          /* values of all tensors */
    const char *quant;         /* "Q4_1", of most of its weights */
    const char *digest;        /* 64 hex digits: of the file's header, name and size; a name, not a check */
    const char *arch;          /* "llama" */
    int64_t created;           /* Unix time: modification of the file */
    const char *chat_template; /* of the file; NULL: none */
};
const struct api_model *api_model(const struct api *a);
/* Whether a request may call the model so: a served name or an alias; Ollama's names with or without ":latest". */
bool api_serves(const struct api *a, const char *name, bool ollama);
const char *const *api_names(const struct api *a, size_t *n);
const struct api_opts *api_options(const struct api *a);
struct api_watch *api_watch(struct api *a); /* watch.h */
uint64_t api_running(const struct api *a);  /* calls that have not ended: of /load */
bool api_ready(const struct api *a);        /* scheduler and tokenize are connected, a worker is there, not draining */
void api_say(struct api *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* The request inside the body of a prompt, with its ids. *out: the caller's, wire_req_free. */
int api_prompt_read(struct err *e, struct wire_req **out, const struct wire_prompt *q);

/* ---- for the surfaces: a call ---- */

/* An HTTP request that asks the model: n_line requests to the gateway (a batch of prompts) with n choices each. */
struct call;

struct call_error {
    int status;       /* 400, 404, 429, 500, 503 … */
    double retry_s;   /* of 429 and 503; 0: not said */
    const char *text; /* borrowed */
};

struct call_ops {
    /* Tokenized: the counts of the prompt; its ids are in the body (api_prompt_read). May be NULL. */
    void (*prompt)(struct call *c, uint32_t line, const struct wire_prompt *q);
    /* A piece; `o->prompt`: it is the prompt's (echo). */
    void (*out)(struct call *c, uint32_t line, uint32_t choice, const struct wire_out *o);
    void (*end)(struct call *c, uint32_t line, uint32_t choice, const struct wire_end *w);
    /* A choice failed; before anything was sent it is a status, later an error in the stream. All of the call is
     * cancelled after it, and `done` follows. */
    void (*fail)(struct call *c, uint32_t line, uint32_t choice, const struct call_error *why);
    /* After call_later: all that came at once has been told. What is written here leaves together. May be NULL. */
    void (*flush)(struct call *c);
    /* All have ended: the last of the answer is to be written and http_end or http_reply called. */
    void (*done)(struct call *c);
    /* The state, however it ended; also when the client has gone, without `done` before. */
    void (*free)(void *state);
};

/* line: JSON objects with the fields of request/ask.h (borrowed), n: choices of each. Whatever happens later is told by
 * ops; an error here (ERR_NO: too many wait, 429; draining, 503) leaves `state` with the caller. The request's answer
 * is the surface's. */
int call_start(struct err *e, struct call **out, struct api *a, struct http_request *r, const struct call_ops *ops,
               void *state, const json_t *const *line, uint32_t n_line, uint32_t n, struct call_error *why);
void call_cancel(struct call *c); /* what runs is cancelled; done follows */
void call_later(struct call *c);  /* flush is called before the loop waits again; done is not preceded by it */
void *call_state(struct call *c);
struct http_request *call_http(struct call *c);
/* CLOCK_MONOTONIC: arrival of the request, its first token of any choice (0: none yet). */
uint64_t call_arrived_ns(const struct call *c);
uint64_t call_first_ns(const struct call *c);
/* The id of the request: of X-Request-Id where it is printable and at most API_ID_BYTES_MAX, else 32 random hex digits.
 * Set before the route is called; the answer's header X-Request-Id is set too. */
const char *api_request_id(const struct http_request *r);

/* ---- routes ---- */

/* A body as JSON, and what a route makes of it. */
struct api_parsed {
    size_t n; /* bytes */
    int rc;   /* of ask_parse, and why */
    struct err e;
    json_t *o;
    void *more; /* of the route; freed by free_more */
    void (*free_more)(void *more);
};

struct api_route {
    const char *method, *path; /* a path that ends in "/" and a star takes whatever follows */
    bool open;                 /* needs no key */
    void (*call)(struct api *a, struct http_request *r);
    /* What takes long and needs nothing but the body: long ones are done by another thread. May be NULL. */
    void (*prepare)(struct api_parsed *p, const struct api_model *m);
};
/* The body of r, read by now or read here; of the request. NULL: no memory. */
struct api_parsed *api_body(struct http_request *r);
extern const struct api_route openai_routes[]; /* ends with method NULL */
extern const struct api_route ollama_routes[];
/* Errors as the surface shapes them; r is no more. `param` may be NULL. */
void openai_error(struct http_request *r, int status, const char *param, double retry_s, const char *text);
void ollama_error(struct http_request *r, int status, double retry_s, const char *text);

#endif
