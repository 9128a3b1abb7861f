/* The child reads a state from a pipe and writes its decisions to another, a line each. If it does not write them in
 * time the program ends with an error. It inherits standard error. */
#include "sched/exec.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "base/vec.h"

#define LINE_BYTES_MAX ((size_t)16 << 20)
#define READ_BYTES ((size_t)65536)
#define START_MS 100 /* a command that ends within this time is refused */

extern char **environ;

static const struct sched_setting settings[] = {
    {"state_requests", 64}, /* waiting requests of each kind in a state */
    {"answer_ms", 10000},   /* limit for a line of decisions */
};

struct child {
    pid_t pid;
    int in, out; /* its standard input, its standard output */
    char *line;
    size_t n, size;
};

/* ---- the child ---- */

/* A command that cannot run ends at once. ERR_USAGE, so that no supervisor starts it again. */
static int check_start(struct err *e, struct child *c, const char *command)
{
    struct pollfd p = {.fd = c->out, .events = POLLIN};
    int status = 0;
    if (poll(&p, 1, START_MS) <= 0 || !(p.revents & POLLHUP) || (p.revents & POLLIN))
        return 0;
    close(c->in);
    close(c->out);
    while (waitpid(c->pid, &status, 0) < 0 && errno == EINTR)
        ;
    return err_set(
        e, ERR_USAGE, "the policy '%.200s' ended at its start (%s %d): give a command that runs as long as sched-exec",
        command, WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

static int open_child(struct err *e, void *state, const void *arg)
{
    struct child *c = state;
    int in[2], out[2];
    char *argv[] = {"sh", "-c", (char *)(uintptr_t)arg, NULL};
    if (pipe2(in, O_CLOEXEC))
        return err_sys(e, "a pipe");
    if (pipe2(out, O_CLOEXEC)) {
        close(in[0]);
        close(in[1]);
        return err_sys(e, "a pipe");
    }
    posix_spawn_file_actions_t fa;
    posix_spawn_file_actions_init(&fa);
    posix_spawn_file_actions_adddup2(&fa, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&fa, out[1], STDOUT_FILENO);
    errno = posix_spawn(&c->pid, "/bin/sh", &fa, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&fa);
    close(in[0]);
    close(out[1]);
    c->in = in[1];
    c->out = out[0];
    if (errno) {
        close(c->in);
        close(c->out);
        return err_sys(e, "the policy: /bin/sh");
    }
    return check_start(e, c, arg);
}

static void close_child(void *state)
{
    struct child *c = state;
    close(c->in);
    close(c->out);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    free(c->line);
}

static int child_ended(struct err *e)
{
    return err_set(e, ERR_SYS, "the policy has ended, or closed its output, without an answer");
}

static int write_all(struct err *e, struct child *c, const char *p, size_t n)
{
    while (n) {
        ssize_t put = write(c->in, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno == EPIPE ? child_ended(e) : err_sys(e, "the policy: write");
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static int read_more(struct err *e, struct child *c, int left_ms, int answer_ms)
{
    struct pollfd p = {.fd = c->out, .events = POLLIN};
    int n_ready = poll(&p, 1, left_ms);
    if (!n_ready)
        return err_set(e, ERR_SYS, "the policy sent no decisions within %d ms (setting answer_ms)", answer_ms);
    if (n_ready < 0 && errno != EINTR)
        return err_sys(e, "the policy: poll");
    if (n_ready < 0)
        return 0;
    if (c->n >= LINE_BYTES_MAX)
        return err_set(e, ERR_SYS, "the policy: a line of more than %zu bytes", LINE_BYTES_MAX);
    int rc = vec_reserve(e, &c->line, &c->size, c->n + READ_BYTES, 1, "a line of the policy");
    if (rc)
        return rc;
    ssize_t n = read(c->out, c->line + c->n, c->size - c->n);
    if (n < 0 && errno != EINTR)
        return err_sys(e, "the policy: read");
    if (!n)
        return child_ended(e);
    c->n += n > 0 ? (size_t)n : 0;
    return 0;
}

/* Parses the next line; bytes after it stay in the buffer. */
static int read_line(struct err *e, struct child *c, json_t **out, int answer_ms)
{
    char *end;
    uint64_t until = time_now_ns() + (uint64_t)answer_ms * NS_MS;
    while (!c->n || !(end = memchr(c->line, '\n', c->n))) {
        int rc = read_more(e, c, time_left_ms(until, time_now_ns()), answer_ms);
        if (rc)
            return rc;
    }
    json_error_t at;
    size_t n = (size_t)(end - c->line) + 1;
    *out = json_loadb(c->line, n - 1, JSON_REJECT_DUPLICATES, &at);
    if (!*out)
        err_set(e, ERR_PROTO, "the line of the policy is not JSON: column %d: %.200s", at.column, at.text);
    c->n -= n;
    memmove(c->line, c->line + n, c->n);
    return *out ? 0 : ERR_PROTO;
}

/* ---- the state ---- */

static json_t *worker_json(const struct sched_worker *w)
{
    return json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:i, s:I, s:f, s:i}", "worker", w->name,
                     "role", sched_role_names[w->role], "draining", w->draining, "seqs", (int)w->seqs, "seqs_all",
                     (int)w->seqs_all, "tokens", (int)w->tokens, "blocks", (json_int_t)w->blocks, "blocks_all",
                     (json_int_t)w->blocks_all, "prefill", (int)w->n_prefill, "decode", (int)w->n_decode, "whole",
                     (int)w->n_whole, "context", (json_int_t)w->context, "prefill_left_ms",
                     (double)w->prefill_left_ns / 1e6, "store", w->store);
}

static json_t *request_json(const struct sched *s, const struct sched_request *r)
{
    uint32_t hits[SCHED_STORES_MAX], n = sched_n_store(s);
    sched_hits(s, r, hits, n);
    json_t *h = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(h, json_integer(hits[i]));
    return json_pack("{s:I, s:s, s:i, s:I, s:i, s:i, s:f, s:f, s:i, s:i, s:o}", "id", (json_int_t)r->number, "tenant",
                     r->tenant, "n_prompt", (int)r->n_prompt, "max_tokens", (json_int_t)r->max_tokens, "n_out",
                     (int)r->n_out, "priority", (int)r->priority, "waited_ms",
                     (double)(sched_now_ns(s) - r->since_ns) / 1e6, "slo_ttft_ms", (double)r->slo_ttft_ns / 1e6,
                     "retries", (int)r->retries, "kv_store", r->kv_store, "hits", h);
}

static json_t *waiting_json(const struct sched *s, bool ready, double n_max)
{
    json_t *a = json_array();
    for (const struct sched_request *r = NULL; n_max-- > 0 && (r = sched_waiting(s, ready, r));)
        json_array_append_new(a, request_json(s, r));
    return a;
}

static int send_state(struct err *e, struct child *c, const struct sched *s)
{
    json_t *workers = json_array();
    double n_max = sched_get(s, "state_requests");
    for (uint32_t i = 0; i < sched_n_worker(s); i++)
        json_array_append_new(workers, worker_json(sched_worker_at(s, i)));
    json_t *all = json_pack("{s:f, s:o, s:o, s:o, s:I}", "at_ms", (double)sched_now_ns(s) / 1e6, "workers", workers,
                            "queued", waiting_json(s, false, n_max), "ready", waiting_json(s, true, n_max), "n_queued",
                            (json_int_t)sched_n_waiting(s, false));
    char *line = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    if (!line)
        return err_nomem(e, "a line for the policy", 0);
    int rc = write_all(e, c, line, strlen(line));
    rc = rc ? rc : write_all(e, c, "\n", 1);
    free(line);
    return rc;
}

/* ---- the decisions ---- */

static const struct sched_worker *worker_named(const struct sched *s, const json_t *name)
{
    const char *text = json_string_value(name);
    for (uint32_t i = 0; text && i < sched_n_worker(s); i++)
        if (!strcmp(sched_worker_at(s, i)->name, text))
            return sched_worker_at(s, i);
    return NULL;
}

/* A request of the state that the child has read. */
static const struct sched_request *waiting_numbered(const struct sched *s, const json_t *id)
{
    double n_max = sched_get(s, "state_requests");
    for (int ready = 0; ready < 2; ready++) {
        double left = 2 * n_max; /* requests placed by this line have left the list */
        for (const struct sched_request *r = NULL; left-- > 0 && (r = sched_waiting(s, ready, r));)
            if ((json_int_t)r->number == json_integer_value(id))
                return r;
    }
    return NULL;
}

static const struct sched_request *running_numbered(const struct sched *s, const json_t *id)
{
    for (uint32_t i = 0; i < sched_n_worker(s); i++)
        for (const struct sched_request *r = NULL; (r = sched_running(sched_worker_at(s, i), r));)
            if ((json_int_t)r->number == json_integer_value(id))
                return r;
    return NULL;
}

static int index_of(const char *const *names, int from, int n, const json_t *name)
{
    const char *text = json_string_value(name);
    for (int i = from; text && i < n; i++)
        if (!strcmp(names[i], text))
            return i;
    return -1;
}

static void place(struct sched *s, const json_t *d)
{
    const struct sched_request *r = waiting_numbered(s, json_object_get(d, "id"));
    const struct sched_worker *w = worker_named(s, json_object_get(d, "worker"));
    int phase = index_of(sched_phase_names, 0, 3, json_object_get(d, "phase"));
    json_int_t chunk = json_integer_value(json_object_get(d, "chunk"));
    if (r && w)
        sched_place(s, r, w,
                    phase >= 0     ? (enum sched_phase)phase
                    : r->prefilled ? SCHED_ON_DECODE
                                   : SCHED_ON_PREFILL,
                    chunk > 0 && chunk < UINT32_MAX ? (uint32_t)chunk : 0);
}

static void refuse(struct sched *s, const json_t *d)
{
    const struct sched_request *r = waiting_numbered(s, json_object_get(d, "id"));
    const char *text = json_string_value(json_object_get(d, "text"));
    double retry_ms = json_number_value(json_object_get(d, "retry_ms"));
    if (r)
        sched_refuse(s, r, json_is_true(json_object_get(d, "never")),
                     retry_ms > 0 && retry_ms < 1e9 ? (uint64_t)(retry_ms * 1e6) : 0, text ? text : "not now");
}

static void apply(struct sched *s, const json_t *answer)
{
    size_t i;
    json_t *d;
    json_array_foreach(json_object_get(answer, "place"), i, d)
    {
        place(s, d);
    }
    json_array_foreach(json_object_get(answer, "refuse"), i, d)
    {
        refuse(s, d);
    }
    json_array_foreach(json_object_get(answer, "preempt"), i, d)
    {
        const struct sched_request *r = running_numbered(s, d);
        if (r)
            sched_preempt(s, r);
    }
    json_array_foreach(json_object_get(answer, "role"), i, d)
    {
        const struct sched_worker *w = worker_named(s, json_object_get(d, "worker"));
        int role = index_of(sched_role_names, 1, 4, json_object_get(d, "role"));
        if (w && role > 0)
            sched_set_role(s, w, (enum sched_role)role);
    }
}

static int decide(struct err *e, void *state, struct sched *s)
{
    struct child *c = state;
    json_t *answer;
    if (!sched_n_waiting(s, false) && !sched_n_waiting(s, true))
        return 0;
    int rc = send_state(e, c, s);
    rc = rc ? rc : read_line(e, c, &answer, (int)sched_get(s, "answer_ms"));
    if (rc)
        return rc == ERR_PROTO ? err_prefix(e, "sched-exec") : rc;
    if (!json_is_object(answer))
        rc = err_set(e, ERR_PROTO, "the line of the policy: must be a JSON object");
    else
        apply(s, answer);
    json_decref(answer);
    return rc;
}

const struct sched_policy sched_policy_exec = {.name = "exec",
                                               .settings = settings,
                                               .n_setting = sizeof settings / sizeof *settings,
                                               .n_state = sizeof(struct child),
                                               .open = open_child,
                                               .decide = decide,
                                               .close = close_child};
