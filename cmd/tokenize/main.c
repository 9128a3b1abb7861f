/* tokenize: text, JSON lines or chat messages to `tok` frames; every request is born here. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/tokenize/tokenize.h"
#include "proc/proc.h"

struct flags {
    const char *model, *prompt, *system, *file;
    bool raw, lines, jsonl, ids, back, prompt_given, system_given;
    bool ignore_eos, echo, seed_given, logprobs_given;
    uint64_t n_predict, top_k, seed, min_tokens, logprobs;
    double temp, top_p, min_p, repetition, presence, frequency;
    struct cli_list stop, stop_id, bias;
};

#define OPT(l, nm, k, o, a, ...)                                                                                       \
    {                                                                                                                  \
        .letter = l, .name = nm, .kind = k, .out = o, .arg = a, .help = __VA_ARGS__                                    \
    }

static int parse(struct err *e, struct flags *f, int argc, char **argv)
{
    const struct cli_opt opts[] = {
        OPT('m', "model", CLI_STR, &f->model, "MODEL", "GGUF file with the vocabulary; default: that of the cache"),
        OPT('p', "prompt", CLI_STR, &f->prompt, "TEXT", "the prompt", .given = &f->prompt_given),
        OPT(0, "system", CLI_STR, &f->system, "TEXT", "a system message before chats without one",
            .given = &f->system_given),
        OPT(0, "raw", CLI_FLAG, &f->raw, NULL, "complete the text as it stands, without the chat template"),
        OPT(0, "lines", CLI_FLAG, &f->lines, NULL, "each line of the input is a prompt"),
        OPT(0, "jsonl", CLI_FLAG, &f->jsonl, NULL, "each line of the input is a request in JSON"),
        OPT('n', "max-tokens", CLI_U64, &f->n_predict, "N", "tokens of an answer at most; default 512",
            .hi = UINT32_MAX),
        OPT(0, "min-tokens", CLI_U64, &f->min_tokens, "N", "tokens before the answer may end", .hi = UINT32_MAX),
        OPT(0, "temp", CLI_F64, &f->temp, "T", "temperature; default 0, greedy", .fhi = ASK_TEMPERATURE_MAX),
        OPT(0, "top-k", CLI_U64, &f->top_k, "N", "sample from the N best; 0: off", .hi = UINT32_MAX),
        OPT(0, "top-p", CLI_F64, &f->top_p, "P", "sample from the best with this much probability", .fhi = 1),
        OPT(0, "min-p", CLI_F64, &f->min_p, "P", "drop what is less likely than P times the best", .fhi = 1),
        OPT(0, "repetition-penalty", CLI_F64, &f->repetition, "R", "divide the logits of tokens seen; 1: off",
            .flo = 0.01, .fhi = 100),
        OPT(0, "presence-penalty", CLI_F64, &f->presence, "R", "lower tokens of the answer once", .flo = -2, .fhi = 2),
        OPT(0, "frequency-penalty", CLI_F64, &f->frequency, "R", "lower tokens of the answer for each use", .flo = -2,
            .fhi = 2),
        OPT(0, "seed", CLI_U64, &f->seed, "N", "of the sampler; default: from the system", .given = &f->seed_given),
        OPT(0, "stop", CLI_LIST, &f->stop, "TEXT", "end the answer before this text; may be repeated"),
        OPT(0, "stop-id", CLI_LIST, &f->stop_id, "ID", "end the answer at this token; may be repeated"),
        OPT(0, "ignore-eos", CLI_FLAG, &f->ignore_eos, NULL, "go on past the end of the answer"),
        OPT(0, "logprobs", CLI_U64, &f->logprobs, "N", "log-probabilities of the tokens and the N best of each",
            .hi = WIRE_TOP_MAX, .given = &f->logprobs_given),
        OPT(0, "echo", CLI_FLAG, &f->echo, NULL, "answer with the prompt first"),
        OPT(0, "logit-bias", CLI_LIST, &f->bias, "ID=BIAS", "add to a token's logit; may be repeated"),
        OPT(0, "ids", CLI_FLAG, &f->ids, NULL, "print ids, a line each prompt, instead of frames"),
        OPT('d', "decode", CLI_FLAG, &f->back, NULL, "the way back: ids or frames to text"),
    };
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[-m MODEL] [-p TEXT | FILE] [--raw] [--lines | --jsonl] [OPTION ...]",
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

/* Flags that contradict each other are refused, not ranked. */
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
    else if (f->raw && f->system_given)
        text = "--system needs the chat template, which --raw leaves out";
    else if (f->back && (f->lines || f->jsonl || f->raw))
        text = "-d knows ids from frames by itself; it goes with -m and FILE only";
    else if (f->min_tokens > f->n_predict)
        text = "--min-tokens is more than -n";
    return text ? err_set(e, ERR_USAGE, "%s", text) : 0;
}

