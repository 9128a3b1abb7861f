/*
 * Limits of the control groups of this process. A limit may be set at any level, so every level up to the root is read
 * and the smallest one counts. In a container the path of /proc/self/cgroup may not exist below the mount, but its
 * ancestors do, at least the mount itself.
 */
#include "proc/proc.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LEVELS_MAX 64

static bool read_file(char *out, size_t n, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    size_t at = 0;
    ssize_t r = 0;
    while (at < n - 1 && (r = read(fd, out + at, n - 1 - at)) > 0)
        at += (size_t)r;
    close(fd);
    out[at] = 0;
    return r >= 0;
}

static bool read_in(char *out, size_t n, const char *dir, const char *file)
{
    char path[PATH_MAX];
    int len = snprintf(path, sizeof path, "%s/%s", dir, file);
    return len > 0 && (size_t)len < sizeof path && read_file(out, n, path);
}

/* Thousandths of a CPU that the group at `dir` allows; UINT64_MAX: no limit. */
static uint64_t cpu_of(const char *dir)
{
    char a[128], b[128];
    int64_t quota, period;
    if (read_in(a, sizeof a, dir, "cpu.max")) {
        if (sscanf(a, "%" SCNd64 " %" SCNd64, &quota, &period) != 2)
            return UINT64_MAX; /* "max 100000" */
    } else if (read_in(a, sizeof a, dir, "cpu.cfs_quota_us") && read_in(b, sizeof b, dir, "cpu.cfs_period_us")) {
        if (sscanf(a, "%" SCNd64, &quota) != 1 || sscanf(b, "%" SCNd64, &period) != 1)
            return UINT64_MAX;
    } else {
        return UINT64_MAX;
    }
    if (quota <= 0 || period <= 0 || quota > INT64_MAX / 1000)
        return UINT64_MAX;
    return (uint64_t)(quota * 1000 / period);
}

static uint64_t memory_of(const char *dir)
{
    char a[128];
    uint64_t v;
    if (!read_in(a, sizeof a, dir, "memory.max") && !read_in(a, sizeof a, dir, "memory.limit_in_bytes"))
        return UINT64_MAX;
    return sscanf(a, "%" SCNu64, &v) == 1 ? v : UINT64_MAX;
}

/* Smallest value of `of` over the groups from `path` below `mount` up to the mount itself. */
static uint64_t walk_up(const char *mount, const char *path, uint64_t (*of)(const char *dir))
{
    char dir[PATH_MAX];
    size_t n_mount = strlen(mount);
    int n = snprintf(dir, sizeof dir, "%s%s", mount, path);
    if (n < 0 || (size_t)n >= sizeof dir)
        return of(mount);
    uint64_t least = UINT64_MAX;
    for (int level = 0; level < LEVELS_MAX; level++) {
        uint64_t v = of(dir);
        if (v < least)
            least = v;
        char *slash = strrchr(dir + n_mount, '/');
        if (!slash)
            break;
        *slash = 0;
    }
    return least;
}

static bool has_word(const char *list, const char *word)
{
    size_t n = strlen(word);
    for (const char *p = list; *p;) {
        size_t len = strcspn(p, ",");
        if (len == n && !memcmp(p, word, n))
            return true;
        p += len + (p[len] == ',');
    }
    return false;
}

/* Smallest value of `of` over this process's groups that have the controller; UINT64_MAX: no limit. */
static uint64_t cgroup_least(const char *root, const char *controller, uint64_t (*of)(const char *dir))
{
    char path[PATH_MAX], *text = malloc(65536);
    uint64_t least = UINT64_MAX;
    if (!text)
        return least;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (!read_file(text, 65536, path))
        text[0] = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *names++ = 0;
        *group++ = 0;
        /* "0::PATH" is version 2, mounted at the top or, together with version 1, at unified. Version 1 has a mount for
         * each set of controllers, named after the set or one of its members. */
        const char *mounts[] = {*names ? names : "", *names ? controller : "unified"};
        if (*names && !has_word(names, controller))
            continue;
        for (int i = 0; i < 2; i++) {
            snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s", root, *mounts[i] ? "/" : "", mounts[i]);
            uint64_t v = walk_up(path, strcmp(group, "/") ? group : "", of);
            if (v < least)
                least = v;
        }
    }
    free(text);
    return least;
}

int proc_quota(const char *root)
{
    uint64_t milli = cgroup_least(root, "cpu", cpu_of);
    if (milli / 1000 >= INT_MAX)
        return INT_MAX;
    return milli < 1000 ? 1 : (int)(milli / 1000);
}

static uint64_t physical(const char *root)
{
    char path[PATH_MAX], text[512];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    const char *at = read_file(text, sizeof text, path) ? strstr(text, "MemTotal:") : NULL;
    if (at && sscanf(at, "MemTotal: %" SCNu64, &kib) == 1 && kib <= UINT64_MAX / 1024)
        return kib * 1024;
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    return pages > 0 && size > 0 ? (uint64_t)pages * (uint64_t)size : UINT64_MAX;
}

uint64_t proc_memory(const char *root)
{
    uint64_t all = physical(root), limit = cgroup_least(root, "memory", memory_of);
    return limit < all ? limit : all;
}

uint64_t proc_memory_part(uint64_t parts, uint64_t least, uint64_t most)
{
    uint64_t n = proc_memory("") / parts;
    return n < least ? least : n > most ? most : n;
}

/* The mask grows until the kernel takes it: machines may have more CPUs than a cpu_set_t holds. */
static int affinity(void)
{
    for (int n = CPU_SETSIZE; n <= 1 << 20; n *= 4) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set)
            break;
        size_t bytes = CPU_ALLOC_SIZE(n);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 1;
}

int proc_cpus(const char *root)
{
    int n = affinity(), quota = proc_quota(root);
    return quota < n ? quota : n;
}
