/*
 * /metrics, read by the strict parser of exposition.h. Names, types, labels and buckets are those of vLLM 0.32's
 * vllm/v1/metrics/{loggers,buckets}.py and its Grafana board (tests/golden/vllm-board.txt); queue, prefill and decode
 * times are defined by its vllm/v1/metrics/stats.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "api/metrics.h"
#include "api/stats_poller.h"
#include "base/time.h"
#include "exposition.h"
#include "unit/asserts.h"

#define MS NS_MS

static struct err e;
static struct expo page;

struct bench {
    struct metrics *m;
    struct stats_poller *w; /* of an unreachable scheduler */
    struct metrics_now now;
};

static void bench_new(struct bench *b, const char *model, uint64_t context)
{
    char url[64];
    *b = (struct bench){.m = NULL};
    snprintf(url, sizeof url, "ipc:///tmp/metrics-%d-nobody", (int)getpid());
    OK(metrics_new(&e, &b->m, model, context));
    OK(poller_open(&e, &b->w, url, NULL, NULL, &(struct session_security){0}, POLLER_PERIOD_MS));
}

static void bench_free(struct bench *b)
{
    metrics_free(b->m);
    poller_close(b->w);
    expo_free(&page);
}

static void look(struct bench *b)
{
    char *text;
    size_t n;
    expo_free(&page);
    OK(metrics_text(&e, &text, &n, b->m, &b->now, b->w));
    expo_read(&page, text, n);
    free(text);
}

static double value(const char *name)
{
    return expo_value(&page, name, "");
}

static void near(const char *name, double want)
{
    double got = value(name);
    if (!(fabs(got - want) < 1e-9))
        fail_msg("%s is %.9g, not %.9g", name, got, want);
}

/* ---- names, types, labels, buckets ---- */

#define TTFT                                                                                                           \
    "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 160.0 640.0 2560.0 "   \
    "+Inf"
#define GAP "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1.0 2.5 5.0 7.5 10.0 20.0 40.0 80.0 +Inf"
#define LATENCY                                                                                                        \
    "0.3 0.5 0.8 1.0 1.5 2.0 2.5 5.0 10.0 15.0 20.0 30.0 40.0 50.0 60.0 120.0 240.0 480.0 960.0 1920.0 7680.0 +Inf"
#define STEP "1.0 8.0 16.0 32.0 64.0 128.0 256.0 512.0 1024.0 2048.0 4096.0 8192.0 16384.0 +Inf"
#define TOKENS "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 +Inf" /* of 8,192 at most */

static const struct {
    const char *name, *type, *label, *values; /* label: beside model_name and engine, with the values it has */
} families[] = {
    {"vllm:num_requests_running", "gauge", NULL, NULL},
    {"vllm:num_requests_waiting", "gauge", NULL, NULL},
    {"vllm:num_requests_waiting_by_reason", "gauge", "reason", "capacity deferred"},
    {"vllm:cache_config_info", "gauge", NULL, NULL},
    {"vllm:prefix_cache_queries_total", "counter", NULL, NULL},
    {"vllm:prefix_cache_hits_total", "counter", NULL, NULL},
    {"vllm:num_preemptions_total", "counter", NULL, NULL},
    {"vllm:prompt_tokens_total", "counter", NULL, NULL},
    {"vllm:prompt_tokens_by_source_total", "counter", "source", "local_compute local_cache_hit external_kv_transfer"},
    {"vllm:prompt_tokens_cached_total", "counter", NULL, NULL},
    {"vllm:generation_tokens_total", "counter", NULL, NULL},
    {"vllm:request_success_total", "counter", "finished_reason", "stop length abort error repetition"},
    {"vllm:time_to_first_token_seconds", "histogram", "le", TTFT},
    {"vllm:inter_token_latency_seconds", "histogram", "le", GAP},
    {"vllm:request_time_per_output_token_seconds", "histogram", "le", GAP},
    {"vllm:e2e_request_latency_seconds", "histogram", "le", LATENCY},
    {"vllm:request_queue_time_seconds", "histogram", "le", LATENCY},
    {"vllm:request_prefill_time_seconds", "histogram", "le", LATENCY},
    {"vllm:request_decode_time_seconds", "histogram", "le", LATENCY},
    {"vllm:request_inference_time_seconds", "histogram", "le", LATENCY},
    {"vllm:iteration_tokens_total", "histogram", "le", STEP},
    {"vllm:request_prompt_tokens", "histogram", "le", TOKENS},
    {"vllm:request_generation_tokens", "histogram", "le", TOKENS},
    {"vllm:request_prefill_kv_computed_tokens", "histogram", "le", TOKENS},
    {"vllm:request_params_max_tokens", "histogram", "le", TOKENS},
    {"vllm:request_max_num_generation_tokens", "histogram", "le", TOKENS},
    {"vllm:request_params_n", "histogram", "le", "1.0 2.0 5.0 10.0 20.0 +Inf"},
    {"process_cpu_seconds_total", "counter", NULL, NULL},
    {"process_resident_memory_bytes", "gauge", NULL, NULL},
    {"process_open_fds", "gauge", NULL, NULL},
    {"process_start_time_seconds", "gauge", NULL, NULL},
};

