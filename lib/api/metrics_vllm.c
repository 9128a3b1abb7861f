/* The vllm: families, under vLLM's names. */
#include <stdio.h>

#include "api/metrics_impl.h"
#include "base/kv_block.h"

static void counter(struct page *p, const char *name, const char *help, uint64_t v)
{
    page_family(p, name, "counter", help);
    page_u64(p, NULL, 0, v);
}

static void gauge(struct page *p, const char *name, const char *help, double v)
{
    page_family(p, name, "gauge", help);
    page_number(p, NULL, 0, v);
}

static void histogram(struct page *p, const char *name, const char *help, const struct histogram *h)
{
    page_family(p, name, "histogram", help);
    page_histogram(p, NULL, 0, h);
}

/* ---- gauges ---- */

/* The fullest report of any worker: the workers of a store share its pool. */
static bool usage_of_workers(double *out, const struct stats_poller *w)
{
    size_t n = 0;
    const struct wire_worker *x = poller_workers(w, &n);
    double most = -1;
    for (size_t i = 0; i < n; i++) {
        if (!x[i].blocks_all)
            continue;
        uint64_t left = x[i].blocks < x[i].blocks_all ? x[i].blocks : x[i].blocks_all;
        double used = (double)(x[i].blocks_all - left) / (double)x[i].blocks_all;
        most = used > most ? used : most;
    }
    *out = most;
    return most >= 0;
}

/* Blocks that a new request could not get: leased ones, also those that wait for a transfer, reserved ones, and
 * quarantined ones. Cached blocks count as free, as in vLLM. */
static bool kv_usage(double *out, const struct stats_poller *w)
{
    const struct wire_kv_stat *s = poller_store(w);
    if (!s || !s->total)
        return usage_of_workers(out, w);
    uint64_t left = s->free + s->cached;
    left = left < s->total ? left : s->total;
    *out = (double)(s->total - left) / (double)s->total;
    return true;
}

static void requests(struct page *p, const struct metrics_now *now, const struct stats_poller *w)
{
    const struct wire_stat *s = poller_stat(w);
    uint64_t waiting = s ? s->waiting : now->waiting;
    gauge(p, "vllm:num_requests_running", "Number of requests in model execution batches.",
          (double)(s ? s->running : now->running));
    gauge(p, "vllm:num_requests_waiting", "Number of requests waiting to be processed.", (double)waiting);
    page_family(p, "vllm:num_requests_waiting_by_reason", "gauge",
                "Number of requests waiting, by reason: capacity, or deferred, which none is here.");
    const struct label capacity = label_of("reason", "capacity"), deferred = label_of("reason", "deferred");
    page_u64(p, &capacity, 1, waiting);
    page_u64(p, &deferred, 1, 0);
}

/* The KV type, third part of a worker's description "model …, vocabulary …, KV type, …". */
static struct wire_str kv_type(const struct wire_worker *w, size_t n)
{
    const char *p = n ? w->compat.p : NULL, *end = p ? p + w->compat.n : NULL;
    for (int i = 0; i < 2 && p; i++) {
        p = memchr(p, ',', (size_t)(end - p));
        p = p ? p + 1 : NULL;
    }
    while (p && p < end && *p == ' ')
        p++;
    const char *comma = p ? memchr(p, ',', (size_t)(end - p)) : NULL;
    return comma ? (struct wire_str){p, (size_t)(comma - p)} : wire_str_of("auto");
}

/* Size of the shared pool in blocks, and tokens a block. */
static void cache(struct page *p, const struct stats_poller *w)
{
    const struct wire_kv_stat *s = poller_store(w);
    uint64_t blocks = s ? s->total : 0;
    double used;
    char n[24] = "None", tokens[24];
    size_t n_worker = 0;
    const struct wire_worker *x = poller_workers(w, &n_worker);
    for (size_t i = 0; i < n_worker && !s; i++)
        blocks = x[i].blocks_all > blocks ? x[i].blocks_all : blocks;
    page_family(p, "vllm:kv_cache_usage_perc", "gauge",
                "Share of KV blocks in use, 0 to 1; cached blocks without a lease do not count.");
    if (kv_usage(&used, w))
        page_number(p, NULL, 0, used);
    if (blocks)
        snprintf(n, sizeof n, "%llu", (unsigned long long)blocks);
    snprintf(tokens, sizeof tokens, "%d", KV_BLOCK);
    const struct label l[] = {label_of("block_size", tokens), label_str("cache_dtype", kv_type(x, n_worker)),
                              label_of("enable_prefix_caching", "True"), label_of("num_gpu_blocks", n)};
    page_family(p, "vllm:cache_config_info", "gauge", "The pool of KV blocks; always 1.");
    page_u64(p, l, sizeof l / sizeof *l, 1);
}

