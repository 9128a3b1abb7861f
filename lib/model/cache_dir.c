/*
 * The directory of packed models: $XDG_CACHE_HOME/phasepipe/packed, with PLACE-IDENTITY.pack, PLACE.tmp and PLACE.lock
 * of each model. PLACE is derived from path and layout, so the packed file of a model that was replaced is found and
 * removed.
 *
 * Another user who can write the file can change what the model answers. So the directory and each file must belong
 * to this user or to root, and nobody else may have the right to write; files are opened relative to the directory that
 * was checked, and no symbolic link is followed.
 */
#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model_impl.h"
#include "proc/sandbox.h"

#define PATH_BYTES 4096
#define DEFAULT_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

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

int model_packed_dir(struct err *e, char *out, size_t n)
{
    char cache[PATH_BYTES - 64];
    int rc = cache_dir(e, cache, sizeof cache);
    rc = rc ? rc : join(e, out, n, cache, "packed");
    return rc ? rc : make_dirs(e, out);
}

bool cache_trusted(struct err *reason, const struct stat *st, const char *path)
{
    if (st->st_uid != geteuid() && st->st_uid != 0)
        err_set(reason, ERR_SYS, "%s belongs to user %u, neither to this user nor to root", path, st->st_uid);
    else if (st->st_mode & (S_IWGRP | S_IWOTH))
        err_set(reason, ERR_SYS, "%s can be written by others (mode %04o)", path, st->st_mode & 07777);
    else
        return true;
    return false;
}

int cache_dir_open(struct err *e, char *path, size_t n)
{
    struct stat st;
    if (model_packed_dir(e, path, n))
        return -1;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) < 0) {
        err_sys(e, "%s: open", path);
    } else if (!cache_trusted(e, &st, path)) {
        struct err why = *e;
        err_set(e, ERR_SYS, "%.400s: give it to this user, or run chmod go-w", why.text);
    } else {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

int cache_at_open(struct err *e, struct cache_at *at, const struct gguf *g)
{
    char place[33], whole[33];
    int rc = pack_identity(e, &at->id, g);
    if (rc)
        return rc;
    at->dir = cache_dir_open(e, at->path, sizeof at->path);
    if (at->dir < 0)
        return ERR_SYS;
    sodium_bin2hex(place, sizeof place, at->id.place, 16);
    sodium_bin2hex(whole, sizeof whole, at->id.whole, 16);
    snprintf(at->pack, sizeof at->pack, "%s-%s.pack", place, whole);
    snprintf(at->temp, sizeof at->temp, "%s.tmp", place);
    snprintf(at->lock, sizeof at->lock, "%s.lock", place);
    return 0;
}

void cache_at_close(struct cache_at *at)
{
    if (at->dir >= 0)
        close(at->dir);
    at->dir = -1;
}

/* A lock file may have been removed, with what it guards, while this process waited for it: then it guards nothing. */
int cache_lock(struct err *e, int *out, int dir, const char *name, bool now)
{
    *out = -1;
    for (;;) {
        struct stat st;
        int rc, fd = openat(dir, name, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
        if (fd < 0)
            return err_sys(e, "%s: create", name);
        while ((rc = flock(fd, now ? LOCK_EX | LOCK_NB : LOCK_EX)) < 0 && errno == EINTR)
            continue;
        if (rc == 0 && fstat(fd, &st) == 0 && st.st_nlink > 0) {
            *out = fd;
            return 0;
        }
        bool busy = rc < 0 && errno == EWOULDBLOCK;
        if (rc < 0 && !busy)
            err_sys(e, "%s: lock", name);
        close(fd);
        if (rc < 0)
            return busy ? 0 : e->code;
    }
}
