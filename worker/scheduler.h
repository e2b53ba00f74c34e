#pragma once
#include "config/base/err.h"
#include "ipc/message.h"
#include "prefixcache/kv_store.h"
#include "worker/backend/backend.h"
#include "worker/sequence.h"

#include <stdbool.h>
#include <stdint.h>

/* Which tokens does the next step compute? Continuous batching under a token budget: decodes
 * first, then prefill chunks of admitted sequences, then admission, first come first served within
 * priority. Blocks are claimed for the chunk that is computed next, no earlier; full ones are
 * published at once. When blocks run out the youngest sequence of the lowest priority gives its
 * own back and waits; it resumes from what is still cached. The oldest running one is never
 * preempted for another of this worker, so there is always progress.
 *
 * No clock and no I/O: time is an argument, the store is memory. One owner thread. */

struct scheduler;

struct scheduler_config {
    struct kv_store *store; /* with an open lease; must outlive the scheduler */
    uint32_t tag;           /* of that lease: among workers that block each other the lowest tag
                               keeps its blocks, the others yield */
    uint32_t max_batch_tokens;
    uint32_t max_sequences; /* running at once */
    uint32_t max_context;   /* tokens of one sequence */
    uint32_t vocab_size;
};

/* One step: what to compute and whose it is. The scheduler's, valid until its next call. */
struct step {
    struct batch batch;
    struct sequence *const *sequences; /* [batch.n_sequences] */
    struct sequence *const *samples;   /* [batch.n_logit_rows]: whose token logit row i decides */
};

struct scheduler_stats {
    uint32_t n_running, n_waiting;
    uint64_t n_prefill_tokens, n_decode_tokens; /* rows computed: prompts and re-computed tokens;
                                                   one more token of a sequence */
    uint64_t n_preemptions, n_cancelled;
};

NODISCARD enum err scheduler_new(const struct scheduler_config *cfg, struct scheduler **out,
                                 struct err_info *ei);
/* Gives every block back. NULL is legal. */
void scheduler_free(struct scheduler *s);

/* A new sequence, copied; it waits. Errors: PARSE (empty, a token outside the vocabulary, an id
 * that is here already), LIMIT (longer than the window or the whole pool, nothing left to emit),
 * BUSY (too many wait), NOMEM. */
NODISCARD enum err scheduler_submit(struct scheduler *s, const struct message_submit *m,
                                    struct err_info *ei);
/* Steps compute at most n tokens from now on: 1 to max_batch_tokens, which is where it starts. */
void scheduler_limit_step(struct scheduler *s, uint32_t n_tokens);
bool scheduler_has(const struct scheduler *s, uint64_t id);
/* Forgets a sequence in any state, its blocks given back before the call returns. False: unknown.
 */
bool scheduler_cancel(struct scheduler *s, uint64_t id);
void scheduler_cancel_all(struct scheduler *s);

/* The next step; batch.n_tokens is 0 when nothing can run now (nothing there, or the pool is held
 * by others: try again in some milliseconds). */
const struct step *scheduler_plan(struct scheduler *s, uint64_t now_us);
/* The planned step has been computed: publishes the blocks that it filled. Sampled tokens are
 * appended afterwards (sequence_append), ended sequences handed to scheduler_finish. */
void scheduler_advance(struct scheduler *s, const struct step *step);
/* A running sequence has ended: frees it. */
void scheduler_finish(struct scheduler *s, struct sequence *q);
/* A sequence that can never go on (it outgrew the pool): true fills *out and forgets it. Call
 * until false after each scheduler_plan. */
bool scheduler_take_failed(struct scheduler *s, struct message_failed *out);

bool scheduler_has_work(const struct scheduler *s);
void scheduler_get_stats(const struct scheduler *s, struct scheduler_stats *out);
/* Walks all invariants. Errors: PARSE with the first violation. */
NODISCARD enum err scheduler_check(const struct scheduler *s, struct err_info *ei);
