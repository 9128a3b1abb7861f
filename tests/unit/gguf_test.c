/*
 * The GGUF reader: a valid file, then hostile and truncated ones. Expected values are those that the test writes by the
 * format's description, and for the default model what the Python package gguf prints.
 */
#include "unit/gguf_build.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

#include "model/gguf.h"

static char dir[] = "/tmp/gguf_test.XXXXXX";
static char path[64];

/* Opens a file that must be refused, and checks the error text. */
static void refused(const char *part)
{
    struct err e = {0};
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(&e, &g, path), ERR_NO);
    assert_null(g);
    assert_text_has(e.text, path);
    assert_text_has(e.text, part);
}

static void refused_build(struct gguf_build *g, const char *part)
{
    build_write(g, path);
    build_free(g);
    refused(part);
}

static struct gguf_build small(void)
{
    struct gguf_build g = {0};
    add_string(&g, "general.architecture", "llama");
    add_u32(&g, "n", 7);
    float data[64];
    for (int i = 0; i < 64; i++)
        data[i] = (float)i;
    add_tensor(&g, "a.weight", 0, 8, 4, data, 128);
    add_tensor(&g, "b.weight", 0, 3, 0, data, 12);
    return g;
}

static struct gguf *open_ok(void)
{
    struct err e = {0};
    struct gguf *g = NULL;
    int rc = gguf_open(&e, &g, path);
    if (rc)
        fail_msg("%s", e.text);
    return g;
}

static void test_values_are_read(void **state)
{
    (void)state;
    struct gguf_build b = small();
    b.version = 2;
    add_kv(&b, "u8", 0, &(uint8_t){200}, 1);
    add_kv(&b, "i8", 1, &(int8_t){-3}, 1);
    add_kv(&b, "u16", 2, &(uint16_t){65535}, 2);
    add_kv(&b, "i16", 3, &(int16_t){1234}, 2);
    add_kv(&b, "i32", 5, &(int32_t){-1}, 4);
    add_kv(&b, "u64", 10, &(uint64_t){1ull << 63}, 8);
    add_kv(&b, "i64", 11, &(int64_t){1ll << 40}, 8);
    add_kv(&b, "f32", 6, &(float){1.5f}, 4);
    add_kv(&b, "f64", 12, &(double){-2.25}, 8);
    add_kv(&b, "yes", 7, &(uint8_t){1}, 1);
    add_array(&b, "words", 8, 3);
    put_str(&b.kv, "x");
    put_str(&b.kv, "");
    put_str(&b.kv, "long one");
    add_array(&b, "ints", 5, 2);
    put_u32(&b.kv, 5);
    put_u32(&b.kv, (uint32_t)-6);
    add_array(&b, "big", 4, 1);
    put_u32(&b.kv, 0x80000000u);
    add_array(&b, "floats", 6, 1);
    put_bytes(&b.kv, &(float){0.25f}, 4);
    add_array(&b, "bytes", 0, 3);
    put_bytes(&b.kv, "abc", 3);
    build_write(&b, path);
    build_free(&b);

    struct gguf *g = open_ok();
    struct err e = {0};
    uint64_t u = 0;
    static const struct {
        const char *key;
        uint64_t v;
    } ints[] = {{"u8", 200}, {"u16", 65535}, {"i16", 1234}, {"u64", 1ull << 63}, {"i64", 1ull << 40}, {"n", 7}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        assert_int_equal(gguf_u64(&e, g, ints[i].key, &u, 0, UINT64_MAX), 0);
        assert_true(u == ints[i].v);
    }
    assert_int_equal(gguf_u64(&e, g, "i8", &u, 0, 9), ERR_NO);
    assert_text_has(e.text, "-3");
    assert_int_equal(gguf_u64(&e, g, "i32", &u, 0, UINT64_MAX), ERR_NO);
    assert_int_equal(gguf_u64(&e, g, "n", &u, 8, 9), ERR_NO);
    assert_text_has(e.text, "key n is 7");
    assert_int_equal(gguf_u64(&e, g, "f32", &u, 0, 9), ERR_NO);
    assert_int_equal(gguf_u64(&e, g, "absent", &u, 0, 9), ERR_NO);
    assert_text_has(e.text, "absent");

    double f = 0;
    assert_int_equal(gguf_f64(&e, g, "f32", &f), 0);
    assert_true(f == 1.5);
    assert_int_equal(gguf_f64(&e, g, "f64", &f), 0);
    assert_true(f == -2.25);
    assert_int_equal(gguf_f64(&e, g, "n", &f), ERR_NO);
    bool yes = false;
    assert_int_equal(gguf_bool(&e, g, "yes", &yes), 0);
    assert_true(yes);

    const struct gguf_str *s;
    const int32_t *i32;
    const float *f32;
    assert_int_equal(gguf_strs(&e, g, "words", &s, &u), 0);
    assert_int_equal(u, 3);
    assert_int_equal(s[0].n, 1);
    assert_int_equal(s[1].n, 0);
    assert_memory_equal(s[2].p, "long one", 8);
    assert_int_equal(gguf_i32s(&e, g, "ints", &i32, &u), 0);
    assert_int_equal(u, 2);
    assert_int_equal(i32[1], -6);
    assert_int_equal(gguf_i32s(&e, g, "big", &i32, &u), ERR_NO);
    assert_int_equal(gguf_f32s(&e, g, "floats", &f32, &u), 0);
    assert_true(f32[0] == 0.25f);
    assert_int_equal(gguf_strs(&e, g, "bytes", &s, &u), ERR_NO);
    gguf_free(g);
}

