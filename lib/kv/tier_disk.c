#include "kv/tier_impl.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/file.h"
#include "base/time.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define READ_AHEAD 8 /* limit of blocks that were read and not collected by disk_done: bounds the memory */

struct jobs {
    struct list list; /* disk_job.node */
    uint64_t n;
};

struct disk {
    int fd, event;
    size_t data_bytes;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, done;
    struct jobs reads, writes, finished;
    uint64_t n_read; /* reads in `finished` */
    bool busy, stop, ended;
    bool detached; /* disk_close has returned: the thread frees the disk when it ends */
};

static void push(struct jobs *q, struct disk_job *j)
{
    list_push_back(&q->list, &j->node);
    q->n++;
}

static struct disk_job *pop(struct jobs *q)
{
    struct list *n = list_pop_front(&q->list);
    q->n -= n != NULL;
    return n ? list_entry(n, struct disk_job, node) : NULL;
}

void disk_job_free(struct disk_job *j)
{
    if (j)
        free(j->bytes);
    free(j);
}

/* ---- the thread ---- */

/* Writes head and bytes in one system call if the kernel takes all. */
static bool write_all(const struct disk *d, const struct disk_job *j)
{
    struct iovec iov[2] = {{(void *)(uintptr_t)j->head, TIER_PAGE}, {j->bytes, d->data_bytes}};
    off_t at = j->at;
    for (int k = 0; k < 2;) {
        ssize_t n = pwritev(d->fd, iov + k, 2 - k, at);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n;
        for (size_t left = (size_t)n; k < 2 && left;) {
            size_t step = left < iov[k].iov_len ? left : iov[k].iov_len;
            iov[k].iov_base = (uint8_t *)iov[k].iov_base + step;
            iov[k].iov_len -= step;
            left -= step;
            k += iov[k].iov_len == 0;
        }
    }
    return true;
}

static void erase(const struct disk *d, const struct disk_job *j)
{
    static const uint8_t none[512];
    (void)!pwrite(d->fd, none, sizeof none,
                  j->at); /* best effort: if it fails, the checksum detects the record again */
}

static void work(const struct disk *d, struct disk_job *j)
{
    switch (j->what) {
    case DISK_READ:
        j->bytes = malloc(d->data_bytes);
        j->whole = j->bytes && file_read_at(d->fd, j->bytes, d->data_bytes, j->at + TIER_PAGE) &&
                   XXH3_64bits(j->bytes, d->data_bytes) == j->b.sum;
        return;
    case DISK_WRITE:
        j->whole = write_all(d, j);
        j->error = j->whole ? 0 : errno;
        if (!j->whole)
            erase(d, j);
        return;
    case DISK_ERASE:
        erase(d, j);
        j->whole = true;
        return;
    }
}

static void add_done(struct disk *d, struct disk_job *j)
{
    d->n_read += j->what == DISK_READ;
    push(&d->finished, j);
    (void)!write(d->event, &(uint64_t){1}, sizeof(uint64_t));
    pthread_cond_broadcast(&d->done);
}

static void destroy(struct disk *d)
{
    for (struct jobs *q = &d->reads; q; q = q == &d->reads ? &d->writes : q == &d->writes ? &d->finished : NULL)
        for (struct disk_job *j; (j = pop(q));)
            disk_job_free(j);
    if (d->event >= 0)
        close(d->event);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->work);
    pthread_cond_destroy(&d->done);
    free(d);
}

static void *loop(void *arg)
{
    struct disk *d = arg;
    pthread_mutex_lock(&d->lock);
    while (!d->stop) {
        struct disk_job *j = d->n_read < READ_AHEAD ? pop(&d->reads) : NULL;
        j = j ? j : pop(&d->writes);
        if (!j) {
            pthread_cond_wait(&d->work, &d->lock);
            continue;
        }
        d->busy = true;
        pthread_mutex_unlock(&d->lock);
        work(d, j);
        pthread_mutex_lock(&d->lock);
        d->busy = false;
        add_done(d, j);
    }
    d->ended = true;
    pthread_cond_broadcast(&d->done);
    bool detached = d->detached;
    pthread_mutex_unlock(&d->lock);
    if (detached) {
        close(d->fd);
        destroy(d);
    }
    return NULL;
}

/* ---- the caller's side ---- */

int disk_open(struct err *e, struct disk **out, int fd, size_t data_bytes)
{
    sigset_t all, old;
    pthread_condattr_t monotonic;
    struct disk *d = calloc(1, sizeof *d);
    if (!d)
        return err_nomem(e, "a file tier", sizeof *d);
    d->fd = fd;
    d->data_bytes = data_bytes;
    list_init(&d->reads.list);
    list_init(&d->writes.list);
    list_init(&d->finished.list);
    d->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&d->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = d->event < 0 ? err_sys(e, "an eventfd")
             : pthread_create(&d->thread, NULL, loop, d) != 0
                 ? err_set(e, ERR_SYS, "cannot start a thread for the file tier")
                 : 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        destroy(d);
        return rc;
    }
    *out = d;
    return 0;
}

static struct timespec in_ms(int ms)
{
    return time_spec(time_now_ns() + (uint64_t)ms * NS_MS);
}

bool disk_close(struct disk *d, int timeout_ms)
{
    struct timespec end = in_ms(timeout_ms);
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_signal(&d->work);
    while (!d->ended && !pthread_cond_timedwait(&d->done, &d->lock, &end))
        ;
    bool ended = d->ended;
    d->detached = !ended;
    pthread_t thread = d->thread;
    pthread_mutex_unlock(&d->lock);
    if (!ended) {
        pthread_detach(thread);
        return false;
    }
    pthread_join(d->thread, NULL);
    destroy(d);
    return true;
}

void disk_submit(struct disk *d, struct disk_job *j)
{
    pthread_mutex_lock(&d->lock);
    push(j->what == DISK_READ ? &d->reads : &d->writes, j);
    pthread_cond_signal(&d->work);
    pthread_mutex_unlock(&d->lock);
}

void disk_complete(struct disk *d, struct disk_job *j)
{
    pthread_mutex_lock(&d->lock);
    add_done(d, j);
    pthread_mutex_unlock(&d->lock);
}

struct disk_job *disk_done(struct disk *d)
{
    uint64_t n;
    pthread_mutex_lock(&d->lock);
    struct disk_job *j = pop(&d->finished);
    if (j && j->what == DISK_READ && d->n_read-- == READ_AHEAD)
        pthread_cond_signal(&d->work);
    if (!d->finished.n)
        (void)!read(d->event, &n, sizeof n);
    pthread_mutex_unlock(&d->lock);
    return j;
}

int disk_fd(const struct disk *d)
{
    return d->event;
}

bool disk_wait(struct disk *d, int timeout_ms)
{
    struct timespec end = in_ms(timeout_ms);
    int late = 0;
    pthread_mutex_lock(&d->lock);
    while (!d->finished.n && (d->busy || d->reads.n || d->writes.n) && !late)
        late = pthread_cond_timedwait(&d->done, &d->lock, &end);
    bool any = d->finished.n != 0;
    pthread_mutex_unlock(&d->lock);
    return any;
}
