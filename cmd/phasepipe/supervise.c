/*
 * The supervisor: one loop over what services write, what they become, what is asked, and what is due.
 *
 *   WAITING ──▶ STARTING ──▶ READY        a death leads to BACKING_OFF, and from there to STARTING again
 *   DRAINING (was sent SIGTERM) ──▶ STARTING where it is to be restarted, EXITED where all end
 */
#include <errno.h>
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
#define PIPE_READS 17 /* of 4,096 bytes: all that a pipe holds */
#define LATE_MS 3000  /* of each turn behind one that was late */

void super_say(struct super *s, const char *fmt, ...)
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

static void turn_to(struct super *s, struct service *v, enum service_state state)
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
 * Who cannot say from the start what runs is no use as a supervisor, nor is one whose directory is no more. A disk that
 * is full later is no reason to end what runs: it is said once, and tried again until there is room.
 */
static void publish(struct super *s)
{
    struct err e = {0};
    if (!state_write(&e, s)) {
        s->changed = false;
        s->published = true;
        if (s->unwritten)
            super_say(s, "state.json is written again");
        s->unwritten = false;
        return;
    }
    if (!s->published || access(s->run, F_OK)) {
        s->changed = false;
        fail(s, &e);
        return;
    }
    s->changed = true;
    s->again_ns = time_now_ns() + WAIT_MS_MAX * NS_MS;
    if (!s->unwritten)
        super_say(s, "%s; the services go on, and it is tried again each second", e.text);
    s->unwritten = true;
}

/* ---- a service's life ---- */

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
    edge_starts(s, v);
    if (service_spawn(&e, v, s->run)) {
        super_say(s, "%s", e.text);
        v->due_ns = time_now_ns() + BACKOFF_MS_MAX * NS_MS;
        turn_to(s, v, SERVICE_BACKING_OFF);
        return;
    }
    turn_to(s, v, SERVICE_STARTING);
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
    edge_announce(s);
    super_say(s, "ready in %.1f s: stream --run %s -p 'Hello'", (double)(time_now_ns() - s->begun_ns) / 1e9, s->run);
    s->ready(s->ready_arg);
}

static void end_line(struct service *v)
{
    if (!v->n_line)
        return;
    log_line(&v->log, v->name, v->line, v->n_line);
    snprintf(v->last, sizeof v->last, "%.*s", (int)v->n_line, v->line);
    v->n_line = 0;
}

/* False: nothing is there now. */
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
    for (int i = 0; i < PIPE_READS && v->err_fd >= 0 && read_lines(v); i++) /* what it said before it was */
        ;
    super_say(s, "%s is ready (%.2f s)", v->name, (double)(time_now_ns() - v->begun_ns) / 1e9);
    v->ever_ready = true;
    v->slow = false;
    v->fails = 0;
    turn_to(s, v, SERVICE_READY);
    edge_ready(s, v, message);
    if (s->all_ready && !strcmp(v->role, "edge")) /* again: Ollama's port may have become free */
        edge_announce(s);
    if (v->swapped) {
        command_free(&v->former);
        v->swapped = false;
    }
    publish(s); /* before anybody is told: he may look */
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
        super_say(s, "%s wrote '%.20s' to --ready-fd, which is not a readiness message", v->name, text);
}

static void close_pipes(struct service *v)
{
    while (v->err_fd >= 0 && read_lines(v))
        ;
    end_line(v);
    if (v->err_fd >= 0) /* held open by a child of its own */
        close(v->err_fd);
    if (v->ready_fd >= 0)
        close(v->ready_fd);
    v->err_fd = v->ready_fd = -1;
}

/* The policy that was put in place does not run: the one before comes back. */
static void swap_back(struct super *s, struct service *v, const char *why)
{
    char text[900];
    snprintf(text, sizeof text, "%s does not run (%s%s%s); %s is back", command_program(&v->command), why,
             *v->last ? ": " : "", v->last, command_program(&v->former));
    super_say(s, "%s", text);
    command_free(&v->command);
    v->command = v->former;
    v->former = (struct command){0};
    v->swapped = false;
    v->fails = 0;
    control_answer(s, v, text);
    start(s, v);
}

