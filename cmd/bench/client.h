/* The state of a run, for client.c. */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <curl/curl.h>

#include "cmd/bench/bench.h"

#define ANSWER_BYTES_KEPT 4096 /* of an answer that is no stream, for its error */

struct client;

/* A transfer, used for one request after the other. */
struct stream {
    struct client *client;
    CURL *easy;
    struct request *request; /* NULL: idle */
    struct load_sse sse;
    struct str body, answer;
    long status;
    bool done;  /* [DONE] came */
    bool fresh; /* on a connection of its own, after others were found closed */
    char why[CURL_ERROR_SIZE];
    struct stream *next, *next_idle;
};

struct client {
    const struct opts *o;
    struct asks *asks;
    struct workload *work;
    struct run *run;
    bool warm;
    uint64_t n, n_sent, n_in_flight, n_over;
    double *at_s; /* [n] owned arrivals, or NULL */
    CURLM *multi;
    int epoll, timer;
    char url[1024];
    struct stream *all, *idle, *ready; /* ready: with the body of the next request */
    uint64_t now_ns;                   /* the last look at the clock */
    uint64_t next_ns, armed_ns;        /* the next request's time; that of the timer */
    uint64_t timer_ns;                 /* when libcurl wants to be called */
    uint64_t stop_ns;                  /* none is sent after it */
    uint64_t returned_ns, readable_ns; /* the last wait; before it nothing that is read now was readable */
    uint64_t freed_ns;                 /* when a place became free last, of those that --max-concurrency gives */
    struct cli_progress bar;
};

#endif
