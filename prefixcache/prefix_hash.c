/* What is this block called? Keyed BLAKE2b (libsodium's generichash), so that a key names the whole
 * prefix before it and equal keys mean equal prefixes of one tenant. Invariant: the same tokens
 * give the same keys in every process and on every machine, whatever its byte order, and cutting a
 * chain anywhere and continuing from the last key gives the same keys. Knows nothing of rows or
 * bytes. */
#include "prefixcache/prefix_hash.h"

#include <assert.h>
#include <sodium/crypto_generichash_blake2b.h>
#include <string.h>

enum { MAX_BLOCK_TOKENS = 64 };

static const char root_domain[] = "kvnode prefix root 1";

static void update_length(crypto_generichash_blake2b_state *st, uint64_t n)
{
    uint8_t le[8];
    for (unsigned i = 0; i < sizeof le; i++)
        le[i] = (uint8_t)(n >> (8 * i));
    (void)crypto_generichash_blake2b_update(st, le, sizeof le);
}

static void update_text(crypto_generichash_blake2b_state *st, const char *text)
{
    size_t n = strlen(text);
    update_length(st, n);
    (void)crypto_generichash_blake2b_update(st, (const uint8_t *)text, n);
}

/* libsodium's return values can only be -1 for sizes out of range, and ours are constants */
void prefix_hash_root(const struct fingerprint *f, const char *tenant, const char *salt,
                      struct block_key *out)
{
    crypto_generichash_blake2b_state st;
    (void)crypto_generichash_blake2b_init(&st, NULL, 0, sizeof out->bytes);
    update_text(&st, root_domain);
    (void)crypto_generichash_blake2b_update(&st, f->bytes, sizeof f->bytes);
    update_text(&st, tenant);
    update_text(&st, salt);
    (void)crypto_generichash_blake2b_final(&st, out->bytes, sizeof out->bytes);
}

void prefix_hash_chain(const struct block_key *parent, const uint32_t *tokens, size_t n_tokens,
                       uint32_t block_size, struct block_key *keys)
{
    assert(block_size > 0 && block_size <= MAX_BLOCK_TOKENS);
    uint8_t message[MAX_BLOCK_TOKENS * 4];
    size_t n_keys = n_tokens / block_size;
    for (size_t i = 0; i < n_keys; i++) {
        const uint32_t *t = tokens + i * block_size;
        for (uint32_t j = 0; j < block_size; j++) {
            for (unsigned k = 0; k < 4; k++)
                message[4 * j + k] = (uint8_t)(t[j] >> (8 * k));
        }
        const struct block_key *key = i > 0 ? &keys[i - 1] : parent;
        (void)crypto_generichash_blake2b(keys[i].bytes, sizeof keys[i].bytes, message,
                                         4u * (size_t)block_size, key->bytes, sizeof key->bytes);
    }
}