/* The values of a label in the order of the page. */
static void values_of(char *out, size_t cap, const char *name, const char *label)
{
    size_t n = 0;
    *out = 0;
    for (size_t i = 0; i < page.n_sample; i++)
        if (!strcmp(page.s[i].name, name))
            n += (size_t)snprintf(out + n, cap - n, "%s%s", n ? " " : "", expo_label_of(&page.s[i], label));
}

static void all_vllm_families_exist(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, "m", 8192);
    look(&b);
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        char name[128], got[600];
        const struct expo_family *f = page.f;
        while (f < page.f + page.n_family && strcmp(f->name, families[i].name))
            f++;
        if (f == page.f + page.n_family)
            fail_msg("%s is missing", families[i].name);
        assert_string_equal(f->type, families[i].type);
        bool buckets = !strcmp(f->type, "histogram");
        snprintf(name, sizeof name, "%.100s%s", f->name, buckets ? "_bucket" : "");
        const struct expo_sample *s = expo_find(&page, name, "");
        assert_non_null(s);
        if (!strncmp(name, "vllm:", 5)) {
            assert_string_equal(expo_label_of(s, "model_name"), "m");
            assert_string_equal(expo_label_of(s, "engine"), "0");
        }
        if (families[i].label) {
            values_of(got, sizeof got, name, families[i].label);
            assert_string_equal(got, families[i].values);
        }
    }
    assert_non_null(expo_find(&page, "vllm:cache_config_info", "block_size=32,num_gpu_blocks=None"));
    bench_free(&b);
}

/* Buckets of token counts end at the context length. Python's client spells 1e+06 so. */
static void token_buckets_end_at_the_context_length(void **state)
{
    (void)state;
    char got[600];
    struct bench b;
    bench_new(&b, "m", 2000000);
    look(&b);
    values_of(got, sizeof got, "vllm:request_prompt_tokens_bucket", "le");
    assert_string_equal(got, "1.0 2.0 5.0 10.0 20.0 50.0 100.0 200.0 500.0 1000.0 2000.0 5000.0 10000.0 20000.0 "
                             "50000.0 100000.0 200000.0 500000.0 1e+06 2e+06 +Inf");
    bench_free(&b);
}

