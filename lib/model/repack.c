/* Packs a model: every tensor in the kernels' layout, in the order of the plan, then the header (pack_file.c). */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "model/model_impl.h"

#define READ_BYTES (1u << 20)

/* ---- the fingerprint ---- */

struct hasher {
    const struct gguf *g;
    uint8_t out[32];
    struct err err;
    int rc;
};

static void *hash_file(void *arg)
{
    struct hasher *h = arg;
    uint8_t *buf = malloc(READ_BYTES);
    if (!buf) {
        h->rc = err_nomem(&h->err, "a read buffer", READ_BYTES);
        return NULL;
    }
    crypto_generichash_state st;
    crypto_generichash_init(&st, NULL, 0, 32);
    uint64_t end = gguf_file_bytes(h->g);
    for (uint64_t at = 0; at < end && !h->rc;) {
        uint64_t n = end - at < READ_BYTES ? end - at : READ_BYTES;
        ssize_t r = pread(gguf_fd(h->g), buf, n, (off_t)at);
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            h->rc = err_sys(&h->err, "%s: read", gguf_path(h->g));
        else if (r == 0)
            h->rc = err_set(&h->err, ERR_NO, "%s: the file was truncated while it was read", gguf_path(h->g));
        else
            crypto_generichash_update(&st, buf, (size_t)r);
        at += r > 0 ? (uint64_t)r : 0;
    }
    crypto_generichash_final(&st, h->out, 32);
    free(buf);
    return NULL;
}

/* ---- writing ---- */

static int flush(struct err *e, struct pack_sink *s, uint64_t from, size_t n, const uint8_t *p)
{
    for (size_t done = 0; done < n;) {
        ssize_t r = pwrite(s->fd, p + done, n - done, (off_t)(from + done));
        if (r < 0 && errno == EINTR)
            continue;
        if (r < 0)
            return err_sys(e, "%s: write", s->path);
        done += (size_t)r;
    }
    return 0;
}

/* Appends n bytes, zeros if p is NULL. A file is written one full buffer at a time. */
static int put(struct err *e, struct pack_sink *s, const uint8_t *p, uint64_t n)
{
    if (p)
        XXH3_64bits_update(s->sum, p, n);
    while (n) {
        uint64_t in_buf = s->fd < 0 ? s->at : s->at % PACK_BUFFER_BYTES;
        uint64_t room = s->fd < 0 ? n : PACK_BUFFER_BYTES - in_buf;
        uint64_t step = n < room ? n : room;
        if (p)
            memcpy(s->mem + in_buf, p, step);
        else
            memset(s->mem + in_buf, 0, step);
        s->at += step;
        n -= step;
        p = p ? p + step : NULL;
        if (s->fd >= 0 && step == room) {
            int rc = flush(e, s, s->at - PACK_BUFFER_BYTES, PACK_BUFFER_BYTES, s->mem);
            if (rc)
                return rc;
        }
    }
    return 0;
}

static int finish(struct err *e, struct pack_sink *s)
{
    size_t rest = s->fd < 0 ? 0 : s->at % PACK_BUFFER_BYTES;
    return flush(e, s, s->at - rest, rest, s->mem);
}

struct worker {
    struct pack_sink *sink;
    struct pack_plan *plan;
    const struct gguf *g;
    const struct model_opts *o;
};

static void report(const struct worker *w)
{
    if (w->o && w->o->progress)
        w->o->progress(w->o->progress_arg, w->sink->at, w->plan->total_bytes);
}

