#pragma once
#include "config/base/err.h"
#include "worker/engine.h"
#include "worker/router_link.h"

#include <signal.h>

/* The worker's life between its first HELLO and its end: messages in, steps, messages out, and
 * waiting where there is nothing to do. Runs in the thread that calls it. */

struct serve_config {
    struct engine_config engine;              /* send and ctx are set by serve_run */
    struct router_link *link;                 /* the caller's */
    const volatile sig_atomic_t *stop_signal; /* not 0: finish the step and end */
};

enum serve_end {
    SERVE_STOPPED,  /* STOP, or the signal */
    SERVE_ORPHANED, /* no router came within the grace */
};

/* Returns when it has ended; no block is held then. Errors: NOMEM, IO. */
NODISCARD enum err serve_run(const struct serve_config *cfg, enum serve_end *end,
                             struct err_info *ei);
