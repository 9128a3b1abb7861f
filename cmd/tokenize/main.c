/* tokenize: converts text, JSON lines or chat messages to `tok` frames, the first form of every request. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/time.h"
#include "cmd/tokenize/tokenize.h"
#include "model/model.h"
#include "proc/proc.h"
#include "proc/sandbox.h"
#include "request/flags.h"
#include "request/lines.h"

struct flags {
    const char *model, *prompt, *file, *listen, *peer_tls;
    struct session_security security;
    bool raw, lines, jsonl, ids, back, prompt_given, ready_given;
    uint64_t ready_fd;
    struct ask_flags ask;
};

#define OPT(l, nm, k, o, a, ...)                                                                                       \
    {                                                                                                                  \
        .letter = l, .name = nm, .kind = k, .out = o, .arg = a, .help = __VA_ARGS__                                    \
    }

static int parse(struct err *e, struct flags *f, int argc, char **argv)
{
    const struct cli_opt own[] = {
        OPT('m', "model", CLI_STR, &f->model, "MODEL", "GGUF file with the vocabulary; default: that of the cache"),
        OPT('p', "prompt", CLI_STR, &f->prompt, "TEXT", "the prompt", .given = &f->prompt_given),
        OPT(0, "raw", CLI_FLAG, &f->raw, NULL, "complete the text as it is, without the chat template"),
        OPT(0, "lines", CLI_FLAG, &f->lines, NULL, "each line of the input is a prompt"),
        OPT(0, "jsonl", CLI_FLAG, &f->jsonl, NULL, "each line of the input is a request in JSON"),
        OPT(0, "ids", CLI_FLAG, &f->ids, NULL, "print ids, one line a prompt, instead of frames"),
        OPT('d', "decode", CLI_FLAG, &f->back, NULL, "convert ids or frames to text"),
        OPT(0, "listen", CLI_STR, &f->listen, "URL", "serve gateways at ipc://PATH or tls+tcp://HOST:PORT"),
        OPT(0, "peer-tls", CLI_STR, &f->peer_tls, "DIR", "credentials for tls+tcp://: ca.pem and tokenize.pem"),
        OPT(0, "peer-plaintext", CLI_FLAG, &f->security.plaintext, NULL,
            "permit tcp:// beyond this host: neither encrypted nor authenticated"),
        OPT(0, "ready-fd", CLI_U64, &f->ready_fd, "N", "descriptor that gets a line when ready", .lo = 3, .hi = 1 << 20,
            .given = &f->ready_given),
    };
    struct cli_opt opts[sizeof own / sizeof *own + ASK_FLAGS_N];
    memcpy(opts, own, sizeof own);
    ask_flags_options(opts + sizeof own / sizeof *own, &f->ask);
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[-m MODEL] [-p TEXT | FILE | --listen URL] [--raw] [--lines | --jsonl] [OPTION ...]",
        .about = "Turns text into token frames for prefill and decode.",
        .opts = opts,
        .n_opt = sizeof opts / sizeof *opts,
        .n_arg_max = 1,
    };
    size_t n_arg;
    int r = cli_parse(e, &prog, argc, argv, &n_arg);
    if (!r && n_arg)
        f->file = argv[1];
    return r;
}

/* Refuses contradictory flags: none overrides another. */
static int check(struct err *e, const struct flags *f)
{
    const char *text = NULL;
    if (f->lines && f->jsonl)
        text = "--lines and --jsonl exclude each other";
    else if (f->prompt_given && f->file)
        text = "-p and FILE exclude each other";
    else if (f->prompt_given && (f->lines || f->jsonl || f->back))
        text = "-p gives one prompt; --lines, --jsonl and -d read a file or standard input";
    else if (f->raw && f->jsonl)
        text = "--raw is for text; in JSON lines, prompt is completed as it stands and messages are not";
    else if (f->raw && f->ask.system)
        text = "--system needs the chat template, which --raw leaves out";
    else if (f->back && (f->lines || f->jsonl || f->raw))
        text = "-d detects ids or frames itself; it can be combined with -m and FILE only";
    else if (f->listen && (f->prompt_given || f->file || f->raw || f->lines || f->jsonl || f->ids || f->back))
        text = "--listen serves requests in JSON; it can be combined with -m and the defaults of requests";
    else if ((f->ready_given || f->peer_tls) && !f->listen)
        text = "--ready-fd and --peer-tls are for --listen";
    return text ? err_set(e, ERR_USAGE, "%s", text) : ask_flags_check(e, &f->ask);
}

/* Checks ids in flags before the first request: a wrong flag is a usage error, not a failed request. */
static int check_flag_ids(struct err *e, const struct ask *a, int64_t n_row)
{
    if (ask_check_ids(e, a, n_row)) {
        e->code = ERR_USAGE;
        return err_prefix(e, "--stop-id, --logit-bias");
    }
    return 0;
}

/* A prompt of one text: completed as it is, or a user message. */
static int one(struct err *e, struct tokenize *t, const struct ask *base, bool raw, const char *text, size_t n,
               const char *where, uint64_t born_ns)
{
    struct text_message *m = calloc(1, sizeof *m);
    if (!m)
        return err_nomem(e, "message", sizeof *m);
    *m = (struct text_message){"user", text, n};
    struct ask a = *base;
    a.kind = raw ? ASK_TEXT : ASK_MESSAGES;
    a.text = text;
    a.n_text = n;
    a.messages = m;
    a.n_message = 1;
    int r = emit(e, t, &a, where, born_ns);
    free(a.messages);
    return r;
}

