#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire/wire.h"

#include "unit/asserts.h"
#include "unit/wire_golden.h"

/* A reader of a file with these bytes. */
static struct wire_reader *reader_of(const void *p, size_t n, int *fd)
{
    struct err e = {0};
    struct wire_reader *r;
    *fd = memfd_create("stream", 0);
    assert_int_equal(write(*fd, p, n), n);
    lseek(*fd, 0, SEEK_SET);
    OK(wire_reader_new(&e, &r, *fd, "stdin"));
    return r;
}

static size_t put_golden(uint8_t *out, const char *hex)
{
    size_t n;
    uint8_t *b = golden_bytes(hex, &n);
    out[0] = 0xce;
    out[1] = out[2] = 0;
    out[3] = (uint8_t)(n >> 8);
    out[4] = (uint8_t)n;
    memcpy(out + 5, b, n);
    free(b);
    return n + 5;
}

/* hello, tok, blk, kv, bye; starts: the offset of each, and of the end. */
static size_t stream_bytes(uint8_t *out, size_t starts[6])
{
    static const char *const hex[] = {gold_hello, gold_tok, gold_blk, gold_kv, gold_bye};
    size_t n = 0;
    for (int i = 0; i < 5; i++) {
        starts[i] = n;
        n += put_golden(out + n, hex[i]);
    }
    starts[5] = n;
    return n;
}

static void a_stream_is_read_and_unread_payloads_are_skipped(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t b[4096], data[4];
    size_t starts[6], n = stream_bytes(b, starts);
    memcpy(b + n, b, n); /* as cat a a */
    static const enum wire_kind kinds[] = {WIRE_HELLO, WIRE_TOK, WIRE_BLK, WIRE_KV, WIRE_BYE};
    int fd;
    struct wire_reader *r = reader_of(b, 2 * n, &fd);
    struct wire_frame *f;
    assert_false(wire_reader_seen_hello(r));
    assert_false(wire_reader_ready(r));
    for (int i = 0; i < 10; i++) {
        OK(wire_read(&e, r, &f));
        assert_non_null(f);
        assert_int_equal(f->kind, kinds[i % 5]);
        if (i == 2) {
            OK(wire_read_data(&e, r, data, 4));
            assert_memory_equal(data, "\xaa\xbb\xcc\xdd", 4);
        }
        assert_true(wire_reader_ready(r) || i == 9); /* the second payload is not read */
    }
    OK(wire_read(&e, r, &f));
    assert_null(f);
    assert_true(wire_reader_seen_hello(r));
    assert_int_equal(wire_reader_offset(r), 2 * n);
    wire_reader_free(r);
    close(fd);
}

static int read_to_end(struct err *e, const void *p, size_t n)
{
    int fd, rc;
    struct wire_reader *r = reader_of(p, n, &fd);
    struct wire_frame *f;
    do
        rc = wire_read(e, r, &f);
    while (!rc && f);
    wire_reader_free(r);
    close(fd);
    return rc;
}

static void every_cut_of_a_stream_reports_its_offset(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t b[4096];
    size_t starts[6], n = stream_bytes(b, starts);
    OK(read_to_end(&e, b, 0));
    OK(read_to_end(&e, b, n));
    for (size_t cut = 1; cut < n; cut++) {
        int i = 0;
        while (starts[i + 1] <= cut)
            i++;
        char want[128];
        const char *from = i ? "prefill" : "the program before";
        if (cut == starts[i])
            snprintf(want, sizeof want, "stdin: ended without bye at byte %zu: %s failed or was killed", cut, from);
        else
            snprintf(want, sizeof want, "stdin: truncated frame at byte %zu: %s failed or was killed", starts[i], from);
        assert_int_equal(read_to_end(&e, b, cut), ERR_PROTO);
        assert_in(e.text, want);
    }
}

static void malformed_streams_are_refused_with_a_reason(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t b[8192];
    size_t starts[6], n;
    assert_int_equal(read_to_end(&e, "The cat", 7), ERR_PROTO);
    assert_string_equal(e.text, "stdin: not a phasepipe stream (byte 0 is 0x54, \"T\")");
    n = stream_bytes(b, starts);
    b[n] = 'x';
    assert_int_equal(read_to_end(&e, b, n + 1), ERR_PROTO);
    assert_in(e.text, "where a frame of prefill should begin");
    assert_int_equal(read_to_end(&e, b + starts[1], n - starts[1]), ERR_PROTO);
    assert_in(e.text, "stdin: tok at byte 0 where a stream should begin with hello");
    memcpy(b + n, b + starts[1], n - starts[1]);
    assert_int_equal(read_to_end(&e, b, n + n - starts[1]), ERR_PROTO);
    assert_in(e.text, "after bye, where only another hello may come");
    memmove(b + starts[1], b, n);
    assert_int_equal(read_to_end(&e, b, starts[1] + n), ERR_PROTO);
    assert_in(e.text, "hello at byte 189 inside a stream");
    stream_bytes(b, starts);
    b[starts[2] + 4] += 1; /* the length of blk and that of its payload disagree */
    assert_int_equal(read_to_end(&e, b, n), ERR_PROTO);
    assert_in(e.text, "its length leaves 5 bytes for the payload, whose own length is 4");
}

