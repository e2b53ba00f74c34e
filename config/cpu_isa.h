#pragma once
#include "config/base/err.h"

/* Which instruction set do the CPU kernels use? Decided once by the router for the whole node,
 * since rounding differs between paths and blocks are shared (DESIGN §1). */
enum cpu_isa {
    CPU_ISA_PLAIN,  /* any x86-64: the oracle */
    CPU_ISA_AVX2,   /* AVX2, FMA, F16C */
    CPU_ISA_AVX512, /* AVX-512 F/BW/DQ/VL, VNNI */
};

/* The widest path that this processor and operating system run. */
enum cpu_isa cpu_isa_detect(void);
/* want: "auto", "plain", "avx2", "avx512" (NULL = environment variable KVNODE_ISA, else auto).
 * Errors: PARSE (unknown name), UNSUPPORTED (this processor lacks it). */
NODISCARD enum err cpu_isa_choose(const char *want, enum cpu_isa *out, struct err_info *ei);
const char *cpu_isa_name(enum cpu_isa isa); /* "plain", "avx2", "avx512" */
