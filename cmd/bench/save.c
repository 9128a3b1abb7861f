/* The result as JSON, with the keys of `vllm bench serve`; figures without a key there are under "client". */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/bench/bench.h"

static json_t *number(double v)
{
    return isinf(v) ? json_string("inf") : json_real(v);
}

static json_t *text_or_null(const char *s)
{
    return s ? json_string(s) : json_null();
}

static json_t *ramp_events(const struct result *r)
{
    const struct load_plan *p = &r->opts->plan;
    json_t *list = json_array();
    int64_t last = (int64_t)p->ramp_from - 1;
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    double began = (double)wall.tv_sec + (double)wall.tv_nsec / 1e9 - r->duration_s;
    uint64_t n = r->run->n_plan;
    for (uint64_t i = 0; i < r->run->n; i++) {
        int64_t now = (int64_t)load_plan_rate(p, i, n);
        for (; last < now; last++) {
            double at = began + (double)(r->run->v[i]->arrive_ns - r->run->begin_ns) / 1e9;
            time_t s = (time_t)at;
            struct tm tm;
            char text[64], micro[16];
            strftime(text, sizeof text - sizeof micro, "%Y-%m-%dT%H:%M:%S", localtime_r(&s, &tm));
            snprintf(micro, sizeof micro, ".%06d", (int)((at - (double)s) * 1e6));
            memcpy(text + strlen(text), micro, strlen(micro) + 1);
            json_array_append_new(list, json_pack("{s:I, s:s}", "rps", (json_int_t)(last + 1), "timestamp", text));
        }
    }
    return list;
}

static void traffic(json_t *j, const struct result *r)
{
    const struct opts *o = r->opts;
    const struct run *run = r->run;
    bool cut = run->interrupted && run->n_plan != UINT64_MAX;
    json_object_set_new(j, "date", json_string(r->date));
    json_object_set_new(j, "endpoint_type", json_string(o->backend));
    json_object_set_new(j, "backend", json_string(o->backend));
    json_object_set_new(j, "label", text_or_null(o->label));
    json_object_set_new(j, "model_id", json_string(r->server->model));
    json_object_set_new(j, "tokenizer_id", json_null());
    json_object_set_new(j, "num_prompts", json_integer((json_int_t)(cut ? run->n_plan : run->n)));
    for (size_t i = 0; i < o->metadata.n; i++) {
        const char *eq = strchr(o->metadata.v[i], '=');
        char *key = strndup(o->metadata.v[i], (size_t)(eq - o->metadata.v[i]));
        if (key)
            json_object_set_new(j, key, json_string(eq + 1));
        free(key);
    }
    json_object_set_new(j, "request_rate", number(o->plan.rate));
    json_object_set_new(j, "burstiness", number(o->plan.burstiness));
    json_object_set_new(j, "max_concurrency",
                        o->max_concurrency ? json_integer((json_int_t)o->max_concurrency) : json_null());
    if (o->plan.ramp == LOAD_STEADY)
        return;
    json_object_set_new(j, "ramp_up_strategy", json_string(o->plan.ramp == LOAD_LINEAR ? "linear" : "exponential"));
    json_object_set_new(j, "ramp_up_start_rps", json_real(o->plan.ramp_from));
    json_object_set_new(j, "ramp_up_end_rps", json_real(o->plan.ramp_to));
    json_object_set_new(j, "rps_change_events", ramp_events(r));
}

static void totals(json_t *j, const struct result *r)
{
    json_object_set_new(j, "duration", json_real(r->duration_s));
    json_object_set_new(j, "completed", json_integer((json_int_t)r->completed));
    json_object_set_new(j, "failed", json_integer((json_int_t)r->failed));
    json_object_set_new(j, "total_input_tokens", json_integer((json_int_t)r->total_in));
    json_object_set_new(j, "total_output_tokens", json_integer((json_int_t)r->total_out));
    json_object_set_new(j, "request_throughput", json_real(r->request_rate));
    json_object_set_new(j, "request_goodput", r->opts->goodput ? json_real(r->goodput) : json_null());
    json_object_set_new(j, "output_throughput", json_real(r->out_rate));
    json_object_set_new(j, "total_token_throughput", json_real(r->total_rate));
    json_object_set_new(j, "max_output_tokens_per_s", json_real(r->peak_out_rate));
    json_object_set_new(j, "max_concurrent_requests", json_integer((json_int_t)r->peak_concurrent));
    json_object_set_new(j, "rtfx", json_real(0));
}

