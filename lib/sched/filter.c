/* The state machine as a filter, in the time of the events. An instant is all events of one at_ns; a tick ends it too,
 * so that a program that writes one line at a time can get the decisions at once. */
#include "sched/sched.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICKS_MAX 100000 /* timers between two events; after so many the clock jumps to the next event */

struct filter {
    struct sched *s;
    const struct sched_filter *o;
    struct wire_writer *w;
    FILE *out;
    struct err failed;
    bool pending; /* events since the last decision */
};

static void emit(void *arg, const struct wire_frame *f)
{
    struct filter *x = arg;
    char *line;
    if (!x->failed.code && x->w)
        wire_write_later(&x->failed, x->w, f);
    if (x->failed.code || x->w || wire_to_json(&x->failed, &line, f, NULL, false))
        return;
    if (fputs(line, x->out) == EOF || putc('\n', x->out) == EOF)
        err_sys(&x->failed, "stdout");
    free(line);
}

static int flush(struct err *e, struct filter *x)
{
    if (!x->failed.code) {
        if (x->o->jsonl && fflush(x->out))
            err_sys(&x->failed, "stdout");
        else if (!x->o->jsonl)
            wire_flush(&x->failed, x->w);
    }
    if (x->failed.code)
        *e = x->failed;
    return x->failed.code;
}

static int decide(struct err *e, struct filter *x)
{
    x->pending = false;
    int rc = sched_decide(e, x->s);
    if (!rc && x->failed.code) {
        *e = x->failed;
        rc = e->code;
    }
    return rc;
}

/* Runs the timers that are due before the next event, each in its own instant. */
static int advance(struct err *e, struct filter *x, uint64_t at_ns)
{
    int rc = x->pending && at_ns > sched_now_ns(x->s) ? decide(e, x) : 0;
    for (int i = 0; i < TICKS_MAX && !rc; i++) {
        uint64_t next = sched_next_ns(x->s);
        if (next >= at_ns || next <= sched_now_ns(x->s))
            break;
        struct wire_frame f = {.kind = WIRE_TICK, .tick = {.at_ns = next}};
        rc = sched_event(e, x->s, &f);
        rc = rc ? rc : decide(e, x);
    }
    return rc;
}

static int process(struct err *e, struct filter *x, const struct wire_frame *f, const char *where)
{
    if (f->kind == WIRE_HELLO || f->kind == WIRE_BYE)
        return 0;
    bool event = (f->kind >= WIRE_SUBMIT && f->kind <= WIRE_STAT) || f->kind == WIRE_CAPACITY;
    int rc = event ? advance(e, x, f->tick.at_ns) : 0;
    rc = rc ? rc : sched_event(e, x->s, f);
    if (rc == ERR_PROTO) {
        err_prefix(e, "%s", where);
        x->o->log(x->o->log_arg, e->text);
        rc = 0;
    }
    x->pending = true;
    if (!rc && f->kind == WIRE_TICK)
        rc = decide(e, x);
    return rc;
}

static int read_frames(struct err *e, struct filter *x)
{
    struct wire_reader *r;
    struct wire_frame *f;
    char where[64];
    int rc = wire_reader_new(e, &r, x->o->fd_in, "stdin");
    if (rc)
        return rc;
    while (!rc) {
        if (!wire_reader_ready(r))
            rc = flush(e, x);
        uint64_t at = wire_reader_offset(r);
        rc = rc ? rc : wire_read(e, r, &f);
        if (rc || !f)
            break;
        snprintf(where, sizeof where, "stdin: frame at byte %llu", (unsigned long long)at);
        rc = process(e, x, f, where);
    }
    wire_reader_free(r);
    return rc;
}

static int process_line(struct err *e, void *arg, const struct wire_frame *f, const uint8_t *data, const char *where)
{
    struct filter *x = arg;
    (void)data;
    int rc = process(e, x, f, where);
    return !rc && f->kind == WIRE_TICK ? flush(e, x) : rc;
}

static int skip_line(struct err *e, void *arg)
{
    struct filter *x = arg;
    x->o->log(x->o->log_arg, e->text);
    return 0;
}

static int finish(struct err *e, struct filter *x)
{
    struct wire_frame f = {.kind = WIRE_STAT};
    sched_stat(x->s, &f.stat);
    struct wire_frame bye = {.kind = WIRE_BYE};
    bye.bye.from = wire_str_of(x->o->prog);
    bye.bye.n_ok = f.stat.stop + f.stat.length;
    bye.bye.n_error = f.stat.submitted - bye.bye.n_ok;
    if (x->o->stat)
        emit(x, &f);
    if (!x->o->jsonl)
        emit(x, &bye);
    return flush(e, x);
}

static int run(struct err *e, struct filter *x)
{
    struct wire_frame hello = {.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION}};
    hello.hello.from = wire_str_of(x->o->prog);
    if (!x->o->jsonl)
        emit(x, &hello);
    const struct wire_lines lines = {.frame = process_line, .bad = skip_line, .arg = x};
    int rc = x->o->jsonl ? wire_read_lines(e, x->o->fd_in, "stdin", &lines) : read_frames(e, x);
    if (!rc && x->pending)
        rc = decide(e, x);
    return rc ? rc : finish(e, x);
}

int sched_run_filter(struct err *e, struct sched *s, const struct sched_filter *o)
{
    struct filter x = {.s = s, .o = o};
    int fd = o->jsonl ? dup(o->fd_out) : -1, rc = 0;
    if (o->jsonl) {
        x.out = fd < 0 ? NULL : fdopen(fd, "w");
        if (!x.out)
            rc = err_sys(e, "the output");
    } else {
        rc = wire_writer_new(e, &x.w, o->fd_out, "stdout");
    }
    if (rc)
        return rc;
    sched_set_sink(s, &(struct sched_sink){.emit = emit, .arg = &x});
    rc = run(e, &x);
    sched_set_sink(s, &(struct sched_sink){0});
    wire_writer_free(x.w);
    if (x.out && fclose(x.out) && !rc)
        rc = err_sys(e, "stdout");
    return rc;
}
