/* What a process cannot do after sandbox_enter, and what it still can. Each case runs in a child, since there is no way
 * back. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "proc/sandbox.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_OFF true
#else
#define IS_OFF false
#endif

static char dir[64], kept[96], model[96], other[96];

static void make(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs("x", f);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state)
{
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/sandbox_test.XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(kept, sizeof kept, "%s/kept", dir);
    snprintf(model, sizeof model, "%s/model", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    if (mkdir(kept, 0700))
        return -1;
    make(model);
    make(other);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    char cmd[128];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", dir);
    return system(cmd);
}

/* Runs fn in a child within a sandbox that keeps `model` and the directory `kept`; fn returns 0 or the line that
 * failed. */
static void in_sandbox(int (*fn)(void))
{
    int status;
    if (IS_OFF)
        skip();
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct err e = {0};
        struct sandbox s;
        char url[128];
        snprintf(url, sizeof url, "ipc://%s/socket", kept);
        unsetenv("PHASEPIPE_SANDBOX");
        sandbox_begin(&s);
        sandbox_read(&s, model);
        sandbox_read(&s, NULL);
        sandbox_socket(&s, url);
        sandbox_socket(&s, "tcp://127.0.0.1:1");
        sandbox_socket(&s, "127.0.0.1:1");
        sandbox_socket(&s, NULL);
        _exit(sandbox_enter(&e, &s) ? 255 : fn());
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0); /* else: the line of the check that failed, modulo 256 */
}

#define CHECK(what)                                                                                                    \
    if (!(what))                                                                                                       \
    return __LINE__ % 255 ? __LINE__ % 255 : 1
#define REFUSED(call, why)                                                                                             \
    errno = 0;                                                                                                         \
    CHECK((long)(call) == -1 && errno == (why))

static bool has_landlock(void)
{
    return access("/sys/kernel/security/lsm", F_OK) != 0 || system("grep -q landlock /sys/kernel/security/lsm") == 0;
}

static int files(void)
{
    char path[128];
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    CHECK(open(model, O_RDONLY) >= 0);
    CHECK(open("/etc/passwd", O_RDONLY) >= 0);
    CHECK(open("/proc/self/status", O_RDONLY) >= 0);
    CHECK(open("/dev/null", O_RDWR) >= 0);
    REFUSED(open(model, O_RDWR), EACCES);
    REFUSED(open(other, O_RDONLY), EACCES);
    REFUSED(open(dir, O_RDONLY | O_DIRECTORY), EACCES);
    REFUSED(unlink(other), EACCES);
    snprintf(path, sizeof path, "%s/new", dir);
    REFUSED(open(path, O_WRONLY | O_CREAT, 0600), EACCES);
    snprintf(path, sizeof path, "%s/new", kept);
    CHECK(open(path, O_RDWR | O_CREAT | O_TRUNC, 0600) >= 0);
    CHECK(unlink(path) == 0);
    REFUSED(mkdir(path, 0700), EACCES);
    REFUSED(symlink("/etc", path), EACCES);
    snprintf(a.sun_path, sizeof a.sun_path, "%s/s", kept);
    CHECK(bind(socket(AF_UNIX, SOCK_STREAM, 0), (const struct sockaddr *)(const void *)&a, sizeof a) == 0);
    return 0;
}

static int processes(void)
{
    char *argv[] = {(char[]){"true"}, NULL};
    REFUSED(execv("/bin/true", argv), EPERM);
    REFUSED(fork(), EPERM);
    REFUSED(ptrace(PTRACE_ATTACH, getppid(), NULL, NULL), EPERM);
    REFUSED(setuid(getuid()), EPERM);
    CHECK(prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1);
    return 0;
}

static void *thread(void *arg)
{
    *(int *)arg = open(other, O_RDONLY) < 0 && errno == EACCES && fork() < 0;
    return NULL;
}

static int memory_sockets_threads(void)
{
    pthread_t t;
    int held = 0;
    void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    REFUSED(mprotect(p, 4096, PROT_READ | PROT_EXEC), EPERM);
    REFUSED(mmap(NULL, 4096, PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), EPERM);
    CHECK(mprotect(p, 4096, PROT_READ) == 0);
    CHECK(socket(AF_INET, SOCK_STREAM, 0) >= 0);
    CHECK(socket(AF_INET6, SOCK_STREAM, 0) >= 0);
    REFUSED(socket(AF_PACKET, SOCK_RAW, 0), EPERM);
    REFUSED(socket(AF_VSOCK, SOCK_STREAM, 0), EPERM);
    CHECK(pthread_create(&t, NULL, thread, &held) == 0);
    CHECK(pthread_join(t, NULL) == 0);
    CHECK(held);
    return 0;
}

static void test_only_named_files_can_be_opened(void **state)
{
    (void)state;
    if (!has_landlock())
        skip();
    in_sandbox(files);
}

static void test_no_new_program_process_or_privilege(void **state)
{
    (void)state;
    in_sandbox(processes);
}

static void test_no_executable_memory_no_other_sockets_but_threads(void **state)
{
    (void)state;
    in_sandbox(memory_sockets_threads);
}

/* The variable turns all of it off. */
static void test_it_can_be_turned_off(void **state)
{
    (void)state;
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) {
        struct err e = {0};
        struct sandbox s;
        setenv("PHASEPIPE_SANDBOX", "0", 1);
        sandbox_begin(&s);
        _exit(sandbox_enter(&e, &s) || open(other, O_RDONLY) < 0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_named_files_can_be_opened),
        cmocka_unit_test(test_no_new_program_process_or_privilege),
        cmocka_unit_test(test_no_executable_memory_no_other_sockets_but_threads),
        cmocka_unit_test(test_it_can_be_turned_off),
    };
    return cmocka_run_group_tests_name("sandbox", tests, setup, teardown);
}
