/* Dialed sessions: connecting, and connecting again after a failure. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "link/session_impl.h"

#define PATH_BYTES_MAX (sizeof((struct sockaddr_un *)NULL)->sun_path - 1)

static void on_dial(void *arg)
{
    hub_mark(&((struct session *)arg)->ready, READY_DIAL);
}

static void dial_now(struct session *s)
{
    s->dialing = true;
    nng_aio_set_timeout(s->dial, DIAL_MS_MAX);
    nng_stream_dialer_dial(s->dialer, s->dial);
}

/* The delay doubles with each failure; a connection that lasted a second resets it. */
void dial_again(struct session *s, bool refused, uint64_t now)
{
    if (s->closing)
        return;
    if (s->up_ms && now >= s->up_ms + SESSION_PING_MS)
        s->wait_ms = 0;
    s->up_ms = 0;
    s->wait_ms = s->wait_ms ? 2 * s->wait_ms : REDIAL_MS_MIN;
    s->wait_ms = s->wait_ms > REDIAL_MS_MAX ? REDIAL_MS_MAX : s->wait_ms;
    s->dial_ms = now + (refused ? REDIAL_REFUSED_MS : s->wait_ms);
    hub_due(s->h, s->dial_ms);
}

void dial_ready(struct session *s)
{
    struct err e;
    struct conn *c;
    s->dialing = false;
    int failed = nng_aio_result(s->dial);
    s->dial_error = failed ? nng_strerror(failed) : NULL;
    if (s->closing && !failed)
        nng_stream_free(nng_aio_get_output(s->dial, 0));
    else if (failed || conn_new(&e, &c, s->h, nng_aio_get_output(s->dial, 0), s, NULL))
        dial_again(s, false, session_now_ms());
}

void dial_tick(struct session *s, uint64_t now)
{
    if (!s->dialed || s->dialing || s->conn || s->closing)
        return;
    if (now >= s->dial_ms)
        dial_now(s);
    else
        hub_due(s->h, s->dial_ms);
}

void dial_stop(struct session *s)
{
    if (!s->dialer)
        return;
    nng_stream_dialer_close(s->dialer);
    if (s->dial)
        nng_aio_stop(s->dial);
    if (s->dialing && !nng_aio_result(s->dial))
        nng_stream_free(nng_aio_get_output(s->dial, 0));
    hub_unmark(&s->ready);
    nng_stream_dialer_free(s->dialer);
    nng_aio_free(s->dial);
}

static int dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                void *arg)
{
    struct session *s;
    int rc = session_url_check(e, url, &h->o.security);
    rc = rc ? rc : session_new(e, &s, h, url, arg);
    if (rc)
        return rc;
    s->dialed = true;
    s->plain = !role;
    s->ready = (struct ready){.h = h, .object = s};
    s->role = strdup(role ? role : "");
    int bad = s->role ? nng_stream_dialer_alloc(&s->dialer, session_url_stream(url)) : NNG_ENOMEM;
    bad = bad ? bad : nng_aio_alloc(&s->dial, on_dial, s);
    if (bad) {
        session_delete(s);
        return err_set(e, bad == NNG_ENOMEM ? ERR_SYS : ERR_USAGE, "%s: %s", url, nng_strerror(bad));
    }
    dial_now(s);
    *out = s;
    return 0;
}

int session_dial(struct err *e, struct session **out, struct session_hub *h, const char *url, const char *role,
                 void *arg)
{
    return dial(e, out, h, url, role, arg);
}

int session_dial_plain(struct err *e, struct session **out, struct session_hub *h, const char *url, void *arg)
{
    char ipc[sizeof "ipc://" + PATH_BYTES_MAX];
    if (strncmp(url, "unix:", 5))
        return dial(e, out, h, url, NULL, arg);
    if ((size_t)snprintf(ipc, sizeof ipc, "ipc://%s", url + 5) >= sizeof ipc)
        return err_set(e, ERR_USAGE, "'%s': the path of a socket has at most %zu bytes", url, PATH_BYTES_MAX);
    return dial(e, out, h, ipc, NULL, arg);
}
