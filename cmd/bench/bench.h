/*
 * bench: a load generator for servers of the OpenAI API. flags.c reads the options, probe.c gets from the server what
 * the run needs, workload.c makes prompts, client.c sends requests and stamps tokens, result.c computes the figures,
 * and report.c, save.c and compare.c present them.
 */
#ifndef BENCH_H
#define BENCH_H

#include "base/str.h"
#include "cli/cli.h"
#include "load/load.h"

#define PROG "bench"

enum dataset { DATA_RANDOM, DATA_PREFIX, DATA_LIST, DATA_TRACE };

#define PERCENTILES_MAX 32

/* The metrics, in the order in which they are shown. */
enum metric { M_TTFT, M_TPOT, M_ITL, M_E2EL, M_QUEUE, M_E2EL_QUEUE, N_METRIC };
extern const struct metric_name {
    const char *key, *title; /* "ttft", "TTFT" */
} metric_names[N_METRIC];

struct opts {
    /* the server */
    char *base;            /* owned, "http://127.0.0.1:8000" */
    const char *unix_path; /* NULL: by TCP */
    const char *endpoint, *model, *backend, *label;
    bool chat, insecure;
    struct cli_list headers, metadata;
    double ready_s, timeout_s;
    /* traffic */
    struct load_plan plan;
    uint64_t max_concurrency; /* 0: none */
    uint64_t n_prompts;       /* UINT64_MAX: as many as fit into the duration */
    double duration_s;        /* 0: none */
    uint64_t n_warmup, seed;
    /* workload */
    enum dataset dataset;
    const char *path;
    uint64_t in_len, out_len, prefix_len;
    double in_range, out_range;
    uint64_t n_prefixes, repeat_prefix_len, repeat_suffix_len, repeat_out_len;
    double time_scale, length_scale;
    uint64_t vocab, model_len; /* 0: not given */
    bool ids;                  /* generated prompts are token ids, else text */
    bool ignore_eos, has_temperature;
    double temperature;
    const char *extra_body;
    /* results */
    double percentile[PERCENTILES_MAX];
    size_t n_percentile;
    bool shown[N_METRIC];
    bool goodput;
    double slo_ms[N_METRIC]; /* < 0: no limit */
    const char *save, *result_dir, *result_name, *compare;
    bool save_result, detailed;
    double fail_above; /* percent; < 0: never */
};
/* 0, CLI_DONE or an error. */
int opts_read(struct err *e, struct opts *o, int argc, char **argv);
void opts_free(struct opts *o);

/* ---- probe.c: requests to the server before the run ---- */

struct server {
    char model[256];    /* id, for requests */
    uint64_t n_vocab;   /* 0: not reported */
    uint64_t model_len; /* 0: not reported */
};
struct probe;
int probe_open(struct err *e, struct probe **out, const struct opts *o);
void probe_close(struct probe *a);
/* Sets headers, path and TLS verification of a transfer, a CURL *. a must outlive it. */
void probe_setup_transfer(void *curl, const struct probe *a);
/* Waits until the server is ready, if o->ready_s > 0, and reads its model. The name in o takes precedence. */
int probe_server(struct err *e, struct server *s, struct probe *a);
/* Ids of a text, owned; *n is 0 if the server has no /tokenize. */
int probe_tokenize(struct err *e, uint32_t **ids, size_t *n, struct probe *a, const char *text);
/* Counts the tokens of a prompt or messages, JSON as in a request. *n is 0 if the server does not report it; *again: it
 * may for other prompts. */
int probe_count_tokens(struct err *e, uint32_t *n, bool *again, struct probe *a, const struct server *s,
                       const char *body, bool chat);

/* ---- workload.c, pool.c: the requests ---- */

extern const char *const bench_words[];
extern const size_t n_bench_words;

/* Material of prompts: each element is one token. */
struct pool {
    uint32_t *ids; /* [n_ids] owned */
    size_t n_ids;
    const char **words; /* [n_words] owned array */
    size_t n_words;
    uint64_t vocab; /* > 0: ids are any below it */
};
int pool_open(struct err *e, struct pool *p, const struct opts *o, const struct server *s, struct probe *a);
void pool_close(struct pool *p);

