/* Requests to the services: the gateway thread, and the output of its frames. See service.h. */
#include "cmd/stream/service.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/time.h"
#include "cli/cli.h"
#include "proc/proc.h"

#define LOG_QUIET_NS (10 * NS_S)
#define LOG_ABSENT_NS NS_S     /* a missing service is logged after this time */
#define GIVE_UP_NS (10 * NS_S) /* … and is an error if it was never connected */
#define ABSENT_MS 500          /* interval of the check */

void pieces_add(struct pieces *l, struct piece *x)
{
    *l->last = x;
    l->last = &x->next;
}

/* Removes all pieces from the list. */
static struct piece *pieces_all(struct pieces *l)
{
    struct piece *all = l->first;
    l->first = NULL;
    l->last = &l->first;
    return all;
}

static void pieces_free(struct piece *x)
{
    for (struct piece *next; x; x = next) {
        next = x->next;
        free(x->p);
        free(x->id);
        free(x);
    }
}

static void wake_fd(int fd)
{
    const uint64_t one = 1;
    ssize_t put = write(fd, &one, sizeof one);
    (void)put; /* if the counter is full, the descriptor is readable anyway */
}

void service_wake(struct service *s)
{
    wake_fd(s->wake);
}

/* ---- signals ---- */

static volatile sig_atomic_t interrupts;
static int interrupt_fd;

/* The second signal ends the program. */
static void on_interrupt(int sig)
{
    int saved = errno;
    if (interrupts++) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    wake_fd(interrupt_fd);
    errno = saved;
}

static int watch_interrupt(struct err *e, int fd)
{
    struct sigaction a = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&a.sa_mask);
    interrupt_fd = fd;
    return sigaction(SIGINT, &a, NULL) ? err_sys(e, "signals") : 0;
}

/* ---- the gateway thread ---- */

static struct slot *slot_of(struct service *s, uint64_t seq)
{
    for (uint64_t i = 0; i < s->o->running_max; i++)
        if (s->slot[i].used && s->slot[i].seq == seq)
            return &s->slot[i];
    return NULL;
}

static void fail(struct service *s, const struct err *e)
{
    pthread_mutex_lock(&s->lock);
    if (!s->gateway_err.code)
        s->gateway_err = *e;
    pthread_mutex_unlock(&s->lock);
}

