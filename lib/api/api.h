/*
 * The HTTP gateway: requests of the OpenAI and the Ollama API become requests to the scheduler (gateway/gateway.h), and
 * the frames that come back become their responses. One event loop serves the connections, the gateway's sessions and
 * the stats poller; only long bodies are parsed by a background thread (base/job.h).
 *
 * This is the core that both API dialects share: routes, API keys, limits, generations in flight, model info. The
 * format of requests and responses is in openai*.c and ollama*.c; metrics.h counts.
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

#define API_ID_BYTES_MAX 128 /* a request id, from a header or a field */

enum api_dialect { API_OPENAI = 1, API_OLLAMA = 2 };

struct api;
struct metrics;

struct api_opts {
    const char *sched, *tokenize, *listen, *kv; /* addresses of the services; listen and kv may be NULL */
    struct session_security security;           /* of the connections to them */
    const char *model;       /* GGUF file, for vocabulary and metadata; tokenize must serve the same vocabulary */
    const char *const *name; /* served model names, responses use the first; n_name 0: derived from the file name */
    size_t n_name;
    const char *const *http; /* addresses of the OpenAI dialect */
    size_t n_http;
    int http_fd, ollama_fd; /* listening sockets from a service manager; owned; -1: none */
    const char *ollama;     /* address of the Ollama dialect; NULL: not served */
    bool ollama_if_free;    /* if that address is in use, log it and serve without Ollama */
    const char *key_file;   /* API keys (keys.h); NULL: no key is required */
    bool shared_cache;      /* requests of different keys share cached blocks */
    bool metrics_by_key;    /* numbers of each key, for keys with role=admin */
    const char *tls_cert, *tls_key, *origins;
    const char *hosts; /* names allowed as Host at loopback addresses, separated by commas, or "*"; NULL: none */
    uint64_t body_bytes_max;
    uint64_t bodies_bytes_max, outputs_bytes_max; /* of all requests, as in http.h; 0: a part of the memory */
    uint64_t prompts_bytes_max;                   /* of all requests until their answers end; 0: a part of the memory */
    uint32_t connections_max, address_connections_max; /* as in http.h */
    double keepalive_s;                                /* as in http.h */
    uint32_t waiting_max;                              /* choices without a first token; beyond it 429. 0: 4096 */
    /* Log-probabilities of the prompts of a request, and of a response that is not streamed: positions times (the
     * number of top ones, at least 1). Ids of prompts that are returned with each choice count too. 0: 262144 */
    uint64_t logprob_entries_max;
    double deadline_s;           /* seconds, of each request; 0: none */
    uint32_t default_max_tokens; /* of /v1/completions without max_tokens; 0: 16 */
    bool access_log;             /* log a line for each response */
    void (*log)(void *arg, const char *text);
    void *arg;
};

int api_open(struct err *e, struct api **out, const struct api_opts *o);
/* Whether api_open would accept this file of API keys: for a supervisor that starts the server later. */
int api_check_keys(struct err *e, const char *path, bool metrics_by_key);
/*
 * Serves until signal_fd (a signalfd of SIGTERM, SIGINT and SIGHUP) delivers SIGTERM or SIGINT, then shuts down
 * gracefully: requests in flight may complete and clients may read their responses for drain_s seconds at most; new
 * requests get 503. A second signal ends at once. SIGHUP reloads API keys and TLS files; on failure the old ones stay
 * in use. `ready` is called once, when the scheduler and tokenize are connected.
 */
int api_run(struct err *e, struct api *a, int signal_fd, double drain_s, void (*ready)(void *arg), void *arg);
void api_close(struct api *a);
const char *api_address(const struct api *a, size_t i); /* as http_address */
enum api_dialect api_address_dialect(const struct api *a, size_t i);

/* ---- for the dialects: model info ---- */

struct api_model {
    const struct gguf *gguf;
    const struct text *text;
    const char *name; /* first served name */
    const char *path;
    uint64_t context;   /* context length in tokens: that of the file, or less if no worker's pool has room for it */
    uint64_t vocab;     /* rows of the embedding table, at least the tokens of the vocabulary */
    uint64_t bytes;     /* of the file */
    uint64_t n_param;   /* number of parameters: values of all tensors */
    const char *quant;  /* "Q4_1": the type of most weights */
    const char *digest; /* 64 hex digits over vocabulary, tensor table and file size: an identifier, not a checksum of
                           the contents */
    const char *arch;   /* "llama" */
    int64_t created;    /* Unix time: modification time of the file */
    const char *chat_template; /* of the file; NULL: none */
};
const struct api_model *api_model(const struct api *a);
/* Whether `name` is a served model name. For Ollama names compare case-insensitively, with or without ":latest". */
bool api_serves(const struct api *a, const char *name, bool ollama);
const char *const *api_names(const struct api *a, size_t *n);
const struct api_opts *api_options(const struct api *a);
struct stats_poller *api_poller(struct api *a); /* stats_poller.h */
uint64_t api_running(const struct api *a);      /* generations in flight, for /load */
bool api_ready(const struct api *a); /* scheduler and tokenize are reachable, a worker is alive, and the server is not
                                        shutting down */
