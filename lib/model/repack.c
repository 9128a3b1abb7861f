/*
 * The packed file: a header, then every tensor in the kernels' layout. The header is written last and ends with a
 * digest of itself.
 *
 *   head | entry[n] | BLAKE2b-256 of all before | padding | tensors, each at a multiple of 64 | padding to 2 MiB
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "model/model_impl.h"

#define PACK_VERSION 2 /* 2: all weights are finite */
#define READ_BYTES (1u << 20)

struct head {
    char magic[8];
    uint32_t version, n;
    uint64_t total_bytes;
    uint8_t identity[32], fingerprint[32];
};

struct entry {
    uint32_t type, vec;
    int64_t rows, cols;
    uint64_t offset, bytes;
};

static const char magic[8] = "PHPPACK\n";

uint64_t pack_header_bytes(uint64_t n)
{
    return sizeof(struct head) + n * sizeof(struct entry) + 32;
}

static void digest(uint8_t out[32], const void *p, size_t n)
{
    crypto_generichash(out, 32, p, n, NULL, 0);
}

/* Makes the header of a plan in `buf`, pack_header_bytes(p->n) bytes. */
static void header_make(uint8_t *buf, const struct pack_plan *p, const struct pack_identity *id,
                        const uint8_t fingerprint[32])
{
    struct head h = {.version = PACK_VERSION, .n = (uint32_t)p->n, .total_bytes = p->total_bytes};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.identity, id->whole, 32);
    memcpy(h.fingerprint, fingerprint, 32);
    memcpy(buf, &h, sizeof h);
    size_t at = sizeof h;
    for (uint64_t i = 0; i < p->n; i++, at += sizeof(struct entry)) {
        const struct pack_item *it = &p->item[i];
        struct entry en = {(uint32_t)it->dst_type, it->vec, it->rows, it->cols, it->offset, it->bytes};
        memcpy(buf + at, &en, sizeof en);
    }
    digest(buf + at, buf, at);
}

/* ---- identity ---- */

/* Packs sample rows of every type: a change of the layout changes the digest, so packed files of another layout do not
 * match. */
static void hash_layout(crypto_generichash_state *st)
{
    enum { COLS = 256 };
    uint8_t row[16][COLS * 4], group[COLS * 64];
    const uint8_t *rows[16];
    for (int r = 0; r < 16; r++) {
        rows[r] = row[r];
        for (int i = 0; i < COLS * 4; i++)
            row[r][i] = (uint8_t)(((r * COLS * 4 + i) * 2654435761u) >> 13);
    }
    for (int t = 0; t < KERN_TYPES; t++) {
        size_t n = kern_group_bytes((enum kern_type)t, COLS);
        assert(n <= sizeof group && kern_type_row_bytes((enum kern_type)t, COLS) <= sizeof row[0]);
        kern_pack_group(group, (enum kern_type)t, (enum kern_type)t, rows, COLS);
        crypto_generichash_update(st, group, n);
    }
}

int pack_identity(struct err *e, struct pack_identity *out, const struct gguf *g)
{
    struct stat st;
    if (fstat(gguf_fd(g), &st) < 0)
        return err_sys(e, "%s: stat", gguf_path(g));
    char *real = realpath(gguf_path(g), NULL);
    const char *path = real ? real : gguf_path(g);
    uint64_t file[5] = {(uint64_t)st.st_dev, (uint64_t)st.st_ino, (uint64_t)st.st_size, (uint64_t)st.st_mtim.tv_sec,
                        (uint64_t)st.st_mtim.tv_nsec};
    crypto_generichash_state hash;
    crypto_generichash_init(&hash, NULL, 0, 32);
    uint32_t version = PACK_VERSION;
    crypto_generichash_update(&hash, (const uint8_t *)&version, sizeof version);
    hash_layout(&hash);
    crypto_generichash_update(&hash, (const uint8_t *)path, strlen(path) + 1);
    crypto_generichash_state place = hash;
    crypto_generichash_final(&place, out->place, 32);
    crypto_generichash_update(&hash, (const uint8_t *)file, sizeof file);
    crypto_generichash_final(&hash, out->whole, 32);
    free(real);
    return 0;
}

/* ---- reading back ---- */

/* Copies the types of matrices from the entries. Valid are the tensor's own type, and BF16 for F32 and F16. */
static bool adopt_types(struct pack_plan *p, const uint8_t *entries)
{
    for (uint64_t i = 0; i < p->n; i++) {
        struct pack_item *it = &p->item[i];
        struct entry en;
        memcpy(&en, entries + i * sizeof en, sizeof en);
        if (!it->src || it->vec)
            continue;
        it->dst_type = it->src_type;
        if (en.type == (uint32_t)it->src_type)
            continue;
        if (en.type != KERN_BF16 || (it->src_type != KERN_F32 && it->src_type != KERN_F16))
            return false;
        it->dst_type = KERN_BF16;
    }
    plan_place(p);
    return true;
}

/* Compares the header with one made from the plan, so nothing in the file is trusted. */
bool pack_check(uint8_t fingerprint[32], struct pack_plan *p, int fd, const struct pack_identity *id)
{
    size_t n = pack_header_bytes(p->n);
    uint8_t *have = malloc(n), *want = malloc(n);
    struct stat st;
    struct head h;
    bool ok = have && want && fstat(fd, &st) == 0 && file_read_at(fd, have, n, 0) && adopt_types(p, have + sizeof h);
    if (ok) {
        memcpy(&h, have, sizeof h);
        header_make(want, p, id, h.fingerprint);
        ok = memcmp(have, want, n) == 0 && (uint64_t)st.st_size == p->total_bytes;
    }
    if (ok)
        memcpy(fingerprint, h.fingerprint, 32);
    free(have);
    free(want);
    return ok;
}

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
    const struct pack_plan *plan;
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
    for (uint64_t i = 0; !rc && i < w->plan->n; i++) {
        const struct pack_item *it = &w->plan->item[i];
        rc = put(e, w->sink, NULL, it->offset - w->sink->at);
        if (!rc && it->src)
            rc = it->vec ? pack_vec(e, w, it) : pack_mat(e, w, it);
    }
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
    header_make(buf, p, id, fingerprint);
    int rc = 0;
    if (s->fd < 0)
        memcpy(s->mem, buf, n);
    else
        rc = flush(e, s, 0, n, buf);
    free(buf);
    return rc;
}

int pack_write(struct err *e, uint8_t fingerprint[32], struct pack_sink *s, const struct pack_plan *p,
               const struct gguf *g, const struct pack_identity *id, const struct model_opts *o)
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
