/* Does kv_store_check see what it must? Each kind of damage, done to a sound store through the
 * layout, is reported by its own words; and a header that lies is refused at attaching. */
#include "prefixcache/kv_layout.h"
#include "support_store.h"

#include <criterion/criterion.h>
#include <string.h>

TestSuite(kv_check, .timeout = 10);

struct damage_case {
    struct store_pair pair;
    struct kv_view v;
    uint32_t cached[3], pinned[2], filling[1];
};

static struct kv_view view_of(struct kv_store *s, uint32_t n_blocks, uint32_t max_leases)
{
    struct kv_view v;
    struct kv_geometry g = {.block_size = SUPPORT_BLOCK,
                            .n_blocks = n_blocks,
                            .max_leases = max_leases,
                            .block_bytes = 64};
    cr_assert_eq(kv_layout_compute(&g, NULL), OK);
    kv_layout_view(&g, (unsigned char *)kv_store_data(s) - g.pool_at, &v);
    return v;
}

/* a chain of 3 cached, one of 2 pinned by both, one block filling, 2 free */
static void init_case(struct damage_case *d)
{
    struct chain c;
    d->pair = support_pair(8, 3);
    d->v = view_of(d->pair.a, 8, 3);
    support_chain(&c, 1, 64, 0);
    support_cache(d->pair.a, &c, 3, d->cached);
    support_chain(&c, 2, 64, 0);
    support_publish(d->pair.a, &c, 0, 2, d->pinned);
    cr_assert_eq(support_acquire(d->pair.b, &c, 2, d->pinned), 2);
    cr_assert_eq(kv_store_reserve(d->pair.b, 1, d->filling, NULL), OK);
    support_check(d->pair.a);
}

static void expect_violation(struct damage_case *d, const char *words)
{
    struct err_info ei = {{0}};
    cr_expect_eq(kv_store_check(d->pair.a, &ei), ERR_PARSE, "unseen: %s", words);
    cr_expect(strstr(ei.text, words), "'%s' is not about: %s", ei.text, words);
    kv_store_detach(d->pair.a);
    kv_store_detach(d->pair.b);
}

#define DAMAGE(name, words, ...)                                                                   \
    Test(kv_check, name)                                                                           \
    {                                                                                              \
        struct damage_case d = {0};                                                                \
        init_case(&d);                                                                             \
        __VA_ARGS__;                                                                               \
        expect_violation(&d, words);                                                               \
    }

DAMAGE(a_state_that_is_none_is_seen, "state 7", kv_row_set_state(&d.v.rows[d.cached[0]], 7))
DAMAGE(a_lost_row_is_seen, "counted as", kv_row_set_state(&d.v.rows[d.filling[0]], KV_ROW_FREE))
DAMAGE(a_filling_row_of_nobody_is_seen, "not in use", d.v.rows[d.filling[0]].lease = 2)
DAMAGE(a_filling_row_of_another_is_seen, "filling rows, not", d.v.rows[d.filling[0]].lease = 0)
DAMAGE(a_cut_free_list_is_seen, "free list", d.v.header->free_head = KV_BLOCK_NONE)
DAMAGE(a_free_list_in_a_circle_is_seen, "free list: longer",
       d.v.rows[d.v.header->free_head].next = d.v.header->free_head)
DAMAGE(a_row_out_of_its_bucket_is_seen, "block", d.v.rows[d.cached[1]].key.bytes[0] ^= 0xff)
DAMAGE(a_row_that_the_index_lost_is_seen, "index",
       memset(d.v.buckets, 0xff, d.v.g.n_buckets * sizeof *d.v.buckets))
DAMAGE(
    two_rows_of_one_key_are_seen, "finds", d.v.rows[d.cached[1]].next = KV_BLOCK_NONE;
    d.v.rows[d.pinned[1]].key = d.v.rows[d.cached[1]].key;
    memset(d.v.buckets, 0xff, d.v.g.n_buckets * sizeof *d.v.buckets);
    for (uint32_t b = 0; b < 8; b++) {
        if (kv_row_state(&d.v.rows[b]) != KV_ROW_READY)
            continue;
        uint32_t h;
        memcpy(&h, d.v.rows[b].key.bytes, sizeof h);
        h &= d.v.g.n_buckets - 1;
        d.v.rows[b].next = d.v.buckets[h];
        d.v.buckets[h] = b;
    })
DAMAGE(a_pin_that_no_total_counts_is_seen, "pins, not", ++*kv_pins(&d.v, 0, d.cached[0]);
       d.v.leases[0].n_pins++)
