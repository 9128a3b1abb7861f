/*
 * Packed weights and their cache: made once, shared, made again when the model or the packed file has changed, replaced
 * by private memory if there is no room. Expected bytes follow the layout in kernels.h, computed by hand.
 */
#include "unit/model_build.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/wait.h>

#include "model/model.h"

static char dir[] = "/tmp/model_pack_test.XXXXXX";
static char path[64], packed[96];

static struct model *open_ok(const char *file)
{
    struct err e = {0};
    struct model *m = NULL;
    if (model_open(&e, &m, &(struct model_opts){.path = file}))
        fail_msg("%s", e.text);
    return m;
}

static void make_model(const struct shape *s)
{
    struct gguf_build b = llama(s);
    build_write(&b, path);
    build_free(&b);
}

/* Counts the packed files of the cache; `name` gets the path of the last one. */
static int count_packed(char *name, size_t n)
{
    int count = 0;
    DIR *d = opendir(packed);
    for (struct dirent *en; d && (en = readdir(d));) {
        assert_null(strstr(en->d_name, ".tmp"));
        if (!strstr(en->d_name, ".pack"))
            continue;
        count++;
        snprintf(name, n, "%s/%s", packed, en->d_name);
    }
    if (d)
        closedir(d);
    return count;
}

static void empty_cache(void)
{
    char name[512];
    while (count_packed(name, sizeof name) > 0)
        assert_int_equal(unlink(name), 0);
}

/* F32 values that are exact in bf16 become BF16, [k/2][16][2]; others stay F32, [k][16]; norms become f32. */
static void test_weights_have_the_layout_of_kernels(void **state)
{
    (void)state;
    for (int fine = 0; fine < 2; fine++) {
        struct shape s = plain_shape;
        s.fine = fine;
        s.f16_norms = fine;
        make_model(&s);
        struct model *m = open_ok(path);
        const struct kern_mat *w = &m->layer[1].down;
        assert_int_equal(w->type, fine ? KERN_F32 : KERN_BF16);
        assert_int_equal((uintptr_t)w->data % 64, 0);
        for (uint64_t row = 0; row < s.hidden; row++)
            for (uint64_t k = 0; k < s.ffn; k++) {
                const uint8_t *group = w->data + row / 16 * w->group_bytes;
                float want = value_at(row * s.ffn + k, fine), have = 0;
                if (fine)
                    memcpy(&have, group + (k * 16 + row % 16) * 4, 4);
                else
                    memcpy((uint8_t *)&have + 2, group + (k / 2 * 32 + row % 16 * 2 + k % 2) * 2, 2);
                assert_true(have == want);
            }
        /* 40 rows of the embedding: half of the last group is zeros. */
        assert_int_equal(m->embed.rows, 40);
        const uint8_t *last = m->embed.data + 2 * m->embed.group_bytes;
        for (uint64_t i = 8; i < 16; i++)
            assert_true(last[i * 4] == 0 && last[i * 4 + 1] == 0 && last[i * 4 + 3] == 0);
        for (uint64_t i = 0; i < s.hidden; i++)
            assert_true(m->layer[0].ffn_norm[i] == 1.5f && m->output_norm[i] == 1.5f);
        assert_null(m->layer[0].bq);
        model_free(m);
    }
}

