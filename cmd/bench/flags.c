/* The command line: names and defaults are those of `vllm bench serve` if it has them. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/bench/bench.h"

const struct metric_name metric_names[N_METRIC] = {
    {"ttft", "TTFT"},
    {"tpot", "TPOT"},
    {"itl", "ITL"},
    {"e2el", "E2EL"},
    {"client_queue_time", "client queue"},
    {"e2el_including_client_queue", "E2EL + queue"},
};

/* Options that need more than the table of options. */
struct words {
    const char *base_url, *host, *rate, *burstiness, *ramp, *dataset, *range, *kind, *metrics, *percentiles;
    uint64_t port, n, input_len, output_len;
    double temperature;
    struct cli_list goodput;
    bool has_n, has_in, has_out, has_temperature, has_from, has_to;
    bool has_burstiness, has_random_in, has_random_out, has_random_prefix, has_range, has_n_prefixes, has_prefix_len,
        has_suffix_len, has_prefix_out, has_time_scale, has_length_scale, has_model_len, has_kind, has_vocab,
        has_result_dir, has_result_name;
};

static int number_or_inf(struct err *e, const char *what, const char *text, double *out)
{
    if (!strcmp(text, "inf")) {
        *out = INFINITY;
        return 0;
    }
    return cli_f64(e, what, text, out, 1e-6, 1e9);
}

static int base_url(struct err *e, struct opts *o, const struct words *w)
{
    char host[300];
    const char *open = "", *close = "";
    if (!w->base_url && strchr(w->host, ':') && *w->host != '[') {
        open = "[";
        close = "]";
    }
    if (w->base_url && !strncmp(w->base_url, "unix:", 5)) {
        o->unix_path = w->base_url + 5;
        o->base = strdup("http://localhost");
    } else if (w->base_url) {
        size_t n = strlen(w->base_url);
        while (n && w->base_url[n - 1] == '/')
            n--;
        o->base = strndup(w->base_url, n);
    } else {
        snprintf(host, sizeof host, "http://%s%.200s%s:%llu", open, w->host, close, (unsigned long long)w->port);
        o->base = strdup(host);
    }
    if (!o->base)
        return err_nomem(e, "the URL", 300);
    if (strncmp(o->base, "http://", 7) && strncmp(o->base, "https://", 8))
        return err_set(e, ERR_USAGE, "--base-url: '%.200s' must begin with http://, https:// or unix:", o->base);
    if (*o->endpoint != '/')
        return err_set(e, ERR_USAGE, "--endpoint: '%.100s' must begin with /", o->endpoint);
    return 0;
}

static int where(struct err *e, struct opts *o, const struct words *w)
{
    static const char chat[] = "chat/completions";
    bool chat_backend = o->backend && !strcmp(o->backend, "openai-chat");
    if (!o->endpoint)
        o->endpoint = chat_backend ? "/v1/chat/completions" : "/v1/completions";
    size_t n = strlen(o->endpoint);
    o->chat = n >= sizeof chat - 1 && !strcmp(o->endpoint + n - (sizeof chat - 1), chat);
    if (o->backend && chat_backend != o->chat)
        return err_set(e, ERR_USAGE, "--backend %s and --endpoint %.100s are different APIs", o->backend, o->endpoint);
    o->backend = o->backend ? o->backend : o->chat ? "openai-chat" : "openai";
    for (size_t i = 0; i < o->headers.n; i++)
        if (!strchr(o->headers.v[i], '='))
            return err_set(e, ERR_USAGE, "--header: '%.100s' is not NAME=VALUE", o->headers.v[i]);
    for (size_t i = 0; i < o->metadata.n; i++)
        if (!strchr(o->metadata.v[i], '='))
            return err_set(e, ERR_USAGE, "--metadata: '%.100s' is not KEY=VALUE", o->metadata.v[i]);
    return base_url(e, o, w);
}

