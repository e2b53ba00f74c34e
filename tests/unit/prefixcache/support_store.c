/* How do the store's tests come to stores and chains? Names vanish as soon as both handles map the
 * file, so that a failing test leaves nothing in /dev/shm. Knows nothing that kv_store.h does not.
 */
#include "support_store.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

struct fingerprint support_fingerprint(void)
{
    struct fingerprint f = {{0}};
    f.bytes[0] = 0x5a;
    f.bytes[31] = 0xa5;
    return f;
}

const char *support_name(void)
{
    static char name[64];
    static unsigned n; /* a test process has one thread */
    snprintf(name, sizeof name, "kvnode-test-%d-%u", (int)getpid(), n++);
    return name;
}

struct store_pair support_pair(uint32_t n_blocks, uint32_t max_leases)
{
    struct err_info ei = {{0}};
    struct store_pair p = {0};
    struct kv_store_config cfg = {.name = support_name(),
                                  .block_size = SUPPORT_BLOCK,
                                  .block_bytes = 64,
                                  .n_blocks = n_blocks,
                                  .max_leases = max_leases,
                                  .fingerprint = support_fingerprint()};
    cr_assert_eq(kv_store_create(&cfg, &p.a, &ei), OK, "%s", ei.text);
    enum err rc = kv_store_attach(cfg.name, &cfg.fingerprint, &p.b, &ei);
    kv_store_remove(cfg.name);
    cr_assert_eq(rc, OK, "%s", ei.text);
    cr_assert_eq(kv_store_lease_open(p.a, process_self(), 0, &ei), OK, "%s", ei.text);
    cr_assert_eq(kv_store_lease_open(p.b, process_self(), 1, &ei), OK, "%s", ei.text);
    support_check(p.a);
    return p;
}

void support_pair_free(struct store_pair *p)
{
    kv_store_lease_close(p->a);
    support_check(p->a);
    kv_store_lease_close(p->b);
    support_check(p->a);
    struct kv_store_stats st = support_stats(p->a);
    cr_expect_eq(st.n_pinned + st.n_filling, 0);
    kv_store_detach(p->a);
    kv_store_detach(p->b);
}

struct process_id support_dead_process(void)
{
    struct process_id p = process_self();
    p.start++;
    return p;
}

void support_check(struct kv_store *s)
{
    struct err_info ei = {{0}};
    cr_assert_eq(kv_store_check(s, &ei), OK, "%s", ei.text);
}

void support_chain(struct chain *c, uint32_t stem, uint32_t shared, uint32_t seed)
{
    struct block_key root;
    struct fingerprint f = support_fingerprint();
    for (uint32_t i = 0; i < SUPPORT_MAX_CHAIN * SUPPORT_BLOCK; i++) {
        uint32_t from = i / SUPPORT_BLOCK < shared ? stem : seed;
        c->tokens[i] = (from * 7919u + i) % 49152u;
    }
    prefix_hash_root(&f, "", "", &root);
    prefix_hash_chain(&root, c->tokens, SUPPORT_MAX_CHAIN * SUPPORT_BLOCK, SUPPORT_BLOCK, c->keys);
}

struct kv_store_stats support_stats(struct kv_store *s)
{
    struct kv_store_stats st;
    kv_store_get_stats(s, &st);
    return st;
}

void support_publish(struct kv_store *s, const struct chain *c, uint32_t from, uint32_t to,
                     uint32_t *blocks)
{
    struct err_info ei = {{0}};
    cr_assert_eq(kv_store_reserve(s, to - from, blocks + from, &ei), OK, "%s", ei.text);
    support_check(s);
    for (uint32_t i = from; i < to; i++) {
        uint32_t parent = i > 0 ? blocks[i - 1] : KV_BLOCK_NONE;
        blocks[i] =
            kv_store_publish(s, blocks[i], &c->keys[i], parent, c->tokens + i * SUPPORT_BLOCK);
        support_check(s);
    }
}

uint32_t support_acquire(struct kv_store *s, const struct chain *c, uint32_t n, uint32_t *blocks)
{
    uint32_t got = kv_store_acquire(s, c->keys, c->tokens, n, blocks);
    support_check(s);
    return got;
}

void support_cache(struct kv_store *s, const struct chain *c, uint32_t n, uint32_t *blocks)
{
    support_publish(s, c, 0, n, blocks);
    kv_store_release(s, blocks, n);
    support_check(s);
}

uint32_t support_match(struct kv_store *s, const struct chain *c, uint32_t n)
{
    return kv_store_match(s, c->keys, c->tokens, n);
}
