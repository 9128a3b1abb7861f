#include "proc/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/landlock.h>
#include <sched.h>
#include <seccomp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef LANDLOCK_ACCESS_FS_TRUNCATE /* Linux 6.2, version 3 of the interface */
#define LANDLOCK_ACCESS_FS_TRUNCATE (1ULL << 14)
#endif

/* Rights of version 1 of the interface: all of them are refused unless a rule grants them. */
#define FS_ALL                                                                                                         \
    (LANDLOCK_ACCESS_FS_EXECUTE | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE |                       \
     LANDLOCK_ACCESS_FS_READ_DIR | LANDLOCK_ACCESS_FS_REMOVE_DIR | LANDLOCK_ACCESS_FS_REMOVE_FILE |                    \
     LANDLOCK_ACCESS_FS_MAKE_CHAR | LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |                        \
     LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO | LANDLOCK_ACCESS_FS_MAKE_BLOCK |                     \
     LANDLOCK_ACCESS_FS_MAKE_SYM)
#define FS_READ (LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR)
#define FS_WRITE                                                                                                       \
    (FS_READ | LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_REG |          \
     LANDLOCK_ACCESS_FS_MAKE_SOCK)
#define FS_OF_FILE (LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_TRUNCATE)

static bool is_off(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return true;
#else
    const char *v = getenv("PHASEPIPE_SANDBOX");
    return v && !strcmp(v, "0");
#endif
}

/* Version of the interface; <= 0: the kernel has none. */
static long landlock_version(void)
{
    return syscall(SYS_landlock_create_ruleset, NULL, (size_t)0, LANDLOCK_CREATE_RULESET_VERSION);
}

static void allow(const struct sandbox *s, const char *path, uint64_t rights)
{
    struct landlock_path_beneath_attr rule = {.allowed_access = rights};
    struct stat st;
    if (s->fd < 0 || !path)
        return;
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0)
        return;
    if (!fstat(rule.parent_fd, &st) && !S_ISDIR(st.st_mode))
        rule.allowed_access &= FS_OF_FILE;
    (void)syscall(SYS_landlock_add_rule, s->fd, LANDLOCK_RULE_PATH_BENEATH, &rule, 0u); /* fails closed */
    close(rule.parent_fd);
}

/* The directory of a file, and that of the file which a symbolic link leads to. */
static void allow_beside(const struct sandbox *s, const char *path, uint64_t rights)
{
    char text[PATH_MAX], *slash;
    if (s->fd < 0 || !path || strlen(path) >= sizeof text)
        return;
    for (int i = 0; i < 2; i++) {
        if (i == 0)
            snprintf(text, sizeof text, "%s", path);
        else if (!realpath(path, text))
            return;
        slash = strrchr(text, '/');
        if (slash)
            slash[slash == text] = 0;
        allow(s, slash ? text : ".", rights);
    }
}

void sandbox_begin(struct sandbox *s)
{
    static const char *const read[] = {"/usr", "/lib", "/lib64", "/etc", "/proc", "/sys"};
    static const char *const devices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/urandom", "/dev/tty"};
    long version = is_off() ? 0 : landlock_version();
    uint64_t truncate = version >= 3 ? LANDLOCK_ACCESS_FS_TRUNCATE : 0;
    struct landlock_ruleset_attr a = {.handled_access_fs = FS_ALL | truncate};
    s->fd = version > 0 ? (int)syscall(SYS_landlock_create_ruleset, &a, sizeof a.handled_access_fs, 0u) : -1;
    s->write = FS_WRITE | truncate;
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        allow(s, read[i], FS_READ);
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        allow(s, devices[i], s->write);
}

void sandbox_read(struct sandbox *s, const char *path)
{
    allow(s, path, FS_READ);
}

void sandbox_read_beside(struct sandbox *s, const char *path)
{
    allow_beside(s, path, FS_READ);
}

void sandbox_write(struct sandbox *s, const char *dir)
{
    allow(s, dir, s->write);
}

void sandbox_write_beside(struct sandbox *s, const char *path)
{
    allow_beside(s, path, s->write);
}

void sandbox_socket(struct sandbox *s, const char *address)
{
    static const char *const schemes[] = {"ipc://", "unix:"};
    for (size_t i = 0; address && i < sizeof schemes / sizeof *schemes; i++)
        if (!strncmp(address, schemes[i], strlen(schemes[i])))
            sandbox_write_beside(s, address + strlen(schemes[i]));
}

/* ---- system calls ---- */

