/* The state of a run, private to client.c. */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <curl/curl.h>

#include "cmd/bench/bench.h"

#define ANSWER_BYTES_KEPT 4096 /* of an error response, for its error text */

struct client;

/* A transfer, reused for one request after another. */
struct stream {
    struct client *client;
    CURL *easy;
    struct request *request; /* NULL: idle */
    struct load_sse sse;
    struct str body, answer;
    long status;
    bool done;  /* [DONE] was received */
    bool fresh; /* on a new connection, because kept ones were closed */
    char curl_error[CURL_ERROR_SIZE];
    struct stream *next, *next_idle;
};

struct client {
    const struct opts *o;
    struct probe *probe;
    struct workload *work;
    struct run *run;
    bool warm;
    uint64_t n, n_sent, n_in_flight, n_over;
    double *at_s; /* [n] owned arrivals, or NULL */
    CURLM *multi;
    int epoll, timer;
    char url[1024];
    struct stream *all, *idle, *ready; /* ready: has the body of the next request */
    uint64_t now_ns;                   /* last reading of the clock */
    uint64_t next_ns, armed_ns;        /* time of the next request; setting of the timer */
    uint64_t timer_ns;                 /* time at which libcurl must be called */
    uint64_t stop_ns;                  /* no request is sent after it */
    uint64_t returned_ns, readable_ns; /* end of the last wait; data read now became readable after readable_ns */
    uint64_t freed_ns;                 /* when --max-concurrency last had room again */
    struct cli_progress bar;
};

#endif
