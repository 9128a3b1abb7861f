/* The file of cores: seats of workers, words of cores. */
#include "proc/cores.h"
#include "base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE 64
#define MAGIC 0x31736572u /* changes with the layout */
#define WORDS (CORES_CPU_MAX / 64)
#define CHECK_NS 100000000u /* a seat whose worker seems to compute is looked at no oftener, whether it lives */

/* A word of a core: thread id in the low half, seat above, and a mark that the owner has asked for it. */
#define WORD_SEAT 32
#define WORD_ASKED (UINT64_C(1) << 63)

struct seat {
    _Alignas(LINE) _Atomic uint64_t since; /* when it stopped to compute; 0: it computes */
    _Alignas(LINE) _Atomic uint32_t pid;   /* 0: the seat is free */
    uint64_t pid_space;
    uint64_t own[WORDS];
};

struct core {
    _Alignas(LINE) _Atomic uint64_t holder;
};

struct shared {
    _Atomic uint32_t magic;
    _Atomic uint32_t n_seat;      /* seats from here on were never used */
    _Atomic uint64_t seen[WORDS]; /* cores that had an owner since nobody was here */
    struct seat seat[CORES_WORKERS_MAX];
    struct core core[CORES_CPU_MAX];
};

struct cores {
    int fd;
    struct shared *s; /* NULL: nothing is shared */
    int seat;
    int *own, *other;
    int n_own, n_other;
    uint64_t rest_ns;
    uint64_t checked[CORES_WORKERS_MAX]; /* when a seat was last looked at */
};

static bool has(const uint64_t *set, int cpu)
{
    return set[cpu / 64] >> cpu % 64 & 1;
}

/* ---- locks: byte 0 for joining and leaving, byte 1 + i while the worker of seat i lives ---- */

static int lock(const struct cores *c, int cmd, short type, int byte, struct flock *l)
{
    *l = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int rc;
    do
        rc = fcntl(c->fd, cmd, l);
    while (rc && errno == EINTR);
    return rc;
}

static bool alive(const struct cores *c, int seat)
{
    struct flock l;
    return seat == c->seat || (lock(c, F_OFD_GETLK, F_WRLCK, 1 + seat, &l) == 0 && l.l_type != F_UNLCK);
}

/* Under the lock of byte 0. What the worker of a seat held is held by nobody. */
static void empty_seat(struct cores *c, int seat)
{
    for (int i = 0; i < CORES_CPU_MAX; i++) {
        uint64_t h = atomic_load(&c->s->core[i].holder);
        if (h && (int)((h & ~WORD_ASKED) >> WORD_SEAT) == seat)
            atomic_compare_exchange_strong(&c->s->core[i].holder, &h, 0);
    }
    atomic_store(&c->s->seat[seat].pid, 0);
}

/* Frees the seat of a worker that has died. Does not wait for the lock. */
static void bury(struct cores *c, int seat)
{
    struct flock l;
    if (lock(c, F_OFD_SETLK, F_WRLCK, 0, &l))
        return;
    if (atomic_load(&c->s->seat[seat].pid) && !alive(c, seat))
        empty_seat(c, seat);
    lock(c, F_OFD_SETLK, F_UNLCK, 0, &l);
}

/* ---- opening ---- */

static uint64_t pid_space(void)
{
    struct stat st;
    return stat("/proc/self/ns/pid", &st) ? 0 : st.st_ino;
}

static int map(struct err *e, struct cores *c, const char *path)
{
    struct stat st;
    if (fstat(c->fd, &st))
        return err_sys(e, "%s", path);
    if (st.st_size && st.st_size != (off_t)sizeof *c->s)
        return err_set(e, ERR_PROTO, "%s: %lld bytes, %zu are due: not a file of cores, or of another release", path,
                       (long long)st.st_size, sizeof *c->s);
    if (!st.st_size && posix_fallocate(c->fd, 0, sizeof *c->s))
        return err_sys(e, "%s", path);
    void *p = mmap(NULL, sizeof *c->s, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "%s", path);
    c->s = p;
    if (!st.st_size)
        atomic_store(&c->s->magic, MAGIC);
    return c->s->magic == MAGIC ? 0 : err_set(e, ERR_PROTO, "%s: a file of cores of another release", path);
}

