/*
 * Maps the packed weights of a model. The file is written under a lock to a temporary name and renamed when complete.
 *
 * Programs that have no parent in common share the mapped file. It also reads faster than a memfd if the file system
 * keeps its pages as huge pages (PACK_BUFFER_BYTES). A process that maps it holds a shared lock of it, so that it is
 * not pruned (cache_prune.c).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/cache.h"
#include "model/model_impl.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* One attempt to open a model: what is opened, and its place. */
struct opening {
    struct model *m;
    struct pack_plan *p;
    const struct model_opts *o;
    struct cache_at at;
    int lock; /* descriptor; -1: not held */
};

static void __attribute__((format(printf, 2, 3))) report(const struct opening *op, const char *fmt, ...)
{
    char text[900];
    va_list ap;
    if (!op->o || !op->o->log)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    op->o->log(op->o->log_arg, text);
}

static bool lock_shared(int fd)
{
    int rc;
    while ((rc = flock(fd, LOCK_SH)) < 0 && errno == EINTR)
        continue;
    return rc == 0;
}

/* Huge pages and read-ahead are optional: if the kernel refuses them, only speed is lost. */
static int map_file(struct err *e, struct opening *op, int fd)
{
    struct model *m = op->m;
    uint64_t bytes = op->p->total_bytes;
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return err_sys(e, "%s/%s: mmap", op->at.path, op->at.pack);
    madvise(map, bytes, MADV_HUGEPAGE);
    madvise(map, bytes, MADV_WILLNEED);
    madvise(map, bytes, MADV_POPULATE_READ);
    m->map = map;
    m->map_bytes = bytes;
    m->map_fd = fd;
    m->shared = true;
    return 0;
}

static void unmap_file(struct model *m)
{
    munmap(m->map, m->map_bytes);
    m->map = NULL;
    m->shared = false;
}

/* A file of this name that must not be used is packed again; the new one replaces it, or the symbolic link. */
static bool usable(const struct opening *op, int fd, struct stat *st, bool log)
{
    struct err reason = {0};
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", op->at.path, op->at.pack);
    if (fd < 0 && errno == ELOOP)
        err_set(&reason, ERR_SYS, "%s is a symbolic link", path);
    else if (fd < 0 || fstat(fd, st) < 0)
        err_sys(&reason, "%s: open", path);
    else if (!S_ISREG(st->st_mode))
        err_set(&reason, ERR_SYS, "%s is not a regular file", path);
    else if (cache_trusted(&reason, st, path))
        return true;
    if (log)
        report(op, "%s: it is not used, the model is packed again", reason.text);
    return false;
}

/* Verifies a mapped file if its state is not recorded as verified. Without the lock nothing is recorded. */
static bool verify(const struct opening *op, const struct stat *st)
{
    bool always = op->o && op->o->verify;
    if (!always && cache_use_fits(op->at.dir, op->at.lock, st))
        return true;
    const struct pack_item *bad = pack_verify(op->p, op->m->map);
    if (!bad && op->lock >= 0)
        cache_use_write(op->lock, st);
    if (bad)
        report(op, "%s/%s: the weights of tensor %s are damaged: the model is packed again", op->at.path, op->at.pack,
               gguf_show(bad->src->name).s);
    return !bad;
}

