/* The process_ families of every exporter, and the whole page. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "api/metrics_impl.h"

/* Reads a file of /proc; NULL: unreadable or empty. */
static const char *read_text(char *text, size_t cap, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0;
    ssize_t k = 1;
    if (fd < 0)
        return NULL;
    while (n < cap - 1 && (k = read(fd, text + n, cap - 1 - n)) > 0)
        n += (size_t)k;
    close(fd);
    text[n] = 0;
    return n ? text : NULL;
}

/* Computed once: the result depends on two clocks that drift apart. */
double process_start_s(void)
{
    char text[1024];
    const char *s = read_text(text, sizeof text, "/proc/self/stat");
    struct timespec now, up;
    s = s ? strrchr(s, ')') : NULL; /* the process name before it may contain anything */
    for (int i = 2; s && i < 22; i++)
        s = strchr(s + 1, ' ');
    if (!s || clock_gettime(CLOCK_REALTIME, &now) || clock_gettime(CLOCK_BOOTTIME, &up))
        return 0;
    double began = (double)strtoull(s, NULL, 10) / (double)sysconf(_SC_CLK_TCK);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9 - (double)up.tv_sec - (double)up.tv_nsec / 1e9 + began;
}

static bool memory(uint64_t *all, uint64_t *resident)
{
    char text[256], *end;
    const char *s = read_text(text, sizeof text, "/proc/self/statm");
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (!s)
        return false;
    *all = strtoull(s, &end, 10) * page;
    *resident = strtoull(end, NULL, 10) * page;
    return true;
}

static bool descriptors(uint64_t *out)
{
    DIR *d = opendir("/proc/self/fd");
    uint64_t n = 0;
    if (!d)
        return false;
    for (const struct dirent *x; (x = readdir(d));)
        n += x->d_name[0] != '.';
    closedir(d);
    *out = n - 1; /* not counting d's own */
    return true;
}

static void gauge(struct page *p, const char *name, const char *help, bool known, double v)
{
    if (!known)
        return;
    page_family(p, name, "gauge", help);
    page_number(p, NULL, 0, v);
}

static void metrics_process(struct page *p, const struct metrics *m)
{
    struct timespec cpu = {0};
    struct rlimit limit = {0};
    uint64_t all = 0, resident = 0, open_fds = 0;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    bool has_memory = memory(&all, &resident), has_limit = !getrlimit(RLIMIT_NOFILE, &limit);
    bool has_fds = descriptors(&open_fds);
    page_family(p, "process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.");
    page_number(p, NULL, 0, (double)cpu.tv_sec + (double)cpu.tv_nsec / 1e9);
    gauge(p, "process_virtual_memory_bytes", "Virtual memory size in bytes.", has_memory, (double)all);
    gauge(p, "process_resident_memory_bytes", "Resident memory size in bytes.", has_memory, (double)resident);
    gauge(p, "process_start_time_seconds", "Start time of the process since unix epoch in seconds.", m->start_s > 0,
          m->start_s);
    gauge(p, "process_open_fds", "Number of open file descriptors.", has_fds, (double)open_fds);
    gauge(p, "process_max_fds", "Maximum number of open file descriptors.", has_limit, (double)limit.rlim_cur);
}

int metrics_text(struct err *e, char **out, size_t *n, const struct metrics *m, const struct metrics_now *now,
                 const struct stats_poller *w)
{
    struct page p = {.model = m->model};
    metrics_vllm(&p, m, now, w);
    metrics_stages(&p, m);
    metrics_http_rows(&p, m, now);
    metrics_sched(&p, w);
    metrics_store(&p, w);
    metrics_keys(&p, now->keys);
    metrics_process(&p, m);
    return str_take(e, out, n, &p.out, "metrics");
}
