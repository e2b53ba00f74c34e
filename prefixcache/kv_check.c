/* Is the store what it says? Each function walks one structure against the rows, which are the
 * truth; together they are the invariants of DESIGN §4 and kv_layout.h. Knows no cause and mends
 * nothing: a violation is a bug of ours, or of the memory. */
#include "prefixcache/kv_check.h"
#include "prefixcache/kv_evict.h"
#include "prefixcache/kv_index.h"
#include "prefixcache/kv_lease.h"

#include <string.h>

#define FAIL(...) err_set(ei, ERR_PARSE, "kv store: " __VA_ARGS__)

/* Ready rows: parent, use and children. That no parent is used before its child is what makes
 * leaves the only candidates for eviction (kv_evict.c). counts[b] = ready children of b. */
static enum err check_chains(const struct kv_view *v, uint32_t *counts, struct err_info *ei)
{
    memset(counts, 0, v->g.n_blocks * sizeof *counts);
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        const struct kv_row *r = &v->rows[b];
        if (kv_row_state(r) != KV_ROW_READY)
            continue;
        if (r->n_tokens != v->g.block_size)
            return FAIL("block %u: %u tokens", b, r->n_tokens);
        if (r->last_used > v->header->tick)
            return FAIL("block %u: used after now", b);
        if (r->parent == KV_BLOCK_NONE) {
            if (r->depth != 0)
                return FAIL("block %u: depth %u without parent", b, r->depth);
            continue;
        }
        if (r->parent >= v->g.n_blocks || kv_row_state(&v->rows[r->parent]) != KV_ROW_READY)
            return FAIL("block %u: parent %u is not ready", b, r->parent);
        const struct kv_row *p = &v->rows[r->parent];
        if (p->generation != r->parent_generation)
            return FAIL("block %u: parent %u is another row by now", b, r->parent);
        if (r->depth != p->depth + 1)
            return FAIL("block %u: depth %u below depth %u", b, r->depth, p->depth);
        if (p->last_used < r->last_used)
            return FAIL("block %u: used after its parent %u", b, r->parent);
        counts[r->parent]++;
    }
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        if (kv_row_state(&v->rows[b]) == KV_ROW_READY && v->rows[b].n_children != counts[b])
            return FAIL("block %u: %u children, not %u", b, v->rows[b].n_children, counts[b]);
    }
    return OK;
}

static enum err check_states(const struct kv_view *v, struct err_info *ei)
{
    const struct kv_header *h = v->header;
    uint32_t n[3] = {0};
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        enum kv_row_state st = kv_row_state(&v->rows[b]);
        if (st > KV_ROW_READY)
            return FAIL("block %u: state %d", b, (int)st);
        n[st]++;
        if (st == KV_ROW_FILLING && !kv_lease_is_used(v, v->rows[b].lease))
            return FAIL("block %u: filling for lease %u, which is not in use", b, v->rows[b].lease);
    }
    if (n[KV_ROW_FREE] != h->n_free || n[KV_ROW_FILLING] != h->n_filling ||
        n[KV_ROW_READY] != h->n_ready)
        return FAIL("%u free, %u filling, %u ready rows; counted as %u, %u, %u", n[KV_ROW_FREE],
                    n[KV_ROW_FILLING], n[KV_ROW_READY], h->n_free, h->n_filling, h->n_ready);
    uint32_t n_listed = 0;
    for (uint32_t b = h->free_head; b != KV_BLOCK_NONE; b = v->rows[b].next) {
        if (b >= v->g.n_blocks || kv_row_state(&v->rows[b]) != KV_ROW_FREE)
            return FAIL("free list: block %u is not free", b);
        if (++n_listed > h->n_free)
            return FAIL("free list: longer than %u", h->n_free);
    }
    return n_listed == h->n_free ? OK : FAIL("free list: %u of %u", n_listed, h->n_free);
}

static enum err check_index(const struct kv_view *v, struct err_info *ei)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < v->g.n_buckets; i++) {
        for (uint32_t b = v->buckets[i]; b != KV_BLOCK_NONE; b = v->rows[b].next) {
            if (b >= v->g.n_blocks || kv_row_state(&v->rows[b]) != KV_ROW_READY)
                return FAIL("bucket %u: block %u is not ready", i, b);
            if (kv_index_bucket(v, &v->rows[b].key) != i)
                return FAIL("bucket %u: block %u belongs elsewhere", i, b);
            if (++n > v->header->n_ready)
                return FAIL("index: more than %u rows", v->header->n_ready);
        }
    }
    if (n != v->header->n_ready)
        return FAIL("index: %u rows of %u", n, v->header->n_ready);
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        if (kv_row_state(&v->rows[b]) != KV_ROW_READY)
            continue;
        uint32_t found = kv_index_find(v, &v->rows[b].key);
        if (found != b)
            return FAIL("index: the key of block %u finds %u", b, found);
    }
    return OK;
}

