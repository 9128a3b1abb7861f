/*
 * Cache of packed models: $XDG_CACHE_HOME/phasepipe/packed/PLACE-IDENTITY.pack, written under a lock to a temporary
 * name and renamed when complete. PLACE is derived from path and layout, so the packed file of a model that was
 * replaced is found and removed.
 *
 * Programs that have no parent in common share the mapped file. It also reads faster than a memfd if the file system
 * keeps its pages as huge pages (PACK_BUFFER_BYTES).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model_impl.h"
#include "proc/sandbox.h"

#define PATH_BYTES 4096
#define DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

static int join(struct err *e, char *out, size_t n, const char *a, const char *b)
{
    int len = snprintf(out, n, "%s/%s", a, b);
    return len >= 0 && (size_t)len < n ? 0 : err_set(e, ERR_SYS, "%s: the path is longer than %zu bytes", a, n - 1);
}

/* A relative $XDG_CACHE_HOME is ignored, as the XDG specification requires. */
static int cache_dir(struct err *e, char *out, size_t n)
{
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (xdg && xdg[0] == '/')
        return join(e, out, n, xdg, "phasepipe");
    if (home && home[0] == '/')
        return join(e, out, n, home, ".cache/phasepipe");
    return err_set(e, ERR_SYS, "no cache directory: set XDG_CACHE_HOME or HOME to an absolute path");
}

int model_default_path(struct err *e, char *out, size_t n)
{
    char dir[PATH_BYTES];
    int rc = cache_dir(e, dir, sizeof dir);
    if (!rc)
        rc = join(e, out, n, dir, DEFAULT_MODEL);
    if (!rc && access(out, F_OK) != 0)
        rc = err_set(e, ERR_NO,
                     "no default model in the cache directory: run scripts/get-model, or name a file with -m");
    return rc;
}

void model_allow(struct sandbox *s, const char *path)
{
    char text[PATH_BYTES];
    struct err unused;
    if (path || !model_default_path(&unused, text, sizeof text))
        sandbox_read(s, path ? path : text);
}

static int make_dirs(struct err *e, char *path)
{
    for (char *p = path + 1;; p++) {
        if (*p != '/' && *p != '\0')
            continue;
        char was = *p;
        *p = '\0';
        int rc = mkdir(path, 0700) < 0 && errno != EEXIST ? err_sys(e, "%s: mkdir", path) : 0;
        *p = was;
        if (rc || !was)
            return rc;
    }
}

struct cache_paths {
    char dir[PATH_BYTES];
    char pack[PATH_BYTES], temp[PATH_BYTES], lock[PATH_BYTES];
    char prefix[40]; /* of the names of this model's files */
    struct pack_identity id;
};

int model_packed_dir(struct err *e, char *out, size_t n)
{
    char cache[PATH_BYTES - 64];
    int rc = cache_dir(e, cache, sizeof cache);
    rc = rc ? rc : join(e, out, n, cache, "packed");
    return rc ? rc : make_dirs(e, out);
}

static int find_paths(struct err *e, struct cache_paths *at, const struct gguf *g)
{
    char whole[33], name[96];
    int rc = model_packed_dir(e, at->dir, sizeof at->dir);
    if (!rc)
        rc = pack_identity(e, &at->id, g);
    if (rc)
        return rc;
    sodium_bin2hex(at->prefix, 33, at->id.place, 16);
    sodium_bin2hex(whole, sizeof whole, at->id.whole, 16);
    snprintf(name, sizeof name, "%s-%s.pack", at->prefix, whole);
    rc = join(e, at->pack, sizeof at->pack, at->dir, name);
    snprintf(name, sizeof name, "%s.tmp", at->prefix);
    if (!rc)
        rc = join(e, at->temp, sizeof at->temp, at->dir, name);
    snprintf(name, sizeof name, "%s.lock", at->prefix);
    return rc ? rc : join(e, at->lock, sizeof at->lock, at->dir, name);
}

