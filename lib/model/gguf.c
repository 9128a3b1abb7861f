/*
 * Parses a GGUF header. The file is read only as far as the parser needs, so a small file that claims a huge header
 * costs no memory. Before memory is allocated for a count, the count is compared with the bytes left in the file
 * divided by the smallest size of an element.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/vec.h"
#include "model/gguf_impl.h"

#define CHUNK_BYTES 65536u

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF fields are copied as they lie in the file");

static uint64_t bytes_left(const struct gguf *g)
{
    return g->file_bytes - g->pos;
}

/* Makes bytes [pos, pos + n) available in memory, reading more of the file if necessary. `what` names them in error
 * texts. */
static int need(struct err *e, struct gguf *g, uint64_t n, const char *what)
{
    if (n > bytes_left(g))
        return err_set(e, ERR_NO,
                       "%s: truncated: %s needs %" PRIu64 " bytes at offset %" PRIu64 ", the file ends at %" PRIu64,
                       g->path, what, n, g->pos, g->file_bytes);
    uint64_t end = g->pos + n;
    if (end > GGUF_HEADER_BYTES_MAX)
        return err_set(e, ERR_NO, "%s: the header is longer than %u bytes", g->path, GGUF_HEADER_BYTES_MAX);
    int rc = vec_reserve(e, &g->head, &g->head_cap, end < CHUNK_BYTES ? CHUNK_BYTES : end, 1, "a GGUF header");
    if (rc)
        return rc;
    while (g->head_bytes < end) {
        uint64_t want = g->head_cap - g->head_bytes;
        uint64_t in_file = g->file_bytes - g->head_bytes;
        ssize_t r = pread(g->fd, g->head + g->head_bytes, want < in_file ? want : in_file, (off_t)g->head_bytes);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, "%s: read", g->path);
        if (r == 0)
            return err_set(e, ERR_NO, "%s: the file was truncated while it was read", g->path);
        g->head_bytes += (uint64_t)r;
    }
    return 0;
}

/* Reads an unsigned number of `n` bytes. */
static int read_number(struct err *e, struct gguf *g, uint64_t *out, unsigned n, const char *what)
{
    int rc = need(e, g, n, what);
    if (rc)
        return rc;
    *out = 0;
    memcpy(out, g->head + g->pos, n);
    g->pos += n;
    return 0;
}

static int read_u32(struct err *e, struct gguf *g, uint32_t *out, const char *what)
{
    uint64_t v;
    int rc = read_number(e, g, &v, 4, what);
    if (!rc)
        *out = (uint32_t)v;
    return rc;
}

/* Reads a string. The buffer may still move, so `p` holds the offset until settle() turns it into a pointer. */
static int read_str(struct err *e, struct gguf *g, struct gguf_str *out, uint64_t n_max, const char *what)
{
    uint64_t n;
    int rc = read_number(e, g, &n, 8, what);
    if (rc)
        return rc;
    if (n > n_max)
        return err_set(e, ERR_NO, "%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ", the limit is %" PRIu64, g->path,
                       what, n, g->pos, n_max);
    rc = need(e, g, n, what);
    if (rc)
        return rc;
    out->p = (const char *)(uintptr_t)g->pos;
    out->n = n;
    g->pos += n;
    return 0;
}

static struct gguf_shown show_unsettled(const struct gguf *g, struct gguf_str s)
{
    return gguf_show((struct gguf_str){(const char *)g->head + (uintptr_t)s.p, s.n});
}

static unsigned value_bytes(uint32_t type)
{
    static const uint8_t bytes[GGUF_VALUES] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 0, 8, 8, 8};
    return bytes[type];
}

static int read_strs(struct err *e, struct gguf *g, struct gguf_kv *kv)
{
    kv->strs = calloc(kv->n ? kv->n : 1, sizeof *kv->strs);
    if (!kv->strs)
        return err_nomem(e, "a GGUF string array", kv->n * sizeof *kv->strs);
    for (uint64_t i = 0; i < kv->n; i++) {
        int rc = read_str(e, g, &kv->strs[i], GGUF_HEADER_BYTES_MAX, "a string of an array");
        if (rc)
            return rc;
    }
    return 0;
}

