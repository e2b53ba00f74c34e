/* Which tokens does the next step compute? Keeps: a sequence that waits holds no block; blocks
 * cover what is computed and the rows of the planned step; of two sequences the one with the
 * earlier claim (priority, then arrival) never waits for the other's blocks.
 * Knows no clock, no socket, no logits and no device. */
#include "worker/scheduler.h"

#include "worker/sequence_queue.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_WAITING = 65536, /* the router's own limit is far lower */
    MAX_LEASES = 1024,   /* of kv_store_config */
    ADMIT_RETRY_US = 2000,
    STALL_BEFORE_YIELD_US = 50 * 1000, /* time for other workers to finish something */
    YIELD_US = 20 * 1000,
};

struct scheduler {
    struct scheduler_config cfg;
    uint32_t block_size, n_pool_blocks;

    struct sequence_queue queue;
    struct sequence *failed; /* list */
    uint64_t n_arrivals;

    /* of the step being planned */
    uint32_t step_tokens; /* rows a step may have */
    uint32_t budget;      /* rows left */
    bool has_preempted;
    struct step step;
    uint32_t *tokens;                 /* [max_batch_tokens] */
    struct batch_sequence *sequences; /* [max_sequences] */
    struct sequence **owners;         /* [max_sequences] */
    uint32_t *logit_rows;             /* [max_sequences] */
    struct sequence **samples;        /* [max_sequences] */

    uint64_t admit_after_us; /* no admission earlier, unless something was given back */
    uint64_t yield_until_us; /* no admission earlier at all */
    bool is_stalled;         /* the oldest could not get a block, since: */
    uint64_t stalled_since_us;
    struct kv_lease_info *leases; /* [MAX_LEASES] room to look at */

    struct scheduler_stats stats;
};

static uint32_t blocks_for(const struct scheduler *s, uint32_t n_tokens)
{
    return n_tokens / s->block_size + (n_tokens % s->block_size > 0);
}