static void test_tensors_are_read(void **state)
{
    (void)state;
    struct gguf_build b = small();
    build_write(&b, path);
    build_free(&b);
    struct gguf *g = open_ok();
    struct err e = {0};
    assert_int_equal(gguf_tensor_count(g), 2);
    assert_null(gguf_tensor_find(g, "c.weight"));
    const struct gguf_tensor *t = gguf_tensor_find(g, "a.weight");
    assert_non_null(t);
    assert_int_equal(t->n_dim, 2);
    assert_int_equal(t->dim[0], 8);
    assert_int_equal(t->dim[1], 4);
    assert_int_equal(t->dim[2], 1);
    assert_int_equal(t->bytes, 128);
    float v[2];
    assert_int_equal(gguf_read(&e, g, t, 4 * 9, v, sizeof v), 0);
    assert_true(v[0] == 9 && v[1] == 10);

    /* The file is truncated while it is open: an error, not a bus error. */
    assert_int_equal(truncate(path, (off_t)t->offset + 40), 0);
    assert_int_equal(gguf_read(&e, g, t, 4 * 9, v, sizeof v), ERR_NO);
    assert_text_has(e.text, "a.weight");
    assert_text_has(e.text, path);
    gguf_free(g);
}

/* In a child process, so that memory and time can be measured. */
static void test_huge_claims_cost_nothing(void **state)
{
    (void)state;
    struct bytes claims[4] = {0};
    static const uint8_t rest[200];
    /* 2^62 pairs; 2^62 tensors; an array of 2^60 strings; a key of 1 GiB. */
    for (int i = 0; i < 4; i++) {
        put_bytes(&claims[i], "GGUF\3\0\0\0", 8);
        put_u64(&claims[i], i == 1 ? 1ull << 62 : 0);
        put_u64(&claims[i], i == 0 ? 1ull << 62 : i == 1 ? 0 : 1);
        if (i == 2) {
            put_str(&claims[i], "key");
            put_u32(&claims[i], 9);
            put_u32(&claims[i], 8);
            put_u64(&claims[i], 1ull << 60);
        } else if (i == 3) {
            put_u64(&claims[i], 1ull << 30);
        }
        put_bytes(&claims[i], rest, sizeof rest);
        write_file(path, claims[i].p, claims[i].n);
        free(claims[i].p);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            struct rusage before, after;
            struct timespec t0, t1;
            struct err e = {0};
            struct gguf *g;
            getrusage(RUSAGE_SELF, &before);
            clock_gettime(CLOCK_MONOTONIC, &t0);
            int rc = gguf_open(&e, &g, path);
            clock_gettime(CLOCK_MONOTONIC, &t1);
            getrusage(RUSAGE_SELF, &after);
            bool small_memory = after.ru_maxrss - before.ru_maxrss < 32 * 1024;
            _exit(rc == ERR_NO && small_memory && t1.tv_sec - t0.tv_sec <= 1 ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
}

static void test_hostile_pairs_are_refused(void **state)
{
    (void)state;
    write_file(path, "not a model at all, only text", 29);
    refused("not a GGUF file");
    struct gguf_build g = small();
    g.version = 1;
    refused_build(&g, "version 1");
    g = small();
    g.version = 0x03000000;
    refused_build(&g, "big-endian");
    g = small();
    add_u32(&g, "n", 8);
    refused_build(&g, "key n occurs twice");
    g = small();
    add_kv(&g, "odd", 13, "\0\0\0\0", 4);
    refused_build(&g, "key odd has unknown type 13");
    g = small();
    add_kv(&g, "maybe", 7, "\2", 1);
    refused_build(&g, "key maybe is a bool of value 2, not 0 or 1");
    g = small();
    add_array(&g, "deep", 9, 1);
    add_array(&g, "x", 4, 0);
    refused_build(&g, "array of arrays");
    g = small();
    add_array(&g, "odd", 99, 1);
    refused_build(&g, "unknown type 99");
    /* 2^61+1 elements of 8 bytes wrap to 8 bytes. */
    g = small();
    add_array(&g, "wrap", 10, (1ull << 61) + 1);
    put_u64(&g.kv, 0);
    refused_build(&g, "key wrap claims");
    g = small();
    add_kv(&g, "text", 8, NULL, 0);
    put_u64(&g.kv, UINT64_MAX);
    refused_build(&g, "a string");
    g = small();
    add_kv(&g, "bad\n\033key", 13, NULL, 0);
    refused_build(&g, "bad??key");
}

static void test_hostile_alignment_is_refused(void **state)
{
    (void)state;
    static const uint32_t bad[] = {0, 1, 24, 1u << 30, 0x80000000u};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gguf_build g = small();
        add_u32(&g, "general.alignment", bad[i]);
        refused_build(&g, "general.alignment");
    }
    struct gguf_build g = small();
    add_kv(&g, "general.alignment", 5, &(int32_t){32}, 4);
    refused_build(&g, "general.alignment is of type i32");
    g = small();
    add_string(&g, "general.alignment", "32");
    refused_build(&g, "general.alignment is of type string");
}

static void test_hostile_tensors_are_refused(void **state)
{
    (void)state;
    static const struct {
        uint32_t type, n_dim;
        uint64_t dim[5], offset;
        const char *part;
    } bad[] = {
        {0, 2, {(1ull << 42) + 1, 4}, 0, "bad ends past the end"},
        {0, 2, {1ull << 32, 1ull << 32}, 0, "tensor bad"},
        {0, 4, {1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16}, 0, "tensor bad"},
        {0, 2, {UINT64_MAX, UINT64_MAX}, 0, "tensor bad"},
        {0, 1, {1ull << 62}, 0, "tensor bad"},
        {0, 2, {8, 0}, 0, "dimension of 0"},
        {0, 0, {0}, 0, "0 dimensions"},
        {0, 5, {1, 1, 1, 1, 1}, 0, "5 dimensions"},
        {4, 1, {32}, 0, "tensor bad has unknown type 4"},
        {0x80000000u, 1, {32}, 0, "tensor bad has unknown type 2147483648"},
        {3, 1, {33}, 0, "not a multiple of 32, the block of type Q4_1"},
        {12, 1, {128}, 0, "not a multiple of 256"},
        {0, 1, {8}, 8, "not a multiple of the alignment 32"},
        {0, 1, {8}, UINT64_MAX - 31, "bad ends past the end"},
        {0, 1, {8}, 1ull << 40, "bad ends past the end"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct gguf_build g = small();
        add_info(&g, "bad", bad[i].type, bad[i].n_dim, bad[i].dim, bad[i].offset);
        refused_build(&g, bad[i].part);
    }
    struct gguf_build g = small();
    add_info(&g, "a.weight", 0, 1, (const uint64_t[]){8}, 0);
    refused_build(&g, "tensor a.weight occurs twice");
}

/* Every shorter file is refused, and the error for one truncated in the data names the tensor. */
static void test_truncated_files_are_refused(void **state)
{
    (void)state;
    struct gguf_build g = small();
    struct bytes b = build_bytes(&g);
    build_free(&g);
    for (size_t n = 0; n < b.n; n++) {
        write_file(path, b.p, n);
        refused("");
    }
    refused("tensor b.weight");
    write_file(path, b.p, b.n);
    gguf_free(open_ok());
    free(b.p);
}

static void test_other_than_regular_files_are_refused(void **state)
{
    (void)state;
    struct err e = {0};
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(&e, &g, "/nonexistent/x.gguf"), ERR_NO);
    assert_text_has(e.text, "/nonexistent/x.gguf");
    assert_int_equal(gguf_open(&e, &g, "/dev/zero"), ERR_NO);
    assert_int_equal(gguf_open(&e, &g, dir), ERR_NO);
    char fifo[80];
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(gguf_open(&e, &g, fifo), ERR_NO);
    unlink(fifo);
}

/* Values printed by the Python package gguf for this file. */
static void test_default_model_is_read(void **state)
{
    (void)state;
    struct err e = {0};
    struct gguf *g = NULL;
    assert_int_equal(gguf_open(&e, &g, default_model()), 0);
    assert_int_equal(gguf_tensor_count(g), 272);
    const struct gguf_str *s;
    uint64_t n;
    assert_int_equal(gguf_strs(&e, g, "tokenizer.ggml.tokens", &s, &n), 0);
    assert_int_equal(n, 49152);
    assert_memory_equal(s[1].p, "<|im_start|>", 12);
    const struct gguf_tensor *t = gguf_tensor_find(g, "token_embd.weight");
    assert_int_equal(t->type, 8);
    assert_int_equal(t->dim[0], 576);
    assert_int_equal(t->dim[1], 49152);
    assert_int_equal(t->offset, 1785664);
    assert_int_equal(gguf_tensor_find(g, "blk.0.ffn_down.weight")->type, 3);
    gguf_free(g);
}

/* The real file, truncated at several lengths. */
static void test_truncated_default_model_is_refused(void **state)
{
    (void)state;
    struct stat st;
    assert_int_equal(stat(default_model(), &st), 0);
    int in = open(default_model(), O_RDONLY);
    int out = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(in >= 0 && out >= 0);
    off_t half = st.st_size / 2;
    for (off_t at = 0; at < half;) {
        ssize_t r = copy_file_range(in, NULL, out, NULL, (size_t)(half - at), 0);
        assert_true(r > 0);
        at += r;
    }
    close(in);
    close(out);
    refused("(a broken download?)");
    static const off_t cut[] = {5000, 100, 20};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(truncate(path, cut[i]), 0);
        refused("");
    }
}

static int setup(void **state)
{
    (void)state;
    if (!mkdtemp(dir))
        return -1;
    snprintf(path, sizeof path, "%s/m.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_are_read),
        cmocka_unit_test(test_tensors_are_read),
        cmocka_unit_test(test_huge_claims_cost_nothing),
        cmocka_unit_test(test_hostile_pairs_are_refused),
        cmocka_unit_test(test_hostile_alignment_is_refused),
        cmocka_unit_test(test_hostile_tensors_are_refused),
        cmocka_unit_test(test_truncated_files_are_refused),
        cmocka_unit_test(test_other_than_regular_files_are_refused),
        cmocka_unit_test(test_default_model_is_read),
        cmocka_unit_test(test_truncated_default_model_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
