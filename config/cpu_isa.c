/* Which kernels may run here? Asks the processor (CPUID) and the operating system (XGETBV, through
 * the compiler's own detection) once. Invariant: a path is offered only when every instruction set
 * that its object files are compiled for is there. Does not know the kernels. */
#include "config/cpu_isa.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifdef __x86_64__
#include <cpuid.h>

/* F16C by hand: clang 14 has no name for it in __builtin_cpu_supports. It needs the same register
 * state as AVX, which the caller has checked. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

enum cpu_isa cpu_isa_detect(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") || !has_f16c())
        return CPU_ISA_PLAIN;
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vnni"))
        return CPU_ISA_AVX512;
    return CPU_ISA_AVX2;
}
#else
enum cpu_isa cpu_isa_detect(void)
{
    return CPU_ISA_PLAIN;
}
#endif

const char *cpu_isa_name(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_ISA_PLAIN:
        return "plain";
    case CPU_ISA_AVX2:
        return "avx2";
    case CPU_ISA_AVX512:
        return "avx512";
    }
    return "unknown";
}

enum err cpu_isa_choose(const char *want, enum cpu_isa *out, struct err_info *ei)
{
    const char *source = "isa";
    if (!want) {
        source = "KVNODE_ISA";
        want = getenv(source);
    }
    enum cpu_isa best = cpu_isa_detect();
    if (!want || !*want || strcmp(want, "auto") == 0) {
        *out = best;
        return OK;
    }
    for (enum cpu_isa isa = CPU_ISA_PLAIN; isa <= CPU_ISA_AVX512; isa++) {
        if (strcmp(want, cpu_isa_name(isa)) != 0)
            continue;
        if (isa > best)
            return err_set(ei, ERR_UNSUPPORTED, "%s: %s: this processor runs up to %s", source,
                           want, cpu_isa_name(best));
        *out = isa;
        return OK;
    }
    return err_set(ei, ERR_PARSE, "%s: \"%.64s\": must be auto, plain, avx2 or avx512", source,
                   want);
}
