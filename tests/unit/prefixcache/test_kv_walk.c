/* Does the store do what a naive one would? A random walk over acquire, reserve, publish and
 * release of several sequences by two leases, against a model in plain arrays that scans all rows
 * for each victim (all unpinned ready ones, not leaves only) and looks blocks up by their tokens.
 * Keys are taken from few chains with shared stems, so that forks, twins and evictions are
 * frequent. */
#include "support_store.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { N_BLOCKS = 24, N_CHAINS = 6, LENGTH = 8, N_SEQUENCES = 4, N_STEPS = 6000 };

TestSuite(kv_walk, .timeout = 30);

enum model_state { MODEL_FREE, MODEL_FILLING, MODEL_READY };

struct model_row {
    enum model_state state;
    const uint32_t *tokens; /* [LENGTH * block], of which depth + 1 blocks count */
    uint32_t depth, parent, n_pins;
    uint64_t last_used;
};

struct sequence {
    uint32_t chain, n_blocks, n_published;
    uint32_t blocks[LENGTH];
    int lease; /* 0 or 1; -1 when not running */
};

struct walk {
    struct store_pair pair;
    struct chain chains[N_CHAINS];
    struct model_row rows[N_BLOCKS];
    struct sequence sequences[N_SEQUENCES];
    uint64_t tick, random, n_evicted, n_deduplicated;
};

/* Steele, Lea, Flood 2014: SplitMix64 */
static uint32_t draw(struct walk *w, uint32_t below)
{
    uint64_t z = (w->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % below);
}

static struct kv_store *handle(struct walk *w, int lease)
{
    return lease == 0 ? w->pair.a : w->pair.b;
}

static uint32_t model_find(const struct walk *w, const struct chain *c, uint32_t depth)
{
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        const struct model_row *r = &w->rows[b];
        if (r->state == MODEL_READY && r->depth == depth &&
            memcmp(r->tokens, c->tokens, (depth + 1) * SUPPORT_BLOCK * sizeof *c->tokens) == 0)
            return b;
    }
    return KV_BLOCK_NONE;
}

static uint32_t model_victim(const struct walk *w)
{
    uint32_t best = KV_BLOCK_NONE;
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        const struct model_row *r = &w->rows[b], *x = &w->rows[best == KV_BLOCK_NONE ? b : best];
        if (r->state != MODEL_READY || r->n_pins > 0)
            continue;
        if (best == KV_BLOCK_NONE || r->last_used < x->last_used ||
            (r->last_used == x->last_used && r->depth > x->depth))
            best = b;
    }
    return best;
}

static uint32_t model_count(const struct walk *w, enum model_state state)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        n += w->rows[b].state == state;
    return n;
}

static uint32_t model_evictable(const struct walk *w)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        n += w->rows[b].state == MODEL_READY && w->rows[b].n_pins == 0;
    return n;
}

static void start(struct walk *w, struct sequence *q)
{
    const struct chain *c = &w->chains[q->chain = draw(w, N_CHAINS)];
    q->lease = (int)draw(w, 2);
    uint32_t n = kv_store_acquire(handle(w, q->lease), c->keys, c->tokens, LENGTH, q->blocks);
    w->tick++;
    uint32_t expected = 0, b;
    while (expected < LENGTH && (b = model_find(w, c, expected)) != KV_BLOCK_NONE) {
        cr_assert_eq(q->blocks[expected], b);
        w->rows[b].n_pins++;
        w->rows[b].last_used = w->tick;
        expected++;
    }
    cr_assert_eq(n, expected);
    q->n_blocks = q->n_published = n;
}

static void reserve(struct walk *w, struct sequence *q)
{
    uint32_t n = 1 + draw(w, LENGTH - q->n_blocks), *out = q->blocks + q->n_blocks;
    uint32_t n_free = model_count(w, MODEL_FREE);
    bool fits = n_free + model_evictable(w) >= n;
    cr_assert_eq(kv_store_reserve(handle(w, q->lease), n, out, NULL), fits ? OK : ERR_BUSY);
    if (!fits)
        return;
    for (; n_free < n; n_free++) {
        w->rows[model_victim(w)].state = MODEL_FREE;
        w->n_evicted++;
    }
    for (uint32_t i = 0; i < n; i++) {
        cr_assert_eq(w->rows[out[i]].state, MODEL_FREE, "block %u was not to be had", out[i]);
        w->rows[out[i]] = (struct model_row){.state = MODEL_FILLING};
    }
    q->n_blocks += n;
}