static const int refused[] = {
    /* new programs and processes */
    SCMP_SYS(execve), SCMP_SYS(execveat), SCMP_SYS(fork), SCMP_SYS(vfork),
    /* other processes */
    SCMP_SYS(ptrace), SCMP_SYS(process_vm_readv), SCMP_SYS(process_vm_writev), SCMP_SYS(process_madvise),
    SCMP_SYS(pidfd_getfd), SCMP_SYS(kcmp),
    /* file systems and namespaces */
    SCMP_SYS(mount), SCMP_SYS(umount2), SCMP_SYS(pivot_root), SCMP_SYS(chroot), SCMP_SYS(setns), SCMP_SYS(unshare),
    SCMP_SYS(move_mount), SCMP_SYS(open_tree), SCMP_SYS(fsopen), SCMP_SYS(fsmount), SCMP_SYS(fsconfig),
    SCMP_SYS(fspick), SCMP_SYS(mount_setattr), SCMP_SYS(mknod), SCMP_SYS(mknodat), SCMP_SYS(name_to_handle_at),
    SCMP_SYS(open_by_handle_at), SCMP_SYS(quotactl), SCMP_SYS(swapon), SCMP_SYS(swapoff),
    /* the kernel */
    SCMP_SYS(init_module), SCMP_SYS(finit_module), SCMP_SYS(delete_module), SCMP_SYS(kexec_load),
    SCMP_SYS(kexec_file_load), SCMP_SYS(reboot), SCMP_SYS(acct), SCMP_SYS(syslog), SCMP_SYS(bpf),
    SCMP_SYS(perf_event_open), SCMP_SYS(userfaultfd), SCMP_SYS(io_uring_setup), SCMP_SYS(io_uring_enter),
    SCMP_SYS(io_uring_register), SCMP_SYS(keyctl), SCMP_SYS(add_key), SCMP_SYS(request_key), SCMP_SYS(iopl),
    SCMP_SYS(ioperm), SCMP_SYS(modify_ldt), SCMP_SYS(personality), SCMP_SYS(lookup_dcookie), SCMP_SYS(vhangup),
    /* users, clocks, the host's name */
    SCMP_SYS(setuid), SCMP_SYS(setgid), SCMP_SYS(setreuid), SCMP_SYS(setregid), SCMP_SYS(setresuid),
    SCMP_SYS(setresgid), SCMP_SYS(setgroups), SCMP_SYS(setfsuid), SCMP_SYS(setfsgid), SCMP_SYS(capset),
    SCMP_SYS(settimeofday), SCMP_SYS(clock_settime), SCMP_SYS(clock_adjtime), SCMP_SYS(adjtimex), SCMP_SYS(sethostname),
    SCMP_SYS(setdomainname)};

/* Calls that are refused for some arguments. clone3 passes its flags in memory, where a filter cannot see them; glibc
 * then uses clone. */
static int add_conditions(scmp_filter_ctx f)
{
    const uint32_t no = SCMP_ACT_ERRNO(EPERM);
    const uint64_t wx = PROT_WRITE | PROT_EXEC;
    static const int families[] = {AF_UNIX, AF_INET, AF_INET6, AF_NETLINK}; /* ascending */
    int rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
    rc = rc ? rc : seccomp_rule_add(f, no, SCMP_SYS(clone), 1, SCMP_A0(SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));
    rc = rc ? rc : seccomp_rule_add(f, no, SCMP_SYS(mmap), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, wx, wx));
    rc = rc ? rc : seccomp_rule_add(f, no, SCMP_SYS(mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
    rc = rc ? rc
            : seccomp_rule_add(f, no, SCMP_SYS(pkey_mprotect), 1, SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, PROT_EXEC));
    int next = 0;
    for (size_t i = 0; i < sizeof families / sizeof *families && !rc; next = families[i++] + 1)
        for (int family = next; family < families[i] && !rc; family++)
            rc = seccomp_rule_add(f, no, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_EQ, (scmp_datum_t)family, 0));
    return rc ? rc : seccomp_rule_add(f, no, SCMP_SYS(socket), 1, SCMP_A0(SCMP_CMP_GE, (scmp_datum_t)next, 0));
}

static int filter_calls(struct err *e)
{
    scmp_filter_ctx f = seccomp_init(SCMP_ACT_ALLOW);
    if (!f)
        return err_nomem(e, "a filter of system calls", 4096);
    int rc = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused && !rc; i++)
        rc = seccomp_rule_add(f, SCMP_ACT_ERRNO(EPERM), refused[i], 0);
    rc = rc ? rc : add_conditions(f);
    rc = rc ? rc : seccomp_load(f);
    seccomp_release(f);
    if (!rc || rc == -ENOSYS || rc == -EINVAL || rc == -EOPNOTSUPP) /* the kernel has no filters */
        return 0;
    return err_set(e, ERR_SYS, "the filter of system calls: %s; PHASEPIPE_SANDBOX=0 runs without it", strerror(-rc));
}

int sandbox_enter(struct err *e, struct sandbox *s)
{
    int rc = 0;
    if (is_off())
        return 0;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        return err_sys(e, "PR_SET_NO_NEW_PRIVS");
    if (s->fd >= 0) {
        if (syscall(SYS_landlock_restrict_self, s->fd, 0u))
            rc = err_sys(e, "the restriction of files by Landlock (PHASEPIPE_SANDBOX=0 runs without it)");
        close(s->fd);
        s->fd = -1;
    }
    return rc ? rc : filter_calls(e);
}