void api_log(struct api *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Decodes the request inside q->body, with the ids of the prompt. *out: owned by the caller, wire_req_free. */
int api_prompt_read(struct err *e, struct wire_req **out, const struct wire_prompt *q);

/* ---- for the dialects: generations ---- */

/* One HTTP request that generates text: n_line prompts, each a request to the gateway, with n choices each. In the
 * callbacks `line` is the index of the prompt. */
struct generation;

struct api_error {
    int status;       /* 400, 404, 429, 500, 503 … */
    double retry_s;   /* of 429 and 503, for Retry-After; 0: not known */
    const char *text; /* borrowed */
};

struct generation_ops {
    /* The scheduler has accepted all choices: a stream may begin. Called at most once. May be NULL. */
    void (*begin)(struct generation *c);
    /* The prompt was tokenized: its counts; its ids are in the body (api_prompt_read). May be NULL. */
    void (*prompt)(struct generation *c, uint32_t line, const struct wire_prompt *q);
    /* Tokens or text of a choice; if o->prompt is set, of the prompt (echo). */
    void (*out)(struct generation *c, uint32_t line, uint32_t choice, const struct wire_out *o);
    void (*end)(struct generation *c, uint32_t line, uint32_t choice, const struct wire_end *w);
    /* A choice failed: a status if no byte was sent yet, else an error within the stream. The generation has been
     * cancelled; `done` follows. */
    void (*fail)(struct generation *c, uint32_t line, uint32_t choice, const struct api_error *why);
    /* After generation_flush_later, when all frames received so far were processed: what is written here is sent
     * together. May be NULL. */
    void (*flush)(struct generation *c);
    /* After generation_work_later: a piece of work of a few milliseconds, repeated between other events until it
     * returns false; `done` waits for that, unless the generation fails. If the callback ends the generation it returns
     * true. May be NULL. */
    bool (*work)(struct generation *c);
    /* All choices have ended: must write the end of the response and call http_end or http_reply. */
    void (*done)(struct generation *c);
    /* Frees the state at the end; after a disconnect `done` was not called. May be NULL. */
    void (*free)(void *state);
};

/* Submits n_line requests. line: JSON objects with the fields of request/ask.h (borrowed); n: choices of each. Later
 * events are reported through ops, which then owns `state`. On error (*why: 429 too many waiting, 503 unavailable or
 * shutting down, …) the caller keeps `state` and must answer r. */
int generation_start(struct err *e, struct generation **out, struct api *a, struct http_request *r,
                     const struct generation_ops *ops, void *state, const json_t *const *line, uint32_t n_line,
                     uint32_t n, struct api_error *why);
/* Counts bytes of the response that c builds: more (or fewer, if negative) than before. False: the responses of all
 * generations together have more than outputs_bytes_max. */
bool generation_hold(struct generation *c, int64_t more);
void generation_cancel(struct generation *c); /* cancels the choices in flight; done follows */
/* Requests a call of `flush` before the event loop blocks again; dropped if `done` is called first. */
void generation_flush_later(struct generation *c);
void generation_work_later(struct generation *c); /* requests calls of `work` */
void *generation_state(struct generation *c);
struct http_request *generation_http(struct generation *c);
/* CLOCK_MONOTONIC: arrival of the request; the first token of any choice (0: none yet). */
uint64_t generation_arrived_ns(const struct generation *c);
uint64_t generation_first_ns(const struct generation *c);
/* The request id: from X-Request-Id if it is printable and at most API_ID_BYTES_MAX long, else 32 random hex digits. It
 * is set, as is the response header X-Request-Id, before the route is called. */
const char *api_request_id(const struct http_request *r);

/* ---- routes ---- */

/* A body as JSON, and what a route derives from it. */
struct api_parsed {
    size_t n; /* bytes */
    int rc;   /* result of ask_parse, with its error */
    struct err e;
    json_t *o;
    void *more; /* result of `prepare`; freed by free_more */
    void (*free_more)(void *more);
    /* The core frees all of it after the call of the route: the route takes references, and moves nothing out of it.
     * False: it is freed at the end of the request, and the route moves out what is large. */
    bool kept;
    bool finished; /* private to the core */
};

struct api_route {
    const char *method, *path; /* a path that ends in "/" and a star matches any non-empty rest */
    bool open;                 /* needs no API key */
    void (*call)(struct api *a, struct http_request *r);
    /* Work that takes long and depends on body and model only: for long bodies a background thread calls it. May be
     * NULL. */
    void (*prepare)(struct api_parsed *p, const struct api_model *m);
};
/* Whether a Content-Type is application/json or a type based on it; NULL: it is absent, and is not. */
bool api_is_json(const char *type);
/* The parsed body of r; parses it unless the background thread has. Borrowed for the lifetime of r. NULL: no memory. */
struct api_parsed *api_body(struct http_request *r);
extern const struct api_route openai_routes[]; /* ends with method NULL */
extern const struct api_route ollama_routes[];
/* Responds with an error in the format of the dialect; r is invalid afterwards. `param` may be NULL. */
void openai_error(struct http_request *r, int status, const char *param, double retry_s, const char *text);
void ollama_error(struct http_request *r, int status, double retry_s, const char *text);

#endif
