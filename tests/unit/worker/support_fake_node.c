/* Is what the engine says what the token list alone implies? See the header. */
#include "support_fake_node.h"

#include "worker/sampler.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_kv {
    uint64_t shallow, deep; /* two layers: of this token and its place; of all tokens so far */
};

struct backend {
    struct fake_node *node;
    unsigned char *pool;
    float *logits; /* [max_sequences][FAKE_VOCAB] */
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a * 0x9E3779B97F4A7C15ULL + b + 0x632BE59BD9B4E019ULL;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static void logits_of(uint64_t state, float *logits)
{
    for (uint32_t i = 0; i < FAKE_VOCAB; i++)
        logits[i] = (float)(mix(state, i) % 4096) / 512.0F;
}

/* --- the fake backend ----------------------------------------------------------------------------
 */

static struct fake_kv *slot(const struct backend *b, const struct batch_sequence *s, uint32_t at)
{
    unsigned char *block =
        b->pool + (size_t)s->blocks[at / FAKE_BLOCK] * FAKE_BLOCK * sizeof(struct fake_kv);
    return (struct fake_kv *)(void *)block + at % FAKE_BLOCK;
}

static uint64_t fold(const struct backend *b, const struct batch_sequence *s, uint32_t at,
                     bool is_deep)
{
    uint64_t h = 0;
    for (uint32_t i = 0; i <= at; i++)
        h = mix(h, is_deep ? slot(b, s, i)->deep : slot(b, s, i)->shallow);
    return h;
}

static enum err fake_forward(struct backend *b, const struct batch *batch, const float **logits,
                             struct err_info *ei)
{
    enum err rc = b->node->next_forward;
    b->node->next_forward = OK;
    if (rc)
        return err_set(ei, rc, "fake: told to fail");
    if (batch->n_tokens > b->node->largest_batch)
        b->node->largest_batch = batch->n_tokens;
    uint32_t n_rows = 0, n_logits = 0;
    for (uint32_t i = 0; i < batch->n_sequences; i++) {
        const struct batch_sequence *s = &batch->sequences[i];
        cr_assert_eq(s->first_row, n_rows, "sequences cover the rows in order");
        for (uint32_t r = 0; r < s->n_tokens; r++) {
            uint32_t at = s->position + r;
            slot(b, s, at)->shallow = mix(batch->tokens[n_rows + r], at);
            slot(b, s, at)->deep = fold(b, s, at, false);
        }
        n_rows += s->n_tokens;
        for (; n_logits < batch->n_logit_rows && batch->logit_rows[n_logits] < n_rows; n_logits++) {
            uint32_t at = s->position + batch->logit_rows[n_logits] - s->first_row;
            logits_of(fold(b, s, at, true), b->logits + (size_t)n_logits * FAKE_VOCAB);
        }
    }
    cr_assert_eq(n_rows, batch->n_tokens);
    cr_assert_eq(n_logits, batch->n_logit_rows);
    *logits = b->logits;
    return OK;
}

/* --- the oracle ----------------------------------------------------------------------------------
 */

static void reference_logits(const uint32_t *tokens, uint32_t n, float *logits)
{
    uint64_t shallow = 0, deep = 0;
    for (uint32_t i = 0; i < n; i++) {
        shallow = mix(shallow, mix(tokens[i], i));
        deep = mix(deep, shallow);
    }
    logits_of(deep, logits);
}

static bool is_listed(const struct sampling_params *p, uint32_t token)
{
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        if (p->stop_ids[i] == token)
            return true;
    return false;
}

uint32_t fake_reference(const struct message_submit *m, uint32_t max_context,
                        uint32_t output[FAKE_MAX_OUTPUT], float logprobs[FAKE_MAX_OUTPUT],
                        enum finish_reason *finish)
{
    uint32_t n = m->n_prompt + m->n_emitted, n_new = 0;
    uint32_t *tokens = calloc(max_context, sizeof *tokens);
    memcpy(tokens, m->tokens, n * sizeof *tokens);
    struct sampler *s;
    cr_assert_eq(sampler_new(FAKE_VOCAB, &s, NULL), OK);
    for (*finish = FINISH_NONE; *finish == FINISH_NONE; n_new++) {
        float logits[FAKE_VOCAB];
        struct top_logprob top[MESSAGE_MAX_TOP_LOGPROBS];
        struct emitted_token t = {.top = top};
        reference_logits(tokens, n, logits);
        sampler_choose(s, logits, &m->sampling, m->n_emitted + n_new, n, &t);
        output[n_new] = tokens[n++] = t.token;
        logprobs[n_new] = t.logprob;
        if (!m->sampling.ignore_eos && is_listed(&m->sampling, t.token))
            *finish = FINISH_STOP;
        else if (m->n_emitted + n_new + 1 == m->sampling.max_tokens || n == max_context)
            *finish = FINISH_LENGTH;
    }
    sampler_free(s);
    free(tokens);
    return n_new;
}

void fake_client_check(const struct fake_node *n, const struct fake_client *c)
{
    uint32_t output[FAKE_MAX_OUTPUT];
    float logprobs[FAKE_MAX_OUTPUT];
    enum finish_reason finish;
    uint32_t n_output = fake_reference(&c->submit, n->cfg.max_context, output, logprobs, &finish);
    if (c->is_failed) { /* it outgrew the pool: all before that must be right */
        cr_assert_eq(c->failed.code, ERR_LIMIT, "%s", c->failed.text);
        cr_assert_eq(c->submit.n_prompt + c->submit.n_emitted + c->n_output,
                     n->cfg.n_blocks * FAKE_BLOCK + 1);
        cr_assert_lt(c->n_output, n_output);
        n_output = c->n_output;
    } else if (c->is_cancelled) {
        n_output = c->n_output < n_output ? c->n_output : n_output;
    } else {
        cr_assert_eq(c->finish, finish, "finish %d, reference %d", c->finish, finish);
    }
    cr_assert_eq(c->n_output, n_output, "%u tokens, reference %u", c->n_output, n_output);
    for (uint32_t i = 0; i < n_output; i++) {
        cr_assert_eq(c->output[i], output[i], "token %u: %u, reference %u", i, c->output[i],
                     output[i]);
        if (c->submit.sampling.n_logprobs >= 0)
            cr_assert_eq(c->logprobs[i], logprobs[i], "logprob %u", i);
    }
}

/* --- the router's side ---------------------------------------------------------------------------
 */

bool fake_client_has_ended(const struct fake_client *c)
{
    return c->finish != FINISH_NONE || c->is_failed || c->is_cancelled;
}

static void hear_entry(struct fake_node *n, const struct sequence_tokens *s)
{
    cr_assert_lt(s->id, n->n_clients);
    struct fake_client *c = &n->clients[s->id];
    cr_assert(!fake_client_has_ended(c), "sequence %u goes on after its end", (unsigned)s->id);
    cr_assert_eq(s->is_admission, c->n_admissions == 0, "the first entry is the admission");
    if (s->is_admission) {
        c->n_cached = s->n_cached;
        cr_assert_lt(s->n_cached, c->submit.n_prompt);
    }
    c->n_admissions += s->is_admission;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        cr_assert_lt(c->n_output, FAKE_MAX_OUTPUT);
        c->logprobs[c->n_output] = s->tokens[i].logprob;
        c->output[c->n_output++] = s->tokens[i].token;
    }
    c->finish = s->finish;
}

