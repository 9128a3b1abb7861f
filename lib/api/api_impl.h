/* Private to lib/api: the core inside. */
#ifndef API_IMPL_H
#define API_IMPL_H

#include "api/api.h"
#include "api/metrics.h"
#include "api/parse.h"
#include "api/watch.h"
#include "base/job.h"
#include "base/list.h"
#include "base/loop.h"
#include "base/time.h"

#define API_BODY_BYTES_MAX (16u << 20) /* as a gateway's line */
#define API_WAITING_MAX 4096
#define API_BUCKETS 4096
#define API_KEYS_MAX 1024
#define API_KEY_BYTES 32                  /* of a hash */
#define API_ABSENT_NEW_NS (10 * NS_S)     /* a service is missing: new calls are refused */
#define API_ABSENT_WAITING_NS (30 * NS_S) /* … and those that wait for it fail */
#define API_ABSENT_TEXT "the scheduler or the tokenizer cannot be reached"

/* What a request has beside what lib/http knows. */
struct api_request {
    struct api *a;
    struct call *call;         /* NULL: none */
    struct parse_job *job;     /* its body is being read; NULL: not */
    struct api_parsed *parsed; /* owned; NULL: not yet */
    const struct api_route *found;
    const char *route; /* of a table, or "other" */
    char id[API_ID_BYTES_MAX + 1];
};

struct call_choice {
    uint64_t first_ns, last_ns; /* of its tokens; 0: none yet */
    uint32_t n_token, n_cached; /* n_cached: of its prompt */
    bool ended;
};

struct call_line {
    struct call_line *next_hash;
    struct call *c;
    uint64_t seq;
    uint64_t retry_ns; /* the scheduler is full, said just before its err frame; 0: it is not */
    uint32_t max_tokens, n_prompt;
    bool hashed;
    struct call_choice *choice; /* [n] */
};

struct call {
    struct list node;  /* api.calls */
    struct list later; /* api.later: it has something to flush */
    struct api *a;
    struct http_request *r;
    const struct call_ops *ops;
    void *state;
    uint64_t arrived_ns, first_ns;
    uint32_t n_line, n, n_left;
    struct call_line *line; /* [n_line] */
};

struct api {
    struct api_opts o;
    struct api_model model;
    struct gguf *gguf;
    struct text *text;
    uint64_t window_file; /* context of the file; the model's is less where no pool has room for that */
    char **name;          /* owned */
    size_t n_name;
    char digest[65], quant[24];
    char *arch, *chat_template, *path;

    struct http *http;
    struct gateway *gateway;
    struct api_watch *watch;
    struct metrics *metrics;
    struct loop *loop;
    struct job_queue *parse; /* long bodies */

    uint8_t (*key)[API_KEY_BYTES];
    size_t n_key;

    struct call_line *by_seq[API_BUCKETS];
    struct list calls, later;
    uint64_t next_seq, n_call;
    uint64_t n_waiting, n_running; /* choices without and with a first token */
    bool draining;
    bool wrong_vocab; /* tokenize has another vocabulary than the model here */
};

/* ---- api.c ---- */
/* The url of a service that is not connected, or of a tokenize that does not answer, and since when; NULL: all are
 * there. */
const char *api_absent(const struct api *a, uint64_t *since_ns);

/* ---- served.c: the model, its names, the keys ---- */
int api_served_open(struct err *e, struct api *a);
void api_served_close(struct api *a);
int api_keys_read(struct err *e, struct api *a); /* on failure those before stay */
bool api_key_ok(const struct api *a, const char *authorization);

/* ---- route.c: what HTTP calls ---- */
void api_on_request(void *arg, struct http_request *r);
void api_on_fail(void *arg, struct http_request *r, int status, const char *text);
void api_on_disconnected(void *arg, struct http_request *r);
void api_on_finished(void *arg, struct http_request *r, int status);
/* A long body that was read; p: owned; NULL: no memory. */
void api_on_parsed(struct api *a, struct http_request *r, const struct api_route *route, struct api_parsed *p);

/* ---- call.c: what the gateway calls ---- */
void api_on_frame(void *arg, const struct wire_frame *f);
void api_on_read(void *arg, uint64_t seq, const struct wire_prompt *q);
void api_on_full(void *arg, uint64_t seq, uint64_t retry_ns);
void call_gone(struct call *c); /* its client has gone; call_free follows */
void call_free(struct call *c);
void call_flush_all(struct api *a);
enum calls {
    CALLS_ALL,
    CALLS_WAITING, /* without a token yet */
    CALLS_UNREAD,  /* of which tokenize has still to read a prompt */
};
void call_fail_all(struct api *a, enum calls which, const struct call_error *why);

#endif