/* The default model's types: embedding Q8_0, the others Q4_1; its fingerprint as b2sum -l 256 prints it. */
static void test_default_model_packs(void **state)
{
    (void)state;
    struct model *m = open_ok(default_model());
    assert_int_equal(m->embed.type, KERN_Q8_0);
    assert_ptr_equal(m->output.data, m->embed.data);
    assert_int_equal(m->embed.rows, 49152);
    for (int i = 0; i < 30; i++) {
        const struct model_layer *l = &m->layer[i];
        assert_int_equal(l->wq.type, KERN_Q4_1);
        assert_int_equal(l->down.type, KERN_Q4_1);
        assert_int_equal(l->wk.rows, 192);
        assert_int_equal(l->gate.rows, 1536);
        assert_int_equal(l->down.cols, 1536);
    }
    char command[4200], line[65] = {0}, hex[65];
    snprintf(command, sizeof command, "b2sum -l 256 '%s'", default_model());
    FILE *f = popen(command, "r");
    assert_non_null(f);
    assert_int_equal(fread(line, 1, 64, f), 64);
    pclose(f);
    for (int i = 0; i < 32; i++)
        snprintf(hex + 2 * i, 3, "%02x", m->fingerprint[i]);
    assert_string_equal(hex, line);
    assert_true(m->shared && model_huge_bytes(m) <= m->map_bytes);
    print_message("%llu of %llu bytes in huge pages\n", (unsigned long long)model_huge_bytes(m),
                  (unsigned long long)m->map_bytes);
    /* The first group of the embedding compared with the file: w8 is the stored int8 plus 128, byte q*64 + 4r + t. */
    const struct gguf_tensor *t = gguf_tensor_find(m->gguf, "token_embd.weight");
    uint8_t block[34];
    struct err e;
    assert_int_equal(gguf_read(&e, m->gguf, t, 5 * (576 / 32 * 34), block, sizeof block), 0);
    for (int k = 0; k < 32; k++)
        assert_int_equal(m->embed.data[k / 4 * 64 + 4 * 5 + k % 4], (uint8_t)(block[2 + k] + 128));
    model_free(m);
}

static void test_model_is_packed_once(void **state)
{
    (void)state;
    char name[512];
    empty_cache();
    make_model(&plain_shape);
    struct model *a = open_ok(path), *b = open_ok(path);
    assert_true(a->packed_now && a->shared && !b->packed_now && b->shared);
    assert_memory_equal(a->fingerprint, b->fingerprint, 32);
    assert_memory_equal(a->map, b->map, a->map_bytes);
    assert_int_equal(count_packed(name, sizeof name), 1);
    /* Only the time changed: the model is packed again, and the old file is removed. */
    assert_int_equal(utimensat(AT_FDCWD, path, (const struct timespec[]){{1, 0}, {1, 0}}, 0), 0);
    struct model *c = open_ok(path);
    assert_true(c->packed_now);
    assert_int_equal(count_packed(name, sizeof name), 1);
    model_free(a);
    model_free(b);
    model_free(c);
}

/* Several processes start at once: one packs, the others wait and map. */
static void test_concurrent_processes_pack_once(void **state)
{
    (void)state;
    enum { N = 6 };
    empty_cache();
    int *packers = mmap(NULL, sizeof *packers, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(packers, MAP_FAILED);
    pid_t pid[N];
    for (int i = 0; i < N; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0) {
            struct err e;
            struct model *m;
            if (model_open(&e, &m, &(struct model_opts){.path = default_model()}) || !m->shared)
                _exit(1);
            __atomic_add_fetch(packers, m->packed_now, __ATOMIC_SEQ_CST);
            model_free(m);
            _exit(0);
        }
    }
    for (int i = 0; i < N; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
    }
    assert_int_equal(*packers, 1);
    munmap(packers, sizeof *packers);
}

/* A damaged file in the cache is not used: truncated, longer, any byte of its header changed, of an older version. */
static void test_damaged_files_are_not_used(void **state)
{
    (void)state;
    char name[512];
    empty_cache();
    make_model(&plain_shape);
    model_free(open_ok(path));
    assert_int_equal(count_packed(name, sizeof name), 1);
    struct stat st;
    assert_int_equal(stat(name, &st), 0);
    for (int i = 0; i < 8; i++) {
        static const off_t spot[] = {0, 8, 16, 30, 70, 100, 1000};
        if (i == 7) {
            assert_int_equal(truncate(name, st.st_size / 2), 0);
        } else {
            int fd = open(name, O_RDWR);
            uint8_t byte;
            assert_int_equal(pread(fd, &byte, 1, spot[i]), 1);
            byte ^= 0x55;
            assert_int_equal(pwrite(fd, &byte, 1, spot[i]), 1);
            close(fd);
        }
        struct model *m = open_ok(path);
        assert_true(m->packed_now && m->shared);
        model_free(m);
        m = open_ok(path);
        assert_false(m->packed_now);
        model_free(m);
    }
    assert_int_equal(count_packed(name, sizeof name), 1);
}

