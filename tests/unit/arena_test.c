/* The arena: the fields of its file, and files that are refused. Sizes follow from the layout. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kv/bytes.h"
#include "unit/kv_build.h"

static void has_the_requested_size(void **state)
{
    (void)state;
    struct kv_arena *a = small_arena(10);
    const struct kv_arena_head *h = kv_arena_head(a);
    struct stat st;
    assert_int_equal(h->n_slot, 10);
    assert_true(h->n_seq >= 20 && h->n_page >= h->n_seq && h->n_client >= 64);
    assert_int_equal(h->slot_bytes, kv_arena_layout(a)->slot_bytes);
    assert_int_equal((uintptr_t)kv_arena_bytes(a, 0) % 4096, 0);
    assert_int_equal(kv_arena_bytes(a, 9) - kv_arena_bytes(a, 0), 9 * (ptrdiff_t)h->slot_bytes);
    assert_int_equal(fstat(kv_arena_fds(a)[1], &st), 0);
    assert_int_equal(st.st_size, h->bytes);
    assert_true((uint64_t)st.st_blocks * 512 >= h->bytes); /* populated */
    assert_true(kv_arena_huge_bytes(a) >= h->bytes || *kv_arena_huge_reason(a));
    int seals = fcntl(kv_arena_fds(a)[1], F_GET_SEALS);
    assert_true(seals & F_SEAL_SHRINK && seals & F_SEAL_GROW);
    assert_int_not_equal(ftruncate(kv_arena_fds(a)[1], 4096), 0);
    kv_arena_free(a);
    kv_arena_free(NULL);
}

static void refuses_a_budget_below_one_block(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_arena *a;
    IS_NO(kv_arena_new(&e, &a, &k, 4095) == ERR_NO, "is too small: one block needs 4096 bytes");
    k.n_layer = 0;
    IS_NO(kv_arena_new(&e, &a, &k, 1 << 20) == ERR_PROTO, "impossible shape");
}

/* Descriptors of an arena for a function that owns them. */
static const int *dup_fds(const struct kv_arena *a)
{
    static int fd[KV_ARENA_FDS];
    for (int i = 0; i < KV_ARENA_FDS; i++)
        fd[i] = dup(kv_arena_fds(a)[i]);
    return fd;
}

static void adopts_an_arena_from_its_descriptors(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_kind k = small_kind();
    struct kv_arena *a = small_arena(5), *b;
    kv_arena_bytes(a, 4)[17] = 99;
    OK(kv_arena_adopt(&e, &b, dup_fds(a), &k));
    assert_int_equal(kv_arena_head(b)->id, kv_arena_head(a)->id);
    assert_int_equal(kv_arena_bytes(b, 4)[17], 99);
    kv_arena_bytes(b, 3)[5] = 11;
    assert_int_equal(kv_arena_bytes(a, 3)[5], 11);
    assert_int_equal(kv_arena_sum(a, 3), kv_arena_sum(b, 3));
    assert_int_not_equal(kv_arena_sum(a, 3), kv_arena_sum(b, 4));
    kv_arena_free(b);
    k.head_dim = 32;
    IS_NO(kv_arena_adopt(&e, &b, dup_fds(a), &k) == ERR_PROTO, "1 KV heads of size 16");
    k = small_kind();
    k.model[0]++;
    IS_NO(kv_arena_adopt(&e, &b, dup_fds(a), &k) == ERR_PROTO, "another model");
    k = small_kind();
    snprintf(k.arith, sizeof k.arith, "zz9");
    IS_NO(kv_arena_adopt(&e, &b, dup_fds(a), &k) == ERR_PROTO, "arithmetic pp1, this store has KV of zz9");
    k = small_kind();
    k.type = KERN_KV_F16;
    IS_NO(kv_arena_adopt(&e, &b, dup_fds(a), &k) == ERR_PROTO, "type int8, this store has f16");
    kv_arena_free(a);
}

