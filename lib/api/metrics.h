/*
 * Prometheus metrics: names, types, labels and buckets of vLLM (docs: "Production metrics" of vLLM), and our own of
 * each phase, phasepipe:*. Counters never fall while the process lives; labels come from closed sets only.
 *
 * The core (api.c) tells what happens; metrics_text puts it together with what the watch of the scheduler and of the
 * stores last heard. One thread.
 */
#ifndef API_METRICS_H
#define API_METRICS_H

#include "api/api.h"

struct api_watch;

int metrics_new(struct err *e, struct metrics **out, const char *model_name, uint64_t context);
void metrics_free(struct metrics *m);

/* A choice has its first token: of its call's arrival. n: tokens of the piece. */
void metrics_first(struct metrics *m, double ttft_s, uint32_t n);
/* A later piece of n tokens, so long after the one before. */
void metrics_tokens(struct metrics *m, double gap_s, uint32_t n);
/* A choice has ended (or failed: w NULL, reason WIRE_ERROR). */
struct metrics_end {
    enum wire_reason reason;
    uint32_t max_tokens;         /* that the request asked for; 0: not said */
    double e2e_s, ttft_s;        /* from arrival; ttft_s < 0: no token */
    double last_s;               /* first token to last */
    const struct wire_end *w;    /* counts and spans; may be NULL */
    uint32_t n_prompt, n_cached; /* tokens of the prompt, and those not computed, where w is NULL; 0: not known */
    /* With the last choice of a request alone: how many it had, and the tokens of the longest. 0: not the last. */
    uint32_t n_choice, most_tokens;
};
void metrics_end(struct metrics *m, const struct metrics_end *x);
/* Of any HTTP answer: surface API_OPENAI or API_OLLAMA, route as in its table ("other" for unknown paths; borrowed, as
 * long as m is there), status (0: its client had gone). */
void metrics_http(struct metrics *m, int surface, const char *route, int status, double took_s);
void metrics_client_gone(struct metrics *m);

/* What is so now, from the core. */
struct metrics_now {
    uint64_t running, waiting; /* answers of this gateway with and without a first token */
    uint32_t connections;
};
/* The exposition, text format 0.0.4. *out: malloc'd. */
int metrics_text(struct err *e, char **out, size_t *n, const struct metrics *m, const struct metrics_now *now,
                 const struct api_watch *w);

#endif
