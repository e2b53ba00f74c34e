/* Which block goes when room is needed? The unpinned ready row least recently used, of several the
 * deepest: a binary heap of row ids. Invariant: the heap holds exactly the unpinned ready rows
 * without ready children, ordered, each knowing its place. Knows nothing of keys and leases.
 *
 * Why leaves are enough. A chain is touched head first and as a whole (acquire, release), and a new
 * block inherits its parent's last use, so last_used(parent) >= last_used(child) and depth(parent)
 * < depth(child): in the order (last_used ascending, depth descending) a child is always before its
 * parent, and the first of all unpinned rows is a leaf. Keeping the others out changes no choice
 * and makes pinning a chain cost one removal instead of one a block; and should a caller release a
 * parent before its child, no ready row can lose its parent all the same. */
#include "prefixcache/kv_evict.h"

#include <assert.h>

bool kv_evict_is_candidate(const struct kv_row *r)
{
    return kv_row_state(r) == KV_ROW_READY && r->n_pins == 0 && r->n_children == 0;
}

bool kv_evict_is_before(const struct kv_view *v, uint32_t a, uint32_t b)
{
    const struct kv_row *x = &v->rows[a], *y = &v->rows[b];
    if (x->last_used != y->last_used)
        return x->last_used < y->last_used;
    if (x->depth != y->depth)
        return x->depth > y->depth;
    return a < b; /* siblings: any order, but a fixed one */
}

static void put(struct kv_view *v, uint32_t pos, uint32_t block)
{
    v->heap[pos] = block;
    v->rows[block].heap_pos = pos;
}

static void sift_up(struct kv_view *v, uint32_t pos)
{
    uint32_t block = v->heap[pos];
    while (pos > 0) {
        uint32_t up = (pos - 1) / 2;
        if (!kv_evict_is_before(v, block, v->heap[up]))
            break;
        put(v, pos, v->heap[up]);
        pos = up;
    }
    put(v, pos, block);
}

static void sift_down(struct kv_view *v, uint32_t pos)
{
    uint32_t block = v->heap[pos], n = v->header->heap_size;
    for (;;) {
        uint32_t child = 2 * pos + 1;
        if (child >= n)
            break;
        if (child + 1 < n && kv_evict_is_before(v, v->heap[child + 1], v->heap[child]))
            child++;
        if (!kv_evict_is_before(v, v->heap[child], block))
            break;
        put(v, pos, v->heap[child]);
        pos = child;
    }
    put(v, pos, block);
}

static void take_out(struct kv_view *v, uint32_t block)
{
    uint32_t pos = v->rows[block].heap_pos, last = v->heap[--v->header->heap_size];
    v->rows[block].heap_pos = KV_BLOCK_NONE;
    if (last == block)
        return;
    put(v, pos, last);
    sift_up(v, pos);
    sift_down(v, v->rows[last].heap_pos);
}

void kv_evict_update(struct kv_view *v, uint32_t block)
{
    struct kv_row *r = &v->rows[block];
    bool is_in = r->heap_pos != KV_BLOCK_NONE;
    if (!kv_evict_is_candidate(r)) {
        if (is_in)
            take_out(v, block);
        return;
    }
    if (!is_in) {
        assert(v->header->heap_size < v->g.n_blocks);
        put(v, v->header->heap_size++, block);
    }
    sift_up(v, r->heap_pos);
    sift_down(v, r->heap_pos);
}

uint32_t kv_evict_victim(const struct kv_view *v)
{
    return v->header->heap_size > 0 ? v->heap[0] : KV_BLOCK_NONE;
}