/* Huge pages and read-ahead are optional: if the kernel refuses them, only speed is lost. */
static int map_file(struct err *e, struct model *m, const struct pack_plan *p, int fd, const char *path)
{
    void *map = mmap(NULL, p->total_bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        return err_sys(e, "%s: mmap", path);
    madvise(map, p->total_bytes, MADV_HUGEPAGE);
    madvise(map, p->total_bytes, MADV_WILLNEED);
    madvise(map, p->total_bytes, MADV_POPULATE_READ);
    m->map = map;
    m->map_bytes = p->total_bytes;
    m->shared = true;
    return 0;
}

/* Maps the packed file if it exists and is complete; sets *found. */
static int map_existing(struct err *e, bool *found, struct model *m, struct pack_plan *p, const struct cache_paths *at)
{
    *found = false;
    int fd = open(at->pack, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s: open", at->pack);
    int rc = 0;
    if (pack_check(m->fingerprint, p, fd, &at->id)) {
        rc = map_file(e, m, p, fd, at->pack);
        *found = rc == 0;
    }
    close(fd);
    return rc;
}

/* Removes packed files of earlier contents of the same path. Processes that map one keep it. */
static void remove_stale(const struct cache_paths *at)
{
    DIR *d = opendir(at->dir);
    if (!d)
        return;
    const char *keep = strrchr(at->pack, '/') + 1;
    size_t n = strlen(at->prefix);
    for (struct dirent *en; (en = readdir(d));) {
        size_t len = strlen(en->d_name);
        if (strncmp(en->d_name, at->prefix, n) == 0 && en->d_name[n] == '-' && strcmp(en->d_name, keep) != 0 &&
            len > 5 && strcmp(en->d_name + len - 5, ".pack") == 0)
            unlinkat(dirfd(d), en->d_name, 0);
    }
    closedir(d);
}

/* Reserves the space first, so that a full disk is reported at once; file systems that cannot reserve are written to
 * anyway. The data is synced before the file gets its name, so a power failure leaves no incomplete file under that
 * name. */
static int fill_file(struct err *e, struct model *m, struct pack_plan *p, int fd, const struct cache_paths *at,
                     const struct model_opts *o)
{
    if (fallocate(fd, 0, 0, (off_t)p->total_bytes) < 0 && errno != EOPNOTSUPP && errno != ENOSYS)
        return err_sys(e, "%s: reserving %llu bytes", at->temp, (unsigned long long)p->total_bytes);
    struct pack_sink s = {.fd = fd, .mem = malloc(PACK_BUFFER_BYTES), .path = at->temp};
    if (!s.mem)
        return err_nomem(e, "a write buffer", PACK_BUFFER_BYTES);
    int rc = pack_write(e, m->fingerprint, &s, p, m->gguf, &at->id, o);
    free(s.mem);
    if (!rc && fdatasync(fd) < 0)
        rc = err_sys(e, "%s: sync", at->temp);
    if (!rc && rename(at->temp, at->pack) < 0)
        rc = err_sys(e, "%s: rename", at->pack);
    return rc;
}

static int make_file(struct err *e, struct model *m, struct pack_plan *p, const struct cache_paths *at,
                     const struct model_opts *o)
{
    int rc = plan_narrow(e, p, m->gguf);
    if (rc)
        return rc;
    int fd = open(at->temp, O_RDWR | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_sys(e, "%s: create", at->temp);
    rc = fill_file(e, m, p, fd, at, o);
    if (rc) {
        unlink(at->temp);
    } else {
        remove_stale(at);
        rc = map_file(e, m, p, fd, at->pack);
        m->packed_now = rc == 0;
    }
    close(fd);
    return rc;
}

int cache_map(struct err *e, struct model *m, struct pack_plan *p, const struct model_opts *o)
{
    struct cache_paths at;
    bool found;
    int rc = find_paths(e, &at, m->gguf);
    if (!rc)
        rc = map_existing(e, &found, m, p, &at);
    if (rc || found)
        return rc;
    int lock = open(at.lock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        return err_sys(e, "%s: create", at.lock);
    while ((rc = flock(lock, LOCK_EX)) < 0 && errno == EINTR)
        continue;
    rc = rc < 0 ? err_sys(e, "%s: lock", at.lock) : map_existing(e, &found, m, p, &at);
    if (!rc && !found)
        rc = make_file(e, m, p, &at, o);
    close(lock);
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
