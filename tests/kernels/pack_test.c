/*
 * Packing: rows that are read back equal, bit by bit, what the Python package `gguf` dequantises
 * (tests/golden/quant.txt), and the bytes of a group are at the positions given in kernels.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "kernels/draw.h"
#include "kernels/kernels.h"

#define COLS_MAX 512

struct golden {
    enum kern_type type;
    int64_t cols;
    uint8_t *row;
    uint32_t value[COLS_MAX];
};

static struct golden goldens[64];
static int n_golden;

static enum kern_type type_of(const char *name)
{
    for (int t = 0; t < KERN_TYPES; t++)
        if (!strcmp(name, kern_type_name(t)))
            return t;
    fail_msg("no type %s", name);
    return KERN_TYPES;
}

static uint32_t hex(const char *s, size_t n)
{
    char digits[9] = "", *end;
    memcpy(digits, s, n);
    uint32_t v = (uint32_t)strtoul(digits, &end, 16);
    assert_int_equal(end - digits, n);
    return v;
}

static int read_golden(void **state)
{
    (void)state;
    char *line = NULL, name[16];
    size_t cap = 0;
    FILE *f = fopen("tests/golden/quant.txt", "r");
    assert_non_null(f);
    while (getline(&line, &cap, f) > 0) {
        struct golden *g = &goldens[n_golden];
        long cols;
        if (line[0] == '#')
            continue;
        assert_int_equal(sscanf(line, "%15s %ld", name, &cols), 2);
        assert_true(n_golden < 64 && cols <= COLS_MAX);
        g->type = type_of(name);
        g->cols = cols;
        size_t n = kern_type_row_bytes(g->type, cols);
        g->row = malloc(n);
        assert_int_equal(getline(&line, &cap, f), 2 * n + 1);
        for (size_t i = 0; i < n; i++)
            g->row[i] = (uint8_t)hex(line + 2 * i, 2);
        assert_int_equal(getline(&line, &cap, f), 8 * cols + 1);
        for (int64_t i = 0; i < cols; i++)
            g->value[i] = hex(line + 8 * i, 8);
        n_golden++;
    }
    free(line);
    fclose(f);
    kern_thread_init();
    return 0;
}

static int free_golden(void **state)
{
    (void)state;
    for (int i = 0; i < n_golden; i++)
        free(goldens[i].row);
    return 0;
}

/* Each golden row at every position of the group; all other rows are absent or another row. */
static void rows_equal_gguf(void **state)
{
    (void)state;
    bool seen[KERN_TYPES] = {false};
    for (int i = 0; i < n_golden; i++) {
        const struct golden *g = &goldens[i], *other = &goldens[i % 3 ? i - 1 : i + 1];
        struct kern_mat w = {g->type, 32, g->cols, kern_group_bytes(g->type, g->cols), NULL};
        uint8_t *data = stale(2 * w.group_bytes);
        w.data = data;
        assert_int_equal(other->type, g->type);
        seen[g->type] = true;
        for (int r = 0; r < 32; r++) {
            const uint8_t *rows[16] = {NULL};
            for (int k = 0; k < 16; k++)
                rows[k] = r < 16 ? NULL : other->row;
            rows[r % 16] = g->row;
            kern_pack_group(data + (size_t)(r / 16) * w.group_bytes, g->type, g->type, rows, g->cols);
            float row[COLS_MAX];
            uint32_t value[COLS_MAX];
            kern_ops_c.get_row(row, &w, r);
            memcpy(value, row, sizeof(row));
            for (int64_t k = 0; k < g->cols; k++)
                if (value[k] != g->value[k])
                    fail_msg("%s row %d column %ld: %08x, not %08x", kern_type_name(g->type), r, (long)k, value[k],
                             g->value[k]);
        }
        free(data);
    }
    for (int t = 0; t < KERN_TYPES; t++)
        assert_true(seen[t]);
}

/* Computed by hand from the layout in kernels.h. */
static void group_sizes(void **state)
{
    (void)state;
    static const size_t bytes[KERN_TYPES] = {
        [KERN_F32] = 256 * 64,
        [KERN_F16] = 256 * 32,
        [KERN_BF16] = 128 * 64,
        [KERN_Q8_0] = 4 * (1024 + 64),
        [KERN_Q4_0] = 4 * (512 + 64),
        [KERN_Q4_1] = 4 * (512 + 128),
        [KERN_Q5_0] = 4 * (640 + 64),
        [KERN_Q5_1] = 4 * (640 + 128),
        [KERN_Q4_K] = 64 + 8 * (256 + 32),
        [KERN_Q5_K] = 64 + 8 * (320 + 32),
        [KERN_Q6_K] = 64 + 8 * (384 + 32),
    };
    for (int t = 0; t < KERN_TYPES; t++) {
        assert_int_equal(kern_group_bytes(t, 256), bytes[t]);
        assert_int_equal(kern_group_bytes(t, kern_type_block(t) * 3) % 64, 0);
    }
    assert_int_equal(kern_group_bytes(KERN_BF16, 3), 128);
    assert_int_equal(kern_group_bytes(KERN_Q8_0, 96), 2 * (1024 + 64));
}

