/*
 * The parts of a load generator that need no sockets: seeded random numbers, arrivals, statistics, the events of an SSE
 * stream and their fields, traces. Times are seconds in doubles, stamps are nanoseconds. No function has state of its
 * own; the same seed gives the same numbers on every machine.
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

/* ---- numbers ---- */

struct load_rng {
    uint64_t s;
};
/* Sequences of one seed with different `stream` are independent. */
void load_rng_start(struct load_rng *r, uint64_t seed, uint64_t stream);
uint64_t load_rng_next(struct load_rng *r);
uint64_t load_rng_below(struct load_rng *r, uint64_t n); /* 0 <= x < n, n > 0 */
double load_rng_unit(struct load_rng *r);                /* 0 < x < 1 */
/* Mean shape · scale. shape > 0; shape 1 is the exponential distribution. */
double load_rng_gamma(struct load_rng *r, double shape, double scale);

/* ---- arrivals ---- */

enum load_ramp { LOAD_STEADY, LOAD_LINEAR, LOAD_EXPONENTIAL };

struct load_plan {
    double rate;       /* requests/s; INFINITY: all at once */
    double burstiness; /* shape of the gamma distribution of the gaps; 1: Poisson; INFINITY: even */
    enum load_ramp ramp;
    double ramp_from, ramp_to; /* requests/s, > 0; the rate changes with the request number, not with time */
    double within_s;           /* > 0: the time of the last request, s; 0: see load_plan_arrivals */
    uint64_t seed;
};
/* Requests/s of the plan at request i of n. */
double load_plan_rate(const struct load_plan *p, uint64_t i, uint64_t n);
/* Average number of requests that a plan sends in `seconds`, at least 1. The rate must be finite. */
uint64_t load_plan_count(const struct load_plan *p, double seconds);
/*
 * Fills at_s [n], ascending, in seconds from the start: the sum of the gaps so far. A steady plan is stretched so that
 * the last request is at n / rate exactly, as by `vllm bench serve`, so the seed does not change the rate. A plan with
 * within_s > 0 is stretched, ramps too, so that the last request is at within_s.
 */
void load_plan_arrivals(double *at_s, const struct load_plan *p, uint64_t n);

/* ---- statistics ---- */

struct load_stat {
    double mean, median, std; /* of the whole population; 0 if n is 0 */
};
void load_sort(double *v, size_t n);
struct load_stat load_stat(const double *sorted, size_t n);
/* The value at p percent, 0 to 100, interpolated linearly; 0 if n is 0. */
double load_percentile(const double *sorted, size_t n, double p);

/* ---- server-sent events ---- */

#define LOAD_EVENT_BYTES_MAX (16u << 20)

struct load_sse {
    char *line, *data; /* incomplete input so far: a line without its end, an event without its blank line */
    size_t n_line, line_size, n_data, data_size;
    bool has_data, is_error;
};
void load_sse_free(struct load_sse *s); /* also resets it for the next stream */
/* Called with the data of each event, its lines joined by '\n'. `error`: the data is of a field named error, as some
 * servers send. Returns false to skip the rest of the bytes. */
typedef bool load_sse_take(void *arg, const char *data, size_t n, bool error);
/* Lines end with LF or CR LF. ERR_PROTO: an event exceeds LOAD_EVENT_BYTES_MAX; ERR_SYS: no memory. */
int load_sse_feed(struct err *e, struct load_sse *s, load_sse_take *take, void *arg, const char *bytes, size_t n);

/* The fields of an event of the OpenAI API. */
struct load_event {
    bool done;    /* "[DONE]" */
    bool choices; /* a non-empty list: at least one token */
    bool usage;   /* an object with counts */
    bool has_prompt, has_completion;
    uint64_t prompt_tokens, completion_tokens;
    const char *text; /* of the first choice, as JSON between the quotes; NULL: none */
    size_t n_text;
    const char *error; /* the value of "error", JSON; NULL: none */
    size_t n_error;
};
/* Parses data; out borrows from it. ERR_PROTO: neither "[DONE]" nor a JSON object. Skipped values are checked only as
 * far as skipping needs. */
int load_event_read(struct err *e, struct load_event *out, const char *data, size_t n);

/* ---- traces and lists of requests ---- */

#define LOAD_TOKENS_MAX (1u << 22) /* of a prompt or an answer */
#define LOAD_BLOCK 512             /* tokens per hash id in Mooncake's traces */

struct load_item {
    double at_s;              /* 0 in a list of requests */
    uint32_t n_prompt, n_out; /* n_prompt: 0 for texts and messages of a list; n_out: 0 if a list has no length */
    uint64_t *hash; /* [n_hash] owned, one per LOAD_BLOCK tokens, equal for equal blocks of prompts; or NULL */
    uint32_t n_hash;
    char *body; /* owned JSON of the prompt or the messages; or NULL */
    bool chat;  /* body is the messages */
};
struct load_items {
    struct load_item *v;
    size_t n, size;
};
void load_items_free(struct load_items *t);
/*
 * Parses a line of a trace and appends its item; empty lines, headers and comments are skipped. zero_s: time of day of
 * the first line of a CSV, < 0 before it. ERR_NO: the line has none of these formats:
 * TIMESTAMP,ContextTokens,GeneratedTokens (Azure), {"timestamp" ms, "input_length", "output_length", "hash_ids"}
 * (Mooncake).
 */
int load_trace_line(struct err *e, struct load_items *t, double *zero_s, const char *line, size_t n);
/* Parses a line of a list of requests and appends its item: {"prompt": text or ids | "messages": […], "output_tokens"
 * or "max_tokens" or "max_completion_tokens": n}. ERR_NO: another format. */
int load_list_line(struct err *e, struct load_items *t, const char *line, size_t n);

#endif
