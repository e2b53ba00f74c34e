#pragma once
/* Engines over a real store in shared memory and a fake backend whose K, V and logits are hashes:
 * K/V of a token hash the token and everything before it, read from the sequence's own blocks, and
 * logits hash all of them. So a wrong block table, an unwritten slot, a block freed too early or a
 * swapped sequence gives other tokens than the plain token list does. */
#include "prefixcache/kv_store.h"
#include "worker/engine.h"

enum { FAKE_VOCAB = 40, FAKE_BLOCK = 16, FAKE_MAX_OUTPUT = 512, FAKE_ENGINES = 2 };

struct fake_config {
    uint32_t n_blocks, n_engines, max_batch_tokens, max_sequences, max_context;
};

/* What the router would have seen of one sequence. */
struct fake_client {
    struct message_submit submit;
    uint32_t engine;
    uint32_t n_admissions, n_cached;
    uint32_t n_output, output[FAKE_MAX_OUTPUT];
    float logprobs[FAKE_MAX_OUTPUT];
    enum finish_reason finish;
    bool is_failed, is_cancelled;
    struct message_failed failed;
};

struct fake_node {
    struct fake_config cfg;
    char store_name[64];
    struct kv_store *stores[FAKE_ENGINES];
    struct backend *backends[FAKE_ENGINES];
    struct engine *engines[FAKE_ENGINES];
    struct fake_client *clients; /* id = index */
    uint32_t n_clients, max_clients;
    uint64_t now_us;
    enum err next_forward; /* what the next forward says, once */
    uint32_t largest_batch;
};

void fake_node_open(struct fake_node *n, const struct fake_config *cfg, uint32_t max_clients);
/* Asserts that nothing is pinned or filling any more. */
void fake_node_close(struct fake_node *n);

/* Root key of the default tenant, no sampling: greedy, max_tokens. tokens must live on. */
struct message_submit fake_submit(const uint32_t *tokens, uint32_t n_prompt, uint32_t max_tokens);
/* Returns the client's id. */
uint32_t fake_node_submit(struct fake_node *n, uint32_t engine, struct message_submit m);
void fake_node_cancel(struct fake_node *n, uint32_t id);
/* One round over all engines, invariants checked; false: none of them could step. */
bool fake_node_step(struct fake_node *n);
/* Until nothing is left to do; asserts that it ends. */
void fake_node_run(struct fake_node *n);
bool fake_client_has_ended(const struct fake_client *c);

/* The oracle: what a model that is this hash says to the whole token list, no blocks, no batch, no
 * chunks. Returns the number of output tokens (those of before a resume not among them). */
uint32_t fake_reference(const struct message_submit *m, uint32_t max_context,
                        uint32_t output[FAKE_MAX_OUTPUT], float logprobs[FAKE_MAX_OUTPUT],
                        enum finish_reason *finish);
/* Asserts that the client saw exactly what the oracle says. */
void fake_client_check(const struct fake_node *n, const struct fake_client *c);
