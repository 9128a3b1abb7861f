#include "kv/tier.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/tier_impl.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#define MAGIC "PPTIER2" /* version 1 had the ids of blocks, not a hash */
#define MAGIC_OLD "PPTIER1"
#define PAGE TIER_PAGE
#define CLOSE_MS 1000

struct file_head { /* the first page of the file */
    char magic[8];
    uint32_t type, n_layer, n_kv_head, head_dim;
    uint8_t model[32];
    char arith[KV_NAME_BYTES], layout[KV_NAME_BYTES];
    uint64_t record_bytes;
    uint64_t sum; /* of what is before it */
};

struct record_head { /* the first page of a record */
    char magic[8];
    uint64_t stamp; /* increases with each written record */
    struct kv_tier_block b;
    uint64_t sum; /* of what is before it */
};

struct record {
    struct kv_tier_block b;
    uint64_t stamp;
    uint32_t hash_next;
    uint32_t prev, next; /* list by time of use, most recent last; or the free list (next) */
    bool used;
    struct disk_job *put; /* the write in flight, which has the bytes; NULL: written */
};

struct kv_tier {
    int fd;
    char *path;
    uint64_t record_bytes, data_bytes;
    uint64_t n, n_used;
    struct record *rec;
    uint32_t *bucket;
    uint64_t n_bucket;
    uint32_t first, last, first_free;
    uint64_t stamp;
    bool full; /* the disk is full: each new block replaces the least recently used */
    uint64_t hits, bad;
    struct disk *disk;
    uint64_t n_put, n_put_max; /* blocks queued for writing, and their limit */
    struct disk_job *current;  /* the job that kv_tier_next returned last */
    struct err failure;
};

/* ---- index ---- */

static uint32_t *bucket_of(const struct kv_tier *t, const uint8_t *digest)
{
    return &t->bucket[XXH3_64bits(digest, KV_DIGEST) & (t->n_bucket - 1)];
}

static uint32_t find(const struct kv_tier *t, const uint8_t *digest)
{
    uint32_t i = *bucket_of(t, digest);
    while (i != KV_NONE && memcmp(t->rec[i].b.digest, digest, KV_DIGEST))
        i = t->rec[i].hash_next;
    return i;
}

static void age_append(struct kv_tier *t, uint32_t i)
{
    t->rec[i].prev = t->last;
    t->rec[i].next = KV_NONE;
    *(t->last != KV_NONE ? &t->rec[t->last].next : &t->first) = i;
    t->last = i;
}

static void age_unlink(struct kv_tier *t, uint32_t i)
{
    struct record *r = &t->rec[i];
    *(r->prev != KV_NONE ? &t->rec[r->prev].next : &t->first) = r->next;
    *(r->next != KV_NONE ? &t->rec[r->next].prev : &t->last) = r->prev;
}

static void index_add(struct kv_tier *t, uint32_t i)
{
    uint32_t *b = bucket_of(t, t->rec[i].b.digest);
    t->rec[i].hash_next = *b;
    *b = i;
    t->rec[i].used = true;
    t->n_used++;
    age_append(t, i);
}

static void make_free(struct kv_tier *t, uint32_t i)
{
    t->rec[i].used = false;
    t->rec[i].next = t->first_free;
    t->first_free = i;
}

static void discard(struct kv_tier *t, uint32_t i)
{
    uint32_t *b = bucket_of(t, t->rec[i].b.digest);
    while (*b != i)
        b = &t->rec[*b].hash_next;
    *b = t->rec[i].hash_next;
    age_unlink(t, i);
    t->n_used--;
    t->rec[i].put = NULL;
    make_free(t, i);
}

/* ---- the file ---- */

static off_t offset_of(const struct kv_tier *t, uint32_t i)
{
    return (off_t)(PAGE + i * t->record_bytes);
}

static void head_of(struct file_head *h, const struct kv_kind *k, uint64_t record_bytes)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, MAGIC, sizeof MAGIC);
    h->type = (uint32_t)k->type;
    h->n_layer = k->n_layer;
    h->n_kv_head = k->n_kv_head;
    h->head_dim = k->head_dim;
    memcpy(h->model, k->model, sizeof h->model);
    memcpy(h->arith, k->arith, sizeof h->arith);
    memcpy(h->layout, k->layout, sizeof h->layout);
    h->record_bytes = record_bytes;
    h->sum = XXH3_64bits(h, offsetof(struct file_head, sum));
}

