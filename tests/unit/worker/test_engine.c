/* Do sequences come out as if each were alone, whatever happens around them? The oracle is
 * fake_reference: the same hash over the plain token list. */
#include "support_fake_node.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(engine, .timeout = 30);

static const struct fake_config ROOMY = {
    .n_blocks = 64, .n_engines = 1, .max_batch_tokens = 64, .max_sequences = 8, .max_context = 256};

enum { MANY_TOKENS = 1024 };

static void count_up(uint32_t tokens[MANY_TOKENS])
{
    for (uint32_t i = 0; i < MANY_TOKENS; i++)
        tokens[i] = (i * 7 + i / 5) % FAKE_VOCAB;
}

static void assert_nothing_held(const struct fake_node *n)
{
    struct kv_store_stats st;
    kv_store_get_stats(n->stores[0], &st);
    cr_assert_eq(st.n_pinned, 0);
    cr_assert_eq(st.n_filling, 0);
}

Test(engine, a_second_prompt_takes_all_full_blocks_but_the_last_token)
{
    /* by definition of the protocol: n_cached <= n_prompt - 1, whole blocks of 16 */
    static const struct {
        uint32_t n_prompt, n_cached;
    } CASES[] = {{1, 0}, {15, 0}, {16, 0}, {17, 16}, {47, 32}, {48, 32}, {49, 48}};
    uint32_t tokens[MANY_TOKENS];
    count_up(tokens);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct fake_node n;
        fake_node_open(&n, &ROOMY, 2);
        for (uint32_t k = 0; k < 2; k++) {
            uint32_t id = fake_node_submit(&n, 0, fake_submit(tokens, CASES[i].n_prompt, 20));
            fake_node_run(&n);
            fake_client_check(&n, &n.clients[id]);
            cr_assert_eq(n.clients[id].n_cached, k ? CASES[i].n_cached : 0, "case %zu", i);
        }
        fake_node_close(&n);
    }
}

Test(engine, decoded_blocks_serve_the_next_turn)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_node n;
    count_up(tokens);
    fake_node_open(&n, &ROOMY, 2);
    fake_node_submit(&n, 0, fake_submit(tokens, 20, 60));
    fake_node_run(&n);
    memcpy(tokens + 20, n.clients[0].output, 60 * sizeof *tokens);
    uint32_t id = fake_node_submit(&n, 0, fake_submit(tokens, 90, 5));
    fake_node_run(&n);
    fake_client_check(&n, &n.clients[id]);
    /* 79 tokens of the first turn were computed (the last one sampled was not): 4 full blocks */
    cr_assert_eq(n.clients[id].n_cached, 64);
    fake_node_close(&n);
}

Test(engine, cancelling_frees_every_block_before_the_next_step)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_node n;
    count_up(tokens);
    fake_node_open(&n, &ROOMY, 3);
    fake_node_submit(&n, 0, fake_submit(tokens, 100, 50)); /* two chunks: in prefill, then decode */
    fake_node_step(&n);
    fake_node_cancel(&n, 0);
    assert_nothing_held(&n);
    fake_node_submit(&n, 0, fake_submit(tokens, 30, 50));
    fake_node_step(&n);
    fake_node_step(&n);
    cr_assert_gt(n.clients[1].n_output, 0);
    fake_node_cancel(&n, 1);
    assert_nothing_held(&n);
    fake_node_submit(&n, 0, fake_submit(tokens, 30, 50)); /* still waiting */
    fake_node_cancel(&n, 2);
    cr_assert(!engine_has_work(n.engines[0]));
    fake_node_close(&n);
}