static int traffic(struct err *e, struct opts *o, const struct words *w)
{
    struct load_plan *p = &o->plan;
    if (number_or_inf(e, "--request-rate", w->rate, &p->rate) ||
        number_or_inf(e, "--burstiness", w->burstiness, &p->burstiness))
        return e->code;
    p->seed = o->seed;
    if (w->ramp) {
        if (!isinf(p->rate))
            return err_set(e, ERR_USAGE, "--ramp-up-strategy and --request-rate exclude each other");
        if (!w->has_from || !w->has_to)
            return err_set(e, ERR_USAGE, "--ramp-up-strategy needs --ramp-up-start-rps and --ramp-up-end-rps");
        if (p->ramp_from > p->ramp_to)
            return err_set(e, ERR_USAGE, "--ramp-up-start-rps is above --ramp-up-end-rps");
        p->ramp = !strcmp(w->ramp, "linear") ? LOAD_LINEAR : LOAD_EXPONENTIAL;
    } else if (w->has_from || w->has_to) {
        return err_set(e, ERR_USAGE, "--ramp-up-start-rps and --ramp-up-end-rps need --ramp-up-strategy");
    }
    bool timed = p->ramp != LOAD_STEADY || !isinf(p->rate);
    if (o->dataset == DATA_TRACE && timed)
        return err_set(
            e, ERR_USAGE,
            "--request-rate and ramps do not apply to a trace, which has its own arrival times: see --time-scale");
    if (w->has_n)
        return 0;
    if (o->dataset == DATA_TRACE || (o->dataset == DATA_LIST && !o->duration_s)) {
        o->n_prompts = UINT64_MAX; /* all requests of the file */
    } else if (o->duration_s > 0) {
        if (!timed && !o->max_concurrency)
            return err_set(e, ERR_USAGE,
                           "--duration requires --request-rate, a ramp, --max-concurrency or --num-prompts");
        o->n_prompts = timed ? load_plan_count(p, o->duration_s) : UINT64_MAX;
        p->within_s = timed ? o->duration_s : 0;
    }
    return 0;
}

static int range(struct err *e, struct opts *o, const char *text)
{
    double *both[2] = {&o->in_range, &o->out_range};
    static const char *const names[2] = {"input", "output"};
    json_t *j = *text == '{' ? json_loads(text, 0, NULL) : NULL;
    int rc = 0;
    const char *key;
    json_t *value;
    if (*text == '{' && !json_is_object(j))
        rc = err_set(e, ERR_USAGE, "--random-range-ratio: '%.100s' is neither a number nor a JSON object", text);
    json_object_foreach(j, key, value)
    {
        if (strcmp(key, names[0]) && strcmp(key, names[1]))
            rc = err_set(e, ERR_USAGE, "--random-range-ratio: '%.100s' is neither input nor output", key);
        else if (!json_is_number(value))
            rc = err_set(e, ERR_USAGE, "--random-range-ratio: %s is not a number", key);
    }
    for (int i = 0; i < 2 && !rc; i++) {
        if (j)
            *both[i] = json_number_value(json_object_get(j, names[i]));
        else
            rc = cli_f64(e, "--random-range-ratio", text, both[i], 0, 0.999999);
        if (!rc && !(*both[i] >= 0 && *both[i] < 1))
            rc = err_set(e, ERR_USAGE, "--random-range-ratio: %g must be at least 0 and less than 1", *both[i]);
    }
    json_decref(j);
    return rc;
}

static int workload(struct err *e, struct opts *o, const struct words *w)
{
    bool file = o->dataset == DATA_LIST || o->dataset == DATA_TRACE;
    if (file && !o->path)
        return err_set(e, ERR_USAGE, "--dataset-name %s requires --dataset-path", w->dataset);
    if (!file && o->path)
        return err_set(e, ERR_USAGE, "--dataset-path applies to --dataset-name jsonl and trace only");
    if (w->has_in)
        o->in_len = w->input_len;
    if (w->has_out)
        o->out_len = o->repeat_out_len = w->output_len;
    bool list = o->dataset == DATA_LIST; /* prompts are generated for its warm-ups only, and any server accepts text */
    o->ids = !strcmp(w->kind, "ids") || (!strcmp(w->kind, "auto") && !o->chat && !list);
    if (o->ids && o->chat)
        return err_set(e, ERR_USAGE, "--prompt-kind ids: the chat API accepts text only");
    o->ignore_eos |= o->dataset != DATA_LIST;
    o->has_temperature = w->has_temperature;
    o->temperature = w->temperature;
    if (o->extra_body) {
        json_t *j = json_loads(o->extra_body, 0, NULL);
        bool good = json_is_object(j), whole = !json_object_get(j, "prompt") && !json_object_get(j, "messages");
        json_decref(j);
        if (!good)
            return err_set(e, ERR_USAGE, "--extra-body: '%.200s' is not a JSON object", o->extra_body);
        if (!whole)
            return err_set(e, ERR_USAGE, "--extra-body: must not have prompt or messages, which the workload sets");
    }
    if (!w->has_n && !o->duration_s && o->dataset == DATA_PREFIX && o->n_prompts < o->n_prefixes)
        o->n_prompts = o->n_prefixes;
    return range(e, o, w->range);
}

