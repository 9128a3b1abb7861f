/* Writes frames to a descriptor: prefix, head and payload of a frame by one writev if the pipe has room. */
#include "wire/encode.h"
#include "wire/fdio.h"

#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IOV_N 256
#define PIPE_BYTES (1 << 20)
#define KEEP_BYTES ((size_t)1 << 20)
#define HOLD_BYTES ((size_t)64 << 10) /* of frames to be written later */

struct wire_writer {
    int fd;
    char *name;
    pthread_mutex_t lock; /* protects the fields below; held while a whole frame is written */
    msgpack_sbuffer buf;
    size_t held; /* bytes at the front of buf that wire_write_later has buffered */
    uint64_t n_bytes;
    struct err failed;
};

/* A pipe with room for some blocks lets the stages overlap. Failure (not a pipe, or a limit) is harmless. */
static void widen_pipe(int fd)
{
    int n = fcntl(fd, F_GETPIPE_SZ);
    if (n >= 0 && n < PIPE_BYTES)
        (void)fcntl(fd, F_SETPIPE_SZ, PIPE_BYTES);
}

int wire_writer_new(struct err *e, struct wire_writer **out, int fd, const char *name)
{
    struct wire_writer *w = calloc(1, sizeof *w);
    char *copy = w ? strdup(name) : NULL;
    if (!copy) {
        free(w);
        return err_nomem(e, "a writer", sizeof *w);
    }
    w->fd = fd;
    widen_pipe(fd);
    w->name = copy;
    pthread_mutex_init(&w->lock, NULL);
    msgpack_sbuffer_init(&w->buf);
    *out = w;
    return 0;
}

void wire_writer_free(struct wire_writer *w)
{
    if (!w)
        return;
    msgpack_sbuffer_destroy(&w->buf);
    pthread_mutex_destroy(&w->lock);
    free(w->name);
    free(w);
}

static int write_failed(struct wire_writer *w)
{
    if (errno == EPIPE || errno == ECONNRESET)
        return err_set(&w->failed, ERR_SYS, "%s: the next stage has ended", w->name);
    if (errno == ENOSPC || errno == EDQUOT)
        return err_set(&w->failed, ERR_SYS, "%s: the disk is full after %llu bytes", w->name,
                       (unsigned long long)w->n_bytes);
    return err_sys(&w->failed, "%s: write failed after %llu bytes", w->name, (unsigned long long)w->n_bytes);
}

/* Writes the encoded head in w->buf, then the pieces of a payload. */
static int write_all(struct wire_writer *w, const struct iovec *iov, int n_iov)
{
    struct iovec head = {w->buf.data, w->buf.size};
    int i = -1;      /* current piece; -1: the head */
    size_t done = 0; /* its bytes that are written */
    while (i < n_iov) {
        struct iovec part[IOV_N];
        int n = 0;
        for (int k = i; k < n_iov && n < IOV_N; k++)
            part[n++] = k < 0 ? head : iov[k];
        part[0].iov_base = (char *)part[0].iov_base + done;
        part[0].iov_len -= done;
        ssize_t put = writev(w->fd, part, n);
        if (put < 0) {
            if (!fd_again(w->fd, POLLOUT))
                return write_failed(w);
            continue;
        }
        w->n_bytes += (uint64_t)put;
        size_t left = (size_t)put;
        int k = 0;
        while (k < n && left >= part[k].iov_len)
            left -= part[k++].iov_len;
        done = k ? left : done + left;
        i += k;
    }
    return 0;
}

static void put_length(struct wire_writer *w, size_t at, uint64_t n)
{
    for (int i = 0; i < 4; i++)
        w->buf.data[at + 1 + (size_t)i] = (char)(n >> (24 - 8 * i));
}

