#pragma once
#include "config/base/err.h"
#include "config/fingerprint.h"
#include "config/model_shape.h"
#include "config/node_config.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"

/* What the router knows of the model: its shape, its text side, and what follows from it for the
 * node. */
struct node_model {
    struct model_shape shape;
    enum cpu_isa isa;
    uint32_t max_context; /* tokens of a sequence */
    size_t block_bytes;   /* KV of a block */
    uint32_t n_blocks;    /* of the node's pool */
    bool is_auto_memory;  /* n_blocks follows the memory that was free */
    struct fingerprint fingerprint;
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; /* NULL: the model has none */
};

/* Opens config->model, builds the text tools and writes the resolved values back into config
 * (workers, threads, isa, device, max_context, kv.memory, served_model_name). former_store_bytes:
 * of shared memory that a former node of this name left: adopted or freed, so there is room for as
 * much. Errors: those of its parts. */
NODISCARD enum err node_model_open(struct node_config *config, uint64_t former_store_bytes,
                                   struct node_model *out, struct err_info *ei);
void node_model_fini(struct node_model *m);
