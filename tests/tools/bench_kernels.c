/*
 * Shares of the core's peak that the kernels reach: matrix multiplication and attention compared with a loop of
 * vpdpbusd on registers alone, matrix times vector with a plain read of the same bytes. Each figure is measured
 * together with its own probe, the two interleaved; medians of thread CPU time (a shared machine varies within
 * seconds).
 *
 * usage: bench_kernels [c|avx2|avx512] [matmul|few|attn]
 */
#include <immintrin.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/kernels.h"

#define ROUNDS 15

static double cpu_seconds(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return x[n / 2];
}

static void *take(size_t bytes)
{
    void *p = NULL;

    if (posix_memalign(&p, 4096, bytes + 64))
        abort();
    memset(p, 0x35, bytes + 64);
    return p;
}

/* Multiply-adds per second of 16 chains of vpdpbusd in registers; 0 if the machine has no VNNI. */
__attribute__((target("avx512f,avx512vnni"))) static double probe_int8(void)
{
    const int n = 20000;
    __m512i s[16], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    int32_t out[16];
    double t;

    for (int i = 0; i < 16; i++)
        s[i] = _mm512_setzero_si512();
    t = cpu_seconds();
    for (int i = 0; i < n; i++) {
        __asm__ volatile("" : "+v"(a), "+v"(b));
#pragma GCC unroll 16
        for (int j = 0; j < 16; j++)
            s[j] = _mm512_dpbusd_epi32(s[j], a, b);
    }
    t = cpu_seconds() - t;
    for (int i = 1; i < 16; i++)
        s[0] = _mm512_add_epi32(s[0], s[i]);
    _mm512_storeu_si512(out, s[0]);
    __asm__ volatile("" : : "m"(out));
    return 16.0 * 64 * n / t;
}

/* Bytes per second of a plain read. */
__attribute__((target("avx2"))) static double probe_read(const uint8_t *p, size_t bytes)
{
    __m256i s[8];
    double t = cpu_seconds();

    for (int i = 0; i < 8; i++)
        s[i] = _mm256_setzero_si256();
    for (size_t at = 0; at + 256 <= bytes; at += 256)
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++)
            s[i] = _mm256_xor_si256(s[i], _mm256_load_si256((const __m256i *)(const void *)(p + at + 32 * (size_t)i)));
    for (int i = 1; i < 8; i++)
        s[0] = _mm256_xor_si256(s[0], s[i]);
    __asm__ volatile("" : : "x"(s[0]));
    return (double)bytes / (cpu_seconds() - t);
}

/* One multiplication by random weights. */
struct matmul {
    struct kern_mat w;
    struct kern_act x;
    void *mem, *scratch;
    float *out;
    uint8_t *data;
    int64_t n;
};

static void matmul_make(struct matmul *b, enum kern_type t, int64_t rows, int64_t cols, int64_t n)
{
    const size_t group = kern_group_bytes(t, cols), bytes = (size_t)((rows + 15) / 16) * group;
    float *x = take((size_t)(n * cols) * 4);

    b->n = n;
    b->data = take(bytes);
    b->w = (struct kern_mat){t, rows, cols, group, b->data};
    b->mem = take(kern_act_bytes(n, cols, kern_type_form(t)));
    b->scratch = take(kern_matmul_scratch(cols));
    b->out = take((size_t)(n * (rows + 15)) * 4);
    for (int64_t i = 0; i < n * cols; i++)
        x[i] = (float)(i * 7919 % 1009) / 1009.0f - 0.5f;
    kern_act_place(&b->x, b->mem, n, cols, kern_type_form(t));
    kern_ops_c.quantize_act(&b->x, 0, n, 0, cols, x, (size_t)cols);
    free(x);
}

static void matmul_run(const struct kern_ops *ops, struct matmul *b)
{
    ops->matmul(b->out, (size_t)(b->w.rows + 15) / 16 * 16, &b->w, 0, (b->w.rows + 15) / 16, &b->x, 0, b->n,
                b->scratch);
}

static void matmul_free(struct matmul *b)
{
    free(b->data), free(b->mem), free(b->scratch), free(b->out);
}

/* Prints the median rate of `units` per run, and its share of the probe measured just before. */
static void bench_matmul(const struct kern_ops *ops, enum kern_type t, int64_t rows, int64_t cols, int64_t n)
{
    struct matmul b;
    double rate[ROUNDS], share[ROUNDS];
    const double macs = (double)rows * (double)cols * (double)n;
    const int times = macs < 5e7 ? 10 : 1;

    matmul_make(&b, t, rows, cols, n);
    matmul_run(ops, &b);
    for (int i = 0; i < ROUNDS; i++) {
        double peak = probe_int8(), at = cpu_seconds();

        for (int j = 0; j < times; j++)
            matmul_run(ops, &b);
        rate[i] = macs * times / (cpu_seconds() - at);
        share[i] = rate[i] / peak;
    }
    printf("matmul %-5s %5d x %5d, %4d rows: %7.1f GMAC/s, %5.1f %% of int8 peak\n", kern_type_name(t), (int)rows,
           (int)cols, (int)n, median(rate, ROUNDS) / 1e9, 100 * median(share, ROUNDS));
    matmul_free(&b);
}