static int read_numbers(struct err *e, struct gguf *g, struct gguf_kv *kv)
{
    uint64_t n_bytes = kv->n * value_bytes(kv->etype);
    int rc = need(e, g, n_bytes, "an array");
    if (rc)
        return rc;
    if (value_bytes(kv->etype) == 4) {
        kv->words = malloc(n_bytes ? n_bytes : 1);
        if (!kv->words)
            return err_nomem(e, "a GGUF array", n_bytes);
        memcpy(kv->words, g->head + g->pos, n_bytes);
    }
    g->pos += n_bytes;
    return 0;
}

static int read_array(struct err *e, struct gguf *g, struct gguf_kv *kv)
{
    int rc = read_u32(e, g, &kv->etype, "an array's type");
    if (!rc)
        rc = read_number(e, g, &kv->n, 8, "an array's length");
    if (rc)
        return rc;
    if (kv->etype == GGUF_ARRAY)
        return err_set(e, ERR_NO, "%s: key %s is an array of arrays, which is not supported", g->path,
                       show_unsettled(g, kv->key).s);
    if (kv->etype >= GGUF_VALUES)
        return err_set(e, ERR_NO, "%s: key %s is an array of unknown type %" PRIu32, g->path,
                       show_unsettled(g, kv->key).s, kv->etype);
    uint64_t room = bytes_left(g) < GGUF_HEADER_BYTES_MAX ? bytes_left(g) : GGUF_HEADER_BYTES_MAX;
    if (kv->n > room / value_bytes(kv->etype))
        return err_set(e, ERR_NO, "%s: key %s claims %" PRIu64 " elements, only %" PRIu64 " bytes can follow", g->path,
                       show_unsettled(g, kv->key).s, kv->n, room);
    return kv->etype == GGUF_STRING ? read_strs(e, g, kv) : read_numbers(e, g, kv);
}

static int read_kv(struct err *e, struct gguf *g, struct gguf_kv *kv)
{
    int rc = read_str(e, g, &kv->key, GGUF_KEY_BYTES_MAX, "a key");
    if (!rc)
        rc = read_u32(e, g, &kv->type, "a value's type");
    if (rc)
        return rc;
    if (kv->type >= GGUF_VALUES)
        return err_set(e, ERR_NO, "%s: key %s has unknown type %" PRIu32, g->path, show_unsettled(g, kv->key).s,
                       kv->type);
    if (kv->type == GGUF_STRING)
        return read_str(e, g, &kv->str, GGUF_HEADER_BYTES_MAX, "a string");
    if (kv->type == GGUF_ARRAY)
        return read_array(e, g, kv);
    rc = read_number(e, g, &kv->raw, value_bytes(kv->type), "a value");
    if (rc)
        return rc;
    if (kv->type == GGUF_BOOL && kv->raw > 1)
        return err_set(e, ERR_NO, "%s: key %s is a bool of value %" PRIu64 ", not 0 or 1", g->path,
                       show_unsettled(g, kv->key).s, kv->raw);
    /* Signed values are stored sign-extended to 64 bits, so that a reader needs one comparison. */
    if (kv->type == GGUF_I8)
        kv->raw = (uint64_t)(int64_t)(int8_t)kv->raw;
    else if (kv->type == GGUF_I16)
        kv->raw = (uint64_t)(int64_t)(int16_t)kv->raw;
    else if (kv->type == GGUF_I32)
        kv->raw = (uint64_t)(int64_t)(int32_t)kv->raw;
    return 0;
}