static void hear(void *ctx, const struct message *m)
{
    struct fake_node *n = ctx;
    if (m->kind == MESSAGE_TOKENS) {
        for (uint32_t i = 0; i < m->as.tokens.n_sequences; i++)
            hear_entry(n, &m->as.tokens.sequences[i]);
        return;
    }
    cr_assert_eq(m->kind, MESSAGE_FAILED);
    struct fake_client *c = &n->clients[m->as.failed.id];
    cr_assert(!fake_client_has_ended(c));
    c->is_failed = true;
    c->failed = m->as.failed;
}

struct message_submit fake_submit(const uint32_t *tokens, uint32_t n_prompt, uint32_t max_tokens)
{
    struct message_submit m = {
        .n_prompt = n_prompt,
        .tokens = tokens,
        .sampling = {.top_p = 1, .n_logprobs = -1, .max_tokens = max_tokens}};
    struct fingerprint f = {{0}};
    struct block_key root;
    prefix_hash_root(&f, "", "", &root);
    memcpy(m.root, root.bytes, sizeof m.root);
    return m;
}

uint32_t fake_node_submit(struct fake_node *n, uint32_t engine, struct message_submit m)
{
    cr_assert_lt(n->n_clients, n->max_clients);
    uint32_t id = n->n_clients++;
    m.id = id;
    n->clients[id] = (struct fake_client){.submit = m, .engine = engine};
    struct message message = {.kind = MESSAGE_SUBMIT, .as.submit = m};
    engine_handle(n->engines[engine], &message);
    return id;
}

