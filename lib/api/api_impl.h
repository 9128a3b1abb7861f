/* Private to lib/api: state of the core. */
#ifndef API_IMPL_H
#define API_IMPL_H

#include "api/api.h"
#include "api/keys.h"
#include "api/metrics.h"
#include "api/parse.h"
#include "api/stats_poller.h"
#include "base/job.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/time.h"

#define API_BODY_BYTES_MAX (16u << 20)       /* as the limit of a line in gateway/gateway.h */
#define API_BYTES_LEAST ((uint64_t)64 << 20) /* bounds of the default limits of all bodies, output and prompts */
#define API_BYTES_MOST ((uint64_t)1 << 30)
#define API_LOGPROBS_MAX 262144 /* a quarter of a million: 25 to 40 MB of JSON */
#define API_WAITING_MAX 4096
#define API_BUCKETS 4096
#define API_ABSENT_NEW_NS (10 * NS_S)     /* a service is unreachable so long: new requests are refused */
#define API_ABSENT_WAITING_NS (30 * NS_S) /* … and requests that wait for it fail */
#define API_ABSENT_TEXT "the scheduler or the tokenizer cannot be reached; retry later"

/* State of an HTTP request, attached with http_set. */
struct api_request {
    struct api *a;
    struct generation *generation; /* NULL: none */
    struct parse_job *job;         /* its body is being parsed; NULL: not */
    struct api_parsed *parsed;     /* owned; NULL: not parsed yet */
    const struct api_route *found;
    const char *route; /* path of a route table, or "other"; label of metrics */
    struct key *key;   /* reference; NULL: it has none, or keys are not used */
    bool begun;        /* key_begin was called */
    char id[API_ID_BYTES_MAX + 1];
};

struct generation_choice {
    uint64_t first_ns, last_ns; /* times of its first and last token; 0: none yet */
    uint32_t n_token, n_cached; /* n_cached: tokens of the prompt that were not computed */
    bool ended;
};

/* One prompt of a generation: a request to the gateway. */
struct generation_prompt {
    struct generation_prompt *next_hash;
    struct generation *c;
    uint64_t seq;
    uint64_t
        retry_ns; /* the scheduler refused for lack of capacity; reported just before its err frame; 0: it did not */
    uint32_t max_tokens, n_prompt;
    bool hashed;
    bool ending;                      /* with retry_ns: the scheduler is shutting down */
    bool charged;                     /* its tokens were taken from the limit of the key */
    bool computed;                    /* a token of it has arrived, so its prompt was used */
    struct generation_choice *choice; /* [n] */
};

struct generation {
    struct list node;  /* api.generations */
    struct list later; /* api.later: wants flush */
    struct list work;  /* api.work: wants work */
    bool finishing;    /* all choices have ended; `done` follows after the work */
    struct api *a;
    struct http_request *r;
    const struct generation_ops *ops;
    void *state;
    uint64_t arrived_ns, first_ns;
    char tenant[WIRE_NAME_BYTES_MAX + 1];
    struct key *key;      /* that of r; NULL: none */
    uint64_t n_charged;   /* tokens taken from its limit */
    uint64_t n_generated; /* tokens of all answers */
    bool begun;           /* a callback that may begin the response was called */
    bool failed;          /* by an error, not by its client */
    uint32_t n_line, n, n_left;
    struct submit_job *submit;      /* submission in progress; NULL: it is complete */
    uint64_t n_unaccepted;          /* choices that the scheduler has not accepted */
    uint64_t n_held;                /* bytes of the response, as counted by generation_hold */
    struct generation_prompt *line; /* [n_line] */
};

struct api {
    struct api_opts o;
    struct api_model model;
    struct gguf *gguf;
    struct text *text;
    uint64_t file_context; /* context length of the file; model.context is less if no worker's pool has room for it */
    char **name;           /* [n_name], owned */
    size_t n_name;
    char digest[65], quant[24];
    char *arch, *chat_template, *path;

    struct http *http;
    struct gateway *gateway;
    struct stats_poller *poller;
    struct metrics *metrics;
    struct loop *loop;
    struct job_queue *parse; /* parses long bodies */

    struct keys *keys; /* NULL: no key is required */

