/* The HTTP gateway: opening, and its event loop. */
#include "api/api_impl.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/time.h"
#include "proc/notify.h"
#include "proc/proc.h"

#define ABSENT_LOG_NS NS_S
#define TICK_MS 500 /* period of checking for unreachable services and the shutdown deadline */
/* Shutdown: do not wait for a client that has read nothing for so long. */
#define STALL_NS (10 * NS_S)
/* Shutdown: requests that are being received at an inherited socket have this long to become complete. */
#define ARRIVING_NS (5 * NS_S)

void api_log(struct api *a, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    if (!a->o.log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    a->o.log(a->o.arg, text);
}

static void on_log(void *arg, const char *text)
{
    api_log(arg, "%s", text);
}

/* ---- open and close ---- */

static int open_http(struct err *e, struct api *a)
{
    const struct http_opts o = {
        .body_bytes_max = a->o.body_bytes_max ? a->o.body_bytes_max : API_BODY_BYTES_MAX,
        .bodies_bytes_max = a->o.bodies_bytes_max,
        .outputs_bytes_max = a->o.outputs_bytes_max,
        .connections_max = a->o.connections_max,
        .address_connections_max = a->o.address_connections_max,
        .keepalive_s = a->o.keepalive_s,
        .tls_cert = a->o.tls_cert,
        .tls_key = a->o.tls_key,
        .origins = a->o.origins,
        .hosts = a->o.hosts ? a->o.hosts : "",
        .log = on_log,
        .head = api_on_head,
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
    api_log(a, "%s; the Ollama API is not served", e->text);
    return 0;
}

static int open_gateway(struct err *e, struct api *a)
{
    const struct gateway_opts o = {
        .sched = a->o.sched,
        .tokenize = a->o.tokenize,
        .listen = a->o.listen,
        .security = a->o.security,
        .deadline_ns = (uint64_t)(a->o.deadline_s * 1e9),
        .bytes_max = a->o.prompts_bytes_max,
        .frame = api_on_frame,
        .parsed = api_on_read,
        .refused = api_on_full,
        .accepted = api_on_accepted,
        .log = on_log,
        .arg = a,
    };
    return gateway_open(e, &a->gateway, &o);
}

int api_open(struct err *e, struct api **out, const struct api_opts *o)
{
    struct api *a = calloc(1, sizeof *a);
    *out = NULL;
    if (!a)
        return err_nomem(e, "the gateway", sizeof *a);
    a->o = *o;
    list_init(&a->generations);
    list_init(&a->later);
    list_init(&a->work);
    uint64_t part = proc_memory_part(16, API_BYTES_LEAST, API_BYTES_MOST);
    if (!a->o.waiting_max)
        a->o.waiting_max = API_WAITING_MAX;
    if (!a->o.logprob_entries_max)
        a->o.logprob_entries_max = API_LOGPROBS_MAX;
    if (!a->o.bodies_bytes_max)
        a->o.bodies_bytes_max = part;
    if (!a->o.outputs_bytes_max)
        a->o.outputs_bytes_max = part;
    if (!a->o.prompts_bytes_max)
        a->o.prompts_bytes_max = proc_memory_part(8, API_BYTES_LEAST, API_BYTES_MOST);
    if (!a->o.default_max_tokens)
        a->o.default_max_tokens = 16;
    int rc = api_model_info_open(e, a);
    rc = rc ? rc : api_keys_read(e, a);
    rc = rc ? rc : metrics_new(e, &a->metrics, a->model.name, a->model.context);
    rc = rc ? rc : loop_new(e, &a->loop);
    rc = rc ? rc : job_queue_open(e, &a->parse, a->loop, PARSE_BYTES_MAX, "long requests");
    rc = rc ? rc : open_http(e, a); /* first, so that an address in use is reported at once */
    rc = rc ? rc : open_gateway(e, a);
    rc = rc ? rc : api_keys_weights(e, a, a->keys, NULL);
    rc = rc ? rc : poller_open(e, &a->poller, a->o.sched, a->o.tokenize, a->o.kv, &a->o.security, POLLER_PERIOD_MS);
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
    http_close(a->http); /* cancels what is in flight */
    gateway_close(a->gateway);
    poller_close(a->poller);
    job_queue_close(a->parse);
    loop_free(a->loop);
    metrics_free(a->metrics);
    api_model_info_close(a);
    keys_free(a->keys);
    free(a);
}

/* ---- accessors for the dialects ---- */

const struct api_model *api_model(const struct api *a)
{
    return &a->model;
}

const char *const *api_names(const struct api *a, size_t *n)
{
    *n = a->n_name;
    return (const char *const *)a->name;
}

struct stats_poller *api_poller(struct api *a)
{
    return a->poller;
}

uint64_t api_running(const struct api *a)
{
    return a->n_generation;
}

const struct api_opts *api_options(const struct api *a)
{
    return &a->o;
}

const char *api_address(const struct api *a, size_t i)
{
    return http_address(a->http, i);
}

enum api_dialect api_address_dialect(const struct api *a, size_t i)
{
    return (enum api_dialect)http_address_dialect(a->http, i);
}

const char *api_absent(const struct api *a, uint64_t *since_ns)
{
    const char *url = gateway_absent(a->gateway, since_ns);
    if (url)
        return url;
    *since_ns = poller_silent_ns(a->poller);
    return *since_ns ? a->o.tokenize : NULL;
}

bool api_ready(const struct api *a)
{
    uint64_t since;
    size_t n = 0;
    bool open = false;
    if (a->draining || a->wrong_vocab || api_absent(a, &since))
        return false;
    const struct wire_worker *w = poller_workers(a->poller, &n);
    for (size_t i = 0; i < n; i++)
        open = open || !w[i].draining;
    return open;
}

/* ---- the loop ---- */

struct run {
    struct api *a;
    uint64_t term_ns;    /* when the graceful shutdown began */
    uint64_t end_ns;     /* its end; 0: serving */
    bool absence_logged; /* an unreachable service was logged */
    bool connected;      /* the scheduler and tokenize were connected once */
    bool cut;            /* requests were cancelled at the end of the shutdown */
    unsigned terms;
    double drain_s;
    struct loop_fd http, gateway, poller, signals;
    bool poller_ready; /* the poller's descriptor is readable */
};

static void check_reachable(struct run *l, uint64_t now)
{
    struct api *a = l->a;
    uint64_t since = 0;
    const char *url = api_absent(a, &since);
    if (!url) {
        if (l->absence_logged)
            api_log(a, "all services are reachable again");
        l->absence_logged = false;
        return;
    }
    if (now - since > ABSENT_LOG_NS && !l->absence_logged) {
        l->absence_logged = true;
        api_log(a, "waiting for %s: not reachable", url);
    }
    if (now - since > API_ABSENT_WAITING_NS && a->n_generation) {
        const struct api_error why = {503, 5, API_ABSENT_TEXT};
        generation_fail_all(a, strcmp(url, a->o.sched) ? GENERATIONS_UNTOKENIZED : GENERATIONS_WAITING, &why);
    }
}

static void reload(struct api *a)
{
    struct err e;
    if (api_keys_read(&e, a))
        api_log(a, "%s; the API keys are unchanged", e.text);
    else if (a->keys)
        api_log(a, "%s: %zu API keys are in use", a->o.key_file, a->keys->n);
    if (http_reload(&e, a->http))
        api_log(a, "%s; the TLS certificate is unchanged", e.text);
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
        l->term_ns = time_now_ns();
        http_leave(l->a->http);
        l->end_ns = time_now_ns() + (uint64_t)(l->drain_s * 1e9);
    }
}

static int wait_ms(const struct run *l)
{
    const struct api *a = l->a;
    uint64_t ms = list_empty(&a->work) ? TICK_MS : 0, at = gateway_next_ms(a->gateway);
    ms = at < ms ? at : ms;
    at = http_next_ms(a->http);
    ms = at < ms ? at : ms;
    at = poller_next_ms(a->poller);
    ms = at < ms ? at : ms;
    return (int)ms;
}

/* During the shutdown the loop runs while requests are in flight, or while clients read the rest of their responses. */
static bool is_running(struct run *l, uint64_t now)
{
    if (!l->a->draining)
        return true;
    if (l->terms > 1)
        return false;
    if (http_arriving(l->a->http) && now < l->end_ns && now < l->term_ns + ARRIVING_NS)
        return true;
    uint32_t n_leaving = l->a->n_generation ? 0 : http_unsent(l->a->http, STALL_NS);
    if (now >= l->end_ns && n_leaving) {
        if (!l->cut)
            api_log(l->a, "shutdown deadline reached: %u responses were not read to their end", n_leaving);
        return false;
    }
    if (now >= l->end_ns && l->a->n_generation) {
        api_log(l->a, "shutdown deadline reached: %llu requests are cancelled", (unsigned long long)l->a->n_generation);
        const struct api_error why = {503, 1, "the server is shutting down"};
        generation_fail_all(l->a, GENERATIONS_ALL, &why);
        l->cut = true;
        l->end_ns = now + NS_S; /* so that the errors are sent */
        return true;
    }
    return l->a->n_generation || n_leaving || (job_count(l->a->parse) && now < l->end_ns);
}

/* A sequence cannot be longer than the largest pool of a worker. */
static void window(struct api *a)
{
    size_t n;
    uint64_t most = 0;
    const struct wire_worker *w = poller_workers(a->poller, &n);
    for (size_t i = 0; i < n; i++)
        if (w[i].blocks_all > most)
            most = w[i].blocks_all;
    if (most)
        a->model.context = most < a->file_context / KV_BLOCK ? most * KV_BLOCK : a->file_context;
}

static void on_ready(void *arg, uint32_t events) /* wakes the loop only: each step serves both */
{
    (void)arg, (void)events;
}

static void on_poller(void *arg, uint32_t events)
{
    (void)events;
    *(bool *)arg = true;
}

static int step(struct err *e, struct run *l)
{
    struct api *a = l->a;
    uint64_t since;
    int rc = gateway_step(e, a->gateway, 0);
    generation_work_all(a);
    generation_flush_all(a);
    rc = rc ? rc : http_step(e, a->http);
    if (l->poller_ready || !poller_next_ms(a->poller)) {
        l->poller_ready = false;
        poller_step(a->poller);
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
    rc = rc ? rc : loop_fd_add(e, a->loop, &l->poller, poller_fd(a->poller), EPOLLIN, on_poller, &l->poller_ready);
    return rc ? rc : loop_fd_add(e, a->loop, &l->signals, signal_fd, EPOLLIN, on_signals, l);
}

int api_run(struct err *e, struct api *a, int signal_fd, double drain_s, void (*ready)(void *arg), void *arg)
{
    struct run l = {.a = a, .drain_s = drain_s};
    int rc = add_all(e, &l, signal_fd);
    uint64_t looked = 0, now = time_now_ns();
    proc_wake_soon(true);
    while (!rc && is_running(&l, now)) {
        bool was = l.connected;
        proc_alive();
        proc_trim();
        rc = loop_step(e, a->loop, NULL, wait_ms(&l));
        rc = rc ? rc : step(e, &l);
        if (!was && l.connected && ready)
            ready(arg);
        now = time_now_ns();
        if (now - looked > TICK_MS * NS_MS) {
            looked = now;
            check_reachable(&l, now);
        }
    }
    /* Complete responses are still sent. */
    loop_fd_remove(&l.gateway);
    loop_fd_remove(&l.poller);
    loop_fd_remove(&l.signals);
    http_stop(a->http);
    for (uint64_t end = time_now_ns() + NS_S; !rc && l.terms < 2 && http_connections(a->http) && time_now_ns() < end;) {
        rc = loop_step(e, a->loop, NULL, 20);
        rc = rc ? rc : http_step(e, a->http);
    }
    loop_fd_remove(&l.http);
    return rc;
}
