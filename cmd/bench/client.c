/*
 * The run: one thread with one epoll set, in which libcurl's sockets are. Requests are sent by the plan; each event of
 * an answer is stamped when its bytes have been read.
 */
#include <curl/curl.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/time.h"
#include "base/vec.h"
#include "cmd/bench/bench.h"
#include "cmd/bench/client.h"
#include "proc/proc.h"

#define EVENTS_MAX 512
#define WAIT_MS_MAX 100 /* bounds the delay of a signal that arrives just before a wait */
#define SLEPT_NS 20000  /* a wait that took this long found nothing ready when it began */
#define FAR_NS UINT64_MAX
#define ROUNDING_NS 1000 /* the plan's times are sums of doubles */

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* ---- callbacks of libcurl ---- */

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *known)
{
    struct client *c = arg;
    struct epoll_event ev = {.events = (what & CURL_POLL_IN ? EPOLLIN : 0u) | (what & CURL_POLL_OUT ? EPOLLOUT : 0u),
                             .data.fd = fd};
    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        epoll_ctl(c->epoll, EPOLL_CTL_DEL, fd, NULL);
        return 0;
    }
    epoll_ctl(c->epoll, known ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, &ev);
    if (!known)
        curl_multi_assign(c->multi, fd, c);
    return 0;
}

static int on_timer(CURLM *multi, long ms, void *arg)
{
    struct client *c = arg;
    (void)multi;
    c->timer_ns = ms < 0 ? FAR_NS : time_now_ns() + (uint64_t)ms * NS_MS;
    return 0;
}

static void note_delay(struct client *c, uint64_t now)
{
    uint64_t ns = now > c->readable_ns ? now - c->readable_ns : 0;
    int top = ns < 16 ? 0 : 63 - __builtin_clzll(ns) - 3;
    size_t at = top ? (size_t)top * 16 + ((ns >> (top - 1)) & 15) : (size_t)ns;
    c->run->delay[at < DELAY_BUCKETS ? at : DELAY_BUCKETS - 1]++;
}

double run_delay_s(const struct run *r, double percent)
{
    uint64_t n = 0, seen = 0;
    for (size_t i = 0; i < DELAY_BUCKETS; i++)
        n += r->delay[i];
    for (size_t i = 0; n && i < DELAY_BUCKETS; i++) {
        seen += r->delay[i];
        if ((double)seen >= percent / 100 * (double)n) {
            uint64_t top = i / 16, low = i % 16 + 1;
            return (double)(top ? (16 + low) << (top - 1) : low) / 1e9;
        }
    }
    return 0;
}

/* ---- an answer ---- */

static bool stamp(struct client *c, struct request *r)
{
    if (!vec_grow(&r->stamp, &r->size_stamp, (size_t)r->n_stamp + 1, sizeof *r->stamp))
        return false;
    r->stamp[r->n_stamp++] = c->now_ns;
    c->run->n_event++;
    return true;
}

/* Keeps the first one; text up to n bytes or its end. */
static void request_fail(struct request *r, enum fail kind, const char *text, size_t n)
{
    if (r->fail)
        return;
    r->fail = kind;
    if (asprintf(&r->error, "%.*s", n < 300 ? (int)n : 300, text) < 0)
        r->error = NULL;
}

static bool on_event(void *arg, const char *data, size_t n, bool error)
{
    struct stream *s = arg;
    struct request *r = s->request;
    struct load_event ev;
    struct err e;
    if (error) {
        request_fail(r, FAIL_EVENT, data, n);
        return true;
    }
    if (load_event_read(&e, &ev, data, n)) {
        request_fail(r, FAIL_EVENT, e.text, sizeof e.text);
        return false;
    }
    if (ev.error)
        request_fail(r, FAIL_EVENT, ev.error, ev.n_error);
    if (ev.choices && !r->fail && !stamp(s->client, r))
        request_fail(r, FAIL_OTHER, "out of memory", 13);
    if (ev.choices && s->client->o->detailed && ev.text)
        str_add(&r->text, ev.text, ev.n_text);
    if (ev.has_prompt && ev.prompt_tokens < UINT32_MAX)
        r->reported_prompt = (uint32_t)ev.prompt_tokens;
    if (ev.has_completion && ev.completion_tokens < UINT32_MAX)
        r->reported_out = (uint32_t)ev.completion_tokens;
    s->done |= ev.done;
    return true;
}