/* counts[b] = pins of b by all leases */
static enum err check_pins(const struct kv_view *v, uint32_t *counts, struct err_info *ei)
{
    memset(counts, 0, v->g.n_blocks * sizeof *counts);
    for (uint32_t l = 0; l < v->g.max_leases; l++) {
        uint64_t sum = 0;
        for (uint32_t b = 0; b < v->g.n_blocks; b++) {
            uint32_t n = *kv_pins(v, l, b);
            if (n > 0 && !kv_lease_is_used(v, l))
                return FAIL("block %u: %u pins of lease %u, which is not in use", b, n, l);
            if (n > 0 && kv_row_state(&v->rows[b]) != KV_ROW_READY)
                return FAIL("block %u: %u pins of lease %u, but not ready", b, n, l);
            counts[b] += n;
            sum += n;
        }
        if (kv_lease_is_used(v, l) && sum != v->leases[l].n_pins)
            return FAIL("lease %u: %llu pins, not %llu", l, (unsigned long long)sum,
                        (unsigned long long)v->leases[l].n_pins);
    }
    uint32_t n_pinned = 0;
    for (uint32_t b = 0; b < v->g.n_blocks; b++) {
        if (kv_row_state(&v->rows[b]) != KV_ROW_READY)
            continue;
        if (v->rows[b].n_pins != counts[b])
            return FAIL("block %u: %u pins, not %u", b, counts[b], v->rows[b].n_pins);
        n_pinned += counts[b] > 0;
    }
    return n_pinned == v->header->n_pinned
               ? OK
               : FAIL("%u pinned rows, not %u", n_pinned, v->header->n_pinned);
}

/* each filling row belongs to one lease, which counts them */
static enum err check_filling(const struct kv_view *v, struct err_info *ei)
{
    uint64_t sum = 0;
    for (uint32_t l = 0; l < v->g.max_leases; l++) {
        if (!kv_lease_is_used(v, l))
            continue;
        uint32_t n = 0;
        for (uint32_t b = 0; b < v->g.n_blocks; b++)
            n += kv_row_state(&v->rows[b]) == KV_ROW_FILLING && v->rows[b].lease == l;
        if (n != v->leases[l].n_filling)
            return FAIL("lease %u: %u filling rows, not %u", l, n, v->leases[l].n_filling);
        sum += n;
    }
    return sum == v->header->n_filling ? OK : FAIL("filling rows of no lease");
}

static enum err check_heap(const struct kv_view *v, struct err_info *ei)
{
    uint32_t n = v->header->heap_size, n_candidates = 0;
    if (n > v->g.n_blocks)
        return FAIL("heap: %u entries", n);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = v->heap[i];
        if (b >= v->g.n_blocks || v->rows[b].heap_pos != i)
            return FAIL("heap: block %u does not know its place %u", b, i);
        if (!kv_evict_is_candidate(&v->rows[b]))
            return FAIL("heap: block %u cannot be evicted", b);
        if (i > 0 && kv_evict_is_before(v, b, v->heap[(i - 1) / 2]))
            return FAIL("heap: block %u should go before block %u", b, v->heap[(i - 1) / 2]);
    }
    for (uint32_t b = 0; b < v->g.n_blocks; b++)
        n_candidates += kv_evict_is_candidate(&v->rows[b]);
    return n == n_candidates ? OK : FAIL("heap: %u of %u evictable rows", n, n_candidates);
}

enum err kv_check_walk(const struct kv_view *v, uint32_t *counts, struct err_info *ei)
{
    enum err rc = check_states(v, ei);
    if (rc == OK)
        rc = check_chains(v, counts, ei);
    if (rc == OK)
        rc = check_index(v, ei);
    if (rc == OK)
        rc = check_pins(v, counts, ei);
    if (rc == OK)
        rc = check_filling(v, ei);
    if (rc == OK)
        rc = check_heap(v, ei);
    return rc;
}
