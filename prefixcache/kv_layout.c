/* Where does each section of the shared file lie? The arithmetic of the page in kv_layout.h, with
 * every product and sum checked, since the numbers may come from a file that another program wrote.
 * Invariant: sections do not overlap and end before size_bytes. Knows no locks and no states. */
#include "prefixcache/kv_layout.h"

#include <assert.h>
#include <stddef.h>

static_assert(sizeof(struct kv_row) == 64, "a row is one cache line");
static_assert(offsetof(struct kv_row, key) == 8, "layout");
static_assert(offsetof(struct kv_row, next) == 60, "layout");
static_assert(sizeof(struct kv_lease_slot) == 128, "a lease is two cache lines");
static_assert(offsetof(struct kv_lease_slot, pulse_seq) == 64, "pulses have their own line");
static_assert(sizeof(struct kv_header) <= KV_HEADER_BYTES, "the header fits");
static_assert(offsetof(struct kv_header, mutex) == 128, "layout");
static_assert(offsetof(struct kv_header, tick) == 192, "layout");
static_assert(offsetof(struct kv_header, prompt_tokens) == 256, "layout");

enum { SECTION_ALIGN = 64, MAX_BLOCKS = 1 << 30 };

/* Appends a section of n items of `size` bytes. */
static bool place(uint64_t *end, uint64_t align, uint64_t n, uint64_t size, uint64_t *at)
{
    uint64_t bytes, start;
    if (__builtin_mul_overflow(n, size, &bytes) || __builtin_add_overflow(*end, align - 1, &start))
        return false;
    *at = start / align * align;
    return !__builtin_add_overflow(*at, bytes, end);
}

/* at least two buckets a row, so that chains stay near one */
static uint32_t buckets_for(uint32_t n_blocks)
{
    uint32_t n = 2;
    while (n < 2 * n_blocks)
        n *= 2;
    return n;
}

enum err kv_layout_compute(struct kv_geometry *g, struct err_info *ei)
{
    if (g->block_size != 16 && g->block_size != 32)
        return err_set(ei, ERR_LIMIT, "kv store: block size %u: 16 or 32 tokens", g->block_size);
    if (g->n_blocks < 1 || g->n_blocks > MAX_BLOCKS)
        return err_set(ei, ERR_LIMIT, "kv store: %u blocks: 1 to %d", g->n_blocks, MAX_BLOCKS);
    if (g->max_leases < 1 || g->max_leases > KV_MAX_LEASES)
        return err_set(ei, ERR_LIMIT, "kv store: %u leases: 1 to %d", g->max_leases, KV_MAX_LEASES);
    if (g->block_bytes % SECTION_ALIGN != 0)
        return err_set(ei, ERR_LIMIT, "kv store: block of %llu bytes: not a multiple of %d",
                       (unsigned long long)g->block_bytes, SECTION_ALIGN);
    g->n_buckets = buckets_for(g->n_blocks);
    uint64_t n = g->n_blocks, end = KV_HEADER_BYTES;
    bool is_placed =
        place(&end, SECTION_ALIGN, n, sizeof(struct kv_row), &g->rows_at) &&
        place(&end, SECTION_ALIGN, n, g->block_size * sizeof(uint32_t), &g->tokens_at) &&
        place(&end, SECTION_ALIGN, g->n_buckets, sizeof(uint32_t), &g->buckets_at) &&
        place(&end, SECTION_ALIGN, n, sizeof(uint32_t), &g->heap_at) &&
        place(&end, SECTION_ALIGN, g->max_leases, sizeof(struct kv_lease_slot), &g->leases_at) &&
        place(&end, SECTION_ALIGN, n * g->max_leases, sizeof(uint16_t), &g->pins_at) &&
        place(&end, KV_POOL_ALIGN, n, g->block_bytes, &g->pool_at);
    if (!is_placed || end > INT64_MAX)
        return err_set(ei, ERR_LIMIT, "kv store: %u blocks of %llu bytes: more than 2^63 bytes",
                       g->n_blocks, (unsigned long long)g->block_bytes);
    g->size_bytes = end;
    return OK;
}

void kv_layout_view(const struct kv_geometry *g, void *base, struct kv_view *out)
{
    unsigned char *p = base;
    *out = (struct kv_view){
        .g = *g,
        .header = (void *)p,
        .rows = (void *)(p + g->rows_at),
        .tokens = (void *)(p + g->tokens_at),
        .buckets = (void *)(p + g->buckets_at),
        .heap = (void *)(p + g->heap_at),
        .leases = (void *)(p + g->leases_at),
        .pins = (void *)(p + g->pins_at),
        .pool = p + g->pool_at,
    };
}
