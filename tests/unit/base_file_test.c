/* base/file.h. */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
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

static char path[64];

static void put(const char *text, mode_t mode)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static struct err e;
static int load(enum file_access access)
{
    uint8_t *p = NULL;
    size_t n = 0;
    int rc = file_load(&e, &p, &n, path, 10, "private key", access);
    if (!rc) {
        assert_int_equal(n, 6);
        assert_memory_equal(p, "abcdef", 7); /* a zero byte follows */
    }
    file_forget(p, n);
    return rc;
}

static void a_file_is_loaded_only_if_others_have_no_more_access_than_permitted(void **state)
{
    static const struct {
        mode_t mode;
        bool any, trusted, secret;
    } modes[] = {{0600, true, true, true},   {0400, true, true, true},   {0640, true, true, false},
                 {0604, true, true, false},  {0620, true, false, false}, {0602, true, false, false},
                 {0666, true, false, false}, {0611, true, true, true}};
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        put("abcdef", modes[i].mode);
        assert_int_equal(load(FILE_ANY), modes[i].any ? 0 : ERR_NO);
        assert_int_equal(load(FILE_TRUSTED), modes[i].trusted ? 0 : ERR_NO);
        assert_int_equal(load(FILE_SECRET), modes[i].secret ? 0 : ERR_NO);
    }
    unlink(path);
}

/* The service manager gives its own access rights to the files of its directory. */
static void the_mode_of_a_credential_is_not_checked(void **state)
{
    (void)state;
    put("abcdef", 0644);
    assert_int_equal(load(FILE_SECRET), ERR_NO);
    setenv("CREDENTIALS_DIRECTORY", "/tmp", 1);
    assert_int_equal(load(FILE_SECRET), 0);
    setenv("CREDENTIALS_DIRECTORY", "/tm", 1);
    assert_int_equal(load(FILE_SECRET), ERR_NO);
    unsetenv("CREDENTIALS_DIRECTORY");
    unlink(path);
}

static void a_secret_of_another_user_is_refused(void **state)
{
    (void)state;
    if (geteuid())
        skip(); /* only root can give a file away */
    put("abcdef", 0600);
    assert_int_equal(chown(path, 12345, 0), 0);
    assert_int_equal(load(FILE_SECRET), ERR_NO);
    assert_non_null(
        strstr(e.text, ": this private key belongs to another user (uid 12345): chown it to uid 0 or root"));
    assert_int_equal(load(FILE_TRUSTED), 0);
    setenv("CREDENTIALS_DIRECTORY", "/tmp", 1);
    assert_int_equal(load(FILE_SECRET), 0);
    unsetenv("CREDENTIALS_DIRECTORY");
    unlink(path);
}

static void what_is_no_file_or_too_long_is_refused(void **state)
{
    (void)state;
    assert_int_equal(load(FILE_ANY), ERR_NO);
    put("abcdefghijk", 0600);
    assert_int_equal(load(FILE_ANY), ERR_NO);
    assert_non_null(strstr(e.text, "expected a regular file (private key) of at most 10 bytes"));
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(load(FILE_ANY), ERR_NO); /* and does not wait for a writer */
    unlink(path);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(load(FILE_ANY), ERR_NO);
    rmdir(path);
}

int main(void)
{
    snprintf(path, sizeof path, "/tmp/base_file_test.%d", (int)getpid());
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_at_an_offset_and_only_whole),
        cmocka_unit_test(a_file_is_loaded_only_if_others_have_no_more_access_than_permitted),
        cmocka_unit_test(the_mode_of_a_credential_is_not_checked),
        cmocka_unit_test(a_secret_of_another_user_is_refused),
        cmocka_unit_test(what_is_no_file_or_too_long_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
