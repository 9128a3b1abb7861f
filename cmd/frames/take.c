/* Encodes whole frames as bytes to be forwarded. */
#include <stdlib.h>

#include "cmd/frames/frames.h"

bool frames_key(const struct wire_frame *f, uint64_t *seq, uint32_t *index)
{
    switch (f->kind) {
    case WIRE_TOK:
    case WIRE_OPEN:
        *seq = f->req.seq;
        *index = f->req.index;
        return true;
    case WIRE_BLK:
        *seq = f->blk.seq;
        *index = f->blk.index;
        return true;
    case WIRE_KV:
        *seq = f->kv.seq;
        *index = f->kv.index;
        return true;
    case WIRE_OUT:
        *seq = f->out.seq;
        *index = f->out.index;
        return true;
    case WIRE_END:
        *seq = f->end.seq;
        *index = f->end.index;
        return true;
    case WIRE_ERR:
        *seq = f->error.seq;
        *index = f->error.index;
        return true;
    default:
        return false;
    }
}

int frames_take(struct err *e, uint8_t **out, size_t *n, struct wire_reader *r, const struct wire_frame *f)
{
    int rc = wire_encode(e, out, n, f);
    if (rc || f->kind != WIRE_BLK)
        return rc;
    uint8_t *p = realloc(*out, *n + (size_t)f->blk.n_data);
    rc = p ? wire_read_data(e, r, p + *n, f->blk.n_data) : err_nomem(e, "a payload", (size_t)f->blk.n_data);
    *out = p ? p : *out;
    *n += (size_t)f->blk.n_data;
    if (rc)
        free(*out);
    return rc;
}