/* The next word of a list that is separated by commas or spaces. */
static bool next_word(const char **at, char out[64])
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ", "), fits = n < 63 ? n : 63;
    memcpy(out, *at, fits);
    out[fits] = 0;
    *at += n;
    return n > 0;
}

static int metric_of(const char *name, size_t n)
{
    for (int m = 0; m < N_METRIC; m++)
        if (strlen(metric_names[m].key) == n && !memcmp(metric_names[m].key, name, n))
            return m;
    return -1;
}

static int goodput(struct err *e, struct opts *o, const char *text)
{
    char word[64];
    while (next_word(&text, word)) {
        const char *colon = strchr(word, ':');
        int m = colon ? metric_of(word, (size_t)(colon - word)) : -1;
        if (m != M_TTFT && m != M_TPOT && m != M_E2EL)
            return err_set(e, ERR_USAGE, "--goodput: '%s' is not ttft:MS, tpot:MS or e2el:MS", word);
        if (cli_f64(e, "--goodput", colon + 1, &o->slo_ms[m], 0, 1e12))
            return e->code;
        o->goodput = true;
    }
    return 0;
}

static int figures(struct err *e, struct opts *o, const struct words *w, char **argv, size_t n_arg)
{
    char word[64];
    for (int m = 0; m < N_METRIC; m++)
        o->slo_ms[m] = -1;
    for (size_t i = 0; i < w->goodput.n; i++)
        if (goodput(e, o, w->goodput.v[i]))
            return e->code;
    for (size_t i = 0; i < n_arg; i++) { /* --goodput ttft:500 tpot:30 leaves tpot:30 as an argument */
        if (!o->goodput)
            return err_set(e, ERR_USAGE, "unexpected argument '%.60s'", argv[1 + i]);
        if (goodput(e, o, argv[1 + i]))
            return e->code;
    }
    for (const char *at = w->metrics; next_word(&at, word);) {
        int m = metric_of(word, strlen(word));
        if (m < 0)
            return err_set(e, ERR_USAGE,
                           "--percentile-metrics: '%s' is not one of ttft, tpot, itl, e2el, "
                           "client_queue_time, e2el_including_client_queue",
                           word);
        o->shown[m] = true;
    }
    for (const char *at = w->percentiles; next_word(&at, word);) {
        if (o->n_percentile == PERCENTILES_MAX)
            return err_set(e, ERR_USAGE, "--metric-percentiles: more than %d values", PERCENTILES_MAX);
        if (cli_f64(e, "--metric-percentiles", word, &o->percentile[o->n_percentile++], 0, 100))
            return e->code;
    }
    if (o->fail_above >= 0 && !o->compare)
        return err_set(e, ERR_USAGE, "--fail-above requires --compare");
    return 0;
}

