#pragma once
#include "worker/cpu/cpu_ops.h"

/* What the row ops' tests share: paths to try and numbers to try them on. */

/* Every ISA path that this machine runs; returns how many. */
uint32_t rows_isas(enum cpu_isa out[3]);
/* Reproducible values in [-scale, scale). */
void rows_fill(uint32_t seed, float *out, size_t n, float scale);
