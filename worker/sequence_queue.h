#pragma once
#include "config/base/err.h"
#include "worker/sequence.h"

#include <stdbool.h>
#include <stdint.h>

/* The sequences of a worker in the order of their claim (sequence_goes_before): those that run and
 * those that wait. Owns them. Part of the scheduler, which owns the blocks. One owner thread. */

struct sequence_queue {
    struct sequence **running; /* [max_running] */
    uint32_t n_running, max_running;
    struct sequence *waiting; /* list through next */
    uint32_t n_waiting;
};

NODISCARD enum err sequence_queue_init(struct sequence_queue *q, uint32_t max_running,
                                       struct err_info *ei);
/* Frees the sequences that wait; none may run. A zeroed queue is legal. */
void sequence_queue_fini(struct sequence_queue *q);

/* Both take the sequence and put it where its claim says. */
void sequence_queue_wait_take(struct sequence_queue *q, struct sequence *s);
void sequence_queue_run_take(struct sequence_queue *q, struct sequence *s);
/* Both hand it out. */
struct sequence *sequence_queue_stop_running(struct sequence_queue *q, uint32_t at);
struct sequence *sequence_queue_stop_waiting(struct sequence_queue *q, uint64_t id); /* or NULL */
struct sequence *sequence_queue_first_waiting(struct sequence_queue *q);             /* or NULL */

/* Index among the running, or n_running. */
uint32_t sequence_queue_find_running(const struct sequence_queue *q, uint64_t id);
bool sequence_queue_has(const struct sequence_queue *q, uint64_t id);
/* Order and counts. Errors: PARSE with the first violation. */
NODISCARD enum err sequence_queue_check(const struct sequence_queue *q, struct err_info *ei);
