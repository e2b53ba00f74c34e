#pragma once
#include "config/base/err.h"
#include "config/node_config.h"

/* The router process as one object: model text tools, store, workers, dispatch, HTTP, control, in
 * the order in which they need each other. loading -> ready <-> draining -> stopping. */

struct node;

/* Reads the model, creates or adopts the store, listens, starts workers. config is resolved in
 * place (auto values become numbers) and must outlive the node. Errors: all kinds, one line naming
 * what is wrong; nothing is left behind. */
NODISCARD enum err node_open(struct node_config *config, struct node **out, struct err_info *ei);
/* Serves until SIGTERM, SIGINT or `kvctl shutdown`; streams get config->shutdown_grace_s to finish.
 * Errors: GONE (workers would not start). */
NODISCARD enum err node_run(struct node *n, struct err_info *ei);
/* Ends what is left: sockets, shared memory, lock. NULL is legal. */
void node_close(struct node *n);
