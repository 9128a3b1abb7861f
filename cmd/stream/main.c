/* stream: the answers of decode as text that comes, or as JSON lines. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/stream/stream.h"
#include "model/model.h"
#include "proc/proc.h"

struct stream {
    const char *model; /* NULL: the default one */
    struct view view;
    struct order *order;
    struct gguf *gguf; /* opened when the first log-probability comes */
    struct text *vocab;
    uint8_t vocab_fp[32];
    bool has_fp;
    uint64_t n_error;
};

/* Only log-probabilities need the vocabulary, to spell their tokens. */
static int open_vocab(struct err *e, struct stream *s)
{
    char path[4096];
    if (s->vocab)
        return 0;
    if (!s->model && model_default_path(e, path, sizeof path))
        return e->code;
    if (gguf_open(e, &s->gguf, s->model ? s->model : path) || text_open(e, &s->vocab, s->gguf))
        return e->code;
    if (s->has_fp && memcmp(s->vocab_fp, text_fingerprint(s->vocab), 32))
        return err_set(e, ERR_PROTO, "the vocabulary of %s is not that of the stream: name the model with -m",
                       s->model ? s->model : path);
    return 0;
}

static int take(struct err *e, struct stream *s, const struct wire_frame *f)
{
    switch (f->kind) {
    case WIRE_HELLO:
        s->has_fp = f->hello.has_vocab && f->hello.vocab_fp.n == 32;
        if (s->has_fp)
            memcpy(s->vocab_fp, f->hello.vocab_fp.p, 32);
        return 0;
    case WIRE_OUT:
        if (f->out.n_lp && open_vocab(e, s))
            return e->code;
        return order_out(e, s->order, &f->out, s->vocab);
    case WIRE_END:
        return order_end(e, s->order, &f->end);
    case WIRE_ERR:
        s->n_error++;
        order_cut(s->order);
        cli_warn(PROG, "request %.*s: %.*s", (int)f->error.id.n, f->error.id.p, (int)f->error.text.n, f->error.text.p);
        return order_error(e, s->order, &f->error);
    case WIRE_BYE:
        return order_bye(e, s->order);
    default:
        return err_set(e, ERR_PROTO, "a frame of kind %s: stream reads the answers of decode", wire_kind_name(f->kind));
    }
}

static int run(struct err *e, struct stream *s)
{
    struct wire_reader *in = NULL;
    struct wire_frame *f = NULL;
    int r = wire_reader_new(e, &in, STDIN_FILENO, "stdin");
    if (!r)
        r = order_new(e, &s->order, &s->view);
    while (!r && !(r = wire_read(e, in, &f)) && f)
        r = take(e, s, f);
    if (!r && !wire_reader_seen_hello(in))
        r = err_set(e, ERR_PROTO, "stdin: empty, not even a hello: the stage before failed");
    if (s->order)
        order_cut(s->order);
    if (!r && s->n_error)
        r = err_set(e, ERR_NO, "%llu %s failed", (unsigned long long)s->n_error,
                    s->n_error == 1 ? "request" : "requests");
    wire_reader_free(in);
    return r;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct stream s = {0};
    bool stats = false;
    size_t n_arg;
    const struct cli_opt opts[] = {
        {.letter = 'm',
         .name = "model",
         .kind = CLI_STR,
         .out = &s.model,
         .arg = "MODEL",
         .help = "GGUF file that spells the tokens of log-probabilities; default: that of the cache"},
        {.name = "jsonl", .kind = CLI_FLAG, .out = &s.view.jsonl, .help = "one JSON object a line for each answer"},
        {.name = "unordered",
         .kind = CLI_FLAG,
         .out = &s.view.unordered,
         .help = "as they finish instead of in the order of the input"},
        {.name = "stats", .kind = CLI_FLAG, .out = &stats, .help = "counts, durations and rates on stderr at the end"},
    };
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[--jsonl] [--unordered] [--stats] [-m MODEL]",
        .about = "Shows the answers of decode, as text or as JSON lines.",
        .opts = opts,
        .n_opt = sizeof opts / sizeof *opts,
    };
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    if (!r)
        r = proc_signals(&e);
    /* Whoever presses Ctrl-C wants the text to stop, and the stages before learn of it by their closed pipe. */
    signal(SIGINT, SIG_DFL);
    if (!r && stats && !(s.view.stats = stats_new()))
        r = err_nomem(&e, "statistics", 0);
    if (!r)
        r = run(&e, &s);
    struct err closing = {0};
    if (cli_close_stdout(&closing) && (!r || r == ERR_NO)) {
        e = closing;
        r = e.code;
    }
    if (s.view.stats && (!r || r == ERR_NO))
        stats_print(s.view.stats);
    order_free(s.order);
    stats_free(s.view.stats);
    text_free(s.vocab);
    gguf_free(s.gguf);
    return r ? cli_fail(PROG, &e) : 0;
}
