#pragma once
#include "config/base/err.h"
#include "config/node_config.h"

/* Where does a node of this name keep its sockets? Everything it owns carries its name (DESIGN §9).
 */
enum { RUNTIME_PATH_BYTES = 108 }; /* sun_path: longer names are an error */

struct runtime_paths {
    char dir[RUNTIME_PATH_BYTES];
    char control[RUNTIME_PATH_BYTES];      /* DIR/NAME.sock */
    char endpoint[RUNTIME_PATH_BYTES + 8]; /* ipc://DIR/NAME.zmq */
    char lock[RUNTIME_PATH_BYTES];         /* DIR/NAME.lock */
    char store[64];                        /* shared memory name: kvnode-NAME */
};

/* Fills the paths from config (or, for kvctl, from dir and name alone); dir NULL = default place.
 */
NODISCARD enum err runtime_paths_fill(const char *dir, const char *name, struct runtime_paths *out,
                                      struct err_info *ei);
/* Makes the directory 0700 and checks that it is ours. Errors: IO. */
NODISCARD enum err runtime_dir_make(const struct runtime_paths *p, struct err_info *ei);

/* The right to make and remove what bears the name: one holder, until it releases or dies. A living
 * router holds it; who clears away after a dead one takes it first. Waits up to wait_ms for it.
 * Errors: BUSY (another's), IO. */
NODISCARD enum err runtime_lock_take(const struct runtime_paths *p, int wait_ms, int *fd,
                                     struct err_info *ei);
/* Removes the file too. */
void runtime_lock_release(const struct runtime_paths *p, int fd);