static void push(struct service *s, const struct wire_frame *f)
{
    struct err e = {0};
    struct piece *x = calloc(1, sizeof *x);
    if (!x || wire_encode(&e, &x->p, &x->n, f)) {
        if (!x)
            err_nomem(&e, "a frame", sizeof *x);
        free(x);
        fail(s, &e);
        return;
    }
    s->last_received_ns = time_now_ns();
    pthread_mutex_lock(&s->lock);
    pieces_add(&s->frames, x);
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Adds the line number to the error of a line, as tokenize does. */
static void on_frame(void *arg, const struct wire_frame *f)
{
    struct service *s = arg;
    struct wire_frame mine = *f;
    char text[1024];
    if (f->kind == WIRE_ERR) {
        pthread_mutex_lock(&s->lock);
        const struct slot *at = slot_of(s, f->error.seq);
        if (at && at->line && !at->taken) {
            int n = snprintf(text, sizeof text, "line %" PRIu64 ": %.*s", at->line, (int)f->error.text.n,
                             f->error.text.n ? f->error.text.p : "");
            mine.error.text = (struct wire_str){text, n < (int)sizeof text ? (size_t)n : sizeof text - 1};
        }
        pthread_mutex_unlock(&s->lock);
    }
    push(s, &mine);
}

static void on_accepted(void *arg, uint64_t seq, uint32_t n_before, uint64_t eta_ns)
{
    struct service *s = arg;
    (void)n_before, (void)eta_ns;
    pthread_mutex_lock(&s->lock);
    struct slot *at = slot_of(s, seq);
    if (at)
        at->taken = true;
    pthread_mutex_unlock(&s->lock);
}

static void on_log(void *arg, const char *text)
{
    (void)arg;
    cli_warn(PROG, "%s", text);
}

static void take_lines(struct service *s)
{
    struct err e;
    pthread_mutex_lock(&s->lock);
    struct piece *all = pieces_all(&s->lines);
    pthread_mutex_unlock(&s->lock);
    for (struct piece *x = all; x; x = x->next)
        if (gateway_submit(&e, s->g, x->seq, (struct wire_str){x->id, x->n_id}, (const char *)x->p, x->n))
            fail(s, &e);
    if (all)
        s->last_received_ns = time_now_ns();
    pieces_free(all);
}

static void end_input(struct service *s, bool cancel)
{
    pthread_mutex_lock(&s->lock);
    s->input_over = true;
    pthread_cond_broadcast(&s->changed);
    for (uint64_t i = 0; cancel && i < s->o->running_max; i++)
        if (s->slot[i].used)
            gateway_cancel(s->g, s->slot[i].seq);
    pthread_mutex_unlock(&s->lock);
}

/* Logs a missing service once; fails if it was never connected. */
static void check_absent(struct service *s, bool *logged, bool *was_connected)
{
    uint64_t since = 0, now = time_now_ns();
    const char *url = gateway_absent(s->g, &since);
    if (!url) {
        *logged = false;
        *was_connected = true;
        return;
    }
    if (!*was_connected && now - since > GIVE_UP_NS) {
        struct err e;
        err_set(&e, ERR_SYS, "no service listens at %s", url);
        fail(s, &e);
    } else if (now - since > LOG_ABSENT_NS && !*logged) {
        *logged = true;
        cli_warn(PROG, "waiting for %s", url);
    }
}

/* Logs once that all services are connected but no token arrives: there are no workers, or all are busy. */
static void check_quiet(struct service *s, bool *logged)
{
    uint64_t since = 0, now = time_now_ns(), running = gateway_running(s->g);
    if (!running || gateway_absent(s->g, &since) || now - s->last_received_ns < LOG_QUIET_NS) {
        *logged = *logged && running && now - s->last_received_ns >= LOG_QUIET_NS;
        return;
    }
    if (!*logged)
        cli_warn(PROG, "no token received for %d s, %" PRIu64 " %s: phasepipe ctl sched shows the workers",
                 (int)(LOG_QUIET_NS / 1000000000), running, running == 1 ? "request waits" : "requests wait");
    *logged = true;
}

/* Waits for the gateway or a wake-up. False: the reader of standard output has closed it. */
static bool wait_for_events(struct service *s, uint64_t ms)
{
    struct pollfd p[] = {{.fd = s->wake, .events = POLLIN},
                         {.fd = STDOUT_FILENO, .events = 0},
                         {.fd = gateway_fd(s->g), .events = POLLIN}};
    (void)poll(p, s->over ? 2 : 3, ms > INT_MAX ? -1 : (int)ms);
    uint64_t count;
    ssize_t got = read(s->wake, &count, sizeof count);
    (void)got;
    return !(p[1].revents & (POLLERR | POLLHUP));
}

/* False: the thread must end. */
static bool check_state(struct service *s)
{
    pthread_mutex_lock(&s->lock);
    bool go_on = !s->quit && !s->gateway_err.code;
    s->over = s->over || !go_on || (s->input_over && !s->lines.first && !gateway_running(s->g));
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    return go_on;
}

/* Runs until the printer has ended, since only this thread handles signals. */
static void *gateway_main(void *arg)
{
    struct service *s = arg;
    struct err e;
    sigset_t set;
    bool logged = false, logged_quiet = false, was_connected = false, cancelled = false;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_UNBLOCK, &set, NULL);
    while (check_state(s)) {
        uint64_t ms = gateway_next_ms(s->g), since;
        if (!s->over && gateway_absent(s->g, &since) && ms > ABSENT_MS)
            ms = ABSENT_MS;
        if (!wait_for_events(s, ms)) {
            errno = EPIPE;
            err_sys(&e, "stdout");
            fail(s, &e);
            continue;
        }
        take_lines(s);
        if (interrupts && !cancelled)
            end_input(s, cancelled = true);
        else if (proc_term_count() && !cancelled)
            end_input(s, false);
        if (gateway_step(&e, s->g, 0))
            fail(s, &e);
        if (!s->over) {
            check_absent(s, &logged, &was_connected);
            check_quiet(s, &logged_quiet);
        }
    }
    return NULL;
}

/* ---- the printer ---- */

static void on_shown(void *arg, uint64_t seq, uint32_t n_choice)
{
    struct service *s = arg;
    pthread_mutex_lock(&s->lock);
    struct slot *at = slot_of(s, seq);
    if (at && !at->left)
        at->left = n_choice;
    if (at && !--at->left) {
        at->used = false;
        s->n_used--;
        pthread_cond_broadcast(&s->changed);
    }
    pthread_mutex_unlock(&s->lock);
}

