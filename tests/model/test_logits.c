/* Does the forward pass compute what the model's definition says? Held against fp32 goldens made
 * with transformers on torch (tests/fixtures/logits_smollm2.jsonl, tiny/NAME/goldens-QUANT.jsonl),
 * with the tolerances of the fixtures' README. Greedy continuations are teacher-forced: prompt and
 * continuation run as one batch, which test_determinism.c shows to equal step by step. */
#include "tests/model/support_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char smollm2[] = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf";

TestSuite(logits, .timeout = 120);

/* How far a path may be from fp32. */
struct tolerance {
    double logit;     /* absolute, on logits */
    double logprob;   /* absolute, on the five best */
    double nll;       /* of a prompt's mean */
    double margin;    /* above it the best token must be the reference's */
    bool ends_at_tie; /* greedy steps behind the first one below the margin are not looked at */
};

/* The prompt and its reference continuation but the last token: rows n_ids - 1 and on predict
 * greedy_ids. Returns how many. */
static uint32_t forced_ids(const struct golden *g, uint32_t *ids)
{
    memcpy(ids, g->ids, g->n_ids * sizeof *ids);
    memcpy(ids + g->n_ids, g->greedy_ids, (g->n_greedy - 1) * sizeof *ids);
    return g->n_ids + g->n_greedy - 1;
}

static void check_greedy(const struct golden *g, const float *logits, uint32_t vocab,
                         const struct tolerance *t)
{
    for (uint32_t i = 0; i < g->n_greedy; i++) {
        if (g->greedy_margin[i] <= t->margin && t->ends_at_tie)
            return;
        if (g->greedy_margin[i] <= t->margin)
            continue; /* a tie at this precision; the forced token keeps the rest meaningful */
        const float *row = logits + (size_t)(g->n_ids - 1 + i) * vocab;
        cr_assert_eq(logits_argmax(row, vocab), g->greedy_ids[i], "%s: step %u, margin %g", g->id,
                     i, g->greedy_margin[i]);
    }
}

static void check_top5(const struct golden *g, const float *row, uint32_t vocab, double tolerance)
{
    double reference[GOLDEN_MAX_VOCAB], lse = g->logsumexp;
    uint32_t ids[5];
    if (g->n_last) {
        float last[GOLDEN_MAX_VOCAB];
        for (uint32_t i = 0; i < g->n_last; i++)
            last[i] = (float)g->last_logits[i];
        lse = logits_logsumexp(last, g->n_last);
        for (uint32_t i = 0; i < 5; i++) {
            ids[i] = logits_argmax(last, g->n_last);
            reference[i] = g->last_logits[ids[i]] - lse;
            last[ids[i]] = -INFINITY;
        }
    }
    for (uint32_t i = 0; i < 5 && !g->n_last; i++) {
        ids[i] = g->top_ids[i];
        reference[i] = g->top_logits[i] - lse;
    }
    const double own = logits_logsumexp(row, vocab);
    for (uint32_t i = 0; i < 5; i++)
        cr_assert_float_eq((double)row[ids[i]] - own, reference[i], tolerance,
                           "%s: logprob %u of token %u: %g, reference %g", g->id, i, ids[i],
                           (double)row[ids[i]] - own, reference[i]);
}

static void check_logits(const struct golden *g, const float *row, uint32_t vocab, double tolerance)
{
    for (uint32_t i = 0; i < g->n_last; i++)
        cr_assert_float_eq((double)row[i], g->last_logits[i], tolerance, "%s: logit %u: %g, not %g",
                           g->id, i, (double)row[i], g->last_logits[i]);
    if (g->n_last)
        return;
    for (uint32_t i = 0; i < GOLDEN_TOP; i++)
        cr_assert_float_eq((double)row[g->top_ids[i]], g->top_logits[i], tolerance,
                           "%s: logit %u: %g, not %g", g->id, g->top_ids[i],
                           (double)row[g->top_ids[i]], g->top_logits[i]);
    cr_assert_eq(g->n_probes, GOLDEN_PROBES);
    for (uint32_t i = 0; i < g->n_probes; i++)
        cr_assert_float_eq((double)row[g->probe_ids[i]], g->probes[i], tolerance,
                           "%s: logit %u: %g, not %g", g->id, g->probe_ids[i],
                           (double)row[g->probe_ids[i]], g->probes[i]);
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        sum += (double)row[i];
        squares += (double)row[i] * (double)row[i];
    }
    /* if every logit is within the tolerance, so are these */
    cr_assert_float_eq(sum, g->sum, tolerance * vocab);
    cr_assert_float_eq(sqrt(squares), g->l2, tolerance * sqrt(vocab));
    cr_assert_float_eq(logits_logsumexp(row, vocab), g->logsumexp, tolerance);
}

