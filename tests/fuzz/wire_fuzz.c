/*
 * Reads the input as a stream, and decodes it as one frame. A frame that decodes must encode, and then decode and
 * encode again to the same bytes; the same by JSON.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(bool is, const char *what)
{
    if (is)
        return;
    (void)!write(STDERR_FILENO, what, strlen(what));
    abort();
}

static void same_again(const struct wire_frame *f)
{
    struct err e = {0};
    struct wire_arena *a = wire_arena_new();
    uint8_t *once, *twice;
    size_t n, m;
    check(!wire_encode(&e, &once, &n, f), "what was decoded does not encode\n");
    struct wire_frame g;
    check(!wire_decode(&e, &g, a, once, n), "what was encoded does not decode\n");
    check(!wire_encode(&e, &twice, &m, &g), "it does not encode a second time\n");
    check(n == m && !memcmp(once, twice, n), "two encodings differ\n");
    free(twice);
    if (f->kind == WIRE_TOK || f->kind == WIRE_OPEN) {
        struct wire_req *copy;
        check(!wire_req_copy(&e, &copy, &f->req), "a request does not copy\n");
        g.kind = f->kind;
        g.req = *copy;
        check(!wire_encode(&e, &twice, &m, &g) && n == m && !memcmp(once, twice, n), "a copy differs\n");
        free(twice);
        wire_req_free(copy);
    }
    if (f->kind != WIRE_BLK || f->blk.n_data < 1 << 16) {
        char *line;
        uint8_t *data = f->kind == WIRE_BLK ? calloc(1, f->blk.n_data + 1) : NULL, *back;
        check(!wire_to_json(&e, &line, f, data, true), "no JSON of it\n");
        check(!wire_from_json(&e, &g, a, &back, line, strlen(line)), "its JSON does not read\n");
        check(!wire_encode(&e, &twice, &m, &g) && n == m && !memcmp(once, twice, n), "JSON and back differs\n");
        free(twice);
        free(back);
        free(data);
        free(line);
    }
    free(once);
    wire_arena_free(a);
}

static void as_frame(const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct wire_frame f;
    struct wire_arena *a = wire_arena_new();
    if (!wire_decode(&e, &f, a, p, n))
        same_again(&f);
    wire_arena_free(a);
}

static void as_stream(const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct wire_reader *r;
    struct wire_frame *f;
    static int fd = -1;
    if (fd < 0)
        fd = memfd_create("stream", 0);
    check(!ftruncate(fd, 0) && pwrite(fd, p, n, 0) == (ssize_t)n && !lseek(fd, 0, SEEK_SET), "memfd\n");
    check(!wire_reader_new(&e, &r, fd, "stdin"), "no reader\n");
    while (!wire_read(&e, r, &f) && f) {
        same_again(f);
        (void)wire_reader_ready(r);
        if (f->kind == WIRE_BLK && f->blk.n_data && f->blk.n_data % 3 && f->blk.n_data <= n) {
            uint8_t *data = malloc(f->blk.n_data);
            struct wire_blk blk = f->blk;
            int rc = wire_read_data(&e, r, data, f->blk.n_data);
            check(rc || !memcmp(&blk, &f->blk, sizeof blk), "the head changed under its payload\n");
            free(data);
            if (rc)
                break;
        }
    }
    wire_reader_free(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    as_frame(p, n);
    as_stream(p, n);
    return 0;
}
