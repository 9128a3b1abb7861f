/*
 * Times what a user of running services sees, through a gateway of its own: answers that grow, while a long prompt
 * comes. A line of stdin is a job, a line of stdout its result in JSON.
 *
 *     bench_serve --sched URL --tokenize URL < jobs
 *
 *     streams 3 depth 64 skip 8 quiet 200 prompt 4000 tokens 16
 *
 * Starts so many streams on prompts of `depth` ids, and waits until each has `quiet` tokens after its first `skip`;
 * then the prompt comes, with an answer of so many `tokens`. What still runs when that answer ends is cancelled. Gives
 * the times between tokens of the streams, in ms, before the prompt came ("quiet"), and those that end after that but
 * begin before its first token ("during"); and of the prompt the time to its first token, and between the others on
 * average. Tokens that arrive together are 0 ms apart. No two prompts are the same, so nothing is found in a cache.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/time.h"
#include "cli/cli.h"
#include "gateway/gateway.h"
#include "proc/proc.h"

#define STREAMS_MAX 64
#define IDS_BYTES 8
#define STEP_MS 1000
#define LONG_NS 300000000000u /* a job that has not ended by then has failed */

struct job {
    uint64_t streams, depth, skip, quiet, prompt, tokens, vocab;
};

struct gaps {
    double *ms;
    size_t n, cap;
};

struct answer {
    uint64_t asked, first, last, n;
    bool ended;
};

struct bench {
    struct gateway *g;
    struct job j;
    uint64_t seq;                          /* of the job's first stream; the prompt is after the last */
    struct answer answer[STREAMS_MAX + 1]; /* the prompt is the last */
    struct gaps quiet, during;
    uint32_t random, cached;
    bool failed;
    struct err why;
};

static struct answer *prompt_of(struct bench *b)
{
    return &b->answer[b->j.streams];
}

static void add(struct bench *b, struct gaps *g, double ms)
{
    if (g->n == g->cap) {
        size_t cap = g->cap ? 2 * g->cap : 1024;
        double *more = realloc(g->ms, cap * sizeof *more);
        if (!more) {
            b->failed = err_nomem(&b->why, "times", cap * sizeof *more);
            return;
        }
        g->ms = more;
        g->cap = cap;
    }
    g->ms[g->n++] = ms;
}

static void tokens_came(struct bench *b, struct answer *a, uint32_t n)
{
    uint64_t now = time_now_ns();
    const struct answer *p = prompt_of(b);
    for (uint32_t i = 0; i < n; i++) {
        if (!a->n)
            a->first = now;
        else if (a != p && a->n >= b->j.skip && !p->asked)
            add(b, &b->quiet, (double)(now - a->last) / 1e6);
        else if (a != p && a->n >= b->j.skip && (!p->first || a->last < p->first))
            add(b, &b->during, (double)(now - a->last) / 1e6);
        a->last = now;
        a->n++;
    }
}

static void came(void *arg, const struct wire_frame *f)
{
    struct bench *b = arg;
    uint64_t seq = f->kind == WIRE_OUT ? f->out.seq : f->kind == WIRE_END ? f->end.seq : f->error.seq;
    if (f->kind == WIRE_HELLO || seq < b->seq || seq > b->seq + b->j.streams)
        return;
    struct answer *a = &b->answer[seq - b->seq];
    if (f->kind == WIRE_OUT) {
        tokens_came(b, a, f->out.n_id);
    } else if (f->kind == WIRE_END) {
        a->ended = true;
        if (a == prompt_of(b))
            b->cached = f->end.cached_tokens;
    } else if (f->kind == WIRE_ERR) {
        a->ended = true;
        b->failed = err_set(&b->why, ERR_NO, "%.*s", (int)f->error.text.n, f->error.text.p);
    }
}

static int ask(struct err *e, struct bench *b, uint64_t i, uint64_t n_id, uint64_t n_out)
{
    size_t cap = 256 + IDS_BYTES * (size_t)n_id, n = 0;
    char *line = malloc(cap);
    if (!line)
        return err_nomem(e, "a request", cap);
    n += (size_t)snprintf(line + n, cap - n, "{\"max_tokens\":%llu,\"temperature\":0,\"ignore_eos\":true,\"prompt\":",
                          (unsigned long long)n_out);
    for (uint64_t k = 0; k < n_id; k++) {
        b->random = b->random * 1664525u + 1013904223u;
        n += (size_t)snprintf(line + n, cap - n, "%c%u", k ? ',' : '[', 100 + (b->random >> 8) % (uint32_t)b->j.vocab);
    }
    n += (size_t)snprintf(line + n, cap - n, "]}");
    b->answer[i].asked = time_now_ns();
    int rc = gateway_submit(e, b->g, b->seq + i, (struct wire_str){0}, line, n);
    free(line);
    return rc;
}

/* Every stream has so many tokens, and if there is a prompt, one more after its first. */
static bool all_have(const struct bench *b, uint64_t n, bool prompt)
{
    bool all = true;
    uint64_t first = b->answer[b->j.streams].first;
    for (const struct answer *a = b->answer; a < b->answer + b->j.streams; a++)
        all = all && a->n >= n && (!prompt || a->ended || a->last > first);
    return all;
}

