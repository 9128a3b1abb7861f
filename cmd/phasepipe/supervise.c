/*
 * The supervisor: one event loop over output of services, their exits, requests, and timers.
 *
 *   WAITING ──▶ STARTING ──▶ READY        a crash leads to BACKING_OFF, and from there to STARTING
 *   DRAINING (after SIGTERM) ──▶ STARTING in a restart, EXITED in a shutdown
 */
#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/time.h"
#include "cli/cli.h"
#include "cmd/phasepipe/service.h"
#include "proc/notify.h"

#define WAIT_MS_MAX 1000
#define POLLS_MAX (3 + CLIENTS_MAX + 2 * SERVICES_MAX)
#define SWAP_FAILS_MAX 2
#define PIPE_READS 17 /* of 4,096 bytes: more than a pipe can hold */
#define LATE_MS 3000  /* minimum time for each step of a shutdown after a late one */

void super_log(struct super *s, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    cli_warn(UP, "%s", text);
    if (*s->log.path)
        log_line(&s->log, "up", text, strlen(text));
}

struct service *super_find(struct super *s, const char *name)
{
    struct service *found = NULL;
    size_t n_of_role = 0;
    for (size_t i = 0; i < s->n; i++) {
        if (!strcmp(s->service[i].name, name))
            return &s->service[i];
        if (!strcmp(s->service[i].role, name)) {
            found = &s->service[i];
            n_of_role++;
        }
    }
    return n_of_role == 1 ? found : NULL;
}

static void set_state(struct super *s, struct service *v, enum service_state state)
{
    v->state = state;
    s->changed = true;
}

static void fail(struct super *s, const struct err *e)
{
    if (!s->failed.code)
        s->failed = *e;
    s->at_once = !s->all_ready;
    super_end(s, s->at_once ? QUIT_MS : DRAIN_MS);
}

/*
 * Writes state.json. Failing to write it at startup is fatal, and so is the loss of the runtime directory. Later
 * failures (a full disk) are logged once, and retried each second.
 */
static void publish(struct super *s)
{
    struct err e = {0};
    if (!state_write(&e, s)) {
        s->changed = false;
        s->published = true;
        if (s->unwritten)
            super_log(s, "state.json is written again");
        s->unwritten = false;
        return;
    }
    if (!s->published || access(s->run, F_OK)) {
        s->changed = false;
        fail(s, &e);
        return;
    }
    s->changed = true;
    s->retry_ns = time_now_ns() + WAIT_MS_MAX * NS_MS;
    if (!s->unwritten)
        super_log(s, "%s; the services keep running, and the write is retried each second", e.text);
    s->unwritten = true;
}

/* ---- the states of a service ---- */

static bool store_is_ready(const struct super *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (!strcmp(s->service[i].role, "store"))
            return s->service[i].ever_ready;
    return true;
}

static void start(struct super *s, struct service *v)
{
    struct err e = {0};
    http_front_starts(s, v);
    if (service_spawn(&e, v, s->run)) {
        super_log(s, "%s", e.text);
        v->due_ns = time_now_ns() + BACKOFF_MS_MAX * NS_MS;
        set_state(s, v, SERVICE_BACKING_OFF);
        return;
    }
    set_state(s, v, SERVICE_STARTING);
}

static void announce(struct super *s)
{
    for (size_t i = 0; i < s->n; i++)
        if (s->service[i].state != SERVICE_READY)
            return;
    if (s->all_ready)
        return;
    s->all_ready = true;
    publish(s);
    http_front_announce(s);
    super_log(s, "ready in %.1f s: stream --run %s -p 'Hello'", (double)(time_now_ns() - s->begun_ns) / 1e9, s->run);
    s->ready(s->ready_arg);
}

static void end_line(struct service *v)
{
    if (!v->n_line)
        return;
    log_line(&v->log, v->name, v->line, v->n_line);
    if (!memmem(v->line, v->n_line, ": try '", 7)) /* the hint at --help comes after the reason */
        snprintf(v->last, sizeof v->last, "%.*s", (int)v->n_line, v->line);
    v->n_line = 0;
}

