/* The file tier: what was put is got after a restart, what is torn or damaged is not, a full disk loses nothing else.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kv/store.h"
#include "kv/tier.h"

#include "unit/kv_build.h"

#define DATA 1280 /* bytes of one tile of small_kind: 32 tokens × 16 × 2, and 2 × 32 scales */
#define RECORD (4096 + 4096)
#define ROOM(n) (4096 + (n)*RECORD)

static char path[64];

/* In place of the C library's: a disk that can be made to stand still. */
static atomic_bool stuck;

static void stand_still(void)
{
    while (atomic_load(&stuck))
        usleep(500);
}

ssize_t pread(int fd, void *p, size_t n, off_t at)
{
    stand_still();
    return syscall(SYS_pread64, fd, p, n, at);
}

ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at)
{
    stand_still();
    return syscall(SYS_pwritev, fd, v, n, at, 0);
}

static int setup(void **state)
{
    (void)state;
    atomic_store(&stuck, false);
    snprintf(path, sizeof path, "/tmp/tier_test.%d", (int)getpid());
    unlink(path);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static void block_of(struct kv_tier_block *b, uint8_t *bytes, uint32_t n)
{
    memset(b, 0, sizeof *b);
    memcpy(b->digest, &n, sizeof n);
    b->ids[3] = n;
    for (uint32_t i = 0; i < DATA; i++)
        bytes[i] = (uint8_t)(i * 7 + n);
    b->sum = XXH3_64bits(bytes, DATA);
}

static struct kv_tier *tier(uint64_t bytes)
{
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_tier *t;
    OK(kv_tier_open(&e, &t, path, bytes, &k));
    return t;
}

/* Without waiting for the disk. */
static int begin_put(struct err *e, struct kv_tier *t, uint32_t n, int64_t *dropped)
{
    struct kv_tier_block b;
    uint8_t bytes[DATA], d[KV_DIGEST] = {0};
    bool has;
    uint32_t old;
    block_of(&b, bytes, n);
    int rc = kv_tier_put(e, t, d, &has, &b, bytes);
    memcpy(&old, d, sizeof old);
    *dropped = has ? (int64_t)old : -1;
    return rc;
}

/* The next that is told; false: nothing is under way any more. */
static bool next(struct kv_tier *t, struct kv_tier_done *d)
{
    bool told = false;
    while (!(told = kv_tier_next(t, d)) && kv_tier_wait(t, 10000))
        ;
    return told;
}

static int put(struct err *e, struct kv_tier *t, uint32_t n, int64_t *dropped)
{
    struct kv_tier_done d;
    int rc = begin_put(e, t, n, dropped);
    if (rc || !next(t, &d))
        return rc;
    assert_int_equal(d.what, KV_TIER_LOST);
    return err_set(e, ERR_SYS, "%s", d.text ? d.text : "lost");
}

static int get(struct err *e, struct kv_tier *t, uint32_t n)
{
    struct kv_tier_block b, found;
    struct kv_tier_done d;
    uint8_t want[DATA];
    block_of(&b, want, n);
    if (!kv_tier_find(t, &found, b.digest))
        return err_set(e, ERR_NO, "not there");
    assert_memory_equal(&b, &found, sizeof b);
    assert_int_equal(kv_tier_get(e, t, b.digest), 0);
    assert_true(next(t, &d));
    assert_memory_equal(&d.b, &b, sizeof b);
    if (d.what != KV_TIER_READ)
        return err_set(e, ERR_NO, "%s", d.text ? d.text : "missing");
    assert_memory_equal(d.bytes, want, DATA);
    return 0;
}

static struct kv_tier_stat stat_of(const struct kv_tier *t)
{
    struct kv_tier_stat s;
    kv_tier_stat(t, &s);
    return s;
}

static void survives_a_restart(void **state)
{
    (void)state;
    struct err e = {0};
    int64_t dropped;
    struct kv_tier *t = tier(ROOM(4) + 17);
    assert_int_equal(stat_of(t).total, 4);
    for (uint32_t n = 0; n < 4; n++) {
        OK(put(&e, t, n, &dropped));
        assert_int_equal(dropped, -1);
    }
    OK(put(&e, t, 2, &dropped)); /* is there */
    OK(get(&e, t, 0));
    kv_tier_free(t);
    t = tier(ROOM(4));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    OK(get(&e, t, 0));
    OK(put(&e, t, 9, &dropped));
    assert_int_equal(dropped, 1); /* used longest ago */
    IS_NO(get(&e, t, 1), "not there");
    OK(get(&e, t, 9));
    kv_tier_free(t);
    t = tier(ROOM(2)); /* smaller: the rest is cut off */
    assert_true(stat_of(t).total == 2 && stat_of(t).used == 2);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= ROOM(2));
    kv_tier_free(t);
}