static void the_vllm_board_finds_its_series(void **state)
{
    (void)state;
    char line[256];
    size_t n = 0;
    struct bench b;
    bench_new(&b, "m", 8192);
    look(&b);
    FILE *f = fopen("tests/golden/vllm-board.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        char *save, *name = strtok_r(line, " \n", &save), *label;
        if (!name || *name == '#' || !strcmp(name, "vllm:kv_cache_usage_perc")) /* with a store: metrics_poller_test */
            continue;
        const struct expo_sample *s = expo_find(&page, name, "model_name=m");
        if (!s)
            fail_msg("%s is missing", name);
        while ((label = strtok_r(NULL, " \n", &save)))
            if (!expo_label_of(s, label))
                fail_msg("%s has no %s", name, label);
        n++;
    }
    fclose(f);
    assert_int_equal(n, 20);
    bench_free(&b);
}

/* ---- labels ---- */

static void label_values_are_escaped(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, "a\"} 1\nb\\c\xe9\xc3\xa9\x01", 100);
    look(&b);
    assert_non_null(expo_find(&page, "vllm:prompt_tokens_total", "model_name=a\"} 1\nb\\c?\xc3\xa9?"));
    bench_free(&b);
    char longest[2001];
    memset(longest, 'x', 2000);
    memcpy(longest + 255, "\xc3\xa9", 2); /* across the limit */
    longest[2000] = 0;
    bench_new(&b, longest, 100);
    look(&b);
    const struct expo_sample *s = expo_find(&page, "vllm:prompt_tokens_total", "");
    assert_int_equal(strlen(expo_label_of(s, "model_name")), 255);
    bench_free(&b);
}

/* ---- times ---- */

static struct wire_span span(const char *stage, uint32_t pid, uint64_t queued, uint64_t start, uint64_t end)
{
    return (struct wire_span){.stage = wire_str_of(stage),
                              .host = wire_str_of("here"),
                              .pid = pid,
                              .queued_ns = queued * MS,
                              .start_ns = start * MS,
                              .end_ns = end * MS};
}

/* Submitted at 100 ms, known to the prefill worker at 130, begun at 150, prompt done at 400, first token at 410,
 * transferred at 450, last token at 1410; 11 tokens. */
static void intervals_of_a_transferred_request(void **state)
{
    (void)state;
    struct bench b;
    const struct wire_span s[] = {span("tokenize", 1, 90, 95, 100), span("prefill", 2, 130, 150, 400),
                                  span("hand-over", 3, 400, 400, 450), span("decode", 3, 420, 450, 1411),
                                  span("sched", 4, 100, 130, 130)};
    const struct wire_end w = {.reason = WIRE_LENGTH,
                               .prompt_tokens = 64,
                               .completion_tokens = 11,
                               .cached_tokens = 32,
                               .first_ns = 410 * MS,
                               .last_ns = 1410 * MS,
                               .span = s,
                               .n_span = 5};
    bench_new(&b, "m", 8192);
    metrics_first(b.m, 0.42, 1);
    for (int i = 0; i < 10; i++)
        metrics_tokens(b.m, 0.1, 1);
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_LENGTH,
                                           .max_tokens = 11,
                                           .e2e_s = 1.42,
                                           .ttft_s = 0.42,
                                           .last_s = 1,
                                           .w = &w,
                                           .n_choice = 1,
                                           .most_tokens = 11});
    look(&b);
    near("vllm:request_queue_time_seconds_sum", 0.05);
    near("vllm:request_prefill_time_seconds_sum", 0.26);
    near("vllm:request_decode_time_seconds_sum", 1);
    near("vllm:request_inference_time_seconds_sum", 1.26);
    near("vllm:request_time_per_output_token_seconds_sum", 0.1);
    near("vllm:time_to_first_token_seconds_sum", 0.42);
    near("vllm:inter_token_latency_seconds_sum", 1);
    near("vllm:inter_token_latency_seconds_count", 10);
    near("vllm:e2e_request_latency_seconds_sum", 1.42);
    near("vllm:prompt_tokens_total", 64);
    near("vllm:prefix_cache_queries_total", 64);
    near("vllm:prefix_cache_hits_total", 32);
    near("vllm:prompt_tokens_cached_total", 32);
    near("vllm:generation_tokens_total", 11);
    near("vllm:request_prefill_kv_computed_tokens_sum", 32);
    near("vllm:request_params_max_tokens_sum", 11);
    near("vllm:request_params_n_sum", 1);
    near("vllm:request_max_num_generation_tokens_sum", 11);
    near("phasepipe:tokenize_seconds_sum", 0.005);
    near("phasepipe:prefill_seconds_sum", 0.25);
    near("phasepipe:transfer_seconds_sum", 0.01);
    near("phasepipe:handover_seconds_sum", 0.05);
    near("phasepipe:decode_seconds_sum", 1);
    assert_int_equal(expo_value(&page, "vllm:prompt_tokens_by_source_total", "source=local_compute"), 32);
    assert_int_equal(expo_value(&page, "vllm:prompt_tokens_by_source_total", "source=local_cache_hit"), 32);
    assert_int_equal(expo_value(&page, "vllm:request_success_total", "finished_reason=length"), 1);
    assert_int_equal(expo_value(&page, "vllm:request_inference_time_seconds_bucket", "le=1.0"), 0);
    assert_int_equal(expo_value(&page, "vllm:request_inference_time_seconds_bucket", "le=1.5"), 1);
    bench_free(&b);
}