/* A model or a flag that is refused is refused the next time too. A lack of memory or a kill may pass. */
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
    turn_to(s, v, SERVICE_EXITED);
    fail(s, &e);
}

/* It died although nobody asked it to. */
static void fell(struct super *s, struct service *v, int status)
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
    super_say(s, "%s ended with %s; it is started again in %u ms", v->name, why, v->backoff_ms);
    v->due_ns = now + v->backoff_ms * NS_MS;
    v->backoff_ms = 2 * v->backoff_ms < BACKOFF_MS_MAX ? 2 * v->backoff_ms : BACKOFF_MS_MAX;
    v->restarts++;
    turn_to(s, v, SERVICE_BACKING_OFF);
}

static void died(struct super *s, struct service *v, int status)
{
    char why[80];
    close_pipes(v);
    v->pid = 0;
    v->born = 0;
    status_words(why, sizeof why, status);
    if (s->ending) {
        super_say(s, "%s has ended (%s)", v->name, why);
        turn_to(s, v, SERVICE_EXITED);
    } else if (v->state == SERVICE_DRAINING) {
        super_say(s, "%s has ended (%s) and is started again", v->name, why);
        v->restarts++;
        start(s, v);
    } else {
        fell(s, v, status);
    }
}

static void reap(struct super *s)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (size_t i = 0; i < s->n; i++)
            if (s->service[i].pid == pid)
                died(s, &s->service[i], status);
}

static void leave(struct super *s, struct service *v, int sig)
{
    kill(v->pid, sig);
    kill(v->pid, SIGCONT); /* one that was stopped could not obey */
    turn_to(s, v, SERVICE_DRAINING);
}

void super_restart(struct super *s, struct service *v)
{
    v->backoff_ms = 0;
    if (!v->pid) {
        v->due_ns = 0;
        return;
    }
    v->due_ns = time_now_ns() + (v->crash_only ? 0 : s->plan->drain_s * 1000 * NS_MS);
    leave(s, v, v->crash_only ? SIGKILL : SIGTERM);
}

/* ---- the end of all ---- */

void super_end(struct super *s, uint64_t timeout_ms)
{
    struct err e = {0};
    s->end_ns = time_now_ns() + timeout_ms * NS_MS;
    if (s->ending)
        return;
    s->ending = true;
    s->turn = -1;
    if (proc_notify(&e, "STOPPING=1", -1))
        super_say(s, "%s", e.text);
    edge_close(s); /* the server closes its own copies when it drains */
    for (size_t i = 0; i < s->n; i++)
        if (!s->service[i].pid)
            turn_to(s, &s->service[i], SERVICE_EXITED);
}

static bool has_turn(const struct super *s, const struct service *v)
{
    return s->at_once || v->leaves == s->turn;
}

/* Those whose turn it was, or all. Those behind them get their time still: kvstore has blocks to write to its disk. */
static void kill_late(struct super *s, bool all)
{
    for (size_t i = 0; i < s->n; i++) {
        struct service *v = &s->service[i];
        if (!v->pid || v->state == SERVICE_EXITED || (!all && !has_turn(s, v)))
            continue;
        super_say(s, "%s (pid %d) does not end: it is killed", v->name, (int)v->pid);
        kill(v->pid, SIGKILL);
        s->n_killed++;
        turn_to(s, v, SERVICE_EXITED);
    }
}

