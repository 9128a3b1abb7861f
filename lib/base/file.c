#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool file_read_at(int fd, void *p, size_t n, off_t at)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(fd, (char *)p + got, n - got, at + (off_t)got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        got += (size_t)k;
    }
    return true;
}

/* Whether the service manager provides the file (systemd's LoadCredential=). */
static bool is_credential(const char *path)
{
    const char *dir = getenv("CREDENTIALS_DIRECTORY");
    size_t n = dir ? strlen(dir) : 0;
    return n && !strncmp(path, dir, n) && path[n] == '/' && !strstr(path + n, "/../");
}

static int check(struct err *e, const struct stat *st, const char *path, size_t max, const char *what,
                 enum file_access access)
{
    mode_t read = S_IRGRP | S_IROTH, write = S_IWGRP | S_IWOTH;
    mode_t refused = is_credential(path) || access == FILE_ANY ? 0 : access == FILE_TRUSTED ? write : read | write;
    if (!S_ISREG(st->st_mode) || st->st_size < 0 || (size_t)st->st_size > max)
        return err_set(e, ERR_NO, "%s: expected a regular file (%s) of at most %zu bytes", path, what, max);
    if (st->st_mode & refused)
        return err_set(e, ERR_NO, "%s: other users can %s this %s (mode %04o): chmod %s it", path,
                       st->st_mode & refused & read ? "read or change" : "change", what, (unsigned)st->st_mode & 07777,
                       access == FILE_SECRET ? "600" : "go-w");
    if (access == FILE_SECRET && !is_credential(path) && st->st_uid != geteuid() && st->st_uid)
        return err_set(e, ERR_NO, "%s: this %s belongs to another user (uid %u): chown it to uid %u or root", path,
                       what, (unsigned)st->st_uid, (unsigned)geteuid());
    return 0;
}

int file_load(struct err *e, uint8_t **out, size_t *n, const char *path, size_t max, const char *what,
              enum file_access access)
{
    struct stat st;
    uint8_t *p = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not block */
    if (fd < 0 || fstat(fd, &st)) {
        err_set(e, ERR_NO, "%s: %m", path);
        if (fd >= 0)
            close(fd);
        return e->code;
    }
    size_t size = (size_t)st.st_size;
    int rc = check(e, &st, path, max, what, access);
    if (!rc && !(p = malloc(size + 1)))
        rc = err_nomem(e, what, size);
    if (!rc && !file_read_at(fd, p, size, 0))
        rc = err_set(e, ERR_NO, "%s: the %s cannot be read", path, what);
    close(fd);
    if (rc) {
        file_forget(p, p ? size : 0);
        return rc;
    }
    p[size] = 0;
    *out = p;
    *n = size;
    return 0;
}

void file_forget(uint8_t *p, size_t n)
{
    if (p)
        explicit_bzero(p, n);
    free(p);
}