/* Without a cache: the same bytes in private memory, and the reason. */
static void test_without_a_cache_memory_is_private(void **state)
{
    (void)state;
    make_model(&plain_shape);
    struct model *a = open_ok(path);
    char was[64], file[80];
    snprintf(was, sizeof was, "%s", getenv("XDG_CACHE_HOME"));
    snprintf(file, sizeof file, "%s/file", dir);
    write_file(file, "x", 1);
    setenv("XDG_CACHE_HOME", file, 1);
    struct model *b = open_ok(path);
    setenv("XDG_CACHE_HOME", was, 1);
    assert_true(a->shared && !b->shared && b->packed_now);
    assert_text_has(b->not_shared.text, file);
    assert_memory_equal(a->fingerprint, b->fingerprint, 32);
    assert_int_equal(a->map_bytes, b->map_bytes);
    assert_memory_equal(a->map, b->map, a->map_bytes);
    model_free(a);
    model_free(b);
}

/* A full disk: a file system of 1 MiB, if this process may mount one. */
static void test_full_disk_is_reported(void **state)
{
    (void)state;
    char small[80], command[256], was[64];
    snprintf(small, sizeof small, "%s/small", dir);
    snprintf(was, sizeof was, "%s", getenv("XDG_CACHE_HOME"));
    snprintf(command, sizeof command, "mkdir %s && mount -t tmpfs -o size=1m none %s 2>/dev/null", small, small);
    if (system(command) != 0) {
        print_message("skipped a full disk: this process may not mount\n");
        return;
    }
    make_model(&plain_shape);
    setenv("XDG_CACHE_HOME", small, 1);
    struct model *m = open_ok(path);
    setenv("XDG_CACHE_HOME", was, 1);
    struct statvfs vfs;
    bool room = statvfs(small, &vfs) == 0 && vfs.f_bfree * vfs.f_bsize > 900 * 1024;
    snprintf(command, sizeof command, "umount %s", small);
    assert_int_equal(system(command), 0);
    assert_false(m->shared);
    assert_text_has(m->not_shared.text, "No space left");
    assert_true(room); /* the incomplete file was removed */
    model_free(m);
}

/* A model file that is truncated while it is packed gives an error and leaves no file in the cache. */
static void cut_file(void *arg, uint64_t done, uint64_t total)
{
    (void)done;
    (void)total;
    assert_int_equal(truncate(arg, 4096), 0);
}

static void test_truncation_while_packing_is_an_error(void **state)
{
    (void)state;
    char name[512];
    empty_cache();
    make_model(&plain_shape);
    struct err e = {0};
    struct model *m = NULL;
    struct model_opts o = {.path = path, .progress = cut_file, .progress_arg = path};
    assert_int_equal(model_open(&e, &m, &o), ERR_NO);
    assert_text_has(e.text, path);
    assert_int_equal(count_packed(name, sizeof name), 0);
}

/* An open model is read from its packed file, so truncating the GGUF has no effect. */
static void test_truncation_while_open_has_no_effect(void **state)
{
    (void)state;
    make_model(&plain_shape);
    struct model *m = open_ok(path);
    assert_int_equal(truncate(path, 100), 0);
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < m->map_bytes; i += 4096)
        sum = (uint8_t)(sum + ((const uint8_t *)m->map)[i]);
    model_free(m);
}