/* Refuses options that have no effect: the user probably expects one. */
static int idle_flags(struct err *e, const struct opts *o, const struct words *w)
{
    bool list = o->dataset == DATA_LIST, trace = o->dataset == DATA_TRACE, random = o->dataset == DATA_RANDOM;
    bool prefix = o->dataset == DATA_PREFIX, timed = o->plan.ramp != LOAD_STEADY || !isinf(o->plan.rate);
    static const char of_random[] = "--dataset-name random", of_prefix[] = "--dataset-name prefix";
    static const char of_trace[] = "--dataset-name trace", of_saved[] = "--save-result";
    const struct {
        bool given, used;
        const char *name, *needs;
    } all[] = {
        {w->has_burstiness, timed, "burstiness", "--request-rate or a ramp"},
        {w->has_in, random, "input-len", of_random},
        {w->has_random_in, random, "random-input-len", of_random},
        {w->has_random_prefix, random, "random-prefix-len", of_random},
        {w->has_range, random, "random-range-ratio", of_random},
        {w->has_random_out, random || list, "random-output-len", "--dataset-name random or jsonl"},
        {w->has_out, !trace, "output-len", "a workload other than a trace"},
        {w->has_n_prefixes, prefix, "prefix-repetition-num-prefixes", of_prefix},
        {w->has_prefix_len, prefix, "prefix-repetition-prefix-len", of_prefix},
        {w->has_suffix_len, prefix, "prefix-repetition-suffix-len", of_prefix},
        {w->has_prefix_out, prefix, "prefix-repetition-output-len", of_prefix},
        {w->has_time_scale, trace, "time-scale", of_trace},
        {w->has_length_scale, trace, "length-scale", of_trace},
        {w->has_model_len, list || trace, "max-model-len", "--dataset-name jsonl or trace"},
        {w->has_kind, !list, "prompt-kind", "generated prompts, not those of jsonl"},
        {w->has_vocab, o->ids && !list, "vocab", "generated prompts of ids"},
        {w->has_result_dir, o->save_result, "result-dir", of_saved},
        {w->has_result_name, o->save_result, "result-filename", of_saved},
        {o->detailed, o->save_result || o->save, "save-detailed", "--save or --save-result"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].given && !all[i].used)
            return err_set(e, ERR_USAGE, "--%s requires %s", all[i].name, all[i].needs);
    return 0;
}