static void a_hostile_length_allocates_no_memory(void **state)
{
    (void)state;
    struct err e = {0};
    static const uint8_t big[21] = {0xce, 0x10, 0, 0, 0, 0x89, 0xa1, 'k', 4, 0xa1, 'x', 0xc6, 0x0f, 0xff, 0xff, 0xf0};
    static const uint8_t huge[21] = {0xce, 0x7f, 0xff, 0xff, 0xff, 0x89, 0xa1, 'k', 4};
    static const uint8_t head[21] = {0xce, 0x04, 0, 0, 1, 0x89, 0xa1, 'k', 2};
    size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
    assert_int_equal(read_to_end(&e, big, sizeof big), ERR_PROTO);
    assert_in(e.text, "truncated frame at byte 0");
    assert_int_equal(read_to_end(&e, huge, sizeof huge), ERR_PROTO);
    assert_in(e.text, "has a length of 2147483647 bytes, allowed are 4 to 268435456");
    assert_int_equal(read_to_end(&e, head, sizeof head), ERR_PROTO);
    assert_in(e.text, "has a length of 67108865 bytes, allowed are 4 to 67108864");
    assert_true(mallinfo2().arena + mallinfo2().hblkhd < before + (8u << 20));
}

struct feed {
    int fd;
    const uint8_t *p;
    size_t n, step;
};

static void *feed_slowly(void *arg)
{
    struct feed *f = arg;
    for (size_t i = 0; i < f->n; i += f->step) {
        size_t n = f->n - i < f->step ? f->n - i : f->step;
        assert_int_equal(write(f->fd, f->p + i, n), n);
        if (i % 64 == 0)
            usleep(100);
    }
    close(f->fd);
    return NULL;
}

static void a_non_blocking_pipe_is_read_byte_by_byte(void **state)
{
    (void)state;
    struct err e = {0};
    uint8_t b[4096], data[4];
    size_t starts[6], n = stream_bytes(b, starts);
    for (size_t step = 1; step < 8; step += 3) {
        int fd[2], count = 0;
        assert_int_equal(pipe(fd), 0);
        fcntl(fd[0], F_SETFL, O_NONBLOCK);
        struct feed feed = {fd[1], b, n, step};
        pthread_t t;
        pthread_create(&t, NULL, feed_slowly, &feed);
        struct wire_reader *r;
        struct wire_frame *f;
        OK(wire_reader_new(&e, &r, fd[0], "stdin"));
        OK(wire_read(&e, r, &f));
        for (; f; count++) {
            if (f->kind == WIRE_BLK) {
                OK(wire_read_data(&e, r, data, 4));
                assert_memory_equal(data, "\xaa\xbb\xcc\xdd", 4);
                assert_int_equal(f->blk.n_token, 32); /* the head is still borrowed */
            }
            OK(wire_read(&e, r, &f));
        }
        assert_int_equal(count, 5);
        pthread_join(t, NULL);
        wire_reader_free(r);
        close(fd[0]);
    }
}

#define BIG (3u << 20)

struct pour {
    int fd;
    uint8_t *data;
};

static void *pour_blocks(void *arg)
{
    struct pour *p = arg;
    struct err e = {0};
    struct wire_writer *w;
    OK(wire_writer_new(&e, &w, p->fd, "stdout"));
    struct wire_frame f = {.kind = WIRE_HELLO, .hello = {.version = WIRE_VERSION, .from = S("prefill")}};
    OK(wire_write(&e, w, &f));
    struct wire_blk blk = {.n_layer = 1, .n_token = 32, .sum = wire_sum(p->data, BIG)};
    struct iovec iov[400];
    size_t at = 0;
    for (int i = 0; i < 400; i++) { /* more pieces than one system call accepts, uneven and some empty */
        size_t n = i == 399 ? BIG - at : (size_t)(i % 7) * 1000;
        iov[i] = (struct iovec){p->data + at, n};
        at += n;
    }
    for (int i = 0; i < 5; i++) {
        blk.block = (uint64_t)i;
        OK(wire_write_blk(&e, w, &blk, iov, 400));
    }
    f = (struct wire_frame){.kind = WIRE_BYE, .bye = {.from = S("prefill")}};
    uint8_t *raw;
    size_t n;
    OK(wire_encode(&e, &raw, &n, &f));
    OK(wire_write_raw(&e, w, raw, n));
    free(raw);
    wire_writer_free(w);
    close(p->fd);
    return NULL;
}

