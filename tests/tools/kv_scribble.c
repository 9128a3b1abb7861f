/*
 * A hostile worker: joins kvstore as a client of KV of the model's kind, and writes random bytes over everything that
 * it can. It tries to get write access to both files of the arena: by mmap, mprotect, write, punching holes, and by
 * opening them again through /proc.
 *
 *   kv_scribble URL slots|meta SEED [MODEL KV_TYPE]   without MODEL: the kind of kv_client
 *
 * slots: overwrites 4 KiB of each slot. meta: reports by its exit status whether the metadata could be changed (1:
 * yes).
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/engine.h"
#include "link/store_client.h"
#include "model/model.h"

static uint64_t dice_state;

static uint64_t dice(void)
{
    dice_state ^= dice_state << 13;
    dice_state ^= dice_state >> 7;
    dice_state ^= dice_state << 17;
    return dice_state;
}

static int kind_of(struct err *e, struct kv_kind *k, const char *path)
{
    struct model *m;
    struct model_opts o = {.path = path};
    int rc = model_open(e, &m, &o);
    if (rc)
        return rc;
    rc = engine_kv_kind(e, k, NULL, m, KERN_KV_INT8);
    model_free(m);
    return rc;
}

static uint64_t scribble(uint8_t *p, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++)
        p[i] = (uint8_t)dice();
    return n;
}

/* Bytes that could be written. */
static uint64_t attack_file(int fd, uint64_t bytes)
{
    uint64_t n = 0;
    uint8_t byte = (uint8_t)dice();
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED)
        n += scribble(p, bytes);
    p = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED && !mprotect(p, bytes, PROT_READ | PROT_WRITE))
        n += scribble(p, bytes);
    for (uint64_t i = 0; i < 1000; i++)
        n += pwrite(fd, &byte, 1, (off_t)(dice() % bytes)) == 1;
    n += fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, (off_t)bytes) == 0;
    n += ftruncate(fd, 0) == 0;
    return n;
}

static uint64_t attack_meta(const struct kv_arena *a)
{
    struct stat st;
    char path[64];
    int meta = kv_arena_fds(a)[0];
    if (fstat(meta, &st))
        return 1;
    fchmod(meta, 0777);
    snprintf(path, sizeof path, "/proc/self/fd/%d", meta);
    int again = open(path, O_RDWR | O_CLOEXEC);
    return attack_file(meta, (uint64_t)st.st_size) + (again >= 0 ? attack_file(again, (uint64_t)st.st_size) : 0);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct store_client *c;
    struct kv_kind k = {.type = KERN_KV_INT8, .n_layer = 2, .n_kv_head = 1, .head_dim = 64};
    if (argc < 4)
        return ERR_USAGE;
    dice_state = strtoull(argv[3], NULL, 10) * 0x9e3779b97f4a7c15u | 1;
    memset(k.model, 7, sizeof k.model);
    snprintf(k.arith, sizeof k.arith, "pp1");
    snprintf(k.layout, sizeof k.layout, "cpu-hl1");
    struct store_client_opts o = {.url = argv[1], .name = "kv_scribble", .kind = &k, .timeout_ms = 3000};
    if ((argc > 4 && kind_of(&e, &k, argv[4])) || store_client_open(&e, &c, &o)) {
        fprintf(stderr, "kv_scribble: %s\n", e.text);
        return e.code;
    }
    struct kv_arena *a = store_client_arena(c);
    uint64_t n = 0;
    if (!strcmp(argv[2], "meta"))
        n = attack_meta(a);
    else /* the generations lie before the slots */
        for (uint64_t i = 0; i < kv_arena_head(a)->n_slot; i++)
            scribble(kv_arena_bytes(a, i), 4096);
    if (n)
        fprintf(stderr, "kv_scribble: %llu bytes of the metadata were written\n", (unsigned long long)n);
    store_client_close(c);
    return n != 0;
}
