/* Frames to JSON lines and back. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/frames/frames.h"

int frames_open_in(struct err *e, int *fd, const char **name, const char *file)
{
    bool is_stdin = !file || !strcmp(file, "-");
    *name = is_stdin ? "stdin" : file;
    *fd = is_stdin ? dup(STDIN_FILENO) : open(file, O_RDONLY | O_CLOEXEC);
    return *fd < 0 ? err_sys(e, "%s", *name) : 0;
}

/* Reads the payload of a blk, allocated; *data is NULL for other kinds. */
static int payload(struct err *e, uint8_t **data, struct wire_reader *r, const struct wire_frame *f)
{
    *data = NULL;
    if (f->kind != WIRE_BLK)
        return 0;
    *data = malloc((size_t)f->blk.n_data + 1);
    if (!*data)
        return err_nomem(e, "a payload", (size_t)f->blk.n_data);
    return wire_read_data(e, r, *data, f->blk.n_data);
}

static int show_frame(struct err *e, struct wire_reader *r, const struct wire_frame *f, bool full)
{
    uint8_t *data;
    char *line = NULL;
    int rc = payload(e, &data, r, f);
    rc = rc ? rc : wire_to_json(e, &line, f, data, full);
    if (!rc && (puts(line) == EOF || (!wire_reader_ready(r) && fflush(stdout))))
        rc = err_sys(e, "stdout");
    free(line);
    free(data);
    return rc;
}

int frames_show(struct err *e, const char *file, bool full)
{
    int fd;
    const char *name;
    struct wire_reader *r = NULL;
    struct wire_frame *f = NULL;
    int rc = frames_open_in(e, &fd, &name, file);
    if (rc)
        return rc;
    rc = wire_reader_new(e, &r, fd, name);
    while (!rc) {
        rc = wire_read(e, r, &f);
        if (rc || !f)
            break;
        rc = show_frame(e, r, f, full);
    }
    if (rc)
        fflush(stdout); /* shows the frames before the fault */
    wire_reader_free(r);
    close(fd);
    return rc;
}

static int encode_frame(struct err *e, void *arg, const struct wire_frame *f, const uint8_t *data, const char *where)
{
    struct iovec iov = {(void *)(uintptr_t)data, f->kind == WIRE_BLK ? (size_t)f->blk.n_data : 0};
    int rc = f->kind == WIRE_BLK ? wire_write_blk(e, arg, &f->blk, &iov, 1) : wire_write(e, arg, f);
    return rc == ERR_PROTO ? err_prefix(e, "%s", where) : rc;
}

int frames_encode(struct err *e)
{
    struct wire_writer *w;
    int rc = wire_writer_new(e, &w, STDOUT_FILENO, "stdout");
    struct wire_lines lines = {.frame = encode_frame, .arg = w};
    rc = rc ? rc : wire_read_lines(e, STDIN_FILENO, "stdin", &lines);
    wire_writer_free(w);
    return rc;
}
