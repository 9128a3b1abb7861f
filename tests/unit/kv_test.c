/* KV pool, tables and the packed tail. Expected values follow from the layout in kernels/kernels.h, computed here
 * element by element. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kv/bytes.h"

static struct kv_layout layout(enum kern_kv type, int hd)
{
    struct kv_layout l;
    kv_layout_init(&l, type, 3, 2, hd);
    return l;
}

static void a_slot_is_an_odd_number_of_pages(void **state)
{
    (void)state;
    for (int hd = 16; hd <= 128; hd *= 2) {
        struct kv_layout l = layout(KERN_KV_INT8, hd);
        assert_int_equal(l.tile_bytes, 2 * 32 * (size_t)hd + 2 * 32 * 4);
        assert_true(l.slot_bytes >= 3 * l.layer_bytes);
        assert_true(l.slot_bytes % 4096 == 0 && l.slot_bytes / 4096 % 2 == 1);
    }
}

static void allocates_all_blocks_or_none(void **state)
{
    (void)state;
    struct err e;
    struct kv_layout l = layout(KERN_KV_INT8, 16);
    struct kv_pool *p = NULL;
    assert_int_equal(kv_pool_new(&e, &p, &l, l.slot_bytes - 1), ERR_NO);
    assert_int_equal(kv_pool_new(&e, &p, &l, 5 * l.slot_bytes + 1), 0);
    assert_int_equal(kv_pool_slots(p), 5);
    struct kv_table a = {0}, b = {0};
    assert_int_equal(kv_table_grow(&e, &a, p, 3), 0);
    assert_int_equal(kv_table_grow(&e, &a, p, 2), 0); /* never shrinks */
    assert_int_equal(a.n, 3);
    assert_int_equal(kv_table_grow(&e, &b, p, 3), ERR_NO);
    assert_int_equal(b.n, 0);
    assert_int_equal(kv_pool_idle(p), 2);
    assert_int_equal(kv_table_grow(&e, &b, p, 2), 0);
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 2; j++)
            assert_int_not_equal(a.slot[i], b.slot[j]);
    kv_table_release(&a, p);
    assert_int_equal(kv_pool_idle(p), 3);
    kv_table_release(&b, p);
    kv_table_release(&b, p); /* an empty table releases nothing */
    assert_int_equal(kv_pool_idle(p), 5);
    kv_pool_free(p);
}

struct form {
    enum kern_kv type;
    size_t size, ku, vw;
    int scaled;
};

static const struct form forms[] = {{KERN_KV_INT8, 1, 4, 4, 1}, {KERN_KV_BF16, 2, 2, 2, 0}, {KERN_KV_F16, 2, 1, 1, 0}};

/* Byte `b` of element (d, token t) of K or V in a tile. */
static size_t k_at(const struct form *f, size_t d, size_t t, size_t b)
{
    return ((d / f->ku * 32 + t) * f->ku + d % f->ku) * f->size + b;
}

static size_t v_at(const struct form *f, size_t hd, size_t d, size_t t, size_t b)
{
    size_t k = hd * 32 * f->size + (f->scaled ? 128 : 0);
    return k + ((t / f->vw * hd + d) * f->vw + t % f->vw) * f->size + b;
}

/* The packed form does not depend on tokens past the tail, and unpacking restores every byte of the others. */
static void packs_exactly_the_tokens_of_a_tail(void **state)
{
    (void)state;
    const size_t hd = 16;
    for (size_t i = 0; i < 3; i++) {
        const struct form *f = &forms[i];
        struct kv_layout l = layout(f->type, (int)hd);
        size_t all = l.layer_bytes * 3;
        uint8_t *x = malloc(all), *y = malloc(all), *z = malloc(all), *flat = malloc(all), *again = malloc(all);
        for (size_t j = 0; j < all; j++)
            x[j] = (uint8_t)(j * 31 + j / 256);
        for (int n = 1; n <= 32; n++) {
            size_t bytes = kv_packed_bytes(&l, 3, n);
            assert_true(n == 32 ? bytes == all : bytes < all);
            kv_pack(flat, &l, x, 3, n);
            memcpy(z, x, all); /* other bytes past the tail, the same packed form */
            for (size_t tile = 0; tile < 6; tile++)
                for (size_t t = (size_t)n; t < 32; t++)
                    for (size_t d = 0; d < hd; d++)
                        for (size_t b = 0; b < f->size; b++) {
                            z[tile * l.tile_bytes + k_at(f, d, t, b)] ^= 0xff;
                            z[tile * l.tile_bytes + v_at(f, hd, d, t, b)] ^= 0xff;
                        }
            kv_pack(again, &l, z, 3, n);
            assert_memory_equal(flat, again, bytes);
            memset(y, 0, all);
            kv_unpack(y, &l, flat, 3, n);
            for (size_t tile = 0; tile < 6; tile++)
                for (size_t t = 0; t < (size_t)n; t++)
                    for (size_t d = 0; d < hd; d++)
                        for (size_t b = 0; b < f->size; b++) {
                            size_t k = tile * l.tile_bytes + k_at(f, d, t, b),
                                   v = tile * l.tile_bytes + v_at(f, hd, d, t, b);
                            assert_int_equal(y[k], x[k]);
                            assert_int_equal(y[v], x[v]);
                        }
            for (size_t tile = 0; f->scaled && tile < 6; tile++)
                for (size_t s = 0; s < 2; s++) {
                    size_t at = tile * l.tile_bytes + 32 * hd + s * (128 + 32 * hd);
                    assert_memory_equal(y + at, x + at, (size_t)n * 4);
                }
        }
        free(x);
        free(y);
        free(z);
        free(flat);
        free(again);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slot_is_an_odd_number_of_pages),
        cmocka_unit_test(allocates_all_blocks_or_none),
        cmocka_unit_test(packs_exactly_the_tokens_of_a_tail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
