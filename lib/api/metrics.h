/*
 * Prometheus metrics: the families of vLLM, with its names, types, labels and buckets (vLLM docs, "Production
 * metrics"), and our own for each stage, phasepipe:*. Counters never fall while the process lives; label values come
 * from closed sets.
 *
 * The core (api.c) reports events; metrics_text combines their counts with the last statistics of the stats poller.
 * Single-threaded.
 */
#ifndef API_METRICS_H
#define API_METRICS_H

#include "api/api.h"

struct stats_poller;
struct keys;

int metrics_new(struct err *e, struct metrics **out, const char *model_name, uint64_t context);
void metrics_free(struct metrics *m);

/* The first token of a choice arrived, ttft_s seconds after its request. n: tokens that arrived together. */
void metrics_first(struct metrics *m, double ttft_s, uint32_t n);
/* n later tokens arrived together, gap_s seconds after those before. */
void metrics_tokens(struct metrics *m, double gap_s, uint32_t n);
/* A choice has ended (or failed: w NULL, reason WIRE_ERROR). */
struct metrics_end {
    enum wire_reason reason;
    uint32_t max_tokens;      /* of the request; 0: not given */
    double e2e_s, ttft_s;     /* seconds from arrival; ttft_s < 0: no token */
    double last_s;            /* seconds from first to last token */
    const struct wire_end *w; /* counts and spans; NULL: failed or cancelled */
    uint32_t n_prompt,
        n_cached; /* tokens of the prompt, and those of them from the cache, if w is NULL; 0: not known */
    /* Set with the last choice of a request only: its number of choices, and the tokens of the longest. 0: not the
     * last. */
    uint32_t n_choice, most_tokens;
};
void metrics_end(struct metrics *m, const struct metrics_end *x);
/* Counts an HTTP response. dialect: API_OPENAI or API_OLLAMA; route: as in its table, "other" for unknown paths
 * (borrowed for the lifetime of m); status 0: the client disconnected. */
void metrics_http(struct metrics *m, int dialect, const char *route, int status, double took_s);
void metrics_client_disconnected(struct metrics *m);

/* Gauges, from the core. */
struct metrics_now {
    uint64_t running, waiting; /* choices of this gateway with and without a first token */
    struct http_stats http;
    uint64_t held_bytes;     /* of responses that are being built */
    const struct keys *keys; /* whose numbers are written; NULL: none */
    uint64_t prompt_bytes;   /* gateway_bytes */
    uint64_t body_limit_bytes, output_limit_bytes, prompt_limit_bytes;
};
/* Writes the exposition, text format 0.0.4. *out: malloc'd, *n bytes. */
int metrics_text(struct err *e, char **out, size_t *n, const struct metrics *m, const struct metrics_now *now,
                 const struct stats_poller *w);

#endif
