/* Paths and numbers for the row ops' tests. Judges nothing. */
#include "tests/kernels/support_rows.h"

uint32_t rows_isas(enum cpu_isa out[3])
{
    uint32_t n = 0;
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        out[n++] = (enum cpu_isa)isa;
    return n;
}

void rows_fill(uint32_t seed, float *out, size_t n, float scale)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        out[i] = ((float)(seed >> 8) * 0x1p-23f - 1.0f) * scale;
    }
}
