/* The shared file of cores: one slot per worker, one word per core. */
#include "proc/cores.h"
#include "base/time.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LINE 64
#define MAGIC 0x31736572u /* changes with the layout */
#define WORDS (CORES_CPU_MAX / 64)
#define CHECK_NS 100000000u /* minimum interval between two checks whether a worker that seems to compute is alive */

/* The word of a core: thread id of the borrower in the low half, its worker's slot above, and a bit that is set when
 * the owner has recalled the core. */
#define WORD_SLOT 32
#define WORD_RECALLED (UINT64_C(1) << 63)

struct slot {
    _Alignas(LINE) _Atomic uint64_t since; /* time at which it stopped computing; 0: it computes */
    _Alignas(LINE) _Atomic uint32_t pid;   /* 0: the slot is free */
    uint64_t pid_space;
    uint64_t own[WORDS];
};

struct core {
    _Alignas(LINE) _Atomic uint64_t holder;
};

struct shared {
    _Atomic uint32_t magic;
    _Atomic uint32_t n_slot;      /* number of slots ever used */
    _Atomic uint64_t seen[WORDS]; /* cores that had an owner since the file last had no worker */
    struct slot slot[CORES_WORKERS_MAX];
    struct core core[CORES_CPU_MAX];
};

struct cores {
    int fd;
    struct shared *s; /* NULL: nothing is shared */
    int slot;
    int *own, *other;
    int n_own, n_other;
    uint64_t rest_ns;
    uint64_t checked[CORES_WORKERS_MAX]; /* time of the last check of each slot's worker */
};

static bool has(const uint64_t *set, int cpu)
{
    return set[cpu / 64] >> cpu % 64 & 1;
}

/* ---- locks: byte 0 while joining or leaving, byte 1 + i while the worker of slot i is alive ---- */

static int lock(const struct cores *c, int cmd, short type, int byte, struct flock *l)
{
    *l = (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1};
    int rc;
    do
        rc = fcntl(c->fd, cmd, l);
    while (rc && errno == EINTR);
    return rc;
}

static bool alive(const struct cores *c, int slot)
{
    struct flock l;
    return slot == c->slot || (lock(c, F_OFD_GETLK, F_WRLCK, 1 + slot, &l) == 0 && l.l_type != F_UNLCK);
}

/* Caller holds the lock of byte 0. Releases all cores borrowed by the slot's worker, and the slot. */
static void release_slot(struct cores *c, int slot)
{
    for (int i = 0; i < CORES_CPU_MAX; i++) {
        uint64_t h = atomic_load(&c->s->core[i].holder);
        if (h && (int)((h & ~WORD_RECALLED) >> WORD_SLOT) == slot)
            atomic_compare_exchange_strong(&c->s->core[i].holder, &h, 0);
    }
    atomic_store(&c->s->slot[slot].pid, 0);
}

/* Releases the slot of a worker that has died. Does nothing if another process holds the lock. */
static void reap(struct cores *c, int slot)
{
    struct flock l;
    if (lock(c, F_OFD_SETLK, F_WRLCK, 0, &l))
        return;
    if (atomic_load(&c->s->slot[slot].pid) && !alive(c, slot))
        release_slot(c, slot);
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
        return err_set(e, ERR_PROTO, "%s: has %lld bytes, expected %zu: not a cores file, or one of another release",
                       path, (long long)st.st_size, sizeof *c->s);
    if (!st.st_size && posix_fallocate(c->fd, 0, sizeof *c->s))
        return err_sys(e, "%s", path);
    void *p = mmap(NULL, sizeof *c->s, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);
    if (p == MAP_FAILED)
        return err_sys(e, "%s", path);
    c->s = p;
    if (!st.st_size)
        atomic_store(&c->s->magic, MAGIC);
    return c->s->magic == MAGIC
               ? 0
               : err_set(e, ERR_PROTO, "%s: a cores file of another release; stop its workers and remove it", path);
}

