/* Reads frames from lines of JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/wire.h"

static int one(struct err *e, struct wire_arena *a, const struct wire_lines *r, const char *where, const char *line,
               size_t n)
{
    struct wire_frame f;
    uint8_t *data = NULL;
    wire_arena_reset(a);
    int rc = wire_from_json(e, &f, a, &data, line, n);
    if (rc == ERR_PROTO) {
        err_prefix(e, "%s", where);
        rc = r->bad ? r->bad(e, r->arg) : rc;
    } else if (!rc) {
        rc = r->frame(e, r->arg, &f, data, where);
    }
    free(data);
    return rc;
}

int wire_read_lines(struct err *e, int fd, const char *name, const struct wire_lines *r)
{
    int copy = dup(fd);
    FILE *in = copy < 0 ? NULL : fdopen(copy, "r");
    struct wire_arena *a = wire_arena_new();
    char *line = NULL, where[200];
    size_t size = 0, number = 0;
    ssize_t n;
    int rc = in && a ? 0 : err_sys(e, "%s", name);
    while (!rc && (n = getline(&line, &size, in)) >= 0) {
        number++;
        if (strspn(line, " \t\r\n") == (size_t)n)
            continue;
        snprintf(where, sizeof where, "%.150s: line %zu", name, number);
        rc = one(e, a, r, where, line, (size_t)n);
    }
    if (!rc && ferror(in))
        rc = err_sys(e, "%s: read failed after line %zu", name, number);
    free(line);
    wire_arena_free(a);
    if (in)
        fclose(in);
    else if (copy >= 0)
        close(copy);
    return rc;
}