/* Whose turn it is to leave; false: all have. */
static bool leave_in_turn(struct super *s)
{
    int next = INT_MAX;
    bool any = false;
    for (size_t i = 0; i < s->n; i++) {
        const struct service *v = &s->service[i];
        any |= v->pid != 0;
        if (v->pid && v->leaves < next)
            next = s->at_once ? 0 : v->leaves;
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
        if (s->service[i].pid && has_turn(s, &s->service[i]))
            leave(s, &s->service[i], SIGTERM);
    return true;
}

/* ---- the loop ---- */

static void due(struct super *s)
{
    uint64_t now = time_now_ns();
    for (size_t i = 0; i < s->n && !s->ending; i++) {
        struct service *v = &s->service[i];
        bool wants = v->state == SERVICE_WAITING || v->state == SERVICE_BACKING_OFF;
        if (wants && now >= v->due_ns && (!v->needs_store || store_is_ready(s)))
            start(s, v);
        if (v->state == SERVICE_STARTING && !v->slow && now >= v->begun_ns + SLOW_MS * NS_MS) {
            v->slow = true;
            super_say(s, "%s is not ready yet after %d s%s%s", v->name, SLOW_MS / 1000, *v->last ? ": " : "", v->last);
        }
        if (v->state == SERVICE_DRAINING && v->pid && !v->crash_only && now >= v->due_ns) {
            super_say(s, "%s (pid %d) does not end: it is killed", v->name, (int)v->pid);
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
            super_say(s, "%s: the services are drained; once more ends them at once", strsignal((int)i.ssi_signo));
            super_end(s, s->plan->drain_s * 1000);
        }
    }
    reap(s);
}

static size_t watch(struct super *s, struct pollfd *p, int *who)
{
    size_t n = 0;
#define WATCH(descriptor, number)                                                                                      \
    if ((descriptor) >= 0) {                                                                                           \
        who[n] = (number);                                                                                             \
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

/* Readiness and descriptors come before the death of their sender, which is looked at last. */
static void happened(struct super *s, int who, int fd)
{
    struct service *v = who >= 0 ? &s->service[who / 2] : NULL;
    if (who == -2)
        keep_take(s);
    else if (who == -3)
        control_accept(s);
    else if (who <= -4 && s->client[-4 - who].fd == fd)
        control_take(s, &s->client[-4 - who]);
    else if (v && who % 2 == 0 && v->err_fd == fd)
        read_lines(v);
    else if (v && who % 2 == 1 && v->ready_fd == fd)
        read_ready(s, v);
}

static int loop(struct err *e, struct super *s)
{
    struct pollfd p[POLLS_MAX];
    int who[POLLS_MAX], rc = 0;
    while (!rc) {
        due(s);
        if (s->ending && !leave_in_turn(s))
            break;
        if (s->changed && time_now_ns() >= s->again_ns)
            publish(s);
        size_t n = watch(s, p, who);
        if (!rc && poll(p, (nfds_t)n, wait_ms(s)) < 0 && errno != EINTR)
            rc = err_sys(e, "poll");
        for (size_t i = n; i-- > 0 && !rc;)
            if (p[i].revents && who[i] != -1)
                happened(s, who[i], p[i].fd);
        if (!rc)
            signals(s);
    }
    return rc;
}

/* Signals come by a descriptor; services have them unblocked again (spawn.c). */
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
    s->begun_ns = time_now_ns();
    s->signal_fd = s->notify_fd = s->control_fd = -1;
    s->changed = true;
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        s->client[i] = (struct client){.fd = -1, .service = -1};
    int rc = take_signals(e, s);
    rc = rc ? rc : keep_open(e, &s->notify_fd, s->run);
    rc = rc ? rc : control_open(e, &s->control_fd, s->run);
    for (size_t i = 0; i < s->n && !rc; i++)
        rc = log_open(e, &s->service[i].log, s->run, s->service[i].name, s->plan->detach);
    rc = rc ? rc : loop(e, s);
    for (size_t i = 0; i < s->n && rc; i++) /* the supervisor itself failed: nothing may be left */
        if (s->service[i].pid)
            kill(s->service[i].pid, SIGKILL);
    if (!rc && s->failed.code) {
        *e = s->failed;
        rc = e->code;
    }
    if (!rc && s->n_killed)
        rc = err_set(e, ERR_NO, "%zu had to be killed", s->n_killed);
    for (size_t i = 0; i < s->n; i++) {
        keep_drop(&s->service[i]);
        log_close(&s->service[i].log);
        command_free(&s->service[i].command);
        command_free(&s->service[i].former);
    }
    return rc;
}