Test(engine, what_cannot_be_served_fails_by_name_and_harms_nobody)
{
    uint32_t tokens[MANY_TOKENS], bad[] = {1, FAKE_VOCAB, 2};
    struct fake_config cfg = ROOMY;
    struct fake_node n;
    count_up(tokens);
    cfg.n_blocks = 8;
    fake_node_open(&n, &cfg, 6);
    uint32_t good = fake_node_submit(&n, 0, fake_submit(tokens, 40, 10));
    const struct {
        struct message_submit m;
        enum err code;
        const char *text;
    } cases[] = {
        {fake_submit(bad, 3, 4), ERR_PARSE, "token 40 at 1"},
        {fake_submit(tokens, 0, 4), ERR_PARSE, "empty"},
        {fake_submit(tokens, 256, 4), ERR_LIMIT, "256 tokens leave no room in the window of 256"},
        {fake_submit(tokens, 129, 4), ERR_LIMIT, "129 tokens do not fit in the KV pool of 128"},
        {fake_submit(tokens, 9, 0), ERR_LIMIT, "0 of 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct fake_client *c = &n.clients[fake_node_submit(&n, 0, cases[i].m)];
        cr_assert(c->is_failed, "case %zu", i);
        cr_assert_eq(c->failed.code, cases[i].code);
        cr_assert_not_null(strstr(c->failed.text, cases[i].text), "%s", c->failed.text);
    }
    fake_node_run(&n);
    fake_client_check(&n, &n.clients[good]);
    fake_node_close(&n);
}

Test(engine, a_sequence_that_outgrows_the_pool_fails_with_both_numbers)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_config cfg = ROOMY;
    struct fake_node n;
    count_up(tokens);
    cfg.n_blocks = 3;
    fake_node_open(&n, &cfg, 1);
    fake_node_submit(&n, 0, fake_submit(tokens, 40, 100));
    fake_node_run(&n);
    const struct fake_client *c = &n.clients[0];
    cr_assert(c->is_failed);
    fake_client_check(&n, c);
    cr_assert_not_null(strstr(c->failed.text, "49 tokens"), "%s", c->failed.text);
    cr_assert_not_null(strstr(c->failed.text, "48"), "%s", c->failed.text);
    fake_node_close(&n);
}

Test(engine, a_resumed_sequence_goes_on_as_if_never_interrupted)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_node n;
    count_up(tokens);
    fake_node_open(&n, &ROOMY, 2);
    struct message_submit m = fake_submit(tokens, 20, 30);
    m.sampling.temperature = 1;
    m.sampling.seed = 99;
    fake_node_submit(&n, 0, m);
    fake_node_run(&n);
    memcpy(tokens + 20, n.clients[0].output, 12 * sizeof *tokens);
    m.n_emitted = 12;
    uint32_t id = fake_node_submit(&n, 0, m);
    fake_node_run(&n);
    cr_assert_eq(n.clients[id].n_output, 18);
    cr_assert_arr_eq(n.clients[id].output, n.clients[0].output + 12, 18 * sizeof *tokens);
    struct kv_store_stats st;
    kv_store_get_stats(n.stores[0], &st); /* a resume is no second admission */
    cr_assert_eq(st.prompt_tokens[KV_SOURCE_COMPUTED] + st.prompt_tokens[KV_SOURCE_HOST], 20);
    fake_node_close(&n);
}

Test(engine, draining_finishes_what_runs_and_refuses_what_comes)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_node n;
    count_up(tokens);
    fake_node_open(&n, &ROOMY, 2);
    fake_node_submit(&n, 0, fake_submit(tokens, 20, 30));
    fake_node_step(&n);
    engine_handle(n.engines[0], &(struct message){.kind = MESSAGE_DRAIN});
    fake_node_submit(&n, 0, fake_submit(tokens, 20, 30));
    cr_assert(n.clients[1].is_failed);
    cr_assert_eq(n.clients[1].failed.code, ERR_BUSY);
    fake_node_run(&n);
    fake_client_check(&n, &n.clients[0]);
    fake_node_close(&n);
}