static void poke(long at, uint8_t xor)
{
    uint8_t c;
    int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &c, 1, at), 1);
    c ^= xor;
    assert_int_equal(pwrite(fd, &c, 1, at), 1);
    close(fd);
}

/* A bit in the bytes of record 0, in the head of record 1, and the end of record 3 never written. */
static void torn_and_damaged_blocks_are_dropped(void **state)
{
    (void)state;
    struct err e = {0};
    int64_t dropped;
    struct kv_tier *t = tier(ROOM(4));
    for (uint32_t n = 0; n < 4; n++)
        OK(put(&e, t, n, &dropped));
    kv_tier_free(t);
    poke(4096 + 4096 + 700, 0x10);
    poke(4096 + RECORD + 30, 0x01);
    assert_int_equal(truncate(path, 4096 + 3 * RECORD + 4096 + 1000), 0);
    t = tier(ROOM(4));
    assert_true(stat_of(t).used == 3 && stat_of(t).bad == 1);
    IS_NO(get(&e, t, 0), "record 0 is torn or damaged");
    IS_NO(get(&e, t, 1), "not there");
    OK(get(&e, t, 2));
    IS_NO(get(&e, t, 3), "record 3 is torn or damaged");
    assert_true(stat_of(t).used == 1 && stat_of(t).bad == 3);
    for (uint32_t n = 10; n < 13; n++) { /* their places are used again */
        OK(put(&e, t, n, &dropped));
        assert_int_equal(dropped, -1);
    }
    kv_tier_free(t);
    t = tier(ROOM(4));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    kv_tier_free(t);
}

static void other_files_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_tier *t = tier(ROOM(4)), *u;
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_NO, "another kvstore uses it");
    kv_tier_free(t);
    IS_NO(kv_tier_open(&e, &u, path, 8192, &k) == ERR_NO, "holds no block");
    k.model[1]++;
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "another model");
    k = small_kind();
    snprintf(k.arith, sizeof k.arith, "pp0");
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "arithmetic");
    k = small_kind();
    poke(20, 1);
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "no file of KV blocks");
    assert_int_equal(truncate(path, 10), 0);
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "no file of KV blocks");
    IS_NO(kv_tier_open(&e, &u, "/no/such/dir/x", ROOM(4), &k) == ERR_SYS, "No such file");
}

