#pragma once
#include "config/cpu_isa.h"
#include "config/gguf.h"
#include "config/model_shape.h"

/* What must be equal for two processes to share KV bytes (DESIGN §1): 256 bits of BLAKE2b over
 * model weights, rope scaling, KV format, block size, layout version, backend, ISA path, TP degree
 * and numerics version. */
struct fingerprint {
    uint8_t bytes[32];
};

enum {
    KV_LAYOUT_VERSION = 1, /* [rank][layer][k|v][head][slot][dim]; raise with any change of it */
    NUMERICS_VERSION = 2,  /* raise with any kernel change that alters a bit of K, V or logits */
};

struct fingerprint_input {
    const struct gguf *model; /* hashed whole: about 1 GB/s */
    enum tensor_type kv_format;
    uint32_t block_size; /* tokens */
    const char *backend; /* "cpu", "cuda" */
    enum cpu_isa isa;
    uint32_t tp;
};

/* Cannot fail. */
void fingerprint_compute(const struct fingerprint_input *in, struct fingerprint *out);
bool fingerprint_equal(const struct fingerprint *a, const struct fingerprint *b);
/* 64 hex digits and a NUL. */
void fingerprint_hex(const struct fingerprint *f, char out[65]);
