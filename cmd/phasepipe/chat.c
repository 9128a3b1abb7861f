/* phasepipe chat: a conversation over tokenize, prefill and decode. Each turn sends the whole history as one line. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "base/vec.h"
#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "phasepipe chat"

struct chat {
    const char *model, *system, *threads;
    uint64_t n_predict, top_k, seed;
    double temp, top_p;
    bool seed_given, tty;
    struct pipeline pipe;
    struct wire_reader *in;
    json_t *messages;
    uint64_t seq;     /* number of the next turn */
    uint64_t n_ended; /* turns that have ended */
    char *answer;     /* text of the answer of this turn */
    size_t n_answer, cap_answer;
    bool failed; /* a turn failed: determines the exit status */
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int sig)
{
    (void)sig;
    interrupted = 1;
}

static int parse(struct err *e, struct chat *c, int argc, char **argv)
{
    const struct cli_opt opts[] = {
        {.letter = 'm',
         .name = "model",
         .kind = CLI_STR,
         .out = &c->model,
         .arg = "MODEL",
         .help = "GGUF file; default: that of the cache"},
        {.name = "system", .kind = CLI_STR, .out = &c->system, .arg = "TEXT", .help = "system message"},
        {.letter = 'n',
         .name = "max-tokens",
         .alias = "max-completion-tokens",
         .kind = CLI_U64,
         .out = &c->n_predict,
         .arg = "N",
         .lo = 1,
         .hi = UINT32_MAX,
         .help = "maximum tokens of an answer; default 512"},
        {.name = "temp",
         .alias = "temperature",
         .kind = CLI_F64,
         .out = &c->temp,
         .arg = "T",
         .fhi = 10000,
         .help = "temperature; default 0, greedy"},
        {.name = "top-k",
         .kind = CLI_U64,
         .out = &c->top_k,
         .arg = "N",
         .hi = UINT32_MAX,
         .help = "sample from the N best; 0: off"},
        {.name = "top-p",
         .kind = CLI_F64,
         .out = &c->top_p,
         .arg = "P",
         .fhi = 1,
         .help = "sample from the best with this much probability"},
        {.name = "seed",
         .kind = CLI_U64,
         .out = &c->seed,
         .arg = "N",
         .given = &c->seed_given,
         .help = "seed of the sampler; default: random"},
        {.name = "threads",
         .kind = CLI_STR,
         .out = &c->threads,
         .arg = "N",
         .help = "threads of prefill and of decode"},
    };
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[-m MODEL] [--system TEXT] [OPTION ...]",
        .about = "A conversation with the model: each line is a message; /help lists the commands.",
        .opts = opts,
        .n_opt = sizeof opts / sizeof *opts,
    };
    size_t n_arg;
    uint64_t threads;
    int r = cli_parse(e, &prog, argc, argv, &n_arg);
    if (!r && c->threads)
        r = cli_u64(e, "--threads", c->threads, &threads, 1, 1024);
    return r;
}

/* ---- history ---- */

static int add_message(struct err *e, struct chat *c, const char *role, const char *text, size_t n)
{
    char *fixed = NULL;
    size_t n_fixed = 0;
    if (text_utf8_repair(e, &fixed, &n_fixed, text, n))
        return e->code;
    json_t *m = json_pack("{s:s,s:s%}", "role", role, "content", fixed, n_fixed);
    free(fixed);
    return m && !json_array_append_new(c->messages, m) ? 0 : err_nomem(e, "history", n);
}

static int reset(struct err *e, struct chat *c)
{
    json_array_clear(c->messages);
    return c->system ? add_message(e, c, "system", c->system, strlen(c->system)) : 0;
}

/* ---- a turn ---- */

static int send_line(struct err *e, struct chat *c)
{
    json_t *o = json_pack("{s:O,s:I,s:f,s:I,s:f}", "messages", c->messages, "max_tokens", (json_int_t)c->n_predict,
                          "temperature", c->temp, "top_k", (json_int_t)c->top_k, "top_p", c->top_p);
    char seed[24];
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->seed);
    if (o && c->seed_given)
        json_object_set_new(o, "seed", json_string(seed));
    char *line = o ? json_dumps(o, JSON_COMPACT) : NULL;
    json_decref(o);
    if (!line)
        return err_nomem(e, "request", 0);
    size_t n = strlen(line);
    line[n++] = '\n'; /* replaces the NUL: the line is written by its length */
    int r = 0;
    for (size_t done = 0; done < n && !r;) {
        ssize_t w = write(c->pipe.in, line + done, n - done);
        if (w >= 0)
            done += (size_t)w;
        else if (errno != EINTR)
            r = err_set(e, ERR_PROTO, "tokenize has ended");
    }
    free(line);
    return r;
}

/* Reads a frame; NULL after Ctrl-C. */
static int next_frame(struct err *e, struct chat *c, struct wire_frame **f)
{
    struct pollfd p = {.fd = c->pipe.out, .events = POLLIN};
    *f = NULL;
    while (!wire_reader_ready(c->in)) {
        if (interrupted)
            return 0;
        int n = poll(&p, 1, -1);
        if (n < 0 && errno != EINTR)
            return err_sys(e, "poll");
        if (n > 0)
            break;
    }
    if (wire_read(e, c->in, f))
        return e->code;
    return *f ? 0 : err_set(e, ERR_PROTO, "the pipeline ended");
}

static int keep(struct err *e, struct chat *c, struct wire_str s)
{
    int rc = vec_reserve(e, &c->answer, &c->cap_answer, c->n_answer + s.n, 1, "answer");
    if (rc)
        return rc;
    if (s.n)
        memcpy(c->answer + c->n_answer, s.p, s.n);
    c->n_answer += s.n;
    return 0;
}

