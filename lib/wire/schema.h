/*
 * Private to lib/wire: the table of kinds and fields, which drives encoding, decoding, copying, JSON and the text of
 * the schema.
 */
#ifndef WIRE_SCHEMA_H
#define WIRE_SCHEMA_H

#include "wire/wire.h"

enum wire_type {
    TY_U32,
    TY_U64,
    TY_I32,
    TY_F32,
    TY_LOGPROB, /* float32 or nil, which is NaN */
    TY_BOOL,
    TY_STR,
    TY_NAME, /* str of printable ASCII */
    TY_BIN,
    TY_IDS,  /* array of uint32 */
    TY_STRS, /* array of str */
    TY_REASON,
    TY_SECTION, /* a nested map whose fields are in the same struct */
    TY_TUPLE,   /* one fixed array */
    TY_TUPLES,  /* array of fixed arrays */
    TY_MAPS,    /* array of maps */
    TY_DATA,    /* the payload of blk: a bin whose bytes are not in the buffer; always last */
};

#define FIELD_ALONE UINT16_MAX /* offset that means: none */

struct wire_field {
    const char *name;
    enum wire_type type;
    bool required;
    uint16_t off;   /* of the value, or of the pointer to an array, in its struct */
    uint16_t n_off; /* of the uint32 count of an array, or of the bool that is true if a value is present */
    int64_t lo;     /* integers: lo … hi is the range; str, bin and arrays: lo … hi is the range of the length */
    uint64_t hi;
    double flo, fhi; /* floats: the range */
    double def;      /* the value of an absent field */
    const struct wire_rec *rec;
};

struct wire_rec {
    const char *name;
    const struct wire_field *f;
    uint32_t n;
    uint32_t size;      /* of the struct, for arrays */
    bool tuple;         /* an array of all fields in order, otherwise a map */
    uint16_t extra_off; /* of its struct wire_extra, FIELD_ALONE for tuples */
};

#define WIRE_KIND_LAST WIRE_PROMPT

/* NULL: no such kind. */
const struct wire_rec *wire_rec_of(uint64_t kind);
const struct wire_rec *wire_service_rec(uint64_t kind); /* of the services: schema_sched.c */
extern const struct wire_rec wire_run_rec, wire_span_rec;
const struct wire_rec *wire_store_rec(uint64_t kind); /* of kvstore: schema_store.c */
extern const struct wire_rec wire_kv_kind_rec, wire_kv_block_rec;
enum wire_kind wire_kind_of(const char *name, size_t n); /* 0: none */
enum wire_reason wire_reason_of(const char *name, size_t n);

/* The field called key; the search begins at *hint, which is then set to the next field, because fields usually arrive
 * in the order of the table. NULL: no such field. */
const struct wire_field *wire_field_of(const struct wire_rec *rec, const char *key, size_t n, uint32_t *hint);

bool wire_is_name(const char *p, size_t n);

/* Sets the fields of a zeroed struct whose default is not 0. */
void wire_set_defaults(const struct wire_rec *rec, void *base);

/* Range checks of encoder and decoder. at: the offset for the error text; -1: none. wire_bad returns ERR_PROTO. */
int wire_bad(struct err *e, const char *kind, const struct wire_field *f, int64_t at, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
int wire_check_uint(struct err *e, const char *kind, const struct wire_field *f, int64_t at, uint64_t v);
int wire_check_int(struct err *e, const char *kind, const struct wire_field *f, int64_t at, int64_t v);
int wire_check_float(struct err *e, const char *kind, const struct wire_field *f, int64_t at, double v);
int wire_check_count(struct err *e, const char *kind, const struct wire_field *f, int64_t at, uint64_t n);
int wire_check_name(struct err *e, const char *kind, const struct wire_field *f, int64_t at, struct wire_str s);
/* Conditions that involve several fields of a frame. */
int wire_check_frame(struct err *e, const struct wire_frame *f);

/* The struct from which the offsets of a frame's fields count. */
static inline void *wire_frame_base(struct wire_frame *f)
{
    return &f->hello; /* all members of the union have this address */
}

void *wire_arena_alloc(struct err *e, struct wire_arena *a, size_t n_bytes, const char *what);

#endif