static void metrics(json_t *j, const struct result *r)
{
    char key[100], word[32];
    for (int m = 0; m < N_METRIC; m++) {
        const char *name = metric_names[m].key;
        if (!metric_made(r->opts, m))
            continue;
        snprintf(key, sizeof key, "mean_%s_ms", name);
        json_object_set_new(j, key, json_real(r->stat[m].mean * 1e3));
        snprintf(key, sizeof key, "median_%s_ms", name);
        json_object_set_new(j, key, json_real(r->stat[m].median * 1e3));
        snprintf(key, sizeof key, "std_%s_ms", name);
        json_object_set_new(j, key, json_real(r->stat[m].std * 1e3));
        for (size_t i = 0; i < r->opts->n_percentile; i++) {
            percentile_word(word, r->opts->percentile[i]);
            snprintf(key, sizeof key, "%s_%s_ms", word, name);
            json_object_set_new(j, key, json_real(load_percentile(r->v[m], r->n_v[m], r->opts->percentile[i]) * 1e3));
        }
    }
}

static void client(json_t *j, const struct result *r)
{
    const struct run *run = r->run;
    json_t *errors = json_object();
    for (int f = 1; f < N_FAIL; f++)
        if (r->n_fail[f])
            json_object_set_new(errors, fail_names[f], json_integer((json_int_t)r->n_fail[f]));
    json_object_set_new(
        j, "client",
        json_pack("{s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I, s:b, s:o}", "program", PROG, "version",
                  PHASEPIPE_VERSION, "seed", (json_int_t)r->opts->seed, "events", (json_int_t)run->n_event, "cpu_s",
                  run->cpu_s, "cpu_us_per_event", run->n_event ? run->cpu_s / (double)run->n_event * 1e6 : 0.0,
                  "send_lag_p99_ms", r->lag_p99_s * 1e3, "send_lag_max_ms", r->lag_max_s * 1e3, "stamp_delay_p99_ms",
                  run_delay_s(run, 99) * 1e3, "stamp_delay_max_ms", run_delay_s(run, 100) * 1e3, "peak_in_flight",
                  (json_int_t)run->n_in_flight_max, "interrupted", run->interrupted, "errors", errors));
}

static json_t *itls(const struct request *x)
{
    json_t *list = json_array();
    for (uint32_t k = 1; k < x->n_stamp; k++)
        json_array_append_new(list, json_real((double)(x->stamp[k] - x->stamp[k - 1]) / 1e9));
    return list;
}