/* Computes the size of a tensor; every product is checked for overflow. */
static int tensor_bytes(struct err *e, struct gguf *g, struct gguf_tensor *t)
{
    struct gguf_shown shown = show_unsettled(g, t->name);
    uint64_t block, block_bytes, n = 1;
    if (!gguf_type_size(&block, &block_bytes, t->type))
        return err_set(e, ERR_NO, "%s: tensor %s has unknown type %" PRIu32, g->path, shown.s, t->type);
    for (int i = 0; i < t->n_dim; i++) {
        if (t->dim[i] == 0)
            return err_set(e, ERR_NO, "%s: tensor %s has a dimension of 0", g->path, shown.s);
        if (__builtin_mul_overflow(n, t->dim[i], &n) || n > INT64_MAX)
            return err_set(e, ERR_NO, "%s: tensor %s: the product of its dimensions is above 2^63", g->path, shown.s);
    }
    if (t->dim[0] % block)
        return err_set(e, ERR_NO,
                       "%s: tensor %s: the row length %" PRIu64 " is not a multiple of %" PRIu64
                       ", the block of type %s",
                       g->path, shown.s, t->dim[0], block, gguf_type_name(t->type));
    if (__builtin_mul_overflow(n / block, block_bytes, &t->bytes) || t->bytes > INT64_MAX)
        return err_set(e, ERR_NO, "%s: tensor %s: its size is above 2^63 bytes", g->path, shown.s);
    return 0;
}

static int read_tensor(struct err *e, struct gguf *g, struct gguf_tensor *t)
{
    uint32_t n_dim;
    int rc = read_str(e, g, &t->name, GGUF_NAME_BYTES_MAX, "a tensor's name");
    if (!rc)
        rc = read_u32(e, g, &n_dim, "a tensor's number of dimensions");
    if (rc)
        return rc;
    if (n_dim < 1 || n_dim > 4)
        return err_set(e, ERR_NO, "%s: tensor %s has %" PRIu32 " dimensions, outside 1 to 4", g->path,
                       show_unsettled(g, t->name).s, n_dim);
    t->n_dim = (int)n_dim;
    for (int i = 0; i < 4; i++)
        t->dim[i] = 1;
    for (int i = 0; !rc && i < t->n_dim; i++)
        rc = read_number(e, g, &t->dim[i], 8, "a tensor's dimension");
    if (!rc)
        rc = read_u32(e, g, &t->type, "a tensor's type");
    if (!rc)
        rc = read_number(e, g, &t->offset, 8, "a tensor's offset");
    return rc ? rc : tensor_bytes(e, g, t);
}

/* Reads the fixed start of the file and compares the two counts with what the file could contain. */
static int read_start(struct err *e, struct gguf *g)
{
    int rc = need(e, g, 4, "the magic of a GGUF file");
    if (rc)
        return rc;
    if (memcmp(g->head, "GGUF", 4) != 0)
        return err_set(e, ERR_NO, "%s: not a GGUF file", g->path);
    g->pos = 4;
    uint32_t version = 0;
    rc = read_u32(e, g, &version, "the version");
    if (rc)
        return rc;
    if (version == 0x02000000 || version == 0x03000000)
        return err_set(e, ERR_NO, "%s: a big-endian GGUF file; only little-endian files are supported", g->path);
    if (version != 2 && version != 3)
        return err_set(e, ERR_NO, "%s: GGUF version %" PRIu32 "; supported: 2 and 3", g->path, version);
    rc = read_number(e, g, &g->n_tensor, 8, "the number of tensors");
    if (!rc)
        rc = read_number(e, g, &g->n_kv, 8, "the number of pairs");
    uint64_t n_kv = g->n_kv, n_tensor = g->n_tensor;
    g->n_kv = g->n_tensor = 0;
    if (rc)
        return rc;
    /* Smallest size of a pair: key length, type and one byte. Of a tensor: name length, number of dimensions, one
     * dimension, type, offset. */
    if (n_kv > GGUF_KV_MAX || n_kv > bytes_left(g) / 13)
        return err_set(e, ERR_NO, "%s: claims %" PRIu64 " metadata pairs; %" PRIu64 " bytes follow and the limit is %u",
                       g->path, n_kv, bytes_left(g), GGUF_KV_MAX);
    if (n_tensor > GGUF_TENSOR_MAX || n_tensor > bytes_left(g) / 32)
        return err_set(e, ERR_NO, "%s: claims %" PRIu64 " tensors; %" PRIu64 " bytes follow and the limit is %u",
                       g->path, n_tensor, bytes_left(g), GGUF_TENSOR_MAX);
    g->kv = calloc(n_kv + 1, sizeof *g->kv);
    g->tensor = calloc(n_tensor + 1, sizeof *g->tensor);
    if (!g->kv || !g->tensor)
        return err_nomem(e, "a GGUF header", n_kv * sizeof *g->kv + n_tensor * sizeof *g->tensor);
    g->n_kv = n_kv;
    g->n_tensor = n_tensor;
    return 0;
}

