#pragma once
#include "prefixcache/kv_layout.h"

/* Ready rows by key. All under the store's lock. */

/* The ready row of that key, or KV_BLOCK_NONE. A key alone proves nothing: see kv_index_is_same. */
uint32_t kv_index_find(const struct kv_view *v, const struct block_key *key);
/* Do the row's tokens and place in the chain equal these? tokens: [block_size]. */
bool kv_index_is_same(const struct kv_view *v, uint32_t block, const uint32_t *tokens,
                      uint32_t parent);
/* A key that is not in yet. */
void kv_index_insert(struct kv_view *v, uint32_t block);
void kv_index_remove(struct kv_view *v, uint32_t block);
/* Starts loading what finding keys[i] and a bit later ones will touch. lease: KV_LEASE_NONE when
 * nothing will be pinned. */
void kv_index_prefetch(const struct kv_view *v, const struct block_key *keys, uint32_t n_keys,
                       uint32_t i, uint32_t lease);
uint32_t kv_index_bucket(const struct kv_view *v, const struct block_key *key);
