#include "kv/arena.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "base/file.h"

#define MAGIC "PPARENA"
#define HUGE_BYTES ((uint64_t)2 << 20)
#define CLIENTS 1024
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

struct kv_arena {
    int fd[KV_ARENA_FDS]; /* metadata, slots */
    uint8_t *meta, *map;  /* the two mappings */
    uint64_t meta_bytes, map_bytes;
    struct kv_layout layout;
    struct kv_client *client;
    struct kv_slot *slot;
    struct kv_seq *seq;
    struct kv_page *page;
    _Atomic uint64_t *gen; /* [n_seq], then the epoch, in the file of the slots */
    uint8_t *bytes;
    bool hugetlb;
    char huge_reason[160]; /* why not all pages are huge, or "" */
};

/* ---- kinds ---- */

int kv_kind_layout(struct err *e, struct kv_layout *out, const struct kv_kind *k)
{
    if (k->type != KERN_KV_INT8 && k->type != KERN_KV_BF16 && k->type != KERN_KV_F16)
        return err_set(e, ERR_PROTO, "KV of unknown type %d", (int)k->type);
    if (k->n_layer < 1 || k->n_layer > 65536 || k->n_kv_head < 1 || k->n_kv_head > 65536 || k->head_dim < 1 ||
        k->head_dim > 65536)
        return err_set(e, ERR_PROTO, "KV of an impossible shape: %u layers with %u KV heads of size %u", k->n_layer,
                       k->n_kv_head, k->head_dim);
    kv_layout_init(out, k->type, k->n_layer, (int)k->n_kv_head, (int)k->head_dim);
    return 0;
}

int kv_kind_check(struct err *e, const struct kv_kind *have, const struct kv_kind *theirs, const char *whose)
{
    if (memcmp(have->model, theirs->model, sizeof have->model))
        return err_set(e, ERR_PROTO, "%s has KV of another model than this store: start both with the same -m", whose);
    if (have->type != theirs->type)
        return err_set(e, ERR_PROTO,
                       "%s has KV of type %s, this store has %s: start both with the same --kv-cache-dtype", whose,
                       kern_kv_name(theirs->type), kern_kv_name(have->type));
    if (strncmp(have->arith, theirs->arith, KV_NAME_BYTES))
        return err_set(e, ERR_PROTO, "%s uses arithmetic %.63s, this store has KV of %.63s", whose, theirs->arith,
                       have->arith);
    if (strncmp(have->layout, theirs->layout, KV_NAME_BYTES))
        return err_set(e, ERR_PROTO, "%s has KV in layout %.63s, this store has %.63s", whose, theirs->layout,
                       have->layout);
    if (have->n_layer != theirs->n_layer || have->n_kv_head != theirs->n_kv_head || have->head_dim != theirs->head_dim)
        return err_set(e, ERR_PROTO,
                       "%s has KV of %u layers with %u KV heads of size %u, this store has %u with %u of %u: start "
                       "both with the same -m",
                       whose, theirs->n_layer, theirs->n_kv_head, theirs->head_dim, have->n_layer, have->n_kv_head,
                       have->head_dim);
    return 0;
}

static void kind_of(const struct kv_arena *a, struct kv_kind *out)
{
    const struct kv_arena_head *h = kv_arena_head(a);
    *out = (struct kv_kind){
        .type = (enum kern_kv)h->type, .n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .head_dim = h->head_dim};
    memcpy(out->model, h->model, sizeof out->model);
    memcpy(out->arith, h->arith, sizeof out->arith);
    memcpy(out->layout, h->layout, sizeof out->layout);
    out->arith[KV_NAME_BYTES - 1] = out->layout[KV_NAME_BYTES - 1] = 0;
}

/* ---- offsets of the sections ---- */

struct offsets {
    uint64_t client, slot, seq, page, meta_end; /* in the metadata */
    uint64_t bytes, end;                        /* in the file of the slots, after the generations */
};