static int print(struct err *e, struct service *s, struct wire_arena *a, const struct piece *x)
{
    struct wire_frame f;
    wire_arena_reset(a);
    int rc = wire_decode(e, &f, a, x->p, x->n);
    return rc ? rc : show_frame(e, s->show, &f);
}

static int print_all(struct err *e, struct service *s)
{
    struct wire_arena *a = wire_arena_new();
    int rc = a ? 0 : err_nomem(e, "frames", 0);
    for (bool over = false; !rc && !over;) {
        pthread_mutex_lock(&s->lock);
        while (!s->frames.first && !s->over)
            pthread_cond_wait(&s->changed, &s->lock);
        struct piece *all = pieces_all(&s->frames);
        over = !all;
        pthread_mutex_unlock(&s->lock);
        for (struct piece *x = all; x && !rc; x = x->next)
            rc = print(e, s, a, x);
        pieces_free(all);
    }
    wire_arena_free(a);
    return rc;
}

/* An error of the gateway is reported before the incomplete answers that it caused. */
static int result(struct err *e, struct service *s, int rc)
{
    pthread_mutex_lock(&s->lock);
    struct err why = s->gateway_err.code || rc ? s->gateway_err : s->reader_err;
    pthread_mutex_unlock(&s->lock);
    if (why.code)
        *e = why;
    if (why.code || rc)
        return e->code;
    if (order_bye(e, s->show->order))
        return e->code;
    if (!s->show->n_error && s->show->n_cancelled)
        return err_set(e, ERR_NO, "%" PRIu64 " %s cancelled", s->show->n_cancelled,
                       s->show->n_cancelled == 1 ? "answer was" : "answers were");
    return 0;
}

static int gateway_start(struct err *e, struct service *s)
{
    const struct gateway_opts o = {
        .sched = s->o->sched,
        .tokenize = s->o->tokenize,
        .listen = s->o->listen,
        .security = s->o->security,
        .deadline_ns = (uint64_t)(s->o->deadline_s * 1e9),
        .patience_ns = UINT64_MAX,
        .frame = on_frame,
        .accepted = on_accepted,
        .log = on_log,
        .arg = s,
    };
    proc_wake_soon(true);
    return gateway_open(e, &s->g, &o);
}

static void stop(struct service *s, const pthread_t *gateway, const pthread_t *reads)
{
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    bool ended = s->reader_over;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    service_wake(s);
    if (gateway)
        pthread_join(*gateway, NULL);
    gateway_close(s->g);
    s->show->view.shown = NULL;
    if (reads && !ended) {
        /* It may be blocked in a read until the process exits, so its memory is not freed. */
        pthread_detach(*reads);
        return;
    }
    if (reads)
        pthread_join(*reads, NULL);
    pieces_free(pieces_all(&s->lines));
    pieces_free(pieces_all(&s->frames));
    close(s->wake);
    free(s->slot);
    free(s);
}

int service(struct err *e, struct show *show, const struct service_opts *o)
{
    struct service *s = calloc(1, sizeof *s);
    pthread_t gateway, reads;
    sigset_t set;
    if (s)
        s->slot = calloc(o->running_max, sizeof *s->slot);
    if (!s || !s->slot) {
        free(s);
        return err_nomem(e, "requests", o->running_max * sizeof *s->slot);
    }
    s->o = o;
    s->show = show;
    pieces_all(&s->lines);
    pieces_all(&s->frames);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    show->view.shown = on_shown;
    show->view.arg = s;
    /* Only the gateway thread handles signals, so they interrupt no output. */
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int rc = s->wake < 0 ? err_sys(e, "eventfd") : watch_interrupt(e, s->wake);
    rc = rc ? rc : gateway_start(e, s);
    bool started = !rc && !pthread_create(&gateway, NULL, gateway_main, s);
    bool reading = started && !pthread_create(&reads, NULL, reader, s);
    if (!rc && !reading)
        rc = err_sys(e, "cannot start a thread");
    rc = rc ? rc : print_all(e, s);
    rc = result(e, s, rc);
    stop(s, started ? &gateway : NULL, reading ? &reads : NULL);
    return rc;
}