/* Stored value of (row, column) of a block, read by the rules of kernels.h, not by the code under test. */
static int stored(const uint8_t *block, int hi, int r, int k)
{
    int quad = k / 4, t = k % 4;
    if (hi == 8)
        return block[quad * 64 + 4 * r + t];
    uint8_t nib = block[quad % 4 * 64 + 4 * r + t];
    int v = quad < 4 ? nib & 15 : nib >> 4;
    if (hi == 1)
        v += (block[256 + 4 * r + t] >> quad & 1) * 16;
    if (hi == 2)
        v += (block[256 + quad / 4 * 64 + 4 * r + t] >> quad % 4 * 2 & 3) * 16;
    return v;
}

/* One block of 32 distinct columns in row r of a Q8_0, Q5_0 and Q4_1 group, at the second position of a pair. */
static void layout_of_pairs(void **state)
{
    (void)state;
    static const struct {
        enum kern_type type;
        int hi, quant, scale, src;
    } c[] = {{KERN_Q8_0, 8, 512, 32, 34}, {KERN_Q5_0, 1, 320, 32, 22}, {KERN_Q4_1, 0, 256, 64, 20}};
    for (int i = 0; i < 3; i++) {
        uint8_t row[68] = {0}, *src = row + c[i].src, *data = stale(kern_group_bytes(c[i].type, 64));
        const uint8_t *rows[16] = {[11] = row};
        src[0] = 0x34; /* d = 0x1234 */
        src[1] = 0x12;
        if (c[i].type == KERN_Q4_1)
            memcpy(src + 2, "\x78\x56", 2);
        if (c[i].type == KERN_Q5_0)
            memcpy(src + 2, "\x0f\x00\xff\xa5", 4);
        for (int k = 0; k < (c[i].hi == 8 ? 32 : 16); k++)
            src[c[i].src - (c[i].hi == 8 ? 32 : 16) + k] = (uint8_t)(k * 37 + 5);
        kern_pack_group(data, c[i].type, c[i].type, rows, 64);
        for (int k = 0; k < 32; k++) {
            int expect = (uint8_t)(k * 37 + 5) ^ 0x80;
            if (c[i].hi != 8)
                expect = (uint8_t)(k % 16 * 37 + 5) >> (k < 16 ? 0 : 4) & 15;
            if (c[i].hi == 1)
                expect += (0xa5ff000f >> k & 1) * 16;
            assert_int_equal(stored(data + c[i].quant, c[i].hi, 11, k), expect);
        }
        const uint8_t *scale = data + 2 * c[i].quant + c[i].scale;
        assert_memory_equal(scale + 2 * 11, "\x34\x12", 2);
        if (c[i].type == KERN_Q4_1)
            assert_memory_equal(scale + 32 + 2 * 11, "\x78\x56", 2);
        free(data);
    }
}

/* The K types' heads, quants and scales: the values that get_row must return, found by the layout instead. */
static void layout_of_k(void **state)
{
    (void)state;
    for (int i = 0; i < n_golden; i++) {
        const struct golden *g = &goldens[i];
        if (kern_type_block(g->type) != 256)
            continue;
        int hi = g->type == KERN_Q4_K   ? 0
                 : g->type == KERN_Q5_K ? 1
                                        : 2,
            quant = 256 + (hi == 1) * 64 + (hi == 2) * 128;
        uint8_t *data = stale(kern_group_bytes(g->type, g->cols)), *super = data + 64 + 8 * (quant + 32);
        const uint8_t *rows[16] = {[5] = g->row};
        kern_pack_group(data, g->type, g->type, rows, g->cols);
        const uint8_t *src = g->row + kern_type_row_bytes(g->type, 256);
        assert_memory_equal(super + 10, hi == 2 ? src + 208 : src, 2);
        if (hi < 2)
            assert_memory_equal(super + 32 + 10, src + 2, 2);
        _Float16 d, m;
        memcpy(&d, super + 10, 2);
        memcpy(&m, super + 42, 2);
        for (int k = 0; k < 256; k++) {
            const uint8_t *scale = super + 64 + 8 * quant + k / 32 * 32;
            int q = stored(super + 64 + k / 32 * quant, hi, 5, k % 32);
            float value = hi == 2 ? (float)d * (int8_t)scale[k % 32 / 16 * 16 + 5] * (float)(q - 32)
                                  : (float)d * scale[5] * (float)q - (float)m * scale[16 + 5];
            uint32_t bits;
            memcpy(&bits, &value, 4);
            assert_int_equal(bits, g->value[256 + k]);
        }
        free(data);
    }
}