static int check(struct err *e, struct opts *o, const struct words *w, char **argv, size_t n_arg)
{
    static const struct {
        const char *name;
        enum dataset d;
    } sets[] = {{"random", DATA_RANDOM},
                {"prefix", DATA_PREFIX},
                {"prefix_repetition", DATA_PREFIX},
                {"jsonl", DATA_LIST},
                {"trace", DATA_TRACE}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if (!strcmp(w->dataset, sets[i].name))
            o->dataset = sets[i].d;
    int rc = where(e, o, w);
    rc = rc ? rc : traffic(e, o, w);
    rc = rc ? rc : workload(e, o, w);
    rc = rc ? rc : idle_flags(e, o, w);
    return rc ? rc : figures(e, o, w, argv, n_arg);
}

int opts_read(struct err *e, struct opts *o, int argc, char **argv)
{
    struct words w = {.host = "127.0.0.1",
                      .port = 8000,
                      .rate = "inf",
                      .burstiness = "1",
                      .dataset = "random",
                      .range = "0",
                      .kind = "auto",
                      .metrics = "ttft,tpot,itl,e2el",
                      .percentiles = "99"};
    *o = (struct opts){.n_prompts = 1000,
                       .timeout_s = 21600,
                       .in_len = 1024,
                       .out_len = 128,
                       .n_prefixes = 10,
                       .repeat_prefix_len = 256,
                       .repeat_suffix_len = 256,
                       .repeat_out_len = 128,
                       .time_scale = 1,
                       .length_scale = 1,
                       .fail_above = -1};
#define TOKENS .lo = 1, .hi = LOAD_TOKENS_MAX
    const struct cli_opt opts[] = {
        {0, "base-url", CLI_STR, &w.base_url, "URL", "the server, http://, https:// or unix:PATH", .lo = 0},
        {0, "host", CLI_STR, &w.host, "HOST", "if --base-url is not given (127.0.0.1)", .lo = 0},
        {0, "port", CLI_U64, &w.port, "N", "if --base-url is not given (8000)", .lo = 1, .hi = 65535},
        {0, "endpoint", CLI_STR, &o->endpoint, "PATH", "/v1/completions or /v1/chat/completions", .lo = 0},
        {0, "backend", CLI_CHOICE, &o->backend, "NAME", "openai, vllm or openai-chat; follows --endpoint",
         .choices = "openai|vllm|openai-chat"},
        {'m', "model", CLI_STR, &o->model, "NAME", "model in the requests (the server's first)", .lo = 0},
        {0, "header", CLI_LIST, &o->headers, "NAME=VALUE", "header of every request; may be repeated", .lo = 0},
        {0, "insecure", CLI_FLAG, &o->insecure, NULL, "accept any TLS certificate", .lo = 0},
        {0, "ready-check-timeout-sec", CLI_F64, &o->ready_s, "S", "wait this long for the server to be ready (0)",
         .flo = 0, .fhi = 86400},
        {0, "request-timeout-sec", CLI_F64, &o->timeout_s, "S", "fail requests that take longer (21600)", .flo = 0.001,
         .fhi = 1e6},
        {'n', "num-prompts", CLI_U64, &w.n, "N", "requests (1000)", .lo = 1, .hi = 1u << 30, .given = &w.has_n},
        {0, "duration", CLI_F64, &o->duration_s, "S", "stop sending after this time", .flo = 0.001, .fhi = 1e6},
        {0, "request-rate", CLI_STR, &w.rate, "R", "requests/s, or inf: all at once (inf)", .lo = 0},
        {0, "burstiness", CLI_STR, &w.burstiness, "B", "shape of the gaps: 1 Poisson, below in bursts, inf even (1)",
         .lo = 0, .given = &w.has_burstiness},
        {0, "max-concurrency", CLI_U64, &o->max_concurrency, "N", "requests at a time at most", .lo = 1, .hi = 1 << 20},
        {0, "ramp-up-strategy", CLI_CHOICE, &w.ramp, "HOW", "linear or exponential, in place of --request-rate",
         .choices = "linear|exponential"},
        {0, "ramp-up-start-rps", CLI_F64, &o->plan.ramp_from, "R", "requests/s of the first", .flo = 1e-6, .fhi = 1e9,
         .given = &w.has_from},
        {0, "ramp-up-end-rps", CLI_F64, &o->plan.ramp_to, "R", "requests/s of the last", .flo = 1e-6, .fhi = 1e9,
         .given = &w.has_to},
        {0, "num-warmups", CLI_U64, &o->n_warmup, "N", "requests before the run, not counted (0)", .lo = 0,
         .hi = 1 << 20},
        {0, "warmup", CLI_U64, &o->n_warmup, "N", "the same", .lo = 0, .hi = 1 << 20},
        {0, "seed", CLI_U64, &o->seed, "N", "seed of arrivals, lengths and prompts (0)", .lo = 0, .hi = 0},
        {0, "dataset-name", CLI_CHOICE, &w.dataset, "NAME", "random, prefix, jsonl or trace (random)",
         .choices = "random|prefix|prefix_repetition|jsonl|trace"},
        {0, "dataset-path", CLI_STR, &o->path, "FILE", "file of jsonl and trace; -: standard input", .lo = 0},
        {0, "input-len", CLI_U64, &w.input_len, "N", "the same as --random-input-len", TOKENS, .given = &w.has_in},
        {0, "output-len", CLI_U64, &w.output_len, "N", "tokens of an answer, all workloads but traces", TOKENS,
         .given = &w.has_out},
        {0, "random-input-len", CLI_U64, &o->in_len, "N", "tokens of a prompt (1024)", TOKENS,
         .given = &w.has_random_in},
        {0, "random-output-len", CLI_U64, &o->out_len, "N", "tokens of an answer (128)", TOKENS,
         .given = &w.has_random_out},
        {0, "random-range-ratio", CLI_STR, &w.range, "R", "lengths vary by ±R, 0 to below 1 (0)", .lo = 0,
         .given = &w.has_range},
        {0, "random-prefix-len", CLI_U64, &o->prefix_len, "N", "tokens that all prompts begin with (0)", .lo = 0,
         .hi = LOAD_TOKENS_MAX, .given = &w.has_random_prefix},
        {0, "prefix-repetition-num-prefixes", CLI_U64, &o->n_prefixes, "N", "prefixes (10)", .lo = 1, .hi = 1u << 30,
         .given = &w.has_n_prefixes},
        {0, "prefix-repetition-prefix-len", CLI_U64, &o->repeat_prefix_len, "N", "tokens of each (256)", TOKENS,
         .given = &w.has_prefix_len},
        {0, "prefix-repetition-suffix-len", CLI_U64, &o->repeat_suffix_len, "N", "tokens after it (256)", TOKENS,
         .given = &w.has_suffix_len},
        {0, "prefix-repetition-output-len", CLI_U64, &o->repeat_out_len, "N", "tokens of an answer (128)", TOKENS,
         .given = &w.has_prefix_out},
        {0, "time-scale", CLI_F64, &o->time_scale, "X", "times of a trace are multiplied by this (1)", .flo = 0,
         .fhi = 1e6, .given = &w.has_time_scale},
        {0, "length-scale", CLI_F64, &o->length_scale, "X", "lengths of a trace are multiplied by this (1)",
         .flo = 1e-6, .fhi = 1e6, .given = &w.has_length_scale},
        {0, "max-model-len", CLI_U64, &o->model_len, "N", "skip requests of a file with more tokens (the server's)",
         TOKENS, .given = &w.has_model_len},
        {0, "prompt-kind", CLI_CHOICE, &w.kind, "KIND", "ids, text, or auto: ids unless it is a chat (auto)",
         .choices = "auto|ids|text", .given = &w.has_kind},
        {0, "vocab", CLI_U64, &o->vocab, "N", "draw ids of prompts below this (ids of common words)", .lo = 1,
         .hi = 1u << 31, .given = &w.has_vocab},
        {0, "ignore-eos", CLI_FLAG, &o->ignore_eos, NULL, "jsonl: generate to the length of each answer", .lo = 0},
        {0, "temperature", CLI_F64, &w.temperature, "T", "temperature of the requests (the server's)", .flo = 0,
         .fhi = 1e4, .given = &w.has_temperature},
        {0, "extra-body", CLI_STR, &o->extra_body, "JSON", "fields of every request; null removes one", .lo = 0},
        {0, "percentile-metrics", CLI_STR, &w.metrics, "LIST", "metrics to show and save (ttft,tpot,itl,e2el)",
         .lo = 0},
        {0, "metric-percentiles", CLI_STR, &w.percentiles, "LIST", "percentiles of each (99)", .lo = 0},
        {0, "goodput", CLI_LIST, &w.goodput, "METRIC:MS", "limits of goodput: ttft, tpot, e2el; may be repeated",
         .lo = 0},
        {0, "label", CLI_STR, &o->label, "TEXT", "a name for the run in its result", .lo = 0},
        {0, "metadata", CLI_LIST, &o->metadata, "KEY=VALUE", "field of the result; may be repeated", .lo = 0},
        {'o', "save", CLI_STR, &o->save, "FILE", "write the result as JSON; -: instead of the table", .lo = 0},
        {0, "save-result", CLI_FLAG, &o->save_result, NULL, "the same, to a file named by rate, model and time",
         .lo = 0},
        {0, "result-dir", CLI_STR, &o->result_dir, "DIR", "directory of that file (.)", .lo = 0,
         .given = &w.has_result_dir},
        {0, "result-filename", CLI_STR, &o->result_name, "NAME", "name of that file", .lo = 0,
         .given = &w.has_result_name},
        {0, "save-detailed", CLI_FLAG, &o->detailed, NULL, "with times and text of each request", .lo = 0},
        {0, "compare", CLI_STR, &o->compare, "FILE", "show each figure beside that of a saved run", .lo = 0},
        {0, "fail-above", CLI_F64, &o->fail_above, "PERCENT", "exit 1 if a figure is worse by more", .flo = 0,
         .fhi = 1e6},
    };
    const struct cli_prog p = {
        PROG,
        "[--base-url URL] [-n N] [--request-rate R] [--max-concurrency N] [--dataset-name NAME] [options]",
        "loads a server of the OpenAI API, and measures it",
        opts,
        sizeof opts / sizeof *opts,
        8};
    size_t n_arg;
    int rc = cli_parse(e, &p, argc, argv, &n_arg);
    if (!rc && w.has_n)
        o->n_prompts = w.n;
    rc = rc ? rc : check(e, o, &w, argv, n_arg);
    cli_list_free(&w.goodput);
    return rc;
}

void opts_free(struct opts *o)
{
    free(o->base);
    cli_list_free(&o->headers);
    cli_list_free(&o->metadata);
}
