/*
 * What is in the directory of packed weights, and its bounds. A packed file is a copy that can be made again from its
 * model, so it may be removed whenever nobody uses it. Every process that maps one holds a shared lock of it.
 */
#ifndef MODEL_CACHE_H
#define MODEL_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"

struct model_cached {
    char file[96];
    char model[256]; /* path of the model, its last 255 bytes; empty: packed by another version */
    uint64_t bytes;
    int64_t used_s; /* when it was mapped last, seconds since the epoch */
    bool in_use;    /* a process maps it now */
};

/* The packed files, the last used first. *out is owned by the caller (free); `dir` receives the directory. Does not
 * block. ERR_SYS: the directory cannot be read, or others can write in it. */
int model_cache_list(struct err *e, struct model_cached **out, size_t *n, char *dir, size_t n_dir);

struct model_cache_bounds {
    uint64_t bytes; /* of all files together */
    uint64_t age_s; /* since the last use */
};

/* What is enforced after each packing: 30 days, and 64 GiB or a quarter of the file system if that is less. */
#define MODEL_CACHE_BYTES ((uint64_t)64 << 30)
#define MODEL_CACHE_AGE_S ((uint64_t)30 * 86400)
struct model_cache_bounds model_cache_bounds(void);

struct model_cache_pruned {
    size_t n, kept;
    uint64_t bytes, kept_bytes;
};

/* Removes files that were not used within age_s, then the least recently used ones until the others fit in `bytes`.
 * Keeps what is in use and what is being packed. Removes what killed processes left, too. Errors as model_cache_list.
 */
int model_cache_prune(struct err *e, struct model_cache_pruned *out, const struct model_cache_bounds *b);

#endif
