/*
 * The file tier over a file that was changed at random: it is refused, or each block that it returns has the bytes of
 * its checksum. Input: the changes (offset of two bytes, a byte), a new length, then operations.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fcntl.h>
#include <stdio.h>

#include "fuzz/store_kind.h"
#include "kv/tier.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

#define RECORDS 6
#define FILE_BYTES (4096 + RECORDS * 8192)

static struct kv_layout layout;
static uint8_t data[65536];

static void collect(struct kv_tier *t)
{
    struct kv_tier_done d;
    for (bool more = true; more; more = kv_tier_wait(t, 1000))
        while (kv_tier_next(t, &d))
            if (d.what == KV_TIER_READ)
                assert(XXH3_64bits(d.bytes, layout.layer_bytes) == d.b.sum);
}

static void put(struct kv_tier *t, unsigned i)
{
    struct err e;
    struct kv_tier_block b = {.ids = {i, 1}};
    uint8_t dropped[KV_DIGEST];
    bool has;
    memset(b.digest, (int)i, sizeof b.digest);
    memset(data, (int)i, layout.layer_bytes);
    b.sum = XXH3_64bits(data, layout.layer_bytes);
    (void)kv_tier_put(&e, t, dropped, &has, &b, data);
}

static uint8_t found[RECORDS][KV_DIGEST];
static unsigned n_found;

static void keep(void *arg, const uint8_t *digest)
{
    (void)arg;
    if (n_found < RECORDS)
        memcpy(found[n_found++], digest, KV_DIGEST);
}

static void work(struct kv_tier *t)
{
    struct err e;
    struct kv_tier_block b;
    struct kv_tier_stat st;
    n_found = 0;
    kv_tier_each(t, keep, NULL);
    for (unsigned i = 0; i < n_found; i++) {
        assert(kv_tier_find(t, &b, found[i]) && !memcmp(b.digest, found[i], KV_DIGEST));
        (void)kv_tier_get(&e, t, found[i]);
        if (byte() & 1)
            kv_tier_drop(t, found[i]);
    }
    for (unsigned i = byte() % 8; i > 0; i--)
        put(t, byte() % 16);
    collect(t);
    kv_tier_stat(t, &st);
    assert(st.used <= st.total);
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e;
    struct kv_kind k = small_kind();
    struct kv_tier *t;
    char path[64];
    in = p;
    n_in = n;
    if (kv_kind_layout(&e, &layout, &k))
        abort();
    snprintf(path, sizeof path, "/dev/shm/tier_fuzz.%d", (int)getpid());
    unlink(path);
    if (kv_tier_open(&e, &t, path, FILE_BYTES, &k))
        abort();
    for (unsigned i = 1; i <= 4; i++)
        put(t, i);
    collect(t);
    kv_tier_free(t);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    for (unsigned i = byte() % 16; i > 0; i--) {
        unsigned at = byte() << 8 | byte();
        uint8_t c = (uint8_t)byte();
        (void)!pwrite(fd, &c, 1, (off_t)(at % FILE_BYTES));
    }
    unsigned cut = byte();
    if (cut & 1)
        (void)!ftruncate(fd, (off_t)(cut << 8 | byte()));
    close(fd);
    if (!kv_tier_open(&e, &t, path, FILE_BYTES, &k)) {
        work(t);
        kv_tier_free(t);
    }
    unlink(path);
    return 0;
}