static void absent_rows_are_zero(void **state)
{
    (void)state;
    const uint8_t *rows[16] = {NULL};
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t cols = kern_type_is_quant(t) ? kern_type_block(t) * 3 : 7;
        struct kern_mat w = {t, 16, cols, kern_group_bytes(t, cols), stale(kern_group_bytes(t, cols))};
        kern_pack_group((uint8_t *)(uintptr_t)w.data, t, t, rows, cols);
        float value[768];
        kern_ops_c.get_row(value, &w, 15);
        for (int64_t k = 0; k < cols; k++)
            assert_true(value[k] == 0.0f);
        free((void *)(uintptr_t)w.data);
    }
}

static void to_bf16(void **state)
{
    (void)state;
    static const float exact[5] = {1.0f, -0.5f, 1.9921875f, 0x1p100f, -3.0f};
    static const _Float16 exact16[5] = {1, -0.5, 1.9921875, 0x1p-24, -3};
    float inexact[2] = {1.0f, 1.00390625f};
    _Float16 inexact16[2] = {1, 1.00390625};
    assert_true(kern_is_bf16(KERN_F32, (const uint8_t *)exact, 5));
    assert_true(kern_is_bf16(KERN_F16, (const uint8_t *)exact16, 5));
    assert_false(kern_is_bf16(KERN_F32, (const uint8_t *)inexact, 2));
    assert_false(kern_is_bf16(KERN_F16, (const uint8_t *)inexact16, 2));
    const uint8_t *rows[16] = {[2] = (const uint8_t *)exact, [3] = (const uint8_t *)exact16};
    struct kern_mat w = {KERN_BF16, 16, 5, kern_group_bytes(KERN_BF16, 5), stale(kern_group_bytes(KERN_BF16, 5))};
    const uint8_t *only16[16] = {[3] = rows[3]};
    float value[5];
    rows[3] = NULL;
    kern_pack_group((uint8_t *)(uintptr_t)w.data, KERN_BF16, KERN_F32, rows, 5);
    kern_ops_c.get_row(value, &w, 2);
    assert_memory_equal(value, exact, sizeof(exact));
    kern_pack_group((uint8_t *)(uintptr_t)w.data, KERN_BF16, KERN_F16, only16, 5);
    kern_ops_c.get_row(value, &w, 3);
    for (int k = 0; k < 5; k++)
        assert_true(value[k] == (float)exact16[k]);
    free((void *)(uintptr_t)w.data);
}

/* Random bytes have NaN and infinity in many scales. The first value that get_row unpacks to one of them is in the
 * reported block; its values are those of the package `gguf`, see rows_equal_gguf. */
static void values_that_are_not_finite(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int t = 0; t < KERN_TYPES; t++) {
        int64_t block = kern_type_block(t), cols = block == 1 ? 40 : 512, found = 0;
        struct kern_mat w = {t, 16, cols, kern_group_bytes(t, cols), stale(kern_group_bytes(t, cols))};
        uint8_t row[512 * 4];
        const uint8_t *rows[16] = {[3] = row};
        for (int turn = 0; turn < 2000; turn++) {
            for (size_t i = 0; i < sizeof row; i++)
                row[i] = (uint8_t)draw_u64(&seed);
            kern_pack_group((uint8_t *)(uintptr_t)w.data, t, t, rows, cols);
            float value[512];
            int64_t first = 0;
            kern_ops_c.get_row(value, &w, 3);
            while (first < cols && isfinite(value[first]))
                first++;
            int64_t want = first < cols ? first / block * block : -1;
            assert_int_equal(kern_row_not_finite(t, row, cols), want);
            found += want >= 0;
        }
        assert_true(found > 20 && found < 2000);
        free((void *)(uintptr_t)w.data);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_gguf),
        cmocka_unit_test(group_sizes),
        cmocka_unit_test(layout_of_pairs),
        cmocka_unit_test(layout_of_k),
        cmocka_unit_test(absent_rows_are_zero),
        cmocka_unit_test(to_bf16),
        cmocka_unit_test(values_that_are_not_finite),
    };
    return cmocka_run_group_tests(tests, read_golden, free_golden);
}