static int defaults(struct err *e, struct ask *a, const struct flags *f)
{
    ask_default(a);
    a->s.max_tokens = (uint32_t)f->n_predict;
    a->s.min_tokens = (uint32_t)f->min_tokens;
    a->s.temperature = (float)f->temp;
    a->s.top_k = (uint32_t)f->top_k;
    a->s.top_p = (float)f->top_p;
    a->s.min_p = (float)f->min_p;
    a->s.repetition_penalty = (float)f->repetition;
    a->s.presence_penalty = (float)f->presence;
    a->s.frequency_penalty = (float)f->frequency;
    a->s.seed = f->seed;
    a->has_seed = f->seed_given;
    a->s.ignore_eos = f->ignore_eos;
    a->s.echo = f->echo;
    a->s.logprobs = f->logprobs_given ? (int32_t)f->logprobs : -1;
    return flags_stops(e, a, &f->stop, &f->stop_id, &f->bias);
}

/* Ids of the flags are checked before the first request: a wrong flag is misuse, not a failed request. */
static int check_flag_ids(struct err *e, const struct ask *a, int64_t n_row)
{
    if (ask_check_ids(e, a, n_row)) {
        e->code = ERR_USAGE;
        return err_prefix(e, "--stop-id, --logit-bias");
    }
    return 0;
}

/* A prompt that is one text: as it stands, or a user message. */
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

/* A line of some editors ends with a carriage return and a line feed; n counts what comes before the line feed. */
static size_t without_return(const char *line, size_t n)
{
    return n && line[n - 1] == '\r' ? n - 1 : n;
}

static int whole_file(struct err *e, struct tokenize *t, const struct ask *base, const struct flags *f, struct lines *l)
{
    char *text = NULL;
    size_t n = 0;
    if (lines_all(e, l, &text, &n))
        return e->code;
    /* The end of the last line is no part of what its writer says; a text to complete is taken to the last byte. */
    if (!f->raw && n && text[n - 1] == '\n')
        n = without_return(text, n - 1);
    int r = one(e, t, base, f->raw, text ? text : "", n, "", t->start_ns);
    free(text);
    return r;
}

static int json_line(struct err *e, struct tokenize *t, const struct ask *base, const char *line, size_t n,
                     const char *where)
{
    uint64_t born_ns = proc_now_ns();
    struct ask a;
    struct err why = {0};
    int r = ask_read(&why, &a, base, line, n);
    if (!r)
        r = emit(e, t, &a, where, born_ns);
    else if (r == ERR_SYS)
        err_set(e, r, "%s%.400s", where, why.text);
    else
        r = emit_error(e, t, &a, where, &why);
    ask_free(&a);
    return r;
}

static bool blank(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r')
            return false;
    return true;
}