/* One worker did both, so there is no transfer and no transfer time. A value equal to a bound is in its bucket. */
static void without_a_transfer_there_are_no_transfer_times(void **state)
{
    (void)state;
    struct bench b;
    const struct wire_span s[] = {span("prefill", 2, 100, 100, 600), span("decode", 2, 100, 600, 600)};
    const struct wire_end w = {.reason = WIRE_STOP,
                               .prompt_tokens = 10,
                               .completion_tokens = 1,
                               .first_ns = 600 * MS,
                               .last_ns = 600 * MS,
                               .span = s,
                               .n_span = 2};
    bench_new(&b, "m", 8192);
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_STOP, .e2e_s = .5, .ttft_s = .5, .w = &w});
    look(&b);
    near("vllm:request_prefill_time_seconds_sum", 0.5);
    near("vllm:request_time_per_output_token_seconds_sum", 0);
    near("vllm:request_time_per_output_token_seconds_count", 1);
    near("phasepipe:transfer_seconds_count", 0);
    near("phasepipe:handover_seconds_count", 0);
    near("vllm:request_params_max_tokens_count", 0);
    assert_int_equal(expo_value(&page, "vllm:request_prefill_time_seconds_bucket", "le=0.3"), 0);
    assert_int_equal(expo_value(&page, "vllm:request_prefill_time_seconds_bucket", "le=0.5"), 1);
    assert_int_equal(expo_value(&page, "vllm:request_prompt_tokens_bucket", "le=10.0"), 1);
    bench_free(&b);
}

/* Inconsistent frames: no spans, clocks that run backwards, more cached tokens than there are. No counter falls. */
static void inconsistent_frames_never_decrease_a_counter(void **state)
{
    (void)state;
    struct bench b;
    const struct wire_span s[] = {span("decode", 2, 900, 100, 50), span("sched", 2, 500, 1, 1)};
    struct wire_end w = {.reason = WIRE_STOP, .prompt_tokens = 3, .cached_tokens = 9, .first_ns = 9, .last_ns = 1};
    bench_new(&b, "m", 8192);
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_STOP, .e2e_s = -1, .last_s = -1, .w = &w});
    w.span = s;
    w.n_span = 2;
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_STOP, .e2e_s = NAN, .last_s = NAN, .w = &w});
    metrics_first(b.m, -5, 1);
    metrics_tokens(b.m, NAN, 1);
    look(&b);
    near("vllm:e2e_request_latency_seconds_sum", 0);
    near("vllm:e2e_request_latency_seconds_count", 2);
    near("vllm:request_decode_time_seconds_sum", 0);
    near("vllm:prompt_tokens_cached_total", 6);
    near("vllm:request_prefill_kv_computed_tokens_sum", 0);
    assert_int_equal(expo_value(&page, "vllm:prompt_tokens_by_source_total", "source=local_compute"), 0);
    bench_free(&b);
}

