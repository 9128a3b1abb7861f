/*
 * Requests to the supervisor: JSON objects in messages of a SEQPACKET socket, one request a connection.
 *
 *   {"do":"restart","service":NAME}   response when the service is ready again
 *   {"do":"sched","policy":POLICY}    the same with another policy; if that fails, the old one is started again
 *   {"do":"down","timeout_ms":N}      response when all services have ended
 *
 * The response: {"ok":true}, or {"error":TEXT,"code":CODE}.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <jansson.h>

#include "base/socket.h"
#include "base/time.h"
#include "cmd/phasepipe/service.h"

#define MESSAGE_BYTES_MAX 8192

static struct sockaddr_un address(const char *run)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof a.sun_path, "%s/up.sock", run);
    return a;
}

/* The supervisor holds the lock of the directory, so a socket there is stale. */
int socket_path_clear(struct err *e, const char *path)
{
    struct stat st;
    if (lstat(path, &st))
        return 0; /* if it cannot be bound either, bind reports why */
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_NO, "%s: not a socket: remove it, or use another --run directory", path);
    return unlink(path) ? err_sys(e, "%s", path) : 0;
}

int control_open(struct err *e, int *fd, const char *run)
{
    struct sockaddr_un a = address(run);
    if (socket_path_clear(e, a.sun_path))
        return e->code;
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (*fd < 0 || bind(*fd, (const struct sockaddr *)(const void *)&a, sizeof a) || listen(*fd, CLIENTS_MAX))
        return err_sys(e, "%s", a.sun_path);
    return 0;
}

void control_accept(struct super *s)
{
    int fd = accept4(s->control_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd < 0)
        return;
    if (!socket_trusts_peer(fd, address(s->run).sun_path)) {
        close(fd);
        return;
    }
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (s->client[i].fd < 0) {
            s->client[i] = (struct client){.fd = fd, .service = -1};
            return;
        }
    close(fd);
}

static void reply(struct client *c, const char *why, int code)
{
    json_t *o = why ? json_pack("{s:s,s:i}", "error", why, "code", code) : json_pack("{s:b}", "ok", 1);
    char text[MESSAGE_BYTES_MAX];
    size_t n = o ? json_dumpb(o, text, sizeof text, JSON_COMPACT) : 0;
    if (n && n <= sizeof text && send(c->fd, text, n, MSG_NOSIGNAL) < 0)
        n = 0; /* the client has closed its connection */
    json_decref(o);
    close(c->fd);
    *c = (struct client){.fd = -1, .service = -1};
}

void control_answer(struct super *s, const struct service *v, const char *why)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (s->client[i].fd >= 0 && s->client[i].service == (int)(v - s->service))
            reply(&s->client[i], why, ERR_NO);
}

void control_end(struct super *s)
{
    char text[64];
    snprintf(text, sizeof text, "services that had to be killed: %zu", s->n_killed);
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (s->client[i].fd >= 0)
            reply(&s->client[i],
                  !s->client[i].down ? "the services are shutting down"
                  : s->n_killed      ? text
                                     : NULL,
                  ERR_NO);
}

/* Replaces the policy; the old command is kept until the new one is ready. */
static int swap(struct err *e, struct super *s, struct service *v, const char *policy)
{
    struct command next = {0};
    if (!policy)
        return err_set(e, ERR_USAGE, "a policy is required");
    size_t name = strcspn(policy, " ");
    bool any = memchr(policy, '/', name) || (name == strlen("sched-exec") && !strncmp(policy, "sched-exec", name));
    if (any && !s->plan->any_policy)
        return err_set(e, ERR_NO,
                       "'%.60s' may run any program; a running supervisor starts only the policies beside it "
                       "(phasepipe up --any-policy permits others)",
                       policy);
    int rc = plan_sched(e, &next, s->plan, s->run, policy);
    if (rc) {
        command_free(&next);
        return rc;
    }
    if (v->former.n)
        command_free(&v->command);
    else
        v->former = v->command;
    v->command = next;
    v->swapped = true;
    v->fails = 0;
    super_log(s, "%s is replaced by %s", command_program(&v->former), command_program(&v->command));
    super_restart(s, v);
    return 0;
}

