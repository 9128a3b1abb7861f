/*
 * Limits of this machine, measured now: plain reads of a footprint, and register-only int8, bf16 and float32 products.
 *
 *     probe [-t THREADS] [-s SECONDS] [MB ...]   one line of JSON: all of them, with one thread and with all
 *     probe -l [-s SECONDS]                      a line of JSON for each line on stdin: "read MB THREADS", or
 *                                                "int8 THREADS", "bf16 THREADS", "f32 THREADS"
 *
 * Products are those of the best pass in the summary, reads those of the median and the best. scripts/bench takes
 * the best pass of products, which is what the core can do, and the median pass of reads, which a neighbour disturbs as
 * it disturbs what is measured beside them.
 */
#include <immintrin.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PASSES_MAX 4096
#define PASSES_MIN 5
#define THREADS_MAX 256
#define FOOTPRINTS_MAX 16
#define MB_MAX 1000000

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- what a pass does; each returns a value that depends on everything read, so that nothing is dropped ---- */

/* Four streams, as the kernels read: a quarter of the part each, a cache line a step. */
__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    size_t q = n / 4;
    for (size_t i = 0; i + 64 <= q; i += 64) {
        a = _mm512_xor_si512(a, _mm512_load_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_load_si512(p + q + i));
        c = _mm512_xor_si512(c, _mm512_load_si512(p + 2 * q + i));
        d = _mm512_xor_si512(d, _mm512_load_si512(p + 3 * q + i));
    }
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}

static uint64_t read_plain(const uint8_t *p, size_t n)
{
    uint64_t s[4] = {0}, v;
    size_t q = n / 4;
    for (size_t i = 0; i + 64 <= q; i += 64)
        for (int k = 0; k < 4; k++)
            for (size_t j = 0; j < 64; j += 8) {
                memcpy(&v, p + (size_t)k * q + i + j, 8);
                s[k] ^= v;
            }
    return s[0] ^ s[1] ^ s[2] ^ s[3];
}

#define N_ACC 12
#define KEEP(x) __asm__ volatile("" : "+v"(x))
#define EACH(X) X(0) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11)

/* Each loop: `rounds` times N_ACC independent products, in named registers because an array would go to memory; the
 * KEEPs stop the compiler from moving them. */
