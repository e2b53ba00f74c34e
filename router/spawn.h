#pragma once
#include "config/base/err.h"
#include "config/node_config.h"
#include "ipc/process.h"

#include <sys/types.h>

/* Starts one worker: fork and exec of program with the node's config as flags, its index and its
 * router in KVNODE_WORKER_INDEX, KVNODE_ROUTER_PID and KVNODE_ROUTER_START. Signals are at their
 * defaults, only the standard descriptors are inherited. Errors: IO (names the program), NOMEM. */
NODISCARD enum err spawn_worker(const char *program, const struct node_config *config,
                                uint32_t index, struct process_id router, pid_t *pid,
                                struct err_info *ei);
/* Path of kvnode-worker: beside the running program. Errors: IO. */
NODISCARD enum err spawn_find_worker(char *path, size_t path_bytes, struct err_info *ei);
