/*
 * The header of a packed file, and what it is compared with. The header is written last and ends with a digest of
 * itself; each tensor has a checksum in it.
 *
 *   head | entry[n] | BLAKE2b-256 of all before | padding | tensors, each at a multiple of 64 | padding to 2 MiB
 *
 * The checksums find damage (a failing disk, a program that wrote into the file), not malice: who can write the file
 * can write its header too. That is what owner and mode are checked for (cache_dir.c). So the checksum is XXH3-64, at
 * the speed of memory.
 */
#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "base/file.h"
#include "model/model_impl.h"

#define PACK_VERSION 3 /* 2: all weights are finite; 3: a checksum a tensor, the path of the model */

struct head {
    char magic[8];
    uint32_t version, n;
    uint64_t total_bytes;
    uint8_t identity[32], fingerprint[32];
    char model[PACK_MODEL_BYTES];
};

struct entry {
    uint32_t type, vec;
    int64_t rows, cols;
    uint64_t offset, bytes, sum;
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

void pack_header_make(uint8_t *buf, const struct pack_plan *p, const struct pack_identity *id,
                      const uint8_t fingerprint[32])
{
    struct head h = {.version = PACK_VERSION, .n = (uint32_t)p->n, .total_bytes = p->total_bytes};
    memcpy(h.magic, magic, sizeof h.magic);
    memcpy(h.identity, id->whole, 32);
    memcpy(h.fingerprint, fingerprint, 32);
    memcpy(h.model, id->model, sizeof h.model);
    memcpy(buf, &h, sizeof h);
    size_t at = sizeof h;
    for (uint64_t i = 0; i < p->n; i++, at += sizeof(struct entry)) {
        const struct pack_item *it = &p->item[i];
        struct entry en = {(uint32_t)it->dst_type, it->vec, it->rows, it->cols, it->offset, it->bytes, it->sum};
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
    size_t n = strlen(path), skip = n < PACK_MODEL_BYTES ? 0 : n - (PACK_MODEL_BYTES - 1);
    memset(out->model, 0, sizeof out->model);
    memcpy(out->model, path + skip, n - skip);
    free(real);
    return 0;
}

/* ---- reading back ---- */

/* Copies types of matrices and checksums from the entries. Valid are the tensor's own type, and BF16 for F32 and F16.
 */
static bool adopt(struct pack_plan *p, const uint8_t *entries)
{
    for (uint64_t i = 0; i < p->n; i++) {
        struct pack_item *it = &p->item[i];
        struct entry en;
        memcpy(&en, entries + i * sizeof en, sizeof en);
        it->sum = it->src ? en.sum : 0;
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
    bool ok = have && want && fstat(fd, &st) == 0 && file_read_at(fd, have, n, 0) && adopt(p, have + sizeof h);
    if (ok) {
        memcpy(&h, have, sizeof h);
        pack_header_make(want, p, id, h.fingerprint);
        ok = memcmp(have, want, n) == 0 && (uint64_t)st.st_size == p->total_bytes;
    }
    if (ok)
        memcpy(fingerprint, h.fingerprint, 32);
    free(have);
    free(want);
    return ok;
}

const struct pack_item *pack_verify(const struct pack_plan *p, const uint8_t *map)
{
    for (uint64_t i = 0; i < p->n; i++) {
        const struct pack_item *it = &p->item[i];
        if (it->src && XXH3_64bits(map + it->offset, it->bytes) != it->sum)
            return it;
    }
    return NULL;
}

bool pack_model(char model[PACK_MODEL_BYTES], int fd)
{
    struct head h;
    if (!file_read_at(fd, &h, sizeof h, 0) || memcmp(h.magic, magic, sizeof magic) != 0 || h.version != PACK_VERSION)
        return false;
    memcpy(model, h.model, PACK_MODEL_BYTES);
    model[PACK_MODEL_BYTES - 1] = 0;
    return true;
}
