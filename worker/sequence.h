#pragma once
#include "config/base/err.h"
#include "ipc/message.h"
#include "prefixcache/prefix_hash.h"

#include <stdbool.h>
#include <stdint.h>

/* One request's tokens on their way through a worker. Plain data: the scheduler owns and changes
 * it. Everything is allocated when it arrives, for its longest possible life, so that a step
 * allocates nothing. */

struct sequence {
    uint64_t id;      /* the router's */
    uint64_t arrival; /* rank of arrival in this worker: FCFS within priority */
    int32_t priority;
    struct sampling_params sampling;

    uint32_t *tokens; /* [capacity]: prompt, then output */
    uint32_t n_tokens, capacity;
    uint32_t n_prompt;
    uint32_t n_output; /* n_tokens - n_prompt: output of before a resume included */

    /* The block chain. keys[i] is set for i < n_keys; blocks[i] is held for i < n_blocks; blocks
     * before n_published are ready in the store, the others are private and being filled. */
    struct block_key root;
    struct block_key *keys; /* [capacity / block_size] */
    uint32_t *blocks;       /* [capacity / block_size + 1] */
    uint32_t n_keys, n_blocks, n_published;
    uint32_t n_computed; /* leading tokens whose K and V are in the blocks */

    uint32_t n_cached; /* prompt tokens taken from the store at the first admission */
    bool is_admitted;  /* has been admitted once: its prompt has been counted */
    bool is_announced; /* the router has its first entry */
    bool is_counted;   /* another worker has accounted its prompt */

    uint32_t n_rows; /* of the step being planned */
    struct sequence *next;
};

/* Room for max_tokens of output or up to max_context tokens in all, whichever comes first. Copies
 * what it needs of m. Errors: NOMEM. */
NODISCARD enum err sequence_new(const struct message_submit *m, uint32_t max_context,
                                uint32_t block_size, struct sequence **out, struct err_info *ei);
void sequence_free(struct sequence *q); /* NULL is legal; blocks must have been given back */

/* Appends a sampled token and says whether the sequence has ended. */
enum finish_reason sequence_append(struct sequence *q, uint32_t token);
/* Extends keys to all full blocks of the first n tokens (no fewer than before). */
void sequence_extend_keys(struct sequence *q, uint32_t n, uint32_t block_size);
/* True when a goes before b: higher priority, then earlier arrival. */
bool sequence_goes_before(const struct sequence *a, const struct sequence *b);
