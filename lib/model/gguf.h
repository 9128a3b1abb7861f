/*
 * Reader of GGUF files (versions 2 and 3, little endian). Every count, size and offset is checked before it is used.
 * Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
 *
 * The header is read into memory; tensor data is read with pread on demand, so a file that is truncated while it is
 * open gives an error, not a signal. Opening is not thread-safe; const access afterwards is.
 */
#ifndef GGUF_H
#define GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"

struct gguf; /* owns the file descriptor and the header */

struct gguf_str {
    const char *p; /* borrowed, not NUL-terminated, may hold any byte */
    size_t n;
};

struct gguf_tensor {
    struct gguf_str name;
    uint32_t type;   /* GGML type number */
    int n_dim;       /* 1 … 4 */
    uint64_t dim[4]; /* dim[0] is the row length; unused ones are 1 */
    uint64_t offset; /* from the start of the file */
    uint64_t bytes;
};

int gguf_open(struct err *e, struct gguf **out, const char *path);
void gguf_free(struct gguf *g);
const char *gguf_path(const struct gguf *g);
uint64_t gguf_file_bytes(const struct gguf *g);
int gguf_fd(const struct gguf *g); /* borrowed */

/* Getters. ERR_NO names file and key: the key is missing, has another type, or its value is outside [lo, hi]. Integers
 * of any width and sign are accepted if the value fits. */
bool gguf_has(const struct gguf *g, const char *key);
uint64_t gguf_key_count(const struct gguf *g);
struct gguf_str gguf_key_at(const struct gguf *g, uint64_t i); /* in the order of the file */
int gguf_u64(struct err *e, const struct gguf *g, const char *key, uint64_t *out, uint64_t lo, uint64_t hi);
int gguf_f64(struct err *e, const struct gguf *g, const char *key, double *out);
int gguf_bool(struct err *e, const struct gguf *g, const char *key, bool *out);
int gguf_string(struct err *e, const struct gguf *g, const char *key, struct gguf_str *out);

/* Arrays: *n is the number of elements; *out is borrowed. Strings are accessed in constant time. */
int gguf_strs(struct err *e, const struct gguf *g, const char *key, const struct gguf_str **out, uint64_t *n);
int gguf_f32s(struct err *e, const struct gguf *g, const char *key, const float **out, uint64_t *n);
int gguf_i32s(struct err *e, const struct gguf *g, const char *key, const int32_t **out, uint64_t *n); /* i32 or u32 */

/* Name of a GGML type, NULL if unknown; values of a block, and bytes that store them. */
const char *gguf_type_name(uint32_t type);
bool gguf_type_size(uint64_t *block, uint64_t *bytes, uint32_t type);

uint64_t gguf_tensor_count(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name); /* NULL: absent */

/* Reads `n` bytes of a tensor, starting at byte `from` of it. ERR_NO names file and tensor: the file was truncated. */
int gguf_read(struct err *e, const struct gguf *g, const struct gguf_tensor *t, uint64_t from, void *dst, uint64_t n);

#endif