/* Caller holds the lock of byte 0. Claims a free slot. */
static int claim_slot(struct err *e, struct cores *c, const char *path)
{
    struct shared *s = c->s;
    struct flock l;
    int n = 0, at = -1;
    for (int i = CORES_WORKERS_MAX - 1; i >= 0; i--) {
        if (atomic_load(&s->slot[i].pid) && !alive(c, i))
            release_slot(c, i);
        n += atomic_load(&s->slot[i].pid) != 0;
        if (!atomic_load(&s->slot[i].pid))
            at = i;
    }
    if (at < 0)
        return err_set(e, ERR_NO, "%s: all %d slots for workers are in use", path, n);
    if (lock(c, F_OFD_SETLK, F_WRLCK, 1 + at, &l))
        return err_sys(e, "%s", path);
    struct slot *slot = &s->slot[at];
    slot->pid_space = pid_space();
    memset(slot->own, 0, sizeof slot->own);
    for (int i = 0; i < c->n_own; i++)
        slot->own[c->own[i] / 64] |= UINT64_C(1) << c->own[i] % 64;
    for (int i = 0; i < WORDS; i++)
        atomic_store(&s->seen[i], (n ? atomic_load(&s->seen[i]) : 0) | slot->own[i]);
    atomic_store(&slot->since, time_now_ns());
    atomic_store(&slot->pid, (uint32_t)getpid());
    if ((uint32_t)at >= atomic_load(&s->n_slot))
        atomic_store(&s->n_slot, (uint32_t)at + 1);
    c->slot = at;
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
        rc = claim_slot(e, c, path);
    lock(c, F_OFD_SETLK, F_UNLCK, 0, &l);
    return rc;
}

/* CPUs that this process may run on, below CORES_CPU_MAX. */
static void allowed_cpus(uint64_t *set)
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
            return err_set(e, ERR_USAGE, "core %d: outside 0 to %d", cpu[i], CORES_CPU_MAX - 1);
        set[cpu[i] / 64] |= UINT64_C(1) << cpu[i] % 64;
    }
    return 0;
}

