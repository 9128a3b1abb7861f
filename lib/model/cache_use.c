/*
 * The record in a lock file: which state of the packed file was verified since the host was started. Verification reads
 * the whole file, which costs nothing when it has to be read from the disk anyway, and is not repeated for bytes that
 * the page cache already has: a write to the file changes its times. A record that is torn or of another state
 * means that the file is verified again.
 */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "model/model_impl.h"

struct record {
    char magic[8];
    char boot[40]; /* of the kernel: another one after each start of the host */
    uint64_t dev, ino, size;
    int64_t mtime_s, mtime_ns, ctime_s, ctime_ns;
    uint64_t sum; /* XXH3-64 of all above */
};

/* False: this host has no boot id, so nothing is recorded. */
static bool record_make(struct record *r, const struct stat *st)
{
    *r = (struct record){.magic = "PHPUSE1",
                         .dev = (uint64_t)st->st_dev,
                         .ino = (uint64_t)st->st_ino,
                         .size = (uint64_t)st->st_size,
                         .mtime_s = st->st_mtim.tv_sec,
                         .mtime_ns = st->st_mtim.tv_nsec,
                         .ctime_s = st->st_ctim.tv_sec,
                         .ctime_ns = st->st_ctim.tv_nsec};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && read(fd, r->boot, sizeof r->boot - 1) >= 36;
    if (fd >= 0)
        close(fd);
    r->sum = XXH3_64bits(r, offsetof(struct record, sum));
    return ok;
}

bool cache_use_fits(int dir, const char *lock, const struct stat *pack)
{
    struct record have, want;
    struct stat st;
    struct err none;
    int fd = openat(dir, lock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    bool fits = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && cache_trusted(&none, &st, lock) &&
                record_make(&want, pack) && file_read_at(fd, &have, sizeof have, 0) &&
                memcmp(&have, &want, sizeof have) == 0;
    if (fd >= 0)
        close(fd);
    return fits;
}

/* If it cannot be written, the file is verified again next time. */
void cache_use_write(int lock_fd, const struct stat *pack)
{
    struct record r;
    if (record_make(&r, pack))
        (void)!pwrite(lock_fd, &r, sizeof r, 0);
}

void cache_use_touch(int dir, const char *lock)
{
    (void)utimensat(dir, lock, NULL, AT_SYMLINK_NOFOLLOW); /* without it the file only looks older than it is */
}