static void publish(struct walk *w, struct sequence *q)
{
    const struct chain *c = &w->chains[q->chain];
    uint32_t i = q->n_published++, mine = q->blocks[i];
    uint32_t parent = i > 0 ? q->blocks[i - 1] : KV_BLOCK_NONE;
    uint32_t twin = model_find(w, c, i);
    uint64_t used = i > 0 ? w->rows[parent].last_used : ++w->tick;
    q->blocks[i] = kv_store_publish(handle(w, q->lease), mine, &c->keys[i], parent,
                                    c->tokens + i * SUPPORT_BLOCK);
    if (twin == KV_BLOCK_NONE) {
        cr_assert_eq(q->blocks[i], mine);
        w->rows[mine] = (struct model_row){.state = MODEL_READY,
                                           .tokens = c->tokens,
                                           .depth = i,
                                           .parent = parent,
                                           .n_pins = 1,
                                           .last_used = used};
        return;
    }
    cr_assert_eq(q->blocks[i], twin);
    w->rows[mine].state = MODEL_FREE;
    w->rows[twin].n_pins++;
    w->rows[twin].last_used = used;
    w->n_deduplicated++;
}

static void finish(struct walk *w, struct sequence *q)
{
    kv_store_release(handle(w, q->lease), q->blocks, q->n_blocks);
    if (q->n_blocks > 0)
        w->tick++;
    for (uint32_t i = 0; i < q->n_blocks; i++) {
        struct model_row *r = &w->rows[q->blocks[i]];
        if (i >= q->n_published) {
            r->state = MODEL_FREE;
            continue;
        }
        r->n_pins--;
        r->last_used = w->tick;
    }
    q->lease = -1;
}

static void step(struct walk *w)
{
    struct sequence *q = &w->sequences[draw(w, N_SEQUENCES)];
    if (q->lease < 0)
        start(w, q);
    else if (q->n_published < q->n_blocks && draw(w, 4) > 0)
        publish(w, q);
    else if (q->n_blocks < LENGTH && draw(w, 3) > 0)
        reserve(w, q);
    else
        finish(w, q);
}

static void compare(struct walk *w)
{
    support_check(w->pair.a);
    struct kv_store_stats st = support_stats(w->pair.a);
    cr_assert_eq(st.n_free, model_count(w, MODEL_FREE));
    cr_assert_eq(st.n_filling, model_count(w, MODEL_FILLING));
    cr_assert_eq(st.n_ready, model_count(w, MODEL_READY));
    cr_assert_eq(st.n_ready - st.n_pinned, model_evictable(w));
    cr_assert_eq(st.n_evicted, w->n_evicted);
    cr_assert_eq(st.n_deduplicated, w->n_deduplicated);
    for (uint32_t c = 0; c < N_CHAINS; c++) {
        uint32_t n = 0;
        while (n < LENGTH && model_find(w, &w->chains[c], n) != KV_BLOCK_NONE)
            n++;
        cr_assert_eq(support_match(w->pair.b, &w->chains[c], LENGTH), n);
    }
}

static void run(uint64_t seed)
{
    struct walk *w = calloc(1, sizeof *w);
    cr_assert(w);
    w->random = seed;
    w->pair = support_pair(N_BLOCKS, 2);
    for (uint32_t c = 0; c < N_CHAINS; c++)
        support_chain(&w->chains[c], 100 + c / 3, 1 + c % 3, c);
    for (uint32_t q = 0; q < N_SEQUENCES; q++)
        w->sequences[q].lease = -1;
    for (uint32_t i = 0; i < N_STEPS; i++) {
        step(w);
        compare(w);
    }
    cr_expect(w->n_evicted > 100 && w->n_deduplicated > 20, "%lu evictions, %lu twins",
              (unsigned long)w->n_evicted, (unsigned long)w->n_deduplicated);
    support_pair_free(&w->pair);
    free(w);
}

Test(kv_walk, a_random_walk_equals_a_naive_store)
{
    static const uint64_t seeds[] = {1, 20240229, 0xfeedface};
    for (unsigned i = 0; i < 3; i++) {
        printf("kv_walk: seed %llu\n", (unsigned long long)seeds[i]);
        run(seeds[i]);
    }
}
