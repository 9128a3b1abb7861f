/* Private to lib/model: limits, the plan of a packed file, and the steps of model_open. */
#ifndef MODEL_IMPL_H
#define MODEL_IMPL_H

#include <stddef.h>
#include <xxhash.h>

#include "model/gguf_impl.h"
#include "model/model.h"

/* Limits of a model. */
#define MODEL_LAYERS_MAX 4096
#define MODEL_HIDDEN_MAX (1 << 18)
#define MODEL_FFN_MAX (1 << 22)
#define MODEL_VOCAB_MAX (1 << 24)
#define MODEL_HEADS_MAX 4096
#define MODEL_HEAD_DIM_MAX 1024     /* twice the length of model_config.rope_freq */
#define MODEL_CONTEXT_MAX (1 << 21) /* the range of model_sincos at one radian a token */

const struct model_family *model_family_find(struct gguf_str arch); /* NULL: unknown */
size_t model_family_names(char *out, size_t n);                     /* "llama, ..." */

/* Fills rope_freq and rope_attn_factor; the other fields of `c` must be set. */
int rope_read(struct err *e, struct model_config *c, const struct gguf *g);

/* KEY of the model's architecture, "llama.KEY". */
struct arch_key {
    char s[96];
};
struct arch_key arch_key(const struct model_config *c, const char *key);

/* ---- the plan: which tensor goes where in a packed file ---- */

struct pack_item {
    const struct gguf_tensor *src; /* NULL: an optional tensor that the file lacks */
    bool vec;                      /* stored as f32, rows = 1 */
    int64_t rows, cols;
    enum kern_type src_type, dst_type;
    uint64_t offset, bytes; /* in the packed file */
    uint64_t sum;           /* XXH3-64 of these bytes, once they were packed or the header was read */
};

enum pack_slot {
    PACK_EMBED,
    PACK_OUTPUT_NORM,
    PACK_OUTPUT,
    PACK_TOP, /* count of the slots above; layers follow */
};

enum pack_layer_slot {
    PACK_ATTN_NORM,
    PACK_Q,
    PACK_K,
    PACK_V,
    PACK_O,
    PACK_BQ,
    PACK_BK,
    PACK_BV,
    PACK_FFN_NORM,
    PACK_GATE,
    PACK_UP,
    PACK_DOWN,
    PACK_LAYER, /* count of the slots above */
};

struct pack_plan {
    struct pack_item *item; /* [n]: PACK_TOP, then PACK_LAYER a layer */
    uint64_t n;
    uint64_t total_bytes;
};

/* Finds and checks every tensor. dst_type is src_type until plan_narrow or the header of a packed file changes it. */
int plan_make(struct err *e, struct pack_plan *p, const struct model_config *c, const struct gguf *g);
void plan_free(struct pack_plan *p);

/* Sets dst_type to BF16 for F32 and F16 matrices whose values are all exact in bf16. Reads these matrices. */
int plan_narrow(struct err *e, struct pack_plan *p, const struct gguf *g);

/* Computes offsets and total_bytes from the types. */
void plan_place(struct pack_plan *p);

/* ---- the packed file (pack_file.c) ---- */

#define PACK_MODEL_BYTES 256

/* Identity of a packed file: which model file it is made of (path, device, inode, size, time of change), and the layout
 * of the kernels, found by packing a sample. `place` is the part that stays the same when the file at that path is
 * replaced. */
struct pack_identity {
    uint8_t whole[32], place[32];
    char model[PACK_MODEL_BYTES]; /* the end of the model file's path, padded with zeros */
};
int pack_identity(struct err *e, struct pack_identity *out, const struct gguf *g);

/* Bytes of the header of a packed file with n items. */
uint64_t pack_header_bytes(uint64_t n);

/* Makes the header of a plan in `buf`, pack_header_bytes(p->n) bytes. */
void pack_header_make(uint8_t *buf, const struct pack_plan *p, const struct pack_identity *id,
                      const uint8_t fingerprint[32]);

/* True if fd is a complete packed file of this plan and identity. Then copies types and checksums into the plan and
 * places it. The tensors are not read. */
bool pack_check(uint8_t fingerprint[32], struct pack_plan *p, int fd, const struct pack_identity *id);

/* The first tensor of a mapped file whose bytes do not have their checksum, or NULL. Reads all of the file. */
const struct pack_item *pack_verify(const struct pack_plan *p, const uint8_t *map);

/* The path of the model that a packed file of any plan is made of. False: not a packed file of this version. */
bool pack_model(char model[PACK_MODEL_BYTES], int fd);

/* ---- packing (repack.c) ---- */

/* Destination of packed bytes: a file, or memory of plan.total_bytes if fd is -1. */
struct pack_sink {
    int fd;
    uint8_t *mem;      /* the memory; for a file a buffer of PACK_BUFFER_BYTES */
    uint64_t at;       /* bytes written so far */
    const char *path;  /* of the file, for error texts */
    XXH3_state_t *sum; /* of the tensor that is written; pack_write sets and frees it */
};

/* If the file is written in pieces of this size and padded to 2 MiB, its pages can be huge pages in the page cache: a
 * mapping then reads 30 GB/s where 4 KiB pages of a memfd give 21 (ext4, Linux 6.18, one Zen 4 core). */
#define PACK_BUFFER_BYTES (4u << 20)
#define PACK_PAD_BYTES (2u << 20)

/* Writes the tensors, then the header, and fills `fingerprint` and the checksums of the plan. ERR_NO: a weight is NaN
 * or infinite, or the GGUF changed meanwhile. */
int pack_write(struct err *e, uint8_t fingerprint[32], struct pack_sink *s, struct pack_plan *p, const struct gguf *g,
               const struct pack_identity *id, const struct model_opts *o);

/* ---- the cache ---- */

/* The directory of packed files, its files that belong to one model, and what is known of them (cache_dir.c). */
struct cache_at {
    int dir;                           /* descriptor; -1: none */
    char path[4096];                   /* of the directory */
    char pack[96], temp[48], lock[48]; /* names in it */
    struct pack_identity id;
};

/* Opens the directory and names the files. ERR_SYS: it cannot be opened, or others than this user and root own it or
 * may write in it. cache_at_close after success. */
int cache_at_open(struct err *e, struct cache_at *at, const struct gguf *g);
void cache_at_close(struct cache_at *at);

/* Opens the directory alone. -1: the error states why. */
int cache_dir_open(struct err *e, char *path, size_t n);

/* True if this user or root owns it and nobody else may write to it; otherwise `reason` has the reason. */
struct stat;
bool cache_trusted(struct err *reason, const struct stat *st, const char *path);

/* Waits for the lock of a model's files and opens it; closing *fd releases it. If `now`, does not wait: *fd is -1 if
 * another process has it. `name` is the lock's file in the directory `dir`. */
int cache_lock(struct err *e, int *fd, int dir, const char *name, bool now);

/* The lock file holds a record of the last verification: which bytes (inode, size, times of the packed file) were found
 * right since the host was started. Its own time of change is when the packed file was last used (cache_use.c). */
bool cache_use_fits(int dir, const char *lock, const struct stat *pack);
void cache_use_write(int lock_fd, const struct stat *pack);
void cache_use_touch(int dir, const char *lock);

/* Finds or makes the packed file, maps it and fills map, map_bytes, fingerprint, packed_now and shared. ERR_SYS: the
 * cache cannot be used; cache_map_private then packs into memory of this process. (cache.c) */
int cache_map(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o);
int cache_map_private(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o);

#endif
