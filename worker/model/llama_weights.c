/* Which tensor is which, and how does it get into the form that the kernels read?
 * Matrices are repacked one by one; vectors become f32. Invariant: dims are those that the shape
 * implies (config/model_shape checked them), types are checked here, where they are used.
 * Does not know the order of the computation. */
#include "worker/model/llama_weights.h"

#include "worker/cpu/aligned_memory.h"
#include "worker/cpu/dequant.h"

#include <stdio.h>
#include <stdlib.h>

/* What one llama_weights_new carries from tensor to tensor. */
struct loader {
    const struct gguf *g;
    const struct model_shape *shape;
    enum cpu_isa isa;
    void (*progress)(void *ctx, int percent);
    void *ctx;
    struct llama_weights *w;
    size_t done_bytes; /* of the file's tensors, for progress */
};

static void report(struct loader *l, size_t bytes)
{
    const size_t all = l->shape->weight_bytes ? l->shape->weight_bytes : 1;
    l->done_bytes += bytes;
    if (l->progress)
        l->progress(l->ctx, l->done_bytes < all ? (int)(l->done_bytes * 100 / all) : 100);
}

static enum err find(const struct loader *l, const char *name, const struct gguf_tensor **out,
                     struct err_info *ei)
{
    *out = gguf_find_tensor(l->g, name);
    if (!*out)
        return err_set(ei, ERR_PARSE, "weights: %s: no tensor %s", gguf_path(l->g), name);
    if (!tensor_type_is_known((*out)->type))
        return err_set(ei, ERR_UNSUPPORTED, "weights: %s: tensor %s: type %u", gguf_path(l->g),
                       name, (unsigned)(*out)->type);
    return OK;
}

/* A vector as f32. */
static enum err load_vector(struct loader *l, const char *name, float **out, struct err_info *ei)
{
    const struct gguf_tensor *t;
    enum err rc = find(l, name, &t, ei);
    if (rc != OK)
        return rc;
    float *v = aligned_memory_new_array(t->dims[0], sizeof *v);
    if (!v)
        return err_set(ei, ERR_NOMEM, "weights: no memory for %s", name);
    dequant_row(t->type, t->data, t->dims[0], v);
    report(l, t->size_bytes);
    *out = v;
    return OK;
}

static enum err load_matrix(struct loader *l, const char *name, struct matmul_weight **out,
                            struct err_info *ei)
{
    const struct gguf_tensor *t;
    enum err rc = find(l, name, &t, ei);
    if (rc != OK)
        return rc;
    rc = matmul_weight_new(l->isa, t->type, t->data, (uint32_t)t->dims[1], (uint32_t)t->dims[0],
                           out, ei);
    if (rc != OK)
        return rc;
    l->w->input_form |= matmul_weight_form(*out);
    l->w->repacked_bytes += matmul_weight_bytes(*out);
    report(l, t->size_bytes);
    return OK;
}

static enum err load_layer(struct loader *l, uint32_t index, struct llama_layer *layer,
                           struct err_info *ei)
{
    const struct {
        const char *name;
        float **to;
    } vectors[] = {{"attn_norm", &layer->attn_norm}, {"ffn_norm", &layer->ffn_norm}};
    const struct {
        const char *name;
        struct matmul_weight **to;
    } matrices[] = {{"attn_q", &layer->q},      {"attn_k", &layer->k},      {"attn_v", &layer->v},
                    {"attn_output", &layer->o}, {"ffn_gate", &layer->gate}, {"ffn_up", &layer->up},
                    {"ffn_down", &layer->down}};
    char name[64];
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, vectors[i].name);
        enum err rc = load_vector(l, name, vectors[i].to, ei);
        if (rc != OK)
            return rc;
    }
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        snprintf(name, sizeof name, "blk.%u.%s.weight", index, matrices[i].name);
        enum err rc = load_matrix(l, name, matrices[i].to, ei);
        if (rc != OK)
            return rc;
    }
    return OK;
}

/* Everything that is not in a layer. */
static enum err load_ends(struct loader *l, struct err_info *ei)
{
    const struct gguf_tensor *embedding;
    enum err rc = find(l, "token_embd.weight", &embedding, ei);
    if (rc != OK)
        return rc;
    l->w->embedding = embedding->data;
    l->w->embedding_type = embedding->type;
    rc = load_vector(l, "output_norm.weight", &l->w->output_norm, ei);
    if (rc != OK)
        return rc;
    if (gguf_find_tensor(l->g, "rope_freqs.weight")) {
        rc = load_vector(l, "rope_freqs.weight", &l->w->rope_factors, ei);
        if (rc != OK)
            return rc;
    }
    const char *head = l->shape->tied_embeddings ? "token_embd.weight" : "output.weight";
    return load_matrix(l, head, &l->w->head, ei);
}

enum err llama_weights_new(const struct gguf *g, const struct model_shape *shape, enum cpu_isa isa,
                           void (*progress)(void *ctx, int percent), void *ctx,
                           struct llama_weights **out, struct err_info *ei)
{
    struct llama_weights *w = calloc(1, sizeof *w);
    if (!w)
        return err_set(ei, ERR_NOMEM, "weights: no memory");
    struct loader l = {
        .g = g, .shape = shape, .isa = isa, .progress = progress, .ctx = ctx, .w = w};
    enum err rc = OK;
    w->layers = calloc(shape->n_layers, sizeof *w->layers);
    if (!w->layers) {
        rc = err_set(ei, ERR_NOMEM, "weights: no memory for %u layers", shape->n_layers);
        goto fail;
    }
    w->n_layers = shape->n_layers;
    for (uint32_t i = 0; i < shape->n_layers; i++) {
        rc = load_layer(&l, i, &w->layers[i], ei);
        if (rc != OK)
            goto fail;
    }
    rc = load_ends(&l, ei);
    if (rc != OK)
        goto fail;
    if (progress)
        progress(ctx, 100);
    *out = w;
    return OK;
fail:
    llama_weights_free(w);
    return rc;
}

static void free_layer(struct llama_layer *layer)
{
    free(layer->attn_norm);
    free(layer->ffn_norm);
    matmul_weight_free(layer->q);
    matmul_weight_free(layer->k);
    matmul_weight_free(layer->v);
    matmul_weight_free(layer->o);
    matmul_weight_free(layer->gate);
    matmul_weight_free(layer->up);
    matmul_weight_free(layer->down);
}

void llama_weights_free(struct llama_weights *w)
{
    if (!w)
        return;
    for (uint32_t i = 0; i < w->n_layers; i++)
        free_layer(&w->layers[i]);
    free(w->layers);
    free(w->output_norm);
    matmul_weight_free(w->head);
    free(w->rope_factors);
    free(w);
}