void fake_node_cancel(struct fake_node *n, uint32_t id)
{
    struct message m = {.kind = MESSAGE_CANCEL, .as.cancel.id = id};
    engine_handle(n->engines[n->clients[id].engine], &m);
    if (!fake_client_has_ended(&n->clients[id]))
        n->clients[id].is_cancelled = true;
}

bool fake_node_step(struct fake_node *n)
{
    bool has_stepped = false;
    for (uint32_t i = 0; i < n->cfg.n_engines; i++) {
        struct err_info ei = {0};
        has_stepped |= engine_step(n->engines[i], n->now_us);
        cr_assert_eq(engine_check(n->engines[i], &ei), OK, "%s", ei.text);
        cr_assert_eq(kv_store_check(n->stores[i], &ei), OK, "%s", ei.text);
    }
    n->now_us += has_stepped ? 1000 : 5000;
    return has_stepped;
}

void fake_node_run(struct fake_node *n)
{
    enum { MANY = 200000 };
    for (int i = 0; i < MANY; i++) {
        bool has_work = false;
        for (uint32_t e = 0; e < n->cfg.n_engines; e++)
            has_work |= engine_has_work(n->engines[e]);
        if (!has_work)
            return;
        fake_node_step(n);
    }
    cr_assert_fail("no end after %d steps", MANY);
}

/* --- life ----------------------------------------------------------------------------------------
 */

static void open_engine(struct fake_node *n, uint32_t i)
{
    struct err_info ei = {0};
    struct backend *b = n->backends[i] = calloc(1, sizeof *b);
    b->node = n;
    b->pool = kv_store_data(n->stores[i]);
    b->logits = calloc((size_t)n->cfg.max_sequences * FAKE_VOCAB, sizeof *b->logits);
    cr_assert_eq(kv_store_lease_open(n->stores[i], process_self(), i, &ei), OK, "%s", ei.text);
    struct engine_config cfg = {.backend = b,
                                .forward = fake_forward,
                                .send = hear,
                                .ctx = n,
                                .scheduler = {.store = n->stores[i],
                                              .tag = i,
                                              .max_batch_tokens = n->cfg.max_batch_tokens,
                                              .max_sequences = n->cfg.max_sequences,
                                              .max_context = n->cfg.max_context,
                                              .vocab_size = FAKE_VOCAB}};
    cr_assert_eq(engine_new(&cfg, &n->engines[i], &ei), OK, "%s", ei.text);
}

void fake_node_open(struct fake_node *n, const struct fake_config *cfg, uint32_t max_clients)
{
    struct err_info ei = {0};
    *n = (struct fake_node){.cfg = *cfg, .max_clients = max_clients, .now_us = 1000000};
    n->clients = calloc(max_clients, sizeof *n->clients);
    snprintf(n->store_name, sizeof n->store_name, "kvnode-test-worker-%d", (int)getpid());
    kv_store_remove(n->store_name);
    struct kv_store_config store = {.name = n->store_name,
                                    .block_size = FAKE_BLOCK,
                                    .block_bytes = FAKE_BLOCK * sizeof(struct fake_kv),
                                    .n_blocks = cfg->n_blocks,
                                    .max_leases = 8};
    cr_assert_eq(kv_store_create(&store, &n->stores[0], &ei), OK, "%s", ei.text);
    for (uint32_t i = 1; i < cfg->n_engines; i++)
        cr_assert_eq(kv_store_attach(n->store_name, &store.fingerprint, &n->stores[i], &ei), OK,
                     "%s", ei.text);
    kv_store_remove(n->store_name); /* the mappings stay: a failing test leaves nothing behind */
    for (uint32_t i = 0; i < cfg->n_engines; i++)
        open_engine(n, i);
}

void fake_node_close(struct fake_node *n)
{
    struct err_info ei = {0};
    struct kv_store_stats st;
    for (uint32_t i = 0; i < n->cfg.n_engines; i++)
        engine_free(n->engines[i]);
    kv_store_get_stats(n->stores[0], &st);
    cr_assert_eq(st.n_pinned, 0);
    cr_assert_eq(st.n_filling, 0);
    cr_assert_eq(kv_store_check(n->stores[0], &ei), OK, "%s", ei.text);
    for (uint32_t i = 0; i < n->cfg.n_engines; i++) {
        kv_store_lease_close(n->stores[i]);
        kv_store_detach(n->stores[i]);
        free(n->backends[i]->logits);
        free(n->backends[i]);
    }
    free(n->clients);
}
