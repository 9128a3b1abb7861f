/* phasepipe top: pools, queue, KV and latencies, live in a terminal; otherwise one plain page each round. */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "base/time.h"
#include "cli/cli.h"
#include "cmd/phasepipe/phasepipe.h"
#include "cmd/phasepipe/service.h"
#include "wire/wire.h"

#define TOP "phasepipe top"
#define BAR 30

static volatile sig_atomic_t over;

static void on_over(int sig)
{
    (void)sig;
    over = 1;
}

struct top {
    char run[RUN_BYTES_MAX + 1];
    double seconds;
    uint64_t rounds; /* 0: no limit */
    bool tty, raw;
    struct termios before;
    struct asker *asker;
};

/* ---- one page ---- */

/* Prints part of whole as a bar of BAR characters. */
static void bar(FILE *f, uint64_t part, uint64_t whole)
{
    int n = whole ? (int)((double)part / (double)whole * BAR + 0.5) : 0;
    fputc('[', f);
    for (int i = 0; i < BAR; i++)
        fputc(i < n ? '#' : '.', f);
    fputc(']', f);
}

static void duration(FILE *f, uint64_t ns)
{
    if (!ns)
        fputs("       -", f);
    else if (ns < 10000000000u)
        fprintf(f, "%6.1fms", (double)ns / 1e6);
    else
        fprintf(f, "%7.1fs", (double)ns / 1e9);
}

static void worker_line(FILE *f, const struct wire_worker *w)
{
    uint32_t runs = w->n_prefill + w->n_decode + w->n_whole;
    uint32_t taken = w->seqs_all - (w->seqs < w->seqs_all ? w->seqs : w->seqs_all);
    uint64_t held = w->blocks_all - (w->blocks < w->blocks_all ? w->blocks : w->blocks_all);
    fprintf(f, "%-14.*s %-8.*s %-9s %7u %5u/%-5u %8" PRIu64 "/%-8" PRIu64, (int)w->name.n, w->name.n ? w->name.p : "",
            (int)w->role.n, w->role.n ? w->role.p : "", w->draining ? "draining" : "alive", runs, taken, w->seqs_all,
            held, w->blocks_all);
    if (w->n_decode + w->n_whole && w->step_ns && w->batch)
        fprintf(f, " %8.1f", (double)w->batch * 1e9 / (double)w->step_ns);
    else
        fputs("        -", f);
    fputc('\n', f);
}

static void sched_part(FILE *f, const struct wire_stat *s, const struct wire_worker *w, size_t n)
{
    double rate = 0;
    for (size_t i = 0; i < n; i++)
        if (w[i].n_decode + w[i].n_whole && w[i].step_ns)
            rate += (double)w[i].batch * 1e9 / (double)w[i].step_ns;
    fprintf(f, "policy %.*s   submitted %" PRIu64 "   running %" PRIu64 "   queue %" PRIu64 "   %.1f tokens/s\n",
            (int)s->policy.n, s->policy.n ? s->policy.p : "", s->submitted, s->running, s->waiting, rate);
    fprintf(f,
            "ended  stop %" PRIu64 "  length %" PRIu64 "  cancelled %" PRIu64 "  expired %" PRIu64 "  error %" PRIu64
            "  refused %" PRIu64 "  (retried %" PRIu64 ", preempted %" PRIu64 ")\n",
            s->stop, s->length, s->cancelled, s->expired, s->error, s->refused, s->retried, s->preempted);
    fputs("TTFT   p50 ", f);
    duration(f, s->ttft_p50_ns);
    fputs("  p99 ", f);
    duration(f, s->ttft_p99_ns);
    fputs("      ITL p50 ", f);
    duration(f, s->itl_p50_ns);
    fputs("  p99 ", f);
    duration(f, s->itl_p99_ns);
    fputs("\n\n", f);
    fprintf(f, "%-14s %-8s %-9s %7s %11s %17s %8s\n", "WORKER", "ROLE", "STATE", "RUNNING", "SLOTS      ",
            "KV BLOCKS     ", "TOKENS/S");
    for (size_t i = 0; i < n; i++)
        worker_line(f, &w[i]);
}

static void kv_part(FILE *f, const struct wire_kv_stat *k)
{
    uint64_t used = k->total - k->free - k->cached;
    uint64_t asked = k->hit_blocks + k->miss_blocks;
    fputs("\nKV     ", f);
    bar(f, used, k->total);
    fprintf(f, " %" PRIu64 " of %" PRIu64 " blocks in use, %" PRIu64 " cached, %" PRIu64 " quarantined; hits %.0f %%\n",
            used, k->total, k->cached, k->quarantined, asked ? 100.0 * (double)k->hit_blocks / (double)asked : 0.0);
    if (k->disk_total) {
        fputs("disk   ", f);
        bar(f, k->disk_used, k->disk_total);
        fprintf(f, " %" PRIu64 " of %" PRIu64 " blocks, %" PRIu64 " hits\n", k->disk_used, k->disk_total, k->disk_hits);
    }
}

