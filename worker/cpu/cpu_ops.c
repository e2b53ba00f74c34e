/* Which functions does an ISA path consist of?
 * Invariant: one path's functions are never mixed with another's, since they round differently.
 * Does not know whether the processor has the path: config/cpu_isa.h does. */
#include "worker/cpu/cpu_ops.h"

struct cpu_ops cpu_ops_of(enum cpu_isa isa)
{
    switch (isa) {
    case CPU_ISA_AVX512:
        return (struct cpu_ops){rmsnorm_avx512, swiglu_avx512, kv_format_store_avx512,
                                paged_attention_avx512};
    case CPU_ISA_AVX2:
        return (struct cpu_ops){rmsnorm_avx2, swiglu_avx2, kv_format_store_avx2,
                                paged_attention_avx2};
    case CPU_ISA_PLAIN:
        break;
    }
    return (struct cpu_ops){rmsnorm_plain, swiglu_plain, kv_format_store_plain,
                            paged_attention_plain};
}