/* False: no more output now. */
static bool read_lines(struct service *v)
{
    char text[4096];
    ssize_t n = read(v->err_fd, text, sizeof text);
    if (n < 0)
        return errno == EINTR;
    if (n == 0) {
        close(v->err_fd);
        v->err_fd = -1;
        end_line(v);
        return false;
    }
    for (ssize_t i = 0; i < n; i++) {
        if (text[i] == '\n' || v->n_line == sizeof v->line)
            end_line(v);
        if (text[i] != '\n')
            v->line[v->n_line++] = text[i];
    }
    return true;
}

static void is_ready(struct super *s, struct service *v, const char *message)
{
    for (int i = 0; i < PIPE_READS && v->err_fd >= 0 && read_lines(v); i++) /* output from before it was ready */
        ;
    super_log(s, "%s is ready (%.2f s)", v->name, (double)(time_now_ns() - v->begun_ns) / 1e9);
    v->ever_ready = true;
    v->slow = false;
    v->fails = 0;
    set_state(s, v, SERVICE_READY);
    http_front_ready(s, v, message);
    if (s->all_ready && !strcmp(v->role, "edge")) /* after a restart: the port of Ollama may have become free */
        http_front_announce(s);
    if (v->swapped) {
        command_free(&v->former);
        v->swapped = false;
    }
    publish(s); /* before responses are sent: clients may read state.json */
    control_answer(s, v, NULL);
    announce(s);
}

/* The readiness message is one write that fits a pipe (proc/notify.h), so one read has all of it. */
static void read_ready(struct super *s, struct service *v)
{
    char text[PROC_READY_BYTES_MAX + 96];
    ssize_t n = read(v->ready_fd, text, sizeof text - 1);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    close(v->ready_fd);
    v->ready_fd = -1;
    if (n <= 0 || v->state != SERVICE_STARTING)
        return;
    text[n] = 0;
    if (!strncmp(text, "ready\n", 6))
        is_ready(s, v, text + 6);
    else
        super_log(s, "%s wrote '%.20s' to --ready-fd, which is not a readiness message", v->name, text);
}

static void close_pipes(struct service *v)
{
    while (v->err_fd >= 0 && read_lines(v))
        ;
    end_line(v);
    if (v->err_fd >= 0) /* a child of the service still has it open */
        close(v->err_fd);
    if (v->ready_fd >= 0)
        close(v->ready_fd);
    v->err_fd = v->ready_fd = -1;
}

/* The new policy does not start: starts the previous one again. */
static void swap_back(struct super *s, struct service *v, const char *why)
{
    char text[900];
    snprintf(text, sizeof text, "%s does not run (%s%s%s); %s is started again", command_program(&v->command), why,
             *v->last ? ": " : "", v->last, command_program(&v->former));
    super_log(s, "%s", text);
    command_free(&v->command);
    v->command = v->former;
    v->former = (struct command){0};
    v->swapped = false;
    v->fails = 0;
    control_answer(s, v, text);
    start(s, v);
}

/* A refused model or flag fails in each attempt. A lack of memory or a kill may be temporary. */
static bool is_permanent(int status)
{
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return code == ERR_NO || code == ERR_PROTO || code == ERR_USAGE;
}

static void never_ready(struct super *s, struct service *v, int status, const char *why)
{
    struct err e = {0};
    char times[64] = "cannot start";
    int code =
        is_permanent(status) || (WIFEXITED(status) && WEXITSTATUS(status) == ERR_SYS) ? WEXITSTATUS(status) : ERR_NO;
    if (v->fails > 1)
        snprintf(times, sizeof times, "failed %u times before it was ready", v->fails);
    err_set(&e, code, "%s %s: %s%s%s", v->name, times, why, *v->last ? ": " : "", v->last);
    set_state(s, v, SERVICE_EXITED);
    fail(s, &e);
}

