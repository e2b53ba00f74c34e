/* What does the scheduler put into a step? Expected plans follow from the rules in scheduler.h by
 * hand; no backend runs, "computing" is scheduler_advance. */
#include "worker/scheduler.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 16, VOCAB = 100, MANY_TOKENS = 400 };

static struct kv_store *store;
static struct scheduler *scheduler;
static char store_name[64];
static uint32_t tokens[MANY_TOKENS];

static void open_all(uint32_t n_blocks, uint32_t max_batch_tokens)
{
    struct err_info ei = {0};
    snprintf(store_name, sizeof store_name, "kvnode-test-scheduler-%d", (int)getpid());
    kv_store_remove(store_name);
    struct kv_store_config cfg = {.name = store_name,
                                  .block_size = BLOCK,
                                  .block_bytes = 64,
                                  .n_blocks = n_blocks,
                                  .max_leases = 2};
    cr_assert_eq(kv_store_create(&cfg, &store, &ei), OK, "%s", ei.text);
    kv_store_remove(store_name); /* the mapping stays: a failing test leaves nothing behind */
    cr_assert_eq(kv_store_lease_open(store, process_self(), 0, &ei), OK, "%s", ei.text);
    struct scheduler_config s = {.store = store,
                                 .max_batch_tokens = max_batch_tokens,
                                 .max_sequences = 4,
                                 .max_context = MANY_TOKENS,
                                 .vocab_size = VOCAB};
    cr_assert_eq(scheduler_new(&s, &scheduler, &ei), OK, "%s", ei.text);
    for (uint32_t i = 0; i < MANY_TOKENS; i++)
        tokens[i] = i % VOCAB;
}

static void close_all(void)
{
    scheduler_free(scheduler);
    kv_store_lease_close(store);
    kv_store_detach(store);
}

TestSuite(scheduler, .timeout = 10, .fini = close_all);

/* Prompts differ from their first token on, so none is cached for another. */
static void submit(uint64_t id, uint32_t n_prompt, int32_t priority)
{
    struct err_info ei = {0};
    struct message_submit m = {.id = id,
                               .n_prompt = n_prompt,
                               .tokens = tokens + id,
                               .priority = priority,
                               .sampling = {.top_p = 1, .max_tokens = 300, .ignore_eos = true}};
    cr_assert_eq(scheduler_submit(scheduler, &m, &ei), OK, "%s", ei.text);
}

static uint32_t n_filling(void)
{
    struct kv_store_stats st;
    kv_store_get_stats(store, &st);
    return st.n_filling;
}

/* Plans and computes one step; rows of each id in rows[] (0: not in it). */
static const struct step *step(uint32_t rows[8])
{
    struct err_info ei = {0};
    const struct step *s = scheduler_plan(scheduler, 0);
    cr_assert_eq(scheduler_check(scheduler, &ei), OK, "%s", ei.text);
    memset(rows, 0, 8 * sizeof *rows);
    for (uint32_t i = 0; i < s->batch.n_sequences; i++)
        rows[s->sequences[i]->id] = s->batch.sequences[i].n_tokens;
    scheduler_advance(scheduler, s);
    for (uint32_t i = 0; i < s->batch.n_logit_rows; i++)
        cr_assert_eq(sequence_append(s->samples[i], 7), FINISH_NONE);
    cr_assert_eq(scheduler_check(scheduler, &ei), OK, "%s", ei.text);
    cr_assert_eq(kv_store_check(store, &ei), OK, "%s", ei.text);
    return s;
}

Test(scheduler, a_prompt_is_cut_into_chunks_and_sampled_after_the_last)
{
    uint32_t rows[8];
    open_all(32, 40);
    submit(1, 100, 0);
    static const uint32_t CHUNKS[] = {40, 40, 20, 1, 1};
    for (size_t i = 0; i < sizeof CHUNKS / sizeof *CHUNKS; i++) {
        const struct step *s = step(rows);
        cr_assert_eq(rows[1], CHUNKS[i], "step %zu: %u rows", i, rows[1]);
        cr_assert_eq(s->batch.n_logit_rows, i >= 2);
        if (i >= 2)
            cr_assert_eq(s->batch.logit_rows[0], CHUNKS[i] - 1);
    }
}

Test(scheduler, blocks_are_claimed_for_the_next_chunk_only_and_published_when_full)
{
    open_all(32, 40);
    submit(1, 100, 0);
    const struct step *s = scheduler_plan(scheduler, 0);
    cr_assert_eq(n_filling(), 3); /* 40 rows */
    scheduler_advance(scheduler, s);
    cr_assert_eq(n_filling(), 1); /* two are full: ready */
    s = scheduler_plan(scheduler, 0);
    cr_assert_eq(n_filling(), 3); /* 80 rows are 5 blocks, 2 ready */
    scheduler_advance(scheduler, s);
    cr_assert_eq(n_filling(), 0);
}

Test(scheduler, decodes_come_first_then_the_oldest_prefill_then_admission)
{
    uint32_t rows[8];
    open_all(32, 20);
    submit(1, 10, 0);
    step(rows); /* 1 decodes from here on */
    submit(2, 50, 0);
    submit(3, 8, 0);
    static const uint32_t ROWS[][3] = {{1, 19, 0}, {1, 19, 0}, {1, 12, 7}, {1, 1, 1}};
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        step(rows);
        for (int id = 1; id <= 3; id++)
            cr_assert_eq(rows[id], ROWS[i][id - 1], "step %zu, sequence %d: %u rows", i, id,
                         rows[id]);
    }
}

Test(scheduler, decodes_that_fill_the_budget_leave_a_row_to_an_older_prefill)
{
    uint32_t rows[8];
    open_all(32, 2);
    submit(1, 1, 0);
    submit(2, 1, 0);
    step(rows); /* both decode from here on and would take both rows */
    submit(3, 30, 1);
    step(rows); /* no row left to admit it with */
    cr_assert_eq(rows[3], 0);
    cr_assert(scheduler_cancel(scheduler, 2));
    step(rows); /* it is admitted: the oldest now, by its priority */
    cr_assert_eq(rows[3], 1);
    step(rows);
    cr_assert_eq(rows[1] + rows[3], 2);
    cr_assert_eq(rows[3], 1);
}

Test(scheduler, preempts_the_youngest_of_the_lowest_priority_and_resumes_it_from_its_blocks)
{
    uint32_t rows[8];
    open_all(5, 64);
    submit(1, 14, 0);
    submit(2, 14, 1);
    submit(3, 15, 0);
    step(rows);
    step(rows); /* all decode; 3 fills its block with this row */
    step(rows); /* 3 takes the fourth block, the others fill theirs */
    step(rows); /* 2 takes the fifth; 1 needs one, too: 3, the youngest, gives up its own */
    cr_assert(rows[1] == 1 && rows[2] == 1 && rows[3] == 0, "%u %u %u", rows[1], rows[2], rows[3]);
    struct scheduler_stats st;
    scheduler_get_stats(scheduler, &st);
    cr_assert_eq(st.n_preemptions, 1);
    cr_assert(st.n_running == 2 && st.n_waiting == 1);
    cr_assert(scheduler_cancel(scheduler, 1));
    step(rows); /* there is room again: of its 15 + 3 tokens a full block is cached */
    cr_assert_eq(rows[3], 2);
}