/* Prints the answer to turn `seq` as it arrives. Frames of an older turn, which was stopped, are ignored.
 * *ok: it ended, or was stopped by Ctrl-C. */
static int show_answer(struct err *e, struct chat *c, bool *ok, uint64_t seq)
{
    c->n_answer = 0;
    *ok = true;
    for (;;) {
        struct wire_frame *f;
        if (next_frame(e, c, &f))
            return e->code;
        if (!f) {
            interrupted = 0;
            fputs(" …\n", stdout);
            fflush(stdout);
            return 0;
        }
        if (f->kind == WIRE_OUT && f->out.seq == seq) {
            if (f->out.text.n)
                fwrite(f->out.text.p, 1, f->out.text.n, stdout);
            if (fflush(stdout))
                return err_sys(e, "stdout");
            if (keep(e, c, f->out.text))
                return e->code;
        }
        if (f->kind == WIRE_ERR) {
            c->n_ended++;
            if (f->error.seq != seq)
                continue;
            cli_warn(PROG, "%.*s%s", (int)f->error.text.n, f->error.text.p,
                     json_array_size(c->messages) > 2 ? " (/reset clears the conversation)" : "");
            *ok = false;
            c->failed = true;
            return 0;
        }
        if (f->kind == WIRE_END) {
            c->n_ended++;
            if (f->end.seq != seq)
                continue;
            if (!c->n_answer || c->answer[c->n_answer - 1] != '\n')
                putchar('\n');
            return fflush(stdout) ? err_sys(e, "stdout") : 0;
        }
    }
}

static int turn(struct err *e, struct chat *c, const char *line, size_t n)
{
    bool ok = false;
    uint64_t seq = c->seq++;
    if (add_message(e, c, "user", line, n) || send_line(e, c) || show_answer(e, c, &ok, seq))
        return e->code;
    if (!ok) /* a message that could not be answered is not part of the conversation */
        return json_array_remove(c->messages, json_array_size(c->messages) - 1) ? err_nomem(e, "history", 0) : 0;
    return add_message(e, c, "assistant", c->answer ? c->answer : "", c->n_answer);
}

/* ---- the conversation ---- */

static const char help[] = "/reset  clear the conversation\n"
                           "/exit   end (so does the end of the input, or Ctrl-C at the prompt)\n"
                           "/help   this\n"
                           "Ctrl-C stops an answer. A line that begins with // is a message that begins with /.\n";

/* *end: the conversation is over. */
static int command(struct err *e, struct chat *c, bool *end, const char *line)
{
    if (!strcmp(line, "/exit") || !strcmp(line, "/quit") || !strcmp(line, "/bye")) {
        *end = true;
        return 0;
    }
    if (!strcmp(line, "/reset"))
        return reset(e, c);
    if (strcmp(line, "/help"))
        printf("no command '%.60s'\n", line);
    fputs(help, stdout);
    return fflush(stdout) ? err_sys(e, "stdout") : 0;
}

static int converse(struct err *e, struct chat *c)
{
    char *line = NULL;
    size_t cap = 0;
    bool end = false;
    int r = 0;
    while (!r && !end) {
        if (c->tty) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        interrupted = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0) {
            if (c->tty)
                putchar('\n');
            break;
        }
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            line[--n] = 0;
        if (n == 0)
            continue;
        if (line[0] == '/' && line[1] != '/')
            r = command(e, c, &end, line);
        else
            r = turn(e, c, line + (line[0] == '/'), (size_t)n - (line[0] == '/'));
    }
    free(line);
    return r;
}

/* Lets the programs end: all requests have been answered, so only their bye frames remain. */
static int drain(struct err *e, struct chat *c)
{
    struct wire_frame *f;
    close(c->pipe.in);
    c->pipe.in = -1;
    do
        if (wire_read(e, c->in, &f))
            return e->code;
    while (f);
    return 0;
}

static int run(struct err *e, struct chat *c)
{
    struct sigaction quiet = {.sa_handler = SIG_IGN}, stop = {.sa_handler = on_interrupt};
    sigaction(SIGPIPE, &quiet, NULL);
    sigaction(SIGINT, &stop, NULL);
    c->tty = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    c->messages = json_array();
    if (!c->messages)
        return err_nomem(e, "history", 0);
    int r = pipeline_start(e, &c->pipe, c->model, c->threads);
    if (!r && !(r = wire_reader_new(e, &c->in, c->pipe.out, "decode")) && !(r = reset(e, c)))
        r = converse(e, c);
    bool stopped = c->n_ended < c->seq;
    if (!r && !stopped)
        r = drain(e, c);
    /* The error of a program that failed is more useful than that of its closed pipe. */
    struct err why = {0};
    if (pipeline_end(&why, &c->pipe, stopped && !r) && r != ERR_SYS) {
        *e = why;
        r = why.code;
    }
    if (!r && c->failed)
        r = err_set(e, ERR_NO, "some messages were not answered");
    wire_reader_free(c->in);
    json_decref(c->messages);
    free(c->answer);
    return r;
}

int chat(int argc, char **argv)
{
    struct err e = {0};
    struct chat c = {.n_predict = 512, .top_p = 1};
    int r = parse(&e, &c, argc, argv);
    if (r == CLI_DONE)
        return 0;
    if (!r)
        r = run(&e, &c);
    if (!r)
        r = cli_close_stdout(&e);
    return r ? cli_fail(PROG, &e) : 0;
}