static int check_kind(struct err *e, const struct kv_tier *t, const struct file_head *h, const struct kv_kind *k)
{
    if (memcmp(h->magic, MAGIC, sizeof MAGIC) || h->sum != XXH3_64bits(h, offsetof(struct file_head, sum)))
        return err_set(e, ERR_PROTO, "%s: not a file of KV blocks: use another path, or remove it", t->path);
    struct kv_kind has = {
        .type = (enum kern_kv)h->type, .n_layer = h->n_layer, .n_kv_head = h->n_kv_head, .head_dim = h->head_dim};
    memcpy(has.model, h->model, sizeof has.model);
    memcpy(has.arith, h->arith, sizeof has.arith);
    memcpy(has.layout, h->layout, sizeof has.layout);
    if (kv_kind_check(e, k, &has, "its writer"))
        return err_prefix(e, "%s has KV of another kind", t->path);
    if (h->record_bytes != t->record_bytes)
        return err_set(e, ERR_PROTO, "%s: its records have %" PRIu64 " bytes, not %" PRIu64, t->path, h->record_bytes,
                       t->record_bytes);
    return 0;
}

static int open_file(struct err *e, struct kv_tier *t, const struct kv_kind *k)
{
    struct file_head h, want;
    struct stat st;
    t->fd = open(t->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (t->fd < 0 && (errno == ENOENT || errno == ENOTDIR || errno == EISDIR || errno == EACCES || errno == EROFS))
        return err_set(e, ERR_NO, "the file tier %s cannot be opened: %s", t->path,
                       strerror(errno)); /* not by retrying */
    if (t->fd < 0)
        return err_sys(e, "%s", t->path);
    if (flock(t->fd, LOCK_EX | LOCK_NB))
        return errno == EWOULDBLOCK ? err_set(e, ERR_NO, "%s: another kvstore uses it", t->path)
                                    : err_sys(e, "%s", t->path);
    head_of(&want, k, t->record_bytes);
    if (fstat(t->fd, &st))
        return err_sys(e, "%s", t->path);
    if (st.st_size == 0) {
        if (pwrite(t->fd, &want, sizeof want, 0) != (ssize_t)sizeof want)
            return err_sys(e, "%s", t->path);
        return 0;
    }
    if (pread(t->fd, &h, sizeof h, 0) != (ssize_t)sizeof h)
        return err_set(e, ERR_PROTO, "%s: not a file of KV blocks: use another path, or remove it", t->path);
    if (!memcmp(h.magic, MAGIC_OLD, sizeof MAGIC_OLD) &&
        h.sum == XXH3_64bits(&h, offsetof(struct file_head, sum))) /* a cache: it starts empty */
        return ftruncate(t->fd, 0) || pwrite(t->fd, &want, sizeof want, 0) != (ssize_t)sizeof want
                   ? err_sys(e, "%s", t->path)
                   : 0;
    int rc = check_kind(e, t, &h, k);
    if (rc)
        return rc;
    if (st.st_size > offset_of(t, (uint32_t)t->n) && ftruncate(t->fd, offset_of(t, (uint32_t)t->n)))
        return err_sys(e, "%s", t->path);
    return 0;
}

static bool is_record(const struct record_head *h)
{
    return !memcmp(h->magic, MAGIC, sizeof MAGIC) && h->sum == XXH3_64bits(h, offsetof(struct record_head, sum));
}

static int by_stamp(const void *a, const void *b, void *arg)
{
    const struct kv_tier *t = arg;
    uint64_t x = t->rec[*(const uint32_t *)a].stamp, y = t->rec[*(const uint32_t *)b].stamp;
    return x < y ? -1 : x > y;
}

/* Reads heads only: the bytes after a head are checked when they are read. */
static uint64_t scan(struct kv_tier *t, uint32_t *order)
{
    static const char zero[sizeof(struct record_head)];
    struct record_head h;
    uint64_t n = 0;
    for (uint32_t i = 0; i < t->n; i++) {
        memset(&h, 0, sizeof h);
        if (pread(t->fd, &h, sizeof h, offset_of(t, i)) != (ssize_t)sizeof h || !is_record(&h)) {
            t->bad += offset_of(t, i) < lseek(t->fd, 0, SEEK_END) && memcmp(&h, zero, sizeof h) != 0;
            continue;
        }
        t->rec[i].b = h.b;
        t->rec[i].stamp = h.stamp;
        t->stamp = h.stamp > t->stamp ? h.stamp : t->stamp;
        order[n++] = i;
    }
    return n;
}

static int load_index(struct err *e, struct kv_tier *t)
{
    uint32_t *order = malloc(t->n * sizeof *order);
    if (!order)
        return err_nomem(e, "the index of the file tier", t->n * sizeof *order);
    uint64_t n = scan(t, order);
    qsort_r(order, n, sizeof *order, by_stamp, t);
    for (uint64_t k = 0; k < n; k++) {
        uint32_t older = find(t, t->rec[order[k]].b.digest);
        if (older != KV_NONE)
            discard(t, older);
        index_add(t, order[k]);
    }
    t->first_free = KV_NONE;
    for (uint64_t k = t->n; k-- > 0;)
        if (!t->rec[k].used)
            make_free(t, (uint32_t)k);
    free(order);
    return 0;
}

int kv_tier_open(struct err *e, struct kv_tier **out, const char *path, uint64_t bytes, const struct kv_kind *k)
{
    struct kv_layout l;
    int rc = kv_kind_layout(e, &l, k);
    struct kv_tier *t = rc ? NULL : calloc(1, sizeof *t);
    if (!t)
        return rc ? rc : err_nomem(e, "a file tier", sizeof *t);
    t->fd = -1;
    t->first = t->last = t->first_free = KV_NONE;
    t->data_bytes = l.layer_bytes * (uint64_t)l.n_layer;
    t->record_bytes = PAGE + l.slot_bytes;
    t->n = bytes > PAGE ? (bytes - PAGE) / t->record_bytes : 0;
    t->n = t->n < INT32_MAX ? t->n : INT32_MAX;
    t->path = strdup(path);
    for (t->n_bucket = 64; t->n_bucket < t->n; t->n_bucket *= 2)
        ;
    t->rec = calloc(t->n + 1, sizeof *t->rec);
    t->bucket = malloc(t->n_bucket * sizeof *t->bucket);
    if (!t->path || !t->rec || !t->bucket)
        rc = err_nomem(e, "the index of the file tier", t->n * sizeof *t->rec);
    else if (!t->n)
        rc = err_set(e, ERR_NO, "a file tier of %" PRIu64 " bytes is too small: one block needs %" PRIu64, bytes,
                     t->record_bytes + PAGE);
    if (!rc) {
        memset(t->bucket, 0xff, t->n_bucket * sizeof *t->bucket);
        rc = open_file(e, t, k);
    }
    t->n_put_max = KV_TIER_QUEUE_BYTES / t->data_bytes < 2 ? 2 : KV_TIER_QUEUE_BYTES / t->data_bytes;
    rc = rc ? rc : load_index(e, t);
    rc = rc ? rc : disk_open(e, &t->disk, t->fd, t->data_bytes);
    if (rc) {
        kv_tier_free(t);
        return rc;
    }
    *out = t;
    return 0;
}

void kv_tier_free(struct kv_tier *t)
{
    if (!t)
        return;
    bool ended = !t->disk || disk_close(t->disk, CLOSE_MS);
    if (t->fd >= 0 && ended) /* otherwise the thread closes it */
        close(t->fd);
    disk_job_free(t->current);
    free(t->path);
    free(t->rec);
    free(t->bucket);
    free(t);
}

/* ---- blocks ---- */

bool kv_tier_has(const struct kv_tier *t, const uint8_t *digest)
{
    return find(t, digest) != KV_NONE;
}

bool kv_tier_find(const struct kv_tier *t, struct kv_tier_block *out, const uint8_t *digest)
{
    uint32_t i = find(t, digest);
    if (i == KV_NONE)
        return false;
    *out = t->rec[i].b;
    return true;
}

static struct disk_job *job_of(const struct kv_tier *t, enum disk_what what, uint32_t i)
{
    struct disk_job *j = calloc(1, sizeof *j);
    if (!j)
        return NULL;
    j->what = what;
    j->rec = i;
    j->stamp = t->rec[i].stamp;
    j->at = offset_of(t, i);
    j->b = t->rec[i].b;
    return j;
}

/* The bytes of a block that is not written yet are copied from the queued write. */
int kv_tier_get(struct err *e, struct kv_tier *t, const uint8_t *digest)
{
    uint32_t i = find(t, digest);
    if (i == KV_NONE)
        return err_set(e, ERR_NO, "%s: the block is not in the file", t->path);
    struct disk_job *j = job_of(t, DISK_READ, i);
    if (!j)
        return err_nomem(e, "a read", sizeof *j);
    age_unlink(t, i);
    age_append(t, i);
    if (!t->rec[i].put) {
        disk_submit(t->disk, j);
        return 0;
    }
    j->bytes = malloc(t->data_bytes);
    j->whole = j->bytes != NULL;
    if (j->whole)
        memcpy(j->bytes, t->rec[i].put->bytes, t->data_bytes);
    disk_complete(t->disk, j);
    return 0;
}

bool kv_tier_room(const struct kv_tier *t)
{
    return t->n_put < t->n_put_max;
}

static struct disk_job *put_job(struct kv_tier *t, const struct kv_tier_block *b, const uint8_t *bytes)
{
    struct disk_job *j = job_of(t, DISK_WRITE, t->first_free);
    struct record_head h;
    if (!j)
        return NULL;
    j->bytes = malloc(t->data_bytes);
    if (!j->bytes) {
        free(j);
        return NULL;
    }
    memcpy(j->bytes, bytes, t->data_bytes);
    memset(&h, 0, sizeof h);
    memcpy(h.magic, MAGIC, sizeof MAGIC);
    h.stamp = j->stamp = ++t->stamp;
    h.b = j->b = *b;
    h.sum = XXH3_64bits(&h, offsetof(struct record_head, sum));
    memcpy(j->head, &h, sizeof h);
    return j;
}

int kv_tier_put(struct err *e, struct kv_tier *t, uint8_t *dropped, bool *has_dropped, const struct kv_tier_block *b,
                const uint8_t *bytes)
{
    *has_dropped = false;
    if (kv_tier_has(t, b->digest))
        return 0;
    if (!kv_tier_room(t))
        return err_set(e, ERR_NO, "%s: the queue of blocks to write is full (%" PRIu64 ")", t->path, t->n_put);
    if (t->n_used && (t->full || t->first_free == KV_NONE)) {
        memcpy(dropped, t->rec[t->first].b.digest, KV_DIGEST);
        *has_dropped = true;
        discard(t, t->first); /* its record is first in the free list */
    }
    uint32_t i = t->first_free;
    struct disk_job *j = put_job(t, b, bytes);
    if (!j)
        return err_nomem(e, "a block to be written", t->data_bytes);
    t->first_free = t->rec[i].next;
    t->rec[i].b = *b;
    t->rec[i].stamp = j->stamp;
    t->rec[i].put = j;
    t->n_put++;
    index_add(t, i);
    disk_submit(t->disk, j);
    return 0;
}

static void discard_and_erase(struct kv_tier *t, uint32_t i)
{
    discard(t, i);
    struct disk_job *erase = job_of(t, DISK_ERASE, i);
    if (erase)
        disk_submit(t->disk, erase);
}

void kv_tier_drop(struct kv_tier *t, const uint8_t *digest)
{
    uint32_t i = find(t, digest);
    if (i != KV_NONE)
        discard_and_erase(t, i);
}

/* ---- completions ---- */

static bool is_current(const struct kv_tier *t, const struct disk_job *j)
{
    return t->rec[j->rec].used && t->rec[j->rec].stamp == j->stamp;
}

static void read_done(struct kv_tier *t, const struct disk_job *j, struct kv_tier_done *out)
{
    out->what = j->whole ? KV_TIER_READ : KV_TIER_MISSING;
    out->bytes = j->bytes;
    t->hits += j->whole;
    if (j->whole || !j->bytes || !is_current(t, j)) /* the record was reused meanwhile */
        return;
    err_set(&t->failure, ERR_NO, "%s: the block in record %u is torn or damaged: dropped", t->path, j->rec);
    out->text = t->failure.text;
    t->bad++;
    discard_and_erase(t, j->rec);
}

static bool write_done(struct kv_tier *t, const struct disk_job *j, struct kv_tier_done *out)
{
    t->n_put--;
    if (!is_current(t, j))
        return false;
    t->rec[j->rec].put = NULL;
    if (j->whole)
        return false;
    discard(t, j->rec);
    out->what = KV_TIER_LOST;
    bool full = j->error == ENOSPC || j->error == EDQUOT || j->error == EFBIG;
    if (full && !t->full)
        err_set(&t->failure, ERR_SYS,
                "%s: the disk is full with %" PRIu64
                " blocks (%s): a block is not stored; from now on new blocks replace the least recently used",
                t->path, t->n_used - t->n_put, strerror(j->error));
    else if (!full)
        err_set(&t->failure, ERR_SYS, "%s: a block is not stored: %s", t->path, strerror(j->error));
    out->text = full && t->full ? NULL : t->failure.text;
    t->full = t->full || full;
    return true;
}

bool kv_tier_next(struct kv_tier *t, struct kv_tier_done *out)
{
    for (bool report = false; !report;) {
        disk_job_free(t->current);
        struct disk_job *j = t->current = disk_done(t->disk);
        if (!j)
            return false;
        *out = (struct kv_tier_done){.b = j->b};
        report = j->what == DISK_READ;
        if (j->what == DISK_READ)
            read_done(t, j, out);
        else if (j->what == DISK_WRITE)
            report = write_done(t, j, out);
    }
    return true;
}

int kv_tier_fd(const struct kv_tier *t)
{
    return disk_fd(t->disk);
}

bool kv_tier_wait(struct kv_tier *t, int timeout_ms)
{
    return disk_wait(t->disk, timeout_ms);
}

void kv_tier_each(const struct kv_tier *t, void (*fn)(void *arg, const uint8_t *digest), void *arg)
{
    for (uint32_t i = t->first; i != KV_NONE; i = t->rec[i].next)
        fn(arg, t->rec[i].b.digest);
}

void kv_tier_stat(const struct kv_tier *t, struct kv_tier_stat *out)
{
    *out = (struct kv_tier_stat){.total = t->n, .used = t->n_used, .hits = t->hits, .bad = t->bad};
}
