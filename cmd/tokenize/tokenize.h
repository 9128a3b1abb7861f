/* Private to cmd/tokenize. */
#ifndef TOKENIZE_H
#define TOKENIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/cli.h"
#include "link/session.h"
#include "model/model.h"
#include "request/ask.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "tokenize"

struct tokenize { /* the options of a run; created once by main */
    const struct text *text;
    struct model_config config;
    const char *system; /* NULL: none */
    /* The writer of frames; NULL with --ids. */
    int (*put)(struct err *e, void *arg, const struct wire_frame *f);
    void *put_arg;
    struct wire_arena *arena;
    uint64_t seq;      /* of the next request */
    uint32_t n_choice; /* of the request that is written */
    uint64_t load_ns, start_ns;
    uint64_t n_ok, n_error;
    json_t *logged_fields; /* names of unknown fields that were logged */
};

/* emit.c: converts one request to frames, or to a line of ids. An invalid request becomes an err frame (with --ids a
 * log line), and the function returns 0. `where` is the prefix of such an error, "line 3: "; born: arrival time. */
int emit(struct err *e, struct tokenize *t, struct ask *a, const char *where, uint64_t born_ns);
/* A line of JSON, the same way. */
int emit_json(struct err *e, struct tokenize *t, const struct ask *base, const char *line, size_t n, const char *where);
/* The request could not be read, for the reason `why`. */
int emit_error(struct err *e, struct tokenize *t, const struct ask *a, const char *where, const struct err *why);
int emit_hello(struct err *e, struct tokenize *t);
int emit_bye(struct err *e, struct tokenize *t);

/* back.c: converts ids (lines) or frames to text. */
int back(struct err *e, const struct text *t, int64_t n_row, int fd, const char *name);

/* service.c: serves gateways at url until SIGTERM. ready_fd -1: none. */
int service(struct err *e, const struct tokenize *t, const struct ask *base, const char *url,
            const struct session_security *security, int ready_fd);

#endif