/* An answer continued by another worker took longer than that worker knows. */
static void a_retried_request_counts_its_whole_duration(void **state)
{
    (void)state;
    struct bench b;
    const struct wire_span s[] = {span("decode", 2, 5000, 5000, 6000)};
    const struct wire_end w = {.reason = WIRE_STOP,
                               .prompt_tokens = 3,
                               .completion_tokens = 101,
                               .first_ns = 5500 * MS,
                               .last_ns = 6000 * MS,
                               .span = s,
                               .n_span = 1};
    bench_new(&b, "m", 8192);
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_STOP, .e2e_s = 6, .ttft_s = 1, .last_s = 5, .w = &w});
    look(&b);
    near("vllm:request_decode_time_seconds_sum", 5);
    near("vllm:request_time_per_output_token_seconds_sum", 0.05);
    bench_free(&b);
}

static void ends_are_counted_by_reason(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, "m", 8192);
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_CANCELLED, .ttft_s = 1, .n_prompt = 7, .n_cached = 4});
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_CANCELLED, .ttft_s = -1, .n_prompt = 7});
    metrics_end(b.m, &(struct metrics_end){.reason = WIRE_ERROR, .ttft_s = -1, .n_choice = 3, .most_tokens = 0});
    metrics_client_disconnected(b.m);
    look(&b);
    assert_int_equal(expo_value(&page, "vllm:request_success_total", "finished_reason=abort"), 2);
    assert_int_equal(expo_value(&page, "vllm:request_success_total", "finished_reason=error"), 1);
    assert_int_equal(expo_value(&page, "vllm:request_success_total", "finished_reason=stop"), 0);
    near("vllm:e2e_request_latency_seconds_count", 0);
    near("vllm:prompt_tokens_total", 7); /* of the request whose prompt was computed */
    near("vllm:prefix_cache_hits_total", 4);
    near("vllm:request_params_n_sum", 3);
    near("phasepipe:client_gone_total", 1);
    bench_free(&b);
}

static void the_page_is_complete_without_services(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, "m", 8192);
    b.now = (struct metrics_now){.running = 3,
                                 .waiting = 2,
                                 .http = {9, 4, 1000, 2000, 5, 6, 7},
                                 .held_bytes = 3000,
                                 .prompt_bytes = 4000,
                                 .body_limit_bytes = 5000,
                                 .output_limit_bytes = 6000,
                                 .prompt_limit_bytes = 7000};
    look(&b);
    near("vllm:num_requests_running", 3);
    near("vllm:num_requests_waiting", 2);
    assert_int_equal(expo_value(&page, "vllm:num_requests_waiting_by_reason", "reason=capacity"), 2);
    near("phasepipe:answers_running", 3);
    near("phasepipe:answers_waiting", 2);
    near("phasepipe:http_connections", 9);
    near("phasepipe:http_idle_connections", 4);
    near("phasepipe:http_body_bytes", 1000);
    near("phasepipe:http_queued_bytes", 2000);
    near("phasepipe:response_bytes", 3000);
    near("phasepipe:prompt_bytes", 4000);
    near("phasepipe:http_body_limit_bytes", 5000);
    near("phasepipe:http_queued_limit_bytes", 6000);
    near("phasepipe:prompt_limit_bytes", 7000);
    near("phasepipe:http_replaced_connections_total", 5);
    near("phasepipe:http_refused_connections_total", 6);
    near("phasepipe:http_timeouts_total", 7);
    near("phasepipe:sched_up", 0);
    assert_null(expo_find(&page, "vllm:kv_cache_usage_perc", "")); /* not known */
    assert_null(expo_find(&page, "phasepipe:sched_running", ""));
    assert_null(expo_find(&page, "phasepipe:store_up", "")); /* no store is polled */
    bench_free(&b);
}

