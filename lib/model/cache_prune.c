/* Lists and prunes the directory of packed weights. */
#include "model/cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/vec.h"
#include "model/model_impl.h"

#define PLACE_N 32       /* digits of PLACE in the names */
#define LEFT_AGE_S 86400 /* of what a killed process left */

static bool ends_with(const char *name, const char *end)
{
    size_t n = strlen(name), k = strlen(end);
    return n > k && strcmp(name + n - k, end) == 0;
}

/* Names in the directory that begin with PLACE, as this program makes them. */
static bool is_ours(const char *name)
{
    return strspn(name, "0123456789abcdef") == PLACE_N && strlen(name) < sizeof((struct model_cached *)0)->file;
}

static void lock_name(char out[64], const char *file)
{
    snprintf(out, 64, "%.*s.lock", PLACE_N, file);
}

/* Opens a packed file that nobody uses, with its lock; closing the descriptor releases it. -1 with *in_use: a
 * process does. */
static int open_unused(int dir, const char *file, struct stat *st, bool *in_use)
{
    *in_use = false;
    int fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, st) < 0 || !S_ISREG(st->st_mode)) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return fd;
    *in_use = true;
    close(fd);
    return -1;
}

static bool describe(struct model_cached *c, int dir, const char *file)
{
    struct stat st, used;
    char lock[64];
    *c = (struct model_cached){.used_s = 0};
    snprintf(c->file, sizeof c->file, "%s", file);
    if (fstatat(dir, file, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return false;
    lock_name(lock, file);
    c->bytes = (uint64_t)st.st_size;
    c->used_s = fstatat(dir, lock, &used, AT_SYMLINK_NOFOLLOW) == 0 ? used.st_mtime : st.st_mtime;
    int fd = open_unused(dir, file, &st, &c->in_use);
    if (fd < 0)
        fd = openat(dir, file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || !pack_model(c->model, fd))
        c->model[0] = 0;
    if (fd >= 0)
        close(fd);
    return true;
}

static int newest_first(const void *a, const void *b)
{
    const struct model_cached *x = a, *y = b;
    return x->used_s != y->used_s ? (x->used_s < y->used_s) - (x->used_s > y->used_s) : strcmp(x->file, y->file);
}

static int list(struct err *e, struct model_cached **out, size_t *n, int dir)
{
    struct model_cached *c = NULL;
    size_t cap = 0;
    int rc = 0, fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    *n = 0;
    if (!d)
        return err_sys(e, "the directory of packed weights: open");
    for (struct dirent *en; !rc && (en = readdir(d));) {
        if (!is_ours(en->d_name) || !ends_with(en->d_name, ".pack"))
            continue;
        rc = vec_reserve(e, &c, &cap, *n + 1, sizeof *c, "packed files");
        if (!rc && describe(&c[*n], dir, en->d_name))
            ++*n;
    }
    closedir(d);
    if (rc) {
        free(c);
        return rc;
    }
    if (*n)
        qsort(c, *n, sizeof *c, newest_first);
    *out = c;
    return 0;
}

int model_cache_list(struct err *e, struct model_cached **out, size_t *n, char *dir, size_t n_dir)
{
    int fd = cache_dir_open(e, dir, n_dir);
    if (fd < 0)
        return ERR_SYS;
    int rc = list(e, out, n, fd);
    close(fd);
    return rc;
}

struct model_cache_bounds model_cache_bounds(void)
{
    struct model_cache_bounds b = {MODEL_CACHE_BYTES, MODEL_CACHE_AGE_S};
    char path[4096];
    struct err none;
    struct statvfs fs;
    if (!model_packed_dir(&none, path, sizeof path) && statvfs(path, &fs) == 0 && fs.f_blocks) {
        uint64_t quarter = (uint64_t)fs.f_blocks * fs.f_frsize / 4;
        b.bytes = quarter < b.bytes ? quarter : b.bytes;
    }
    return b;
}

/* Removes a packed file under the lock of its model, with what belongs to it. */
static bool remove_unused(int dir, const char *file)
{
    char lock[64], temp[64];
    struct err none;
    struct stat st;
    bool in_use, removed = false;
    int lock_fd;
    lock_name(lock, file);
    snprintf(temp, sizeof temp, "%.*s.tmp", PLACE_N, file);
    if (cache_lock(&none, &lock_fd, dir, lock, true) || lock_fd < 0)
        return false;
    int fd = open_unused(dir, file, &st, &in_use);
    if (fd >= 0) {
        removed = unlinkat(dir, file, 0) == 0;
        close(fd);
    }
    if (removed) {
        unlinkat(dir, temp, 0);
        unlinkat(dir, lock, 0);
    }
    close(lock_fd);
    return removed;
}

/* Files that a killed process was writing. */
static void remove_left(int dir, int64_t now)
{
    int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *en; d && (en = readdir(d));) {
        struct stat st;
        char lock[64];
        int lock_fd;
        struct err none;
        if (!is_ours(en->d_name) || !ends_with(en->d_name, ".tmp") ||
            fstatat(dir, en->d_name, &st, AT_SYMLINK_NOFOLLOW) < 0 || now - st.st_mtime < LEFT_AGE_S)
            continue;
        lock_name(lock, en->d_name);
        if (cache_lock(&none, &lock_fd, dir, lock, true) || lock_fd < 0)
            continue;
        unlinkat(dir, en->d_name, 0);
        close(lock_fd);
    }
    if (d)
        closedir(d);
}

int model_cache_prune(struct err *e, struct model_cache_pruned *out, const struct model_cache_bounds *b)
{
    char path[4096];
    struct model_cached *c = NULL;
    size_t n = 0;
    *out = (struct model_cache_pruned){0};
    int dir = cache_dir_open(e, path, sizeof path);
    if (dir < 0)
        return ERR_SYS;
    int rc = list(e, &c, &n, dir);
    int64_t now = (int64_t)time(NULL);
    for (size_t i = 0; i < n; i++)
        out->kept_bytes += c[i].bytes;
    out->kept = n;
    for (size_t i = n; i-- > 0;) {
        bool old = now - c[i].used_s > (int64_t)b->age_s;
        if (c[i].in_use || (!old && out->kept_bytes <= b->bytes) || !remove_unused(dir, c[i].file))
            continue;
        out->n++;
        out->kept--;
        out->bytes += c[i].bytes;
        out->kept_bytes -= c[i].bytes;
    }
    if (!rc)
        remove_left(dir, now);
    free(c);
    close(dir);
    return rc;
}
