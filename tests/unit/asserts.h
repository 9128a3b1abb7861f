/* Assertions that the unit tests share. OK and IS_NO take a call that reports its failure in `struct err e`, which must
 * be in scope; the others need nothing. */
#ifndef TEST_ASSERTS_H
#define TEST_ASSERTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

/* The call returns 0. On failure the text of its error is shown. */
#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if (call)                                                                                                      \
            fail_msg("%s: %s", #call, e.text);                                                                         \
    } while (0)

/* The call fails, and the text of its error contains part. */
#define IS_NO(call, part)                                                                                              \
    do {                                                                                                               \
        if (!(call))                                                                                                   \
            fail_msg("%s succeeded", #call);                                                                           \
        assert_in(e.text, part);                                                                                       \
    } while (0)

/* One entry of a CMUnitTest array, with the functions setup and teardown of its file. */
#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

/* The text contains part. */
static inline void assert_in(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" does not contain \"%s\"", text, part);
}

#endif
