/*
 * Reads frames from a descriptor. The buffer grows only with received bytes. The payload of a blk frame is copied as
 * far as it is buffered; the rest is read by readv directly into its destination and then into the free end of the
 * buffer, so that one system call also reads the head of the next frame.
 */
#include "wire/cursor.h"
#include "wire/fdio.h"
#include "wire/schema.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/vec.h"

#define BUFFER_BYTES ((size_t)64 << 10)
#define READ_BYTES ((size_t)16 << 10) /* of one read for a head; more would only copy payloads */
#define KEEP_BYTES ((size_t)1 << 20)  /* a larger buffer is shrunk when it is empty */

enum place { BEFORE_HELLO, IN_STREAM, AFTER_BYE };

struct wire_reader {
    int fd;
    char *name;
    uint8_t *buf;
    size_t size, start, end;        /* bytes start … end of buf are not consumed */
    uint64_t offset;                /* of byte `start` in the stream */
    uint64_t data_left;             /* of the payload of the last blk */
    uint64_t frame_at, frame_bytes; /* the frame being read: its offset, prefix and all bytes */
    bool eof, seen_hello;
    enum place place;
    char from[WIRE_NAME_BYTES_MAX + 1];
    struct wire_arena *arena;
    struct wire_frame frame;
};

int wire_reader_new(struct err *e, struct wire_reader **out, int fd, const char *name)
{
    struct wire_reader *r = calloc(1, sizeof *r);
    if (!r)
        return err_nomem(e, "a reader", sizeof *r);
    r->fd = fd;
    r->name = strdup(name);
    r->buf = malloc(BUFFER_BYTES);
    r->size = BUFFER_BYTES;
    r->arena = wire_arena_new();
    snprintf(r->from, sizeof r->from, "the program before"); /* until a hello names it */
    if (!r->name || !r->buf || !r->arena) {
        wire_reader_free(r);
        return err_nomem(e, "a reader", BUFFER_BYTES);
    }
    *out = r;
    return 0;
}

void wire_reader_free(struct wire_reader *r)
{
    if (!r)
        return;
    wire_arena_free(r->arena);
    free(r->buf);
    free(r->name);
    free(r);
}

bool wire_reader_seen_hello(const struct wire_reader *r)
{
    return r->seen_hello;
}

uint64_t wire_reader_offset(const struct wire_reader *r)
{
    return r->offset;
}

static size_t buffered(const struct wire_reader *r)
{
    return r->end - r->start;
}

static void consume(struct wire_reader *r, size_t n)
{
    r->start += n;
    r->offset += n;
}

static int truncated(struct err *e, const struct wire_reader *r, uint64_t got)
{
    char of[48] = "";
    if (r->frame_bytes)
        snprintf(of, sizeof of, " of %llu", (unsigned long long)r->frame_bytes);
    return err_set(e, ERR_PROTO,
                   "%s: truncated frame at byte %llu: %s failed or was killed (%llu%s bytes were received)", r->name,
                   (unsigned long long)r->frame_at, r->from, (unsigned long long)got, of);
}

/* Makes room after the buffered bytes: moves them to the front, and grows the buffer if they fill it. */
static int make_room(struct err *e, struct wire_reader *r)
{
    if (r->start) {
        memmove(r->buf, r->buf + r->start, buffered(r));
        r->end -= r->start;
        r->start = 0;
    }
    return vec_reserve(e, &r->buf, &r->size, r->end + READ_BYTES, 1, "a frame");
}

/* Reads once and appends to the buffered bytes; sets eof. all: fill the whole buffer, for a frame that is long. */
static int fill(struct err *e, struct wire_reader *r, bool all)
{
    int rc = r->size - r->end < READ_BYTES ? make_room(e, r) : 0;
    if (rc)
        return rc;
    size_t n = all ? r->size - r->end : READ_BYTES;
    for (;;) {
        ssize_t got = read(r->fd, r->buf + r->end, n);
        if (got >= 0) {
            r->end += (size_t)got;
            r->eof = got == 0;
            return 0;
        }
        if (!fd_again(r->fd, POLLIN))
            return err_sys(e, "%s: read failed at byte %llu", r->name, (unsigned long long)(r->offset + buffered(r)));
    }
}

static void shown_byte(char out[24], uint8_t b)
{
    if (b >= 0x20 && b < 0x7f)
        snprintf(out, 24, "is 0x%02x, \"%c\"", b, b);
    else
        snprintf(out, 24, "is 0x%02x", b);
}

static int not_a_frame(struct err *e, const struct wire_reader *r)
{
    char shown[24];
    shown_byte(shown, r->buf[r->start]);
    if (r->offset == 0)
        return err_set(e, ERR_PROTO, "%s: not a phasepipe stream (byte 0 %s)", r->name, shown);
    return err_set(e, ERR_PROTO, "%s: byte %llu %s, where a frame of %s should begin", r->name,
                   (unsigned long long)r->offset, shown, r->from);
}

