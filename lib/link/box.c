/* The box: what nng's threads put in, and one thread takes out. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "link/ask_impl.h"

int link_box_new(struct err *e, struct link_box **out)
{
    struct link_box *b = calloc(1, sizeof *b);
    if (!b)
        return err_nomem(e, "a box", sizeof *b);
    b->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (b->fd < 0) {
        free(b);
        return err_sys(e, "eventfd");
    }
    pthread_mutex_init(&b->lock, NULL);
    *out = b;
    return 0;
}

void link_box_free(struct link_box *b)
{
    if (!b || b->stuck)
        return;
    if (b->held)
        nng_msg_free(b->held);
    close(b->fd);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

int link_box_fd(const struct link_box *b)
{
    return b->fd;
}

/* A counter that is full is readable too, so a write that would block is as good. */
void link_box_wake(struct link_box *b)
{
    int was = errno;
    const uint64_t one = 1;
    ssize_t put = write(b->fd, &one, sizeof one);
    (void)put;
    errno = was;
}

static uint64_t bytes(const struct box_item *i)
{
    return i->msg ? nng_msg_len(i->msg) : 0;
}

void box_put(struct link_box *b, struct box_item *i)
{
    i->in = true;
    i->next = NULL;
    i->prev = b->last;
    if (b->last)
        b->last->next = i;
    else
        b->first = i;
    b->last = i;
    b->n_bytes += bytes(i);
    if (!b->raised) {
        b->raised = true;
        link_box_wake(b);
    }
}

static void unlink_item(struct link_box *b, struct box_item *i)
{
    if (i->prev)
        i->prev->next = i->next;
    else
        b->first = i->next;
    if (i->next)
        i->next->prev = i->prev;
    else
        b->last = i->prev;
    i->in = false;
    b->n_bytes -= bytes(i);
}

void box_remove(struct link_box *b, struct box_item *i)
{
    unlink_item(b, i);
    if (i->msg)
        nng_msg_free(i->msg);
    i->msg = NULL;
}

void box_forget(struct link_box *b, const void *socket)
{
    pthread_mutex_lock(&b->lock);
    struct box_item *next;
    for (struct box_item *i = b->first; i; i = next) {
        next = i->next;
        if (i->socket == socket)
            box_remove(b, i);
    }
    pthread_mutex_unlock(&b->lock);
}

static void tell(struct link_event *out, const struct box_item *i)
{
    out->what = i->what;
    out->arg = i->arg;
    out->peer = i->peer;
    out->q = i->q;
    out->p = i->msg ? nng_msg_body(i->msg) : NULL;
    out->n = i->msg ? nng_msg_len(i->msg) : 0;
    out->err.code = 0;
    out->err.text[0] = '\0';
    if (i->what == LINK_FAILED)
        err_set(&out->err, ERR_SYS, "%s: no answer: %s", i->url, nng_strerror(i->failure));
}

bool link_box_take(struct link_box *b, struct link_event *out)
{
    if (b->held)
        nng_msg_free(b->held);
    b->held = NULL;
    pthread_mutex_lock(&b->lock);
    struct box_item *i = b->first;
    if (i) {
        unlink_item(b, i);
        tell(out, i);
        b->held = i->msg;
        i->msg = NULL;
    } else {
        uint64_t count;
        ssize_t got = read(b->fd, &count, sizeof count);
        (void)got;
        b->raised = false;
    }
    void (*taken)(struct box_item *) = i ? i->taken : NULL;
    pthread_mutex_unlock(&b->lock);
    if (taken)
        taken(i);
    return i != NULL;
}

void link_box_wait(struct link_box *b, int timeout_ms)
{
    struct pollfd p = {.fd = b->fd, .events = POLLIN};
    (void)poll(&p, 1, timeout_ms);
}
