/* How are tokens made? One step is: the scheduler's plan, the backend's logits, the sampler's
 * tokens, one message. Keeps: each sequence that was submitted ends in one TOKENS entry with a
 * finish or in one FAILED, unless it was cancelled; its blocks are free before the router hears of
 * its end. Allocates nothing in a step. Knows no socket, no clock, no device. */
#include "worker/engine.h"

#include "config/base/log.h"
#include "worker/sampler.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

struct engine {
    struct engine_config cfg;
    struct scheduler *scheduler;
    struct sampler *sampler;
    uint64_t n_steps;
    bool is_draining;

    /* of one TOKENS message; a sequence emits at most one token a step */
    struct sequence_tokens *entries; /* [max_sequences] */
    struct emitted_token *tokens;    /* [max_sequences] */
    struct top_logprob *tops;        /* [max_sequences][MESSAGE_MAX_TOP_LOGPROBS] */
};

enum err engine_new(const struct engine_config *cfg, struct engine **out, struct err_info *ei)
{
    size_t n = cfg->scheduler.max_sequences;
    struct engine *e = calloc(1, sizeof *e);
    if (!e)
        return err_set(ei, ERR_NOMEM, "engine: no memory");
    e->cfg = *cfg;
    e->entries = calloc(n, sizeof *e->entries);
    e->tokens = calloc(n, sizeof *e->tokens);
    e->tops = calloc(n * MESSAGE_MAX_TOP_LOGPROBS, sizeof *e->tops);
    enum err rc = OK;
    if (!e->entries || !e->tokens || !e->tops)
        rc = err_set(ei, ERR_NOMEM, "engine: no memory for %zu sequences", n);
    if (!rc)
        rc = scheduler_new(&cfg->scheduler, &e->scheduler, ei);
    if (!rc)
        rc = sampler_new(cfg->scheduler.vocab_size, &e->sampler, ei);
    if (rc) {
        engine_free(e);
        return rc;
    }
    *out = e;
    return OK;
}

void engine_free(struct engine *e)
{
    if (!e)
        return;
    scheduler_free(e->scheduler);
    sampler_free(e->sampler);
    free(e->entries);
    free(e->tokens);
    free(e->tops);
    free(e);
}

/* --- messages ------------------------------------------------------------------------------------
 */

static void send_failed(struct engine *e, uint64_t id, enum err code, const char *text)
{
    struct message m = {.kind = MESSAGE_FAILED, .as.failed = {.id = id, .code = code}};
    snprintf(m.as.failed.text, sizeof m.as.failed.text, "%.255s", text);
    e->cfg.send(e->cfg.ctx, &m);
}

static void submit(struct engine *e, const struct message_submit *m)
{
    struct err_info ei = {0};
    if (scheduler_has(e->scheduler, m->id)) { /* a FAILED would end the one that is here */
        log_warn("SUBMIT of sequence %llu, which is here already: dropped",
                 (unsigned long long)m->id);
        return;
    }
    enum err rc = e->is_draining ? err_set(&ei, ERR_BUSY, "worker: draining")
                                 : scheduler_submit(e->scheduler, m, &ei);
    if (rc)
        send_failed(e, m->id, rc, ei.text);
}

void engine_handle(struct engine *e, const struct message *m)
{
    switch (m->kind) {
    case MESSAGE_SUBMIT:
        submit(e, &m->as.submit);
        return;
    case MESSAGE_CANCEL: /* unknown: it ended while the message was on its way */
        (void)scheduler_cancel(e->scheduler, m->as.cancel.id);
        return;
    case MESSAGE_DRAIN:
        e->is_draining = true;
        return;
    case MESSAGE_HELLO:
    case MESSAGE_WELCOME:
    case MESSAGE_TOKENS:
    case MESSAGE_FAILED:
    case MESSAGE_STATS:
    case MESSAGE_STOP:
        log_warn("engine: a %s means nothing here: dropped", message_kind_name(m->kind));
        return;
    }
}

void engine_abandon(struct engine *e)
{
    scheduler_cancel_all(e->scheduler);
    e->is_draining = false;
}

/* --- the step ------------------------------------------------------------------------------------
 */

