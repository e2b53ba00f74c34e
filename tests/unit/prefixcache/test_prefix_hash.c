/* Are block keys what any BLAKE2b says they are? Expected values: Python 3.11's hashlib,
 *
 *   def chain(parent, tokens, bs):
 *       for i in range(len(tokens) // bs):
 *           m = struct.pack("<%dI" % bs, *tokens[i*bs:(i+1)*bs])
 *           parent = hashlib.blake2b(m, digest_size=16, key=parent).digest(); print(parent.hex())
 *   def root(fp, tenant, salt):
 *       h = hashlib.blake2b(digest_size=16)
 *       h.update(struct.pack("<Q", 20) + b"kvnode prefix root 1"); h.update(fp)
 *       for b in (tenant, salt): h.update(struct.pack("<Q", len(b)) + b)
 *       return h.digest()
 */
#include "prefixcache/prefix_hash.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

TestSuite(prefix_hash, .timeout = 5);

static void expect_key(const struct block_key *key, const char *hex)
{
    char have[33];
    for (int i = 0; i < 16; i++)
        snprintf(have + 2 * i, 3, "%02x", key->bytes[i]);
    cr_expect_str_eq(have, hex);
}

static struct fingerprint counting_fingerprint(void)
{
    struct fingerprint f;
    for (int i = 0; i < 32; i++)
        f.bytes[i] = (uint8_t)i;
    return f;
}

Test(prefix_hash, chain_of_16_equals_hashlib)
{
    struct block_key parent, keys[3];
    uint32_t tokens[48];
    for (uint32_t i = 0; i < 16; i++)
        parent.bytes[i] = (uint8_t)i;
    for (uint32_t i = 0; i < 48; i++)
        tokens[i] = i;
    prefix_hash_chain(&parent, tokens, 48, 16, keys); /* chain(bytes(range(16)), range(48), 16) */
    expect_key(&keys[0], "fcdd68b56b92d17df09e78b584f3d8c9");
    expect_key(&keys[1], "3b370a8fbedc74252ef36d8961af9b79");
    expect_key(&keys[2], "e7c92c4a7190474ee935ade2b140fb87");
}

Test(prefix_hash, chain_of_32_equals_hashlib_and_leaves_the_part_block_out)
{
    struct block_key parent = {{0}}, keys[3];
    uint32_t tokens[80];
    memset(&keys[2], 0xee, sizeof keys[2]);
    for (uint32_t i = 0; i < 80; i++)
        tokens[i] = i * 2654435761u; /* chain(bytes(16), [i*2654435761 & 0xffffffff ...], 32) */
    prefix_hash_chain(&parent, tokens, 80, 32, keys);
    expect_key(&keys[0], "27eceb4b97a0a361a3e52c4df913b8c8");
    expect_key(&keys[1], "28e592da18e507d817832cd7da69dd3b");
    expect_key(&keys[2], "eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee");
}

Test(prefix_hash, root_equals_hashlib)
{
    static const struct {
        const char *tenant, *salt, *hex;
    } cases[] = {
        /* root(bytes(range(32)), tenant, salt) */
        {"", "", "5ac6e26093e0c2cde4a68e933d2b7ad3"},
        {"tenant", "", "bd08d7c9f6abdc83e99d64e94f017d88"},
        {"", "tenant", "fb159fa2d8dff3e166ae0923cc4dbb90"},
        {"ab", "c", "341159208f606bc6a6ecf3613fde56e1"},
        {"a", "bc", "0e1c75e59f00f7ab0c0a7acb908816bb"},
        {"schl\xc3\xbcssel", "salt", "098d1d0059665081b30e97cf3c805a3b"},
    };
    struct fingerprint f = counting_fingerprint();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct block_key root;
        prefix_hash_root(&f, cases[i].tenant, cases[i].salt, &root);
        expect_key(&root, cases[i].hex);
    }
}

Test(prefix_hash, first_block_under_a_root_equals_hashlib)
{
    struct fingerprint f = counting_fingerprint();
    struct block_key root, key;
    uint32_t tokens[16];
    for (int i = 0; i < 16; i++)
        tokens[i] = 49152;
    prefix_hash_root(&f, "ab", "c", &root);
    prefix_hash_chain(&root, tokens, 16, 16, &key);
    expect_key(&key, "80daac1a2816a6485d86ba2384bdd25d");
}

Test(prefix_hash, another_fingerprint_is_another_root)
{
    struct fingerprint f = counting_fingerprint(), g = f;
    struct block_key a, b;
    g.bytes[31] ^= 1;
    prefix_hash_root(&f, "t", "s", &a);
    prefix_hash_root(&g, "t", "s", &b);
    cr_assert_neq(memcmp(&a, &b, sizeof a), 0);
}

Test(prefix_hash, chain_cut_anywhere_and_continued_is_the_same)
{
    struct block_key parent = {{7}}, whole[8], cut[8];
    uint32_t tokens[128];
    for (uint32_t i = 0; i < 128; i++)
        tokens[i] = i * i;
    prefix_hash_chain(&parent, tokens, 128, 16, whole);
    for (uint32_t n = 1; n < 8; n++) {
        prefix_hash_chain(&parent, tokens, n * 16, 16, cut);
        prefix_hash_chain(&cut[n - 1], tokens + n * 16, 128 - n * 16, 16, cut + n);
        cr_assert_arr_eq(whole, cut, sizeof whole, "cut at %u", n);
    }
}

Test(prefix_hash, one_token_changed_changes_all_keys_from_there)
{
    struct block_key parent = {{0}}, a[3], b[3];
    uint32_t tokens[48] = {0};
    prefix_hash_chain(&parent, tokens, 48, 16, a);
    tokens[31] = 1;
    prefix_hash_chain(&parent, tokens, 48, 16, b);
    cr_assert_arr_eq(&a[0], &b[0], sizeof a[0]);
    cr_assert_neq(memcmp(&a[1], &b[1], sizeof a[1]), 0);
    cr_assert_neq(memcmp(&a[2], &b[2], sizeof a[2]), 0);
}
