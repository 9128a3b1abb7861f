/* The edge: what it opens, and its loop. */
#include "api/api_impl.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/time.h"
#include "proc/proc.h"

#define ABSENT_SAY_NS NS_S
#define TICK_MS 500 /* absences and the end of draining are looked at */
/* Draining: who has taken nothing for so long is not waited for. */
#define STALL_NS (10 * NS_S)

void api_say(struct api *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!a->o.say)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    a->o.say(a->o.arg, text);
}

static void on_say(void *arg, const char *text)
{
    api_say(arg, "%s", text);
}

/* ---- open and close ---- */

static int open_http(struct err *e, struct api *a)
{
    const struct http_opts o = {
        .body_bytes_max = a->o.body_bytes_max ? a->o.body_bytes_max : API_BODY_BYTES_MAX,
        .connections_max = a->o.connections_max,
        .tls_cert = a->o.tls_cert,
        .tls_key = a->o.tls_key,
        .origins = a->o.origins,
        .request = api_on_request,
        .fail = api_on_fail,
        .disconnected = api_on_disconnected,
        .finished = api_on_finished,
        .arg = a,
    };
    if (http_open(e, &a->http, &o))
        return e->code;
    for (size_t i = 0; i < a->o.n_http; i++)
        if (http_listen(e, a->http, a->o.http[i], API_OPENAI))
            return e->code;
    if (a->o.http_fd >= 0 && http_adopt(e, a->http, a->o.http_fd, API_OPENAI))
        return e->code;
    if (a->o.ollama_fd >= 0 && http_adopt(e, a->http, a->o.ollama_fd, API_OLLAMA))
        return e->code;
    if (!a->o.ollama)
        return 0;
    int rc = http_listen(e, a->http, a->o.ollama, API_OLLAMA);
    if (rc != ERR_NO || !a->o.ollama_if_free)
        return rc;
    api_say(a, "%s; the Ollama API is not served", e->text);
    return 0;
}

static int open_gateway(struct err *e, struct api *a)
{
    const struct gateway_opts o = {
        .sched = a->o.sched,
        .tokenize = a->o.tokenize,
        .listen = a->o.listen,
        .deadline_ns = (uint64_t)(a->o.deadline_s * 1e9),
        .frame = api_on_frame,
        .read = api_on_read,
        .full = api_on_full,
        .say = on_say,
        .arg = a,
    };
    return gateway_open(e, &a->gateway, &o);
}

int api_open(struct err *e, struct api **out, const struct api_opts *o)
{
    struct api *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return err_nomem(e, "the edge", sizeof *a);
    a->o = *o;
    list_init(&a->calls);
    list_init(&a->later);
    if (!a->o.waiting_max)
        a->o.waiting_max = API_WAITING_MAX;
    if (!a->o.default_max_tokens)
        a->o.default_max_tokens = 16;
    int rc = api_served_open(e, a);
    rc = rc ? rc : api_keys_read(e, a);
    rc = rc ? rc : metrics_new(e, &a->metrics, a->model.name, a->model.context);
    rc = rc ? rc : loop_new(e, &a->loop);
    rc = rc ? rc : job_queue_open(e, &a->parse, a->loop, PARSE_BYTES_MAX, "long requests");
    rc = rc ? rc : open_http(e, a); /* an address in use is said before anything is dialed */
    rc = rc ? rc : open_gateway(e, a);
    rc = rc ? rc : watch_open(e, &a->watch, a->o.sched, a->o.tokenize, a->o.kv, WATCH_PERIOD_MS);
    if (rc)
        api_close(a);
    else
        *out = a;
    return rc;
}

void api_close(struct api *a)
{
    if (!a)
        return;
    http_close(a->http); /* what runs is cancelled */
    gateway_close(a->gateway);
    watch_close(a->watch);
    job_queue_close(a->parse);
    loop_free(a->loop);
    metrics_free(a->metrics);
    api_served_close(a);
    free(a->key);
    free(a);
}

