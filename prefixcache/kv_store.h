#pragma once
#include "config/base/err.h"
#include "config/fingerprint.h"
#include "ipc/process.h"
#include "prefixcache/prefix_hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The node store: which KV blocks exist and who holds them, in shared memory that every process of
 * the node maps. A block is block_size tokens of K and V of all layers (block_bytes); a block id
 * indexes the host pool, so CPU workers compute straight from it.
 *
 *   free -> filling(owner lease) -> ready -> free
 *
 * filling: private to one lease, being written. ready: keyed, immutable, shared; pinned by leases;
 * evicted when unpinned, least recently used first, tails before heads. A row commits by one
 * release store of its state, written last.
 *
 * Any process may be killed at any instruction: one robust process-shared mutex, critical sections
 * of microseconds; EOWNERDEAD -> index, pin totals and eviction order are rebuilt from rows and
 * leases.
 *
 * Every function is safe from several processes; within a process one thread owns the handle. */

struct kv_store;

enum { KV_BLOCK_NONE = UINT32_MAX, KV_LEASE_NONE = UINT32_MAX };

struct kv_store_config {
    const char *name;    /* shared memory name */
    uint32_t block_size; /* tokens; 16 or 32 */
    size_t block_bytes;  /* K and V of a block: a multiple of 64; 0 = keys only */
    uint32_t n_blocks;   /* >= 1 */
    uint32_t max_leases; /* processes at once; <= 1024 */
    struct fingerprint fingerprint;
};

/* What a prompt token cost, counted once, at admission (DESIGN §4). Their sum is the prompt tokens.
 */
enum kv_source {
    KV_SOURCE_COMPUTED,
    KV_SOURCE_HOST, /* hit in the host pool */
    KV_N_SOURCES,
};

struct kv_store_stats {
    uint32_t n_blocks, n_free, n_filling, n_ready; /* n_free + n_filling + n_ready = n_blocks */
    uint32_t n_pinned;                             /* ready blocks with at least one pin */
    uint64_t n_published, n_deduplicated, n_evicted, n_rebuilds;
    uint64_t prompt_tokens[KV_N_SOURCES];
    uint32_t n_leases; /* in use */
    bool has_huge_pages;
};

/* Creates the shared memory. Errors: IO (exists, no room), LIMIT (a size out of range). */
NODISCARD enum err kv_store_create(const struct kv_store_config *cfg, struct kv_store **out,
                                   struct err_info *ei);
/* Maps an existing store and checks magic, version, sizes and fingerprint. Errors: GONE (none of
 * that name), PARSE (not a store of this version), UNSUPPORTED (another fingerprint: says both). */
NODISCARD enum err kv_store_attach(const char *name, const struct fingerprint *fingerprint,
                                   struct kv_store **out, struct err_info *ei);
void kv_store_detach(struct kv_store *s); /* NULL is legal; the store stays */
void kv_store_remove(const char *name);   /* the name goes */

uint32_t kv_store_block_size(const struct kv_store *s);
size_t kv_store_block_bytes(const struct kv_store *s);
uint32_t kv_store_n_blocks(const struct kv_store *s);
/* Start of the host pool: block b lies at data + b * block_bytes, 64-byte aligned. */
void *kv_store_data(const struct kv_store *s);

/* --- leases: one per process that pins or fills -------------------------------------------------
 */

/* Registers this process (tag: worker index, or UINT32_MAX for others). Errors: LIMIT. */
NODISCARD enum err kv_store_lease_open(struct kv_store *s, struct process_id owner, uint32_t tag,
                                       struct err_info *ei);
/* Drops all of its pins and filling rows. */
void kv_store_lease_close(struct kv_store *s);
uint32_t kv_store_lease(const struct kv_store *s); /* KV_LEASE_NONE before open */
/* Reaps every lease whose process is confirmed dead (process_is_alive false). Returns how many. */
uint32_t kv_store_reap(struct kv_store *s);
/* Fills pids of living leases, at most max; returns the number. */
struct kv_lease_info {
    uint32_t lease, tag;
    struct process_id owner;
    uint32_t n_pins, n_filling;
};
uint32_t kv_store_leases(struct kv_store *s, struct kv_lease_info *out, uint32_t max);

/* --- sequences (need a lease) --------------------------------------------------------------------
 */

/* The longest ready prefix of the chain, pinned once for this lease and marked used. tokens:
 * [n_keys * block_size], compared with the rows before reuse. blocks: [n_keys]. Returns how many.
 */
uint32_t kv_store_acquire(struct kv_store *s, const struct block_key *keys, const uint32_t *tokens,
                          uint32_t n_keys, uint32_t *blocks);
/* n private blocks in state filling, all or none, evicting what must be. Errors: BUSY (not so many
 * free or evictable). */
NODISCARD enum err kv_store_reserve(struct kv_store *s, uint32_t n, uint32_t *blocks,
                                    struct err_info *ei);
/* A filling block of ours is complete: it becomes ready under key, pinned once by us. parent: the
 * ready block before it in the chain, pinned by us (KV_BLOCK_NONE for the first). If a ready block
 * with this key and these tokens exists already, ours is freed, that one is pinned and returned
 * instead; if one with this key but OTHER tokens exists (a collision), ours stays private and is
 * returned, and so are the blocks published below it. */
uint32_t kv_store_publish(struct kv_store *s, uint32_t block, const struct block_key *key,
                          uint32_t parent, const uint32_t *tokens);
/* Gives back blocks of one sequence, in chain order: unpins ready ones (marking them used now),
 * frees filling ones of ours. */
void kv_store_release(struct kv_store *s, const uint32_t *blocks, uint32_t n);

/* --- looking on (no lease needed) ----------------------------------------------------------------
 */

/* How many leading blocks of the chain are ready; pins nothing, marks nothing. */
uint32_t kv_store_match(struct kv_store *s, const struct block_key *keys, const uint32_t *tokens,
                        uint32_t n_keys);
void kv_store_count_prompt(struct kv_store *s, enum kv_source source, uint64_t n_tokens);
void kv_store_get_stats(struct kv_store *s, struct kv_store_stats *out);
/* Walks all invariants (states, index, pins by lease, eviction order, token counts). Errors: PARSE
 * with the first violation. For tests, and idle in debug builds. */
NODISCARD enum err kv_store_check(struct kv_store *s, struct err_info *ei);

/* --- liveness (DESIGN §8) ------------------------------------------------------------------------
 */

enum worker_phase { PHASE_STARTING, PHASE_IDLE, PHASE_STEP, PHASE_STOPPING };
struct worker_pulse {
    enum worker_phase phase;
    uint64_t step;
    uint64_t since_us; /* when the phase began, clock_now_us */
};
/* Written by the lease's owner without the lock; read by the router without the lock. */
void kv_store_pulse(struct kv_store *s, enum worker_phase phase, uint64_t step, uint64_t now_us);
bool kv_store_read_pulse(struct kv_store *s, uint32_t lease, struct worker_pulse *out);
