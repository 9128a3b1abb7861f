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

/* Opens a file for reading, stdin for "-". The caller closes *fd. */
int frames_open_in(struct err *e, int *fd, const char **name, const char *file);

/* The (seq, index) of a request's frame; false for hello and bye. */
bool frames_key(const struct wire_frame *f, uint64_t *seq, uint32_t *index);

/* Reads the payload of f from r and encodes the whole frame. *out is allocated; the caller frees it. */
int frames_take(struct err *e, uint8_t **out, size_t *n, struct wire_reader *r, const struct wire_frame *f);

/* ---- owners of requests ---- */

struct owners;                   /* maps (seq, index) to a number */
struct owners *owners_new(void); /* NULL: no memory */
void owners_free(struct owners *o);
/* Returns the owner of a request in *found; a new request (*is_new) gets `owner`. */
int owners_get(struct err *e, uint32_t *found, bool *is_new, struct owners *o, uint64_t seq, uint32_t index,
               uint32_t owner);
/* owners_fail: records that the request failed. owners_count: counts an owner's requests by result. */
void owners_fail(struct owners *o, uint64_t seq, uint32_t index);
void owners_count(const struct owners *o, uint32_t owner, uint64_t *n_ok, uint64_t *n_error);

#endif
