/* stream: outputs answers as text, as JSON lines or over HTTP. They come from frames of decode, or from the services,
 * to which it sends requests. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/stream/stream.h"
#include "model/model.h"
#include "proc/proc.h"
#include "proc/sandbox.h"
#include "request/lines.h"

#define URL_BYTES 512

struct flags {
    struct service_opts o;
    struct ask_flags ask;
    const char *model, *run, *peer_tls;
    bool jsonl, unordered, stats, running_given, deadline_given;
    struct http_flags http;
    char url[2][URL_BYTES];
};

#define HTTP_FLAGS_N 24

#define OPT(l, nm, k, o, a, ...)                                                                                       \
    {                                                                                                                  \
        .letter = l, .name = nm, .kind = k, .out = o, .arg = a, .help = __VA_ARGS__                                    \
    }

static void http_options(struct cli_opt out[HTTP_FLAGS_N], struct flags *f)
{
    struct http_flags *h = &f->http;
    const struct cli_opt own[] = {
        OPT(0, "http", CLI_LIST, &h->listen, "ADDR", "serve the OpenAI API and metrics at [HOST:]PORT or unix:PATH"),
        OPT(0, "ollama", CLI_STR, &h->ollama, "ADDR", "serve the Ollama API at [HOST:]PORT or unix:PATH",
            .given = &h->given),
        OPT(0, "ollama-if-free", CLI_FLAG, &h->ollama_if_free, NULL,
            "do not serve the Ollama API if its address is in use", .given = &h->given),
        OPT(0, "served-model-name", CLI_LIST, &h->name, "NAME",
            "name of the model in requests; further ones are aliases"),
        OPT(0, "kv", CLI_STR, &h->kv, "URL", "kvstore whose counts the metrics include"),
        OPT(0, "api-key-file", CLI_STR, &h->key_file, "FILE",
            "keys, one a line, with their limits; requests without a key are refused", .given = &h->given),
        OPT(0, "shared-cache", CLI_FLAG, &h->shared_cache, NULL, "let different API keys share cached prompts",
            .given = &h->given),
        OPT(0, "metrics-by-key", CLI_FLAG, &h->metrics_by_key, NULL,
            "metrics with the names of API keys, for keys with role=admin", .given = &h->given),
        OPT(0, "ssl-certfile", CLI_STR, &h->tls_cert, "FILE", "certificates in PEM: TLS on all addresses",
            .given = &h->given),
        OPT(0, "ssl-keyfile", CLI_STR, &h->tls_key, "FILE", "private key of the certificate", .given = &h->given),
        OPT(0, "allowed-origins", CLI_STR, &h->origins, "LIST", "allowed origins (CORS), separated by commas, or *",
            .given = &h->given),
        OPT(0, "allowed-hosts", CLI_STR, &h->hosts, "LIST",
            "names allowed as Host at loopback addresses, separated by commas, or *", .given = &h->given),
        OPT(0, "sse-keepalive", CLI_F64, &h->keepalive_s, "SECONDS",
            "comment in an event stream after so long without an event; 0: none; default 15", .flo = 0, .fhi = 86400,
            .given = &h->given),
        OPT(0, "max-body", CLI_SIZE, &h->body_bytes, "B", "limit of a request body; default 16M", .lo = 1024,
            .hi = 16u << 20, .given = &h->given),
        OPT(0, "max-bodies", CLI_SIZE, &h->bodies_bytes, "B",
            "limit of all request bodies together; default: a 16th of the memory, 64M to 1G", .lo = 1u << 20,
            .hi = (uint64_t)1 << 40, .given = &h->given),
        OPT(0, "max-outputs", CLI_SIZE, &h->outputs_bytes, "B",
            "limit of all unread output together; default: a 16th of the memory, 64M to 1G", .lo = 1u << 20,
            .hi = (uint64_t)1 << 40, .given = &h->given),
        OPT(0, "max-prompts", CLI_SIZE, &h->prompts_bytes, "B",
            "limit of the prompts of all requests together; default: an eighth of the memory, 64M to 1G",
            .lo = 1u << 20, .hi = (uint64_t)1 << 40, .given = &h->given),
        OPT(0, "max-connections", CLI_U64, &h->connections, "N", "limit of open connections; default 4096", .lo = 1,
            .hi = 65536, .given = &h->given),
        OPT(0, "max-connections-per-address", CLI_U64, &h->address_connections, "N",
            "limit of open connections of a client address; default: 3/4 of all", .lo = 1, .hi = 65536,
            .given = &h->given),
        OPT(0, "max-waiting", CLI_U64, &h->waiting, "N",
            "limit of answers without a first token, then 429; default 4096", .lo = 1, .hi = 16384, .given = &h->given),
        OPT(0, "max-logprob-entries", CLI_U64, &h->logprob_entries, "N",
            "limit of log-probabilities in a response; default 262144", .lo = 1, .hi = (uint64_t)1 << 32,
            .given = &h->given),
        OPT(0, "access-log", CLI_FLAG, &h->access_log, NULL, "log a line on stderr for each response",
            .given = &h->given),
        OPT(0, "drain-seconds", CLI_F64, &h->drain_s, "N", "time limit of running answers after SIGTERM; default 30",
            .flo = 0, .fhi = 86400, .given = &h->given),
        OPT(0, "ready-fd", CLI_U64, &h->ready_fd, "N", "descriptor that gets a line when ready", .lo = 3, .hi = 1 << 20,
            .given = &h->ready_given),
    };
    memcpy(out, own, sizeof own);
}

static int parse(struct err *e, struct flags *f, int argc, char **argv)
{
    const struct cli_opt own[] = {
        OPT('m', "model", CLI_STR, &f->model, "MODEL",
            "GGUF file that spells the tokens of log-probabilities; default: that of the cache"),
        OPT(0, "jsonl", CLI_FLAG, &f->jsonl, NULL, "one JSON object a line for each answer"),
        OPT(0, "unordered", CLI_FLAG, &f->unordered, NULL,
            "print answers as they finish, not in the order of the input"),
        OPT(0, "stats", CLI_FLAG, &f->stats, NULL, "counts, durations and rates on stderr at the end"),
        OPT(0, "sched", CLI_STR, &f->o.sched, "URL", "send requests to this scheduler"),
        OPT(0, "tokenize", CLI_STR, &f->o.tokenize, "URL", "… and to this tokenize"),
        OPT(0, "run", CLI_STR, &f->run, "DIR", "directory of the sockets of both"),
        OPT('p', "prompt", CLI_STR, &f->o.prompt, "TEXT", "the prompt"),
        OPT(0, "raw", CLI_FLAG, &f->o.raw, NULL, "complete the text as it is, without the chat template"),
        OPT(0, "lines", CLI_FLAG, &f->o.lines, NULL, "each line of the input is a prompt"),
        OPT(0, "max-running", CLI_U64, &f->o.running_max, "N", "requests in flight; default 256", .lo = 1, .hi = 16384,
            .given = &f->running_given),
        OPT(0, "deadline", CLI_F64, &f->o.deadline_s, "SECONDS", "time limit of each request", .flo = 0.001, .fhi = 1e6,
            .given = &f->deadline_given),
        OPT(0, "listen", CLI_STR, &f->o.listen, "URL",
            "address for the tokens of workers; default: next to the socket of the scheduler"),
        OPT(0, "peer-tls", CLI_STR, &f->peer_tls, "DIR", "credentials for tls+tcp://: ca.pem and gateway.pem"),
        OPT(0, "peer-plaintext", CLI_FLAG, &f->o.security.plaintext, NULL,
            "permit tcp:// beyond this host: neither encrypted nor authenticated"),
    };
    struct cli_opt opts[sizeof own / sizeof *own + ASK_FLAGS_N + HTTP_FLAGS_N];
    memcpy(opts, own, sizeof own);
    http_options(opts + sizeof own / sizeof *own, f);
    ask_flags_options(opts + sizeof own / sizeof *own + HTTP_FLAGS_N, &f->ask);
    const struct cli_prog prog = {
        .name = PROG,
        .synopsis = "[--sched URL --tokenize URL | --run DIR] [-p TEXT | --http ADDR] [--jsonl] [OPTION ...]",
        .about = "Shows the answers of decode, or of the services, as text, as JSON lines or over HTTP.",
        .opts = opts,
        .n_opt = sizeof opts / sizeof *opts,
    };
    size_t n_arg;
    return cli_parse(e, &prog, argc, argv, &n_arg);
}

/* Flags of a request select the services. */
static bool asks(const struct flags *f)
{
    return f->o.prompt || f->o.raw || f->o.lines || f->running_given || f->deadline_given || f->o.listen ||
           ask_flags_given(&f->ask);
}