static void large_payloads_of_many_pieces_arrive_whole(void **state)
{
    (void)state;
    struct err e = {0};
    int fd[2];
    uint8_t *data = malloc(BIG), *got = malloc(BIG);
    for (size_t i = 0; i < BIG; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(pipe(fd), 0);
    fcntl(fd[1], F_SETFL, O_NONBLOCK);
    struct pour pour = {fd[1], data};
    pthread_t t;
    pthread_create(&t, NULL, pour_blocks, &pour);
    struct wire_reader *r;
    struct wire_frame *f;
    OK(wire_reader_new(&e, &r, fd[0], "stdin"));
    OK(wire_read(&e, r, &f));
    for (int i = 0; i < 5; i++) {
        OK(wire_read(&e, r, &f));
        assert_int_equal(f->blk.block, i);
        assert_int_equal(f->blk.n_data, BIG);
        memset(got, 0, BIG);
        if (i == 1)
            continue; /* the next read skips it */
        if (i == 2)
            assert_int_equal(wire_read_data(&e, r, got, BIG - 1), ERR_PROTO);
        OK(wire_read_data(&e, r, got, BIG));
        assert_memory_equal(data, got, BIG);
        assert_int_equal(wire_sum(got, BIG), f->blk.sum);
    }
    OK(wire_read(&e, r, &f));
    assert_int_equal(f->kind, WIRE_BYE);
    OK(wire_read(&e, r, &f));
    assert_null(f);
    pthread_join(t, NULL);
    wire_reader_free(r);
    close(fd[0]);
    free(data);
    free(got);
}

static void a_closed_reader_and_a_full_disk_have_their_own_errors(void **state)
{
    (void)state;
    struct err e = {0};
    struct wire_frame f = {.kind = WIRE_BYE, .bye = {.from = S("x")}};
    struct wire_writer *w;
    int fd[2];
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(fd), 0);
    close(fd[0]);
    OK(wire_writer_new(&e, &w, fd[1], "stdout"));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(wire_write(&e, w, &f), ERR_SYS);
        assert_string_equal(e.text, "stdout: the next stage has ended");
    }
    wire_writer_free(w);
    close(fd[1]);
    int full = open("/dev/full", O_WRONLY);
    OK(wire_writer_new(&e, &w, full, "out.frames"));
    assert_int_equal(wire_write(&e, w, &f), ERR_SYS);
    assert_in(e.text, "out.frames: the disk is full");
    wire_writer_free(w);
    close(full);
}

/* XXH3-64 of "" and "a", from xxhash for Python. */
static void sums_are_xxh3(void **state)
{
    (void)state;
    assert_int_equal(wire_sum("", 0), 0x2d06800538d394c2);
    assert_int_equal(wire_sum("a", 1), 0xe6c632b61e964e1f);
}

/* As in the body of a request. Every cut of the last frame is an error. */
static void consecutive_frames_in_memory_decode(void **state)
{
    uint8_t buf[8192];
    struct err e = {0};
    struct wire_frame f;
    struct wire_arena *a = wire_arena_new();
    size_t first = put_golden(buf, gold_hello), whole = first + put_golden(buf + first, gold_tok), size = 0;
    (void)state;
    OK(wire_frame_size(&e, &size, buf, whole, WIRE_HEAD_BYTES_MAX));
    assert_int_equal(size, first);
    for (size_t n = first; n <= whole; n++) {
        const uint8_t *p = buf;
        size_t left = n;
        OK(wire_decode_next(&e, &f, a, &p, &left));
        assert_int_equal(f.kind, WIRE_HELLO);
        assert_ptr_equal(p, buf + first);
        if (n < whole) {
            assert_int_equal(wire_decode_next(&e, &f, a, &p, &left), ERR_PROTO);
            continue;
        }
        OK(wire_decode_next(&e, &f, a, &p, &left));
        assert_int_equal(f.kind, WIRE_TOK);
        assert_int_equal(left, 0);
    }
    buf[0] = 0xcf;
    assert_int_equal(wire_frame_size(&e, &size, buf, whole, WIRE_HEAD_BYTES_MAX), ERR_PROTO);
    wire_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_is_read_and_unread_payloads_are_skipped),
        cmocka_unit_test(every_cut_of_a_stream_reports_its_offset),
        cmocka_unit_test(malformed_streams_are_refused_with_a_reason),
        cmocka_unit_test(a_hostile_length_allocates_no_memory),
        cmocka_unit_test(a_non_blocking_pipe_is_read_byte_by_byte),
        cmocka_unit_test(large_payloads_of_many_pieces_arrive_whole),
        cmocka_unit_test(a_closed_reader_and_a_full_disk_have_their_own_errors),
        cmocka_unit_test(sums_are_xxh3),
        cmocka_unit_test(consecutive_frames_in_memory_decode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