static uint32_t min_u32(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum err scheduler_new(const struct scheduler_config *cfg, struct scheduler **out,
                       struct err_info *ei)
{
    assert(cfg->max_batch_tokens > 0 && cfg->max_sequences > 0 && cfg->max_context > 1);
    struct scheduler *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(ei, ERR_NOMEM, "scheduler: no memory");
    s->cfg = *cfg;
    s->block_size = kv_store_block_size(cfg->store);
    s->n_pool_blocks = kv_store_n_blocks(cfg->store);
    size_t n = cfg->max_sequences;
    s->step_tokens = cfg->max_batch_tokens;
    s->tokens = calloc(cfg->max_batch_tokens, sizeof *s->tokens);
    s->sequences = calloc(n, sizeof *s->sequences);
    s->owners = calloc(n, sizeof(struct sequence *));
    s->logit_rows = calloc(n, sizeof *s->logit_rows);
    s->samples = calloc(n, sizeof(struct sequence *));
    s->leases = calloc(MAX_LEASES, sizeof *s->leases);
    if (!s->tokens || !s->sequences || !s->owners || !s->logit_rows || !s->samples || !s->leases) {
        scheduler_free(s);
        return err_set(ei, ERR_NOMEM, "scheduler: no memory for %u sequences", cfg->max_sequences);
    }
    enum err rc = sequence_queue_init(&s->queue, cfg->max_sequences, ei);
    if (rc) {
        scheduler_free(s);
        return rc;
    }
    *out = s;
    return OK;
}

void scheduler_free(struct scheduler *s)
{
    if (!s)
        return;
    scheduler_cancel_all(s);
    sequence_queue_fini(&s->queue);
    free(s->tokens);
    free(s->sequences);
    free(s->owners);
    free(s->logit_rows);
    free(s->samples);
    free(s->leases);
    free(s);
}

/* --- lists and blocks ----------------------------------------------------------------------------
 */

/* Ready blocks stay cached; the sequence starts again from nothing. */
static void give_back(struct scheduler *s, struct sequence *q)
{
    if (q->n_blocks > 0)
        kv_store_release(s->cfg.store, q->blocks, q->n_blocks);
    q->n_blocks = q->n_published = q->n_computed = 0;
    s->admit_after_us = 0;
}

static struct sequence *stop_running(struct scheduler *s, uint32_t at)
{
    struct sequence *q = sequence_queue_stop_running(&s->queue, at);
    give_back(s, q);
    s->budget += q->n_rows;
    q->n_rows = 0;
    return q;
}

static void preempt_last(struct scheduler *s)
{
    struct sequence *q = stop_running(s, s->queue.n_running - 1);
    sequence_queue_wait_take(&s->queue, q);
    s->has_preempted = true;
    s->stats.n_preemptions++;
}

static void fail(struct scheduler *s, struct sequence *q)
{
    q->next = s->failed;
    s->failed = q;
}

/* --- arrival and departure -----------------------------------------------------------------------
 */

bool scheduler_has(const struct scheduler *s, uint64_t id)
{
    return sequence_queue_has(&s->queue, id);
}

static enum err check_submit(const struct scheduler *s, const struct message_submit *m,
                             struct err_info *ei)
{
    uint64_t n = (uint64_t)m->n_prompt + m->n_emitted;
    if (m->n_prompt == 0)
        return err_set(ei, ERR_PARSE, "worker: the prompt is empty");
    if (n >= s->cfg.max_context)
        return err_set(ei, ERR_LIMIT, "worker: %llu tokens leave no room in the window of %u",
                       (unsigned long long)n, s->cfg.max_context);
    if (blocks_for(s, (uint32_t)n) > s->n_pool_blocks)
        return err_set(ei, ERR_LIMIT, "worker: %llu tokens do not fit in the KV pool of %llu",
                       (unsigned long long)n, (unsigned long long)s->n_pool_blocks * s->block_size);
    if (m->n_emitted >= m->sampling.max_tokens)
        return err_set(ei, ERR_LIMIT, "worker: %u of %u tokens are out already", m->n_emitted,
                       m->sampling.max_tokens);
    if (m->sampling.n_stop_ids > MESSAGE_MAX_STOP_IDS)
        return err_set(ei, ERR_LIMIT, "worker: %u stop ids, at most %d", m->sampling.n_stop_ids,
                       MESSAGE_MAX_STOP_IDS);
    for (uint64_t i = 0; i < n; i++)
        if (m->tokens[i] >= s->cfg.vocab_size)
            return err_set(ei, ERR_PARSE,
                           "worker: token %u at %llu is outside the vocabulary of %u", m->tokens[i],
                           (unsigned long long)i, s->cfg.vocab_size);
    if (s->queue.n_waiting >= MAX_WAITING)
        return err_set(ei, ERR_BUSY, "worker: %u sequences wait already", s->queue.n_waiting);
    if (scheduler_has(s, m->id))
        return err_set(ei, ERR_PARSE, "worker: sequence %llu is here already",
                       (unsigned long long)m->id);
    return OK;
}

enum err scheduler_submit(struct scheduler *s, const struct message_submit *m, struct err_info *ei)
{
    enum err rc = check_submit(s, m, ei);
    if (rc)
        return rc;
    struct sequence *q = NULL;
    rc = sequence_new(m, s->cfg.max_context, s->block_size, &q, ei);
    if (rc)
        return rc;
    q->arrival = s->n_arrivals++;
    sequence_extend_keys(q, q->n_tokens, s->block_size);
    sequence_queue_wait_take(&s->queue, q);
    return OK;
}

bool scheduler_cancel(struct scheduler *s, uint64_t id)
{
    uint32_t at = sequence_queue_find_running(&s->queue, id);
    struct sequence *q =
        at < s->queue.n_running ? stop_running(s, at) : sequence_queue_stop_waiting(&s->queue, id);
    if (!q)
        return false;
    sequence_free(q);
    s->stats.n_cancelled++;
    return true;
}

void scheduler_cancel_all(struct scheduler *s)
{
    s->stats.n_cancelled += s->queue.n_running + s->queue.n_waiting;
    while (s->queue.n_running > 0)
        sequence_free(stop_running(s, s->queue.n_running - 1));
    while (s->queue.waiting)
        sequence_free(sequence_queue_first_waiting(&s->queue));
    while (s->failed) {
        struct sequence *q = s->failed;
        s->failed = q->next;
        sequence_free(q);
    }
}

void scheduler_finish(struct scheduler *s, struct sequence *q)
{
    uint32_t at = sequence_queue_find_running(&s->queue, q->id);
    sequence_free(stop_running(s, at));
}

bool scheduler_take_failed(struct scheduler *s, struct message_failed *out)
{
    struct sequence *q = s->failed;
    if (!q)
        return false;
    s->failed = q->next;
    *out = (struct message_failed){.id = q->id, .code = ERR_LIMIT};
    snprintf(out->text, sizeof out->text,
             "worker: a sequence of %u tokens cannot go on: the KV pool holds %llu", q->n_tokens,
             (unsigned long long)s->n_pool_blocks * s->block_size);
    sequence_free(q);
    return true;
}

/* --- planning ------------------------------------------------------------------------------------
 */

static uint32_t rows_left(const struct sequence *q)
{
    return q->n_tokens - q->n_computed;
}

/* Blocks for up to `want` rows more, fewer when the pool is short. Returns the rows that q can
 * compute now; 0: not one. */
static uint32_t claim(struct scheduler *s, struct sequence *q, uint32_t want)
{
    uint32_t room = q->n_blocks * s->block_size - q->n_computed;
    for (uint32_t n = blocks_for(s, q->n_computed + want) - q->n_blocks; n > 0; n /= 2) {
        if (kv_store_reserve(s->cfg.store, n, &q->blocks[q->n_blocks], NULL) != OK)
            continue;
        q->n_blocks += n;
        room += n * s->block_size;
        break;
    }
    return min_u32(want, room);
}

/* Another worker with a lower tag holds blocks: two workers that wait for each other's blocks
 * would wait for ever if neither gave way. */
static bool must_yield(struct scheduler *s)
{
    uint32_t n = kv_store_leases(s->cfg.store, s->leases, MAX_LEASES);
    for (uint32_t i = 0; i < n; i++)
        if (s->leases[i].tag < s->cfg.tag && s->leases[i].n_pins + s->leases[i].n_filling > 0)
            return true;
    return false;
}

/* The oldest alone cannot get a block: others of the node hold the pool. Wait, then yield. */
static void stall(struct scheduler *s, uint64_t now_us)
{
    if (!s->is_stalled) {
        s->is_stalled = true;
        s->stalled_since_us = now_us;
    } else if (now_us - s->stalled_since_us >= STALL_BEFORE_YIELD_US && must_yield(s)) {
        preempt_last(s);
        s->is_stalled = false;
        s->yield_until_us = now_us + YIELD_US;
    }
}

/* Gives running[at] its rows, preempting those behind it as it must. False when it is not at that
 * place any more. */
static bool grow(struct scheduler *s, uint32_t at, uint64_t now_us)
{
    struct sequence *q = s->queue.running[at];
    if (blocks_for(s, q->n_computed + 1) > s->n_pool_blocks) {
        stop_running(s, at);
        fail(s, q);
        return false;
    }
    for (;;) {
        q->n_rows = claim(s, q, min_u32(rows_left(q), s->budget));
        if (q->n_rows > 0) {
            s->budget -= q->n_rows;
            s->is_stalled = at == 0 ? false : s->is_stalled;
            return true;
        }
        if (at + 1 < s->queue.n_running) {
            preempt_last(s);
        } else if (at > 0) {
            preempt_last(s); /* itself: those before it go on and will free blocks */
            return false;
        } else {
            stall(s, now_us);
            return s->queue.n_running > 0;
        }
    }
}

static void grow_running(struct scheduler *s, bool is_decode, uint32_t keep, uint64_t now_us)
{
    uint32_t at = 0;
    while (at < s->queue.n_running && s->budget > keep) {
        bool is_one_more = rows_left(s->queue.running[at]) == 1;
        if (is_one_more != is_decode || s->queue.running[at]->n_rows > 0 || grow(s, at, now_us))
            at++;
    }
}

/* Enough blocks, free or evictable, for all that q and the running ones have yet to compute, and
 * one more for each of these: an admission that preempts at once helps nobody. */
static bool has_room(struct scheduler *s, const struct sequence *q)
{
    struct kv_store_stats st;
    kv_store_get_stats(s->cfg.store, &st);
    uint64_t available = (uint64_t)st.n_free + st.n_ready - st.n_pinned;
    uint64_t need = blocks_for(s, q->n_tokens) - q->n_blocks;
    for (uint32_t i = 0; i < s->queue.n_running; i++) {
        const struct sequence *r = s->queue.running[i];
        uint32_t n = blocks_for(s, r->n_tokens);
        need += 1 + (n > r->n_blocks ? n - r->n_blocks : 0);
    }
    return available >= need;
}

static void count_admission(struct scheduler *s, struct sequence *q)
{
    if (q->is_admitted)
        return;
    q->is_admitted = true;
    q->n_cached = min_u32(q->n_computed, q->n_prompt - 1);
    if (q->is_counted)
        return;
    kv_store_count_prompt(s->cfg.store, KV_SOURCE_HOST, q->n_cached);
    kv_store_count_prompt(s->cfg.store, KV_SOURCE_COMPUTED, q->n_prompt - q->n_cached);
}

/* Takes what is cached (at least one token is left to compute: its logits are wanted) and the
 * blocks of the first chunk. False: it goes on waiting and holds nothing. */
static bool admit(struct scheduler *s, struct sequence *q)
{
    uint32_t most = (q->n_tokens - 1) / s->block_size;
    assert(most <= q->n_keys);
    q->n_blocks = kv_store_acquire(s->cfg.store, q->keys, q->tokens, most, q->blocks);
    q->n_published = q->n_blocks;
    q->n_computed = q->n_blocks * s->block_size;
    if (has_room(s, q))
        q->n_rows = claim(s, q, min_u32(rows_left(q), s->budget));
    if (q->n_rows == 0) {
        give_back(s, q);
        return false;
    }
    s->budget -= q->n_rows;
    count_admission(s, q);
    return true;
}

static void admit_waiting(struct scheduler *s, uint64_t now_us)
{
    if (s->has_preempted || now_us < s->admit_after_us || now_us < s->yield_until_us)
        return;
    while (s->queue.waiting && s->budget > 0 && s->queue.n_running < s->cfg.max_sequences) {
        struct sequence *q = s->queue.waiting;
        bool fits = blocks_for(s, q->n_tokens) <= s->n_pool_blocks;
        if (fits && !admit(s, q)) {
            s->admit_after_us = now_us + ADMIT_RETRY_US;
            return;
        }
        q = sequence_queue_first_waiting(&s->queue);
        if (fits)
            sequence_queue_run_take(&s->queue, q);
        else
            fail(s, q);
    }
}

static void build_step(struct scheduler *s)
{
    struct batch *b = &s->step.batch;
    *b =
        (struct batch){.tokens = s->tokens, .sequences = s->sequences, .logit_rows = s->logit_rows};
    s->step.sequences = s->owners;
    s->step.samples = s->samples;
    for (uint32_t i = 0; i < s->queue.n_running; i++) {
        struct sequence *q = s->queue.running[i];
        if (q->n_rows == 0)
            continue;
        s->owners[b->n_sequences] = q;
        s->sequences[b->n_sequences++] = (struct batch_sequence){.first_row = b->n_tokens,
                                                                 .n_tokens = q->n_rows,
                                                                 .position = q->n_computed,
                                                                 .blocks = q->blocks};
        memcpy(s->tokens + b->n_tokens, q->tokens + q->n_computed, q->n_rows * sizeof *q->tokens);
        b->n_tokens += q->n_rows;
        if (q->n_rows == rows_left(q)) {
            s->samples[b->n_logit_rows] = q;
            s->logit_rows[b->n_logit_rows++] = b->n_tokens - 1;
        }
    }
}

void scheduler_limit_step(struct scheduler *s, uint32_t n_tokens)
{
    assert(n_tokens > 0 && n_tokens <= s->cfg.max_batch_tokens);
    s->step_tokens = n_tokens;
}

const struct step *scheduler_plan(struct scheduler *s, uint64_t now_us)
{
    for (uint32_t i = 0; i < s->queue.n_running; i++)
        s->queue.running[i]->n_rows = 0;
    s->is_stalled = s->is_stalled && s->queue.n_running > 0;
    s->budget = s->step_tokens;
    s->has_preempted = false;
    /* one row is kept for the oldest, so that decodes of younger ones cannot starve its prefill */
    bool is_oldest_prefill = s->queue.n_running > 0 && rows_left(s->queue.running[0]) > 1;
    grow_running(s, true, is_oldest_prefill, now_us);
    grow_running(s, false, 0, now_us);
    admit_waiting(s, now_us);
    build_step(s);
    return &s->step;
}

void scheduler_advance(struct scheduler *s, const struct step *step)
{
    for (uint32_t i = 0; i < step->batch.n_sequences; i++) {
        struct sequence *q = step->sequences[i];
        bool is_decode = q->n_output > 0 && rows_left(q) == 1;
        *(is_decode ? &s->stats.n_decode_tokens : &s->stats.n_prefill_tokens) += q->n_rows;
        q->n_computed += q->n_rows;
        q->n_rows = 0;
        sequence_extend_keys(q, q->n_computed, s->block_size);
        for (; q->n_published < q->n_computed / s->block_size; q->n_published++) {
            uint32_t at = q->n_published;
            uint32_t parent = at > 0 ? q->blocks[at - 1] : KV_BLOCK_NONE;
            /* another block with the same bytes may have been there first */
            q->blocks[at] = kv_store_publish(s->cfg.store, q->blocks[at], &q->keys[at], parent,
                                             q->tokens + (size_t)at * s->block_size);
        }
    }
}

/* --- looking on ----------------------------------------------------------------------------------
 */

bool scheduler_has_work(const struct scheduler *s)
{
    return s->queue.n_running > 0 || s->queue.n_waiting > 0;
}

void scheduler_get_stats(const struct scheduler *s, struct scheduler_stats *out)
{
    *out = s->stats;
    out->n_running = s->queue.n_running;
    out->n_waiting = s->queue.n_waiting;
}

static enum err check_sequence(const struct scheduler *s, const struct sequence *q, bool is_running,
                               struct err_info *ei)
{
    uint32_t bs = s->block_size;
    bool holds = q->n_tokens == q->n_prompt + q->n_output && q->n_tokens <= q->capacity &&
                 q->n_computed <= q->n_tokens && q->n_published <= q->n_blocks &&
                 q->n_published == q->n_computed / bs && q->n_keys >= q->n_published &&
                 blocks_for(s, q->n_computed + q->n_rows) <= q->n_blocks &&
                 (is_running || (q->n_blocks == 0 && q->n_rows == 0));
    if (holds)
        return OK;
    return err_set(
        ei, ERR_PARSE, "scheduler: sequence %llu: %u tokens, %u computed, %u blocks, %u published",
        (unsigned long long)q->id, q->n_tokens, q->n_computed, q->n_blocks, q->n_published);
}

enum err scheduler_check(const struct scheduler *s, struct err_info *ei)
{
    enum err rc = sequence_queue_check(&s->queue, ei);
    for (uint32_t i = 0; !rc && i < s->queue.n_running; i++)
        rc = check_sequence(s, s->queue.running[i], true, ei);
    for (const struct sequence *q = s->queue.waiting; !rc && q; q = q->next)
        rc = check_sequence(s, q, false, ei);
    return rc;
}
