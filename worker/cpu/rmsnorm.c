/* What is a row of activations after normalisation? The plain path, and the oracle of the others.
 * Invariant: a row's result depends on that row alone, summed first value to last.
 * Does not know rows, batches or threads. */
#include "worker/cpu/rmsnorm.h"

#include <math.h>

void rmsnorm_plain(const float *restrict x, const float *restrict w, uint32_t n, float eps,
                   float *restrict y)
{
    double sum = 0.0;
    for (uint32_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    const float scale = (float)(1.0 / sqrt(sum / n + (double)eps));
    for (uint32_t i = 0; i < n; i++)
        y[i] = x[i] * scale * w[i];
}
