#pragma once
#include "worker/backend/backend.h"

#include <stdbool.h>

/* A model opened on the CPU backend with a KV pool of its own, and the goldens to hold it against.
 * Any miss fails the test at once. */

struct model_config {
    const char *path;
    enum cpu_isa isa;
    enum tensor_type kv_format;
    uint32_t n_threads, block_size, n_blocks, max_rows;
};

struct model {
    struct gguf *file;
    struct model_shape shape;
    struct backend_config cfg;
    struct backend *backend;
    uint32_t n_blocks;
};

struct model model_open(const struct model_config *cfg);
void model_fini(struct model *m);

/* All logits of a sequence run as one batch from position 0 in blocks 0, 1, 2, ...: the backend's,
 * [n][vocab_size]. */
const float *model_prefill(struct model *m, const uint32_t *ids, uint32_t n);

/* K and V of one position as stored, [layer][k|v][head][dim]: model_kv_bytes of them. */
size_t model_kv_bytes(const struct model *m);
void model_read_kv(const struct model *m, const uint32_t *blocks, uint32_t position, void *out);

/* Every ISA path that this machine runs; returns how many. */
uint32_t model_isas(enum cpu_isa out[3]);

enum { GOLDEN_MAX_IDS = 512, GOLDEN_MAX_VOCAB = 384, GOLDEN_TOP = 10, GOLDEN_PROBES = 8 };

/* One row of logits_smollm2.jsonl (top_*, probe_*, sums) or tiny NAME/goldens-QUANT.jsonl
 * (last_logits). Both: transformers on torch, fp32, weights as dequantised from the file. */
struct golden {
    char id[32];
    uint32_t n_ids, ids[GOLDEN_MAX_IDS]; /* room for the greedy ones behind */
    uint32_t n_greedy, greedy_ids[32];
    double greedy_margin[32];
    double mean_nll; /* over ids 2 .. n */
    uint32_t n_last;
    double last_logits[GOLDEN_MAX_VOCAB];
    uint32_t top_ids[GOLDEN_TOP];
    double top_logits[GOLDEN_TOP];
    uint32_t n_probes, probe_ids[GOLDEN_PROBES];
    double probes[GOLDEN_PROBES];
    double sum, l2, logsumexp;
};

/* Returns how many rows there are (<= max). */
uint32_t goldens_load(const char *path, struct golden *out, uint32_t max);

double logits_logsumexp(const float *logits, uint32_t n);
uint32_t logits_argmax(const float *logits, uint32_t n);
/* Mean of -log p(ids[i + 1]) over i = 0 .. n - 2; logits: [n][vocab]. */
double logits_mean_nll(const float *logits, uint32_t vocab, const uint32_t *ids, uint32_t n);