static int run_command(struct err *e, struct super *s, struct client *c, const json_t *o)
{
    const char *what = json_string_value(json_object_get(o, "do"));
    const char *name = json_string_value(json_object_get(o, "service"));
    if (!what)
        return err_set(e, ERR_PROTO, "the request has no field \"do\"");
    if (!strcmp(what, "down")) {
        json_int_t ms = json_integer_value(json_object_get(o, "timeout_ms"));
        c->down = true;
        super_end(s, ms > 0 ? (uint64_t)ms : 0);
        return 0;
    }
    bool swaps = !strcmp(what, "sched");
    if (!swaps && strcmp(what, "restart"))
        return err_set(e, ERR_PROTO, "unknown request '%.40s'", what);
    if (s->ending)
        return err_set(e, ERR_NO, "the services are shutting down");
    struct service *v = super_find(s, swaps ? "sched" : name ? name : "");
    if (!v)
        return err_set(e, ERR_NO, "unknown service '%.60s': phasepipe ps lists the services", name ? name : "");
    c->service = (int)(v - s->service);
    if (swaps)
        return swap(e, s, v, json_string_value(json_object_get(o, "policy")));
    super_restart(s, v);
    return 0;
}

void control_take(struct super *s, struct client *c)
{
    char text[MESSAGE_BYTES_MAX];
    struct err e = {0};
    ssize_t n = recv(c->fd, text, sizeof text, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0 || c->service >= 0 || c->down) { /* it closed its connection, or sends a second request */
        close(c->fd);
        *c = (struct client){.fd = -1, .service = -1};
        return;
    }
    json_t *o = json_loadb(text, (size_t)n, 0, NULL);
    int rc = o ? run_command(&e, s, c, o) : err_set(&e, ERR_PROTO, "the request is not JSON");
    json_decref(o);
    if (rc)
        reply(c, e.text, e.code);
}

/* ---- the client: ctl and down ---- */

static int answer(struct err *e, int fd, int timeout_ms, const char *path)
{
    char text[MESSAGE_BYTES_MAX];
    uint64_t end = time_now_ns() + (uint64_t)(timeout_ms < 0 ? 0 : timeout_ms) * 1000000;
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int r;
    do {
        uint64_t now = time_now_ns();
        r = poll(&p, 1, timeout_ms < 0 ? -1 : now >= end ? 0 : (int)((end - now) / 1000000 + 1));
    } while (r < 0 && errno == EINTR);
    if (r <= 0)
        return err_set(e, ERR_NO, "no response of the supervisor at %s within %d s", path, timeout_ms / 1000);
    ssize_t n = recv(fd, text, sizeof text, 0);
    json_t *o = n > 0 ? json_loadb(text, (size_t)n, 0, NULL) : NULL;
    const char *why = json_string_value(json_object_get(o, "error"));
    int rc = 0;
    if (!o)
        rc = err_set(e, ERR_NO, "the supervisor ended without a response");
    else if (why)
        rc = err_set(e, (int)json_integer_value(json_object_get(o, "code")), "%s", why);
    json_decref(o);
    return rc;
}

int control_ask(struct err *e, const char *run, json_t *request, int timeout_ms)
{
    struct sockaddr_un a = address(run);
    char text[MESSAGE_BYTES_MAX];
    size_t n = request ? json_dumpb(request, text, sizeof text, JSON_COMPACT) : 0;
    if (!n || n > sizeof text)
        return err_set(e, ERR_USAGE, "the request to the supervisor exceeds %zu bytes", sizeof text);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), rc = 0;
    if (fd < 0)
        rc = err_sys(e, "socket");
    else if (connect(fd, (const struct sockaddr *)(const void *)&a, sizeof a))
        rc = errno == ENOENT || errno == ECONNREFUSED
                 ? err_set(e, ERR_NO, "no supervisor runs in %s (phasepipe up starts one)", run)
                 : err_sys(e, "%s", a.sun_path);
    else if (send(fd, text, n, MSG_NOSIGNAL) < 0)
        rc = err_sys(e, "%s", a.sun_path);
    rc = rc ? rc : answer(e, fd, timeout_ms, a.sun_path);
    if (fd >= 0)
        close(fd);
    return rc;
}