#define ZERO_I512(k) __m512i acc##k = _mm512_setzero_si512();
#define STEP_I512(k)                                                                                                   \
    acc##k = _mm512_dpbusd_epi32(acc##k, a, b);                                                                        \
    KEEP(acc##k);
__attribute__((target("avx512f,avx512vnni"))) static void int8_avx512(uint64_t rounds)
{
    __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
    EACH(ZERO_I512)
    for (uint64_t r = 0; r < rounds; r++) {
        EACH(STEP_I512)
    }
}

#define ZERO_I256(k) __m256i acc##k = _mm256_setzero_si256();
#define STEP_I256(k)                                                                                                   \
    x = a;                                                                                                             \
    KEEP(x);                                                                                                           \
    acc##k = _mm256_add_epi32(acc##k, _mm256_madd_epi16(_mm256_maddubs_epi16(x, b), one));                             \
    KEEP(acc##k);
__attribute__((target("avx2"))) static void int8_avx2(uint64_t rounds)
{
    __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5), one = _mm256_set1_epi16(1), x;
    EACH(ZERO_I256)
    for (uint64_t r = 0; r < rounds; r++) {
        EACH(STEP_I256)
    }
}

#define ZERO_F512(k) __m512 acc##k = _mm512_setzero_ps();
#define STEP_F512(k)                                                                                                   \
    acc##k = _mm512_fmadd_ps(a, b, acc##k);                                                                            \
    KEEP(acc##k);
__attribute__((target("avx512f"))) static void f32_avx512(uint64_t rounds)
{
    __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    EACH(ZERO_F512)
    for (uint64_t r = 0; r < rounds; r++) {
        EACH(STEP_F512)
    }
}

#define ZERO_F256(k) __m256 acc##k = _mm256_setzero_ps();
#define STEP_F256(k)                                                                                                   \
    acc##k = _mm256_fmadd_ps(a, b, acc##k);                                                                            \
    KEEP(acc##k);
__attribute__((target("avx2,fma"))) static void f32_avx2(uint64_t rounds)
{
    __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    EACH(ZERO_F256)
    for (uint64_t r = 0; r < rounds; r++) {
        EACH(STEP_F256)
    }
}

#define ZERO_B512(k) __m512 acc##k = _mm512_setzero_ps();
#define STEP_B512(k)                                                                                                   \
    acc##k = _mm512_dpbf16_ps(acc##k, (__m512bh)a, (__m512bh)b);                                                       \
    KEEP(acc##k);
__attribute__((target("avx512f,avx512bf16"))) static void bf16_avx512(uint64_t rounds)
{
    __m512i a = _mm512_set1_epi16(0x3f00), b = _mm512_set1_epi16(0x3e80);
    EACH(ZERO_B512)
    for (uint64_t r = 0; r < rounds; r++) {
        EACH(STEP_B512)
    }
}

/* ---- timed passes by several threads ---- */

enum what { READ, INT8, BF16, F32 };
static const char *const what_name[] = {"read", "int8", "bf16", "f32"};

struct job {
    enum what what;
    int n_thread;
    double seconds;
    const uint8_t *p; /* READ: [bytes], shared out in equal parts */
    size_t bytes;
    uint64_t rounds; /* others: products of a pass / N_ACC */
    bool fma, avx512, vnni, bf16;
    pthread_barrier_t gate;
    bool stop; /* written by thread 0 between two gates */
    double took[PASSES_MAX];
    int n_pass;
};

struct part {
    struct job *j;
    int index;
    uint64_t seen;
};

static void pass(struct part *w)
{
    struct job *j = w->j;
    size_t n = j->bytes / (size_t)j->n_thread & ~(size_t)255;
    if (j->what == READ)
        w->seen ^= (j->avx512 ? read_avx512 : read_plain)(j->p + (size_t)w->index * n, n);
    else if (j->what == INT8)
        (j->vnni ? int8_avx512 : int8_avx2)(j->rounds);
    else if (j->what == BF16)
        bf16_avx512(j->rounds);
    else
        (j->avx512 ? f32_avx512 : f32_avx2)(j->rounds);
}

static void *work(void *arg)
{
    struct part *w = arg;
    struct job *j = w->j;
    double begin = now();
    while (!j->stop) {
        pthread_barrier_wait(&j->gate);
        double t = now();
        pass(w);
        pthread_barrier_wait(&j->gate);
        if (w->index == 0) {
            j->took[j->n_pass++] = now() - t;
            j->stop = j->n_pass == PASSES_MAX || (j->n_pass >= PASSES_MIN && now() - begin > j->seconds);
        }
        pthread_barrier_wait(&j->gate);
    }
    return NULL;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Seconds of a pass: the shortest, and in *median the middle one. The process exits where threads cannot be made. */
static double measure(struct job *j, double *median)
{
    pthread_t id[THREADS_MAX];
    struct part part[THREADS_MAX];
    j->n_pass = 0;
    j->stop = false;
    pthread_barrier_init(&j->gate, NULL, (unsigned)j->n_thread);
    for (int i = 0; i < j->n_thread; i++) {
        part[i] = (struct part){j, i, 0};
        if (i && pthread_create(&id[i], NULL, work, &part[i])) {
            fprintf(stderr, "probe: cannot start %d threads\n", j->n_thread);
            exit(111);
        }
    }
    work(&part[0]);
    for (int i = 1; i < j->n_thread; i++)
        pthread_join(id[i], NULL);
    pthread_barrier_destroy(&j->gate);
    qsort(j->took, (size_t)j->n_pass, sizeof *j->took, ascending);
    *median = j->took[j->n_pass / 2];
    return j->took[0];
}

/* ---- the report ---- */

static void cpu_name(char *out, size_t n)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");
    snprintf(out, n, "unknown");
    while (f && fgets(line, sizeof line, f))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            char *v = strchr(line, ':') + 1;
            v += strspn(v, " \t");
            v[strcspn(v, "\n\"\\")] = 0;
            snprintf(out, n, "%s", v);
            break;
        }
    if (f)
        fclose(f);
}

static uint8_t *footprint(size_t bytes)
{
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fprintf(stderr, "probe: no memory for %zu bytes\n", bytes);
        exit(111);
    }
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < bytes; i += 8)
        memcpy(p + i, &(uint64_t){i * 0x9e3779b97f4a7c15u}, 8);
    return p;
}

/* Multiply-adds of one instruction; 0: this machine cannot. */
static double macs(const struct job *j, enum what what)
{
    if (!j->fma)
        return 0;
    return what == INT8 ? (j->vnni ? 64 : 32) : what == BF16 ? (j->bf16 ? 32 : 0) : j->avx512 ? 16 : 8;
}

/* Makes room for `bytes`; what is there is kept, so a smaller footprint is the beginning of a greater one. */
static void room(struct job *j, size_t bytes)
{
    static size_t have;
    if (bytes <= have)
        return;
    if (have)
        munmap((void *)(uintptr_t)j->p, have);
    j->p = footprint(bytes);
    have = bytes;
}

struct rate {
    double median, best; /* GMAC/s or GB/s */
};

static struct rate figure(struct job *j, enum what what, size_t mb, int n_thread)
{
    double each, median, best;
    j->what = what;
    j->n_thread = n_thread;
    if (what == READ) {
        j->bytes = mb * 1000000 & ~(size_t)4095;
        room(j, j->bytes);
        each = (double)j->bytes;
    } else {
        j->rounds = 1 << 20;
        each = macs(j, what) * N_ACC * (double)j->rounds * n_thread;
    }
    best = measure(j, &median);
    return (struct rate){each / median * 1e-9, each / best * 1e-9};
}

static void print_products(struct job *j, enum what what, int n_thread)
{
    if (macs(j, what) == 0)
        return;
    printf(", \"%s_gmacs\": [%.1f", what_name[what], figure(j, what, 0, 1).best);
    if (n_thread > 1)
        printf(", %.1f", figure(j, what, 0, n_thread).best);
    printf("]");
}

static void print_read(struct job *j, size_t mb, int n_thread)
{
    struct rate r = figure(j, READ, mb, 1);
    printf("{\"mb\": %zu, \"median_best_gb_s\": [[%.1f, %.1f]", mb, r.median, r.best);
    if (n_thread > 1) {
        r = figure(j, READ, mb, n_thread);
        printf(", [%.1f, %.1f]", r.median, r.best);
    }
    printf("]}");
}

static void print_summary(struct job *j, const size_t *mb, int n_mb, int n_thread)
{
    char cpu[256];
    cpu_name(cpu, sizeof cpu);
    printf("{\"cpu\": \"%s\", \"threads\": %d, \"int8\": \"%s\"", cpu, n_thread, j->vnni ? "vpdpbusd" : "vpmaddubsw");
    print_products(j, INT8, n_thread);
    print_products(j, BF16, n_thread);
    print_products(j, F32, n_thread);
    printf(", \"reads\": [");
    for (int i = 0; i < n_mb; i++) {
        printf("%s", i ? ", " : "");
        print_read(j, mb[i], n_thread);
    }
    printf("]}\n");
}

/* One command; false: it is none. A product that this machine cannot do has the figure 0. */
static bool answer(struct job *j, const char *line)
{
    char name[16], rest;
    unsigned long v[2];
    int n = sscanf(line, "%15s %lu %lu %c", name, &v[0], &v[1], &rest);
    for (enum what w = READ; n >= 2 && w <= F32; w++) {
        unsigned long threads = v[w == READ], mb = w == READ ? v[0] : 0;
        struct rate r = {0, 0};
        if (strcmp(name, what_name[w]) != 0)
            continue;
        if (n != (w == READ ? 3 : 2) || !threads || threads > THREADS_MAX || (w == READ && (!mb || mb > MB_MAX)))
            return false;
        if (w == READ || macs(j, w) > 0)
            r = figure(j, w, mb, (int)threads);
        printf("{\"what\": \"%s\", \"threads\": %lu, \"mb\": %lu, \"median\": %.2f, \"best\": %.2f}\n", name, threads,
               mb, r.median, r.best);
        return true;
    }
    return false;
}

static int answer_lines(struct job *j)
{
    char line[128];
    while (fgets(line, sizeof line, stdin)) {
        if (!answer(j, line)) {
            fprintf(stderr, "probe: %.*s: read MB THREADS, or int8, bf16, f32 and THREADS\n", (int)strcspn(line, "\n"),
                    line);
            return 100;
        }
        if (fflush(stdout))
            return 111;
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct job j;
    size_t mb[FOOTPRINTS_MAX];
    int n_mb = 0, c, n_thread = (int)sysconf(_SC_NPROCESSORS_ONLN);
    bool lines = false;
    j.seconds = 0.2;
    while ((c = getopt(argc, argv, "lt:s:")) != -1) {
        char *end = NULL;
        double v = c == '?' ? 0 : c == 'l' ? 1 : strtod(optarg, &end);
        if ((end && *end) || !(v > 0) || (c == 't' && v > THREADS_MAX) || v > 3600) {
            fprintf(stderr, "usage: probe [-t THREADS] [-s SECONDS] [MB ...] | probe -l [-s SECONDS]\n");
            return 100;
        }
        if (c == 'l')
            lines = true;
        else if (c == 't')
            n_thread = (int)v;
        else
            j.seconds = v;
    }
    for (; optind < argc && n_mb < FOOTPRINTS_MAX; optind++) {
        unsigned long v = strtoul(argv[optind], NULL, 10);
        if (!v || v > MB_MAX) {
            fprintf(stderr, "probe: %s: megabytes must be 1 to %d\n", argv[optind], MB_MAX);
            return 100;
        }
        mb[n_mb++] = v;
    }
    if (!n_mb)
        mb[n_mb++] = 90;
    __builtin_cpu_init();
    j.avx512 = __builtin_cpu_supports("avx512f");
    j.vnni = __builtin_cpu_supports("avx512vnni");
    j.bf16 = __builtin_cpu_supports("avx512bf16");
    j.fma = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (lines)
        return answer_lines(&j);
    print_summary(&j, mb, n_mb, n_thread);
    return fflush(stdout) ? 111 : 0;
}