static void bench_few(const struct kern_ops *ops, enum kern_type t, int64_t cols, int64_t n)
{
    const int64_t rows = (int64_t)((size_t)96 << 20) / (int64_t)kern_group_bytes(t, cols) * 16;
    struct matmul b;
    double rate[ROUNDS], share[ROUNDS];

    matmul_make(&b, t, rows, cols, n);
    const size_t bytes = (size_t)(rows / 16) * b.w.group_bytes;
    for (int i = 0; i < ROUNDS; i++) {
        double read = probe_read(b.data, bytes), at = cpu_seconds();

        matmul_run(ops, &b);
        rate[i] = (double)bytes / (cpu_seconds() - at);
        share[i] = rate[i] / read;
    }
    printf("matmul %-5s K %5d, %2d rows, 96 MiB: %6.1f GB/s, %5.2f of a plain read\n", kern_type_name(t), (int)cols,
           (int)n, median(rate, ROUNDS) / 1e9, median(share, ROUNDS));
    matmul_free(&b);
}

static void bench_attn(const struct kern_ops *ops, enum kern_kv type, int hd, int n_row)
{
    const size_t tile = kern_kv_tile_bytes(type, hd);
    uint8_t *kv = take(8 * tile), *q = take((size_t)n_row * kern_q_bytes(type, hd));
    const uint8_t *tiles[8];
    float *x = take((size_t)hd * 4), *m = take((size_t)n_row * 4), *l = take((size_t)n_row * 4);
    float *o = take((size_t)n_row * (size_t)hd * 4);
    int32_t *from = take((size_t)n_row * 4), *to = take((size_t)n_row * 4);
    double rate[ROUNDS], share[ROUNDS];
    void *scratch = take(kern_attn_scratch(type, hd, n_row));
    const int times = 400 / n_row + 1;

    for (int t = 0; t < 256; t++) {
        for (int i = 0; i < hd; i++)
            x[i] = sinf((float)(i * t));
        tiles[t / 32] = kv + (size_t)(t / 32) * tile;
        ops->kv_write(kv + (size_t)(t / 32) * tile, type, hd, t % 32, x, x);
    }
    for (int i = 0; i < n_row; i++) {
        ops->q_prep(q + (size_t)i * kern_q_bytes(type, hd), type, hd, x, 0.125f);
        from[i] = 0;
        to[i] = 256;
    }
    struct kern_attn a = {type, hd, n_row, q, from, to, tiles, 8, NULL, 0, scratch, 0, 0};
    for (int i = 0; i < ROUNDS; i++) {
        double peak = probe_int8(), at = cpu_seconds();

        for (int j = 0; j < times; j++)
            ops->attn(m, l, o, &a);
        rate[i] = 2.0 * hd * 256 * n_row * times / (cpu_seconds() - at);
        share[i] = rate[i] / peak;
    }
    printf("attention %-4s head %3d, %2d rows: %6.1f GMAC/s, %5.1f %% of int8 peak\n", kern_kv_name(type), hd, n_row,
           median(rate, ROUNDS) / 1e9, 100 * median(share, ROUNDS));
    free(kv), free(q), free(x), free(m), free(l), free(o), free(from), free(to), free(scratch);
}

int main(int argc, char **argv)
{
    const struct kern_ops *ops = NULL;
    struct err e = {0};
    const char *part = argc > 2 ? argv[2] : "";

    kern_thread_init();
    if (kern_select(&e, &ops, argc > 1 ? argv[1] : NULL)) {
        fprintf(stderr, "bench_kernels: unknown kernels, or not supported by this CPU\n");
        return 100;
    }
    if (!__builtin_cpu_supports("avx512vnni")) {
        fprintf(stderr, "bench_kernels: the probe needs AVX-512 VNNI\n");
        return 100;
    }
    printf("%s, int8 peak of a core %.0f GMAC/s\n", ops->name, probe_int8() / 1e9);
    for (int t = KERN_TYPES - 1; t >= 0 && (!*part || !strcmp(part, "matmul")); t--) {
        if (t < KERN_Q4_K)
            bench_matmul(ops, (enum kern_type)t, 1536, 576, 512);
        bench_matmul(ops, (enum kern_type)t, 576, 1536, 512);
    }
    for (int t = KERN_TYPES - 1; t >= 0 && (!*part || !strcmp(part, "few")); t--)
        for (int n = 1; n <= 16; n *= 2)
            bench_few(ops, (enum kern_type)t, t < KERN_Q4_K ? 576 : 1536, n);
    for (int type = 0; type < 3 && (!*part || !strcmp(part, "attn")); type++) {
        bench_attn(ops, (enum kern_kv)type, 64, 1);
        bench_attn(ops, (enum kern_kv)type, 64, 3);
        bench_attn(ops, (enum kern_kv)type, 64, 24);
        bench_attn(ops, (enum kern_kv)type, 128, 4);
    }
    return 0;
}