/* Overwrites 2 or 4 bytes of a tensor in the model file. */
static void patch(const char *tensor, uint64_t at, uint32_t v, size_t n)
{
    struct err e;
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(&e, &g, path), 0);
    const struct gguf_tensor *t = gguf_tensor_find(g, tensor);
    assert_true(t && at + n <= t->bytes);
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, &v, n, (off_t)(t->offset + at)), n);
    close(fd);
    gguf_free(g);
}

static void patched_refused(const char *part)
{
    char name[512];
    struct err e = {0};
    struct model *m = NULL;
    empty_cache();
    for (int again = 0; again < 2; again++) {
        assert_int_equal(model_open(&e, &m, &(struct model_opts){.path = path}), ERR_NO);
        assert_text_has(e.text, path);
        assert_text_has(e.text, part);
        assert_int_equal(count_packed(name, sizeof name), 0);
    }
}

/* One NaN or infinity in any tensor: the model is refused, at every start, and the tensor, row and column are named. */
static void test_weights_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    struct shape s = plain_shape;
    s.f16_norms = true;
    make_model(&s);
    patch("blk.1.ffn_down.weight", (63 * 96 + 95) * 4, 0x7fc00000, 4);
    patched_refused("tensor blk.1.ffn_down.weight has a value that is NaN or infinite in row 63, column 95");
    make_model(&s);
    patch("token_embd.weight", 0, 0xff800000, 4);
    patched_refused("tensor token_embd.weight has a value that is NaN or infinite in row 0, column 0");
    make_model(&s);
    patch("output_norm.weight", 63 * 2, 0x7c00, 2);
    patched_refused("tensor output_norm.weight has a value that is NaN or infinite in row 0, column 63");
    make_model(&plain_shape);
    patch("blk.0.attn_norm.weight", 7 * 4, 0x7f800001, 4);
    patched_refused("tensor blk.0.attn_norm.weight has a value that is NaN or infinite in row 0, column 7");
    make_model(&plain_shape);
    patch("blk.0.attn_norm.weight", 7 * 4, 0x7f7fffff, 4); /* the largest number */
    model_free(open_ok(path));
}

/* The same in the scales of quantised types, with a copy of the default model: Q4_1 has 18 blocks of {f16 d, f16 m, 16
 * bytes} a row of 576 columns, Q8_0 has {f16 d, 32 bytes}. */
static void test_scales_that_are_not_finite_are_refused(void **state)
{
    (void)state;
    char command[4300];
    snprintf(command, sizeof command, "cp '%s' %s", default_model(), path);
    assert_int_equal(system(command), 0);
    patch("blk.29.attn_k.weight", (191 * 18 + 17) * 20 + 2, 0x7e00, 2);
    patched_refused("tensor blk.29.attn_k.weight has a scale that is NaN or infinite in row 191, column 544");
    patch("token_embd.weight", (49151 * 18 + 3) * 34, 0xfc00, 2);
    patched_refused("tensor token_embd.weight has a scale that is NaN or infinite in row 49151, column 96");
}

static void seen(void *arg, uint64_t done, uint64_t total)
{
    uint64_t *last = arg;
    assert_true(done >= last[0] && done <= total);
    last[0] = done;
    last[1]++;
}

static void test_progress_is_reported(void **state)
{
    (void)state;
    empty_cache();
    make_model(&plain_shape);
    uint64_t last[2] = {0};
    struct err e;
    struct model *m;
    assert_int_equal(model_open(&e, &m, &(struct model_opts){.path = path, .progress = seen, .progress_arg = last}), 0);
    assert_true(last[1] >= 14 && last[0] > 0 && last[0] <= m->map_bytes);
    model_free(m);
}

static void test_missing_default_model_is_named(void **state)
{
    (void)state;
    struct err e = {0};
    struct model *m = NULL;
    assert_int_equal(model_open(&e, &m, &(struct model_opts){0}), ERR_NO);
    assert_string_equal(e.text,
                        "no default model in the cache directory: run scripts/get-model, or name a file with -m");
}

