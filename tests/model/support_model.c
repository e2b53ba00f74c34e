/* Opens models for the tests, reads goldens, and does the sums that both sides are compared by.
 * Judges nothing itself but that files and fields are there. */
#include "tests/model/support_model.h"

#include <criterion/criterion.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model model_open(const struct model_config *cfg)
{
    struct model m = {.n_blocks = cfg->n_blocks};
    struct err_info ei = {{0}};
    cr_assert_eq(gguf_open(cfg->path, &m.file, &ei), OK, "%s", ei.text);
    cr_assert_eq(model_shape_from_gguf(m.file, &m.shape, &ei), OK, "%s", ei.text);
    m.cfg = (struct backend_config){
        .model = m.file,
        .shape = &m.shape,
        .isa = cfg->isa,
        .n_threads = cfg->n_threads,
        .max_batch_tokens = cfg->max_rows,
        .max_logit_rows = cfg->max_rows,
        .kv_format = cfg->kv_format,
        .block_size = cfg->block_size,
        .block_bytes = cfg->block_size * model_shape_kv_bytes_per_token(&m.shape, cfg->kv_format),
    };
    /* 0xff: a NaN in every format, so a key read before it was written shows */
    m.cfg.kv_pool = malloc(m.cfg.block_bytes * cfg->n_blocks);
    memset(m.cfg.kv_pool, 0xff, m.cfg.block_bytes * cfg->n_blocks);
    cr_assert_eq(backend_cpu_open(&m.cfg, NULL, NULL, &m.backend, &ei), OK, "%s", ei.text);
    return m;
}

void model_fini(struct model *m)
{
    backend_close(m->backend);
    gguf_close(m->file);
    free(m->cfg.kv_pool);
}

const float *model_prefill(struct model *m, const uint32_t *ids, uint32_t n)
{
    uint32_t *blocks = calloc(m->n_blocks, sizeof *blocks);
    uint32_t *rows = calloc(n, sizeof *rows);
    for (uint32_t i = 0; i < m->n_blocks; i++)
        blocks[i] = i;
    for (uint32_t i = 0; i < n; i++)
        rows[i] = i;
    const struct batch_sequence sequence = {.n_tokens = n, .blocks = blocks};
    const struct batch batch = {.n_tokens = n,
                                .tokens = ids,
                                .n_sequences = 1,
                                .sequences = &sequence,
                                .n_logit_rows = n,
                                .logit_rows = rows};
    const float *logits = NULL;
    cr_assert_eq(backend_forward(m->backend, &batch, &logits, NULL), OK);
    free(rows);
    free(blocks);
    return logits;
}

size_t model_kv_bytes(const struct model *m)
{
    return model_shape_kv_bytes_per_token(&m->shape, m->cfg.kv_format);
}

void model_read_kv(const struct model *m, const uint32_t *blocks, uint32_t position, void *out)
{
    const uint32_t size = m->cfg.block_size;
    const size_t row = tensor_type_row_bytes(m->cfg.kv_format, m->shape.head_dim);
    const unsigned char *block =
        (const unsigned char *)m->cfg.kv_pool + blocks[position / size] * m->cfg.block_bytes;
    const uint32_t n = m->shape.n_layers * 2 * m->shape.n_kv_heads;
    for (uint32_t i = 0; i < n; i++)
        memcpy((unsigned char *)out + i * row, block + (i * size + position % size) * row, row);
}

uint32_t model_isas(enum cpu_isa out[3])
{
    uint32_t n = 0;
    for (int isa = CPU_ISA_PLAIN; isa <= (int)cpu_isa_detect(); isa++)
        out[n++] = (enum cpu_isa)isa;
    return n;
}

static uint32_t read_ids(json_t *row, const char *key, uint32_t *out, uint32_t max)
{
    json_t *a = json_object_get(row, key);
    const uint32_t n = (uint32_t)json_array_size(a);
    cr_assert_leq(n, max, "%s", key);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(a, i));
    return n;
}

static uint32_t read_numbers(json_t *row, const char *key, double *out, uint32_t max)
{
    json_t *a = json_object_get(row, key);
    const uint32_t n = (uint32_t)json_array_size(a);
    cr_assert_leq(n, max, "%s", key);
    for (uint32_t i = 0; i < n; i++)
        out[i] = json_number_value(json_array_get(a, i));
    return n;
}

static void read_golden(json_t *row, struct golden *g)
{
    snprintf(g->id, sizeof g->id, "%s", json_string_value(json_object_get(row, "id")));
    g->n_ids = read_ids(row, "ids", g->ids, GOLDEN_MAX_IDS - 32);
    g->n_greedy = read_ids(row, "greedy_ids", g->greedy_ids, 32);
    cr_assert_gt(g->n_ids, 0);
    cr_assert_gt(g->n_greedy, 0);
    cr_assert_eq(read_numbers(row, "greedy_margin", g->greedy_margin, 32), g->n_greedy);
    g->mean_nll = json_number_value(json_object_get(row, "prompt_mean_nll"));
    g->n_last = read_numbers(row, "last_logits", g->last_logits, GOLDEN_MAX_VOCAB);
    read_ids(row, "top_ids", g->top_ids, GOLDEN_TOP);
    read_numbers(row, "top_logits", g->top_logits, GOLDEN_TOP);
    g->sum = json_number_value(json_object_get(row, "logits_sum"));
    g->l2 = json_number_value(json_object_get(row, "logits_l2"));
    g->logsumexp = json_number_value(json_object_get(row, "logsumexp"));
    const char *id;
    json_t *value;
    json_object_foreach(json_object_get(row, "logits_probe"), id, value)
    {
        cr_assert_lt(g->n_probes, GOLDEN_PROBES);
        g->probe_ids[g->n_probes] = (uint32_t)atoi(id);
        g->probes[g->n_probes++] = json_number_value(value);
    }
}

uint32_t goldens_load(const char *path, struct golden *out, uint32_t max)
{
    FILE *f = fopen(path, "r");
    cr_assert_not_null(f, "%s", path);
    char *line = NULL;
    size_t capacity = 0;
    uint32_t n = 0;
    while (getline(&line, &capacity, f) > 0) {
        cr_assert_lt(n, max, "%s", path);
        json_t *row = json_loads(line, 0, NULL);
        cr_assert_not_null(row, "%s: row %u", path, n + 1);
        out[n] = (struct golden){0};
        read_golden(row, &out[n++]);
        json_decref(row);
    }
    free(line);
    fclose(f);
    cr_assert_gt(n, 0, "%s", path);
    return n;
}

double logits_logsumexp(const float *logits, uint32_t n)
{
    const double max = (double)logits[logits_argmax(logits, n)];
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp((double)logits[i] - max);
    return max + log(sum);
}

uint32_t logits_argmax(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        best = logits[i] > logits[best] ? i : best;
    return best;
}

double logits_mean_nll(const float *logits, uint32_t vocab, const uint32_t *ids, uint32_t n)
{
    double sum = 0;
    for (uint32_t i = 0; i + 1 < n; i++) {
        const float *row = logits + (size_t)i * vocab;
        sum += logits_logsumexp(row, vocab) - (double)row[ids[i + 1]];
    }
    return sum / (n - 1);
}