int cores_open(struct err *e, struct cores **out, const struct cores_opts *o)
{
    uint64_t all[WORDS] = {0}, own[WORDS] = {0}, borrow[WORDS] = {0};
    allowed_cpus(all);
    int rc = set_of(e, own, o->cpu, o->n);
    if (!rc)
        rc = set_of(e, borrow, o->borrow, o->n_borrow);
    if (rc)
        return rc;
    struct cores *c = calloc(1, sizeof *c);
    if (c) {
        c->fd = -1;
        c->slot = -1;
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
    if (c->slot >= 0 && lock(c, F_OFD_SETLKW, F_WRLCK, 0, &l) == 0)
        release_slot(c, c->slot); /* closing the descriptor releases the locks */
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
            return err_set(e, ERR_USAGE, "cores '%s': not a list like 0,2-5 of numbers below %d", text, CORES_CPU_MAX);
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

static int set_affinity(uint32_t tid, const uint64_t *set)
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

/* "0,2-63"; "none" for an empty set. What does not fit is left out. */
static void set_text(char *out, size_t n, const uint64_t *set)
{
    size_t at = (size_t)snprintf(out, n, "none");
    bool first = true;
    for (int i = 0, end; i < CORES_CPU_MAX; i = end + 1) {
        end = i;
        if (!has(set, i))
            continue;
        while (end + 1 < CORES_CPU_MAX && has(set, end + 1))
            end++;
        at = first ? 0 : at;
        if (at + 16 > n)
            return;
        at += (size_t)snprintf(out + at, n - at, end > i ? "%s%d-%d" : "%s%d", first ? "" : ",", i, end);
        first = false;
    }
}

/* The kernel ignores cores that are absent if one of the set is there, and all threads would share that one. */
int cores_stay(struct err *e, const struct cores *c)
{
    uint64_t set[WORDS] = {0}, all[WORDS] = {0}, absent[WORDS] = {0}, any = 0;
    char names[160], allowed[160];
    int rc = set_of(e, set, c->own, c->n_own);
    if (rc)
        return rc;
    allowed_cpus(all);
    for (int i = 0; i < WORDS; i++)
        any |= absent[i] = set[i] & ~all[i];
    if (!any)
        return set_affinity(0, set) ? err_sys(e, "the processors of this process") : 0;
    set_text(names, sizeof names, absent);
    set_text(allowed, sizeof allowed, all);
    return err_set(e, ERR_USAGE, "%s: absent, or not allowed to this process, which may use %s", names, allowed);
}

/* Best effort: an error is ignored if the core went offline, or if a container no longer allows it. */
void cores_pin(int cpu)
{
    uint64_t set[WORDS] = {0};
    set[cpu / 64] = UINT64_C(1) << cpu % 64;
    set_affinity(0, set);
}

/* ---- the owner ---- */

/*
 * The bit is set first, so a thread that pins itself to the core later sees it before it computes. The lock shows that
 * the borrower's process is alive, and signal 0 that the thread belongs to it, so a reused thread id is not moved.
 */
static void recall(struct cores *c, int cpu, uint64_t h)
{
    _Atomic uint64_t *holder = &c->s->core[cpu].holder;
    int at = (int)(h >> WORD_SLOT);
    uint32_t tid = (uint32_t)h;
    if (at >= CORES_WORKERS_MAX || at == c->slot || !atomic_compare_exchange_strong(holder, &h, h | WORD_RECALLED))
        return;
    const struct slot *from = &c->s->slot[at];
    pid_t pid = (pid_t)atomic_load(&from->pid);
    if (!pid || !alive(c, at)) {
        h |= WORD_RECALLED;
        atomic_compare_exchange_strong(holder, &h, 0);
    } else if (from->pid_space == c->s->slot[c->slot].pid_space && syscall(SYS_tgkill, pid, tid, 0) == 0) {
        set_affinity(tid, from->own);
    }
}

/* Owner and borrower each write their own word and then read the other's, so at least one of them sees both writes. */
void cores_work(struct cores *c)
{
    if (!c->s)
        return;
    atomic_store(&c->s->slot[c->slot].since, 0);
    for (int i = 0; i < c->n_own; i++) {
        uint64_t h = atomic_load(&c->s->core[c->own[i]].holder);
        if (h && !(h & WORD_RECALLED))
            recall(c, c->own[i], h);
    }
}

void cores_rest(struct cores *c)
{
    if (c->s)
        atomic_store_explicit(&c->s->slot[c->slot].since, time_now_ns(), memory_order_release);
}

/* ---- a borrower ---- */

/* True if no owner of the core has computed since `before`. *busy: slot of an owner that seems to compute, or -1. */
static bool resting(const struct cores *c, int cpu, uint64_t before, int *busy)
{
    int n = (int)atomic_load(&c->s->n_slot);
    *busy = -1;
    for (int i = 0; i < n && i < CORES_WORKERS_MAX; i++) {
        if (!atomic_load_explicit(&c->s->slot[i].pid, memory_order_acquire) || !has(c->s->slot[i].own, cpu))
            continue;
        uint64_t since = atomic_load(&c->s->slot[i].since);
        if (!since)
            *busy = i;
        if (!since || since > before)
            return false;
    }
    return true;
}

/* Releases the slot if its worker has died; checks at most every CHECK_NS. */
static void check_alive(struct cores *c, int slot, uint64_t now)
{
    if (now - c->checked[slot] < CHECK_NS)
        return;
    c->checked[slot] = now;
    if (!alive(c, slot))
        reap(c, slot);
}

bool cores_free(struct cores *c, int cpu, uint64_t now)
{
    int busy;
    if (!c->s || has(c->s->slot[c->slot].own, cpu) ||
        !(atomic_load_explicit(&c->s->seen[cpu / 64], memory_order_relaxed) >> cpu % 64 & 1))
        return false;
    if (!resting(c, cpu, now - c->rest_ns, &busy)) {
        if (busy >= 0)
            check_alive(c, busy, now);
        return false;
    }
    uint64_t h = atomic_load_explicit(&c->s->core[cpu].holder, memory_order_relaxed) & ~WORD_RECALLED;
    int slot = (int)(h >> WORD_SLOT);
    if (h && slot != c->slot && slot < CORES_WORKERS_MAX)
        check_alive(c, slot, now);
    return !h || slot == c->slot;
}

/* The thread is pinned before it takes the core, so an owner that recalls the core does so after the pinning. */
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
    uint64_t none = 0, word = (uint64_t)c->slot << WORD_SLOT | h->tid;
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
    uint64_t word = h->word, recalled = word | WORD_RECALLED;
    h->word = 0;
    if (word && !atomic_compare_exchange_strong(holder, &word, 0))
        atomic_compare_exchange_strong(holder, &recalled, 0);
}
