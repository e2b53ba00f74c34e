#pragma once
#include <stddef.h>

/* Zeroed memory for activations and tables: 64-byte aligned; from 2 MiB on, aligned and rounded to
 * 2 MiB with transparent huge pages asked for (a TLB miss an activation row is what it saves).
 * Freed with free(). NULL when out of memory or size_bytes overflows. size_bytes 0 is legal. */
void *aligned_memory_new(size_t size_bytes);
/* n * each_bytes with the multiplication checked. */
void *aligned_memory_new_array(size_t n, size_t each_bytes);
