#pragma once
#include "config/cpu_isa.h"
#include "worker/cpu/kv_format.h"
#include "worker/cpu/paged_attention.h"
#include "worker/cpu/rmsnorm.h"
#include "worker/cpu/swiglu.h"

/* The ops of one ISA path, chosen once at open. Matrix products choose by themselves: matmul.h. */
struct cpu_ops {
    void (*rmsnorm)(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                    float *restrict y);
    void (*swiglu)(float *restrict gate, const float *restrict up, uint32_t n);
    void (*kv_store)(enum tensor_type format, const float *restrict x, uint32_t n,
                     void *restrict dst);
    void (*attend)(const struct paged_attention *a);
};

struct cpu_ops cpu_ops_of(enum cpu_isa isa);