static void check_golden(struct model *m, const struct golden *g, const struct tolerance *t)
{
    uint32_t ids[GOLDEN_MAX_IDS];
    const uint32_t n = forced_ids(g, ids), vocab = m->shape.vocab_size;
    const float *logits = model_prefill(m, ids, n);
    const float *last = logits + (size_t)(g->n_ids - 1) * vocab;
    check_logits(g, last, vocab, t->logit);
    check_top5(g, last, vocab, t->logprob);
    const double nll = logits_mean_nll(logits, vocab, g->ids, g->n_ids);
    cr_assert_float_eq(nll, g->mean_nll, t->nll, "%s: nll %g, not %g", g->id, nll, g->mean_nll);
    check_greedy(g, logits, vocab, t);
}

static void check_tiny(const char *name, const char *quant, enum cpu_isa isa,
                       enum tensor_type kv_format, const struct tolerance *t)
{
    char path[128];
    struct golden *goldens = calloc(8, sizeof *goldens);
    snprintf(path, sizeof path, "tests/fixtures/tiny/%s/goldens-%s.jsonl", name, quant);
    const uint32_t n = goldens_load(path, goldens, 8);
    snprintf(path, sizeof path, "tests/fixtures/tiny/%s/model-%s.gguf", name, quant);
    struct model m = model_open(&(struct model_config){.path = path,
                                                       .isa = isa,
                                                       .kv_format = kv_format,
                                                       .n_threads = 1,
                                                       .block_size = 16,
                                                       .n_blocks = 16,
                                                       .max_rows = 256});
    for (uint32_t i = 0; i < n; i++)
        check_golden(&m, &goldens[i], t);
    model_fini(&m);
    free(goldens);
}

/* fp32 kernels: 1e-4 on the tiny models; greedy margins count from twice the tolerance. */
static const struct tolerance tiny_f32 = {1e-4, 1e-4, 1e-4, 2e-4, false};

