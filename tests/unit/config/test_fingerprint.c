/* Does each input change the fingerprint, and does the hash equal an independent one? The oracle of
 * the value is Python's hashlib.blake2b(digest_size=32) over the same length-prefixed bytes, run on
 * the file named below (the recipe stands at the test). */
#include "config/fingerprint.h"

#include <criterion/criterion.h>
#include <string.h>

static struct gguf *model;

static void setup(void)
{
    struct err_info ei = {0};
    cr_assert_eq(gguf_open("tests/fixtures/tiny/llama/model-Q4_0.gguf", &model, &ei), OK, "%s",
                 ei.text);
}

static void teardown(void)
{
    gguf_close(model);
}

TestSuite(fingerprint, .init = setup, .fini = teardown, .timeout = 5);

static struct fingerprint_input base(void)
{
    return (struct fingerprint_input){.model = model,
                                      .kv_format = TENSOR_F16,
                                      .block_size = 16,
                                      .backend = "cpu",
                                      .isa = CPU_ISA_AVX2,
                                      .tp = 1};
}

/* python3 -c "import hashlib,struct as s; t=lambda x: s.pack('<Q',len(x))+x; n=lambda v:
 * s.pack('<Q',v); m=open('tests/fixtures/tiny/llama/model-Q4_0.gguf','rb').read();
 *  print(hashlib.blake2b(t(b'kvnode fingerprint 1')+n(1)+n(2)+t(b'F16')+n(16)+t(b'cpu')+t(b'avx2')
 *  +n(1)+t(m),digest_size=32).hexdigest())" with KV_LAYOUT_VERSION 1 and NUMERICS_VERSION 2 */
Test(fingerprint, equals_blake2b_of_the_length_prefixed_inputs)
{
    struct fingerprint_input in = base();
    struct fingerprint f;
    char hex[65];
    fingerprint_compute(&in, &f);
    fingerprint_hex(&f, hex);
    cr_assert(KV_LAYOUT_VERSION == 1 && NUMERICS_VERSION == 2, "run the recipe again");
    cr_expect_str_eq(hex, "6e1db69b027b6f3d6f5073aef46743b4ea17c73c9a761eaf9673c640ca5f29cd");
}

Test(fingerprint, each_input_changes_it)
{
    struct fingerprint_input in[7];
    struct gguf *other = NULL;
    cr_assert_eq(gguf_open("tests/fixtures/tiny/llama/model-Q4_1.gguf", &other, NULL), OK);
    for (size_t i = 0; i < 7; i++)
        in[i] = base();
    in[1].model = other;
    in[2].kv_format = TENSOR_BF16;
    in[3].block_size = 32;
    in[4].backend = "cuda";
    in[5].isa = CPU_ISA_AVX512;
    in[6].tp = 2;
    struct fingerprint f[7];
    for (size_t i = 0; i < 7; i++) {
        fingerprint_compute(&in[i], &f[i]);
        for (size_t k = 0; k < i; k++)
            cr_expect_not(fingerprint_equal(&f[i], &f[k]), "inputs %zu and %zu", k, i);
    }
    gguf_close(other);
}

Test(fingerprint, is_the_same_every_time)
{
    struct fingerprint_input in = base();
    struct fingerprint a, b;
    fingerprint_compute(&in, &a);
    memset(&b, 0xff, sizeof b);
    fingerprint_compute(&in, &b);
    cr_expect(fingerprint_equal(&a, &b));
}