/* ---- what the surfaces ask ---- */

const struct api_model *api_model(const struct api *a)
{
    return &a->model;
}

const char *const *api_names(const struct api *a, size_t *n)
{
    *n = a->n_name;
    return (const char *const *)a->name;
}

struct api_watch *api_watch(struct api *a)
{
    return a->watch;
}

uint64_t api_running(const struct api *a)
{
    return a->n_call;
}

const struct api_opts *api_options(const struct api *a)
{
    return &a->o;
}

const char *api_address(const struct api *a, size_t i)
{
    return http_address(a->http, i);
}

enum api_surface api_address_surface(const struct api *a, size_t i)
{
    return (enum api_surface)http_address_dialect(a->http, i);
}

const char *api_absent(const struct api *a, uint64_t *since_ns)
{
    const char *url = gateway_absent(a->gateway, since_ns);
    if (url)
        return url;
    *since_ns = watch_silent_ns(a->watch);
    return *since_ns ? a->o.tokenize : NULL;
}

bool api_ready(const struct api *a)
{
    uint64_t since;
    size_t n = 0;
    bool open = false;
    if (a->draining || a->wrong_vocab || api_absent(a, &since))
        return false;
    const struct wire_worker *w = watch_workers(a->watch, &n);
    for (size_t i = 0; i < n; i++)
        open = open || !w[i].draining;
    return open;
}

/* ---- the loop ---- */

struct run {
    struct api *a;
    uint64_t end_ns;           /* of draining; 0: it serves */
    bool said, connected, cut; /* cut: what ran at the end of draining */
    unsigned terms;
    double drain_s;
    struct loop_fd http, gateway, watch, signals;
    bool watched; /* the watch has something */
};

static void absences(struct run *l, uint64_t now)
{
    struct api *a = l->a;
    uint64_t since = 0;
    const char *url = api_absent(a, &since);
    if (!url) {
        if (l->said)
            api_say(a, "all services are there again");
        l->said = false;
        return;
    }
    if (now - since > ABSENT_SAY_NS && !l->said) {
        l->said = true;
        api_say(a, "waits for %s", url);
    }
    if (now - since > API_ABSENT_WAITING_NS && a->n_call) {
        const struct call_error why = {503, 5, API_ABSENT_TEXT};
        call_fail_all(a, strcmp(url, a->o.sched) ? CALLS_UNREAD : CALLS_WAITING, &why);
    }
}

static void reload(struct api *a)
{
    struct err e;
    if (api_keys_read(&e, a))
        api_say(a, "%s: the keys are as before", e.text);
    if (http_reload(&e, a->http))
        api_say(a, "%s: the certificate is as before", e.text);
}

static void on_signals(void *arg, uint32_t events)
{
    struct run *l = arg;
    struct signalfd_siginfo s;
    (void)events;
    while (read(l->signals.fd, &s, sizeof s) == (ssize_t)sizeof s) {
        if (s.ssi_signo == SIGHUP) {
            reload(l->a);
            continue;
        }
        l->terms++;
        if (l->a->draining)
            continue;
        l->a->draining = true;
        l->end_ns = time_now_ns() + (uint64_t)(l->drain_s * 1e9);
    }
}

static int wait_ms(const struct run *l)
{
    const struct api *a = l->a;
    uint64_t ms = TICK_MS, at = gateway_next_ms(a->gateway);
    ms = at < ms ? at : ms;
    at = http_next_ms(a->http);
    ms = at < ms ? at : ms;
    at = watch_next_ms(a->watch);
    ms = at < ms ? at : ms;
    return (int)ms;
}

