#pragma once
#include <stddef.h>

/* Memory with one lifetime: allocate many, free once. One owner thread. */

struct arena;

/* NULL when out of memory. limit_bytes: what may be allocated in all; 0 = no limit. */
struct arena *arena_new(size_t limit_bytes);
void arena_free(struct arena *a); /* NULL is legal */

/* Forgets all allocations but keeps one chunk, so that a loop's arena stops asking the system. */
void arena_reset(struct arena *a);

/* Zeroed, aligned for any type; NULL when out of memory or past the limit. size_bytes 0 gives a
 * unique non-NULL pointer. Lives until arena_free. */
void *arena_alloc(struct arena *a, size_t size_bytes);

/* n * each bytes with the multiplication checked. */
void *arena_alloc_array(struct arena *a, size_t n, size_t each_bytes);

/* Copy of n bytes with a NUL behind them. */
char *arena_strndup(struct arena *a, const char *s, size_t n);
