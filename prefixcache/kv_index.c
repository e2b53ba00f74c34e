/* Which row has this key? Buckets of rows chained through row.next. Invariant: exactly the ready
 * rows are in, each in the bucket of its key, at most one of a key. Keys are hashes, so their first
 * bytes are the bucket. Knows neither pins nor eviction. */
#include "prefixcache/kv_index.h"

#include <assert.h>
#include <string.h>

/* How far ahead of use to ask memory: a miss takes about 100 ns, a step of a lookup about 20. */
enum { BUCKETS_AHEAD = 16, ROWS_AHEAD = 8 };

uint32_t kv_index_bucket(const struct kv_view *v, const struct block_key *key)
{
    uint32_t h;
    memcpy(&h, key->bytes, sizeof h);
    return h & (v->g.n_buckets - 1);
}

uint32_t kv_index_find(const struct kv_view *v, const struct block_key *key)
{
    uint32_t b = v->buckets[kv_index_bucket(v, key)];
    while (b != KV_BLOCK_NONE && memcmp(&v->rows[b].key, key, sizeof *key) != 0)
        b = v->rows[b].next;
    return b;
}

bool kv_index_is_same(const struct kv_view *v, uint32_t block, const uint32_t *tokens,
                      uint32_t parent)
{
    return v->rows[block].parent == parent &&
           memcmp(kv_tokens(v, block), tokens, v->g.block_size * sizeof *tokens) == 0;
}

void kv_index_insert(struct kv_view *v, uint32_t block)
{
    uint32_t *head = &v->buckets[kv_index_bucket(v, &v->rows[block].key)];
    v->rows[block].next = *head;
    *head = block;
}

void kv_index_remove(struct kv_view *v, uint32_t block)
{
    uint32_t *link = &v->buckets[kv_index_bucket(v, &v->rows[block].key)];
    while (*link != block) {
        assert(*link != KV_BLOCK_NONE);
        link = &v->rows[*link].next;
    }
    *link = v->rows[block].next;
    v->rows[block].next = KV_BLOCK_NONE;
}

void kv_index_prefetch(const struct kv_view *v, const struct block_key *keys, uint32_t n_keys,
                       uint32_t i, uint32_t lease)
{
    if (n_keys - i > BUCKETS_AHEAD)
        __builtin_prefetch(&v->buckets[kv_index_bucket(v, &keys[i + BUCKETS_AHEAD])]);
    if (n_keys - i <= ROWS_AHEAD)
        return;
    uint32_t b = v->buckets[kv_index_bucket(v, &keys[i + ROWS_AHEAD])];
    if (b == KV_BLOCK_NONE)
        return;
    __builtin_prefetch(&v->rows[b], 1);
    __builtin_prefetch(kv_tokens(v, b));
    if (lease != KV_LEASE_NONE)
        __builtin_prefetch(kv_pins(v, lease, b), 1);
}