/* The limit of a file's size stands for a disk that has no more. */
static void a_full_disk_costs_what_does_not_fit(void **state)
{
    (void)state;
    struct err e = {0};
    int64_t dropped;
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    struct kv_tier *t = tier(ROOM(100));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = ROOM(3);
    setrlimit(RLIMIT_FSIZE, &small);
    for (uint32_t n = 0; n < 3; n++)
        OK(put(&e, t, n, &dropped));
    int rc = put(&e, t, 3, &dropped);
    assert_true(rc == ERR_SYS && dropped == -1);
    IS_NO(rc, "the disk is full with 3 blocks");
    for (uint32_t n = 0; n < 3; n++)
        OK(get(&e, t, n));
    OK(put(&e, t, 4, &dropped)); /* from here on the oldest make room */
    assert_int_equal(dropped, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    OK(get(&e, t, 4));
    kv_tier_free(t);
}

/* Many are on their way when it is found out. */
static void a_full_disk_is_told_once(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier_done d;
    int64_t dropped;
    struct rlimit old, small;
    signal(SIGXFSZ, SIG_IGN);
    struct kv_tier *t = tier(ROOM(100));
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = ROOM(3);
    setrlimit(RLIMIT_FSIZE, &small);
    atomic_store(&stuck, true);
    for (uint32_t n = 0; n < 8; n++)
        OK(begin_put(&e, t, n, &dropped));
    atomic_store(&stuck, false);
    int lost = 0, texts = 0;
    while (next(t, &d)) {
        lost += d.what == KV_TIER_LOST;
        texts += d.text && strstr(d.text, "the disk is full with 3 blocks");
    }
    setrlimit(RLIMIT_FSIZE, &old);
    assert_true(lost == 5 && texts == 1 && stat_of(t).used == 3);
    for (uint32_t n = 0; n < 3; n++)
        OK(get(&e, t, n));
    kv_tier_free(t);
}

/* What is not written yet is there all the same; a block whose place is wanted meanwhile is not mixed with the one that
 * takes it; what waits has a limit. */
static void a_disk_that_stands_still_keeps_nobody(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier_done d;
    struct kv_tier_block b;
    uint8_t bytes[DATA];
    int64_t dropped;
    struct kv_tier *t = tier(ROOM(4));
    for (uint32_t n = 0; n < 4; n++)
        OK(put(&e, t, n, &dropped));
    atomic_store(&stuck, true);
    block_of(&b, bytes, 0);
    OK(kv_tier_get(&e, t, b.digest)); /* this one the thread has in hand */
    while (kv_tier_wait(t, 1))
        ;
    block_of(&b, bytes, 1);
    OK(kv_tier_get(&e, t, b.digest));
    for (uint32_t n = 4; n < 8; n++) { /* each takes the place of one */
        OK(begin_put(&e, t, n, &dropped));
        assert_true(dropped >= 0);
    }
    block_of(&b, bytes, 6);
    OK(kv_tier_get(&e, t, b.digest));
    assert_true(kv_tier_next(t, &d) && d.what == KV_TIER_READ);
    assert_memory_equal(d.bytes, bytes, DATA);
    assert_false(kv_tier_next(t, &d));
    atomic_store(&stuck, false);
    for (uint32_t n = 0; n < 2; n++) { /* reads go before writes */
        block_of(&b, bytes, n);
        assert_true(next(t, &d) && d.what == KV_TIER_READ);
        assert_memory_equal(d.bytes, bytes, DATA);
    }
    assert_false(next(t, &d));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    for (uint32_t n = 4; n < 8; n++)
        OK(get(&e, t, n));
    atomic_store(&stuck, true);
    uint32_t n = 100;
    while (kv_tier_room(t) && n < 1u << 20)
        OK(begin_put(&e, t, n++, &dropped));
    assert_int_equal(n - 100, KV_TIER_QUEUE_BYTES / DATA);
    IS_NO(begin_put(&e, t, n, &dropped) == ERR_NO, "wait to be written");
    kv_tier_free(t); /* the thread is left after a second, and cleans up behind itself */
    atomic_store(&stuck, false);
    usleep(100000);
}

/* ---- below a store ---- */

struct below {
    int n_evicted, n_told, n_seq;
    struct kv_seq_info seq;
    char text[512];
};

static void hear(void *arg, const struct kv_news *n)
{
    struct below *b = arg;
    b->n_evicted += n->kind == KV_NEWS_EVICTED;
    b->n_told += n->kind == KV_NEWS_TIER;
    b->n_seq += n->kind == KV_NEWS_SEQ;
    if (n->kind == KV_NEWS_SEQ)
        b->seq = n->seq;
    if (n->kind == KV_NEWS_TIER)
        snprintf(b->text, sizeof b->text, "%s", n->text);
}

static struct kv_store *store_over(struct kv_arena *a, struct kv_tier *t, struct below *b, uint32_t *c)
{
    struct err e = {0};
    struct kv_store *s;
    struct kv_store_opts o = {
        .lease_ns = 1000, .handed_ns = 1000, .tier_ns = 100, .tier = t, .tell = hear, .tell_arg = b};
    OK(kv_store_new(&e, &s, a, &o, 0));
    OK(kv_store_join(&e, s, c, 1, 1, 0));
    return s;
}

/* All that is under way. */
static void settle(struct kv_store *s, struct kv_tier *t)
{
    do
        kv_store_tier(s);
    while (kv_tier_wait(t, 10000));
}

static void write_out(struct kv_store *s, struct kv_tier *t)
{
    while (kv_store_flush(s))
        ;
    settle(s, t);
}

/* A lease whose blocks may have to be read first, as one that asked to wait and as one that did not. */
static void lease_settled(struct kv_store *s, struct kv_tier *t, struct below *b, uint32_t c, struct kv_seq_info *q,
                          const struct prompt *p)
{
    static bool wait;
    struct err e = {0};
    wait = !wait;
    b->n_seq = 0;
    OK(kv_store_lease(&e, s, c, q, p->ids, p->n * 32, p->digests, p->n, wait));
    if (!q->pending)
        return;
    settle(s, t);
    assert_int_equal(b->n_seq, 1); /* told once, when all are in */
    assert_true(b->seq.seq == q->seq && b->seq.gen == q->gen && !b->seq.pending);
    *q = b->seq;
}

static uint64_t lease_and_compute(struct kv_store *s, struct kv_arena *a, struct kv_tier *t, struct below *b,
                                  uint32_t c, const struct prompt *p)
{
    struct err e = {0};
    struct kv_seq_info q;
    uint32_t slot[DEPTH_MAX], out[DEPTH_MAX];
    uint64_t sum[DEPTH_MAX], got;
    int32_t table[DEPTH_MAX];
    lease_settled(s, t, b, c, &q, p);
    uint64_t hit = q.n_block;
    OK(kv_arena_table(&e, a, table, hit, q.seq, q.gen));
    for (uint64_t k = 0; k < hit; k++)
        assert_memory_equal(kv_arena_bytes(a, (uint64_t)table[k]), p->digests + k * KV_DIGEST, KV_DIGEST);
    OK(kv_store_credit(&e, s, c, slot, &got, p->n - hit, false));
    for (uint64_t k = hit; k < p->n; k++) {
        memcpy(kv_arena_bytes(a, slot[k - hit]), p->digests + k * KV_DIGEST, KV_DIGEST);
        sum[k - hit] = kv_arena_sum(a, slot[k - hit]);
    }
    struct kv_publish u = {.seq = q.seq,
                           .gen = q.gen,
                           .at = hit,
                           .slot = slot,
                           .sum = sum,
                           .n_block = p->n - hit,
                           .digests = p->digests + hit * KV_DIGEST,
                           .ids = p->ids + hit * 32,
                           .tail = KV_NONE};
    OK(kv_store_publish(&e, s, c, out, &u));
    OK(kv_store_release(&e, s, c, q.seq, q.gen));
    OK(kv_store_check(&e, s));
    return hit;
}

/* Four slots of memory, room for nine on disk: a prompt that was pushed out is found below; so after a restart. */
static void a_store_finds_what_is_below(void **state)
{
    (void)state;
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(4);
    struct below b = {0};
    struct prompt p, r;
    uint32_t c;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2}, 3);
    struct kv_store *s = store_over(a, t, &b, &c);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 0);
    write_out(s, t);
    assert_int_equal(stat_of(t).used, 4);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 0);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    assert_true(b.n_evicted == 0 && stat_of(t).used == 7); /* all are still somewhere */
    settle(s, t);
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
    poke(4096 + 2 * RECORD + 4096 + 100, 1);
    t = tier(ROOM(9));
    a = small_arena(8);
    s = store_over(a, t, &b, &c);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p),
                     2); /* the third is damaged: it and what is behind it is computed */
    assert_true(b.n_told == 1 && b.n_evicted == 1 && strstr(b.text, "damaged"));
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 3);
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* Two sequences wait for the same block of a disk that stands still: others go on, these two wait as long as is said
 * and not longer, one of them computes, and nothing more is asked of the disk until it has answered. */
