/* Which implementation of the table runs here, and the floating-point state that all of them need. */
#include "kernels/kernels.h"

#include <cpuid.h>
#include <string.h>
#include <xmmintrin.h>

/* The builtin does not know this one by name in every compiler; its registers are those of AVX. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* These builtins also ask whether the operating system saves the registers. */
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

int kern_select(struct err *e, const struct kern_ops **out, const char *name)
{
    const struct kern_ops *avx512 = has_avx512() ? &kern_ops_avx512 : NULL;
    const struct kern_ops *avx2 = has_avx2() ? &kern_ops_avx2 : NULL;
    if (!name)
        *out = avx512 ? avx512 : avx2 ? avx2 : &kern_ops_c;
    else if (!strcmp(name, "c"))
        *out = &kern_ops_c;
    else if (!strcmp(name, "avx2"))
        *out = avx2;
    else if (!strcmp(name, "avx512"))
        *out = avx512;
    else
        return err_set(e, ERR_USAGE, "kernels %.40s: unknown, there are c, avx2 and avx512", name);
    if (!*out)
        return err_set(e, ERR_USAGE, "kernels %s: this machine lacks them", name);
    return 0;
}

/* Round to nearest, every exception masked, denormals are zero (bit 6), flush to zero (bit 15). */
void kern_thread_init(void)
{
    _mm_setcsr(0x1f80 | 1u << 6 | 1u << 15);
}
