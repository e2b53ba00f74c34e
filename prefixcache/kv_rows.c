/* How does a row change state? Invariant: what is true is written before the state that makes it
 * so, by one store (kv_layout.h); a kill between any two instructions leaves rows from which
 * kv_recover_rebuild derives the rest:
 *   take     dead before the state: still free. After: filling, reaped with its lease.
 *   publish  dead before the state: filling, its pin is void and dropped. After: ready and pinned.
 *   evict    dead before the state: ready. After: free. Its parent is evicted later, if at all.
 *   pins     the lease's count is the truth, totals follow.
 * Knows nothing of locks, nor of who is alive. */
#include "prefixcache/kv_rows.h"
#include "prefixcache/kv_evict.h"
#include "prefixcache/kv_index.h"

#include <assert.h>
#include <string.h>

void kv_rows_push_free(struct kv_view *v, uint32_t block)
{
    v->rows[block].next = v->header->free_head;
    v->header->free_head = block;
    v->header->n_free++;
}

uint32_t kv_rows_take(struct kv_view *v, uint32_t lease)
{
    uint32_t block = v->header->free_head;
    assert(block < v->g.n_blocks);
    struct kv_row *r = &v->rows[block];
    assert(kv_row_state(r) == KV_ROW_FREE);
    v->header->free_head = r->next;
    v->header->n_free--;
    r->next = KV_BLOCK_NONE;
    r->lease = lease;
    kv_row_set_state(r, KV_ROW_FILLING);
    v->header->n_filling++;
    v->leases[lease].n_filling++;
    return block;
}

void kv_rows_give_back(struct kv_view *v, uint32_t block)
{
    struct kv_row *r = &v->rows[block];
    assert(kv_row_state(r) == KV_ROW_FILLING);
    assert(v->leases[r->lease].n_filling > 0);
    v->leases[r->lease].n_filling--;
    v->header->n_filling--;
    kv_row_set_state(r, KV_ROW_FREE);
    r->lease = KV_LEASE_NONE;
    kv_rows_push_free(v, block);
}

void kv_rows_publish(struct kv_view *v, uint32_t block, const struct block_key *key,
                     uint32_t parent, const uint32_t *tokens)
{
    struct kv_row *r = &v->rows[block];
    uint32_t lease = r->lease;
    assert(kv_row_state(r) == KV_ROW_FILLING);
    r->key = *key;
    r->n_tokens = (uint16_t)v->g.block_size;
    memcpy(kv_tokens(v, block), tokens, v->g.block_size * sizeof *tokens);
    r->generation++;
    r->parent = parent;
    if (parent == KV_BLOCK_NONE) {
        r->parent_generation = 0;
        r->depth = 0;
        r->last_used = ++v->header->tick;
    } else {
        r->parent_generation = v->rows[parent].generation;
        r->depth = v->rows[parent].depth + 1;
        /* not a new tick: a child used later than its parent would outlive it */
        r->last_used = v->rows[parent].last_used;
    }
    assert(*kv_pins(v, lease, block) == 0);
    *kv_pins(v, lease, block) = 1;
    kv_row_set_state(r, KV_ROW_READY);
    r->lease = KV_LEASE_NONE;
    r->n_pins = 1;
    r->n_children = 0;
    v->leases[lease].n_filling--;
    v->leases[lease].n_pins++;
    v->header->n_filling--;
    v->header->n_ready++;
    v->header->n_pinned++;
    v->header->n_published++;
    kv_index_insert(v, block);
    if (parent != KV_BLOCK_NONE) {
        v->rows[parent].n_children++;
        kv_evict_update(v, parent);
    }
}

void kv_rows_evict(struct kv_view *v, uint32_t block)
{
    struct kv_row *r = &v->rows[block];
    assert(kv_evict_is_candidate(r));
    uint32_t parent = r->parent;
    kv_index_remove(v, block);
    kv_row_set_state(r, KV_ROW_FREE);
    kv_evict_update(v, block);
    v->header->n_ready--;
    v->header->n_evicted++;
    kv_rows_push_free(v, block);
    if (parent != KV_BLOCK_NONE) {
        assert(v->rows[parent].n_children > 0);
        v->rows[parent].n_children--;
        kv_evict_update(v, parent);
    }
}

bool kv_rows_pin(struct kv_view *v, uint32_t block, uint32_t lease)
{
    struct kv_row *r = &v->rows[block];
    uint16_t *pins = kv_pins(v, lease, block);
    assert(kv_row_state(r) == KV_ROW_READY);
    if (*pins == KV_MAX_PINS)
        return false;
    ++*pins;
    v->leases[lease].n_pins++;
    if (r->n_pins++ == 0) {
        v->header->n_pinned++;
        kv_evict_update(v, block);
    }
    return true;
}

void kv_rows_unpin(struct kv_view *v, uint32_t block, uint32_t lease, uint16_t n)
{
    struct kv_row *r = &v->rows[block];
    uint16_t *pins = kv_pins(v, lease, block);
    assert(kv_row_state(r) == KV_ROW_READY);
    assert(n > 0 && *pins >= n && r->n_pins >= n);
    *pins = (uint16_t)(*pins - n);
    v->leases[lease].n_pins -= n;
    r->n_pins -= n;
    if (r->n_pins == 0) {
        v->header->n_pinned--;
        kv_evict_update(v, block);
    }
}

/* An ancestor has a child, so it is in no heap: only the row itself may have to move. Ancestors of
 * a row that is late enough are so too, hence one step a block when a chain is touched head first.
 */
void kv_rows_touch(struct kv_view *v, uint32_t block, uint64_t tick)
{
    for (uint32_t b = block; b != KV_BLOCK_NONE; b = v->rows[b].parent) {
        if (v->rows[b].last_used >= tick)
            break;
        v->rows[b].last_used = tick;
    }
    kv_evict_update(v, block);
}
