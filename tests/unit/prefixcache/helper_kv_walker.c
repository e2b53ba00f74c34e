/* A process that uses a store like a worker does, for as long as it lives: the kill test's victim.
 *
 *   helper_kv_walker NAME SEED [N_SEQUENCES]     (0 or absent: until killed)
 *
 * A block's bytes are a function of its key, written before it is published and compared whenever
 * it is acquired, found by publishing, and released. Exit codes: 0 done, 2 cannot start, 3 wrong
 * bytes. */
#include "prefixcache/kv_store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

enum { BLOCK = 16, LENGTH = 10, N_RUNNING = 3 };

struct sequence {
    uint32_t tokens[LENGTH * BLOCK];
    struct block_key keys[LENGTH];
    uint32_t blocks[LENGTH], n_blocks, n_published;
};

struct walker {
    struct kv_store *s;
    uint64_t random;
    struct sequence sequences[N_RUNNING];
};

/* Steele, Lea, Flood 2014: SplitMix64 */
static uint32_t draw(struct walker *w, uint32_t below)
{
    uint64_t z = (w->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ (z >> 31)) % below);
}

static unsigned char *bytes_of(struct walker *w, uint32_t block)
{
    return (unsigned char *)kv_store_data(w->s) + block * kv_store_block_bytes(w->s);
}

static void fill(struct walker *w, const struct block_key *key, uint32_t block)
{
    size_t n = kv_store_block_bytes(w->s);
    for (size_t i = 0; i < n; i += sizeof key->bytes)
        memcpy(bytes_of(w, block) + i, key->bytes, sizeof key->bytes);
}

static void verify(struct walker *w, const struct sequence *q, uint32_t n)
{
    size_t size = kv_store_block_bytes(w->s);
    for (uint32_t b = 0; b < n; b++) {
        for (size_t i = 0; i < size; i += sizeof q->keys[b].bytes) {
            if (memcmp(bytes_of(w, q->blocks[b]) + i, q->keys[b].bytes, sizeof q->keys[b].bytes) !=
                0)
                exit(3);
        }
    }
}

/* 16 chains that fork like a binary tree every second block. */
static void start(struct walker *w, struct sequence *q)
{
    struct fingerprint f = {{0x5a}};
    struct block_key root;
    uint32_t chain = draw(w, 16);
    for (uint32_t i = 0; i < LENGTH * BLOCK; i++) {
        uint32_t fork = i / BLOCK / 2 < 4 ? 4 - i / BLOCK / 2 : 0;
        q->tokens[i] = (chain >> fork) * 1000 + i;
    }
    prefix_hash_root(&f, "", "", &root);
    prefix_hash_chain(&root, q->tokens, LENGTH * BLOCK, BLOCK, q->keys);
    q->n_blocks = q->n_published = kv_store_acquire(w->s, q->keys, q->tokens, LENGTH, q->blocks);
    verify(w, q, q->n_published);
}

static void finish(struct walker *w, struct sequence *q)
{
    verify(w, q, q->n_published);
    kv_store_release(w->s, q->blocks, q->n_blocks);
    q->n_blocks = q->n_published = 0;
}

static void publish(struct walker *w, struct sequence *q)
{
    uint32_t i = q->n_published;
    uint32_t parent = i > 0 ? q->blocks[i - 1] : KV_BLOCK_NONE;
    fill(w, &q->keys[i], q->blocks[i]);
    q->blocks[i] = kv_store_publish(w->s, q->blocks[i], &q->keys[i], parent, q->tokens + i * BLOCK);
    q->n_published++;
    verify(w, q, q->n_published);
}

/* One sequence, or a piece of it. */
static void step(struct walker *w)
{
    struct sequence *q = &w->sequences[draw(w, N_RUNNING)];
    if (q->n_blocks == 0)
        start(w, q);
    uint32_t n = LENGTH - q->n_blocks;
    n = n > 0 ? 1 + draw(w, n) : 0;
    if (kv_store_reserve(w->s, n, q->blocks + q->n_blocks, NULL) == OK)
        q->n_blocks += n;
    while (q->n_published < q->n_blocks && draw(w, 16) > 0)
        publish(w, q);
    if (draw(w, 2) == 0)
        finish(w, q);
    if (draw(w, 64) == 0)
        (void)kv_store_reap(w->s);
}

int main(int argc, char **argv)
{
    struct err_info ei = {{0}};
    struct fingerprint f = {{0x5a}};
    struct walker w = {0};
    if (argc < 3)
        return 2;
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves no walker behind */
    f.bytes[31] = 0xa5;
    w.random = strtoull(argv[2], NULL, 10);
    uint64_t n_steps = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
    if (kv_store_attach(argv[1], &f, &w.s, &ei) != OK ||
        kv_store_lease_open(w.s, process_self(), (uint32_t)w.random, &ei) != OK) {
        fprintf(stderr, "helper_kv_walker: %s\n", ei.text);
        return 2;
    }
    for (uint64_t i = 0; n_steps == 0 || i < n_steps; i++)
        step(&w);
    kv_store_lease_close(w.s);
    kv_store_detach(w.s);
    return 0;
}
