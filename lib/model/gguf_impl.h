/* Private to lib/model: a parsed GGUF header in memory, and the limits of what a file may claim. */
#ifndef GGUF_IMPL_H
#define GGUF_IMPL_H

#include "model/gguf.h"

/* Limits of a header. Files in use have under 100 pairs, 2,000 tensors and 20 MiB of header. */
#define GGUF_HEADER_BYTES_MAX (256u << 20)
#define GGUF_KV_MAX 65536u
#define GGUF_TENSOR_MAX 131072u
#define GGUF_KEY_BYTES_MAX 65535u
#define GGUF_NAME_BYTES_MAX 255u
#define GGUF_ALIGN_MIN 8u
#define GGUF_ALIGN_MAX (1u << 20)
#define GGUF_ALIGN_DEFAULT 32u

enum gguf_value {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_VALUES,
};

/* A key-value pair. A scalar is in `raw`, a string in `str`, an array of strings in `strs`, an array of 4-byte numbers
 * in `words` (aligned copy). Other arrays are checked and skipped. */
struct gguf_kv {
    struct gguf_str key;
    uint32_t type;  /* enum gguf_value */
    uint32_t etype; /* of an array's elements */
    uint64_t n;     /* elements of an array */
    uint64_t raw;
    struct gguf_str str;
    struct gguf_str *strs;
    uint32_t *words;
};

struct gguf {
    char *path;
    int fd;
    uint64_t file_bytes;

    uint8_t *head; /* the header, bytes [0, head_bytes) of the file */
    uint64_t head_bytes;
    size_t head_cap;
    uint64_t pos;      /* read position while opening */
    uint64_t data_pos; /* start of the tensor data */

    uint64_t n_kv, n_tensor;
    struct gguf_kv *kv;
    struct gguf_tensor *tensor;
    uint32_t *kv_order, *tensor_order; /* indexes sorted by key and by name */
};

/* ERR_NO for a path that does not exist, or that is a directory: what is needed, and how to get it (gguf_path.c). */
int gguf_refuse_missing(struct err *e, const char *path);
int gguf_refuse_directory(struct err *e, const char *path);

/* Text of a file for use in an error: truncated, with unprintable characters as '?'. */
struct gguf_shown {
    char s[72];
};
struct gguf_shown gguf_show(struct gguf_str s);

const char *gguf_value_name(uint32_t type);
int gguf_str_compare(struct gguf_str a, struct gguf_str b);
const struct gguf_kv *gguf_kv_find(const struct gguf *g, const char *key);

#endif
