/*
 * Writing of JSON without a tree. RFC 8259 defines a JSON text, jansson parses it, and table 3-7 of the Unicode
 * standard defines well-formed UTF-8.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/json_write.h"

static struct str w;

/* The output, NUL-terminated. */
static const char *written(void)
{
    assert_false(w.failed);
    str_add(&w, "", 1);
    return w.p;
}

#define expect_written(call, text)                                                                                     \
    do {                                                                                                               \
        str_clear(&w);                                                                                                 \
        call;                                                                                                          \
        assert_string_equal(written(), text);                                                                          \
    } while (0)

static void integers_are_written_exactly(void **state)
{
    (void)state;
    expect_written(json_write_u64(&w, 0), "0");
    expect_written(json_write_u64(&w, UINT64_MAX), "18446744073709551615");
    expect_written(json_write_i64(&w, INT64_MIN), "-9223372036854775808");
    expect_written(json_write_i64(&w, INT64_MAX), "9223372036854775807");
    expect_written(json_write_i64(&w, -7), "-7");
    expect_written(json_write_f32(&w, NAN), "null");
    expect_written(json_write_f32(&w, -INFINITY), "null");
    expect_written(json_write_f32(&w, 1), "1.0");
    expect_written(json_write_f32(&w, -0.5f), "-0.5");
    expect_written(json_write_f32(&w, 0), "0.0");
}

/* Every float reads back as the same value. */
static void floats_read_back_as_the_same_value(void **state)
{
    static const float edge[] = {FLT_MIN, FLT_MAX, -FLT_MAX, FLT_EPSILON, 1e-45f, 0.1f, 16777216, 1e20f, -9999, 1e-7f};
    uint64_t x = 88172645463325252u; /* xorshift */
    (void)state;
    for (size_t i = 0; i < 20000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        uint32_t bits = (uint32_t)(x >> 20);
        float v, back;
        memcpy(&v, &bits, sizeof v);
        if (i < sizeof edge / sizeof *edge)
            v = edge[i];
        if (!isfinite(v))
            continue;
        str_clear(&w);
        json_write_f32(&w, v);
        const char *text = written();
        json_t *o = json_loads(text, JSON_DECODE_ANY, NULL);
        if (!json_is_real(o))
            fail_msg("%a is written %s", (double)v, text);
        back = (float)json_real_value(o);
        json_decref(o);
        assert_memory_equal(&back, &v, sizeof v);
    }
}

static void strings_are_escaped(void **state)
{
    (void)state;
    expect_written(json_write_string(&w, "a\"b\\c/d", 7), "\"a\\\"b\\\\c/d\"");
    expect_written(json_write_string(&w, "\b\f\n\r\t", 5), "\"\\b\\f\\n\\r\\t\"");
    expect_written(json_write_string(&w, "\0\x01\x1f\x7f", 4), "\"\\u0000\\u0001\\u001f\x7f\"");
    expect_written(json_write_string(&w, NULL, 0), "\"\"");
    expect_written(json_write_string(&w, "h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d", 12),
                   "\"h\xc3\xa9 \xe2\x82\xac \xf0\x9f\x8c\x8d\"");
    expect_written(json_write_escaped(&w, "\"x\"", 3), "\\\"x\\\"");
}

/* All strings of one and two bytes, and all beginnings of longer characters: copied if UTF-8, else repaired. */
static void all_short_byte_strings_are_valid_json(void **state)
{
    char s[6] = {'a', 0, 0, 'z'};
    (void)state;
    for (int i = 0; i < 256 * 256; i++) {
        s[1] = (char)(i >> 8);
        s[2] = (char)i;
        str_clear(&w);
        json_write_string(&w, s, 4);
        json_error_t je;
        json_t *o = json_loadb(w.p, w.n, JSON_DECODE_ANY | JSON_ALLOW_NUL, &je), *same = json_stringn(s, 4);
        if (!json_is_string(o))
            fail_msg("%02x %02x: %s", s[1] & 255, s[2] & 255, je.text);
        if (same) /* jansson accepts it: it is UTF-8 */
            assert_true(json_equal(o, same));
        else
            assert_non_null(strstr(written(), "\xef\xbf\xbd"));
        json_decref(o);
        json_decref(same);
    }
}

static void invalid_utf8_becomes_u_fffd(void **state)
{
    static const struct {
        const char *text;
        size_t n;
    } bad[] = {
        {"\xc0\x80", 2},     {"\xc1\xbf", 2},         {"\xe0\x80\x80", 3},     {"\xe0\x9f\xbf", 3},
        {"\xed\xa0\x80", 3}, {"\xed\xbf\xbf", 3},     {"\xe2\x82", 2},         {"\xf0\x8f\xbf\xbf", 4},
        {"\xf0\x9f\x8c", 3}, {"\xf4\x90\x80\x80", 4}, {"\xf5\x80\x80\x80", 4}, {"\xff", 1},
        {"\x80", 1},         {"\xe2\x28\xa1", 3},
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        str_clear(&w);
        json_write_string(&w, bad[i].text, bad[i].n);
        json_t *o = json_loadb(w.p, w.n, JSON_DECODE_ANY, NULL);
        assert_true(json_is_string(o));
        assert_non_null(strstr(json_string_value(o), "\xef\xbf\xbd"));
        json_decref(o);
    }
    /* the next byte is not skipped */
    expect_written(json_write_string(&w, "\xe2\x82\"", 3), "\"\xef\xbf\xbd\xef\xbf\xbd\\\"\"");
}

static void jansson_values_are_written_compact(void **state)
{
    json_t *o = json_pack("{s:[i,n,b],s:s}", "a", 1, 1, "b", "x\n");
    (void)state;
    expect_written(json_write_value(&w, o), "{\"a\":[1,null,true],\"b\":\"x\\n\"}");
    expect_written(json_write_value(&w, NULL), "null");
    json_decref(o);
}

/* Many small pieces, and one piece larger than all before. */
static void the_buffer_grows_with_any_piece(void **state)
{
    char *big = malloc(1 << 20);
    (void)state;
    memset(big, 'x', 1 << 20);
    str_clear(&w);
    for (int i = 0; i < 100000; i++)
        str_add_text(&w, "abc");
    str_add(&w, big, 1 << 20);
    assert_false(w.failed);
    assert_int_equal(w.n, 300000 + (1 << 20));
    assert_memory_equal(w.p + 299997, "abcxxx", 6);
    free(big);
}

static int close_all(void **state)
{
    (void)state;
    str_free(&w);
    assert_null(w.p);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_written_exactly),
        cmocka_unit_test(floats_read_back_as_the_same_value),
        cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(all_short_byte_strings_are_valid_json),
        cmocka_unit_test(invalid_utf8_becomes_u_fffd),
        cmocka_unit_test(jansson_values_are_written_compact),
        cmocka_unit_test(the_buffer_grows_with_any_piece),
    };
    return cmocka_run_group_tests(tests, NULL, close_all);
}
