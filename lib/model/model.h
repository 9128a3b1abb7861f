/*
 * A model: its shape, and its weights packed for the kernels.
 *
 * Weights are packed once, into a file under $XDG_CACHE_HOME/phasepipe/packed, and mapped read-only by every process,
 * so a host holds them once. A lock ensures that programs started at the same time pack once. A model is read-only
 * after model_open and may be used by any thread.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "kernels/kernels.h"
#include "model/gguf.h"

/* A model family: a row of the table in family.c. Families differ in data, not in code. */
struct model_family {
    const char *arch; /* general.architecture */
    bool neox;        /* rope pairs (i, i + n/2) instead of (2i, 2i+1) */
    bool qkv_bias;    /* attn_{q,k,v}.bias are required; in other families they are optional */
};

struct model_config {
    const struct model_family *family;
    int64_t n_layer, hidden, ffn, vocab; /* vocab: rows of the embedding */
    int n_head, n_kv_head;               /* n_head % n_kv_head == 0; head h reads kv head h / (n_head / n_kv_head) */
    int head_dim, n_rot;                 /* n_rot: rotated dimensions of a head, even, <= head_dim */
    int64_t context;                     /* context length in tokens: as trained, after the file's rope scaling */
    float eps;
    bool tied;              /* no output matrix: the embedding is used as output */
    double rope_freq[512];  /* [n_rot/2] radians a token, scaling applied, computed without libm */
    float rope_attn_factor; /* factor of cos and sin (YaRN); 1 without YaRN */
};

struct model_layer {
    const float *attn_norm, *ffn_norm; /* [hidden] */
    struct kern_mat wq, wk, wv, wo;    /* [n_head*hd, hidden], [n_kv*hd, hidden] ×2, [hidden, n_head*hd] */
    const float *bq, *bk, *bv;         /* NULL or [rows] */
    struct kern_mat gate, up, down;    /* [ffn, hidden] ×2, [hidden, ffn] */
};

struct model {
    struct model_config c;
    struct kern_mat embed, output;   /* [vocab, hidden]; output is embed if tied */
    const float *output_norm;        /* [hidden] */
    const struct model_layer *layer; /* [n_layer] */
    uint8_t fingerprint[32];         /* BLAKE2b-256 over the whole GGUF file */
    const char *path;
    uint64_t weight_bytes; /* bytes of the packed file that are mapped */
    bool packed_now;       /* this call packed the weights */
    bool shared;           /* mapped from the cache; false: private memory of this process */
    struct err not_shared; /* if not shared: the reason */
    struct gguf *gguf;     /* header; owned */
    /* private */
    void *map;
    uint64_t map_bytes;
    int map_fd; /* of the mapped file, if it is shared; its lock keeps the file from being pruned */
};

struct model_opts {
    const char *path; /* NULL: the default model of the cache directory, see model_default_path */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* packing, may be NULL */
    void *progress_arg;
    bool verify; /* compare the packed weights with their checksums, even if that was done before */
    void (*log)(void *arg, const char *text); /* a packed file or directory that is not used: a line; may be NULL */
    void *log_arg;
};

/* Opens a model file. Blocks while this or another process packs it. ERR_NO names file and tensor or key: unknown
 * architecture or type, missing tensor, wrong shape, truncated file, a weight that is NaN or infinite. */
int model_open(struct err *e, struct model **out, const struct model_opts *o);
void model_free(struct model *m);

/* Bytes of the mapping that are in huge pages now, from /proc/self/smaps; 0 if that cannot be read. */
uint64_t model_huge_bytes(const struct model *m);

/* The shape alone, without weights. */
int model_config_read(struct err *e, struct model_config *out, const struct gguf *g);

/* Lets the sandbox open a model file; NULL: the default one. */
struct sandbox;
void model_allow(struct sandbox *s, const char *path);

/* The directory of packed weights, which is created if it is missing. ERR_SYS: it cannot be. */
int model_packed_dir(struct err *e, char *out, size_t n);

/* Path of the default model. ERR_NO with the way to get it (scripts/get-model) if the file does not exist. */
int model_default_path(struct err *e, char *out, size_t n);

/* exp, log, sin and cos in double, with the same bits on every CPU (glibc selects variants by CPU). |x| <= 2^21 for
 * sincos. */
double model_exp(double x);
double model_log(double x);
void model_sincos(double *s, double *c, double x);

#endif