static int whole_file(struct err *e, struct tokenize *t, const struct ask *base, const struct flags *f, struct lines *l)
{
    char *text = NULL;
    size_t n = 0;
    if (lines_all(e, l, &text, &n))
        return e->code;
    if (!f->raw) /* with --raw the final newline belongs to the prompt */
        n = lines_message(text, n);
    int r = one(e, t, base, f->raw, text ? text : "", n, "", t->start_ns);
    free(text);
    return r;
}

static int each_line(struct err *e, struct tokenize *t, const struct ask *base, const struct flags *f, struct lines *l)
{
    for (;;) {
        const char *line;
        size_t n = 0;
        char where[48];
        int r = f->jsonl ? lines_next_json(e, l, &line, &n) : lines_next(e, l, &line, &n);
        if (r || !line)
            return r;
        snprintf(where, sizeof where, "line %llu: ", (unsigned long long)l->number);
        if (f->jsonl) {
            r = emit_json(e, t, base, line, n, where);
        } else if (n > WIRE_STR_BYTES_MAX) {
            struct err why;
            err_set(&why, ERR_NO, "more than %u bytes, the limit of a prompt", WIRE_STR_BYTES_MAX);
            r = emit_error(e, t, base, where, &why);
        } else {
            r = one(e, t, base, f->raw, line, f->raw ? n : lines_without_return(line, n), where, time_now_ns());
        }
        if (r)
            return r;
    }
}

static int requests(struct err *e, struct tokenize *t, const struct ask *base, const struct flags *f, struct lines *l)
{
    if (emit_hello(e, t))
        return e->code;
    int r;
    if (f->prompt_given)
        r = one(e, t, base, f->raw, f->prompt, strlen(f->prompt), "", t->start_ns);
    else if (f->lines || f->jsonl)
        r = each_line(e, t, base, f, l);
    else
        r = whole_file(e, t, base, f, l);
    return r ? r : emit_bye(e, t);
}

static int put(struct err *e, void *arg, const struct wire_frame *f)
{
    return wire_write(e, arg, f);
}

static int run(struct err *e, struct tokenize *t, const struct flags *f, struct lines *l)
{
    struct ask base = {0};
    struct wire_writer *out = NULL;
    if (f->back)
        return back(e, t->text, t->config.vocab, l->fd, l->name);
    int r = ask_flags_defaults(e, &base, &f->ask);
    if (!r)
        r = check_flag_ids(e, &base, t->config.vocab);
    if (!r && f->listen) {
        r = service(e, t, &base, f->listen, &f->security, f->ready_given ? (int)f->ready_fd : -1);
        ask_free(&base);
        return r;
    }
    if (!r && (!(t->arena = wire_arena_new()) || !(t->logged_fields = json_object())))
        r = err_nomem(e, "start", 0);
    if (!r && !f->ids) {
        t->put = put;
        r = wire_writer_new(e, &out, STDOUT_FILENO, "stdout");
        t->put_arg = out;
    }
    if (!r)
        r = requests(e, t, &base, f, l);
    if (!r && f->ids && t->n_error)
        r = err_set(e, ERR_NO, "%llu of %llu prompts were refused", (unsigned long long)t->n_error,
                    (unsigned long long)(t->n_ok + t->n_error));
    ask_free(&base);
    wire_writer_free(out);
    wire_arena_free(t->arena);
    json_decref(t->logged_fields);
    return r;
}

static int open_vocabulary(struct err *e, struct tokenize *t, struct text **text, struct gguf **g,
                           const struct flags *f, char *path, size_t n_path)
{
    if (!f->model && model_default_path(e, path, n_path))
        return e->code;
    if (gguf_open(e, g, f->model ? f->model : path) || model_config_read(e, &t->config, *g) || text_open(e, text, *g))
        return e->code;
    t->text = *text;
    t->system = f->ask.system;
    t->load_ns = time_now_ns() - t->start_ns;
    return 0;
}

/* Keeps the model's header and the directory of its socket; its input is open. */
static int enter_sandbox(struct err *e, const struct flags *f)
{
    struct sandbox s;
    sandbox_begin(&s);
    model_allow(&s, f->model);
    sandbox_socket(&s, f->listen);
    return sandbox_enter(e, &s);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct tokenize t = {.start_ns = time_now_ns()};
    struct flags f = {0};
    struct gguf *g = NULL;
    struct text *text = NULL;
    struct lines l = {.fd = STDIN_FILENO, .name = "stdin"};
    char path[4096];
    ask_flags_init(&f.ask);
    int r = parse(&e, &f, argc, argv);
    if (r == CLI_DONE)
        return 0;
    bool frames = !f.ids && !f.back && !f.listen;
    if (!r && !(r = check(&e, &f)) && !(r = frames ? cli_no_tty(&e, STDOUT_FILENO, "frames") : 0) &&
        !(r = proc_signals(&e))) {
        if (f.file && strcmp(f.file, "-")) {
            l.name = f.file;
            l.fd = open(f.file, O_RDONLY | O_CLOEXEC);
            r = l.fd < 0 ? err_sys(&e, "open %s", f.file) : 0;
        }
        if (f.ids || f.back)
            proc_text_output();
        proc_wake_soon(f.listen != NULL);
        if (!r && f.peer_tls)
            r = peer_tls_open(&e, &f.security.tls, f.peer_tls, "tokenize");
        r = r ? r : enter_sandbox(&e, &f);
        if (!r && !(r = open_vocabulary(&e, &t, &text, &g, &f, path, sizeof path)))
            r = run(&e, &t, &f, &l);
    }
    struct err closing = {0};
    if (!frames && cli_close_stdout(&closing) && !r) {
        e = closing;
        r = e.code;
    }
    peer_tls_close(f.security.tls);
    lines_free(&l);
    text_free(text);
    gguf_free(g);
    ask_flags_free(&f.ask);
    return r ? cli_fail(PROG, &e) : 0;
}