static size_t on_bytes(char *p, size_t one, size_t n, void *arg)
{
    struct stream *s = arg;
    struct client *c = s->client;
    struct err e;
    n *= one;
    c->now_ns = time_now_ns();
    note_delay(c, c->now_ns);
    if (!s->status)
        curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
    if (s->status != 200) {
        if (s->answer.n < ANSWER_BYTES_KEPT)
            str_add(&s->answer, p, n < ANSWER_BYTES_KEPT ? n : ANSWER_BYTES_KEPT);
        return n;
    }
    if (load_sse_feed(&e, &s->sse, on_event, s, p, n)) {
        request_fail(s->request, FAIL_EVENT, e.text, sizeof e.text);
        return 0;
    }
    return n;
}

/* ---- sending ---- */

static int stream_new(struct err *e, struct stream **out, struct client *c)
{
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return err_nomem(e, "a stream", sizeof *s);
    s->client = c;
    s->easy = curl_easy_init();
    if (!s->easy) {
        free(s);
        return err_set(e, ERR_SYS, "libcurl cannot create a transfer: out of memory");
    }
    curl_easy_setopt(s->easy, CURLOPT_URL, c->url);
    probe_setup_transfer(s->easy, c->probe);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->curl_error);
    curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(s->easy, CURLOPT_TCP_NODELAY, 1L);
    curl_easy_setopt(s->easy, CURLOPT_DNS_CACHE_TIMEOUT, -1L);
    curl_easy_setopt(s->easy, CURLOPT_TIMEOUT_MS, (long)(c->o->timeout_s * 1e3));
    s->next = c->all;
    c->all = s;
    *out = s;
    return 0;
}

static int keep_request(struct err *e, struct run *run, struct request *r)
{
    int rc = vec_reserve(e, &run->v, &run->size, run->n + 1, sizeof(struct request *), "requests");
    if (!rc)
        run->v[run->n++] = r;
    return rc;
}

/* Makes the next request with its body before its time. */
static int prepare(struct err *e, struct client *c)
{
    struct stream *s = c->idle;
    if (s)
        c->idle = s->next_idle;
    else if (stream_new(e, &s, c))
        return e->code;
    c->ready = s;
    struct request *r = s->request = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, "a request", sizeof *r);
    int rc = keep_request(e, c->run, r);
    if (rc) {
        free(r);
        s->request = NULL;
        return rc;
    }
    r->reported_prompt = r->reported_out = UINT32_MAX;
    rc = workload_body(e, &s->body, &r->n_prompt, &r->n_out, c->work, c->n_sent, c->warm);
    size_t n_stamp = r->n_out < 4096 ? r->n_out + 4 : 4096;
    rc = rc ? rc : vec_reserve(e, &r->stamp, &r->size_stamp, n_stamp, sizeof *r->stamp, "stamps");
    s->status = 0;
    s->done = s->fresh = false;
    s->curl_error[0] = 0;
    curl_easy_setopt(s->easy, CURLOPT_FRESH_CONNECT, 0L);
    str_clear(&s->answer);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)s->body.n);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body.p);
    return rc;
}

/* Time at which request i should be sent. */
static uint64_t due_ns(const struct client *c, uint64_t i)
{
    if (c->warm)
        return c->run->begin_ns;
    double at = c->o->dataset == DATA_TRACE ? workload_at(c->work, i) : c->at_s ? c->at_s[i] : 0;
    return at > 1e9 ? FAR_NS : c->run->begin_ns + (uint64_t)(at * 1e9);
}