/* A field of the mapping that starts at `at`, in KiB. */
static long smaps_kib(const void *at, const char *field)
{
    char line[4352], start[32];
    bool in = false;
    long v = -1;
    FILE *f = fopen("/proc/self/smaps", "r");
    snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)at);
    while (f && fgets(line, sizeof line, f)) {
        in = in ? line[0] >= 'A' && line[0] <= 'Z' : strncmp(line, start, strlen(start)) == 0;
        if (in && strncmp(line, field, strlen(field)) == 0)
            v = strtol(line + strlen(field), NULL, 10);
    }
    if (f)
        fclose(f);
    return v;
}

/* Opens the model, reads all of it, waits for the other child, and writes its share. */
static int mapper(int out, int gate)
{
    struct err e;
    struct model *m;
    if (model_open(&e, &m, &(struct model_opts){.path = default_model()}))
        return 1;
    volatile uint8_t sum = 0;
    for (uint64_t i = 0; i < m->map_bytes; i += 4096)
        sum = (uint8_t)(sum + ((const uint8_t *)m->map)[i]);
    long mapped[3] = {0};
    char go;
    if (write(out, mapped, sizeof mapped) != sizeof mapped || read(gate, &go, 1) != 1)
        return 1;
    long have[3] = {smaps_kib(m->map, "Pss:"), smaps_kib(m->map, "Rss:"), (long)(m->map_bytes / 1024)};
    if (write(out, have, sizeof have) != sizeof have || read(gate, &go, 1) != 1)
        return 1;
    model_free(m);
    return 0;
}

/* Two processes hold the weights once: each has all of them in its Rss and half of them in its Pss. */
static void test_processes_share_the_weights(void **state)
{
    (void)state;
    int from[2][2], to[2][2];
    pid_t pid[2];
    long v[2][3];
    model_free(open_ok(default_model()));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pipe(from[i]) | pipe(to[i]), 0);
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0)
            _exit(mapper(from[i][1], to[i][0]));
    }
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < 2; i++)
            assert_int_equal(read(from[i][0], v[i], sizeof v[i]), sizeof v[i]);
        for (int i = 0; i < 2; i++)
            assert_int_equal(write(to[i][1], "x", 1), 1);
        if (turn == 1)
            break;
    }
    for (int i = 0; i < 2; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_int_equal(status, 0);
        close(from[i][0]);
        close(from[i][1]);
        close(to[i][0]);
        close(to[i][1]);
    }
    long all = v[0][2];
    for (int i = 0; i < 2; i++)
        if (v[i][1] < all * 95 / 100 || v[i][0] < all * 45 / 100 || v[i][0] > all * 55 / 100)
            fail_msg("of %ld KiB process %d has Rss %ld and Pss %ld", all, i, v[i][1], v[i][0]);
}

static int setup(void **state)
{
    (void)state;
    if (setenv("PHASEPIPE_TEST_MODEL", default_model(), 1) || !mkdtemp(dir))
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
        cmocka_unit_test(test_weights_have_the_layout_of_kernels),
        cmocka_unit_test(test_default_model_packs),
        cmocka_unit_test(test_model_is_packed_once),
        cmocka_unit_test(test_concurrent_processes_pack_once),
        cmocka_unit_test(test_damaged_files_are_not_used),
        cmocka_unit_test(test_without_a_cache_memory_is_private),
        cmocka_unit_test(test_full_disk_is_reported),
        cmocka_unit_test(test_truncation_while_packing_is_an_error),
        cmocka_unit_test(test_truncation_while_open_has_no_effect),
        cmocka_unit_test(test_weights_that_are_not_finite_are_refused),
        cmocka_unit_test(test_scales_that_are_not_finite_are_refused),
        cmocka_unit_test(test_progress_is_reported),
        cmocka_unit_test(test_missing_default_model_is_named),
        cmocka_unit_test(test_processes_share_the_weights),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