struct workload;
int workload_open(struct err *e, struct workload **out, const struct opts *o, const struct server *s, struct probe *a,
                  const struct pool *p);
void workload_close(struct workload *w);
uint64_t workload_count(const struct workload *w); /* UINT64_MAX: no end */
/* Time of request i of a trace, seconds from the start. */
double workload_at(const struct workload *w, uint64_t i);
/* Writes the body of request i; returns its planned lengths. `warm`: of another random sequence, so that no prompt of
 * the run is cached by the warm-up. */
int workload_body(struct err *e, struct str *out, uint32_t *n_prompt, uint32_t *n_out, struct workload *w, uint64_t i,
                  bool warm);

/* ---- client.c: the run ---- */

enum fail { FAIL_NO, FAIL_CONNECT, FAIL_STATUS, FAIL_EVENT, FAIL_CUT, FAIL_EMPTY, FAIL_TIMEOUT, FAIL_OTHER, N_FAIL };
extern const char *const fail_names[N_FAIL];

struct request {
    uint64_t arrive_ns, start_ns; /* arrive: as planned; start: sent. CLOCK_MONOTONIC */
    uint64_t *stamp;              /* [n_stamp] owned: arrival of each token */
    uint32_t n_stamp;
    size_t size_stamp;
    uint32_t n_prompt, n_out;               /* as planned */
    uint32_t reported_prompt, reported_out; /* as counted by the server; UINT32_MAX: not reported */
    bool over, held;                        /* over: it ended; held: it waited for --max-concurrency */
    enum fail fail;
    char *error;     /* owned; set if the request failed */
    struct str text; /* of the answer, JSON as received, with --save-detailed */
};

#define DELAY_BUCKETS 1024 /* 16 per octave of nanoseconds */

struct run {
    struct request **v; /* [n] owned, as sent */
    size_t n, size;
    uint64_t n_plan; /* requests of the plan; UINT64_MAX: no end */
    uint64_t begin_ns, end_ns;
    uint64_t n_event, n_in_flight_max, n_cut; /* n_cut: requests that were in flight when the run was interrupted */
    double cpu_s;
    uint64_t delay[DELAY_BUCKETS]; /* of stamps after the data became readable, upper bounds */
    bool interrupted;
};
int client_run(struct err *e, struct run *out, const struct opts *o, const struct server *s, struct probe *a,
               struct workload *w, uint64_t n, bool warm);
void run_free(struct run *r);
double run_delay_s(const struct run *r, double percent);

/* ---- result.c ---- */

struct result {
    char date[32];
    const struct run *run;
    const struct opts *opts;
    const struct server *server;
    const void *saved; /* JSON of the run that --compare names, or NULL */
    double duration_s;
    uint64_t completed, failed, total_in, total_out;
    double request_rate, goodput, out_rate, total_rate;
    double peak_out_rate;
    uint64_t peak_concurrent;
    double *v[N_METRIC]; /* [n_v] owned, seconds, sorted */
    size_t n_v[N_METRIC];
    struct load_stat stat[N_METRIC];
    double lag_p99_s,
        lag_max_s; /* delay of sending against the plan, of requests that did not wait for --max-concurrency */
    uint64_t n_fail[N_FAIL];
};
int result_make(struct err *e, struct result *r, const struct opts *o, const struct server *s, const struct run *run);
void result_free(struct result *r);
void result_date(struct result *r);            /* now */
void percentile_word(char out[32], double p);  /* "p99" or "p99.9" */
bool metric_made(const struct opts *o, int m); /* shown, and produced by a run with these options */

int report_print(struct err *e, const struct result *r);
/* Before the run: checks that the result can be saved. Writes nothing. */
int save_check(struct err *e, const struct opts *o, const struct server *s);
int save_write(struct err *e, const struct result *r);
/* *out: owned JSON, json_t. */
int save_json(struct err *e, void **out, const struct result *r);
/* Before the run: loads the saved run, owned JSON, json_t. ERR_NO: it has no figure in common with this run. */
int compare_open(struct err *e, void **saved, const struct opts *o);
/* ERR_NO: a figure is worse by more than --fail-above. */
int compare_print(struct err *e, const struct result *r);

#endif
