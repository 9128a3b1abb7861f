/*
 * A model: its shape, and its weights packed for the kernels.
 *
 * Weights are packed once into a file under $XDG_CACHE_HOME/phasepipe/packed (a lock makes programs that start at once
 * pack once) and mapped read-only by every process, so a host holds them once. A model is read-only after model_open
 * and may be used from any thread.
 */
#ifndef MODEL_H
#define MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "err/err.h"
#include "kernels/kernels.h"
#include "model/gguf.h"

/* Families are rows of a table (family.c): what differs between them is data, not code. */
struct model_family {
    const char *arch; /* general.architecture */
    bool neox;        /* rope pairs (i, i + n/2) instead of (2i, 2i+1) */
    bool qkv_bias;    /* attn_{q,k,v}.bias must be there; elsewhere they are optional */
};

struct model_config {
    const struct model_family *family;
    int64_t n_layer, hidden, ffn, vocab; /* vocab: rows of the embedding */
    int n_head, n_kv_head;               /* n_head % n_kv_head == 0; head h reads kv head h / (n_head / n_kv_head) */
    int head_dim, n_rot;                 /* n_rot: rotated dimensions of a head, even, <= head_dim */
    int64_t context;                     /* trained window, after rope scaling of the file */
    float eps;
    bool tied;              /* no output matrix: the embedding is used */
    double rope_freq[512];  /* [n_rot/2] radians a token, scaling kinds applied, by our own double code */
    float rope_attn_factor; /* multiplies cos and sin (YaRN); 1 elsewhere */
};

struct model_layer {
    const float *attn_norm, *ffn_norm; /* [hidden] */
    struct kern_mat wq, wk, wv, wo;    /* [n_head*hd, hidden], [n_kv*hd, hidden] ×2, [hidden, n_head*hd] */
    const float *bq, *bk, *bv;         /* NULL or [rows] */
    struct kern_mat gate, up, down;    /* [ffn, hidden] ×2, [hidden, ffn] */
};

struct model {
    struct model_config c;
    struct kern_mat embed, output;   /* [vocab, hidden]; output is embed where tied */
    const float *output_norm;        /* [hidden] */
    const struct model_layer *layer; /* [n_layer] */
    uint8_t fingerprint[32];         /* BLAKE2b-256 over the whole GGUF file */
    const char *path;
    uint64_t weight_bytes; /* packed bytes mapped */
    bool packed_now;       /* this call did the packing */
    bool shared;           /* mapped from the cache; false: in this process's own memory */
    struct err not_shared; /* why not, where not shared */
    struct gguf *gguf;     /* header; owned */
    /* private */
    void *map;
    uint64_t map_bytes;
};

struct model_opts {
    const char *path; /* NULL: the default model of the cache directory, see model_default_path */
    void (*progress)(void *arg, uint64_t done, uint64_t total); /* packing, may be NULL */
    void *progress_arg;
};

/* ERR_NO: unknown architecture or type, missing tensor, wrong shape, truncated file (names file and tensor).
 * Blocks while another process packs the same model. */
int model_open(struct err *e, struct model **out, const struct model_opts *o);
void model_free(struct model *m);

/* Bytes of the mapping that lie in huge pages now, by /proc/self/smaps; 0 where it cannot be read. */
uint64_t model_huge_bytes(const struct model *m);

/* Shape alone, without weights: for tokenize and tests. */
int model_config_read(struct err *e, struct model_config *out, const struct gguf *g);

/* Path of the default model; ERR_NO saying how to get it (scripts/get-model) where it is not there. */
int model_default_path(struct err *e, char *out, size_t n);

/* exp, log, sin and cos in double by our own code (no libm: glibc picks variants by CPU), |x| <= 2^21 for sincos. */
double model_exp(double x);
double model_log(double x);
void model_sincos(double *s, double *c, double x);

#endif