/* The text is JSON between quotes already. */
static json_t *text_of(const struct request *x)
{
    struct str quoted = {0};
    str_add_char(&quoted, '"');
    str_add(&quoted, x->text.p, x->text.n);
    str_add_char(&quoted, '"');
    json_t *j = quoted.failed ? NULL : json_loadb(quoted.p, quoted.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    str_free(&quoted);
    return j ? j : json_string("");
}

static json_t *error_of(const struct request *x)
{
    json_t *j = json_string(x->fail && x->error ? x->error : "");
    return j ? j : json_string(fail_names[x->fail]); /* not valid UTF-8 */
}

/* One list per figure, in the order in which the requests were sent. */
static void details(json_t *j, const struct result *r)
{
    static const char *const names[] = {"input_lens",  "output_lens", "ttfts",           "itls",  "latencies",
                                        "start_times", "queue_times", "generated_texts", "errors"};
    enum { N = sizeof names / sizeof *names };
    json_t *list[N];
    for (int i = 0; i < N; i++)
        list[i] = json_array();
    for (uint64_t i = 0; i < r->run->n; i++) {
        const struct request *x = r->run->v[i];
        uint64_t first = x->n_stamp ? x->stamp[0] : x->start_ns, last = x->n_stamp ? x->stamp[x->n_stamp - 1] : first;
        if (!x->over)
            continue;
        uint32_t n_out = x->fail ? 0 : x->reported_out != UINT32_MAX && x->reported_out ? x->reported_out : x->n_stamp;
        json_array_append_new(list[0],
                              json_integer(x->reported_prompt != UINT32_MAX ? x->reported_prompt : x->n_prompt));
        json_array_append_new(list[1], json_integer(n_out));
        json_array_append_new(list[2], json_real((double)(first - x->start_ns) / 1e9));
        json_array_append_new(list[3], itls(x));
        json_array_append_new(list[4], json_real((double)(last - x->start_ns) / 1e9));
        json_array_append_new(list[5], json_real((double)x->start_ns / 1e9));
        json_array_append_new(list[6], json_real((double)(x->start_ns - x->arrive_ns) / 1e9));
        json_array_append_new(list[7], text_of(x));
        json_array_append_new(list[8], error_of(x));
    }
    for (int i = 0; i < N; i++) {
        if (r->opts->detailed || i == 4 || i == 6) /* always present, as in vLLM */
            json_object_set(j, names[i], list[i]);
        json_decref(list[i]);
    }
}

int save_json(struct err *e, void **out, const struct result *r)
{
    json_t *j = json_object();
    *out = j;
    if (!j)
        return err_set(e, ERR_SYS, "out of memory for the result");
    traffic(j, r);
    totals(j, r);
    metrics(j, r);
    details(j, r);
    client(j, r);
    return 0;
}

static int file_name(struct err *e, char *out, size_t n, const struct result *r)
{
    const struct opts *o = r->opts;
    const char *slash = strrchr(r->server->model, '/'), *model = slash ? slash + 1 : r->server->model;
    char rate[64] = "inf", cap[40] = "", name[600];
    if (o->plan.ramp != LOAD_STEADY)
        snprintf(rate, sizeof rate, "ramp-%g-%g", o->plan.ramp_from, o->plan.ramp_to);
    else if (!isinf(o->plan.rate))
        snprintf(rate, sizeof rate, "%g", o->plan.rate);
    if (o->max_concurrency)
        snprintf(cap, sizeof cap, "-concurrency%llu", (unsigned long long)o->max_concurrency);
    snprintf(name, sizeof name, "%.100s-%sqps%s-%.200s-%s.json", o->label ? o->label : o->backend, rate, cap, model,
             r->date);
    if (o->result_dir && mkdir(o->result_dir, 0777) && errno != EEXIST)
        return err_sys(e, "%.200s", o->result_dir);
    int used = snprintf(out, n, "%s%s%s", o->result_dir ? o->result_dir : "", o->result_dir ? "/" : "",
                        o->result_name ? o->result_name : name);
    return used < 0 || (size_t)used >= n
               ? err_set(e, ERR_USAGE,
                         "the path of the result file exceeds %zu bytes: shorten --result-dir or --result-filename",
                         n - 1)
               : 0;
}

static int write_file(struct err *e, const char *path, const json_t *j)
{
    FILE *out = fopen(path, "w");
    if (!out)
        return err_sys(e, "%.300s", path);
    int rc = json_dumpf(j, out, 0) || putc('\n', out) == EOF ? err_sys(e, "%.300s", path) : 0;
    if (fclose(out) && !rc)
        rc = err_sys(e, "%.300s", path);
    return rc;
}

/* Checked without opening the file, which would empty it, or leave an empty file if the run fails. */
static int writable(struct err *e, const char *path)
{
    struct stat st;
    const char *slash = strrchr(path, '/');
    if (stat(path, &st)) {
        if (errno != ENOENT)
            return err_sys(e, "%.300s", path);
        char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        int rc = !dir || access(dir, W_OK | X_OK) ? err_sys(e, "%.300s", path) : 0;
        free(dir);
        return rc;
    }
    if (S_ISDIR(st.st_mode))
        errno = EISDIR;
    return S_ISDIR(st.st_mode) || access(path, W_OK) ? err_sys(e, "%.300s", path) : 0;
}

int save_check(struct err *e, const struct opts *o, const struct server *s)
{
    struct result r = {.opts = o, .server = s};
    char path[1200];
    result_date(&r);
    int rc = o->save && strcmp(o->save, "-") ? writable(e, o->save) : 0;
    if (rc || !o->save_result)
        return rc;
    rc = file_name(e, path, sizeof path, &r);
    return rc ? rc : writable(e, path);
}

int save_write(struct err *e, const struct result *r)
{
    const struct opts *o = r->opts;
    char path[1200];
    void *j = NULL;
    int rc = save_json(e, &j, r);
    if (!rc && o->save && !strcmp(o->save, "-")) {
        json_dumpf(j, stdout, 0);
        putchar('\n');
    } else if (!rc && o->save) {
        rc = write_file(e, o->save, j);
    }
    if (!rc && o->save_result) {
        rc = file_name(e, path, sizeof path, r);
        rc = rc ? rc : write_file(e, path, j);
    }
    json_decref(j);
    return rc;
}