/* If only the variable selects the services, the input decides: pipelines run in the same shell. */
static int is_service(struct err *e, bool *out, const struct flags *f, const char *run)
{
    unsigned char first = 0;
    *out = f->o.sched || f->o.tokenize || f->run || asks(f);
    if (*out || !run || isatty(STDIN_FILENO))
        return 0;
    if (lines_peek(e, &first, STDIN_FILENO, "stdin"))
        return e->code;
    *out = first && first != 0xce;
    return 0;
}

static int url_of(struct err *e, const char **out, char buf[URL_BYTES], const char *run, const char *name)
{
    if (*out)
        return 0;
    if (!run)
        return err_set(e, ERR_USAGE, "requests need --%s URL, or --run DIR", name);
    int n = snprintf(buf, URL_BYTES, "ipc://%s/%s.sock", run, name);
    if (n < 0 || n >= URL_BYTES)
        return err_set(e, ERR_USAGE, "--run: the path of %s.sock exceeds %d bytes", name, URL_BYTES - 1);
    *out = buf;
    return 0;
}

/* Refuses contradictory flags: none overrides another. */
static int check(struct err *e, struct flags *f, const char *run)
{
    const char *text = NULL;
    f->o.jsonl = f->jsonl && !f->o.lines && !f->o.prompt;
    if (f->o.prompt && f->o.lines)
        text = "-p gives one prompt; --lines reads standard input";
    else if (f->o.raw && f->o.jsonl)
        text = "--raw is for text; in JSON lines, prompt is completed as it stands and messages are not";
    else if (f->o.raw && f->ask.system)
        text = "--system needs the chat template, which --raw leaves out";
    if (text)
        return err_set(e, ERR_USAGE, "%s", text);
    json_t *fields = NULL; /* checks the flags before the first request */
    if (ask_flags_check(e, &f->ask) || ask_flags_json(e, &fields, &f->ask))
        return e->code;
    json_decref(fields);
    if (url_of(e, &f->o.sched, f->url[0], run, "sched"))
        return e->code;
    return url_of(e, &f->o.tokenize, f->url[1], run, "tokenize");
}