Test(engine, a_failed_step_ends_its_sequences_and_the_next_one_works)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_node n;
    count_up(tokens);
    fake_node_open(&n, &ROOMY, 3);
    fake_node_submit(&n, 0, fake_submit(tokens, 20, 30));
    fake_node_submit(&n, 0, fake_submit(tokens, 25, 30));
    fake_node_step(&n);
    n.next_forward = ERR_DEVICE;
    fake_node_step(&n);
    cr_assert(n.clients[0].is_failed && n.clients[1].is_failed);
    cr_assert_eq(n.clients[0].failed.code, ERR_DEVICE);
    assert_nothing_held(&n);
    fake_node_submit(&n, 0, fake_submit(tokens, 25, 30));
    fake_node_run(&n);
    fake_client_check(&n, &n.clients[2]);
    fake_node_close(&n);
}

Test(engine, higher_priority_is_admitted_first_and_equals_come_in_order)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_config cfg = ROOMY;
    struct fake_node n;
    count_up(tokens);
    cfg.max_sequences = 1;
    fake_node_open(&n, &cfg, 3);
    struct message_submit m = fake_submit(tokens, 20, 3);
    fake_node_submit(&n, 0, m);
    fake_node_submit(&n, 0, m);
    m.priority = 1;
    fake_node_submit(&n, 0, m);
    static const uint32_t ORDER[] = {2, 0, 1};
    for (int i = 0; i < 3; i++) {
        while (!fake_client_has_ended(&n.clients[ORDER[i]])) {
            for (int later = i + 1; later < 3; later++)
                cr_assert_eq(n.clients[ORDER[later]].n_admissions, 0);
            fake_node_step(&n);
        }
    }
    fake_node_close(&n);
}

/* Each needs 6 of 8 blocks in the end: neither can finish beside the other. */
Test(engine, two_workers_that_wait_for_each_others_blocks_both_finish)
{
    uint32_t tokens[MANY_TOKENS];
    struct fake_config cfg = ROOMY;
    struct fake_node n;
    count_up(tokens);
    cfg.n_blocks = 8;
    cfg.n_engines = 2;
    fake_node_open(&n, &cfg, 2);
    fake_node_submit(&n, 0, fake_submit(tokens, 20, 70));
    fake_node_submit(&n, 1, fake_submit(tokens + 3, 20, 70));
    fake_node_run(&n);
    fake_client_check(&n, &n.clients[0]);
    fake_client_check(&n, &n.clients[1]);
    struct message_stats first, second;
    engine_get_stats(n.engines[0], &first);
    engine_get_stats(n.engines[1], &second);
    cr_assert_eq(first.n_preemptions, 0, "the lowest tag keeps its blocks");
    cr_assert_gt(second.n_preemptions, 0);
    fake_node_close(&n);
}

/* --- random walks --------------------------------------------------------------------------------
 */

static uint32_t below(uint64_t *state, uint32_t n)
{
    *state = *state * 6364136223846793005ULL + 1442695040888963407ULL;
    return (uint32_t)(*state >> 33) % n;
}

static struct message_submit random_submit(uint64_t *rng, const uint32_t *texts, uint32_t *own)
{
    /* three texts that many prompts begin with, then something of their own */
    uint32_t n_shared = below(rng, 90), n_own = 1 + below(rng, 30);
    memcpy(own, texts + (size_t)below(rng, 3) * 100, n_shared * sizeof *own);
    for (uint32_t i = 0; i < n_own; i++)
        own[n_shared + i] = below(rng, FAKE_VOCAB);
    struct message_submit m = fake_submit(own, n_shared + n_own, 1 + below(rng, 60));
    m.priority = (int32_t)below(rng, 8) == 0;
    m.sampling.temperature = below(rng, 2) ? 0.8F : 0;
    m.sampling.top_k = below(rng, 3) * 7;
    m.sampling.top_p = below(rng, 2) ? 0.9F : 1;
    m.sampling.seed = below(rng, 1000);
    m.sampling.n_logprobs = (int32_t)below(rng, 4) - 1;
    m.sampling.n_stop_ids = 2;
    m.sampling.stop_ids[0] = 1;
    m.sampling.stop_ids[1] = 2;
    m.sampling.min_tokens = below(rng, 10);
    m.sampling.ignore_eos = below(rng, 2) == 0;
    return m;
}

