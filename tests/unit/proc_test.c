/* Control group trees as described by the kernel's cgroup-v1 and cgroup-v2 documents, in a directory that stands for
 * /. */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/time.h"
#include "proc/proc.h"

static char root[64];

static int setup(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/proc_test.XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", root);
    return system(cmd);
}

static void put(const char *path, const char *text)
{
    char full[PATH_MAX];
    snprintf(full, sizeof full, "%s/%s", root, path);
    for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(full, 0777) && errno != EEXIST)
            fail_msg("mkdir %s", full);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void test_without_limits_the_machine_counts(void **state)
{
    (void)state;
    assert_int_equal(proc_quota(root), INT_MAX);
    put("proc/meminfo", "MemTotal:        1000 kB\nMemFree: 1 kB\n");
    assert_int_equal(proc_memory(root), 1024000);
    put("proc/self/cgroup", "0::/\n");
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(proc_quota(root), INT_MAX);
    assert_true(proc_cpus(root) >= 1);
}

/* The limit is set on a parent group; half CPUs are rounded down, but never below one. */
static void test_v2_limits_of_parents_count(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal: 8388608 kB\n");
    put("proc/self/cgroup", "0::/a.slice/b.scope\n");
    put("sys/fs/cgroup/a.slice/cpu.max", "350000 100000\n");
    put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a.slice/memory.max", "1073741824\n");
    put("sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n");
    assert_int_equal(proc_quota(root), 3);
    assert_true(proc_memory(root) == 1073741824);
    put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "50000 100000\n");
    put("sys/fs/cgroup/a.slice/b.scope/memory.max", "4096\n");
    assert_int_equal(proc_quota(root), 1);
    assert_int_equal(proc_cpus(root), 1);
    assert_int_equal(proc_memory(root), 4096);
    put("sys/fs/cgroup/a.slice/b.scope/cpu.max", "800000 100000\n");
    assert_int_equal(proc_quota(root), 3);
}

static void test_v1_limits_count(void **state)
{
    (void)state;
    put("proc/meminfo", "MemTotal: 8388608 kB\n");
    put("proc/self/cgroup", "12:cpuset:/\n4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/docker/x\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us", "240000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2147483648\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(proc_quota(root), 2);
    assert_true(proc_memory(root) == 2147483648);
}

/* In a container the path of the host's group does not exist below the mount; the mount itself is the group. */
static void test_v1_mount_counts_in_a_container(void **state)
{
    (void)state;
    put("proc/self/cgroup", "3:cpu,cpuacct:/docker/0123\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "400000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(proc_quota(root), 4);
}

static void test_hybrid_limits_count(void **state)
{
    (void)state;
    put("proc/self/cgroup", "3:cpu,cpuacct:/\n0::/u\n");
    put("sys/fs/cgroup/unified/u/cpu.max", "200000 100000\n");
    assert_int_equal(proc_quota(root), 2);
}

static void test_malformed_limits_are_ignored(void **state)
{
    (void)state;
    static const char *const text[] = {"", "max", "0 0\n", "-5 100000", "100000 -1", "x y", "99999999999999999999 1"};
    put("proc/self/cgroup", "junk\n\n:::\n0::\n0::/g\n");
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        put("sys/fs/cgroup/g/cpu.max", text[i]);
        assert_int_equal(proc_quota(root), INT_MAX);
    }
}

static void test_clock_and_host_name_are_those_of_the_system(void **state)
{
    (void)state;
    uint64_t a = time_now_ns(), b = time_now_ns();
    assert_true(b >= a && a > 0);
    char name[256] = "";
    assert_int_equal(gethostname(name, sizeof name - 1), 0);
    assert_string_equal(proc_host(), name);
}

/* The first signal is counted, the second one ends the process by its default action. */
static void test_the_second_signal_ends_the_process(void **state)
{
    (void)state;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct err e;
        if (proc_signals(&e) || proc_term_count() != 0)
            _exit(10);
        raise(SIGPIPE);
        raise(SIGTERM);
        if (proc_term_count() != 1)
            _exit(11);
        raise(SIGTERM);
        _exit(12);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(WTERMSIG(status), SIGTERM);
}

/* The argument of sched_getattr(2). */
struct attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period;
};