static bool place(uint64_t *at, uint64_t *begin, uint64_t n, uint64_t size, uint64_t align)
{
    uint64_t bytes;
    *begin = (*at + align - 1) & ~(align - 1);
    return !__builtin_mul_overflow(n, size, &bytes) && !__builtin_add_overflow(*begin, bytes, at) &&
           *at < (uint64_t)1 << 60;
}

static bool offsets_of(struct offsets *p, const struct kv_arena_head *h)
{
    uint64_t at = sizeof *h, gens = 0, from = 0;
    bool fits = place(&at, &p->client, h->n_client, sizeof(struct kv_client), 64) &&
                place(&at, &p->slot, h->n_slot, sizeof(struct kv_slot), 64) &&
                place(&at, &p->seq, h->n_seq, sizeof(struct kv_seq), 64) &&
                place(&at, &p->page, h->n_page, sizeof(struct kv_page), 64) &&
                place(&from, &gens, h->n_seq + 1, sizeof(uint64_t), 64) &&
                place(&from, &p->bytes, h->n_slot, h->slot_bytes, 4096);
    p->meta_end = (at + 4095) & ~(uint64_t)4095;
    p->end = (from + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
    return fits;
}

static void set_offsets(struct kv_arena *a, const struct offsets *p)
{
    a->client = (struct kv_client *)(void *)(a->meta + p->client);
    a->slot = (struct kv_slot *)(void *)(a->meta + p->slot);
    a->seq = (struct kv_seq *)(void *)(a->meta + p->seq);
    a->page = (struct kv_page *)(void *)(a->meta + p->page);
    a->gen = (_Atomic uint64_t *)(void *)a->map;
    a->bytes = a->map + p->bytes;
}

static void next_epoch(const struct kv_arena *a)
{
    struct kv_arena_head *h = kv_arena_head_mut(a);
    atomic_store_explicit(&a->gen[h->n_seq], ++h->epoch, memory_order_release);
}

/* ---- creation ---- */

static int fill_head(struct err *e, struct kv_arena_head *h, struct kv_layout *l, const struct kv_kind *k,
                     uint64_t slot_bytes)
{
    int rc = kv_kind_layout(e, l, k);
    if (rc)
        return rc;
    uint64_t n = slot_bytes / l->slot_bytes;
    if (n < 1)
        return err_set(e, ERR_NO, "a KV budget of %" PRIu64 " bytes is too small: one block needs %zu bytes",
                       slot_bytes, l->slot_bytes);
    n = n > INT32_MAX ? INT32_MAX : n;
    *h = (struct kv_arena_head){.magic = MAGIC,
                                .version = KV_ARENA_VERSION,
                                .type = (uint32_t)k->type,
                                .n_layer = k->n_layer,
                                .n_kv_head = k->n_kv_head,
                                .head_dim = k->head_dim,
                                .block_tokens = KV_BLOCK,
                                .slot_bytes = l->slot_bytes,
                                .n_client = CLIENTS,
                                .n_slot = n,
                                .n_seq = n < 128     ? 256
                                         : n > 32768 ? 65536
                                                     : 2 * n};
    /* Sequences share blocks, so all tables together can be longer than the number of slots. */
    h->n_page = h->n_seq + 4 * n / KV_PAGE_SLOTS;
    memcpy(h->model, k->model, sizeof h->model);
    memcpy(h->arith, k->arith, sizeof h->arith);
    memcpy(h->layout, k->layout, sizeof h->layout);
    if (getrandom(&h->id, sizeof h->id, 0) != sizeof h->id)
        return err_sys(e, "random bytes");
    h->id |= 1;
    return 0;
}

/* A file of huge pages if the system has enough reserved, otherwise an ordinary one. */
static int make_file(struct err *e, struct kv_arena *a, uint64_t bytes)
{
    a->map_bytes = bytes;
    a->map = MAP_FAILED;
    a->fd[1] = memfd_create("phasepipe-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (a->fd[1] >= 0) {
        if (!ftruncate(a->fd[1], (off_t)bytes))
            a->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd[1], 0);
        a->hugetlb = a->map != MAP_FAILED;
        if (a->hugetlb)
            return 0;
    }
    snprintf(a->huge_reason, sizeof a->huge_reason, "MFD_HUGETLB: %s", strerror(errno));
    if (a->fd[1] >= 0)
        close(a->fd[1]);
    a->fd[1] = memfd_create("phasepipe-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (a->fd[1] < 0)
        return err_sys(e, "the KV arena: memfd");
    if (ftruncate(a->fd[1], (off_t)bytes))
        return err_sys(e, "the KV arena of %" PRIu64 " bytes", bytes);
    a->map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd[1], 0);
    if (a->map == MAP_FAILED)
        return err_sys(e, "the KV arena of %" PRIu64 " bytes", bytes);
    if (madvise(a->map, bytes, MADV_HUGEPAGE)) {
        size_t n = strlen(a->huge_reason);
        snprintf(a->huge_reason + n, sizeof a->huge_reason - n, "; MADV_HUGEPAGE: %s", strerror(errno));
    }
    return 0;
}

