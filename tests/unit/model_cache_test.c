/*
 * The cache of packed weights as something at rest: damage is found, files of others are not used, what is used is
 * recorded. Every damaged file must be replaced by one with the same bytes as a file that was never damaged.
 */
#include "unit/model_build.h"

#include <dirent.h>
#include <sys/file.h>
#include <sys/mman.h>

#include "model/model.h"

static char dir[] = "/tmp/model_cache_test.XXXXXX";
static char path[64], packed[96], pack[512], lock[512];
static char log_text[1024];
static int log_lines;

static void log_line(void *arg, const char *text)
{
    (void)arg;
    snprintf(log_text, sizeof log_text, "%s", text);
    log_lines++;
}

static struct model *open_with(bool verify)
{
    struct err e = {0};
    struct model *m = NULL;
    log_lines = 0;
    log_text[0] = 0;
    if (model_open(&e, &m, &(struct model_opts){.path = path, .verify = verify, .log = log_line}))
        fail_msg("%s", e.text);
    return m;
}

/* Finds the files of the one model of the cache. */
static void find_files(void)
{
    DIR *d = opendir(packed);
    assert_non_null(d);
    for (struct dirent *en; (en = readdir(d));) {
        if (strstr(en->d_name, ".pack"))
            snprintf(pack, sizeof pack, "%s/%s", packed, en->d_name);
        if (strstr(en->d_name, ".lock"))
            snprintf(lock, sizeof lock, "%s/%s", packed, en->d_name);
    }
    closedir(d);
}

static struct bytes read_file(const char *name)
{
    struct bytes b = {0};
    uint8_t part[4096];
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(part, 1, sizeof part, f)) > 0;)
        put_bytes(&b, part, n);
    fclose(f);
    return b;
}

/* Opens once more: the model is packed again, with one line that states why, and then it is used. */
static void packed_again(bool verify, const char *part, const struct bytes *right)
{
    struct model *m = open_with(verify);
    assert_true(m->packed_now && m->shared);
    assert_int_equal(log_lines, 1);
    assert_text_has(log_text, pack);
    assert_text_has(log_text, part);
    model_free(m);
    struct bytes now = read_file(pack);
    assert_int_equal(now.n, right->n);
    assert_memory_equal(now.p, right->p, now.n);
    free(now.p);
    struct stat st;
    assert_int_equal(lstat(pack, &st), 0);
    assert_true(S_ISREG(st.st_mode) && (st.st_mode & 07777) == 0600 && st.st_uid == geteuid());
    m = open_with(verify);
    assert_true(!m->packed_now && m->shared && log_lines == 0);
    model_free(m);
}

