/* The CPU behind the seam: how do weights in a file and a pool of KV blocks become a backend?
 * Invariant: what is open is complete; a step cannot fail.
 * Does not know how a layer is computed (worker/model) nor with which instructions (worker/cpu). */
#include "worker/backend/backend.h"
#include "worker/model/llama_forward.h"

#include <stdlib.h>

struct backend {
    struct model_shape shape;
    struct llama_weights *weights;
    struct llama_forward *forward;
};

enum err backend_cpu_open(const struct backend_config *cfg,
                          void (*progress)(void *ctx, int percent), void *ctx, struct backend **out,
                          struct err_info *ei)
{
    struct backend *b = calloc(1, sizeof *b);
    if (!b)
        return err_set(ei, ERR_NOMEM, "backend: no memory");
    b->shape = *cfg->shape;
    struct backend_config own = *cfg;
    own.shape = &b->shape;
    enum err rc =
        llama_weights_new(cfg->model, &b->shape, cfg->isa, progress, ctx, &b->weights, ei);
    if (rc != OK)
        goto fail;
    rc = llama_forward_new(&own, b->weights, &b->forward, ei);
    if (rc != OK)
        goto fail;
    *out = b;
    return OK;
fail:
    backend_close(b);
    return rc;
}

void backend_close(struct backend *b)
{
    if (!b)
        return;
    llama_forward_free(b->forward);
    llama_weights_free(b->weights);
    free(b);
}

enum err backend_forward(struct backend *b, const struct batch *batch, const float **logits,
                         struct err_info *ei)
{
    (void)ei; /* arithmetic in memory of its own has nothing to fail at */
    *logits = llama_forward_run(b->forward, batch);
    return OK;
}
