#pragma once
#include "prefixcache/kv_layout.h"

/* Who goes next? All under the store's lock. */

/* Puts the row into the heap, moves it or takes it out, after its state, pins, children or last use
 * changed. O(log n). */
void kv_evict_update(struct kv_view *v, uint32_t block);
/* The next victim, left in the heap; KV_BLOCK_NONE when every ready row is pinned or has children.
 */
uint32_t kv_evict_victim(const struct kv_view *v);
/* Ready, unpinned and without ready children: what the heap must hold. */
bool kv_evict_is_candidate(const struct kv_row *r);
/* Does a go before b? Total order. */
bool kv_evict_is_before(const struct kv_view *v, uint32_t a, uint32_t b);
