#pragma once
#include "config/base/err.h"
#include "ipc/message.h"
#include "worker/backend/backend.h"
#include "worker/scheduler.h"

#include <stdbool.h>
#include <stdint.h>

/* How are tokens made? Takes the router's messages, runs steps (schedule, forward, sample), and
 * sends what came of them: one TOKENS message a step. Waits for nothing. One owner thread. */

struct engine;

struct engine_config {
    struct scheduler_config scheduler; /* its store is the engine's, too */
    struct backend *backend;           /* must outlive the engine */
    enum err (*forward)(struct backend *b, const struct batch *batch, const float **logits,
                        struct err_info *ei); /* backend_forward */
    /* Hears every message that goes to the router; m is valid during the call. */
    void (*send)(void *ctx, const struct message *m);
    void *ctx;
};

NODISCARD enum err engine_new(const struct engine_config *cfg, struct engine **out,
                              struct err_info *ei);
/* Gives all blocks back; sends nothing. NULL is legal. */
void engine_free(struct engine *e);

/* SUBMIT, CANCEL, DRAIN; other kinds are the caller's own. What cannot be served ends in FAILED. */
void engine_handle(struct engine *e, const struct message *m);
/* The router is gone: forgets every sequence and that it was draining; sends nothing. */
void engine_abandon(struct engine *e);

/* Steps compute at most so many tokens from now on (scheduler_limit_step). */
void engine_limit_step(struct engine *e, uint32_t n_tokens);
/* One step. False: there was nothing that could run now. */
bool engine_step(struct engine *e, uint64_t now_us);
bool engine_has_work(const struct engine *e);
uint64_t engine_n_steps(const struct engine *e);
void engine_get_stats(const struct engine *e, struct message_stats *out);
NODISCARD enum err engine_check(const struct engine *e, struct err_info *ei);
