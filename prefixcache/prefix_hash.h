#pragma once
#include "config/fingerprint.h"

#include <stddef.h>
#include <stdint.h>

/* Names of KV blocks. key_i = BLAKE2b-128(key = key_{i-1}, message = tokens of block i as
 * little-endian u32): a key names the whole prefix up to it. The root comes from the fingerprint,
 * the tenant and the client's salt, so two tenants never share (DESIGN §4). Pure; any thread. */

struct block_key {
    uint8_t bytes[16];
};

/* tenant "" is the default tenant; salt "" is none. Domain-separated, length-prefixed: (ab,c) !=
 * (a,bc). */
void prefix_hash_root(const struct fingerprint *f, const char *tenant, const char *salt,
                      struct block_key *out);
/* Keys of all full blocks of tokens: keys[n_tokens / block_size]. Continues from `parent`. */
void prefix_hash_chain(const struct block_key *parent, const uint32_t *tokens, size_t n_tokens,
                       uint32_t block_size, struct block_key *keys);