/* Maps the packed file if it exists and is right; sets *found. `quick`: only if nothing has to be verified for that. */
static int map_existing(struct err *e, bool *found, struct opening *op, bool quick)
{
    struct stat st;
    *found = false;
    int fd = openat(op->at.dir, op->at.pack, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    int rc = 0;
    bool ok = usable(op, fd, &st, !quick) && lock_shared(fd) && fstat(fd, &st) == 0 && st.st_nlink > 0;
    if (ok && quick)
        ok = !(op->o && op->o->verify) && cache_use_fits(op->at.dir, op->at.lock, &st);
    if (ok && !pack_check(op->m->fingerprint, op->p, fd, &op->at.id)) {
        ok = false;
        if (!quick)
            report(op, "%s/%s: the header is damaged: the model is packed again", op->at.path, op->at.pack);
    }
    if (ok)
        rc = map_file(e, op, fd);
    *found = ok && !rc && (quick || verify(op, &st));
    if (ok && !rc && !*found)
        unmap_file(op->m);
    if (!*found && fd >= 0)
        close(fd);
    return rc;
}

/* Removes packed files of earlier contents of the same path. Processes that map one keep it. */
static void remove_stale(const struct cache_at *at)
{
    int fd = openat(at->dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (!d)
        return;
    size_t n = strcspn(at->pack, "-") + 1;
    for (struct dirent *en; (en = readdir(d));) {
        size_t len = strlen(en->d_name);
        if (strncmp(en->d_name, at->pack, n) == 0 && strcmp(en->d_name, at->pack) != 0 && len > 5 &&
            strcmp(en->d_name + len - 5, ".pack") == 0)
            unlinkat(at->dir, en->d_name, 0);
    }
    closedir(d);
}

/* Reserves the space first, so that a full disk is reported at once; file systems that cannot reserve are written to
 * anyway. The data is synced before the file gets its name, so a power failure leaves no incomplete file under that
 * name. */
static int fill_file(struct err *e, struct opening *op, int fd)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/%s", op->at.path, op->at.temp);
    if (fallocate(fd, 0, 0, (off_t)op->p->total_bytes) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return err_sys(e, "%s: reserving %llu bytes", path, (unsigned long long)op->p->total_bytes);
    struct pack_sink s = {.fd = fd, .mem = malloc(PACK_BUFFER_BYTES), .path = path};
    if (!s.mem)
        return err_nomem(e, "a write buffer", PACK_BUFFER_BYTES);
    int rc = pack_write(e, op->m->fingerprint, &s, op->p, op->m->gguf, &op->at.id, op->o);
    free(s.mem);
    if (!rc && fdatasync(fd) < 0)
        rc = err_sys(e, "%s: sync", path);
    if (!rc && !lock_shared(fd))
        rc = err_sys(e, "%s: lock", path);
    if (!rc && renameat(op->at.dir, op->at.temp, op->at.dir, op->at.pack) < 0)
        rc = err_sys(e, "%s: rename", path);
    return rc;
}

static int make_file(struct err *e, struct opening *op)
{
    struct stat st;
    int rc = plan_narrow(e, op->p, op->m->gguf);
    if (rc)
        return rc;
    unlinkat(op->at.dir, op->at.temp, 0); /* of a process that was killed */
    int fd = openat(op->at.dir, op->at.temp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, "%s/%s: create", op->at.path, op->at.temp);
    rc = fill_file(e, op, fd);
    if (rc) {
        unlinkat(op->at.dir, op->at.temp, 0);
    } else {
        remove_stale(&op->at);
        if (fstat(fd, &st) == 0)
            cache_use_write(op->lock, &st);
        rc = map_file(e, op, fd);
        op->m->packed_now = rc == 0;
    }
    if (rc)
        close(fd);
    return rc;
}

/* A directory that can be read but not written to may still have the file; it is then verified each time. */
static int map_or_make(struct err *e, struct opening *op)
{
    bool found;
    int rc = map_existing(e, &found, op, true);
    if (rc || found)
        return rc;
    struct err no_lock = {0};
    bool locked = cache_lock(&no_lock, &op->lock, op->at.dir, op->at.lock, false) == 0;
    rc = map_existing(e, &found, op, false);
    if (!rc && !found && !locked)
        rc = err_set(e, ERR_SYS, "%s/%s", op->at.path, no_lock.text);
    return rc || found ? rc : make_file(e, op);
}

/* Failing to prune delays nothing: the next packing tries again. */
static void prune(const struct opening *op)
{
    struct model_cache_bounds b = model_cache_bounds();
    struct model_cache_pruned p;
    struct err none;
    if (!model_cache_prune(&none, &p, &b) && p.n)
        report(op, "%s: %zu packed models that were not used for long are removed (phasepipe cache --prune)",
               op->at.path, p.n);
}

int cache_map(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o)
{
    struct opening op = {.m = m, .p = p, .o = o, .lock = -1};
    int rc = cache_at_open(e, &op.at, m->gguf);
    if (rc)
        return rc;
    rc = map_or_make(e, &op);
    if (!rc)
        cache_use_touch(op.at.dir, op.at.lock);
    if (op.lock >= 0)
        close(op.lock);
    if (!rc && m->packed_now)
        prune(&op);
    cache_at_close(&op.at);
    return rc;
}

int cache_map_private(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o)
{
    struct pack_identity id;
    int rc = pack_identity(e, &id, m->gguf);
    if (!rc)
        rc = plan_narrow(e, p, m->gguf);
    if (rc)
        return rc;
    void *map = mmap(NULL, p->total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED)
        return err_nomem(e, "packed weights", p->total_bytes);
    madvise(map, p->total_bytes, MADV_HUGEPAGE);
    struct pack_sink s = {.fd = -1, .mem = map};
    rc = pack_write(e, m->fingerprint, &s, p, m->gguf, &id, o);
    if (rc) {
        munmap(map, p->total_bytes);
        return rc;
    }
    mprotect(map, p->total_bytes, PROT_READ);
    m->map = map;
    m->map_bytes = p->total_bytes;
    m->packed_now = true;
    return 0;
}