/* The kind in the first bytes of a frame, {"k": kind …}; 0: they are too few or something else. */
static uint64_t peek_kind(const uint8_t *p, size_t n)
{
    struct cursor c = {p, n, 0};
    struct tok t;
    size_t head = n < 1 ? 0 : p[0] == 0xde ? 3 : p[0] == 0xdf ? 5 : 1; /* counts are checked later */
    if (!head || head + 3 > n || p[head] != 0xa1 || p[head + 1] != 'k')
        return 0;
    c.at = head + 2;
    return cursor_next(&c, &t) || t.type != TOK_UINT ? 0 : t.u;
}

/* The bytes of a blk frame without its payload; 0: its first n bytes are too few to determine that, or malformed. */
static size_t blk_head(const uint8_t *p, size_t n)
{
    size_t head = p[0] == 0xde ? 3 : p[0] == 0xdf ? 5 : 1;
    struct cursor c = {p, n, head};
    struct tok key, t;
    while (!cursor_next(&c, &key)) {
        bool data = key.type == TOK_STR && key.u == 4 && !memcmp(key.p, "data", 4);
        if (data)
            return cursor_bin_head(&c, &t) ? 0 : c.at;
        if (cursor_skip(&c, WIRE_DEPTH_MAX))
            return 0;
    }
    return 0;
}

static uint32_t length_of(const uint8_t *p)
{
    return (uint32_t)p[1] << 24 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 8 | p[4];
}

/*
 * Examines the buffered part of a frame. *kind: its presumed kind. *head: the number of bytes to decode (0: read more
 * first). For a malformed blk it is the whole length, so that the decoder reports the error.
 */
static void survey(const struct wire_reader *r, uint64_t *kind, size_t *head)
{
    const uint8_t *p = r->buf + r->start + WIRE_PREFIX_BYTES;
    size_t n = buffered(r) - WIRE_PREFIX_BYTES, length = length_of(r->buf + r->start);
    size_t have = n < length ? n : length;
    *kind = peek_kind(p, have);
    *head = *kind == WIRE_BLK ? blk_head(p, have) : 0;
    size_t most = length < WIRE_HEAD_BYTES_MAX ? length : WIRE_HEAD_BYTES_MAX;
    if (!*head && have >= most)
        *head = most;
}

static int check_length(struct err *e, const struct wire_reader *r, uint64_t kind, size_t have)
{
    uint32_t length = length_of(r->buf + r->start);
    uint32_t max = kind == WIRE_BLK || have < 16 ? WIRE_FRAME_BYTES_MAX : WIRE_HEAD_BYTES_MAX;
    if (length <= max && length >= 4)
        return 0;
    return err_set(e, ERR_PROTO, "%s: the frame at byte %llu has a length of %u bytes, allowed are 4 to %u", r->name,
                   (unsigned long long)r->offset, length, max);
}

/* Reads until the head of a frame is buffered. *n: its bytes without the prefix; 0: end of file between frames. */
static int await_head(struct err *e, struct wire_reader *r, size_t *n)
{
    size_t tried = 0;
    *n = 0;
    r->frame_at = r->offset;
    r->frame_bytes = 0;
    for (;;) {
        size_t got = buffered(r);
        if (got && r->buf[r->start] != 0xce)
            return not_a_frame(e, r);
        if (got >= WIRE_PREFIX_BYTES &&
            (got >= 2 * tried || r->eof || got - WIRE_PREFIX_BYTES >= length_of(r->buf + r->start))) {
            uint64_t kind;
            survey(r, &kind, n);
            r->frame_bytes = WIRE_PREFIX_BYTES + (uint64_t)length_of(r->buf + r->start);
            int rc = check_length(e, r, kind, got - WIRE_PREFIX_BYTES);
            if (rc || *n)
                return rc;
            tried = got; /* surveys again only after the bytes have doubled, so that the total time is linear */
        }
        if (r->eof)
            return got ? truncated(e, r, got) : 0;
        int rc = fill(e, r, r->frame_bytes > READ_BYTES);
        if (rc)
            return rc;
    }
}

/* Skips an unread payload. Its frame is no longer borrowed, so the payload may overwrite the buffer. */
static int skip_data(struct err *e, struct wire_reader *r)
{
    while (r->data_left) {
        size_t n = buffered(r) < r->data_left ? buffered(r) : (size_t)r->data_left;
        consume(r, n);
        r->data_left -= n;
        if (!r->data_left)
            break;
        if (r->eof)
            return truncated(e, r, r->offset - r->frame_at);
        r->start = r->end = 0;
        int rc = fill(e, r, r->data_left > READ_BYTES);
        if (rc)
            return rc;
    }
    return 0;
}

