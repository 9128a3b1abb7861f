/* The growing vector, the queue of bytes, the string builder and the units of time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/str.h"
#include "base/time.h"
#include "base/vec.h"

static void test_vec_keeps_its_elements(void **state)
{
    (void)state;
    struct err e;
    uint32_t *v = NULL;
    size_t n = 0, cap = 0, n_grown = 0;
    for (uint32_t i = 0; i < 100000; i++) {
        size_t was = cap;
        assert_int_equal(vec_reserve(&e, &v, &cap, n + 1, sizeof *v, "numbers"), 0);
        n_grown += cap != was;
        v[n++] = i;
    }
    assert_true(n_grown < 20);
    for (uint32_t i = 0; i < 100000; i++)
        assert_int_equal(v[i], i);
    assert_int_equal(vec_reserve(&e, &v, &cap, 1000000, sizeof *v, "numbers"), 0);
    assert_true(cap >= 1000000);
    assert_int_equal(v[99999], 99999);
    free(v);
}

/* Half of what is appended is taken at once: the order stays, and the memory is that of what is left. */
static void test_buf_is_a_queue(void **state)
{
    (void)state;
    struct buf b = {0};
    uint32_t in = 0, out = 0, x;
    for (int round = 0; round < 100000; round++) {
        size_t n_in = round < 50000 ? 2 : 0, n_out = buf_left(&b) ? 1 : 0;
        for (size_t i = 0; i < n_in; i++, in++) {
            assert_true(buf_reserve(&b, sizeof in));
            memcpy(b.p + b.n, &in, sizeof in);
            b.n += sizeof in;
        }
        for (size_t i = 0; i < n_out; i++, out++) {
            memcpy(&x, b.p + b.at, sizeof x);
            assert_int_equal(x, out);
            buf_take(&b, sizeof x);
        }
        assert_true(b.cap <= 4 * 50000 * sizeof x);
    }
    assert_int_equal(out, 100000 - 1);
    buf_take(&b, buf_left(&b));
    assert_true(!b.at && !b.n && b.cap <= BUF_KEEP_BYTES);
    assert_true(buf_reserve(&b, 2 * BUF_KEEP_BYTES));
    b.n = 1;
    buf_take(&b, 0);
    assert_non_null(b.p);
    buf_take(&b, 1);
    assert_null(b.p);
}

static void test_vec_holds_large_elements(void **state)
{
    (void)state;
    struct {
        char bytes[5000];
    } *v = NULL;
    size_t cap = 0;
    assert_true(vec_grow(&v, &cap, 0, sizeof *v));
    assert_null(v);
    assert_true(vec_grow(&v, &cap, 1, sizeof *v));
    assert_int_equal(cap, 1);
    memset(v, 1, sizeof *v);
    assert_true(vec_grow(&v, &cap, 2, sizeof *v));
    assert_int_equal(v[0].bytes[4999], 1);
    free(v);
}

static void test_vec_failure_changes_nothing(void **state)
{
    (void)state;
    struct err e;
    uint64_t *v = NULL;
    size_t cap = 0;
    assert_true(vec_grow(&v, &cap, 3, sizeof *v));
    uint64_t *was = v;
    size_t cap_was = cap;
    assert_false(vec_grow(&v, &cap, SIZE_MAX, sizeof *v));
    assert_false(vec_grow(&v, &cap, SIZE_MAX / sizeof *v + 1, sizeof *v));
    assert_int_equal(vec_reserve(&e, &v, &cap, SIZE_MAX / 8, sizeof *v, "the ids"), ERR_SYS);
    assert_string_equal(e.text, "out of memory for the ids (18446744073709551608 bytes)");
    assert_ptr_equal(v, was);
    assert_int_equal(cap, cap_was);
    free(v);
}

static void test_str_builds(void **state)
{
    (void)state;
    struct err e;
    struct str s = {0};
    char *out;
    size_t n;
    assert_string_equal(str_text(&s), "");
    str_add_text(&s, "a frame");
    str_add_char(&s, ' ');
    str_printf(&s, "%s of %d", "kind", 7);
    assert_string_equal(str_text(&s), "a frame kind of 7");
    str_add(&s, "\0x", 2);
    assert_int_equal(s.n, 19);
    str_cut(&s, 7);
    assert_string_equal(s.p, "a frame");
    assert_int_equal(str_take(&e, &out, &n, &s, "a text"), 0);
    assert_int_equal(n, 7);
    assert_string_equal(out, "a frame");
    assert_null(s.p);
    free(out);
    assert_int_equal(str_take(&e, &out, NULL, &s, "a text"), 0);
    assert_string_equal(out, "");
    free(out);
}

/* Texts of every length around the available memory. */
static void test_str_printf_grows(void **state)
{
    (void)state;
    struct str s = {0};
    char text[300];
    for (int i = 0; i < 300; i++) {
        memset(text, 'a' + i % 26, sizeof text);
        size_t before = s.n;
        str_printf(&s, "%.*s", i, text);
        assert_false(s.failed);
        assert_int_equal(s.n, before + (size_t)i);
        assert_int_equal(memcmp(s.p + before, text, (size_t)i), 0);
        assert_int_equal(strlen(s.p), s.n);
    }
    str_free(&s);
    assert_null(s.p);
}

static void test_str_failure_is_kept(void **state)
{
    (void)state;
    struct err e;
    struct str s = {0};
    char *out = (char *)&s;
    str_add_text(&s, "before");
    assert_null(str_reserve(&s, SIZE_MAX - 3));
    str_add_text(&s, " after");
    str_printf(&s, "%d", 1);
    assert_string_equal(str_text(&s), "before");
    assert_int_equal(str_check(&e, &s, "the answer"), ERR_SYS);
    assert_int_equal(str_take(&e, &out, NULL, &s, "the answer"), ERR_SYS);
    assert_string_equal(e.text, "out of memory for the answer (7 bytes)");
    assert_null(out);
    assert_null(s.p);
    str_add_text(&s, "again");
    assert_int_equal(str_check(&e, &s, "the answer"), 0);
    str_clear(&s);
    assert_int_equal(s.n, 0);
    str_free(&s);
}

static void test_times_are_rounded_up(void **state)
{
    (void)state;
    uint64_t a = time_now_ns(), b = time_now_ns();
    assert_true(a && b >= a);
    assert_true(time_wall_ns() / NS_S > 1700000000);
    assert_int_equal(time_left_ms(UINT64_MAX, 5), -1);
    assert_int_equal(time_left_ms(5, 5), 0);
    assert_int_equal(time_left_ms(4, 5), 0);
    assert_int_equal(time_left_ms(6, 5), 1);
    assert_int_equal(time_left_ms(5 + NS_MS, 5), 1);
    assert_int_equal(time_left_ms(6 + NS_MS, 5), 2);
    assert_int_equal(time_left_ms(UINT64_MAX - 1, 0), INT32_MAX);
    struct timespec t = time_spec(3 * NS_S + 7 * NS_US);
    assert_int_equal(t.tv_sec, 3);
    assert_int_equal(t.tv_nsec, 7000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_vec_keeps_its_elements),
        cmocka_unit_test(test_vec_holds_large_elements),
        cmocka_unit_test(test_buf_is_a_queue),
        cmocka_unit_test(test_vec_failure_changes_nothing),
        cmocka_unit_test(test_str_builds),
        cmocka_unit_test(test_str_printf_grows),
        cmocka_unit_test(test_str_failure_is_kept),
        cmocka_unit_test(test_times_are_rounded_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
