/* --stats: counts and durations, for one answer with the names of Ollama, for many as sums and quantiles. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/time.h"
#include "base/vec.h"
#include "cmd/stream/stream.h"

struct stats {
    struct reply_times *t;
    size_t n, cap;
};

struct stats *stats_new(void)
{
    return calloc(1, sizeof(struct stats));
}

void stats_free(struct stats *s)
{
    if (s)
        free(s->t);
    free(s);
}

int stats_add(struct err *e, struct stats *s, const struct wire_end *w)
{
    int rc = vec_reserve(e, &s->t, &s->cap, s->n + 1, sizeof *s->t, "statistics");
    if (!rc)
        reply_times(&s->t[s->n++], w);
    return rc;
}

static void duration(const char *name, uint64_t ns)
{
    if (ns >= NS_S)
        fprintf(stderr, "%-22s %.3f s\n", name, (double)ns / 1e9);
    else
        fprintf(stderr, "%-22s %.3f ms\n", name, (double)ns / 1e6);
}

static void rate(const char *name, uint64_t tokens, uint64_t ns)
{
    if (tokens && ns)
        fprintf(stderr, "%-22s %.2f tokens/s\n", name, (double)tokens / ((double)ns / 1e9));
}

/* The first token belongs to prefill, so the time from the first to the last token is that of the others. */
static uint64_t later(uint32_t n_answer)
{
    return n_answer ? n_answer - 1 : 0;
}

static void print_one(const struct reply_times *t)
{
    duration("total duration:", t->total_ns);
    duration("load duration:", t->load_ns);
    fprintf(stderr, "%-22s %" PRIu32 " tokens", "prompt eval count:", t->n_prompt);
    fprintf(stderr, t->n_cached ? " (%" PRIu32 " cached)\n" : "\n", t->n_cached);
    duration("prompt eval duration:", t->prefill_ns);
    rate("prompt eval rate:", t->n_prompt > t->n_cached ? t->n_prompt - t->n_cached : 0, t->prefill_ns);
    fprintf(stderr, "%-22s %" PRIu32 " tokens\n", "eval count:", t->n_answer);
    duration("eval duration:", t->decode_ns);
    rate("eval rate:", later(t->n_answer), t->decode_ns);
    duration("queued:", t->queue_ns);
    duration("transfer:", t->transfer_ns);
    duration("time to first token:", t->ttft_ns);
    if (later(t->n_answer))
        duration("time per token after:", t->decode_ns / later(t->n_answer));
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void quantiles(const char *name, uint64_t *v, size_t n)
{
    double sum = 0;
    if (!n)
        return;
    qsort(v, n, sizeof *v, by_value);
    for (size_t i = 0; i < n; i++)
        sum += (double)v[i];
    fprintf(stderr, "%-22s mean %.3f ms, median %.3f ms, p99 %.3f ms\n", name, sum / (double)n / 1e6,
            (double)v[n / 2] / 1e6, (double)v[(n - 1) * 99 / 100] / 1e6);
}

static void print_many(const struct stats *s, uint64_t *v)
{
    uint64_t prompt = 0, cached = 0, answer = 0, rest = 0, prefill_ns = 0, decode_ns = 0, load_ns = 0, longest = 0;
    size_t n = 0;
    for (size_t i = 0; i < s->n; i++) {
        const struct reply_times *t = &s->t[i];
        prompt += t->n_prompt;
        cached += t->n_cached;
        answer += t->n_answer;
        rest += later(t->n_answer);
        prefill_ns += t->prefill_ns;
        decode_ns += t->decode_ns;
        load_ns = t->load_ns > load_ns ? t->load_ns : load_ns;
        longest = t->total_ns > longest ? t->total_ns : longest;
        v[i] = t->ttft_ns;
    }
    fprintf(stderr, "%-22s %zu\n", "answers:", s->n);
    duration("longest:", longest);
    duration("load duration:", load_ns);
    fprintf(stderr, "%-22s %" PRIu64 " tokens (%" PRIu64 " cached)\n", "prompt eval count:", prompt, cached);
    rate("rate within a prompt:", prompt - cached, prefill_ns);
    fprintf(stderr, "%-22s %" PRIu64 " tokens\n", "eval count:", answer);
    rate("rate within an answer:", rest, decode_ns);
    quantiles("time to first token:", v, s->n);
    for (size_t i = 0; i < s->n; i++)
        if (later(s->t[i].n_answer))
            v[n++] = s->t[i].decode_ns / later(s->t[i].n_answer);
    quantiles("time per token after:", v, n);
}

void stats_print(const struct stats *s)
{
    if (s->n == 1) {
        print_one(&s->t[0]);
    } else if (s->n) {
        uint64_t *v = calloc(s->n, sizeof *v);
        if (v)
            print_many(s, v);
        free(v);
    }
}
