/*
 * What a load generator is made of, without its sockets: numbers drawn from a seed, arrivals, statistics, the events of
 * an SSE stream and what they say, traces. Times are seconds in doubles, stamps are nanoseconds. No function keeps a
 * state of its own; the same seed gives the same numbers on every machine.
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
/* Streams of one seed with different `stream` are independent of each other. */
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
    double ramp_from, ramp_to; /* requests/s, > 0; over the requests, not over time */
    double within_s;           /* > 0: the last comes then; 0: as below */
    uint64_t seed;
};
/* Requests/s that the plan has at request i of n. */
double load_plan_rate(const struct load_plan *p, uint64_t i, uint64_t n);
/* How many requests a plan gets out in so many seconds, on average, at least 1; rate INFINITY is not for it. */
uint64_t load_plan_count(const struct load_plan *p, double seconds);
/*
 * Fills at_s [n], rising, seconds from the start: each is a gap after the one before. A steady plan is stretched so
 * that the last comes at n / rate exactly, as `vllm bench serve` does, so that the seed does not change the rate; one
 * of a time, ramps too, so that the last comes at its end.
 */
void load_plan_arrivals(double *at_s, const struct load_plan *p, uint64_t n);

/* ---- statistics ---- */

struct load_stat {
    double mean, median, std; /* of the whole population; 0 where there is nothing */
};
void load_sort(double *v, size_t n);
struct load_stat load_stat(const double *sorted, size_t n);
/* The point at p percent, 0 to 100, linear between its neighbours; 0 where there is nothing. */
double load_percentile(const double *sorted, size_t n, double p);

/* ---- a stream of server-sent events ---- */

#define LOAD_EVENT_BYTES_MAX (16u << 20)

struct load_sse {
    char *line, *data; /* what is left of the bytes before: a line without its end, an event without its blank line */
    size_t n_line, line_size, n_data, data_size;
    bool has_data, is_error;
};
void load_sse_free(struct load_sse *s); /* and ready for the next stream */
/* Given the data of each event, its lines joined by '\n'; `error`: of a field of that name, as some servers write. It
 * returns false to hear no more of these bytes. */
typedef bool load_sse_take(void *arg, const char *data, size_t n, bool error);
/* Lines end with LF or CR LF. ERR_PROTO: an event that is too long; ERR_SYS: no memory. */
int load_sse_feed(struct err *e, struct load_sse *s, load_sse_take *take, void *arg, const char *bytes, size_t n);

/* What an event of the OpenAI API says. */
struct load_event {
    bool done;    /* "[DONE]" */
    bool choices; /* a list that is not empty: a token or more */
    bool usage;   /* an object with counts */
    bool has_prompt, has_completion;
    uint64_t prompt_tokens, completion_tokens;
    const char *text; /* of the first choice, as JSON wrote it between its quotes; NULL: none */
    size_t n_text;
    const char *error; /* the value of "error", JSON; NULL: none */
    size_t n_error;
};
/* Borrows from data. ERR_PROTO: neither "[DONE]" nor a JSON object; what it passes over is checked only as far as it
 * needs to. */
int load_event_read(struct err *e, struct load_event *out, const char *data, size_t n);

/* ---- traces and lists of requests ---- */

#define LOAD_TOKENS_MAX (1u << 22) /* of a prompt or an answer */
#define LOAD_BLOCK 512             /* tokens that a hash id of Mooncake's traces names */

struct load_item {
    double at_s;              /* 0 in a list of requests */
    uint32_t n_prompt, n_out; /* n_prompt: 0 of a list's texts and messages; n_out: 0 where a list does not say */
    uint64_t *hash;           /* [n_hash] owned, one a block of LOAD_BLOCK tokens, equal where prompts are; or NULL */
    uint32_t n_hash;
    char *body; /* owned, JSON of the prompt or of the messages, or NULL */
    bool chat;  /* it is the messages */
};
struct load_items {
    struct load_item *v;
    size_t n, size;
};
void load_items_free(struct load_items *t);
/*
 * A line of a file, added to the end; lines that hold nothing (blank, a head, a comment) add nothing. zero_s: time of
 * day of the first line of a CSV, < 0 before it. ERR_NO: the line is none of these:
 * TIMESTAMP,ContextTokens,GeneratedTokens (Azure), {"timestamp" ms, "input_length", "output_length", "hash_ids"}
 * (Mooncake).
 */
int load_trace_line(struct err *e, struct load_items *t, double *zero_s, const char *line, size_t n);
/* {"prompt": text or ids | "messages": […], "output_tokens" or "max_tokens" or "max_completion_tokens": n} */
int load_list_line(struct err *e, struct load_items *t, const char *line, size_t n);

#endif
