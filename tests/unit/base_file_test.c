/* base/file.h. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"

static void reads_at_an_offset_and_only_whole(void **state)
{
    (void)state;
    char got[8] = "";
    int fd = memfd_create("base_file_test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, "abcdef", 6), 6);
    assert_true(file_read_at(fd, got, 3, 2));
    assert_string_equal(got, "cde");
    assert_true(file_read_at(fd, got, 0, 100));
    assert_false(file_read_at(fd, got, 5, 2)); /* it ends after four */
    assert_false(file_read_at(fd, got, 1, 6));
    close(fd);
    assert_false(file_read_at(fd, got, 1, 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(reads_at_an_offset_and_only_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
