/* What does a feed-forward gate let through? The plain path, and the oracle of the others.
 * Invariant: element by element, nothing carried from one to the next.
 * Does not know rows, batches or threads. */
#include "worker/cpu/swiglu.h"

#include <math.h>

void swiglu_plain(float *restrict gate, const float *restrict up, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        gate[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}