/* Under the lock of byte 0. */
static int sit(struct err *e, struct cores *c, const char *path)
{
    struct shared *s = c->s;
    struct flock l;
    int n = 0, at = -1;
    for (int i = CORES_WORKERS_MAX - 1; i >= 0; i--) {
        if (atomic_load(&s->seat[i].pid) && !alive(c, i))
            empty_seat(c, i);
        n += atomic_load(&s->seat[i].pid) != 0;
        if (!atomic_load(&s->seat[i].pid))
            at = i;
    }
    if (at < 0)
        return err_set(e, ERR_NO, "%s: %d workers share their cores there, which is the most", path, n);
    if (lock(c, F_OFD_SETLK, F_WRLCK, 1 + at, &l))
        return err_sys(e, "%s", path);
    struct seat *seat = &s->seat[at];
    seat->pid_space = pid_space();
    memset(seat->own, 0, sizeof seat->own);
    for (int i = 0; i < c->n_own; i++)
        seat->own[c->own[i] / 64] |= UINT64_C(1) << c->own[i] % 64;
    for (int i = 0; i < WORDS; i++)
        atomic_store(&s->seen[i], (n ? atomic_load(&s->seen[i]) : 0) | seat->own[i]);
    atomic_store(&seat->since, time_now_ns());
    atomic_store(&seat->pid, (uint32_t)getpid());
    if ((uint32_t)at >= atomic_load(&s->n_seat))
        atomic_store(&s->n_seat, (uint32_t)at + 1);
    c->seat = at;
    return 0;
}

static int join(struct err *e, struct cores *c, const char *path)
{
    struct flock l;
    c->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (c->fd < 0 || lock(c, F_OFD_SETLKW, F_WRLCK, 0, &l))
        return err_sys(e, "%s", path);
    int rc = map(e, c, path);
    if (!rc)
        rc = sit(e, c, path);
    lock(c, F_OFD_SETLK, F_UNLCK, 0, &l);
    return rc;
}

/* CPUs this process may run on, as far as the file has words for them. */
static void may_use(uint64_t *set)
{
    size_t bytes = CPU_ALLOC_SIZE(CORES_CPU_MAX * 8);
    cpu_set_t *s = CPU_ALLOC(CORES_CPU_MAX * 8);
    if (s && sched_getaffinity(0, bytes, s) == 0)
        for (int i = 0; i < CORES_CPU_MAX; i++)
            if (CPU_ISSET_S(i, bytes, s))
                set[i / 64] |= UINT64_C(1) << i % 64;
    CPU_FREE(s);
}

static int set_of(struct err *e, uint64_t *set, const int *cpu, int n)
{
    for (int i = 0; i < n; i++) {
        if (cpu[i] < 0 || cpu[i] >= CORES_CPU_MAX)
            return err_set(e, ERR_USAGE, "core %d: 0 to %d are known", cpu[i], CORES_CPU_MAX - 1);
        set[cpu[i] / 64] |= UINT64_C(1) << cpu[i] % 64;
    }
    return 0;
}

int cores_open(struct err *e, struct cores **out, const struct cores_opts *o)
{
    uint64_t all[WORDS] = {0}, own[WORDS] = {0}, borrow[WORDS] = {0};
    may_use(all);
    int rc = set_of(e, own, o->cpu, o->n);
    if (!rc)
        rc = set_of(e, borrow, o->borrow, o->n_borrow);
    if (rc)
        return rc;
    struct cores *c = calloc(1, sizeof *c);
    if (c) {
        c->fd = -1;
        c->seat = -1;
        c->rest_ns = o->rest_ns ? o->rest_ns : CORES_REST_NS;
        c->own = calloc(CORES_CPU_MAX, sizeof *c->own);
        c->other = calloc(CORES_CPU_MAX, sizeof *c->other);
    }
    if (!c || !c->own || !c->other) {
        cores_close(c);
        return err_nomem(e, "cores", 2 * CORES_CPU_MAX * sizeof *c->own);
    }
    for (int i = 0; i < CORES_CPU_MAX; i++)
        if (has(o->n ? own : all, i))
            c->own[c->n_own++] = i;
        else if (o->path && has(o->n_borrow ? borrow : all, i))
            c->other[c->n_other++] = i;
    rc = o->path ? join(e, c, o->path) : 0;
    if (rc)
        cores_close(c);
    else
        *out = c;
    return rc;
}