/* Converts offsets to pointers, once the buffer does not move any more. */
static void settle(struct gguf *g)
{
    const char *base = (const char *)g->head;
    for (uint64_t i = 0; i < g->n_kv; i++) {
        struct gguf_kv *kv = &g->kv[i];
        kv->key.p = base + (uintptr_t)kv->key.p;
        if (kv->type == GGUF_STRING)
            kv->str.p = base + (uintptr_t)kv->str.p;
        for (uint64_t k = 0; kv->strs && k < kv->n; k++)
            kv->strs[k].p = base + (uintptr_t)kv->strs[k].p;
    }
    for (uint64_t i = 0; i < g->n_tensor; i++)
        g->tensor[i].name.p = base + (uintptr_t)g->tensor[i].name.p;
}

static int by_key(const void *a, const void *b, void *kv)
{
    const struct gguf_kv *v = kv;
    return gguf_str_compare(v[*(const uint32_t *)a].key, v[*(const uint32_t *)b].key);
}

static int by_name(const void *a, const void *b, void *tensor)
{
    const struct gguf_tensor *v = tensor;
    return gguf_str_compare(v[*(const uint32_t *)a].name, v[*(const uint32_t *)b].name);
}

/* Sorted indexes rather than hash tables: no choice of keys makes them slow, and duplicates are neighbours. */
static int sort_names(struct err *e, struct gguf *g)
{
    g->kv_order = calloc(g->n_kv + 1, sizeof *g->kv_order);
    g->tensor_order = calloc(g->n_tensor + 1, sizeof *g->tensor_order);
    if (!g->kv_order || !g->tensor_order)
        return err_nomem(e, "a GGUF index", (g->n_kv + g->n_tensor) * sizeof *g->kv_order);
    for (uint64_t i = 0; i < g->n_kv; i++)
        g->kv_order[i] = (uint32_t)i;
    for (uint64_t i = 0; i < g->n_tensor; i++)
        g->tensor_order[i] = (uint32_t)i;
    qsort_r(g->kv_order, g->n_kv, sizeof *g->kv_order, by_key, g->kv);
    qsort_r(g->tensor_order, g->n_tensor, sizeof *g->tensor_order, by_name, g->tensor);
    for (uint64_t i = 1; i < g->n_kv; i++)
        if (by_key(&g->kv_order[i - 1], &g->kv_order[i], g->kv) == 0)
            return err_set(e, ERR_NO, "%s: key %s occurs twice", g->path, gguf_show(g->kv[g->kv_order[i]].key).s);
    for (uint64_t i = 1; i < g->n_tensor; i++)
        if (by_name(&g->tensor_order[i - 1], &g->tensor_order[i], g->tensor) == 0)
            return err_set(e, ERR_NO, "%s: tensor %s occurs twice", g->path,
                           gguf_show(g->tensor[g->tensor_order[i]].name).s);
    return 0;
}