/* The service exited without a request. */
static void service_crashed(struct super *s, struct service *v, int status)
{
    char why[80];
    uint64_t now = time_now_ns();
    bool was_ready = v->state == SERVICE_READY;
    status_words(why, sizeof why, status);
    v->fails = was_ready ? 0 : v->fails + 1;
    if (v->swapped && v->fails >= SWAP_FAILS_MAX) {
        swap_back(s, v, why);
        return;
    }
    if (!v->ever_ready && (is_permanent(status) || v->fails >= FAILS_MAX)) {
        never_ready(s, v, status, why);
        return;
    }
    if (now - v->begun_ns >= STEADY_MS * NS_MS || !v->backoff_ms)
        v->backoff_ms = BACKOFF_MS_MIN;
    super_log(s, "%s ended with %s; it is started again in %u ms", v->name, why, v->backoff_ms);
    v->due_ns = now + v->backoff_ms * NS_MS;
    v->backoff_ms = 2 * v->backoff_ms < BACKOFF_MS_MAX ? 2 * v->backoff_ms : BACKOFF_MS_MAX;
    v->restarts++;
    set_state(s, v, SERVICE_BACKING_OFF);
}

static void service_exited(struct super *s, struct service *v, int status)
{
    char why[80];
    close_pipes(v);
    v->pid = 0;
    v->born = 0;
    status_words(why, sizeof why, status);
    if (s->ending) {
        super_log(s, "%s has ended (%s)", v->name, why);
        set_state(s, v, SERVICE_EXITED);
    } else if (v->state == SERVICE_DRAINING) {
        super_log(s, "%s has ended (%s) and is started again", v->name, why);
        v->restarts++;
        start(s, v);
    } else {
        service_crashed(s, v, status);
    }
}

static void reap(struct super *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (size_t i = 0; i < s->n; i++)
            if (s->service[i].pid == pid)
                service_exited(s, &s->service[i], status);
}

static void terminate(struct super *s, struct service *v, int sig)
{
    kill(v->pid, sig);
    kill(v->pid, SIGCONT); /* a stopped process would not handle the signal */
    set_state(s, v, SERVICE_DRAINING);
}

void super_restart(struct super *s, struct service *v)
{
    v->backoff_ms = 0;
    if (!v->pid) {
        v->due_ns = 0;
        return;
    }
    v->due_ns = time_now_ns() + (v->crash_only ? 0 : s->plan->drain_s * 1000 * NS_MS);
    terminate(s, v, v->crash_only ? SIGKILL : SIGTERM);
}

/* ---- shutdown ---- */

void super_end(struct super *s, uint64_t timeout_ms)
{
    struct err e = {0};
    s->end_ns = time_now_ns() + timeout_ms * NS_MS;
    if (s->ending)
        return;
    s->ending = true;
    s->turn = -1;
    if (proc_notify(&e, "STOPPING=1", -1))
        super_log(s, "%s", e.text);
    http_front_close(s); /* the server closes its own copies when it drains */
    for (size_t i = 0; i < s->n; i++)
        if (!s->service[i].pid)
            set_state(s, &s->service[i], SERVICE_EXITED);
}

static bool is_leaving(const struct super *s, const struct service *v)
{
    return s->at_once || v->shutdown_order == s->turn;
}

/* Kills the services that are late: those of the current step, or all. Later steps still get their time: kvstore writes
 * blocks to its disk. */
static void kill_late(struct super *s, bool all)
{
    for (size_t i = 0; i < s->n; i++) {
        struct service *v = &s->service[i];
        if (!v->pid || v->state == SERVICE_EXITED || (!all && !is_leaving(s, v)))
            continue;
        super_log(s, "%s (pid %d) does not end: it is killed", v->name, (int)v->pid);
        kill(v->pid, SIGKILL);
        s->n_killed++;
        set_state(s, v, SERVICE_EXITED);
    }
}