static int memory_file(const void *p, size_t n, size_t size, int seals)
{
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    assert_int_equal(pwrite(fd, p, n, 0), n);
    assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* Both files, of the given sizes, with a head. */
static const int *two_files(const struct kv_arena_head *h, size_t meta_bytes, size_t bytes, int seals)
{
    static int fd[KV_ARENA_FDS];
    fd[0] = memory_file(h, sizeof *h, meta_bytes, seals);
    fd[1] = memory_file("", 1, bytes, seals);
    return fd;
}

/* Sets each field of the head to numbers that contradict the files. */
static void refuses_damaged_heads(void **state)
{
    (void)state;
    struct err e = {0};
    struct stat st;
    struct kv_arena *a = small_arena(5), *b;
    struct kv_arena_head good = *kv_arena_head(a), h;
    good.epoch = 0; /* as in a new file of slots */
    assert_int_equal(fstat(kv_arena_fds(a)[0], &st), 0);
    size_t meta = (size_t)st.st_size;
    static const uint64_t bad[] = {0, 1, 4, 6, 255, 1 << 20, INT32_MAX, UINT32_MAX, UINT64_MAX, (uint64_t)1 << 52};
    size_t off[] = {offsetof(struct kv_arena_head, n_slot),     offsetof(struct kv_arena_head, n_seq),
                    offsetof(struct kv_arena_head, n_page),     offsetof(struct kv_arena_head, n_client),
                    offsetof(struct kv_arena_head, slot_bytes), offsetof(struct kv_arena_head, bytes)};
    int both = F_SEAL_SHRINK | F_SEAL_GROW;
    for (size_t f = 0; f < sizeof off / sizeof *off; f++)
        for (size_t v = 0; v < sizeof bad / sizeof *bad; v++) {
            h = good;
            memcpy((char *)&h + off[f], &bad[v], 8);
            int rc = kv_arena_adopt(&e, &b, two_files(&h, meta, good.bytes, both), NULL);
            if (!rc) /* a change that is lost in the rounding of the size */
                kv_arena_free(b);
            else
                assert_int_equal(rc, ERR_PROTO);
            assert_true(rc || (off[f] != off[4] && off[f] != off[5] && bad[v] < 256));
        }
    OK(kv_arena_adopt(&e, &b, two_files(&good, meta, good.bytes, both), NULL));
    kv_arena_free(b);
    IS_NO(kv_arena_adopt(&e, &b, two_files(&good, meta, good.bytes, F_SEAL_GROW), NULL), "not sealed");
    IS_NO(kv_arena_open(&e, &b, (int[]){memory_file(&good, sizeof good, meta, 0), dup(kv_arena_fds(a)[1])}, NULL),
          "metadata is not sealed");
    IS_NO(kv_arena_adopt(&e, &b, (int[]){memory_file(&good, 100, 100, both), dup(kv_arena_fds(a)[1])}, NULL),
          "has no metadata");
    IS_NO(kv_arena_adopt(&e, &b, two_files(&good, meta, good.bytes / 2, both), NULL), "contradict");
    IS_NO(kv_arena_adopt(&e, &b, two_files(&good, meta / 2, good.bytes, both), NULL), "contradict");
    h = good;
    h.version++;
    IS_NO(kv_arena_adopt(&e, &b, two_files(&h, meta, good.bytes, both), NULL), "version 4");
    IS_NO(kv_arena_adopt(&e, &b, (int[]){open("/dev/null", O_RDWR), open("/dev/null", O_RDWR)}, NULL), "not sealed");
    IS_NO(kv_arena_adopt(&e, &b, (int[]){open("/dev/null", O_RDWR), dup(kv_arena_fds(a)[1])}, NULL), "has no metadata");
    kv_arena_free(a);
}

/* Nobody but the kvstore that made the metadata can write them, with its descriptor or by /proc. */
static void metadata_cannot_be_written_by_others(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_arena *a = small_arena(5), *b;
    char path[64];
    int meta = kv_arena_fds(a)[0];
    OK(kv_arena_open(&e, &b, dup_fds(a), NULL));
    snprintf(path, sizeof path, "/proc/self/fd/%d", meta);
    int again = open(path, O_RDWR | O_CLOEXEC);
    for (int i = 0; i < 2; i++) {
        int fd = i ? again : meta;
        assert_true(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
        void *p = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
        assert_true(p == MAP_FAILED || mprotect(p, 4096, PROT_READ | PROT_WRITE) != 0);
        assert_int_equal(pwrite(fd, "x", 1, 0), -1);
        assert_int_not_equal(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096), 0);
        assert_int_not_equal(ftruncate(fd, 0), 0);
    }
    kv_arena_seq(a, 3)->n_block = 7; /* and it is seen by those who read */
    assert_int_equal(kv_arena_seq(b, 3)->n_block, 7);
    close(again);
    kv_arena_free(b);
    kv_arena_free(a);
}

/* A client that still has the metadata of a killed kvstore: the next one has released its sequence meanwhile. */
static void a_client_sees_the_generations_of_the_next_kvstore(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_arena *a = small_arena(5), *client, *next, *third;
    kv_arena_new_gen(a, 2);
    OK(kv_arena_open(&e, &client, dup_fds(a), NULL));
    assert_true(kv_arena_valid(client, 2, 1) && !kv_arena_valid(client, 2, 0));
    OK(kv_arena_adopt(&e, &next, dup_fds(a), NULL));
    kv_arena_free(a);
    assert_true(kv_arena_valid(client, 2, 1));
    IS_NO(kv_arena_adopt(&e, &third, dup_fds(client), NULL), "another kvstore has replaced its metadata since");
    kv_arena_new_gen(next, 2);
    assert_false(kv_arena_valid(client, 2, 1));
    assert_false(kv_arena_valid(client, 2, 2));
    OK(kv_arena_replace(&e, client, dup_fds(next)));
    assert_true(kv_arena_valid(client, 2, 2) && !kv_arena_valid(client, 2, 1));
    OK(kv_arena_adopt(&e, &third, dup_fds(client), NULL));
    kv_arena_free(third);
    kv_arena_free(next);
    kv_arena_free(client);
}

static void a_pool_over_an_arena(void **state)
{
    (void)state;
    struct err e = {0};
    struct kv_arena *a = small_arena(8);
    struct kv_pool *p;
    struct kv_table t = {0};
    int32_t slots[] = {3, 7, 1};
    OK(kv_pool_of_arena(&e, &p, a));
    assert_int_equal(kv_pool_slots(p), 8);
    assert_int_equal(kv_pool_idle(p), 0);
    assert_int_equal(kv_table_grow(&e, &t, p, 1), ERR_NO);
    kv_pool_put(p, slots, 3);
    OK(kv_table_grow(&e, &t, p, 2));
    assert_ptr_equal(kv_tile(p, 7, 0, 0), kv_arena_bytes(a, 7));
    assert_true((t.slot[0] == 1 && t.slot[1] == 7));
    assert_int_equal(kv_pool_get(p, slots, 3), 1);
    assert_int_equal(slots[0], 3);
    kv_table_release(&t, p);
    assert_int_equal(kv_pool_idle(p), 2);
    kv_pool_free(p);
    assert_int_equal(kv_arena_bytes(a, 0)[0], 0); /* still mapped */
    kv_arena_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_requested_size),
        cmocka_unit_test(refuses_a_budget_below_one_block),
        cmocka_unit_test(adopts_an_arena_from_its_descriptors),
        cmocka_unit_test(refuses_damaged_heads),
        cmocka_unit_test(metadata_cannot_be_written_by_others),
        cmocka_unit_test(a_client_sees_the_generations_of_the_next_kvstore),
        cmocka_unit_test(a_pool_over_an_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
