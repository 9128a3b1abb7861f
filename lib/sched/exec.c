/* The child has a pipe each way and answers every line it is sent; what it does not answer within its time is a fault
 * that ends the program, in words. Its own standard error is the program's. */
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

extern char **environ;

static const struct sched_default knobs[] = {
    {"window", 64},       /* waiting requests of each kind that the child is shown */
    {"answer_ms", 10000}, /* the longest it may think */
};

struct child {
    pid_t pid;
    int in, out; /* its standard input, its standard output */
    char *line;
    size_t n, size;
};

/* ---- the child ---- */

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
    if (!errno)
        return 0;
    close(c->in);
    close(c->out);
    return err_sys(e, "the policy: /bin/sh");
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

static int gone(struct err *e)
{
    return err_set(e, ERR_SYS, "the policy has ended, or closed its output, without an answer");
}

static int say(struct err *e, struct child *c, const char *p, size_t n)
{
    while (n) {
        ssize_t put = write(c->in, p, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return errno == EPIPE ? gone(e) : err_sys(e, "the policy: write");
        p += put;
        n -= (size_t)put;
    }
    return 0;
}

static int more(struct err *e, struct child *c, int left_ms)
{
    struct pollfd p = {.fd = c->out, .events = POLLIN};
    int got = poll(&p, 1, left_ms);
    if (!got)
        return err_set(e, ERR_SYS, "the policy has not answered in time");
    if (got < 0 && errno != EINTR)
        return err_sys(e, "the policy: poll");
    if (got < 0)
        return 0;
    if (c->n >= LINE_BYTES_MAX)
        return err_set(e, ERR_SYS, "the policy: a line longer than %zu bytes", LINE_BYTES_MAX);
    int rc = vec_reserve(e, &c->line, &c->size, c->n + READ_BYTES, 1, "a line of the policy");
    if (rc)
        return rc;
    ssize_t n = read(c->out, c->line + c->n, c->size - c->n);
    if (n < 0 && errno != EINTR)
        return err_sys(e, "the policy: read");
    if (!n)
        return gone(e);
    c->n += n > 0 ? (size_t)n : 0;
    return 0;
}

/* Its next line, as JSON; what comes behind it stays. */
static int hear(struct err *e, struct child *c, json_t **out, int answer_ms)
{
    char *end;
    uint64_t until = time_now_ns() + (uint64_t)answer_ms * NS_MS;
    while (!c->n || !(end = memchr(c->line, '\n', c->n))) {
        int rc = more(e, c, time_left_ms(until, time_now_ns()));
        if (rc)
            return rc;
    }
    json_error_t at;
    size_t n = (size_t)(end - c->line) + 1;
    *out = json_loadb(c->line, n - 1, JSON_REJECT_DUPLICATES, &at);
    if (!*out)
        err_set(e, ERR_PROTO, "the policy's answer: column %d: %.200s", at.column, at.text);
    c->n -= n;
    memmove(c->line, c->line + n, c->n);
    return *out ? 0 : ERR_PROTO;
}

/* ---- what it is shown ---- */

static json_t *worker_json(const struct sched_worker *w)
{
    return json_pack("{s:s, s:s, s:b, s:i, s:i, s:i, s:I, s:I, s:i, s:i, s:i, s:I, s:f, s:i}", "worker", w->name,
                     "role", sched_role_names[w->role], "draining", w->draining, "seqs", (int)w->seqs, "seqs_all",
                     (int)w->seqs_all, "tokens", (int)w->tokens, "blocks", (json_int_t)w->blocks, "blocks_all",
                     (json_int_t)w->blocks_all, "prefill", (int)w->n_prefill, "decode", (int)w->n_decode, "whole",
                     (int)w->n_whole, "context", (json_int_t)w->context, "prefill_left_ms",
                     (double)w->prefill_left_ns / 1e6, "store", w->store);
}

static json_t *job_json(const struct sched_view *v, const struct sched_job *j)
{
    uint32_t hits[SCHED_STORES_MAX], n = sched_n_store(v);
    sched_hits(v, j, hits, n);
    json_t *h = json_array();
    for (uint32_t i = 0; i < n; i++)
        json_array_append_new(h, json_integer(hits[i]));
    return json_pack("{s:I, s:i, s:I, s:i, s:i, s:f, s:f, s:i, s:i, s:o}", "id", (json_int_t)j->number, "n_prompt",
                     (int)j->n_prompt, "max_tokens", (json_int_t)j->max_tokens, "n_out", (int)j->n_out, "priority",
                     (int)j->priority, "waited_ms", (double)(sched_view_now(v) - j->since_ns) / 1e6, "slo_ttft_ms",
                     (double)j->slo_ttft_ns / 1e6, "retries", (int)j->retries, "kv_store", j->kv_store, "hits", h);
}

static json_t *waiting_json(const struct sched_view *v, bool ready, double window)
{
    json_t *a = json_array();
    for (const struct sched_job *j = NULL; window-- > 0 && (j = sched_waiting(v, ready, j));)
        json_array_append_new(a, job_json(v, j));
    return a;
}

static int show(struct err *e, struct child *c, const struct sched_view *v)
{
    json_t *workers = json_array();
    double window = sched_view_knob(v, "window");
    for (uint32_t i = 0; i < sched_n_worker(v); i++)
        json_array_append_new(workers, worker_json(sched_worker_at(v, i)));
    json_t *all = json_pack("{s:f, s:o, s:o, s:o, s:I}", "at_ms", (double)sched_view_now(v) / 1e6, "workers", workers,
                            "queued", waiting_json(v, false, window), "ready", waiting_json(v, true, window),
                            "n_queued", (json_int_t)sched_n_waiting(v, false));
    char *line = all ? json_dumps(all, JSON_COMPACT) : NULL;
    json_decref(all);
    if (!line)
        return err_nomem(e, "a line for the policy", 0);
    int rc = say(e, c, line, strlen(line));
    rc = rc ? rc : say(e, c, "\n", 1);
    free(line);
    return rc;
}

/* ---- what it decides ---- */

static const struct sched_worker *worker_named(const struct sched_view *v, const json_t *name)
{
    const char *s = json_string_value(name);
    for (uint32_t i = 0; s && i < sched_n_worker(v); i++)
        if (!strcmp(sched_worker_at(v, i)->name, s))
            return sched_worker_at(v, i);
    return NULL;
}

/* Of those it was shown. */
static const struct sched_job *job_numbered(const struct sched_view *v, const json_t *id)
{
    double window = sched_view_knob(v, "window");
    for (int ready = 0; ready < 2; ready++) {
        double left = 2 * window; /* those placed before it in this answer have left the list */
        for (const struct sched_job *j = NULL; left-- > 0 && (j = sched_waiting(v, ready, j));)
            if ((json_int_t)j->number == json_integer_value(id))
                return j;
    }
    return NULL;
}

static const struct sched_job *running_numbered(const struct sched_view *v, const json_t *id)
{
    for (uint32_t i = 0; i < sched_n_worker(v); i++)
        for (const struct sched_job *j = NULL; (j = sched_running(v, sched_worker_at(v, i), j));)
            if ((json_int_t)j->number == json_integer_value(id))
                return j;
    return NULL;
}

static int index_of(const char *const *names, int from, int n, const json_t *j)
{
    const char *s = json_string_value(j);
    for (int i = from; s && i < n; i++)
        if (!strcmp(names[i], s))
            return i;
    return -1;
}

static void place(struct sched_view *v, const json_t *d)
{
    const struct sched_job *j = job_numbered(v, json_object_get(d, "id"));
    const struct sched_worker *w = worker_named(v, json_object_get(d, "worker"));
    int phase = index_of(sched_phase_names, 0, 3, json_object_get(d, "phase"));
    json_int_t chunk = json_integer_value(json_object_get(d, "chunk"));
    if (j && w)
        sched_place(v, j, w,
                    phase >= 0     ? (enum sched_phase)phase
                    : j->prefilled ? SCHED_ON_DECODE
                                   : SCHED_ON_PREFILL,
                    chunk > 0 && chunk < UINT32_MAX ? (uint32_t)chunk : 0);
}

static void refuse(struct sched_view *v, const json_t *d)
{
    const struct sched_job *j = job_numbered(v, json_object_get(d, "id"));
    const char *text = json_string_value(json_object_get(d, "text"));
    double retry_ms = json_number_value(json_object_get(d, "retry_ms"));
    if (j)
        sched_refuse(v, j, json_is_true(json_object_get(d, "never")),
                     retry_ms > 0 && retry_ms < 1e9 ? (uint64_t)(retry_ms * 1e6) : 0, text ? text : "not now");
}

static void act(struct sched_view *v, const json_t *answer)
{
    size_t i;
    json_t *d;
    json_array_foreach(json_object_get(answer, "place"), i, d)
    {
        place(v, d);
    }
    json_array_foreach(json_object_get(answer, "refuse"), i, d)
    {
        refuse(v, d);
    }
    json_array_foreach(json_object_get(answer, "preempt"), i, d)
    {
        const struct sched_job *j = running_numbered(v, d);
        if (j)
            sched_preempt(v, j);
    }
    json_array_foreach(json_object_get(answer, "role"), i, d)
    {
        const struct sched_worker *w = worker_named(v, json_object_get(d, "worker"));
        int role = index_of(sched_role_names, 1, 4, json_object_get(d, "role"));
        if (w && role > 0)
            sched_set_role(v, w, (enum sched_role)role);
    }
}

static int decide(struct err *e, void *state, struct sched_view *v)
{
    struct child *c = state;
    json_t *answer;
    if (!sched_n_waiting(v, false) && !sched_n_waiting(v, true))
        return 0;
    int rc = show(e, c, v);
    rc = rc ? rc : hear(e, c, &answer, (int)sched_view_knob(v, "answer_ms"));
    if (rc)
        return rc == ERR_PROTO ? err_prefix(e, "sched-exec") : rc;
    if (!json_is_object(answer))
        rc = err_set(e, ERR_PROTO, "the policy's answer: an object should be here");
    else
        act(v, answer);
    json_decref(answer);
    return rc;
}

const struct sched_policy sched_policy_exec = {.name = "exec",
                                               .knobs = knobs,
                                               .n_knob = sizeof knobs / sizeof *knobs,
                                               .n_state = sizeof(struct child),
                                               .open = open_child,
                                               .decide = decide,
                                               .close = close_child};