void cores_close(struct cores *c)
{
    struct flock l;
    if (!c)
        return;
    if (c->seat >= 0 && lock(c, F_OFD_SETLKW, F_WRLCK, 0, &l) == 0)
        empty_seat(c, c->seat); /* the locks end with the descriptor */
    if (c->s)
        munmap(c->s, sizeof *c->s);
    if (c->fd >= 0)
        close(c->fd);
    free(c->own);
    free(c->other);
    free(c);
}

static bool number(const char **at, int *out)
{
    int v = 0;
    const char *p = *at;
    for (; *p >= '0' && *p <= '9' && v < CORES_CPU_MAX; p++)
        v = 10 * v + (*p - '0');
    bool ok = p > *at && v < CORES_CPU_MAX;
    *at = p;
    *out = v;
    return ok;
}

int cores_list(struct err *e, int **cpu, int *n, const char *text)
{
    bool in[CORES_CPU_MAX] = {false};
    for (const char *p = text;; p++) {
        int a, b;
        bool ok = number(&p, &a);
        b = a;
        if (ok && *p == '-') {
            p++;
            ok = number(&p, &b) && b >= a;
        }
        if (!ok || (*p && *p != ','))
            return err_set(e, ERR_USAGE, "%s: not a list of cores like 0,2-5 (below %d)", text, CORES_CPU_MAX);
        for (; a <= b; a++)
            in[a] = true;
        if (!*p)
            break;
    }
    *n = 0;
    *cpu = malloc(CORES_CPU_MAX * sizeof **cpu);
    if (!*cpu)
        return err_nomem(e, "a list of cores", CORES_CPU_MAX * sizeof **cpu);
    for (int i = 0; i < CORES_CPU_MAX; i++)
        if (in[i])
            (*cpu)[(*n)++] = i;
    return 0;
}

int cores_own(const struct cores *c, const int **cpu)
{
    *cpu = c->own;
    return c->n_own;
}

int cores_other(const struct cores *c, const int **cpu)
{
    *cpu = c->other;
    return c->n_other;
}

static int tie(uint32_t tid, const uint64_t *set)
{
    size_t bytes = CPU_ALLOC_SIZE(CORES_CPU_MAX);
    cpu_set_t *s = CPU_ALLOC(CORES_CPU_MAX);
    if (!s)
        return -1;
    CPU_ZERO_S(bytes, s);
    for (int i = 0; i < CORES_CPU_MAX; i++)
        if (has(set, i))
            CPU_SET_S(i, bytes, s);
    int rc = sched_setaffinity((pid_t)tid, bytes, s);
    CPU_FREE(s);
    return rc;
}

int cores_stay(struct err *e, const struct cores *c)
{
    uint64_t set[WORDS] = {0};
    int rc = set_of(e, set, c->own, c->n_own);
    if (rc)
        return rc;
    return tie(0, set) ? err_set(e, ERR_USAGE, "none of these cores is there, or may be used") : 0;
}

/* Best effort: a core that has gone, or that a container took away, is no reason to stop. */
void cores_pin(int cpu)
{
    uint64_t set[WORDS] = {0};
    set[cpu / 64] = UINT64_C(1) << cpu % 64;
    tie(0, set);
}

/* ---- the owner ---- */

/*
 * The mark comes first, so a thread that ties itself to the core later sees it before it computes. The lock says that
 * the borrower's process lives, the signal 0 that the thread is one of its: a number that was used again is not taken
 * for it.
 */
static void send_away(struct cores *c, int cpu, uint64_t h)
{
    _Atomic uint64_t *holder = &c->s->core[cpu].holder;
    int at = (int)(h >> WORD_SEAT);
    uint32_t tid = (uint32_t)h;
    if (at >= CORES_WORKERS_MAX || at == c->seat || !atomic_compare_exchange_strong(holder, &h, h | WORD_ASKED))
        return;
    const struct seat *from = &c->s->seat[at];
    pid_t pid = (pid_t)atomic_load(&from->pid);
    if (!pid || !alive(c, at)) {
        h |= WORD_ASKED;
        atomic_compare_exchange_strong(holder, &h, 0);
    } else if (from->pid_space == c->s->seat[c->seat].pid_space && syscall(SYS_tgkill, pid, tid, 0) == 0) {
        tie(tid, from->own);
    }
}