static int each_line(struct err *e, struct tokenize *t, const struct ask *base, const struct flags *f, struct lines *l)
{
    for (;;) {
        const char *line;
        size_t n = 0;
        char where[48];
        if (lines_next(e, l, &line, &n))
            return e->code;
        if (!line)
            return 0;
        snprintf(where, sizeof where, "line %llu: ", (unsigned long long)l->number);
        int r;
        /* Some editors begin a file with U+FEFF, which JSON has not but lets a reader pass over. */
        if (f->jsonl && l->number == 1 && n >= 3 && !memcmp(line, "\xef\xbb\xbf", 3)) {
            line += 3;
            n -= 3;
        }
        if (f->jsonl && blank(line, n))
            continue;
        if (f->jsonl) {
            r = json_line(e, t, base, line, n, where);
        } else if (n > WIRE_STR_BYTES_MAX) {
            struct err why;
            err_set(&why, ERR_NO, "more than %u bytes, the limit of a prompt", WIRE_STR_BYTES_MAX);
            r = emit_error(e, t, base, where, &why);
        } else {
            r = one(e, t, base, f->raw, line, f->raw ? n : without_return(line, n), where, proc_now_ns());
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

static int run(struct err *e, struct tokenize *t, const struct flags *f, struct lines *l)
{
    struct ask base = {0};
    int r = 0;
    if (f->back)
        return back(e, t->text, t->config.vocab, l->fd, l->name);
    if (!(t->arena = wire_arena_new()) || !(t->said = json_object()))
        return err_nomem(e, "start", 0);
    if (!f->ids)
        r = wire_writer_new(e, &t->out, STDOUT_FILENO, "stdout");
    if (!r && !(r = defaults(e, &base, f)) && !(r = check_flag_ids(e, &base, t->config.vocab)))
        r = requests(e, t, &base, f, l);
    if (!r && f->ids && t->n_error)
        r = err_set(e, ERR_NO, "%llu of %llu prompts were refused", (unsigned long long)t->n_error,
                    (unsigned long long)(t->n_ok + t->n_error));
    ask_free(&base);
    wire_writer_free(t->out);
    wire_arena_free(t->arena);
    json_decref(t->said);
    return r;
}

static int open_vocabulary(struct err *e, struct tokenize *t, struct text **text, struct gguf **g,
                           const struct flags *f, char *path, size_t n_path)
{
    if (!f->model && model_default_path(e, path, n_path))
        return e->code;
    t->model_path = f->model ? f->model : path;
    if (gguf_open(e, g, t->model_path) || model_config_read(e, &t->config, *g) || text_open(e, text, *g))
        return e->code;
    t->text = *text;
    t->system = f->system;
    t->load_ns = proc_now_ns() - t->start_ns;
    return 0;
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct tokenize t = {.start_ns = proc_now_ns()};
    struct flags f = {.n_predict = 512, .top_p = 1, .repetition = 1};
    struct gguf *g = NULL;
    struct text *text = NULL;
    struct lines l = {.fd = STDIN_FILENO, .name = "stdin"};
    char path[4096];
    int r = parse(&e, &f, argc, argv);
    if (r == CLI_DONE)
        return 0;
    bool frames = !f.ids && !f.back;
    if (!r && !(r = check(&e, &f)) && !(r = frames ? cli_no_tty(&e, STDOUT_FILENO, "frames") : 0) &&
        !(r = proc_signals(&e))) {
        if (f.file && strcmp(f.file, "-")) {
            l.name = f.file;
            l.fd = open(f.file, O_RDONLY | O_CLOEXEC);
            r = l.fd < 0 ? err_sys(&e, "open %s", f.file) : 0;
        }
        if (!r && !(r = open_vocabulary(&e, &t, &text, &g, &f, path, sizeof path)))
            r = run(&e, &t, &f, &l);
    }
    struct err closing = {0};
    if (!frames && cli_close_stdout(&closing) && !r) {
        e = closing;
        r = e.code;
    }
    lines_free(&l);
    text_free(text);
    gguf_free(g);
    cli_list_free(&f.stop);
    cli_list_free(&f.stop_id);
    cli_list_free(&f.bias);
    return r ? cli_fail(PROG, &e) : 0;
}