static uint64_t slice(void)
{
    struct attr a = {.size = sizeof a};
    assert_int_equal(syscall(SYS_sched_getattr, 0, &a, sizeof a, 0), 0);
    assert_int_equal(a.policy, 0);
    assert_int_equal(a.nice, getpriority(PRIO_PROCESS, 0));
    return a.runtime;
}

static void *slice_of_thread(void *arg)
{
    *(uint64_t *)arg = slice();
    return NULL;
}

/* Time slices of ordinary threads can be read and set since Linux 6.12. */
static void test_wake_soon_sets_the_slice(void **state)
{
    (void)state;
    struct utsname u;
    int major = 0, minor = 0;
    assert_int_equal(uname(&u), 0);
    assert_int_equal(sscanf(u.release, "%d.%d", &major, &minor), 2);
    if (major < 6 || (major == 6 && minor < 12))
        skip();
    uint64_t before = slice(), made = 0;
    pthread_t t;
    proc_wake_soon(true);
    assert_true(slice() < before);
    assert_int_equal(pthread_create(&t, NULL, slice_of_thread, &made), 0);
    pthread_join(t, NULL);
    assert_int_equal(made, slice());
    proc_wake_soon(false);
    assert_int_equal(slice(), before);
}

static void test_the_limit_of_descriptors_is_raised(void **state)
{
    struct rlimit was, now;
    struct err e;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    now = (struct rlimit){.rlim_cur = 30, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    uint64_t n = proc_descriptors();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_true(now.rlim_cur == was.rlim_max);
    assert_true(n == (now.rlim_cur == RLIM_INFINITY ? UINT64_MAX : now.rlim_cur));
    /* By what each service calls at its start, too. */
    now.rlim_cur = 30;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &now), 0);
    assert_int_equal(proc_signals(&e), 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &now), 0);
    assert_true(now.rlim_cur == was.rlim_max);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
}

static void test_a_part_of_the_memory_has_bounds(void **state)
{
    (void)state;
    uint64_t all = proc_memory("");
    assert_true(proc_memory_part(1, 0, UINT64_MAX) == all);
    assert_true(proc_memory_part(4, 0, UINT64_MAX) == all / 4);
    assert_true(proc_memory_part(4, all, UINT64_MAX) == all);
    assert_true(proc_memory_part(4, 0, 5) == 5);
}

/* Bytes of anonymous memory that are resident, by the kernel. */
static uint64_t anonymous(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %llu", &kib) == 1)
            break;
    assert_non_null(f);
    fclose(f);
    return kib << 10;
}

/* Freed blocks between some that stay: free() alone keeps them. */
static void test_freed_memory_is_given_back(void **state)
{
    (void)state;
    enum { N = 65536, SIZE = 1000 };
    static char *block[N];
    struct err e;
    assert_int_equal(proc_signals(&e), 0);
    proc_trim();
    uint64_t before = anonymous();
    for (int i = 0; i < N; i++)
        memset(block[i] = malloc(SIZE), 1, SIZE);
    for (int i = 0; i < N; i++)
        if (i % 4096 != 4095)
            free(block[i]);
    uint64_t kept = anonymous();
    assert_true(kept > before + N * SIZE / 2);
    usleep(1100000); /* it is examined once a second */
    proc_trim();
    assert_true(anonymous() < before + (8 << 20));
    for (int i = 4095; i < N; i += 4096)
        free(block[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_part_of_the_memory_has_bounds),
        cmocka_unit_test_setup_teardown(test_without_limits_the_machine_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v2_limits_of_parents_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1_limits_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_v1_mount_counts_in_a_container, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hybrid_limits_count, setup, teardown),
        cmocka_unit_test_setup_teardown(test_malformed_limits_are_ignored, setup, teardown),
        cmocka_unit_test(test_clock_and_host_name_are_those_of_the_system),
        cmocka_unit_test(test_the_second_signal_ends_the_process),
        cmocka_unit_test(test_wake_soon_sets_the_slice),
        cmocka_unit_test(test_the_limit_of_descriptors_is_raised),
        cmocka_unit_test(test_freed_memory_is_given_back),
    };
    return cmocka_run_group_tests_name("proc", tests, NULL, NULL);
}
