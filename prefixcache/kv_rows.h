#pragma once
#include "prefixcache/kv_layout.h"

/* The transitions of a row: free -> filling -> ready -> free, and pins. Each keeps index, eviction
 * heap and counters in step. All under the store's lock. */

/* free -> filling, owned by lease. The caller knows that a row is free. */
uint32_t kv_rows_take(struct kv_view *v, uint32_t lease);
/* filling -> free */
void kv_rows_give_back(struct kv_view *v, uint32_t block);
/* filling -> ready, pinned once by its owner. The key is not in the index; parent is ready or
 * KV_BLOCK_NONE. tokens: [block_size]. */
void kv_rows_publish(struct kv_view *v, uint32_t block, const struct block_key *key,
                     uint32_t parent, const uint32_t *tokens);
/* ready -> free; unpinned and without ready children. */
void kv_rows_evict(struct kv_view *v, uint32_t block);
/* False, and nothing done, when the lease has KV_MAX_PINS of it already. The row is ready. */
bool kv_rows_pin(struct kv_view *v, uint32_t block, uint32_t lease);
/* Drops n > 0 pins of that lease, which has as many. */
void kv_rows_unpin(struct kv_view *v, uint32_t block, uint32_t lease, uint16_t n);
/* last_used of the row and of all its ancestors becomes at least tick. */
void kv_rows_touch(struct kv_view *v, uint32_t block, uint64_t tick);
/* Onto the free list, whatever it was: for creation and rebuild. */
void kv_rows_push_free(struct kv_view *v, uint32_t block);