static float half_value(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exp = (h >> 10) & 31, man = h & 1023, bits;
    float f;
    if (exp == 0) {
        f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exp == 31 ? 255u << 23 : (exp + 112) << 23) | man << 13;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* A weight that is NaN or infinite gives wrong text without an error, so the model is refused. Every tensor that is
 * computed with passes here once; rope_freqs.weight, which is not packed, is checked by its range. */
static int check_finite(struct err *e, const struct gguf *g, const struct pack_item *it, const uint8_t *raw,
                        int64_t first, int64_t n)
{
    size_t bytes = kern_type_row_bytes(it->src_type, it->cols);
    for (int64_t r = 0; r < n; r++) {
        int64_t col = kern_row_not_finite(it->src_type, raw + (size_t)r * bytes, it->cols);
        if (col < 0)
            continue;
        return err_set(e, ERR_NO,
                       "%s: tensor %s has a %s that is NaN or infinite in row %" PRId64 ", column %" PRId64
                       ": the file is damaged, or was converted wrongly; get it again",
                       gguf_path(g), gguf_show(it->src->name).s, kern_type_is_quant(it->src_type) ? "scale" : "value",
                       first + r, col);
    }
    return 0;
}

static int pack_vec(struct err *e, const struct worker *w, const struct pack_item *it)
{
    size_t n = (size_t)it->cols;
    uint8_t *raw = malloc(it->src->bytes);
    float *f = malloc(n * sizeof *f);
    int rc = raw && f ? gguf_read(e, w->g, it->src, 0, raw, it->src->bytes) : err_nomem(e, "a vector", n * sizeof *f);
    rc = rc ? rc : check_finite(e, w->g, it, raw, 0, 1);
    for (size_t i = 0; !rc && i < n; i++) {
        uint16_t h = 0;
        if (it->src_type != KERN_F32)
            memcpy(&h, raw + 2 * i, 2);
        uint32_t wide = (uint32_t)h << 16;
        if (it->src_type == KERN_F16)
            f[i] = half_value(h);
        else
            memcpy(&f[i], it->src_type == KERN_F32 ? (const void *)(raw + 4 * i) : &wide, sizeof f[i]);
    }
    if (!rc)
        rc = put(e, w->sink, (const uint8_t *)f, n * sizeof *f);
    free(raw);
    free(f);
    return rc;
}

/* Packs the `n_row` rows in `raw`, 16 at a time. */
static int pack_rows(struct err *e, const struct worker *w, const struct pack_item *it, uint8_t *group,
                     const uint8_t *raw, int64_t n_row)
{
    size_t row = kern_type_row_bytes(it->src_type, it->cols), group_bytes = kern_group_bytes(it->dst_type, it->cols);
    int rc = 0;
    for (int64_t r = 0; !rc && r < n_row; r += 16) {
        const uint8_t *rows[16];
        for (int64_t i = 0; i < 16; i++)
            rows[i] = r + i < n_row ? raw + (size_t)(r + i) * row : NULL;
        kern_pack_group(group, it->dst_type, it->src_type, rows, it->cols);
        rc = put(e, w->sink, group, group_bytes);
    }
    return rc;
}

static int pack_mat(struct err *e, const struct worker *w, const struct pack_item *it)
{
    size_t row = kern_type_row_bytes(it->src_type, it->cols), group_bytes = kern_group_bytes(it->dst_type, it->cols);
    int64_t step = (int64_t)(READ_BYTES / row) / 16 * 16;
    step = step < 16 ? 16 : step;
    uint8_t *raw = malloc((size_t)step * row), *group = aligned_alloc(64, group_bytes);
    int rc = raw && group ? 0 : err_nomem(e, "rows of a matrix", (size_t)step * row + group_bytes);
    for (int64_t r = 0; !rc && r < it->rows; r += step) {
        int64_t n = it->rows - r < step ? it->rows - r : step;
        rc = gguf_read(e, w->g, it->src, (uint64_t)r * row, raw, (uint64_t)n * row);
        rc = rc ? rc : check_finite(e, w->g, it, raw, r, n);
        rc = rc ? rc : pack_rows(e, w, it, group, raw, n);
        if (!rc)
            report(w);
    }
    free(raw);
    free(group);
    return rc;
}

static int pack_items(struct err *e, const struct worker *w)
{
    int rc = 0;
    w->sink->sum = XXH3_createState();
    if (!w->sink->sum)
        return err_nomem(e, "a checksum", 576);
    for (uint64_t i = 0; !rc && i < w->plan->n; i++) {
        struct pack_item *it = &w->plan->item[i];
        rc = put(e, w->sink, NULL, it->offset - w->sink->at);
        XXH3_64bits_reset(w->sink->sum);
        if (!rc && it->src)
            rc = it->vec ? pack_vec(e, w, it) : pack_mat(e, w, it);
        it->sum = it->src ? XXH3_64bits_digest(w->sink->sum) : 0;
    }
    XXH3_freeState(w->sink->sum);
    if (!rc)
        rc = put(e, w->sink, NULL, w->plan->total_bytes - w->sink->at);
    return rc ? rc : finish(e, w->sink);
}

static int write_header(struct err *e, struct pack_sink *s, const struct pack_plan *p, const struct pack_identity *id,
                        const uint8_t fingerprint[32])
{
    size_t n = pack_header_bytes(p->n);
    uint8_t *buf = malloc(n);
    if (!buf)
        return err_nomem(e, "a header", n);
    pack_header_make(buf, p, id, fingerprint);
    int rc = 0;
    if (s->fd < 0)
        memcpy(s->mem, buf, n);
    else
        rc = flush(e, s, 0, n, buf);
    free(buf);
    return rc;
}

int pack_write(struct err *e, uint8_t fingerprint[32], struct pack_sink *s, struct pack_plan *p, const struct gguf *g,
               const struct pack_identity *id, const struct model_opts *o)
{
    struct worker w = {s, p, g, o};
    struct hasher h = {.g = g};
    pthread_t thread;
    bool concurrent = pthread_create(&thread, NULL, hash_file, &h) == 0;
    int rc = pack_items(e, &w);
    if (concurrent)
        pthread_join(thread, NULL);
    else if (!rc)
        hash_file(&h);
    if (!rc && h.rc) {
        *e = h.err;
        rc = h.rc;
    }
    struct pack_identity now;
    rc = rc ? rc : pack_identity(e, &now, g);
    if (!rc && memcmp(&now, id, sizeof now) != 0)
        rc = err_set(e, ERR_NO, "%s: the file changed while it was read", gguf_path(g));
    rc = rc ? rc : write_header(e, s, p, id, h.out);
    if (!rc)
        memcpy(fingerprint, h.out, 32);
    return rc;
}
