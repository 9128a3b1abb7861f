/*
 * The supervisor's control socket: requests of several clients, valid and invalid, in any order, clients that leave,
 * services that become ready or fail, and the shutdown. Each client gets at most one response, which is one of JSON's
 * objects that the client side understands; no descriptor is left open. Input: operations of a few bytes.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Its source, because a program's functions are in no library. */
#include "cmd/phasepipe/control.c"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static struct super s;
static struct plan plan;
static const char *const names[] = {"sched", "decode-0", "prefill-0"};
static int theirs[CLIENTS_MAX]; /* the other ends; -1: none */
static int responses[CLIENTS_MAX];
static const uint8_t *in;
static size_t n_in;

/* ---- the supervisor ---- */

void super_log(struct super *v, const char *fmt, ...)
{
    (void)v, (void)fmt;
}

struct service *super_find(struct super *v, const char *name)
{
    for (size_t i = 0; i < v->n; i++)
        if (!strcmp(v->service[i].name, name))
            return &v->service[i];
    return NULL;
}

void super_restart(struct super *v, struct service *w)
{
    assert(w >= v->service && w < v->service + v->n && !v->ending);
}

void super_end(struct super *v, uint64_t timeout_ms)
{
    (void)timeout_ms;
    v->ending = true;
}

int plan_sched(struct err *e, struct command *out, const struct plan *p, const char *run, const char *policy)
{
    (void)out, (void)p, (void)run;
    assert(policy && !memchr(policy, '/', strcspn(policy, " ")));
    return *policy == 's' ? 0 : err_set(e, ERR_USAGE, "unknown policy '%.60s'", policy);
}

void command_free(struct command *c)
{
    c->n = 0;
}

const char *command_program(const struct command *c)
{
    return c->path;
}

/* ---- the input ---- */

static unsigned byte(void)
{
    if (!n_in)
        return 0;
    n_in--;
    return *in++;
}

static void connect_client(size_t i)
{
    int pair[2];
    if (theirs[i] >= 0 || s.client[i].fd >= 0)
        return;
    assert(!socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair));
    theirs[i] = pair[0];
    responses[i] = 0;
    s.client[i] = (struct client){.fd = pair[1], .service = -1};
}

static void leave(size_t i)
{
    if (theirs[i] >= 0)
        close(theirs[i]);
    theirs[i] = -1;
}

static void send_request(size_t i)
{
    static const char *const valid[] = {"{\"do\":\"restart\",\"service\":\"decode-0\"}",
                                        "{\"do\":\"restart\",\"service\":\"sched\"}",
                                        "{\"do\":\"sched\",\"policy\":\"sched-fcfs\"}",
                                        "{\"do\":\"sched\",\"policy\":\"none\"}",
                                        "{\"do\":\"sched\",\"policy\":\"./mine\"}",
                                        "{\"do\":\"sched\",\"policy\":\"sched-exec ./mine\"}",
                                        "{\"do\":\"down\",\"timeout_ms\":100}",
                                        "{\"do\":\"restart\"}",
                                        "{\"do\":\"sched\"}",
                                        "{}",
                                        "{\"do\":17}",
                                        "[]"};
    unsigned which = byte() % 24;
    char text[256];
    size_t n;
    if (which < 12) {
        n = strlen(valid[which]);
        memcpy(text, valid[which], n);
        if (byte() % 4 == 0)
            text[byte() % n] = (char)byte();
    } else {
        n = byte() % sizeof text;
        for (size_t k = 0; k < n; k++)
            text[k] = (char)byte();
    }
    if (theirs[i] >= 0)
        (void)!send(theirs[i], text, n, MSG_NOSIGNAL);
}

static void take_all(void)
{
    for (size_t i = 0; i < CLIENTS_MAX; i++)
        if (s.client[i].fd >= 0)
            control_take(&s, &s.client[i]);
}

static void read_responses(void)
{
    char text[MESSAGE_BYTES_MAX];
    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        ssize_t n;
        while (theirs[i] >= 0 && (n = recv(theirs[i], text, sizeof text, 0)) > 0) {
            json_t *o = json_loadb(text, (size_t)n, 0, NULL);
            assert(json_is_true(json_object_get(o, "ok")) ||
                   (json_is_string(json_object_get(o, "error")) && json_is_integer(json_object_get(o, "code"))));
            json_decref(o);
            assert(++responses[i] == 1);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    in = p;
    n_in = n;
    memset(&s, 0, sizeof s);
    s.plan = &plan;
    s.n = sizeof names / sizeof *names;
    for (size_t i = 0; i < s.n; i++)
        snprintf(s.service[i].name, sizeof s.service[i].name, "%s", names[i]);
    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        s.client[i] = (struct client){.fd = -1, .service = -1};
        theirs[i] = -1;
    }
    while (n_in) {
        unsigned op = byte();
        size_t i = byte() % CLIENTS_MAX;
        if (op % 8 < 2)
            connect_client(i);
        else if (op % 8 < 5)
            send_request(i);
        else if (op % 8 == 5)
            leave(i);
        else if (op % 8 == 6)
            control_answer(&s, &s.service[i % s.n], op & 8 ? NULL : "it does not start");
        take_all();
        read_responses();
    }
    control_end(&s);
    read_responses();
    for (size_t i = 0; i < CLIENTS_MAX; i++) {
        assert(s.client[i].fd < 0);
        leave(i);
    }
    return 0;
}