/* What is computed and not read yet runs as well, where somebody reads it. */
static bool goes_on(struct run *l, uint64_t now)
{
    if (!l->a->draining)
        return true;
    if (l->terms > 1)
        return false;
    uint32_t n_leaving = l->a->n_call ? 0 : http_unsent(l->a->http, STALL_NS);
    if (now >= l->end_ns && n_leaving) {
        if (!l->cut)
            api_say(l->a, "answers that are not read to their end: %u, and the time to drain has passed", n_leaving);
        return false;
    }
    if (now >= l->end_ns && l->a->n_call) {
        api_say(l->a, "%llu answers are cut off: the time to drain has passed", (unsigned long long)l->a->n_call);
        const struct call_error why = {503, 1, "the server ends"};
        call_fail_all(l->a, CALLS_ALL, &why);
        l->cut = true;
        l->end_ns = now + NS_S; /* so that the last words leave */
        return true;
    }
    return l->a->n_call || n_leaving || (job_count(l->a->parse) && now < l->end_ns);
}

/* An answer has no more tokens than the largest pool has room for. */
static void window(struct api *a)
{
    size_t n;
    uint64_t most = 0;
    const struct wire_worker *w = watch_workers(a->watch, &n);
    for (size_t i = 0; i < n; i++)
        if (w[i].blocks_all > most)
            most = w[i].blocks_all;
    if (most)
        a->model.context = most < a->window_file / KV_BLOCK ? most * KV_BLOCK : a->window_file;
}

static void on_ready(void *arg, uint32_t events) /* each step serves both */
{
    (void)arg, (void)events;
}

static void on_watch(void *arg, uint32_t events)
{
    (void)events;
    *(bool *)arg = true;
}

static int step(struct err *e, struct run *l)
{
    struct api *a = l->a;
    uint64_t since;
    int rc = gateway_step(e, a->gateway, 0);
    call_flush_all(a);
    rc = rc ? rc : http_step(e, a->http);
    if (l->watched || !watch_next_ms(a->watch)) {
        l->watched = false;
        watch_step(a->watch);
        window(a);
    }
    if (!l->connected)
        l->connected = !gateway_absent(a->gateway, &since);
    return rc;
}

static int add_all(struct err *e, struct run *l, int signal_fd)
{
    struct api *a = l->a;
    int rc = loop_fd_add(e, a->loop, &l->http, http_fd(a->http), EPOLLIN, on_ready, NULL);
    rc = rc ? rc : loop_fd_add(e, a->loop, &l->gateway, gateway_fd(a->gateway), EPOLLIN, on_ready, NULL);
    rc = rc ? rc : loop_fd_add(e, a->loop, &l->watch, watch_fd(a->watch), EPOLLIN, on_watch, &l->watched);
    return rc ? rc : loop_fd_add(e, a->loop, &l->signals, signal_fd, EPOLLIN, on_signals, l);
}

int api_run(struct err *e, struct api *a, int signal_fd, double drain_s, void (*ready)(void *arg), void *arg)
{
    struct run l = {.a = a, .drain_s = drain_s};
    int rc = add_all(e, &l, signal_fd);
    uint64_t looked = 0, now = time_now_ns();
    proc_wake_soon(true);
    while (!rc && goes_on(&l, now)) {
        bool was = l.connected;
        rc = loop_step(e, a->loop, NULL, wait_ms(&l));
        rc = rc ? rc : step(e, &l);
        if (!was && l.connected && ready)
            ready(arg);
        now = time_now_ns();
        if (now - looked > TICK_MS * NS_MS) {
            looked = now;
            absences(&l, now);
        }
    }
    /* Answers that were given whole still leave. */
    loop_fd_remove(&l.gateway);
    loop_fd_remove(&l.watch);
    loop_fd_remove(&l.signals);
    http_stop(a->http);
    for (uint64_t end = time_now_ns() + NS_S; !rc && l.terms < 2 && http_connections(a->http) && time_now_ns() < end;) {
        rc = loop_step(e, a->loop, NULL, 20);
        rc = rc ? rc : http_step(e, a->http);
    }
    loop_fd_remove(&l.http);
    return rc;
}