static int check_place(struct err *e, struct wire_reader *r)
{
    const struct wire_frame *f = &r->frame;
    if ((f->kind == WIRE_HELLO) != (r->place != IN_STREAM)) {
        const char *reason = r->place == IN_STREAM      ? "inside a stream; the stream before it has no bye"
                             : r->place == BEFORE_HELLO ? "where a stream should begin with hello"
                                                        : "after bye, where only another hello may come";
        return err_set(e, ERR_PROTO, "%s: %s at byte %llu %s", r->name, wire_kind_name(f->kind),
                       (unsigned long long)r->frame_at, reason);
    }
    if (f->kind == WIRE_HELLO) {
        r->seen_hello = true;
        r->place = IN_STREAM;
        memcpy(r->from, f->hello.from.p, f->hello.from.n);
        r->from[f->hello.from.n] = 0;
        if (!f->hello.from.n)
            snprintf(r->from, sizeof r->from, "the program before");
    } else if (f->kind == WIRE_BYE) {
        r->place = AFTER_BYE;
    }
    return 0;
}

static int check_payload(struct err *e, struct wire_reader *r, size_t head)
{
    uint64_t rest = r->frame_bytes - WIRE_PREFIX_BYTES - head;
    uint64_t data = r->frame.kind == WIRE_BLK ? r->frame.blk.n_data : 0;
    if (data == rest)
        return 0;
    return err_set(e, ERR_PROTO,
                   "%s: frame at byte %llu: its length leaves %llu bytes for the payload, whose own length is %llu",
                   r->name, (unsigned long long)r->frame_at, (unsigned long long)rest, (unsigned long long)data);
}

int wire_read(struct err *e, struct wire_reader *r, struct wire_frame **out)
{
    *out = NULL;
    int rc = skip_data(e, r);
    if (rc)
        return rc;
    wire_arena_reset(r->arena);
    if (!buffered(r)) {
        r->start = r->end = 0;
        if (r->size > KEEP_BYTES) {
            uint8_t *p = realloc(r->buf, BUFFER_BYTES);
            r->buf = p ? p : r->buf;
            r->size = p ? BUFFER_BYTES : r->size;
        }
    }
    size_t n;
    rc = await_head(e, r, &n);
    if (rc)
        return rc;
    if (!n) {
        if (r->place == IN_STREAM)
            return err_set(e, ERR_PROTO, "%s: ended without bye at byte %llu: %s failed or was killed", r->name,
                           (unsigned long long)r->offset, r->from);
        return 0;
    }
    rc = wire_decode(e, &r->frame, r->arena, r->buf + r->start + WIRE_PREFIX_BYTES, n);
    if (rc)
        return err_prefix(e, "%s: frame at byte %llu", r->name, (unsigned long long)r->frame_at);
    rc = check_payload(e, r, n);
    rc = rc ? rc : check_place(e, r);
    if (rc)
        return rc;
    consume(r, WIRE_PREFIX_BYTES + n);
    r->data_left = r->frame_bytes - WIRE_PREFIX_BYTES - n;
    *out = &r->frame;
    return 0;
}

bool wire_reader_ready(const struct wire_reader *r)
{
    if (r->data_left > buffered(r))
        return r->eof;
    struct wire_reader next = *r;
    next.start += (size_t)r->data_left;
    size_t n = buffered(&next), head;
    uint64_t kind;
    if (r->eof || (n && next.buf[next.start] != 0xce))
        return true;
    if (n < WIRE_PREFIX_BYTES)
        return false;
    survey(&next, &kind, &head);
    return head > 0;
}

/* ---- payloads ---- */

/* Reads from the descriptor into dst, then into the free end of the buffer. The borrowed head of the frame must not
 * move. */
static int read_direct(struct err *e, struct wire_reader *r, uint8_t *dst)
{
    r->start = r->end; /* nothing is buffered: the bytes before belong to the borrowed frame */
    while (r->data_left) {
        size_t spare = r->size - r->end;
        struct iovec part[2] = {{dst, r->data_left}, {r->buf + r->end, spare < READ_BYTES ? spare : READ_BYTES}};
        ssize_t got = readv(r->fd, part, spare ? 2 : 1);
        if (got < 0 && !fd_again(r->fd, POLLIN))
            return err_sys(e, "%s: read failed at byte %llu", r->name, (unsigned long long)r->offset);
        if (got == 0) {
            r->eof = true;
            return truncated(e, r, r->offset - r->frame_at);
        }
        size_t all = got < 0 ? 0 : (size_t)got, n = all < r->data_left ? all : (size_t)r->data_left;
        dst += n;
        r->offset += n;
        r->data_left -= n;
        r->end += all - n;
    }
    return 0;
}

int wire_read_data(struct err *e, struct wire_reader *r, void *dst, uint64_t n)
{
    if (n != r->data_left)
        return err_set(e, ERR_PROTO, "%s: frame at byte %llu: a payload of %llu bytes, expected %llu", r->name,
                       (unsigned long long)r->frame_at, (unsigned long long)r->data_left, (unsigned long long)n);
    size_t had = n < buffered(r) ? (size_t)n : buffered(r);
    if (had) {
        memcpy(dst, r->buf + r->start, had);
        consume(r, had);
        r->data_left -= had;
    }
    return r->data_left ? read_direct(e, r, (uint8_t *)dst + had) : 0;
}