Test(logits, the_plain_path_gives_the_tiny_llamas_logits_from_every_tensor_type)
{
    const char *quants[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1"};
    for (size_t i = 0; i < sizeof quants / sizeof *quants; i++)
        check_tiny("llama", quants[i], CPU_ISA_PLAIN, TENSOR_F32, &tiny_f32);
}

Test(logits, rope_frequency_factors_of_the_file_are_applied)
{
    check_tiny("llama_rope3", "F16", CPU_ISA_PLAIN, TENSOR_F32, &tiny_f32);
}

Test(logits, the_vector_paths_give_the_tiny_llamas_logits_from_float_tensors)
{
    enum cpu_isa isas[3];
    const uint32_t n = model_isas(isas);
    for (uint32_t i = 0; i < n; i++) {
        check_tiny("llama", "F32", isas[i], TENSOR_F32, &tiny_f32);
        check_tiny("llama", "F16", isas[i], TENSOR_F32, &tiny_f32);
        check_tiny("llama", "BF16", isas[i], TENSOR_F32, &tiny_f32);
        check_tiny("llama_rope3", "F16", isas[i], TENSOR_F32, &tiny_f32);
    }
}

/* Activations of 12 bits in blocks of 32: within what llama.cpp gives with activations rounded to
 * BF16, which has 8 (the fixtures' README: 0.04; int8 gives 0.22 and more). */
Test(logits, the_vector_paths_stay_near_the_tiny_llamas_logits_from_quantised_tensors)
{
    const struct tolerance t = {0.04, 0.04, 0.04, 0.08, true};
    enum cpu_isa isas[3];
    const uint32_t n = model_isas(isas);
    for (uint32_t i = 0; i < n; i++) {
        check_tiny("llama", "Q8_0", isas[i], TENSOR_F16, &t);
        check_tiny("llama", "Q4_0", isas[i], TENSOR_F16, &t);
        check_tiny("llama", "Q4_1", isas[i], TENSOR_F16, &t);
    }
}

/* Rounding K and V alone. F16 within what llama.cpp gives with all activations rounded so (0.015);
 * BF16 has three bits of mantissa less: eight times that. */
Test(logits, a_rounded_pool_stays_near_the_tiny_llamas_logits)
{
    const struct tolerance f16 = {0.015, 0.015, 0.015, 0.03, false};
    const struct tolerance bf16 = {0.12, 0.12, 0.12, 0.24, false};
    enum cpu_isa isas[3];
    const uint32_t n = model_isas(isas);
    for (uint32_t i = 0; i < n; i++) {
        check_tiny("llama", "F32", isas[i], TENSOR_F16, &f16);
        check_tiny("llama", "F32", isas[i], TENSOR_BF16, &bf16);
    }
}

static void check_smollm2(enum cpu_isa isa, enum tensor_type kv_format, uint32_t max_ids,
                          const struct tolerance *t)
{
    if (access(smollm2, R_OK) != 0)
        cr_skip_test("%s is not there: ops/setup.sh fetches it", smollm2);
    struct golden *goldens = calloc(8, sizeof *goldens);
    const uint32_t n = goldens_load("tests/fixtures/logits_smollm2.jsonl", goldens, 8);
    struct model m = model_open(&(struct model_config){.path = smollm2,
                                                       .isa = isa,
                                                       .kv_format = kv_format,
                                                       .n_threads = 2,
                                                       .block_size = 16,
                                                       .n_blocks = 20,
                                                       .max_rows = 320});
    cr_assert_eq(n, 6, "the reference has six prompts");
    uint32_t n_checked = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (goldens[i].n_ids > max_ids)
            continue;
        check_golden(&m, &goldens[i], t);
        n_checked++;
    }
    cr_assert_gt(n_checked, 0);
    model_fini(&m);
    free(goldens);
}

/* the plain path is slow, and under a sanitizer very: there one short prompt shows what it can */
#ifdef __SANITIZE_ADDRESS__
#define LONGEST_PLAIN_PROMPT 5u
#else
#define LONGEST_PLAIN_PROMPT UINT32_MAX
#endif

Test(logits, the_plain_path_gives_smollm2s_logits)
{
    const struct tolerance t = {1e-3, 1e-3, 1e-3, 2e-3, false};
    check_smollm2(CPU_ISA_PLAIN, TENSOR_F32, LONGEST_PLAIN_PROMPT, &t);
}

Test(logits, the_plain_path_with_an_f16_pool_stays_near_smollm2s_logits)
{
    const struct tolerance t = {0.05, 0.05, 0.01, 0.1, false};
    check_smollm2(CPU_ISA_PLAIN, TENSOR_F16, LONGEST_PLAIN_PROMPT < 30 ? LONGEST_PLAIN_PROMPT : 30,
                  &t);
}

/* Activations of 12 bits and an F16 pool: half of what the README advises for int8 activations. */
static const struct tolerance smollm2_quantised = {INFINITY, 0.2, 0.015, 0.25, false};

Test(logits, avx2_stays_near_smollm2s_logits)
{
    if (cpu_isa_detect() < CPU_ISA_AVX2)
        cr_skip_test("no AVX2 here");
    check_smollm2(CPU_ISA_AVX2, TENSOR_F16, UINT32_MAX, &smollm2_quantised);
}

Test(logits, avx512_stays_near_smollm2s_logits)
{
    if (cpu_isa_detect() < CPU_ISA_AVX512)
        cr_skip_test("no AVX-512 here");
    check_smollm2(CPU_ISA_AVX512, TENSOR_F16, UINT32_MAX, &smollm2_quantised);
}