/* Leaves the held bytes and a length prefix in the buffer; put_length must fill in the length. */
static int begin(struct err *e, struct wire_writer *w)
{
    static const char room[WIRE_PREFIX_BYTES] = {(char)0xce};
    w->buf.size = w->held;
    if (w->buf.alloc > KEEP_BYTES && !w->held) {
        msgpack_sbuffer_destroy(&w->buf);
        msgpack_sbuffer_init(&w->buf);
    }
    return msgpack_sbuffer_write(&w->buf, room, WIRE_PREFIX_BYTES) ? err_nomem(e, "a frame", WIRE_PREFIX_BYTES) : 0;
}

static int encode(struct err *e, struct wire_writer *w, const struct wire_frame *f, uint64_t n_data)
{
    int rc = begin(e, w);
    rc = rc ? rc : wire_encode_into(e, &w->buf, f);
    if (rc)
        return rc;
    uint64_t n = w->buf.size - w->held - WIRE_PREFIX_BYTES + n_data;
    if (n > WIRE_FRAME_BYTES_MAX)
        return err_set(e, ERR_PROTO, "%s frame: %llu bytes, the limit is %u", wire_kind_name(f->kind),
                       (unsigned long long)n, WIRE_FRAME_BYTES_MAX);
    put_length(w, w->held, n);
    return 0;
}

static int flush(struct wire_writer *w)
{
    if (!w->held)
        return 0;
    const struct iovec none = {0};
    w->buf.size = w->held;
    w->held = 0;
    return write_all(w, &none, 0);
}

/* f: the frame to encode; NULL: the only piece of iov is an encoded frame. */
static int write_frame(struct err *e, struct wire_writer *w, const struct wire_frame *f, const struct iovec *iov,
                       int n_iov, uint64_t n_data)
{
    pthread_mutex_lock(&w->lock);
    int rc = w->failed.code;
    if (rc) {
        *e = w->failed;
    } else if ((rc = flush(w))) {
        *e = w->failed;
    } else {
        rc = f ? encode(e, w, f, n_data) : begin(e, w);
        if (!f && !rc)
            put_length(w, 0, n_data);
        if (rc)
            err_prefix(e, "%s", w->name);
        else if ((rc = write_all(w, iov, n_iov)))
            *e = w->failed;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int wire_write(struct err *e, struct wire_writer *w, const struct wire_frame *f)
{
    assert(f->kind != WIRE_BLK);
    return write_frame(e, w, f, NULL, 0, 0);
}

int wire_write_later(struct err *e, struct wire_writer *w, const struct wire_frame *f)
{
    assert(f->kind != WIRE_BLK);
    pthread_mutex_lock(&w->lock);
    int rc = w->failed.code;
    if (rc) {
        *e = w->failed;
    } else if ((rc = encode(e, w, f, 0))) {
        err_prefix(e, "%s", w->name);
    } else {
        w->held = w->buf.size;
        if (w->held >= HOLD_BYTES && (rc = flush(w)))
            *e = w->failed;
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int wire_flush(struct err *e, struct wire_writer *w)
{
    pthread_mutex_lock(&w->lock);
    int rc = w->failed.code ? w->failed.code : flush(w);
    if (rc)
        *e = w->failed;
    pthread_mutex_unlock(&w->lock);
    return rc;
}

int wire_write_raw(struct err *e, struct wire_writer *w, const uint8_t *frame, size_t n)
{
    struct iovec iov = {(void *)(uintptr_t)frame, n};
    assert(n <= WIRE_FRAME_BYTES_MAX);
    return write_frame(e, w, NULL, &iov, 1, n);
}

int wire_write_blk(struct err *e, struct wire_writer *w, const struct wire_blk *b, const struct iovec *iov, int n_iov)
{
    struct wire_frame f = {.kind = WIRE_BLK, .blk = *b};
    f.blk.n_data = 0;
    for (int i = 0; i < n_iov; i++)
        f.blk.n_data += iov[i].iov_len;
    return write_frame(e, w, &f, iov, n_iov, f.blk.n_data);
}
