/*
 * Deals one stream out to several: the first frame of a request selects the next output, its other frames follow it.
 * Each output has a thread, which also opens it (opening a fifo waits for its reader), and a queue bounded in bytes, so
 * that a slow consumer delays the others only when its queue is full.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cmd/frames/frames.h"

#define QUEUE_BYTES_MAX ((size_t)64 << 20)

struct item {
    struct item *next;
    uint8_t *frame;
    size_t n;
};

struct output {
    const char *name;
    pthread_t thread;
    pthread_mutex_t lock; /* protects all fields below */
    pthread_cond_t changed;
    struct item *first, **last;
    size_t n_bytes;
    bool closed;
    struct err e;
};

/* Returns the oldest frame; NULL: the queue is closed and empty. */
static struct item *pop(struct output *o)
{
    pthread_mutex_lock(&o->lock);
    while (!o->first && !o->closed)
        pthread_cond_wait(&o->changed, &o->lock);
    struct item *it = o->first;
    if (it) {
        o->first = it->next;
        o->last = o->first ? o->last : &o->first;
        o->n_bytes -= it->n;
        pthread_cond_signal(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return it;
}

static void item_free(struct item *it)
{
    free(it->frame);
    free(it);
}

static int write_out(struct err *e, struct output *o, int fd)
{
    struct wire_writer *w;
    int rc = cli_no_tty(e, fd, "frames");
    rc = rc ? rc : wire_writer_new(e, &w, fd, o->name);
    if (rc)
        return rc;
    for (struct item *it; !rc && (it = pop(o));) {
        rc = wire_write_raw(e, w, it->frame, it->n);
        item_free(it);
    }
    wire_writer_free(w);
    return rc;
}

static void *output_main(void *arg)
{
    struct output *o = arg;
    struct err e = {0};
    int fd = open(o->name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = fd < 0 ? err_sys(&e, "%s", o->name) : write_out(&e, o, fd);
    if (fd >= 0 && close(fd) && !rc)
        rc = err_sys(&e, "%s", o->name);
    if (rc) {
        pthread_mutex_lock(&o->lock);
        o->e = e;
        pthread_cond_signal(&o->changed);
        pthread_mutex_unlock(&o->lock);
    }
    return NULL;
}

/* Queues the frame, which it owns from here on; waits while the queue is full. */
static int push(struct err *e, struct output *o, uint8_t *frame, size_t n)
{
    struct item *it = malloc(sizeof *it);
    if (!it) {
        free(frame);
        return err_nomem(e, "a queue", sizeof *it);
    }
    *it = (struct item){NULL, frame, n};
    pthread_mutex_lock(&o->lock);
    while (!o->e.code && o->first && o->n_bytes + n > QUEUE_BYTES_MAX)
        pthread_cond_wait(&o->changed, &o->lock);
    int rc = o->e.code;
    if (rc) {
        *e = o->e;
        item_free(it);
    } else {
        *o->last = it;
        o->last = &it->next;
        o->n_bytes += n;
        pthread_cond_signal(&o->changed);
    }
    pthread_mutex_unlock(&o->lock);
    return rc;
}

/* Sends hello and bye to all outputs with this program as sender, so that readers name the previous stage if a stream
 * ends early. */
static int to_all(struct err *e, struct output *o, size_t n_out, const struct wire_frame *f,
                  const struct owners *owners)
{
    struct wire_frame g = *f;
    int rc = 0;
    if (g.kind == WIRE_HELLO)
        g.hello.from = (struct wire_str){PROG, sizeof PROG - 1};
    else
        g.bye.from = (struct wire_str){PROG, sizeof PROG - 1};
    for (size_t i = 0; i < n_out && !rc; i++) {
        uint8_t *frame;
        size_t n;
        if (g.kind == WIRE_BYE)
            owners_count(owners, (uint32_t)i, &g.bye.n_ok, &g.bye.n_error);
        rc = wire_encode(e, &frame, &n, &g);
        rc = rc ? rc : push(e, &o[i], frame, n);
    }
    return rc;
}

static int to_one(struct err *e, struct output *o, size_t n_out, struct owners *owners, size_t *turn,
                  struct wire_reader *r, const struct wire_frame *f)
{
    uint64_t seq;
    uint32_t index, to;
    bool is_new;
    if (!frames_key(f, &seq, &index))
        return err_set(e, ERR_PROTO, "stdin: %s frames are not expected here", wire_kind_name(f->kind));
    int rc = owners_get(e, &to, &is_new, owners, seq, index, (uint32_t)(*turn % n_out));
    if (rc)
        return rc;
    *turn += is_new;
    if (f->kind == WIRE_ERR)
        owners_fail(owners, seq, index);
    uint8_t *frame;
    size_t n;
    rc = frames_take(e, &frame, &n, r, f);
    return rc ? rc : push(e, &o[to], frame, n);
}

static int deal(struct err *e, struct output *o, size_t n_out, struct wire_reader *r)
{
    struct owners *owners = owners_new();
    size_t turn = 0;
    int rc = owners ? 0 : err_nomem(e, "the table of requests", 0);
    for (struct wire_frame *f = NULL; !rc;) {
        rc = wire_read(e, r, &f);
        if (rc || !f)
            break;
        if (f->kind != WIRE_HELLO && f->kind != WIRE_BYE) {
            rc = to_one(e, o, n_out, owners, &turn, r, f);
            continue;
        }
        rc = to_all(e, o, n_out, f, owners);
        if (f->kind == WIRE_BYE && !rc) { /* the next stream has its own requests */
            owners_free(owners);
            owners = owners_new();
            rc = owners ? 0 : err_nomem(e, "the table of requests", 0);
        }
    }
    owners_free(owners);
    return rc;
}

static int start(struct err *e, struct output *o, const char *name)
{
    *o = (struct output){.name = name};
    o->last = &o->first;
    pthread_mutex_init(&o->lock, NULL);
    pthread_cond_init(&o->changed, NULL);
    errno = pthread_create(&o->thread, NULL, output_main, o);
    return errno ? err_sys(e, "cannot create a thread for %s", name) : 0;
}

/* Closes the queue: the thread writes what is queued, then closes its output. */
static void end(struct output *o)
{
    pthread_mutex_lock(&o->lock);
    o->closed = true;
    pthread_cond_signal(&o->changed);
    pthread_mutex_unlock(&o->lock);
}

/* Waits for the thread and returns its error. */
static int join(struct err *e, struct output *o)
{
    pthread_join(o->thread, NULL);
    if (o->e.code)
        *e = o->e;
    return o->e.code;
}

/* On an error this returns without waiting for the threads, because one may wait for a fifo's reader that never comes;
 * they end with the process. Streams ended so have no bye, which the next stages report. */
int frames_deal(struct err *e, char **out, size_t n_out)
{
    struct wire_reader *r;
    struct output *o = calloc(n_out, sizeof *o);
    int rc = o ? wire_reader_new(e, &r, STDIN_FILENO, "stdin") : err_nomem(e, "outputs", n_out * sizeof *o);
    for (size_t i = 0; i < n_out && !rc; i++)
        rc = start(e, &o[i], out[i]);
    rc = rc ? rc : deal(e, o, n_out, r);
    for (size_t i = 0; i < n_out && !rc; i++)
        end(&o[i]);
    for (size_t i = 0; i < n_out && !rc; i++)
        rc = join(e, &o[i]);
    if (rc)
        return rc;
    wire_reader_free(r);
    free(o);
    return 0;
}
