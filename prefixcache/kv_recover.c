/* What is true when the lock's holder died anywhere? Rows by their state, leases and pins; index,
 * free list, heap, totals are rebuilt from them. Invariant: nothing true is changed but to drop
 * what cannot be, so dying here and starting again gives the same store. Does not know what the
 * dead process was doing, nor needs to; its lease stays until it is reaped.
 *
 * Parents come before children by a counting sort on depth. It needs two arrays: heap and buckets,
 * which are to be rebuilt anyway, serve until then. */
#include "prefixcache/kv_recover.h"
#include "prefixcache/kv_evict.h"
#include "prefixcache/kv_index.h"
#include "prefixcache/kv_lease.h"
#include "prefixcache/kv_rows.h"

#include <string.h>

/* A state that no process writes, or a filling row that nobody owns, is free. */
static void settle_states(struct kv_view *v)
{
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        struct kv_row *r = &v->rows[b];
        enum kv_row_state st = kv_row_state(r);
        bool is_valid = st == KV_ROW_FREE ||
                        (st == KV_ROW_FILLING && kv_lease_is_used(v, r->lease)) ||
                        (st == KV_ROW_READY && r->depth < v->g.n_blocks);
        if (!is_valid)
            kv_row_set_state(r, KV_ROW_FREE);
        r->n_pins = r->n_children = 0;
        r->heap_pos = r->next = KV_BLOCK_NONE;
    }
}

/* heap[0 .. n) = ready rows, depth ascending. Returns n. */
static uint32_t sort_by_depth(struct kv_view *v)
{
    uint32_t *start = v->buckets, n = v->g.n_blocks, sum = 0;
    memset(start, 0, n * sizeof *start);
    for (uint32_t b = 0; b < n; b++) {
        if (kv_row_state(&v->rows[b]) == KV_ROW_READY)
            start[v->rows[b].depth]++;
    }
    for (uint32_t d = 0; d < n; d++) {
        uint32_t count = start[d];
        start[d] = sum;
        sum += count;
    }
    for (uint32_t b = 0; b < n; b++) {
        if (kv_row_state(&v->rows[b]) == KV_ROW_READY)
            v->heap[start[v->rows[b].depth]++] = b;
    }
    return sum;
}

static bool has_parent(const struct kv_view *v, const struct kv_row *r)
{
    if (r->parent == KV_BLOCK_NONE)
        return r->depth == 0;
    if (r->parent >= v->g.n_blocks)
        return false;
    const struct kv_row *p = &v->rows[r->parent];
    return kv_row_state(p) == KV_ROW_READY && p->generation == r->parent_generation &&
           p->depth + 1 == r->depth;
}

/* order: [n] ready rows, parents first; afterwards some of them are free */
static void link_rows(struct kv_view *v, const uint32_t *order, uint32_t n)
{
    memset(v->buckets, 0xff, v->g.n_buckets * sizeof *v->buckets); /* KV_BLOCK_NONE */
    for (uint32_t i = 0; i < n; i++) {
        struct kv_row *r = &v->rows[order[i]];
        if (!has_parent(v, r) || kv_index_find(v, &r->key) != KV_BLOCK_NONE) {
            kv_row_set_state(r, KV_ROW_FREE);
            continue;
        }
        kv_index_insert(v, order[i]);
        if (r->parent != KV_BLOCK_NONE)
            v->rows[r->parent].n_children++;
        if (r->last_used > v->header->tick)
            v->header->tick = r->last_used;
    }
    /* tails first: a touch that reached a row but not yet its ancestors is completed */
    for (uint32_t i = n; i-- > 0;) {
        const struct kv_row *r = &v->rows[order[i]];
        if (kv_row_state(r) != KV_ROW_READY || r->parent == KV_BLOCK_NONE)
            continue;
        if (v->rows[r->parent].last_used < r->last_used)
            v->rows[r->parent].last_used = r->last_used;
    }
}

static void total_pins(struct kv_view *v)
{
    for (uint32_t l = 0; l < v->g.max_leases; l++) {
        uint16_t *pins = kv_pins(v, l, 0);
        struct kv_lease_slot *slot = &v->leases[l];
        slot->n_pins = 0;
        slot->n_filling = 0;
        if (!kv_lease_is_used(v, l)) {
            memset(pins, 0, v->g.n_blocks * sizeof *pins);
            continue;
        }
        for (uint32_t b = 0; b < v->g.n_blocks; b++) {
            if (pins[b] == 0)
                continue;
            if (kv_row_state(&v->rows[b]) != KV_ROW_READY) {
                pins[b] = 0; /* died between the pin and the state of a publish */
                continue;
            }
            v->rows[b].n_pins += pins[b];
            slot->n_pins += pins[b];
        }
    }
}

static void collect_rows(struct kv_view *v)
{
    struct kv_header *h = v->header;
    h->free_head = KV_BLOCK_NONE;
    h->n_free = h->n_filling = h->n_ready = h->n_pinned = h->heap_size = 0;
    for (uint32_t b = v->g.n_blocks; b-- > 0;) {
        struct kv_row *r = &v->rows[b];
        switch (kv_row_state(r)) {
        case KV_ROW_FREE:
            kv_rows_push_free(v, b);
            break;
        case KV_ROW_FILLING:
            h->n_filling++;
            v->leases[r->lease].n_filling++;
            break;
        case KV_ROW_READY:
            h->n_ready++;
            h->n_pinned += r->n_pins > 0;
            kv_evict_update(v, b);
            break;
        }
    }
}

void kv_recover_rebuild(struct kv_view *v)
{
    settle_states(v);
    uint32_t n = sort_by_depth(v);
    link_rows(v, v->heap, n);
    total_pins(v);
    collect_rows(v); /* the heap as scratch ends here */
    v->header->n_rebuilds++;
}
