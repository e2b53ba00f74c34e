/* Is a row of logits a function of its own sequence alone, bit for bit (DESIGN §6)? One sequence is
 * computed in many ways: whole, in chunks, token by token, beside others, with more threads, in
 * other blocks. Logits of every row and all stored K and V must be the same bytes. The oracle is
 * the program itself run another way; test_logits.c says that the values are right. */
#include "tests/model/support_model.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(determinism, .timeout = 120);

enum { MAX_TOKENS = 160, MAX_BLOCKS = 256, MAX_OTHERS = 4 };

/* xorshift: the walks are the same at every run, and print their seed when they fail. */
static uint32_t next_random(uint32_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state;
}

static uint32_t random_below(uint32_t *state, uint32_t n)
{
    return next_random(state) % n;
}

/* A sequence on its way: what is computed stands in blocks; its rows' logits are kept. */
struct run {
    uint32_t n, done, ids[MAX_TOKENS];
    uint32_t blocks[MAX_TOKENS];
    float *logits;     /* [n][vocab] */
    unsigned char *kv; /* [n] rows of model_kv_bytes, read at the end */
};

static struct run run_new(const struct model *m, uint32_t seed, uint32_t n)
{
    struct run r = {.n = n};
    for (uint32_t i = 0; i < n; i++)
        r.ids[i] = random_below(&seed, m->shape.vocab_size);
    r.logits = calloc((size_t)n * m->shape.vocab_size, sizeof(float));
    r.kv = calloc(n, model_kv_bytes(m));
    return r;
}

static void run_fini(struct run *r)
{
    free(r->logits);
    free(r->kv);
}

/* Gives the runs blocks of their own, scattered over the pool. */
static void scatter_blocks(const struct model *m, struct run **runs, uint32_t n, uint32_t *seed)
{
    uint32_t free_blocks[MAX_BLOCKS], left = m->n_blocks;
    cr_assert_leq(left, MAX_BLOCKS);
    for (uint32_t i = 0; i < left; i++)
        free_blocks[i] = i;
    for (uint32_t r = 0; r < n; r++) {
        const uint32_t size = m->cfg.block_size;
        for (uint32_t b = 0; b < (runs[r]->n + size - 1) / size; b++) {
            cr_assert_gt(left, 0);
            const uint32_t pick = random_below(seed, left);
            runs[r]->blocks[b] = free_blocks[pick];
            free_blocks[pick] = free_blocks[--left];
        }
    }
}

/* One step: the next sizes[r] tokens of each run, in the given order. */
static void step(struct model *m, struct run **runs, const uint32_t *sizes, uint32_t n)
{
    struct batch_sequence sequences[MAX_OTHERS + 1];
    uint32_t tokens[512], rows[512], n_tokens = 0;
    for (uint32_t r = 0; r < n; r++) {
        sequences[r] = (struct batch_sequence){.first_row = n_tokens,
                                               .n_tokens = sizes[r],
                                               .position = runs[r]->done,
                                               .blocks = runs[r]->blocks};
        for (uint32_t i = 0; i < sizes[r]; i++, n_tokens++) {
            tokens[n_tokens] = runs[r]->ids[runs[r]->done + i];
            rows[n_tokens] = n_tokens;
        }
    }
    const struct batch batch = {n_tokens, tokens, n, sequences, n_tokens, rows};
    const float *logits = NULL;
    cr_assert_eq(backend_forward(m->backend, &batch, &logits, NULL), OK);
    const size_t vocab = m->shape.vocab_size;
    for (uint32_t r = 0; r < n; r++) {
        memcpy(runs[r]->logits + runs[r]->done * vocab, logits + sequences[r].first_row * vocab,
               sizes[r] * vocab * sizeof(float));
        runs[r]->done += sizes[r];
    }
}

static void read_kv(const struct model *m, struct run *r)
{
    for (uint32_t i = 0; i < r->n; i++)
        model_read_kv(m, r->blocks, i, r->kv + i * model_kv_bytes(m));
}

/* Alone, in steps of chunk tokens (0: of random size). */
static struct run run_alone(struct model *m, uint32_t n, uint32_t chunk, uint32_t *seed)
{
    struct run r = run_new(m, 1, n), *one = &r;
    scatter_blocks(m, &one, 1, seed);
    while (r.done < n) {
        uint32_t size = chunk ? chunk : 1 + random_below(seed, 40);
        size = size < n - r.done ? size : n - r.done;
        step(m, &one, &size, 1);
    }
    read_kv(m, &r);
    return r;
}

