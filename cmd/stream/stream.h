/* Private to cmd/stream. */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "request/flags.h"
#include "request/reply.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "stream"

struct stats; /* stats.c: what --stats prints at the end, for a person */
struct stats *stats_new(void);
void stats_free(struct stats *s);
int stats_add(struct err *e, struct stats *s, const struct wire_end *w);
void stats_print(const struct stats *s);

struct view { /* how answers are shown */
    bool jsonl, unordered;
    struct stats *stats; /* NULL: not asked for */
    /* An answer is shown, or will never be: one of n_choice of its request. May be NULL. */
    void (*shown)(void *arg, uint64_t seq, uint32_t n_choice);
    void *arg;
};

/* order.c: answers on their way, shown in the order of the input. */
struct order;
int order_new(struct err *e, struct order **out, const struct view *v);
void order_free(struct order *o);
int order_out(struct err *e, struct order *o, const struct wire_out *w, const struct text *vocab);
int order_end(struct err *e, struct order *o, const struct wire_end *w);
int order_error(struct err *e, struct order *o, const struct wire_error *w);
/* The input is complete: shows what waited for its turn. ERR_PROTO where an answer never ended. */
int order_bye(struct err *e, struct order *o);
/* Ends a line that is half written, before an error is said. */
void order_cut(struct order *o);

/* show.c: frames as they are shown. */
struct show {
    const char *model; /* NULL: the default one */
    struct view view;
    struct order *order;
    struct gguf *gguf; /* opened when the first log-probability comes */
    struct text *vocab;
    uint8_t vocab_fp[32];
    bool has_fp;
    uint64_t n_error, n_cancelled;
};
int show_open(struct err *e, struct show *s);
void show_close(struct show *s);
int show_frame(struct err *e, struct show *s, const struct wire_frame *f);
/* ERR_NO where a request failed. */
int show_result(struct err *e, const struct show *s);

/* service.c: requests to the services instead of frames of decode. */
struct service_opts {
    const char *sched, *tokenize, *listen; /* urls; listen may be NULL */
    const char *prompt;                    /* NULL: standard input */
    bool raw, lines, jsonl;                /* jsonl: the input is lines of JSON */
    const struct ask_flags *ask;
    uint64_t running_max; /* lines that are read and not answered in print */
    double deadline_s;    /* 0: none */
};
int service(struct err *e, struct show *s, const struct service_opts *o);

/* http.c: the services behind HTTP. */
struct http_flags {
    struct cli_list listen, name;
    const char *ollama, *kv, *key_file, *tls_cert, *tls_key, *origins;
    bool ollama_if_free, access_log;
    uint64_t body_bytes, connections, waiting, ready_fd;
    double drain_s;
    bool ready_given, given; /* given: one of those that only HTTP has */
};
int http_serve(struct err *e, const struct http_flags *f, const struct service_opts *o, const char *model);

#endif