static int send_ready(struct err *e, struct client *c)
{
    struct stream *s = c->ready;
    struct request *r = s->request;
    uint64_t due = due_ns(c, c->n_sent);
    c->ready = NULL;
    c->now_ns = r->start_ns = time_now_ns();
    r->arrive_ns = due;
    r->held = c->freed_ns > due;
    c->n_sent++;
    if (++c->n_in_flight > c->run->n_in_flight_max)
        c->run->n_in_flight_max = c->n_in_flight;
    CURLMcode code = curl_multi_add_handle(c->multi, s->easy);
    return code ? err_set(e, ERR_SYS, "libcurl refused a transfer: %s", curl_multi_strerror(code)) : 0;
}

static bool room(const struct client *c)
{
    return !c->o->max_concurrency || c->n_in_flight < c->o->max_concurrency;
}

/* True if no more requests are sent because of --duration: the next one is planned later, or waits for
 * --max-concurrency at the end. A request planned before the end is sent even if the loop is a little late. */
static bool closed(const struct client *c)
{
    if (!c->at_s && c->o->dataset != DATA_TRACE)
        return c->now_ns >= c->stop_ns;
    uint64_t due = due_ns(c, c->n_sent);
    if (due > c->stop_ns && due - c->stop_ns > ROUNDING_NS)
        return true;
    return c->now_ns >= c->stop_ns && (!room(c) || c->freed_ns > due);
}

/* Sends the requests that are due. Sets c->next_ns to the time of the next one, or never. */
static int send_due(struct err *e, struct client *c)
{
    int rc = 0;
    c->next_ns = FAR_NS;
    while (!rc && c->n_sent < c->n && !closed(c)) {
        if (!c->ready && (rc = prepare(e, c)))
            break;
        if (!room(c))
            return 0;
        uint64_t due = due_ns(c, c->n_sent);
        if (due > c->now_ns && due > (c->now_ns = time_now_ns())) {
            c->next_ns = due;
            return 0;
        }
        rc = send_ready(e, c);
    }
    return rc;
}

/* ---- the end of an answer ---- */

static void failed_status(struct stream *s)
{
    char text[400];
    const char *reason = str_text(&s->answer);
    snprintf(text, sizeof text, "%ld: %.300s", s->status, reason);
    request_fail(s->request, FAIL_STATUS, text, sizeof text);
}

/* Servers close connections after a number of requests or seconds, possibly just as the next request is sent. libcurl
 * then tries another kept connection, and fails if several of them are closed. This sends the request once more, on a
 * new connection. */
static bool retry_on_new_connection(struct client *c, struct stream *s, CURLcode code)
{
    long n_new = 1;
    curl_easy_getinfo(s->easy, CURLINFO_NUM_CONNECTS, &n_new);
    if ((code != CURLE_SEND_ERROR && code != CURLE_RECV_ERROR && code != CURLE_GOT_NOTHING) || s->status || s->fresh ||
        n_new)
        return false;
    s->fresh = true;
    s->curl_error[0] = 0;
    curl_easy_setopt(s->easy, CURLOPT_FRESH_CONNECT, 1L);
    curl_multi_remove_handle(c->multi, s->easy);
    return !curl_multi_add_handle(c->multi, s->easy);
}

static void finish(struct client *c, struct stream *s, CURLcode code)
{
    struct request *r = s->request;
    const char *reason = *s->curl_error ? s->curl_error : curl_easy_strerror(code);
    if (code == CURLE_COULDNT_CONNECT || code == CURLE_COULDNT_RESOLVE_HOST)
        request_fail(r, FAIL_CONNECT, reason, CURL_ERROR_SIZE);
    else if (code == CURLE_OPERATION_TIMEDOUT)
        request_fail(r, FAIL_TIMEOUT, reason, CURL_ERROR_SIZE);
    else if (s->status && s->status != 200)
        failed_status(s);
    else if (code && s->status)
        request_fail(r, FAIL_CUT, reason, CURL_ERROR_SIZE);
    else if (code)
        request_fail(r, FAIL_OTHER, reason, CURL_ERROR_SIZE);
    else if (!s->done)
        request_fail(r, FAIL_CUT, "the stream ended without [DONE]", 64);
    else if (!r->n_stamp)
        request_fail(r, FAIL_EMPTY, "the answer has no token", 64);
    r->over = true;
    s->request = NULL;
    load_sse_free(&s->sse);
    curl_multi_remove_handle(c->multi, s->easy);
    s->next_idle = c->idle;
    c->idle = s;
    if (c->o->max_concurrency && c->n_in_flight == c->o->max_concurrency)
        c->freed_ns = time_now_ns();
    c->n_in_flight--;
    c->n_over++;
}

