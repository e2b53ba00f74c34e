#pragma once
#include "config/base/err.h"
#include "config/node_config.h"

#include <sys/types.h>

/* Starts one worker: program with the node's config as flags and its index in KVNODE_WORKER_INDEX.
 * Who its router is, WELCOME says. Signals are at their defaults. Errors: IO (names the program),
 * NOMEM. */
NODISCARD enum err spawn_worker(const char *program, const struct node_config *config,
                                uint32_t index, pid_t *pid, struct err_info *ei);
/* Path of kvnode-worker: beside the running program. Errors: IO. */
NODISCARD enum err spawn_find_worker(char *path, size_t path_bytes, struct err_info *ei);