/* Allocates every page now: a first touch during a step would cost milliseconds, and lack of memory is reported at
 * start. */
static int populate(struct err *e, struct kv_arena *a)
{
    int rc = posix_fallocate(a->fd[1], 0, (off_t)a->map_bytes);
    if (rc) {
        errno = rc;
        return err_sys(e, "the KV arena of %" PRIu64 " bytes", a->map_bytes);
    }
    if (madvise(a->map, a->map_bytes, MADV_POPULATE_WRITE) && errno != EINVAL)
        return err_sys(e, "the KV arena of %" PRIu64 " bytes", a->map_bytes);
    return 0;
}

/* Metadata that only this process can write, ever: its mapping is made before the seal. */
static int make_meta(struct err *e, struct kv_arena *a, uint64_t bytes)
{
    a->meta_bytes = bytes;
    a->fd[0] = memfd_create("phasepipe-meta", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rc = a->fd[0] < 0 ? -1 : ftruncate(a->fd[0], (off_t)bytes);
    if (!rc) {
        rc = posix_fallocate(a->fd[0], 0, (off_t)bytes);
        errno = rc;
    }
    if (!rc)
        a->meta = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd[0], 0);
    if (rc || a->meta == MAP_FAILED ||
        fcntl(a->fd[0], F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL))
        return err_sys(e, "the metadata of the KV arena, %" PRIu64 " bytes", bytes);
    madvise(a->meta, bytes, MADV_HUGEPAGE); /* best effort */
    return 0;
}

static struct kv_arena *alloc_arena(struct err *e, const int *fd)
{
    struct kv_arena *a = calloc(1, sizeof *a);
    if (!a) {
        err_nomem(e, "an arena", sizeof *a);
        return NULL;
    }
    a->fd[0] = fd ? fd[0] : -1;
    a->fd[1] = fd ? fd[1] : -1;
    a->meta = a->map = MAP_FAILED;
    return a;
}