/* Runs the steps of a shutdown; false: all services have ended. */
static bool shutdown_next(struct super *s)
{
    int next = INT_MAX;
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        const struct service *v = &s->service[i];
        any |= v->pid != 0;
        if (v->pid && v->shutdown_order < next)
            next = s->at_once ? 0 : v->shutdown_order;
    }
    if (!any)
        return false;
    if (s->terms > 1 || (time_now_ns() >= s->end_ns && next == s->turn)) {
        kill_late(s, s->terms > 1);
        return true;
    }
    if (next == s->turn)
        return true;
    if (s->turn >= 0 && s->end_ns < time_now_ns() + LATE_MS * NS_MS)
        s->end_ns = time_now_ns() + LATE_MS * NS_MS;
    s->turn = next;
    for (size_t i = 0; i < s->n; i++)
        if (s->service[i].pid && is_leaving(s, &s->service[i]))
            terminate(s, &s->service[i], SIGTERM);
    return true;
}

/* ---- the loop ---- */

/* Kills a service that is ready but no longer reports to the watchdog; it is then started again like after a crash. */
static void watchdog(struct super *s, struct service *v, uint64_t now)
{
    if (v->state != SERVICE_READY || !v->watchdog_ns || !v->alive_ns || now < v->alive_ns + v->watchdog_ns)
        return;
    super_log(s, "%s (pid %d) has not reported for %" PRIu64 " s: it hangs or is stopped, and is killed", v->name,
              (int)v->pid, v->watchdog_ns / NS_S);
    v->alive_ns = 0;
    kill(v->pid, SIGKILL);
}

/* Time in which the supervisor itself was stopped, or had no processor, does not count for the watchdog. */
static void excuse(struct super *s, uint64_t now)
{
    uint64_t late = now - s->turn_ns;
    s->turn_ns = now;
    if (late > 2 * WAIT_MS_MAX * NS_MS)
        for (size_t i = 0; i < s->n; i++)
            s->service[i].alive_ns += s->service[i].alive_ns ? late : 0;
}

static void run_timers(struct super *s)
{
    uint64_t now = time_now_ns();
    excuse(s, now);
    for (size_t i = 0; i < s->n && !s->ending; i++) {
        struct service *v = &s->service[i];
        watchdog(s, v, now);
        bool wants = v->state == SERVICE_WAITING || v->state == SERVICE_BACKING_OFF;
        if (wants && now >= v->due_ns && (!v->needs_store || store_is_ready(s)))
            start(s, v);
        if (v->state == SERVICE_STARTING && !v->slow && now >= v->begun_ns + SLOW_MS * NS_MS) {
            v->slow = true;
            super_log(s, "%s is not ready yet after %d s%s%s", v->name, SLOW_MS / 1000, *v->last ? ": " : "", v->last);
        }
        if (v->state == SERVICE_DRAINING && v->pid && !v->crash_only && now >= v->due_ns) {
            super_log(s, "%s (pid %d) does not end: it is killed", v->name, (int)v->pid);
            kill(v->pid, SIGKILL);
            v->due_ns = UINT64_MAX;
        }
    }
}

static int wait_ms(const struct super *s)
{
    uint64_t now = time_now_ns(), first = now + WAIT_MS_MAX * NS_MS;
    if (s->ending && s->end_ns < first)
        first = s->end_ns;
    for (size_t i = 0; i < s->n && !s->ending; i++) {
        const struct service *v = &s->service[i];
        bool timed = (v->state == SERVICE_WAITING && store_is_ready(s)) || v->state == SERVICE_BACKING_OFF ||
                     v->state == SERVICE_DRAINING;
        if (timed && v->due_ns < first)
            first = v->due_ns;
    }
    return first <= now ? 1 : (int)((first - now) / NS_MS + 1);
}

static void signals(struct super *s)
{
    struct signalfd_siginfo i;
    while (read(s->signal_fd, &i, sizeof i) == (ssize_t)sizeof i) {
        if (i.ssi_signo == SIGCHLD)
            continue;
        if (s->terms++ == 0) {
            super_log(s, "%s: draining the services; a second signal ends them at once", strsignal((int)i.ssi_signo));
            super_end(s, s->plan->drain_s * 1000);
        }
    }
    reap(s);
}