static struct bytes fresh(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s/*", packed);
    assert_int_equal(system(command), 0);
    struct gguf_build b = llama(&plain_shape);
    build_write(&b, path);
    build_free(&b);
    model_free(open_with(false));
    find_files();
    return read_file(pack);
}

/* Changes bytes of the packed file and gives it its time of modification back. */
static void damage(off_t from, off_t step)
{
    struct stat st;
    int fd = open(pack, O_RDWR);
    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    for (off_t at = from; at < st.st_size; at += step) {
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 0x20;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    assert_int_equal(futimens(fd, (const struct timespec[]){st.st_atim, st.st_mtim}), 0);
    close(fd);
}

/* A byte in each 4 KiB, and a single one in the last tensor; the time of modification stays the same. */
static void test_damaged_weights_are_packed_again(void **state)
{
    (void)state;
    struct bytes right = fresh();
    damage(100 * 1024 + 77, 4096);
    packed_again(false, "damaged", &right);
    damage(64, 4096);
    packed_again(false, "damaged", &right);
    size_t last = right.n;
    while (right.p[last - 1] == 0)
        last--;
    damage((off_t)last - 1, 1 << 30);
    packed_again(false, "blk.1.ffn_down.weight", &right);
    free(right.p);
}

/* A record that claims that a damaged file was verified: only --verify-weights reads it again. After a start of the
 * host the record is of another boot, so everybody does. */
static void test_verification_is_recorded(void **state)
{
    (void)state;
    struct bytes right = fresh();
    struct bytes record = read_file(lock);
    assert_true(record.n > 0);
    model_free(open_with(false));
    struct bytes again = read_file(lock);
    assert_true(again.n == record.n && !memcmp(again.p, record.p, record.n));
    /* A write through a mapping that is never synced changes no time that the record has. */
    int fd = open(pack, O_RDWR);
    struct stat st, now;
    assert_int_equal(fstat(fd, &st), 0);
    uint8_t *map = mmap(NULL, right.n, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_ptr_not_equal(map, MAP_FAILED);
    map[64 * 1024] ^= 1;
    assert_int_equal(fstat(fd, &now), 0);
    bool silent = now.st_ctim.tv_sec == st.st_ctim.tv_sec && now.st_ctim.tv_nsec == st.st_ctim.tv_nsec;
    if (silent) {
        struct model *m = open_with(false);
        assert_false(m->packed_now);
        model_free(m);
    }
    packed_again(true, "damaged", &right);
    munmap(map, right.n);
    close(fd);
    /* The record of another boot, or a torn one, is not used: the file is verified, found right and recorded. */
    record = read_file(lock);
    for (size_t at = 0; at < record.n; at += 5) {
        fd = open(lock, O_RDWR);
        uint8_t byte = (uint8_t)(record.p[at] ^ 1);
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
        close(fd);
        struct model *m = open_with(false);
        assert_true(!m->packed_now && log_lines == 0);
        model_free(m);
        free(again.p);
        again = read_file(lock);
        assert_memory_equal(again.p, record.p, record.n);
    }
    free(again.p);
    free(record.p);
    free(right.p);
}

/* A packed file that others can write, a symbolic link to one with the right bytes, a FIFO: replaced. One that belongs
 * to another user too, if this process may make one. */
static void test_files_of_others_are_not_used(void **state)
{
    (void)state;
    char copy[80], command[1200];
    struct bytes right = fresh();
    assert_int_equal(chmod(pack, 0666), 0);
    packed_again(false, "can be written by others (mode 0666)", &right);
    assert_int_equal(chmod(pack, 0620), 0);
    packed_again(false, "can be written by others (mode 0620)", &right);
    snprintf(copy, sizeof copy, "%s/copy", dir);
    snprintf(command, sizeof command, "mv %s %s && ln -s %s %s", pack, copy, copy, pack);
    assert_int_equal(system(command), 0);
    packed_again(false, "is a symbolic link", &right);
    snprintf(command, sizeof command, "rm %s && mkfifo -m 600 %s", pack, pack);
    assert_int_equal(system(command), 0);
    packed_again(false, "is not a regular file", &right);
    if (geteuid() == 0) {
        assert_int_equal(chown(pack, 12345, 0), 0);
        packed_again(false, "belongs to user 12345, neither to this user nor to root", &right);
    }
    free(right.p);
}

static void private_because(const char *part)
{
    struct model *m = open_with(false);
    assert_true(!m->shared && m->packed_now);
    assert_text_has(m->not_shared.text, packed);
    assert_text_has(m->not_shared.text, part);
    assert_text_has(log_text, part);
    assert_int_equal(log_lines, 1);
    model_free(m);
}

/* In a directory where others can write, any file could be exchanged: it is not used, and that is logged. */
static void test_directories_of_others_are_not_used(void **state)
{
    (void)state;
    struct bytes right = fresh();
    assert_int_equal(chmod(packed, 0777), 0);
    private_because("can be written by others (mode 0777)");
    assert_int_equal(chmod(packed, 0700), 0);
    if (geteuid() == 0) {
        assert_int_equal(chown(packed, 12345, 0), 0);
        private_because("belongs to user 12345");
        assert_int_equal(chown(packed, 0, 0), 0);
    }
    struct model *m = open_with(false);
    assert_true(m->shared && !m->packed_now && log_lines == 0);
    model_free(m);
    free(right.p);
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    snprintf(packed, sizeof packed, "%s/cache/phasepipe/packed", dir);
    char cache[80];
    snprintf(cache, sizeof cache, "%s/cache", dir);
    return setenv("XDG_CACHE_HOME", cache, 1);
}

static int teardown(void **state)
{
    (void)state;
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damaged_weights_are_packed_again),
        cmocka_unit_test(test_verification_is_recorded),
        cmocka_unit_test(test_files_of_others_are_not_used),
        cmocka_unit_test(test_directories_of_others_are_not_used),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