    struct generation_prompt *by_seq[API_BUCKETS];
    struct list generations, later, work;
    uint64_t next_seq, n_generation;
    uint64_t n_held;               /* bytes of responses that are being built */
    uint64_t n_parsing;            /* bytes of bodies that the parse thread has or will have */
    uint64_t n_waiting, n_running; /* choices without and with a first token, of all generations */
    bool draining;
    bool wrong_vocab; /* tokenize serves another vocabulary than the model file */
};

/* ---- api.c ---- */
/* The address of a service that is not connected, or of a tokenize that does not respond, and since when
 * (CLOCK_MONOTONIC); NULL: all are reachable. */
const char *api_absent(const struct api *a, uint64_t *since_ns);

/* ---- model_info.c: model, served names ---- */
int api_model_info_open(struct err *e, struct api *a);
void api_model_info_close(struct api *a);

/* ---- tenant.c: what an API key changes for its requests ---- */
int api_keys_read(struct err *e, struct api *a); /* on failure the old keys stay in use */
/* Sends the weights of k, and the default for those that only `old` has. Either may be NULL. */
int api_keys_weights(struct err *e, struct api *a, const struct keys *k, const struct keys *old);
/* Whose request it is, for the scheduler's fair queueing: the name of its API key, or its address without keys. */
void api_tenant(char out[WIRE_NAME_BYTES_MAX + 1], const struct http_request *r);
/* The headers x-ratelimit-* of a limit of k; none if it has no such limit. */
void api_limit_headers(struct http_request *r, struct key *k, enum key_limit limit);
/* Responds with 429 in the format of the dialect; r is invalid afterwards. */
void api_limit_reply(struct http_request *r, struct key *k, const struct key_refusal *no);

/* What the gateway adds to a request before tokenize parses it. */
struct line_edit {
    uint64_t context; /* context length, unless the request has a smaller one; 0: that of the file */
    bool salted;      /* cache_salt depends on the key with this hash */
    uint8_t hash[KEY_HASH_BYTES];
};
/* A request as JSON text, malloc'd; NULL: no memory. May be called by the parse thread. */
char *line_text(const json_t *line, const struct line_edit *x);

/* ---- route.c: callbacks of lib/http ---- */
void api_on_head(void *arg, struct http_request *r);
void api_on_request(void *arg, struct http_request *r);
void api_on_fail(void *arg, struct http_request *r, int status, const char *text);
void api_on_disconnected(void *arg, struct http_request *r);
void api_on_finished(void *arg, struct http_request *r, int status);
/* A long body was parsed; takes ownership of p; NULL: no memory. */
void api_on_parsed(struct api *a, struct http_request *r, const struct api_route *route, struct api_parsed *p);

/* ---- generation_submit.c ---- */
/* Submits all prompts, or none; n_bytes: those of the body. */
int generation_submit(struct err *e, struct generation *c, const json_t *const *line, size_t n_bytes);
/* Detaches c, which ends, from its unfinished submission; c->submit must not be NULL. */
void generation_submit_forget(struct generation *c);

/* ---- generation.c: callbacks of the gateway ---- */
void generation_hash(struct generation_prompt *l); /* its frames are passed to it from now on */
void generation_unhash(struct generation_prompt *l);
/* Cancels its choices and reports the error to the dialect, which ends the response; c is freed. */
void generation_fail(struct generation *c, uint32_t line, uint32_t choice, const struct api_error *why);
void api_on_frame(void *arg, const struct wire_frame *f);
void api_on_read(void *arg, uint64_t seq, const struct wire_prompt *q);
void api_on_full(void *arg, uint64_t seq, uint64_t retry_ns, bool ending);
void api_on_accepted(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns);
void generation_disconnected(struct generation *c); /* the client disconnected; generation_free follows */
void generation_free(struct generation *c);
void generation_flush_all(struct api *a);
void generation_work_all(
    struct api *a); /* runs some milliseconds at most; if all is done, api.work is empty afterwards */
enum generation_filter {
    GENERATIONS_ALL,
    GENERATIONS_WAITING,     /* no token yet */
    GENERATIONS_UNTOKENIZED, /* tokenize has not processed all prompts */
};
void generation_fail_all(struct api *a, enum generation_filter which, const struct api_error *why);

#endif