static int until(struct err *e, struct bench *b, uint64_t n_stream, bool prompt, uint64_t begin)
{
    while (!all_have(b, n_stream, prompt) || (prompt && !prompt_of(b)->ended)) {
        int rc = gateway_step(e, b->g, STEP_MS);
        if (rc)
            return rc;
        if (b->failed) {
            *e = b->why;
            return e->code;
        }
        if (time_now_ns() - begin > LONG_NS)
            return err_set(e, ERR_NO, "a job has not ended within %llu s", LONG_NS / 1000000000ull);
    }
    return 0;
}

static void print_gaps(const char *name, const struct gaps *g)
{
    printf("\"%s\":[", name);
    for (size_t i = 0; i < g->n; i++)
        printf("%s%.3f", i ? "," : "", g->ms[i]);
    printf("]");
}

static void report(struct bench *b)
{
    const struct answer *p = prompt_of(b);
    printf("{");
    print_gaps("quiet", &b->quiet);
    printf(",");
    print_gaps("during", &b->during);
    if (p->n)
        printf(",\"ttft_ms\":%.3f,\"cached\":%u", (double)(p->first - p->asked) / 1e6, b->cached);
    if (p->n > 1)
        printf(",\"tpot_ms\":%.3f", (double)(p->last - p->first) / 1e6 / (double)(p->n - 1));
    printf("}\n");
}

static int run(struct err *e, struct bench *b)
{
    uint64_t begin = time_now_ns();
    int rc = 0;
    memset(b->answer, 0, sizeof b->answer);
    b->quiet.n = b->during.n = 0;
    for (uint64_t i = 0; i < b->j.streams && !rc; i++)
        rc = ask(e, b, i, b->j.depth, 4000);
    if (!rc)
        rc = until(e, b, b->j.skip + b->j.quiet, false, begin);
    if (!rc && b->j.prompt)
        rc = ask(e, b, b->j.streams, b->j.prompt, b->j.tokens);
    if (!rc)
        rc = until(e, b, 0, b->j.prompt, begin);
    if (rc)
        return rc;
    report(b);
    for (uint64_t i = 0; i < b->j.streams; i++)
        gateway_cancel(b->g, b->seq + i);
    while (!rc && gateway_running(b->g))
        rc = gateway_step(e, b->g, STEP_MS);
    b->seq += b->j.streams + 1;
    return rc ? rc : fflush(stdout) ? err_sys(e, "stdout") : 0;
}

static int parse(struct err *e, struct job *j, char *line)
{
    struct {
        const char *name;
        uint64_t *value, lo, hi;
    } word[] = {{"streams", &j->streams, 0, STREAMS_MAX},
                {"depth", &j->depth, 1, 1 << 20},
                {"skip", &j->skip, 1, 3000},
                {"quiet", &j->quiet, 0, 3000},
                {"prompt", &j->prompt, 0, 1 << 20},
                {"tokens", &j->tokens, 1, 3000},
                {"vocab", &j->vocab, 1, 900000}};
    char *save, *name = strtok_r(line, " \n", &save);
    *j = (struct job){.depth = 64, .skip = 8, .quiet = 200, .tokens = 2, .vocab = 40000};
    for (; name; name = strtok_r(NULL, " \n", &save)) {
        char *value = strtok_r(NULL, " \n", &save);
        size_t i = 0, n = sizeof word / sizeof *word;
        while (i < n && strcmp(name, word[i].name) != 0)
            i++;
        if (i == n || !value)
            return err_set(e, ERR_USAGE, "%s: not a word of a job, or without a value", name);
        int rc = cli_u64(e, name, value, word[i].value, word[i].lo, word[i].hi);
        if (rc)
            return rc;
    }
    return j->streams || j->prompt ? 0 : err_set(e, ERR_USAGE, "a job has streams, a prompt or both");
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct bench b = {.seq = 1, .random = (uint32_t)time_now_ns()};
    struct gateway_opts o = {.frame = came, .arg = &b, .patience_ns = UINT64_MAX};
    const struct cli_opt opts[] = {
        {0, "sched", CLI_STR, &o.sched, "URL", "the scheduler", .lo = 0},
        {0, "tokenize", CLI_STR, &o.tokenize, "URL", "tokenize as a service", .lo = 0},
    };
    const struct cli_prog p = {"bench_serve", "--sched URL --tokenize URL < jobs", "times running services",
                               opts,          sizeof opts / sizeof *opts,          0};
    char line[256];
    size_t n_arg;
    int rc = cli_parse(&e, &p, argc, argv, &n_arg);
    if (rc == CLI_DONE)
        return 0;
    if (!rc && (!o.sched || !o.tokenize))
        rc = err_set(&e, ERR_USAGE, "--sched and --tokenize are needed");
    proc_wake_soon(true);
    if (!rc)
        rc = gateway_open(&e, &b.g, &o);
    while (!rc && fgets(line, sizeof line, stdin)) {
        rc = parse(&e, &b.j, line);
        if (!rc)
            rc = run(&e, &b);
    }
    gateway_close(b.g);
    free(b.quiet.ms);
    free(b.during.ms);
    return rc ? cli_fail(p.name, &e) : 0;
}
