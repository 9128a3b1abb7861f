/* Selects the implementation of the table for this machine, and sets the floating-point state that all of them need. */
#include "kernels/cpu/dot_avx512.h"
#include "kernels/cpu/machine.h"
#include "kernels/kernels.h"

#include <cpuid.h>
#include <pthread.h>
#include <string.h>
#include <xmmintrin.h>

/* Not every compiler's builtin knows F16C by name. Its registers are those of AVX, which has_avx2 checks. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* These builtins also check that the operating system saves the registers. */
static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16");
}

/* Properties of VDPBF16PS on this machine, measured once. */
static struct {
    pthread_once_t once;
    bool exact, faster;
} dot = {.once = PTHREAD_ONCE_INIT};

bool machine_touches;

static void ask_machine(void)
{
    const unsigned was = _mm_getcsr();

    kern_thread_init();
    dot.exact = dot_is_exact_avx512();
    dot.faster = dot.exact && dot_is_faster_avx512();
    machine_touches = __builtin_cpu_is("amd");
    _mm_setcsr(was);
}

enum pair_form { PAIR_FASTER, PAIR_FMA, PAIR_DOT };

static const struct kern_ops *select_avx512(enum pair_form form)
{
    if (!has_avx512())
        return NULL;
    pthread_once(&dot.once, ask_machine);
    if (form == PAIR_DOT)
        return dot.exact ? &kern_ops_avx512_dot : NULL;
    return form == PAIR_FASTER && dot.faster ? &kern_ops_avx512_dot : &kern_ops_avx512;
}

static const struct kern_ops *select_best(void)
{
    const struct kern_ops *avx512 = select_avx512(PAIR_FASTER);
    return avx512 ? avx512 : has_avx2() ? &kern_ops_avx2 : &kern_ops_c;
}

int kern_select(struct err *e, const struct kern_ops **out, const char *name)
{
    if (!name)
        *out = select_best();
    else if (!strcmp(name, "c"))
        *out = &kern_ops_c;
    else if (!strcmp(name, "avx2"))
        *out = has_avx2() ? &kern_ops_avx2 : NULL;
    else if (!strcmp(name, "avx512"))
        *out = select_avx512(PAIR_FASTER);
    else if (!strcmp(name, "avx512-fma"))
        *out = select_avx512(PAIR_FMA);
    else if (!strcmp(name, "avx512-dot"))
        *out = select_avx512(PAIR_DOT);
    else
        return err_set(e, ERR_USAGE, "kernels '%.40s': unknown; supported: c, avx2, avx512", name);
    if (!*out)
        return err_set(e, ERR_USAGE, "kernels '%s': not supported by this machine's CPU", name);
    return 0;
}

/* Rounds to nearest, masks every exception, sets denormals-are-zero (bit 6) and flush-to-zero (bit 15). */
void kern_thread_init(void)
{
    _mm_setcsr(0x1f80 | 1u << 6 | 1u << 15);
}