static int pipe_in(struct err *e, struct show *s)
{
    struct wire_reader *in = NULL;
    struct wire_frame *f = NULL;
    int r = wire_reader_new(e, &in, STDIN_FILENO, "stdin");
    while (!r && !(r = wire_read(e, in, &f)) && f)
        r = show_frame(e, s, f);
    if (!r && !wire_reader_seen_hello(in))
        r = err_set(e, ERR_PROTO, "stdin: empty, not even a hello: the stage before failed");
    wire_reader_free(in);
    return r;
}

static bool is_http(const struct flags *f)
{
    return f->http.listen.n || f->http.ollama || f->http.given || f->http.name.n || f->http.ready_given;
}

/* Keeps the model's vocabulary, the directories of its sockets, and those of keys and certificates, which may be
 * replaced. */
static int enter_sandbox(struct err *e, const struct flags *f)
{
    struct sandbox s;
    sandbox_begin(&s);
    model_allow(&s, f->model);
    sandbox_socket(&s, f->o.sched);
    sandbox_socket(&s, f->o.listen);
    for (size_t i = 0; i < f->http.listen.n; i++)
        sandbox_socket(&s, f->http.listen.v[i]);
    sandbox_socket(&s, f->http.ollama);
    sandbox_read_beside(&s, f->http.key_file);
    sandbox_read_beside(&s, f->http.tls_cert);
    sandbox_read_beside(&s, f->http.tls_key);
    return sandbox_enter(e, &s);
}

/* A server has no input and prints nothing. */
static int run_http(struct err *e, struct flags *f, const char *dir)
{
    if (!f->http.listen.n && !f->http.ollama && !getenv("LISTEN_FDS"))
        return err_set(e, ERR_USAGE, "options of the HTTP server need --http ADDR");
    if (f->o.prompt || f->o.raw || f->o.lines || f->running_given || f->jsonl || f->unordered || f->stats ||
        ask_flags_given(&f->ask))
        return err_set(e, ERR_USAGE,
                       "--http excludes -p, --jsonl and flags of a request: HTTP requests have their own fields");
    if (url_of(e, &f->o.sched, f->url[0], dir, "sched") || url_of(e, &f->o.tokenize, f->url[1], dir, "tokenize"))
        return e->code;
    if (enter_sandbox(e, f))
        return e->code;
    return http_serve(e, &f->http, &f->o, f->model);
}

static int run(struct err *e, struct show *s, struct flags *f)
{
    const char *dir = f->run ? f->run : getenv("PHASEPIPE_RUN");
    bool serves = false;
    if (f->peer_tls && peer_tls_open(e, &f->o.security.tls, f->peer_tls, "gateway"))
        return e->code;
    if (is_http(f))
        return run_http(e, f, dir && *dir ? dir : NULL);
    if (is_service(e, &serves, f, dir && *dir ? dir : NULL))
        return e->code;
    /* Ctrl-C ends stream at once; the stages before it end when their pipe is closed. */
    if (!serves)
        signal(SIGINT, SIG_DFL);
    if ((serves && check(e, f, dir && *dir ? dir : NULL)) || enter_sandbox(e, f) || show_open(e, s))
        return e->code;
    int r = serves ? service(e, s, &f->o) : pipe_in(e, s);
    order_end_line(s->order);
    return r ? r : show_result(e, s);
}

int main(int argc, char **argv)
{
    static struct flags f; /* the reader thread may use them after this function returns */
    struct err e = {0};
    struct show s = {0};
    ask_flags_init(&f.ask);
    f.o.running_max = 256;
    f.http.drain_s = 30;
    f.http.keepalive_s = 15;
    f.o.ask = &f.ask;
    int r = parse(&e, &f, argc, argv);
    if (r == CLI_DONE)
        return 0;
    if (!r)
        r = proc_signals(&e);
    s.model = f.model;
    s.view.jsonl = f.jsonl;
    s.view.unordered = f.unordered;
    if (!r && f.stats && !(s.view.stats = stats_new()))
        r = err_nomem(&e, "statistics", 0);
    if (!r)
        r = run(&e, &s, &f);
    struct err closing = {0};
    if (cli_close_stdout(&closing) && (!r || r == ERR_NO)) {
        e = closing;
        r = e.code;
    }
    if (s.view.stats && (!r || r == ERR_NO))
        stats_print(s.view.stats);
    show_close(&s);
    peer_tls_close(f.o.security.tls);
    stats_free(s.view.stats);
    return r ? cli_fail(PROG, &e) : 0;
}