/* Computes the tensors' positions in the file and checks that each ends within it. */
static int place_tensors(struct err *e, struct gguf *g)
{
    uint64_t align = GGUF_ALIGN_DEFAULT;
    const struct gguf_kv *kv = gguf_kv_find(g, "general.alignment");
    if (kv && kv->type != GGUF_U32)
        return err_set(e, ERR_NO, "%s: key general.alignment is of type %s, not u32", g->path,
                       gguf_value_name(kv->type));
    if (kv)
        align = kv->raw;
    if (align < GGUF_ALIGN_MIN || align > GGUF_ALIGN_MAX || (align & (align - 1)))
        return err_set(e, ERR_NO, "%s: key general.alignment is %" PRIu64 ", not a power of two from %u to %u", g->path,
                       align, GGUF_ALIGN_MIN, GGUF_ALIGN_MAX);
    g->data_pos = (g->pos + align - 1) & ~(align - 1);
    for (uint64_t i = 0; i < g->n_tensor; i++) {
        struct gguf_tensor *t = &g->tensor[i];
        if (t->offset % align)
            return err_set(e, ERR_NO, "%s: tensor %s: offset %" PRIu64 " is not a multiple of the alignment %" PRIu64,
                           g->path, gguf_show(t->name).s, t->offset, align);
        uint64_t end;
        if (__builtin_add_overflow(t->offset, g->data_pos, &t->offset) ||
            __builtin_add_overflow(t->offset, t->bytes, &end) || end > g->file_bytes)
            return err_set(e, ERR_NO,
                           "%s: tensor %s ends past the end of the file: %" PRIu64 " bytes at offset %" PRIu64
                           ", the file has %" PRIu64 " (a broken download?)",
                           g->path, gguf_show(t->name).s, t->bytes, t->offset, g->file_bytes);
    }
    return 0;
}

static int parse(struct err *e, struct gguf *g)
{
    int rc = read_start(e, g);
    for (uint64_t i = 0; !rc && i < g->n_kv; i++)
        rc = read_kv(e, g, &g->kv[i]);
    for (uint64_t i = 0; !rc && i < g->n_tensor; i++)
        rc = read_tensor(e, g, &g->tensor[i]);
    if (rc)
        return rc;
    settle(g);
    rc = sort_names(e, g);
    return rc ? rc : place_tensors(e, g);
}

/* O_NONBLOCK: opening a named pipe must not wait for a writer; the pipe is refused after the open. */
static int open_file(struct err *e, struct gguf *g, const char *path)
{
    g->path = strdup(path);
    if (!g->path)
        return err_nomem(e, "a path", strlen(path));
    g->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    if (g->fd < 0 && (errno == ENOENT || errno == ENOTDIR))
        return gguf_refuse_missing(e, path);
    if (g->fd < 0 || fstat(g->fd, &st) < 0)
        return err_sys(e, "%s: open", path);
    if (S_ISDIR(st.st_mode))
        return gguf_refuse_directory(e, path);
    if (!S_ISREG(st.st_mode))
        return err_set(e, ERR_NO, "%s: not a regular file", path);
    g->file_bytes = (uint64_t)st.st_size;
    return 0;
}

int gguf_open(struct err *e, struct gguf **out, const char *path)
{
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_nomem(e, "a GGUF file", sizeof *g);
    g->fd = -1;
    int rc = open_file(e, g, path);
    if (!rc)
        rc = parse(e, g);
    if (rc) {
        gguf_free(g);
        return rc;
    }
    *out = g;
    return 0;
}

void gguf_free(struct gguf *g)
{
    if (!g)
        return;
    for (uint64_t i = 0; i < g->n_kv; i++) {
        free(g->kv[i].strs);
        free(g->kv[i].words);
    }
    free(g->kv);
    free(g->tensor);
    free(g->kv_order);
    free(g->tensor_order);
    free(g->head);
    if (g->fd >= 0)
        close(g->fd);
    free(g->path);
    free(g);
}
