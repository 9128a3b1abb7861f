/* A file tier for tests, with blocks of small_kind, on a disk that can be stalled. Include it in one file of a program:
 * it replaces functions of the C library. */
#ifndef TIER_BUILD_H
#define TIER_BUILD_H

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "kv/tier.h"

#include "unit/kv_build.h"

#define DATA 1280 /* bytes of one tile of small_kind: 32 tokens × 16 × 2, and 2 × 32 scales */
#define RECORD (4096 + 4096)
#define ROOM(n) (4096 + (n)*RECORD)

static char path[64];

/* Replaces functions of the C library, so that the disk can be stalled. */
static atomic_bool stalled;

static inline void wait_while_stalled(void)
{
    while (atomic_load(&stalled))
        usleep(500);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    wait_while_stalled();
    return syscall(SYS_pread64, fd, p, n, at);
}

/* What pread is with _FORTIFY_SOURCE. */
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room);
ssize_t __pread_chk(int fd, void *p, size_t n, off_t at, size_t room)
{
    return n <= room ? pread(fd, p, n, at) : -1;
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
    wait_while_stalled();
    return syscall(SYS_pwritev, fd, v, n, at, 0);
}

static inline int setup(void **state)
{
    (void)state;
    atomic_store(&stalled, false);
    snprintf(path, sizeof path, "/tmp/tier_test.%d", (int)getpid());
    unlink(path);
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static inline struct kv_tier *tier(uint64_t bytes)
{
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_tier *t;
    OK(kv_tier_open(&e, &t, path, bytes, &k));
    return t;
}

static inline struct kv_tier_stat stat_of(const struct kv_tier *t)
{
    struct kv_tier_stat s;
    kv_tier_stat(t, &s);
    return s;
}

static inline void poke(long at, uint8_t xor)
{
    uint8_t c;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= xor;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

#endif
