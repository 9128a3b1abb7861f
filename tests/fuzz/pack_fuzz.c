/*
 * Fuzzes the header of a packed file: a valid file with changed bytes, or any bytes. What is accepted must have the
 * header of the plan, and all that is read of it must be within the file. The first byte of the input chooses:
 *
 *   even   the file is valid except for the changes that follow: 2 bytes position, 1 byte XOR each; if its second bit
 * is set the digest of the header is computed again, so that the changes get beyond it odd    the rest of the input is
 * the file, extended by zeros to the size of the plan
 */
#include <assert.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define N 5

static const struct gguf_tensor src;
static const struct pack_identity id = {.whole = {1, 2, 3}, .place = {4}, .model = "/m.gguf"};
static const uint8_t fingerprint[32] = {9, 8, 7};

/* An embedding of F32, a matrix of F16, a vector, a tensor that the file lacks, and a matrix of Q8_0. */
static struct pack_plan plan_new(struct pack_item item[N])
{
    const struct pack_item shape[N] = {
        {.src = &src, .rows = 17, .cols = 8, .src_type = KERN_F32, .dst_type = KERN_F32},
        {.src = &src, .rows = 16, .cols = 8, .src_type = KERN_F16, .dst_type = KERN_F16},
        {.src = &src, .vec = true, .rows = 1, .cols = 8, .src_type = KERN_F16, .dst_type = KERN_F32},
        {.src = NULL},
        {.src = &src, .rows = 3, .cols = 64, .src_type = KERN_Q8_0, .dst_type = KERN_Q8_0},
    };
    memcpy(item, shape, sizeof shape);
    struct pack_plan p = {.item = item, .n = N};
    plan_place(&p);
    return p;
}

static void sums(struct pack_plan *p, const uint8_t *file)
{
    for (int i = 0; i < N; i++)
        if (p->item[i].src)
            p->item[i].sum = XXH3_64bits(file + p->item[i].offset, p->item[i].bytes);
}

static void digest_again(uint8_t *file)
{
    size_t n = pack_header_bytes(N) - 32;
    crypto_generichash(file + n, 32, file, n, NULL, 0);
}

static void change(uint8_t *file, size_t n_file, const uint8_t *data, size_t size)
{
    for (size_t i = 1; i + 3 <= size; i += 3)
        file[((size_t)data[i] | (size_t)data[i + 1] << 8) % n_file] ^= data[i + 2];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pack_item item[N], valid_item[N];
    struct pack_plan p = plan_new(item), valid = plan_new(valid_item);
    size_t n = valid.total_bytes, shown = 16384 < n ? 16384 : n;
    uint8_t *file = calloc(1, n), out[32];
    char model[PACK_MODEL_BYTES];
    assert(file);
    size = size < shown ? size : shown;
    int mode = size ? data[0] : 1;
    if (mode & 1) {
        memcpy(file, data + (size > 0), size - (size > 0));
    } else {
        for (size_t i = 0; i < shown; i++)
            file[i] = (uint8_t)(i * 7);
        sums(&valid, file);
        pack_header_make(file, &valid, &id, fingerprint);
        change(file, shown, data, size);
    }
    if (mode & 2)
        digest_again(file);
    int fd = memfd_create("pack", MFD_CLOEXEC);
    assert(fd >= 0 && write(fd, file, shown) == (ssize_t)shown && ftruncate(fd, (off_t)n) == 0);
    if (pack_model(model, fd))
        assert(memchr(model, 0, sizeof model));
    if (pack_check(out, &p, fd, &id)) {
        assert(p.total_bytes == n);
        for (int i = 0; i < N; i++)
            assert(item[i].offset <= n && item[i].bytes <= n - item[i].offset);
        const struct pack_item *bad = pack_verify(&p, file);
        bool same = true;
        for (int i = 0; i < N; i++)
            same = same && (!item[i].src || XXH3_64bits(file + item[i].offset, item[i].bytes) == item[i].sum);
        assert(same == !bad);
    }
    close(fd);
    free(file);
    return 0;
}