static void finished(struct client *c)
{
    CURLMsg *m;
    int left;
    while ((m = curl_multi_info_read(c->multi, &left))) {
        struct stream *s;
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode code = m->data.result;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&s);
        if (!s->status) /* a response with headers only */
            curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &s->status);
        if (!retry_on_new_connection(c, s, code))
            finish(c, s, code);
    }
}

/* ---- the loop ---- */

static void arm(struct client *c)
{
    struct itimerspec t = {0};
    if (c->next_ns == c->armed_ns)
        return;
    c->armed_ns = c->next_ns;
    if (c->next_ns != FAR_NS)
        t.it_value = time_spec(c->next_ns);
    timerfd_settime(c->timer, TFD_TIMER_ABSTIME, &t, NULL);
}

static int wait_ms(const struct client *c)
{
    uint64_t now = time_now_ns();
    int ms = time_left_ms(c->timer_ns, now);
    return ms < 0 || ms > WAIT_MS_MAX ? WAIT_MS_MAX : ms;
}

static int one_turn(struct err *e, struct client *c)
{
    struct epoll_event ev[EVENTS_MAX];
    uint64_t entered = time_now_ns(), ticks;
    int running, n = epoll_wait(c->epoll, ev, EVENTS_MAX, wait_ms(c));
    if (n < 0 && errno != EINTR)
        return err_sys(e, "epoll_wait");
    c->now_ns = time_now_ns();
    /* The earliest time at which the data may have arrived: the return of the last wait, or, if this wait slept, the
     * present, since a wait that finds data does not sleep. */
    c->readable_ns = c->now_ns - entered > SLEPT_NS ? c->now_ns : c->returned_ns;
    c->returned_ns = c->now_ns;
    for (int i = 0; i < n; i++) {
        unsigned got = ev[i].events;
        if (ev[i].data.fd == c->timer) {
            if (read(c->timer, &ticks, sizeof ticks) < 0 && errno != EAGAIN)
                return err_sys(e, "setting the timer");
            c->armed_ns = 0;
        } else {
            curl_multi_socket_action(c->multi, ev[i].data.fd,
                                     (got & EPOLLIN ? CURL_CSELECT_IN : 0) | (got & EPOLLOUT ? CURL_CSELECT_OUT : 0) |
                                         (got & (EPOLLERR | EPOLLHUP) ? CURL_CSELECT_ERR : 0),
                                     &running);
        }
        if (c->now_ns >= c->next_ns && send_due(e, c))
            return e->code;
    }
    if (c->timer_ns <= c->now_ns) {
        c->timer_ns = FAR_NS;
        curl_multi_socket_action(c->multi, CURL_SOCKET_TIMEOUT, 0, &running);
    }
    finished(c);
    return 0;
}

static void progress(struct client *c)
{
    if (c->n != UINT64_MAX)
        cli_progress(&c->bar, c->n_over, c->n);
    else
        cli_progress(&c->bar, c->now_ns - c->run->begin_ns, (uint64_t)(c->o->duration_s * 1e9));
}

static int loop(struct err *e, struct client *c)
{
    int terms = proc_term_count(), rc = 0;
    while (!rc) {
        rc = send_due(e, c);
        bool sent = c->n_sent == c->n || (c->now_ns >= c->stop_ns && closed(c));
        if (rc || (sent && !c->n_in_flight))
            break;
        if (proc_term_count() > terms) {
            c->run->interrupted = true;
            break;
        }
        if (c->now_ns < c->stop_ns && c->stop_ns < c->next_ns)
            c->next_ns = c->stop_ns;
        arm(c);
        rc = one_turn(e, c);
        progress(c);
    }
    if (!c->run->interrupted && !rc)
        cli_progress(&c->bar, 1, 1);
    return rc;
}

