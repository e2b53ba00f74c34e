#pragma once
#include "prefixcache/kv_store.h"

/* What the store's tests share: small stores under names that go at once, and chains of tokens. */

enum { SUPPORT_BLOCK = 16, SUPPORT_MAX_CHAIN = 64 };

struct chain {
    uint32_t tokens[SUPPORT_MAX_CHAIN * SUPPORT_BLOCK];
    struct block_key keys[SUPPORT_MAX_CHAIN];
};

/* Two processes' views of one store (here: two handles), each with a lease. */
struct store_pair {
    struct kv_store *a, *b;
};

struct fingerprint support_fingerprint(void);
/* A name that no other test has; static buffer. */
const char *support_name(void);
struct store_pair support_pair(uint32_t n_blocks, uint32_t max_leases);
void support_pair_free(struct store_pair *p);
/* A process that is not: our pid with another start time. */
struct process_id support_dead_process(void);
void support_check(struct kv_store *s);
/* Blocks 0 .. of stem's tokens up to block `shared`, then tokens of `seed`. */
void support_chain(struct chain *c, uint32_t stem, uint32_t shared, uint32_t seed);
struct kv_store_stats support_stats(struct kv_store *s);
/* Reserves and publishes blocks [from, to) of the chain below blocks[from - 1]; checks after each.
 */
void support_publish(struct kv_store *s, const struct chain *c, uint32_t from, uint32_t to,
                     uint32_t *blocks);
uint32_t support_acquire(struct kv_store *s, const struct chain *c, uint32_t n, uint32_t *blocks);
/* publish(0 .. n) and release: n ready, unpinned blocks. */
void support_cache(struct kv_store *s, const struct chain *c, uint32_t n, uint32_t *blocks);
uint32_t support_match(struct kv_store *s, const struct chain *c, uint32_t n);