DAMAGE(a_pin_that_its_lease_does_not_count_is_seen, "lease 0", d.v.leases[0].n_pins++)
DAMAGE(a_pin_of_a_closed_lease_is_seen, "not in use", *kv_pins(&d.v, 2, d.cached[0]) = 1)
DAMAGE(a_pin_of_a_filling_row_is_seen, "but not ready", *kv_pins(&d.v, 1, d.filling[0]) = 1)
DAMAGE(a_wrong_count_of_pinned_rows_is_seen, "pinned rows", d.v.header->n_pinned++)
DAMAGE(a_parent_that_is_not_ready_is_seen, "is not ready",
       d.v.rows[d.cached[1]].parent = d.filling[0])
DAMAGE(a_parent_that_was_replaced_is_seen, "another row", d.v.rows[d.cached[0]].generation++)
DAMAGE(a_wrong_depth_is_seen, "depth", d.v.rows[d.cached[2]].depth = 9)
DAMAGE(a_child_used_after_its_parent_is_seen, "after its parent",
       d.v.rows[d.cached[2]].last_used = d.v.header->tick)
DAMAGE(a_use_in_the_future_is_seen, "after now", d.v.rows[d.cached[0]].last_used += 1000)
DAMAGE(a_wrong_count_of_children_is_seen, "children", d.v.rows[d.cached[0]].n_children = 0)
DAMAGE(a_part_block_is_seen, "15 tokens", d.v.rows[d.cached[0]].n_tokens = 15)
DAMAGE(a_candidate_missing_from_the_heap_is_seen, "heap", d.v.header->heap_size = 0)
DAMAGE(a_heap_entry_that_is_pinned_is_seen, "cannot be evicted", d.v.heap[0] = d.pinned[1];
       d.v.rows[d.pinned[1]].heap_pos = 0)

Test(kv_check, a_heap_out_of_order_is_seen)
{
    struct store_pair p = support_pair(8, 3);
    struct kv_view v = view_of(p.a, 8, 3);
    struct err_info ei = {{0}};
    struct chain c;
    uint32_t b[2];
    for (uint32_t i = 0; i < 2; i++) {
        support_chain(&c, i, 64, 0);
        support_cache(p.a, &c, 1, b + i);
    }
    v.rows[b[0]].last_used = v.rows[b[1]].last_used;
    v.rows[b[1]].last_used--;
    cr_expect_eq(kv_store_check(p.a, &ei), ERR_PARSE);
    cr_expect(strstr(ei.text, "should go before"), "%s", ei.text);
    kv_store_detach(p.a);
    kv_store_detach(p.b);
}

/* --- headers ------------------------------------------------------------------------------------
 */

struct header_case {
    struct kv_store *s;
    struct kv_header *h;
    const char *name;
};

static void init_header(struct header_case *c)
{
    struct kv_store_config cfg = {.name = c->name = support_name(),
                                  .block_size = SUPPORT_BLOCK,
                                  .block_bytes = 64,
                                  .n_blocks = 8,
                                  .max_leases = 3,
                                  .fingerprint = support_fingerprint()};
    cr_assert_eq(kv_store_create(&cfg, &c->s, NULL), OK);
    c->h = view_of(c->s, 8, 3).header;
}

static void expect_refused(struct header_case *c, const char *words)
{
    struct fingerprint f = support_fingerprint();
    struct err_info ei = {{0}};
    struct kv_store *t = NULL;
    enum err rc = kv_store_attach(c->name, &f, &t, &ei);
    kv_store_remove(c->name);
    kv_store_detach(c->s);
    cr_expect_eq(rc, ERR_PARSE);
    cr_expect(strstr(ei.text, words), "'%s' is not about: %s", ei.text, words);
}

#define LIE(name, words, ...)                                                                      \
    Test(kv_check, name)                                                                           \
    {                                                                                              \
        struct header_case c = {0};                                                                \
        init_header(&c);                                                                           \
        __VA_ARGS__;                                                                               \
        expect_refused(&c, words);                                                                 \
    }

LIE(a_file_that_is_no_store_is_refused, "not a store", c.h->magic = 1)
LIE(an_unfinished_store_is_refused, "not finished", c.h->magic = 0)
LIE(another_layout_version_is_refused, "layout version 2", c.h->version = 2)
LIE(a_store_of_other_sizes_is_refused, "its header says", c.h->n_blocks = 9)
LIE(a_store_cut_short_is_refused, "its header says", c.h->size_bytes--)
LIE(a_header_out_of_range_is_refused, "2000 leases", c.h->max_leases = 2000)
