/* The file tier: blocks survive a restart, torn and damaged ones are dropped, a full disk loses no other block, and
 * calls do not wait for a stalled disk. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "unit/tier_build.h"

static void block_of(struct kv_tier_block *b, uint8_t *bytes, uint32_t n)
{
    memset(b, 0, sizeof *b);
    memcpy(b->digest, &n, sizeof n);
    b->ids.lo = n;
    for (uint32_t i = 0; i < DATA; i++)
        bytes[i] = (uint8_t)(i * 7 + n);
    b->sum = XXH3_64bits(bytes, DATA);
}

/* Queues block n; does not wait for the disk. *dropped: the replaced block, or -1. */
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

/* Waits for the next completion; false: nothing is in flight. */
static bool next(struct kv_tier *t, struct kv_tier_done *d)
{
    bool found = false;
    while (!(found = kv_tier_next(t, d)) && kv_tier_wait(t, 10000))
        ;
    return found;
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

static void keeps_blocks_after_a_restart(void **state)
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
    OK(put(&e, t, 2, &dropped)); /* already in the tier */
    OK(get(&e, t, 0));
    kv_tier_free(t);
    t = tier(ROOM(4));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    OK(get(&e, t, 0));
    OK(put(&e, t, 9, &dropped));
    assert_int_equal(dropped, 1); /* the least recently used */
    IS_NO(get(&e, t, 1), "not there");
    OK(get(&e, t, 9));
    kv_tier_free(t);
    t = tier(ROOM(2)); /* a smaller limit truncates the file */
    assert_true(stat_of(t).total == 2 && stat_of(t).used == 2);
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_true(st.st_size <= ROOM(2));
    kv_tier_free(t);
}

/* A bit error in the bytes of record 0 and in the head of record 1, and record 3 not completely written. */
static void drops_torn_and_damaged_blocks(void **state)
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
    for (uint32_t n = 10; n < 13; n++) { /* their records are reused */
        OK(put(&e, t, n, &dropped));
        assert_int_equal(dropped, -1);
    }
    kv_tier_free(t);
    t = tier(ROOM(4));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    kv_tier_free(t);
}

static void refuses_other_files(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_tier *t = tier(ROOM(4)), *u;
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_NO, "another kvstore uses it");
    kv_tier_free(t);
    IS_NO(kv_tier_open(&e, &u, path, 8192, &k) == ERR_NO, "is too small: one block needs");
    k.model[1]++;
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "another model");
    k = small_kind();
    snprintf(k.arith, sizeof k.arith, "pp0");
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "arithmetic");
    k = small_kind();
    poke(20, 1);
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "not a file of KV blocks");
    assert_int_equal(truncate(path, 10), 0);
    IS_NO(kv_tier_open(&e, &u, path, ROOM(4), &k) == ERR_PROTO, "not a file of KV blocks");
    IS_NO(kv_tier_open(&e, &u, "/no/such/dir/x", ROOM(4), &k) == ERR_NO, "No such file");
}

/* A limit of the file size simulates a full disk. */
static void replaces_the_least_recently_used_on_a_full_disk(void **state)
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
    OK(put(&e, t, 4, &dropped)); /* from now on new blocks replace the least recently used */
    assert_int_equal(dropped, 0);
    setrlimit(RLIMIT_FSIZE, &old);
    OK(get(&e, t, 4));
    kv_tier_free(t);
}

/* Many writes are in flight when the first one fails. */
static void reports_a_full_disk_once(void **state)
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
    atomic_store(&stalled, true);
    for (uint32_t n = 0; n < 8; n++)
        OK(begin_put(&e, t, n, &dropped));
    atomic_store(&stalled, false);
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

/* A block that is not written yet can be read; a read of a record that is reused meanwhile returns the old block; the
 * write queue is bounded. */
static void does_not_wait_for_a_stalled_disk(void **state)
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
    atomic_store(&stalled, true);
    block_of(&b, bytes, 0);
    OK(kv_tier_get(&e, t, b.digest)); /* the thread is reading this one */
    while (kv_tier_wait(t, 1))
        ;
    block_of(&b, bytes, 1);
    OK(kv_tier_get(&e, t, b.digest));
    for (uint32_t n = 4; n < 8; n++) { /* each replaces one */
        OK(begin_put(&e, t, n, &dropped));
        assert_true(dropped >= 0);
    }
    block_of(&b, bytes, 6);
    OK(kv_tier_get(&e, t, b.digest));
    assert_true(kv_tier_next(t, &d) && d.what == KV_TIER_READ);
    assert_memory_equal(d.bytes, bytes, DATA);
    assert_false(kv_tier_next(t, &d));
    atomic_store(&stalled, false);
    for (uint32_t n = 0; n < 2; n++) { /* reads go before writes */
        block_of(&b, bytes, n);
        assert_true(next(t, &d) && d.what == KV_TIER_READ);
        assert_memory_equal(d.bytes, bytes, DATA);
    }
    assert_false(next(t, &d));
    assert_true(stat_of(t).used == 4 && stat_of(t).bad == 0);
    for (uint32_t n = 4; n < 8; n++)
        OK(get(&e, t, n));
    atomic_store(&stalled, true);
    uint32_t n = 100;
    while (kv_tier_room(t) && n < 1u << 20)
        OK(begin_put(&e, t, n++, &dropped));
    assert_int_equal(n - 100, KV_TIER_QUEUE_BYTES / DATA);
    IS_NO(begin_put(&e, t, n, &dropped) == ERR_NO, "queue of blocks to write is full");
    kv_tier_free(t); /* returns after a second; the thread frees its memory when it ends */
    atomic_store(&stalled, false);
    usleep(100000);
}

/* Version 1 had the ids of each block in its record. The file is a cache, so a new version starts it again. */
static void empties_a_file_of_the_earlier_version(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_tier *t;
    struct kv_tier_stat st;
    struct stat file;
    int64_t dropped;
    uint8_t head[4096];
    OK(kv_tier_open(&e, &t, path, ROOM(4), &k));
    OK(put(&e, t, 1, &dropped));
    kv_tier_free(t);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    ssize_t n = syscall(SYS_pread64, fd, head, sizeof head, (off_t)0);
    assert_int_equal(n, sizeof head);
    memcpy(head, "PPTIER1", 8);
    size_t end = 8 + 16 + 32 + 2 * KV_NAME_BYTES + 8; /* of what its sum covers */
    uint64_t sum = XXH3_64bits(head, end);
    memcpy(head + end, &sum, sizeof sum);
    assert_int_equal(pwrite(fd, head, sizeof head, 0), sizeof head);
    OK(kv_tier_open(&e, &t, path, ROOM(4), &k));
    kv_tier_stat(t, &st);
    assert_int_equal(st.used, 0);
    assert_int_equal(st.bad, 0);
    assert_int_equal(fstat(fd, &file), 0);
    assert_true(file.st_size < 4096 + RECORD);
    close(fd);
    kv_tier_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keeps_blocks_after_a_restart, setup, teardown),
        cmocka_unit_test_setup_teardown(drops_torn_and_damaged_blocks, setup, teardown),
        cmocka_unit_test_setup_teardown(refuses_other_files, setup, teardown),
        cmocka_unit_test_setup_teardown(empties_a_file_of_the_earlier_version, setup, teardown),
        cmocka_unit_test_setup_teardown(replaces_the_least_recently_used_on_a_full_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(reports_a_full_disk_once, setup, teardown),
        cmocka_unit_test_setup_teardown(does_not_wait_for_a_stalled_disk, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
