/* Host name, time slices of threads, and signals. */
#include "proc/proc.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The kernel's first version of sched_setattr(2)'s argument; the C library does not define it. */
struct slice_attr {
    uint32_t size, policy;
    uint64_t flags;
    int32_t nice;
    uint32_t priority;
    uint64_t runtime, deadline, period; /* runtime: time slice of ordinary threads, ns; 0: the default */
};

#define SHORT_SLICE_NS 100000 /* the smallest that the kernel accepts */

void proc_wake_soon(bool on)
{
    struct slice_attr a = {.size = sizeof a};
    if (syscall(SYS_sched_getattr, 0, &a, sizeof a, 0) || (a.policy != SCHED_OTHER && a.policy != SCHED_BATCH))
        return;
    a.runtime = on ? SHORT_SLICE_NS : 0;
    syscall(SYS_sched_setattr, 0, &a, 0);
}

static char host_name[256];

static void read_host(void)
{
    if (gethostname(host_name, sizeof host_name - 1) || !host_name[0])
        memcpy(host_name, "localhost", sizeof "localhost");
}

const char *proc_host(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_host);
    return host_name;
}

static volatile sig_atomic_t term_count;

/* The second signal has its default action, so that a program that hangs while it drains can still be ended. */
static void on_term(int sig)
{
    int saved = errno;
    if (term_count < 2)
        term_count++;
    if (term_count == 2) {
        signal(sig, SIG_DFL);
        raise(sig);
    }
    errno = saved;
}

void proc_write_errors(void)
{
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

void proc_text_output(void)
{
    signal(SIGPIPE, SIG_DFL);
}

uint64_t proc_descriptors(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r))
        return UINT64_MAX;
    if (r.rlim_cur < r.rlim_max) {
        rlim_t soft = r.rlim_cur;
        r.rlim_cur = r.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &r))
            r.rlim_cur = soft;
    }
    return r.rlim_cur == RLIM_INFINITY ? UINT64_MAX : r.rlim_cur;
}

int proc_signals(struct err *e)
{
    struct sigaction term = {.sa_handler = on_term};
    (void)proc_descriptors();
    proc_trim_open();
    sigemptyset(&term.sa_mask);
    proc_write_errors();
    /* Without SA_RESTART: a blocking read returns, so that the main loop sees the count. */
    if (sigaction(SIGTERM, &term, NULL) || sigaction(SIGINT, &term, NULL))
        return err_sys(e, "installing signal handlers");
    return 0;
}

int proc_term_count(void)
{
    return term_count;
}