/* ---- counters ---- */

static void tokens(struct page *p, const struct metrics *m, const struct stats_poller *w)
{
    counter(p, "vllm:prefix_cache_queries_total", "Prompt tokens that were looked for in the cache.", m->prompt_tokens);
    counter(p, "vllm:prefix_cache_hits_total", "Prompt tokens that were found there.", m->cached_tokens);
    counter(p, "vllm:num_preemptions_total", "Preempted requests.", poller_stat_sum(w)->preempted);
    counter(p, "vllm:prompt_tokens_total", "Prompt tokens of ended requests.", m->prompt_tokens);
    static const char *const sources[] = {"local_compute", "local_cache_hit", "external_kv_transfer"};
    const uint64_t n[] = {m->prompt_tokens - m->cached_tokens, m->cached_tokens, 0};
    page_family(p, "vllm:prompt_tokens_by_source_total", "counter",
                "The same by where their KV came from; external is none here.");
    for (size_t i = 0; i < 3; i++) {
        const struct label l = label_of("source", sources[i]);
        page_u64(p, &l, 1, n[i]);
    }
    counter(p, "vllm:prompt_tokens_cached_total", "Prompt tokens that were not computed again.", m->cached_tokens);
    counter(p, "vllm:generation_tokens_total", "Generated tokens sent.", m->generation_tokens);
}

static void ends(struct page *p, const struct metrics *m)
{
    static const char *const reasons[REASONS] = {"stop", "length", "abort", "error", "repetition"};
    page_family(p, "vllm:request_success_total", "counter", "Answers that ended, by how.");
    for (size_t i = 0; i < REASONS; i++) {
        const struct label l = label_of("finished_reason", reasons[i]);
        page_u64(p, &l, 1, m->ended[i]);
    }
}

void metrics_vllm(struct page *p, const struct metrics *m, const struct metrics_now *now, const struct stats_poller *w)
{
    requests(p, now, w);
    cache(p, w);
    tokens(p, m, w);
    ends(p, m);
    histogram(p, "vllm:time_to_first_token_seconds", "From the request's arrival to its first token.", &m->ttft);
    histogram(p, "vllm:inter_token_latency_seconds", "From a token to the next of the same answer.", &m->gap);
    histogram(p, "vllm:request_time_per_output_token_seconds", "Mean time of a token after the first, by answer.",
              &m->per_token);
    histogram(p, "vllm:e2e_request_latency_seconds", "From the request's arrival to the end of the answer.", &m->e2e);
    histogram(p, "vllm:request_queue_time_seconds", "From arrival at the scheduler to the start on a worker.",
              &m->queue);
    histogram(p, "vllm:request_prefill_time_seconds", "From the start on the worker to the first token.", &m->prefill);
    histogram(p, "vllm:request_decode_time_seconds", "From the first token to the last.", &m->decode);
    histogram(p, "vllm:request_inference_time_seconds", "From the start on the worker to the last token.",
              &m->inference);
    histogram(p, "vllm:request_prompt_tokens", "Tokens of the prompt.", &m->prompt);
    histogram(p, "vllm:request_generation_tokens", "Tokens of the answer.", &m->answer);
    histogram(p, "vllm:request_prefill_kv_computed_tokens", "Tokens of the prompt that were computed.", &m->computed);
    histogram(p, "vllm:request_params_max_tokens", "Tokens that an answer might have at most.", &m->max_tokens);
    histogram(p, "vllm:request_params_n", "Choices requested (n), by request.", &m->choices);
    histogram(p, "vllm:request_max_num_generation_tokens", "Tokens of the longest answer of a request.",
              &m->most_tokens);
    histogram(p, "vllm:iteration_tokens_total", "Tokens of a step, of prompts and answers, all workers.",
              poller_steps(w));
}
