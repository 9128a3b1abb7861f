/* Private to cmd/tokenize. */
#ifndef TOKENIZE_H
#define TOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "model/model.h"
#include "request/ask.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "tokenize"

struct tokenize { /* what the run is about; built once by main */
    const struct text *text;
    struct model_config config;
    const char *system; /* NULL: none */
    /* Where frames go; NULL with --ids. */
    int (*put)(struct err *e, void *arg, const struct wire_frame *f);
    void *put_arg;
    struct wire_arena *arena;
    uint64_t seq;      /* of the next request */
    uint32_t n_choice; /* of the request that is written */
    uint64_t load_ns, start_ns;
    uint64_t n_ok, n_error;
    json_t *said; /* unknown fields that were named already */
};

/* emit.c: one request to frames, or to a line of ids. A failure of the request itself becomes an err frame (with --ids
 * a warning) and is no failure here. `where` begins the text of such an error, "line 3: "; born: when it was known. */
int emit(struct err *e, struct tokenize *t, struct ask *a, const char *where, uint64_t born_ns);
/* A line of JSON, the same way. */
int emit_json(struct err *e, struct tokenize *t, const struct ask *base, const char *line, size_t n, const char *where);
/* The request could not even be read: `why` says it. */
int emit_error(struct err *e, struct tokenize *t, const struct ask *a, const char *where, const struct err *why);
int emit_hello(struct err *e, struct tokenize *t);
int emit_bye(struct err *e, struct tokenize *t);

/* back.c: ids (a line each) or frames to text. */
int back(struct err *e, const struct text *t, int64_t n_row, int fd, const char *name);

/* service.c: serves gateways at url until SIGTERM. ready_fd -1: none. */
int service(struct err *e, const struct tokenize *t, const struct ask *base, const char *url, int ready_fd);

#endif