/* The backend could not compute: its sequences end, the worker goes on. */
static void fail_step(struct engine *e, const struct step *step, enum err code, const char *text)
{
    log_error("step %llu failed: %s", (unsigned long long)e->n_steps, text);
    for (uint32_t i = 0; i < step->batch.n_sequences; i++) {
        uint64_t id = step->sequences[i]->id;
        scheduler_finish(e->scheduler, step->sequences[i]);
        send_failed(e, id, code, text);
    }
}

/* Samples q's next token from its logits into the entry. */
static void sample(struct engine *e, struct sequence *q, const float *logits,
                   struct emitted_token *token, struct sequence_tokens *entry)
{
    sampler_choose(e->sampler, logits, &q->sampling, q->n_output, q->n_tokens, token);
    entry->n_tokens = 1;
    entry->tokens = token;
    entry->finish = sequence_append(q, token->token);
}

/* One entry for each sequence that has something to say: its admission, a token, its end. */
static uint32_t collect(struct engine *e, const struct step *step, const float *logits)
{
    uint32_t n = 0, row = 0;
    for (uint32_t i = 0; i < step->batch.n_sequences; i++) {
        struct sequence *q = step->sequences[i];
        bool is_sampled = row < step->batch.n_logit_rows && step->samples[row] == q;
        if (!is_sampled && q->is_announced)
            continue;
        struct sequence_tokens *entry = &e->entries[n];
        *entry = (struct sequence_tokens){
            .id = q->id, .is_admission = !q->is_announced, .n_cached = q->n_cached};
        q->is_announced = true;
        if (is_sampled) {
            e->tokens[n] =
                (struct emitted_token){.top = e->tops + (size_t)n * MESSAGE_MAX_TOP_LOGPROBS};
            sample(e, q, logits + (size_t)row * e->cfg.scheduler.vocab_size, &e->tokens[n], entry);
            row++;
        }
        n++;
        if (entry->finish != FINISH_NONE)
            scheduler_finish(e->scheduler, q);
    }
    assert(row == step->batch.n_logit_rows);
    return n;
}

void engine_limit_step(struct engine *e, uint32_t n_tokens)
{
    scheduler_limit_step(e->scheduler, n_tokens);
}

bool engine_step(struct engine *e, uint64_t now_us)
{
    struct message_failed failed;
    const struct step *step = scheduler_plan(e->scheduler, now_us);
    while (scheduler_take_failed(e->scheduler, &failed))
        send_failed(e, failed.id, failed.code, failed.text);
    if (step->batch.n_tokens == 0)
        return false;
    kv_store_pulse(e->cfg.scheduler.store, PHASE_STEP, ++e->n_steps, now_us);
    const float *logits = NULL;
    struct err_info ei = {0};
    enum err rc = e->cfg.forward(e->cfg.backend, &step->batch, &logits, &ei);
    if (rc) {
        fail_step(e, step, rc, ei.text);
        return true;
    }
    scheduler_advance(e->scheduler, step);
    uint32_t n = collect(e, step, logits);
    if (n > 0) {
        struct message m = {
            .kind = MESSAGE_TOKENS,
            .as.tokens = {.step = e->n_steps, .n_sequences = n, .sequences = e->entries}};
        e->cfg.send(e->cfg.ctx, &m);
    }
    return true;
}

/* --- looking on ----------------------------------------------------------------------------------
 */

bool engine_has_work(const struct engine *e)
{
    return scheduler_has_work(e->scheduler);
}

uint64_t engine_n_steps(const struct engine *e)
{
    return e->n_steps;
}

void engine_get_stats(const struct engine *e, struct message_stats *out)
{
    struct scheduler_stats s;
    scheduler_get_stats(e->scheduler, &s);
    *out = (struct message_stats){.n_running = s.n_running,
                                  .n_waiting = s.n_waiting,
                                  .n_steps = e->n_steps,
                                  .n_prefill_tokens = s.n_prefill_tokens,
                                  .n_decode_tokens = s.n_decode_tokens,
                                  .n_preemptions = s.n_preemptions,
                                  .n_cancelled = s.n_cancelled,
                                  .is_draining = e->is_draining};
}

enum err engine_check(const struct engine *e, struct err_info *ei)
{
    return scheduler_check(e->scheduler, ei);
}