enum { WALK_CLIENTS = 40, WALK_OWN_TOKENS = 128 };

/* Every prompt token of what was admitted has one source. */
static void check_sources(const struct fake_node *n)
{
    uint64_t n_prompt = 0, n_cached = 0;
    struct kv_store_stats st;
    for (uint32_t i = 0; i < n->n_clients; i++) {
        const struct fake_client *c = &n->clients[i];
        cr_assert_leq(c->n_admissions, 1);
        n_prompt += c->n_admissions ? c->submit.n_prompt : 0;
        n_cached += c->n_cached;
    }
    kv_store_get_stats(n->stores[0], &st);
    cr_assert_eq(st.prompt_tokens[KV_SOURCE_HOST], n_cached);
    cr_assert_eq(st.prompt_tokens[KV_SOURCE_COMPUTED], n_prompt - n_cached);
}

static uint64_t walk(uint64_t seed, const struct fake_config *cfg)
{
    uint32_t texts[MANY_TOKENS];
    uint32_t *own = calloc((size_t)WALK_CLIENTS * WALK_OWN_TOKENS, sizeof *own);
    uint64_t rng = seed;
    struct fake_node n;
    count_up(texts);
    fake_node_open(&n, cfg, WALK_CLIENTS);
    while (n.n_clients < WALK_CLIENTS) {
        uint32_t *mine = own + (size_t)n.n_clients * WALK_OWN_TOKENS;
        if (below(&rng, 3) == 0)
            fake_node_submit(&n, below(&rng, cfg->n_engines), random_submit(&rng, texts, mine));
        if (n.n_clients > 0 && below(&rng, 12) == 0)
            fake_node_cancel(&n, below(&rng, n.n_clients));
        fake_node_step(&n);
    }
    fake_node_run(&n);
    uint64_t n_preemptions = 0;
    for (uint32_t i = 0; i < n.n_clients; i++) {
        const struct fake_client *c = &n.clients[i];
        cr_assert(fake_client_has_ended(c), "seed %llu: sequence %u has no end",
                  (unsigned long long)seed, i);
        fake_client_check(&n, c);
    }
    for (uint32_t i = 0; i < cfg->n_engines; i++) {
        struct message_stats st;
        engine_get_stats(n.engines[i], &st);
        n_preemptions += st.n_preemptions;
        cr_assert_leq(n.largest_batch, cfg->max_batch_tokens);
    }
    check_sources(&n);
    fake_node_close(&n);
    free(own);
    return n_preemptions;
}

static uint64_t walks(uint32_t n_engines, uint64_t first_seed)
{
    enum { N_WALKS = 60 };
    uint64_t n_preemptions = 0;
    for (uint64_t seed = first_seed; seed < first_seed + N_WALKS; seed++) {
        uint64_t rng = seed;
        (void)below(&rng, 2);
        struct fake_config cfg = {.n_blocks = 9 + below(&rng, 20),
                                  .n_engines = n_engines,
                                  .max_batch_tokens = 1 + below(&rng, 70),
                                  .max_sequences = 1 + below(&rng, 8),
                                  .max_context = 140 + below(&rng, 100)};
        n_preemptions += walk(seed, &cfg);
    }
    return n_preemptions;
}

Test(engine, each_output_equals_its_solo_run_under_pressure)
{
    cr_assert_gt(walks(1, 1), 50, "the pools are small enough to preempt");
}

Test(engine, each_output_equals_its_solo_run_on_two_workers_of_one_store)
{
    cr_assert_gt(walks(2, 1001), 100, "the pools are small enough to preempt");
}
