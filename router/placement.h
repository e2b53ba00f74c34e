#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Which worker gets the request? A cost in seconds for each, the least wins, ties go to the least
 * recently used; the terms are kept so that a decision can be explained. Pure: no clock, no I/O.
 * CPU workers read one shared pool, so a cached block costs every worker the same: what differs
 * between them is their queue and whom the prefill would slow down. */

struct placement_worker {
    bool is_alive;
    uint64_t queued_prefill_tokens; /* dispatched, uncached, not computed yet */
    uint32_t n_decoding;            /* sequences past their first token */
    uint64_t last_used;             /* ordinal of the last request placed here; 0 = never */
};

struct placement_rates {
    double prefill_s_per_token;
    double decode_s_per_sequence; /* what one running sequence adds to a step */
    double slowdown_weight;       /* how much a second of others' delay counts */
};

struct placement_request {
    uint32_t n_tokens;
    uint32_t n_cached; /* tokens of ready blocks in the node store */
    int32_t pinned;    /* worker index, or -1 */
};

struct placement_decision {
    uint32_t worker;
    double wait_s, prefill_s, slowdown_s; /* the winner's terms; their sum was the least */
};

/* False: no worker may take it (none alive, or the pinned one is not). */
bool placement_pick(const struct placement_worker *workers, uint32_t n_workers,
                    const struct placement_rates *rates, const struct placement_request *req,
                    struct placement_decision *out);