/* Beside others that start, wait and end as the seed says, in changing order. */
static struct run run_beside(struct model *m, uint32_t n, uint32_t *seed)
{
    struct run runs[MAX_OTHERS + 1], *all[MAX_OTHERS + 1];
    for (uint32_t i = 0; i <= MAX_OTHERS; i++) {
        runs[i] = run_new(m, 1 + i, i ? 1 + random_below(seed, n) : n);
        all[i] = &runs[i];
    }
    scatter_blocks(m, all, MAX_OTHERS + 1, seed);
    while (runs[0].done < n) {
        struct run *active[MAX_OTHERS + 1];
        uint32_t sizes[MAX_OTHERS + 1], n_active = 0;
        const uint32_t turn = random_below(seed, MAX_OTHERS + 1);
        for (uint32_t i = 0; i <= MAX_OTHERS; i++) {
            struct run *r = &runs[(i + turn) % (MAX_OTHERS + 1)];
            if (r->done == r->n || random_below(seed, 3) == 0)
                continue;
            const uint32_t size = random_below(seed, 2) ? 1 : 1 + random_below(seed, 30);
            active[n_active] = r;
            sizes[n_active++] = size < r->n - r->done ? size : r->n - r->done;
        }
        if (n_active)
            step(m, active, sizes, n_active);
    }
    read_kv(m, &runs[0]);
    for (uint32_t i = 1; i <= MAX_OTHERS; i++)
        run_fini(&runs[i]);
    return runs[0];
}

/* Consumes b. */
static void check_same(const struct model *m, const struct run *a, struct run b, const char *how)
{
    const size_t vocab = m->shape.vocab_size;
    for (uint32_t i = 0; i < a->n; i++) {
        cr_assert_eq(
            memcmp(a->kv + i * model_kv_bytes(m), b.kv + i * model_kv_bytes(m), model_kv_bytes(m)),
            0, "%s, %s, %u threads: K or V of position %u", how, cpu_isa_name(m->cfg.isa),
            m->cfg.n_threads, i);
        cr_assert_eq(memcmp(a->logits + i * vocab, b.logits + i * vocab, vocab * sizeof(float)), 0,
                     "%s, %s, %u threads: logits of position %u", how, cpu_isa_name(m->cfg.isa),
                     m->cfg.n_threads, i);
    }
    run_fini(&b);
}

static struct model open_again(const struct model_config *cfg, uint32_t n_threads,
                               uint32_t block_size)
{
    struct model_config other = *cfg;
    other.n_threads = n_threads;
    other.block_size = block_size;
    return model_open(&other);
}

/* Every way of computing n tokens equals one prefill on one thread. */
static void check_all_ways(const struct model_config *cfg, uint32_t n, uint32_t n_walks)
{
    uint32_t seed = 20240917;
    struct model m = model_open(cfg);
    struct run whole = run_alone(&m, n, n, &seed);
    cr_assert_eq(whole.logits[0], whole.logits[0], "NaN");
    check_same(&m, &whole, run_alone(&m, n, n, &seed), "again");
    check_same(&m, &whole, run_alone(&m, n, 1, &seed), "token by token");
    model_fini(&m);
    const struct {
        uint32_t n_threads, block_size;
    } others[] = {{1, cfg->block_size}, {2, cfg->block_size}, {2, 32}, {3, 5}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        m = open_again(cfg, others[i].n_threads, others[i].block_size);
        check_same(&m, &whole, run_alone(&m, n, n, &seed), "whole");
        for (uint32_t w = 0; w < n_walks; w++) {
            check_same(&m, &whole, run_alone(&m, n, 0, &seed), "in random chunks");
            check_same(&m, &whole, run_beside(&m, n, &seed), "beside others");
        }
        model_fini(&m);
    }
    run_fini(&whole);
}

static void check_tiny(const char *name, const char *quant, enum tensor_type kv_format)
{
    enum cpu_isa isas[3];
    const uint32_t n = model_isas(isas);
    char path[128];
    snprintf(path, sizeof path, "tests/fixtures/tiny/%s/model-%s.gguf", name, quant);
    for (uint32_t i = 0; i < n; i++)
        check_all_ways(&(struct model_config){.path = path,
                                              .isa = isas[i],
                                              .kv_format = kv_format,
                                              .n_threads = 1,
                                              .block_size = 16,
                                              .n_blocks = 200,
                                              .max_rows = 256},
                       75, 3);
}

Test(determinism, quantised_weights_with_an_f16_pool)
{
    check_tiny("llama", "Q4_1", TENSOR_F16);
    check_tiny("llama", "Q8_0", TENSOR_F16);
    check_tiny("llama", "Q4_0", TENSOR_F16);
}

Test(determinism, float_weights_with_every_pool_format)
{
    check_tiny("llama", "F32", TENSOR_F32);
    check_tiny("llama", "F16", TENSOR_F16);
    check_tiny("llama", "BF16", TENSOR_BF16);
}

Test(determinism, one_key_value_head_and_tied_embeddings)
{
    check_tiny("llama_rope3", "F16", TENSOR_F16);
}

Test(determinism, smollm2_on_the_widest_path)
{
    const char *path = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";
    if (access(path, R_OK) != 0)
        cr_skip_test("%s is not there: ops/setup.sh fetches it", path);
    check_all_ways(&(struct model_config){.path = path,
                                          .isa = cpu_isa_detect(),
                                          .kv_format = TENSOR_F16,
                                          .n_threads = 1,
                                          .block_size = 16,
                                          .n_blocks = 64,
                                          .max_rows = 256},
                   53, 1);
}