static size_t watch(struct super *s, struct pollfd *p, int *source)
{
    size_t n = 0;
#define WATCH(descriptor, number)                                                                                      \
    if ((descriptor) >= 0) {                                                                                           \
        source[n] = (number);                                                                                          \
        p[n++] = (struct pollfd){.fd = (descriptor), .events = POLLIN};                                                \
    }
    WATCH(s->signal_fd, -1)
    WATCH(s->notify_fd, -2)
    WATCH(s->control_fd, -3)
    for (int i = 0; i < CLIENTS_MAX; i++)
        WATCH(s->client[i].fd, -4 - i)
    for (int i = 0; i < (int)s->n; i++) {
        WATCH(s->service[i].err_fd, 2 * i)
        WATCH(s->service[i].ready_fd, 2 * i + 1)
    }
#undef WATCH
    return n;
}

/* Readiness and descriptors are handled before the exit of their sender, which is checked last. */
static void handle_fd(struct super *s, int source, int fd)
{
    struct service *v = source >= 0 ? &s->service[source / 2] : NULL;
    if (source == -2)
        keep_take(s);
    else if (source == -3)
        control_accept(s);
    else if (source <= -4 && s->client[-4 - source].fd == fd)
        control_take(s, &s->client[-4 - source]);
    else if (v && source % 2 == 0 && v->err_fd == fd)
        read_lines(v);
    else if (v && source % 2 == 1 && v->ready_fd == fd)
        read_ready(s, v);
}

static int loop(struct err *e, struct super *s)
{
    struct pollfd p[POLLS_MAX];
    int source[POLLS_MAX], rc = 0;
    while (!rc) {
        run_timers(s);
        if (s->ending && !shutdown_next(s))
            break;
        if (s->changed && time_now_ns() >= s->retry_ns)
            publish(s);
        size_t n = watch(s, p, source);
        if (!rc && poll(p, (nfds_t)n, wait_ms(s)) < 0 && errno != EINTR)
            rc = err_sys(e, "poll");
        for (size_t i = n; i-- > 0 && !rc;)
            if (p[i].revents && source[i] != -1)
                handle_fd(s, source[i], p[i].fd);
        if (!rc)
            signals(s);
    }
    return rc;
}

/* Signals are blocked and read from a descriptor; spawn.c unblocks them for services. */
static int take_signals(struct err *e, struct super *s)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    signal(SIGPIPE, SIG_IGN);
    if (sigprocmask(SIG_BLOCK, &set, NULL) || (s->signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)) < 0)
        return err_sys(e, "signals");
    return 0;
}

int super_run(struct err *e, struct super *s)
{
    s->begun_ns = s->turn_ns = time_now_ns();
    s->signal_fd = s->notify_fd = s->control_fd = -1;
    s->changed = true;
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        s->client[i] = (struct client){.fd = -1, .service = -1};
    int rc = take_signals(e, s);
    rc = rc ? rc : keep_open(e, &s->notify_fd, s->run);
    rc = rc ? rc : control_open(e, &s->control_fd, s->run);
    for (size_t i = 0; i < s->n; i++)
        s->service[i].watchdog_ns = s->plan->watchdog_s * NS_S;
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = log_open(e, &s->service[i].log, s->run, s->service[i].name, s->plan->detach);
    rc = rc ? rc : loop(e, s);
    for (size_t i = 0; i < s->n && rc; i++) /* the supervisor failed: kill all services */
        if (s->service[i].pid)
            kill(s->service[i].pid, SIGKILL);
    if (!rc && s->failed.code) {
        *e = s->failed;
        rc = e->code;
    }
    if (!rc && s->n_killed)
        rc = err_set(e, ERR_NO, "services that had to be killed: %zu", s->n_killed);
    for (size_t i = 0; i < s->n; i++) {
        keep_drop(&s->service[i]);
        log_close(&s->service[i].log);
        command_free(&s->service[i].command);
        command_free(&s->service[i].former);
    }
    return rc;
}