/* A service that does not respond is reported on the page; the rest is shown, and the next round tries again. */
static int page(struct err *e, struct top *t, FILE *f)
{
    struct err why = {0};
    const struct wire_stat *s;
    const struct wire_worker *w;
    struct wire_kv_stat k;
    size_t n;
    char when[16] = "";
    time_t now = time(NULL);
    struct tm tm;
    if (localtime_r(&now, &tm))
        strftime(when, sizeof when, "%H:%M:%S", &tm);
    fprintf(f, "phasepipe %s  %s\n", t->run, when);
    int sched = asker_stat(&why, t->asker, &s, &w, &n);
    if (sched)
        fprintf(f, "sched: %s\n", why.text);
    else
        sched_part(f, s, w, n);
    int store = over ? ERR_NO : ask_store(&why, &k, t->run, NULL);
    if (store && !over)
        fprintf(f, "kvstore: %s\n", why.text);
    else if (!store)
        kv_part(f, &k);
    if (sched && store) {
        *e = why;
        return ERR_NO;
    }
    return 0;
}

/* ---- the terminal ---- */

static void restore(struct top *t)
{
    if (t->raw)
        tcsetattr(STDIN_FILENO, TCSANOW, &t->before);
    if (t->tty) {
        fputs("\033[?25h\033[?1049l", stdout); /* shows the cursor and the former screen */
        fflush(stdout);
    }
}

static void prepare(struct top *t)
{
    struct sigaction stop = {.sa_handler = on_over};
    struct termios now;
    sigaction(SIGINT, &stop, NULL);
    sigaction(SIGTERM, &stop, NULL);
    sigaction(SIGHUP, &stop, NULL);
    t->tty = isatty(STDOUT_FILENO);
    if (!t->tty)
        return;
    fputs("\033[?1049h\033[?25l", stdout);
    if (isatty(STDIN_FILENO) && !tcgetattr(STDIN_FILENO, &t->before)) { /* so that q is read without a newline */
        now = t->before;
        now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        t->raw = !tcsetattr(STDIN_FILENO, TCSANOW, &now);
    }
}

/* Overwrites the previous page, each line cut at the width, to avoid flicker. */
static void show(const struct top *t, const char *text)
{
    struct winsize size = {0};
    ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
    int width = size.ws_col ? size.ws_col : 80, height = size.ws_row ? size.ws_row : 24;
    if (!t->tty) {
        fputs(text, stdout);
        return;
    }
    fputs("\033[H", stdout);
    for (int row = 1; *text && row < height; row++) {
        size_t n = strcspn(text, "\n");
        printf("%.*s\033[K\n", n < (size_t)width ? (int)n : width, text);
        text += n + (text[n] == '\n');
    }
    fputs("\033[J", stdout);
}

/* Waits for the next round, or for q. */
static void pause_for(const struct top *t)
{
    uint64_t end = time_now_ns() + (uint64_t)(t->seconds * 1e9);
    for (uint64_t now; !over && (now = time_now_ns()) < end;) {
        struct pollfd p = {.fd = t->raw ? STDIN_FILENO : -1, .events = POLLIN};
        char c;
        int r = poll(&p, 1, (int)((end - now) / 1000000 + 1));
        if (r > 0 && (read(STDIN_FILENO, &c, 1) != 1 || c == 'q' || c == 3))
            over = 1;
    }
}

static int rounds(struct err *e, struct top *t)
{
    int rc = 0;
    for (uint64_t i = 0; !over && !rc && (!t->rounds || i < t->rounds); i++) {
        char *text = NULL;
        size_t n = 0;
        if (i)
            pause_for(t);
        if (over)
            break;
        FILE *f = open_memstream(&text, &n);
        if (!f)
            return err_nomem(e, "page", 0);
        rc = page(e, t, f);
        fclose(f);
        if (!over && (!rc || i))
            show(t, text ? text : "");
        rc = i ? 0 : rc; /* a failure in the first round is an error; later the services may come back */
        if (fflush(stdout))
            rc = err_sys(e, "stdout");
        free(text);
    }
    return rc;
}

int top(int argc, char **argv)
{
    struct err e = {0};
    const char *flag = NULL;
    struct top t = {.seconds = 1};
    const struct cli_opt opts[] = {
        {0, "run", CLI_STR, &flag, "DIR", "runtime directory ($XDG_RUNTIME_DIR/phasepipe)", .lo = 0},
        {'n', "rounds", CLI_U64, &t.rounds, "N", "number of pages, then end", .lo = 1, .hi = UINT32_MAX},
        {'d', "seconds", CLI_F64, &t.seconds, "S", "seconds between two pages (1)", .flo = 0.05, .fhi = 3600},
    };
    const struct cli_prog prog = {
        TOP, "[--run DIR] [-n N] [-d S]", "Shows what the services of a runtime directory do; q ends it.", opts, 3, 0};
    size_t n_arg;
    int r = cli_parse(&e, &prog, argc, argv, &n_arg);
    if (r == CLI_DONE)
        return 0;
    r = r ? r : run_name(&e, t.run, flag);
    r = r ? r : asker_open(&e, &t.asker, t.run, NULL, NULL, false);
    if (!r) {
        prepare(&t);
        r = rounds(&e, &t);
        restore(&t);
    }
    asker_close(t.asker);
    r = r ? r : cli_close_stdout(&e);
    return r ? cli_fail(TOP, &e) : 0;
}