static int open_client(struct err *e, struct client *c)
{
    snprintf(c->url, sizeof c->url, "%s%s", c->o->base, c->o->endpoint);
    c->epoll = epoll_create1(EPOLL_CLOEXEC);
    c->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = c->timer};
    if (c->epoll < 0 || c->timer < 0 || epoll_ctl(c->epoll, EPOLL_CTL_ADD, c->timer, &ev))
        return err_sys(e, "epoll");
    c->multi = curl_multi_init();
    if (!c->multi)
        return err_set(e, ERR_SYS, "libcurl failed to initialise: out of memory");
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    curl_multi_setopt(c->multi, CURLMOPT_SOCKETDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERFUNCTION, on_timer);
    curl_multi_setopt(c->multi, CURLMOPT_TIMERDATA, c);
    curl_multi_setopt(c->multi, CURLMOPT_MAXCONNECTS, 65536L);
    return 0;
}

static void close_client(struct client *c)
{
    for (struct stream *s = c->all, *next; s; s = next) {
        next = s->next;
        if (c->multi)
            curl_multi_remove_handle(c->multi, s->easy);
        curl_easy_cleanup(s->easy);
        load_sse_free(&s->sse);
        str_free(&s->body);
        str_free(&s->answer);
        free(s);
    }
    curl_multi_cleanup(c->multi);
    if (c->epoll >= 0)
        close(c->epoll);
    if (c->timer >= 0)
        close(c->timer);
    free(c->at_s);
}

/* Drops requests that were prepared but not sent. Counts requests in flight as cut if the run was interrupted. */
static void settle(struct client *c)
{
    struct run *run = c->run;
    while (run->n && !run->v[run->n - 1]->start_ns) {
        struct request *r = run->v[--run->n];
        free(r->stamp);
        free(r);
    }
    for (uint64_t i = 0; i < run->n; i++)
        run->n_cut += !run->v[i]->over;
}

int client_run(struct err *e, struct run *out, const struct opts *o, const struct server *s, struct probe *a,
               struct workload *w, uint64_t n, bool warm)
{
    struct client c = {.o = o,
                       .probe = a,
                       .work = w,
                       .run = out,
                       .warm = warm,
                       .n = n,
                       .next_ns = 0,
                       .epoll = -1,
                       .timer = -1,
                       .stop_ns = FAR_NS,
                       .timer_ns = FAR_NS,
                       .armed_ns = FAR_NS};
    (void)s;
    *out = (struct run){.n_plan = n};
    int rc = open_client(e, &c);
    bool timed = o->plan.ramp != LOAD_STEADY || !isinf(o->plan.rate);
    if (!rc && timed && !warm) {
        if (!(c.at_s = malloc(n * sizeof *c.at_s)))
            rc = err_nomem(e, "arrivals", n * sizeof *c.at_s);
        else
            load_plan_arrivals(c.at_s, &o->plan, n);
    }
    if (!rc)
        rc = prepare(e, &c);
    cli_progress_start(&c.bar, PROG, warm ? "warming up" : "running");
    double cpu = cpu_s();
    c.now_ns = c.returned_ns = out->begin_ns = time_now_ns();
    if (o->duration_s > 0 && !warm)
        c.stop_ns = out->begin_ns + (uint64_t)(o->duration_s * 1e9);
    rc = rc ? rc : loop(e, &c);
    out->end_ns = time_now_ns();
    out->cpu_s = cpu_s() - cpu;
    settle(&c);
    close_client(&c);
    return rc;
}

void run_free(struct run *r)
{
    for (uint64_t i = 0; i < r->n; i++) {
        free(r->v[i]->stamp);
        free(r->v[i]->error);
        str_free(&r->v[i]->text);
        free(r->v[i]);
    }
    free(r->v);
    *r = (struct run){0};
}