/* ---- HTTP ---- */

static void http_responses_are_counted_by_route_and_status(void **state)
{
    (void)state;
    struct bench b;
    static char route[5000][16];
    bench_new(&b, "m", 8192);
    look(&b);
    size_t before = page.n_line;
    for (int i = 0; i < 5000; i++) {
        metrics_http(b.m, API_OPENAI, "other", 404, .001);
        metrics_http(b.m, API_OPENAI, "/v1/completions", 404, .001);
        metrics_http(b.m, API_OLLAMA, "other", 404, .001);
    }
    look(&b);
    assert_int_equal(page.n_line, before);
    const char *labels = "surface=openai,route=other,code=404";
    assert_int_equal(expo_value(&page, "phasepipe:http_requests_total", labels), 5000);
    assert_int_equal(expo_value(&page, "phasepipe:http_request_seconds_count", "surface=openai"), 10000);
    metrics_http(b.m, API_OPENAI, "/v1/models", 200, .001);
    metrics_http(b.m, API_OPENAI, "/v1/models", 777, .001);
    metrics_http(b.m, API_OPENAI, "/v1/models", 1, .001);
    metrics_http(b.m, API_OPENAI, "/v1/models", 0, .001);
    look(&b);
    assert_int_equal(page.n_line, before + 3);
    labels = "surface=openai,route=/v1/models,code=other";
    assert_int_equal(expo_value(&page, "phasepipe:http_requests_total", labels), 2);
    labels = "surface=openai,route=/v1/models,code=gone";
    assert_int_equal(expo_value(&page, "phasepipe:http_requests_total", labels), 1);
    for (int i = 0; i < 5000; i++) { /* arbitrary routes and statuses need bounded memory */
        snprintf(route[i], sizeof route[i], "/x%d", i);
        metrics_http(b.m, 77, route[i], i, .001);
    }
    look(&b);
    assert_true(page.n_line < before + 100 + 24);
    bench_free(&b);
}

/* ---- the process ---- */

static void process_metrics_match_the_process(void **state)
{
    (void)state;
    struct bench b;
    bench_new(&b, "m", 8192);
    look(&b);
    double fds = value("process_open_fds"), start = value("process_start_time_seconds");
    double cpu = value("process_cpu_seconds_total");
    int fd[100];
    for (int i = 0; i < 100; i++)
        fd[i] = dup(0);
    look(&b);
    assert_true(fabs(value("process_open_fds") - fds - 100) < 10); /* the stats poller has some temporarily */
    for (int i = 0; i < 100; i++)
        close(fd[i]);
    assert_true(value("process_cpu_seconds_total") >= cpu);
    assert_true(value("process_resident_memory_bytes") > 100000 && value("process_resident_memory_bytes") < 1e10);
    assert_true(start == value("process_start_time_seconds"));
    assert_true(fabs(start - (double)time(NULL)) < 60);
    bench_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_vllm_families_exist),
        cmocka_unit_test(token_buckets_end_at_the_context_length),
        cmocka_unit_test(the_vllm_board_finds_its_series),
        cmocka_unit_test(label_values_are_escaped),
        cmocka_unit_test(intervals_of_a_transferred_request),
        cmocka_unit_test(without_a_transfer_there_are_no_transfer_times),
        cmocka_unit_test(inconsistent_frames_never_decrease_a_counter),
        cmocka_unit_test(a_retried_request_counts_its_whole_duration),
        cmocka_unit_test(ends_are_counted_by_reason),
        cmocka_unit_test(the_page_is_complete_without_services),
        cmocka_unit_test(http_responses_are_counted_by_route_and_status),
        cmocka_unit_test(process_metrics_match_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