static void a_store_over_a_disk_that_stands_still(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(8);
    struct below b = {0};
    struct prompt p, r;
    struct kv_seq_info q, v, u;
    uint32_t c, d;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2}, 3);
    struct kv_store *s = store_over(a, t, &b, &c);
    lease_and_compute(s, a, t, &b, c, &p);
    write_out(s, t);
    kv_store_free(s);
    kv_arena_free(a);
    a = small_arena(8);
    s = store_over(a, t, &b, &c);
    OK(kv_store_join(&e, s, &d, 2, 2, 0));
    kv_store_tick(s, 10);
    atomic_store(&stuck, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    OK(kv_store_lease(&e, s, d, &v, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(q.pending && v.pending && q.n_block == 0);
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &r), 0); /* another prompt is computed meanwhile */
    kv_store_tier(s);
    assert_int_equal(kv_store_tick(s, 50), 110);
    b.n_seq = 0;
    kv_store_tick(s, 110);
    assert_true(b.n_seq == 1 && b.seq.seq == q.seq && !b.seq.pending); /* the first computes, the second waits for it */
    assert_non_null(strstr(b.text, "count as missing"));
    OK(kv_store_release(&e, s, c, q.seq, q.gen)); /* its owner does not: now the second is to */
    assert_true(b.n_seq == 2 && b.seq.seq == v.seq && !b.seq.pending);
    OK(kv_store_release(&e, s, d, v.seq, v.gen));
    OK(kv_store_lease(&e, s, c, &u, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(!u.pending && u.n_block == 0);
    OK(kv_store_release(&e, s, c, u.seq, u.gen));
    OK(kv_store_check(&e, s));
    atomic_store(&stuck, false);
    settle(s, t);
    assert_non_null(strstr(b.text, "answers again"));
    assert_int_equal(lease_and_compute(s, a, t, &b, c, &p), 4);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* Sequences that end while their block is read, a block that is published while it is read, and one for which there is
 * no room when it comes. */
static void a_read_that_is_overtaken(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(9));
    struct kv_arena *a = small_arena(4);
    struct below b = {0};
    struct prompt p, r;
    struct kv_seq_info q, v;
    uint32_t c, d, slot[4], out[4];
    uint64_t got;
    prompt_of(&p, (const uint8_t[]){1, 1, 1, 1}, 4);
    prompt_of(&r, (const uint8_t[]){2, 2, 2, 2}, 4);
    struct kv_store *s = store_over(a, t, &b, &c);
    OK(kv_store_join(&e, s, &d, 2, 2, 0));
    lease_and_compute(s, a, t, &b, c, &p);
    write_out(s, t);
    lease_and_compute(s, a, t, &b, c, &r); /* p is on disk only */
    write_out(s, t);
    atomic_store(&stuck, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    assert_true(q.pending);
    OK(kv_store_release(&e, s, c, q.seq, q.gen));
    atomic_store(&stuck, false);
    settle(s, t);
    OK(kv_store_check(&e, s));
    struct kv_store_stat st;
    kv_store_stat(s, &st);
    assert_true(st.cached == 4 && st.evicted == 4); /* r is still there: nobody wanted the block any more */

    atomic_store(&stuck, true);
    OK(kv_store_lease(&e, s, c, &q, p.ids, p.n * 32, p.digests, p.n, true));
    OK(kv_store_lease(&e, s, d, &v, NULL, 0, NULL, 0, false));
    OK(kv_store_credit(&e, s, d, slot, &got, 1, false));
    memcpy(kv_arena_bytes(a, slot[0]), p.digests, KV_DIGEST);
    uint64_t sum = kv_arena_sum(a, slot[0]);
    struct kv_publish u = {.seq = v.seq,
                           .gen = v.gen,
                           .slot = slot,
                           .sum = &sum,
                           .n_block = 1,
                           .digests = p.digests,
                           .ids = p.ids,
                           .tail = KV_NONE};
    b.n_seq = 0;
    OK(kv_store_publish(&e, s, d, out, &u)); /* the first block; the second is asked for now */
    assert_int_equal(b.n_seq, 0);
    OK(kv_store_credit(&e, s, d, slot, &got, 3, false)); /* the rest of the memory */
    atomic_store(&stuck, false);
    settle(s, t);
    assert_true(b.n_seq == 1 && b.seq.seq == q.seq && b.seq.n_block == 1 && !b.seq.pending);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

/* More leaves memory than a disk that stands still has room for: it is told once, and no block is lost that is in
 * memory. */
static void a_disk_that_falls_behind(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_tier *t = tier(ROOM(40000));
    struct kv_arena *a = small_arena(4);
    struct below b = {0};
    struct prompt p;
    uint32_t c, slot[4];
    uint64_t got;
    struct kv_store *s = store_over(a, t, &b, &c);
    atomic_store(&stuck, true);
    uint32_t n = KV_TIER_QUEUE_BYTES / DATA + 10;
    for (uint32_t k = 0; k < n; k++) {
        prompt_of(&p, (const uint8_t[]){3}, 1);
        memcpy(p.digests + 20, &k, sizeof k);
        lease_and_compute(s, a, t, &b, c, &p);
    }
    OK(kv_store_credit(&e, s, c, slot, &got, 4, false));
    assert_true(b.n_told == 1 && strstr(b.text, "some are not kept"));
    assert_int_equal(b.n_evicted, 10);
    assert_int_equal(stat_of(t).used, n - 10);
    atomic_store(&stuck, false);
    settle(s, t);
    OK(kv_store_check(&e, s));
    kv_store_free(s);
    kv_arena_free(a);
    kv_tier_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(survives_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(torn_and_damaged_blocks_are_dropped, setup, teardown),
        cmocka_unit_test_setup_teardown(other_files_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_costs_what_does_not_fit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_is_told_once, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_stands_still_keeps_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_finds_what_is_below, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_over_a_disk_that_stands_still, setup, teardown),
        cmocka_unit_test_setup_teardown(a_read_that_is_overtaken, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_falls_behind, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