/* Owner and borrower each write their own word and then read the other's, so one of them sees both. */
void cores_work(struct cores *c)
{
    if (!c->s)
        return;
    atomic_store(&c->s->seat[c->seat].since, 0);
    for (int i = 0; i < c->n_own; i++) {
        uint64_t h = atomic_load(&c->s->core[c->own[i]].holder);
        if (h && !(h & WORD_ASKED))
            send_away(c, c->own[i], h);
    }
}

void cores_rest(struct cores *c)
{
    if (c->s)
        atomic_store_explicit(&c->s->seat[c->seat].since, time_now_ns(), memory_order_release);
}

/* ---- a borrower ---- */

/* No owner of the core has computed since `before`. One that seems to compute is asked for in `busy`, else -1. */
static bool resting(const struct cores *c, int cpu, uint64_t before, int *busy)
{
    int n = (int)atomic_load(&c->s->n_seat);
    *busy = -1;
    for (int i = 0; i < n && i < CORES_WORKERS_MAX; i++) {
        if (!atomic_load_explicit(&c->s->seat[i].pid, memory_order_acquire) || !has(c->s->seat[i].own, cpu))
            continue;
        uint64_t since = atomic_load(&c->s->seat[i].since);
        if (!since)
            *busy = i;
        if (!since || since > before)
            return false;
    }
    return true;
}

/* Looks now and then whether the worker of a seat lives. */
static void look_at(struct cores *c, int seat, uint64_t now)
{
    if (now - c->checked[seat] < CHECK_NS)
        return;
    c->checked[seat] = now;
    if (!alive(c, seat))
        bury(c, seat);
}

bool cores_free(struct cores *c, int cpu, uint64_t now)
{
    int busy;
    if (!c->s || has(c->s->seat[c->seat].own, cpu) ||
        !(atomic_load_explicit(&c->s->seen[cpu / 64], memory_order_relaxed) >> cpu % 64 & 1))
        return false;
    if (!resting(c, cpu, now - c->rest_ns, &busy)) {
        if (busy >= 0)
            look_at(c, busy, now);
        return false;
    }
    uint64_t h = atomic_load_explicit(&c->s->core[cpu].holder, memory_order_relaxed) & ~WORD_ASKED;
    int seat = (int)(h >> WORD_SEAT);
    if (h && seat != c->seat && seat < CORES_WORKERS_MAX)
        look_at(c, seat, now);
    return !h || seat == c->seat;
}

/* Tied before it is taken: the owner that sends it away does so after it was taken. */
bool cores_take(struct cores *c, struct cores_hold *h)
{
    int busy;
    if (h->word) {
        if (cores_kept(c, h))
            return true;
        cores_give(c, h);
        return false;
    }
    if (!h->tid)
        h->tid = (uint32_t)gettid();
    if (!resting(c, h->cpu, UINT64_MAX, &busy))
        return false;
    cores_pin(h->cpu);
    uint64_t none = 0, word = (uint64_t)c->seat << WORD_SEAT | h->tid;
    if (!atomic_compare_exchange_strong(&c->s->core[h->cpu].holder, &none, word))
        return false;
    h->word = word;
    if (resting(c, h->cpu, UINT64_MAX, &busy) && cores_kept(c, h))
        return true;
    cores_give(c, h);
    return false;
}

bool cores_kept(const struct cores *c, const struct cores_hold *h)
{
    return atomic_load_explicit(&c->s->core[h->cpu].holder, memory_order_relaxed) == h->word;
}

void cores_give(struct cores *c, struct cores_hold *h)
{
    _Atomic uint64_t *holder = &c->s->core[h->cpu].holder;
    uint64_t word = h->word, asked = word | WORD_ASKED;
    h->word = 0;
    if (word && !atomic_compare_exchange_strong(holder, &word, 0))
        atomic_compare_exchange_strong(holder, &asked, 0);
}
