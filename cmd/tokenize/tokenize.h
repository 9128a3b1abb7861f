/* Private to cmd/tokenize. */
#ifndef TOKENIZE_H
#define TOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "edge/ask.h"
#include "model/model.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "tokenize"

struct tokenize { /* what the run is about; built once by main */
    const struct text *text;
    const char *model_path;
    struct model_config config;
    const char *system;      /* NULL: none */
    struct wire_writer *out; /* NULL with --ids */
    struct wire_arena *arena;
    uint64_t seq; /* of the next request */
    uint64_t load_ns, start_ns;
    uint64_t n_ok, n_error;
    json_t *said; /* unknown fields that were named already */
};

/* lines.c: lines of a file descriptor, as they arrive, of up to ASK_LINE_BYTES_MAX bytes. */
struct lines {
    int fd;
    const char *name;
    char *buf;
    size_t n, cap, at;
    uint64_t number; /* of the line last given, from 1 */
    bool end, overlong;
};

/* *line: borrowed until the next call, without its line feed; NULL at the end. A line over the limit is given with n
 * beyond ASK_LINE_BYTES_MAX and no text that counts. A signal to stop counts as the end. */
int lines_next(struct err *e, struct lines *l, const char **line, size_t *n);
/* Everything up to the end of the file; malloc'd. */
int lines_all(struct err *e, struct lines *l, char **out, size_t *n);
void lines_free(struct lines *l);

/* emit.c: one request to frames, or to a line of ids. A failure of the request itself becomes an err frame (with --ids
 * a warning) and is no failure here. `where` begins the text of such an error, "line 3: "; born: when it was known. */
int emit(struct err *e, struct tokenize *t, struct ask *a, const char *where, uint64_t born_ns);
/* The request could not even be read: `why` says it. */
int emit_error(struct err *e, struct tokenize *t, const struct ask *a, const char *where, const struct err *why);
int emit_hello(struct err *e, struct tokenize *t);
int emit_bye(struct err *e, struct tokenize *t);

/* back.c: ids (a line each) or frames to text. */
int back(struct err *e, const struct text *t, int64_t n_row, int fd, const char *name);

/* flags.c: the repeatable flags, into `a`, which owns the arrays. */
int flags_stops(struct err *e, struct ask *a, const struct cli_list *stop, const struct cli_list *stop_id,
                const struct cli_list *bias);

#endif
