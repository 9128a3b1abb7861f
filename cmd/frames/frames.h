/* Private to the program frames. */
#ifndef FRAMES_H
#define FRAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define PROG "frames"

int frames_show(struct err *e, const char *file, bool full); /* frames to JSON lines on stdout; NULL or "-": stdin */
int frames_encode(struct err *e);                            /* JSON lines on stdin to frames on stdout */
int frames_deal(struct err *e, char **out, size_t n_out);    /* frames on stdin to files */
int frames_merge(struct err *e, char **in, size_t n_in);     /* frames of files to stdout */

/* A file for reading, stdin for "-". *fd is the caller's to close. */
int frames_open_in(struct err *e, int *fd, const char **name, const char *file);

/* The key of a request's frame; false for hello and bye. */
bool frames_key(const struct wire_frame *f, uint64_t *seq, uint32_t *index);

/* A whole frame as bytes, its payload too, read from r. *out: malloc'd. */
int frames_take(struct err *e, uint8_t **out, size_t *n, struct wire_reader *r, const struct wire_frame *f);

/* ---- who has which request ---- */

struct owners;                   /* (seq, index) to a number */
struct owners *owners_new(void); /* NULL: no memory */
void owners_free(struct owners *o);
/* The owner of a request, which becomes `owner` where it had none. *is_new says which. */
int owners_get(struct err *e, uint32_t *got, bool *is_new, struct owners *o, uint64_t seq, uint32_t index,
               uint32_t owner);
/* Every request noted with what was set for it: failed or not. */
void owners_fail(struct owners *o, uint64_t seq, uint32_t index);
void owners_count(const struct owners *o, uint32_t owner, uint64_t *n_ok, uint64_t *n_error);

#endif
