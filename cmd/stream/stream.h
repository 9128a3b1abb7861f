/* Private to cmd/stream. */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "link/session.h"
#include "request/flags.h"
#include "request/reply.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "stream"

struct stats; /* stats.c: the output of --stats */
struct stats *stats_new(void);
void stats_free(struct stats *s);
int stats_add(struct err *e, struct stats *s, const struct wire_end *w);
void stats_print(const struct stats *s);

struct view { /* how answers are shown */
    bool jsonl, unordered;
    struct stats *stats; /* NULL: no --stats */
    /* An answer, one of n_choice of its request, is printed or will never be. May be NULL. */
    void (*shown)(void *arg, uint64_t seq, uint32_t n_choice);
    void *arg;
};

/* order.c: prints answers in the order of the input. */
struct order;
int order_new(struct err *e, struct order **out, const struct view *v);
void order_free(struct order *o);
int order_out(struct err *e, struct order *o, const struct wire_out *w, const struct text *vocab);
int order_end(struct err *e, struct order *o, const struct wire_end *w);
int order_error(struct err *e, struct order *o, const struct wire_error *w);
/* The input is complete: prints the waiting answers. ERR_PROTO: an answer has not ended. */
int order_bye(struct err *e, struct order *o);
/* Ends an incomplete output line, before an error is printed. */
void order_end_line(struct order *o);

/* show.c: output of frames. */
struct show {
    const char *model; /* NULL: the default one */
    struct view view;
    struct order *order;
    struct gguf *gguf; /* opened with the first log-probability */
    struct text *vocab;
    uint8_t vocab_fp[32];
    bool has_fp;
    uint64_t n_error, n_cancelled;
};
int show_open(struct err *e, struct show *s);
void show_close(struct show *s);
int show_frame(struct err *e, struct show *s, const struct wire_frame *f);
/* ERR_NO: a request failed. */
int show_result(struct err *e, const struct show *s);

/* service.c: requests to the services instead of frames of decode. */
struct service_opts {
    const char *sched, *tokenize, *listen; /* urls; listen may be NULL */
    struct session_security security;
    const char *prompt;     /* NULL: standard input */
    bool raw, lines, jsonl; /* jsonl: the input is lines of JSON */
    const struct ask_flags *ask;
    uint64_t running_max; /* requests that are read and not completely printed */
    double deadline_s;    /* 0: none */
};
int service(struct err *e, struct show *s, const struct service_opts *o);

/* http.c: the HTTP server. */
struct http_flags {
    struct cli_list listen, name;
    const char *ollama, *kv, *key_file, *tls_cert, *tls_key, *origins, *hosts;
    bool ollama_if_free, access_log, shared_cache, metrics_by_key;
    uint64_t body_bytes, bodies_bytes, outputs_bytes, prompts_bytes, connections, address_connections, waiting,
        logprob_entries, ready_fd;
    double drain_s, keepalive_s;
    bool ready_given, given; /* given: an option that only HTTP has */
};
int http_serve(struct err *e, const struct http_flags *f, const struct service_opts *o, const char *model);

#endif