int kv_arena_new(struct err *e, struct kv_arena **out, const struct kv_kind *k, uint64_t slot_bytes)
{
    struct kv_arena_head h;
    struct offsets p;
    struct kv_arena *a = alloc_arena(e, NULL);
    if (!a)
        return e->code;
    int rc = fill_head(e, &h, &a->layout, k, slot_bytes);
    if (!rc && !offsets_of(&p, &h))
        rc = err_set(e, ERR_NO, "a KV budget of %" PRIu64 " bytes is over the size limit of a file", slot_bytes);
    rc = rc ? rc : make_file(e, a, p.end);
    rc = rc ? rc : populate(e, a);
    rc = rc ? rc : make_meta(e, a, p.meta_end);
    if (rc) {
        kv_arena_free(a);
        return rc;
    }
    h.bytes = p.end;
    set_offsets(a, &p);
    for (uint64_t i = 0; i < h.n_seq; i++)
        a->seq[i] = (struct kv_seq){.first_page = KV_NONE, .last_page = KV_NONE, .tail = KV_NONE};
    memcpy(a->meta, &h, sizeof h);
    next_epoch(a);
    if (fcntl(a->fd[1], F_ADD_SEALS, SEALS)) {
        rc = err_sys(e, "sealing the KV arena");
        kv_arena_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

/* ---- adoption ---- */

static int check_head(struct err *e, struct kv_layout *l, struct offsets *p, const struct kv_arena_head *h,
                      uint64_t bytes, uint64_t meta_bytes)
{
    if (memcmp(h->magic, MAGIC, sizeof MAGIC))
        return err_set(e, ERR_PROTO, "it is not a KV arena");
    if (h->version != KV_ARENA_VERSION)
        return err_set(e, ERR_PROTO, "it has version %u, this program supports %d", h->version, KV_ARENA_VERSION);
    struct kv_kind k = {
        .type = (enum kern_kv)h->type, .n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .head_dim = h->head_dim};
    int rc = kv_kind_layout(e, l, &k);
    if (rc)
        return rc;
    if (h->block_tokens != KV_BLOCK || h->slot_bytes != l->slot_bytes)
        return err_set(e, ERR_PROTO, "it has slots of %" PRIu64 " bytes, this program needs %zu", h->slot_bytes,
                       l->slot_bytes);
    if (h->n_slot < 1 || h->n_slot > INT32_MAX || h->n_seq < 1 || h->n_seq > INT32_MAX || h->n_page < 1 ||
        h->n_page > INT32_MAX || h->n_client < 1 || h->n_client > INT32_MAX || !offsets_of(p, h) || p->end != bytes ||
        p->meta_end != meta_bytes || h->bytes != bytes)
        return err_set(e, ERR_PROTO, "its %" PRIu64 " and %" PRIu64 " bytes contradict its head", meta_bytes, bytes);
    return 0;
}

static int map_slots(struct err *e, struct kv_arena *a)
{
    struct stat st;
    int seals = fcntl(a->fd[1], F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
        return err_set(e, ERR_PROTO, "it is not sealed: a file that shrinks would kill its readers");
    if (fstat(a->fd[1], &st) || st.st_size < 4096)
        return err_set(e, ERR_PROTO, "it is not a KV arena");
    a->map_bytes = (uint64_t)st.st_size;
    a->map = mmap(NULL, a->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, a->fd[1], 0);
    if (a->map == MAP_FAILED)
        return err_sys(e, "mapping %" PRIu64 " bytes", a->map_bytes);
    a->hugetlb = st.st_blksize >= (blksize_t)HUGE_BYTES;
    madvise(a->map, a->map_bytes, MADV_HUGEPAGE); /* best effort */
    return 0;
}

/* Replaces the descriptor of the metadata with one of a copy. Their writer may be hostile: they are read, not mapped.
 */
static int copy_meta(struct err *e, struct kv_arena *a, uint64_t bytes)
{
    int old = a->fd[0];
    a->fd[0] = -1;
    int rc = make_meta(e, a, bytes);
    if (!rc && !file_read_at(old, a->meta, bytes, 0))
        rc = err_set(e, ERR_PROTO, "its metadata cannot be read");
    close(old);
    return rc;
}

static int map_meta(struct err *e, struct kv_arena *a, uint64_t bytes)
{
    a->meta_bytes = bytes;
    int seals = fcntl(a->fd[0], F_GET_SEALS);
    if (seals < 0 || (seals & (F_SEAL_SHRINK | F_SEAL_GROW)) != (F_SEAL_SHRINK | F_SEAL_GROW))
        return err_set(e, ERR_PROTO, "its metadata is not sealed: a file that shrinks would kill its readers");
    a->meta = mmap(NULL, bytes, PROT_READ, MAP_SHARED, a->fd[0], 0);
    return a->meta == MAP_FAILED ? err_sys(e, "mapping %" PRIu64 " bytes", bytes) : 0;
}

static int map_checked(struct err *e, struct kv_arena *a, const struct kv_kind *want, bool copy)
{
    struct stat st;
    struct kv_arena_head h;
    struct offsets p;
    int rc = map_slots(e, a);
    if (rc)
        return rc;
    if (fstat(a->fd[0], &st) || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof h ||
        !file_read_at(a->fd[0], &h, sizeof h, 0))
        return err_set(e, ERR_PROTO, "it has no metadata");
    rc = check_head(e, &a->layout, &p, &h, a->map_bytes, (uint64_t)st.st_size);
    rc = rc ? rc : copy ? copy_meta(e, a, p.meta_end) : map_meta(e, a, p.meta_end);
    if (rc)
        return rc;
    if (memcmp(&h, a->meta, offsetof(struct kv_arena_head, tick)))
        return err_set(e, ERR_PROTO, "its header changed while it was mapped");
    set_offsets(a, &p);
    struct kv_kind have;
    kind_of(a, &have);
    rc = want ? kv_kind_check(e, want, &have, "it") : 0;
    if (rc || !copy)
        return rc;
    if (h.epoch != atomic_load_explicit(&a->gen[h.n_seq], memory_order_acquire))
        return err_set(e, ERR_PROTO, "another kvstore has replaced its metadata since");
    next_epoch(a);
    return 0;
}

static int from_fds(struct err *e, struct kv_arena **out, const int *fd, const struct kv_kind *want, bool copy)
{
    struct kv_arena *a = alloc_arena(e, fd);
    if (!a) {
        close(fd[0]);
        close(fd[1]);
        return e->code;
    }
    int rc = map_checked(e, a, want, copy);
    if (rc) {
        kv_arena_free(a);
        return rc == ERR_PROTO ? err_prefix(e, "the KV arena") : rc;
    }
    *out = a;
    return 0;
}

int kv_arena_adopt(struct err *e, struct kv_arena **out, const int *fd, const struct kv_kind *want)
{
    return from_fds(e, out, fd, want, true);
}

int kv_arena_open(struct err *e, struct kv_arena **out, const int *fd, const struct kv_kind *want)
{
    return from_fds(e, out, fd, want, false);
}

/* The new mapping takes the place of the old one at once, so readers need no lock. */
int kv_arena_replace(struct err *e, struct kv_arena *a, const int *fd)
{
    struct stat st;
    close(fd[1]);
    if (fstat(fd[0], &st) || (uint64_t)st.st_size != a->meta_bytes ||
        mmap(a->meta, a->meta_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd[0], 0) == MAP_FAILED) {
        close(fd[0]);
        return err_set(e, ERR_PROTO, "the metadata of the KV arena cannot be replaced");
    }
    close(a->fd[0]);
    a->fd[0] = fd[0];
    return 0;
}

void kv_arena_free(struct kv_arena *a)
{
    if (!a)
        return;
    if (a->meta != MAP_FAILED)
        munmap(a->meta, a->meta_bytes);
    if (a->map != MAP_FAILED)
        munmap(a->map, a->map_bytes);
    for (int i = 0; i < KV_ARENA_FDS; i++)
        if (a->fd[i] >= 0)
            close(a->fd[i]);
    free(a);
}

/* ---- access ---- */

const int *kv_arena_fds(const struct kv_arena *a)
{
    return a->fd;
}

struct kv_arena_head *kv_arena_head_mut(const struct kv_arena *a)
{
    return (struct kv_arena_head *)(void *)a->meta;
}

const struct kv_arena_head *kv_arena_head(const struct kv_arena *a)
{
    return kv_arena_head_mut(a);
}

const struct kv_layout *kv_arena_layout(const struct kv_arena *a)
{
    return &a->layout;
}

struct kv_client *kv_arena_client(const struct kv_arena *a, uint64_t i)
{
    return &a->client[i];
}

struct kv_slot *kv_arena_slot(const struct kv_arena *a, uint64_t i)
{
    return &a->slot[i];
}

struct kv_seq *kv_arena_seq(const struct kv_arena *a, uint64_t i)
{
    return &a->seq[i];
}

struct kv_page *kv_arena_page(const struct kv_arena *a, uint64_t i)
{
    return &a->page[i];
}

void kv_arena_copy_gen(const struct kv_arena *a, uint64_t seq)
{
    atomic_store_explicit(&a->gen[seq], atomic_load(&a->seq[seq].gen), memory_order_release);
}

void kv_arena_new_gen(const struct kv_arena *a, uint64_t seq)
{
    atomic_fetch_add_explicit(&a->seq[seq].gen, 1, memory_order_release);
    kv_arena_copy_gen(a, seq);
}

struct kv_ids_hash kv_ids_hash(const uint32_t *ids)
{
    XXH128_hash_t h = XXH3_128bits(ids, KV_BLOCK * sizeof *ids);
    return (struct kv_ids_hash){h.low64, h.high64};
}

uint8_t *kv_arena_bytes(const struct kv_arena *a, uint64_t slot)
{
    return a->bytes + slot * a->layout.slot_bytes;
}

uint64_t kv_arena_sum(const struct kv_arena *a, uint64_t slot)
{
    return XXH3_64bits(kv_arena_bytes(a, slot), a->layout.layer_bytes * (size_t)a->layout.n_layer);
}

bool kv_arena_valid(const struct kv_arena *a, uint64_t seq, uint64_t gen)
{
    return seq < kv_arena_head(a)->n_seq && atomic_load_explicit(&a->seq[seq].gen, memory_order_acquire) == gen &&
           atomic_load_explicit(&a->gen[seq], memory_order_acquire) == gen;
}

int kv_arena_table(struct err *e, const struct kv_arena *a, int32_t *out, uint64_t n, uint64_t seq, uint64_t gen)
{
    const struct kv_arena_head *h = kv_arena_head(a);
    if (!kv_arena_valid(a, seq, gen) || atomic_load_explicit(&a->seq[seq].n_block, memory_order_acquire) < n)
        return err_set(e, ERR_NO, "sequence %" PRIu64 " has another owner or no longer exists", seq);
    uint32_t page = a->seq[seq].first_page;
    for (uint64_t i = 0; i < n; i++) {
        uint64_t k = i % KV_PAGE_SLOTS;
        if (i && !k)
            page = a->page[page].next;
        if (page >= h->n_page || a->page[page].slot[k] >= h->n_slot)
            return err_set(e, ERR_NO, "the table of sequence %" PRIu64 " is damaged", seq);
        out[i] = (int32_t)a->page[page].slot[k];
    }
    if (!kv_arena_valid(a, seq, gen))
        return err_set(e, ERR_NO, "sequence %" PRIu64 " has a new owner", seq);
    return 0;
}

/* ---- huge pages ---- */

const char *kv_arena_huge_reason(const struct kv_arena *a)
{
    return a->huge_reason;
}

static uint64_t kib_of(const char *line, const char *field)
{
    size_t n = strlen(field);
    return strncmp(line, field, n) == 0 ? strtoull(line + n, NULL, 10) : 0;
}

uint64_t kv_arena_huge_bytes(const struct kv_arena *a)
{
    if (a->hugetlb)
        return a->map_bytes;
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return 0;
    char line[512];
    uint64_t kib = 0, from = (uintptr_t)a->map, to = from + a->map_bytes;
    bool in = false;
    while (fgets(line, sizeof line, f)) {
        uint64_t lo, hi;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64, &lo, &hi) == 2)
            in = lo < to && hi > from;
        else if (in)
            kib += kib_of(line, "ShmemPmdMapped:") + kib_of(line, "FilePmdMapped:");
    }
    fclose(f);
    return kib * 1024;
}
