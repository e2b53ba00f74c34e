/* May two processes share KV bytes? One hash over everything that decides them. Invariant: inputs
 * are length-prefixed and of fixed width, so that no two different lists of inputs give the same
 * bytes to the hash. Model weights, rope scaling and quantisation are covered by hashing the whole
 * file. Does not know who compares. */
#include "config/fingerprint.h"

#include <sodium.h>

#include <assert.h>
#include <string.h>

static_assert(sizeof(struct fingerprint) == crypto_generichash_BYTES, "256 bits");

static void add_number(crypto_generichash_state *h, uint64_t v)
{
    uint8_t b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(v >> (8 * i));
    (void)crypto_generichash_update(h, b, sizeof b);
}

static void add_bytes(crypto_generichash_state *h, const void *data, size_t n)
{
    add_number(h, n);
    (void)crypto_generichash_update(h, data, n);
}

static void add_text(crypto_generichash_state *h, const char *s)
{
    add_bytes(h, s, strlen(s));
}

void fingerprint_compute(const struct fingerprint_input *in, struct fingerprint *out)
{
    crypto_generichash_state h;
    /* picks the fast implementation; the plain one gives the same bytes should it not */
    int rc = sodium_init();
    (void)rc;
    (void)crypto_generichash_init(&h, NULL, 0, sizeof out->bytes);
    add_text(&h, "kvnode fingerprint 1");
    add_number(&h, KV_LAYOUT_VERSION);
    add_number(&h, NUMERICS_VERSION);
    add_text(&h, tensor_type_name(in->kv_format));
    add_number(&h, in->block_size);
    add_text(&h, in->backend);
    add_text(&h, cpu_isa_name(in->isa));
    add_number(&h, in->tp);
    add_bytes(&h, gguf_file_data(in->model), gguf_file_bytes(in->model));
    (void)crypto_generichash_final(&h, out->bytes, sizeof out->bytes);
}

bool fingerprint_equal(const struct fingerprint *a, const struct fingerprint *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

void fingerprint_hex(const struct fingerprint *f, char out[65])
{
    (void)sodium_bin2hex(out, 65, f->bytes, sizeof f->bytes);
}
