/* Where do long-lived buffers of the arithmetic come from?
 * Invariant: what is returned is zeroed and aligned for any vector width; huge pages are asked for,
 * never required.
 * Does not know what the memory holds. */
#include "worker/cpu/aligned_memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_BYTES = 64, HUGE_BYTES = 2 << 20 };

void *aligned_memory_new(size_t size_bytes)
{
    const size_t unit = size_bytes >= HUGE_BYTES ? HUGE_BYTES : LINE_BYTES;
    if (size_bytes > SIZE_MAX - unit)
        return NULL;
    const size_t whole = (size_bytes + (size_bytes == 0) + unit - 1) / unit * unit;
    void *p = aligned_alloc(unit, whole);
    if (!p)
        return NULL;
    if (unit == HUGE_BYTES)
        madvise(p, whole, MADV_HUGEPAGE); /* a refusal costs speed, nothing else */
    memset(p, 0, whole);
    return p;
}

void *aligned_memory_new_array(size_t n, size_t each_bytes)
{
    size_t size_bytes;
    if (__builtin_mul_overflow(n, each_bytes, &size_bytes))
        return NULL;
    return aligned_memory_new(size_bytes);
}
