/* What does a legal message look like, at its edges too? Values lean to the ends of their ranges,
 * where encodings change their width. */
#include "support_message.h"

#include <math.h>
#include <string.h>

struct random_source random_source_new(uint64_t seed)
{
    return (struct random_source){.state = seed | 1};
}

/* Vigna 2016: xorshift64*. */
uint64_t random_next(struct random_source *r)
{
    r->state ^= r->state >> 12;
    r->state ^= r->state << 25;
    r->state ^= r->state >> 27;
    return r->state * 0x2545f4914f6cdd1dull;
}

uint32_t random_below(struct random_source *r, uint32_t n)
{
    return (uint32_t)(random_next(r) >> 32) % n;
}

/* Of any magnitude: few bits as often as many. */
static uint64_t any_u64(struct random_source *r)
{
    return random_next(r) >> random_below(r, 64);
}

static uint32_t any_u32(struct random_source *r)
{
    return (uint32_t)(random_next(r) >> 32) >> random_below(r, 32);
}

static float any_logprob(struct random_source *r)
{
    return random_below(r, 10) == 0 ? -INFINITY : -(float)random_below(r, 4000) / 97.0f;
}

static void any_text(struct random_source *r, char *out, size_t out_bytes)
{
    size_t n = random_below(r, (uint32_t)out_bytes);
    for (size_t i = 0; i < n; i++)
        out[i] = (char)(1 + random_below(r, 255));
}

static void any_bytes(struct random_source *r, uint8_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint8_t)random_next(r);
}

static void fill_submit(struct random_source *r, struct message_submit *s, struct arena *a)
{
    s->id = any_u64(r);
    s->n_prompt = 1 + random_below(r, random_below(r, 8) == 0 ? 20000 : 300);
    s->n_emitted = random_below(r, 50);
    uint32_t n = s->n_prompt + s->n_emitted, *tokens = arena_alloc_array(a, n, sizeof *tokens);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = any_u32(r);
    s->tokens = tokens;
    any_bytes(r, s->root, sizeof s->root);
    s->priority = (int32_t)any_u32(r) * (random_below(r, 2) ? 1 : -1);
    s->is_counted = random_below(r, 2);
    struct sampling_params *p = &s->sampling;
    p->temperature = (float)random_below(r, 300) / 100.0f;
    p->top_p = (float)(1 + random_below(r, 100)) / 100.0f;
    p->top_k = any_u32(r);
    p->min_p = (float)random_below(r, 101) / 100.0f;
    p->seed = any_u64(r);
    p->choice = any_u32(r);
    p->n_logprobs = (int32_t)random_below(r, MESSAGE_MAX_TOP_LOGPROBS + 2) - 1;
    p->max_tokens = any_u32(r) | 1;
    p->min_tokens = any_u32(r);
    p->ignore_eos = random_below(r, 2);
    p->n_stop_ids = random_below(r, MESSAGE_MAX_STOP_IDS + 1);
    for (uint32_t i = 0; i < p->n_stop_ids; i++)
        p->stop_ids[i] = any_u32(r);
}

static void fill_sequence(struct random_source *r, struct sequence_tokens *s, struct arena *a)
{
    bool has_top = random_below(r, 2);
    s->id = any_u64(r);
    s->is_admission = random_below(r, 2);
    s->n_cached = s->is_admission ? random_below(r, 100000) : 0;
    s->finish = (enum finish_reason)random_below(r, FINISH_LENGTH + 1);
    s->n_tokens = random_below(r, 5);
    s->tokens = arena_alloc_array(a, s->n_tokens, sizeof s->tokens[0]);
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        struct emitted_token *e = &s->tokens[i];
        e->token = any_u32(r);
        e->logprob = any_logprob(r);
        e->n_top = has_top ? random_below(r, MESSAGE_MAX_TOP_LOGPROBS + 1) : 0;
        e->top = arena_alloc_array(a, e->n_top, sizeof e->top[0]);
        for (uint32_t k = 0; k < e->n_top; k++)
            e->top[k] = (struct top_logprob){.token = any_u32(r), .logprob = any_logprob(r)};
    }
}

static void fill_hello(struct random_source *r, struct message_hello *h)
{
    h->protocol = any_u32(r);
    h->worker = any_u32(r);
    h->rank = any_u32(r);
    h->pid = 1 + (int32_t)(any_u32(r) >> 2);
    h->pid_start = any_u64(r);
    any_bytes(r, h->fingerprint.bytes, sizeof h->fingerprint.bytes);
    h->lease = any_u32(r);
    h->n_threads = any_u32(r);
    any_text(r, h->isa, sizeof h->isa);
}

struct message random_message(struct random_source *r, enum message_kind kind, struct arena *a)
{
    struct message m;
    memset(&m, 0, sizeof m);
    m.kind = kind;
    if (kind == MESSAGE_HELLO)
        fill_hello(r, &m.as.hello);
    if (kind == MESSAGE_WELCOME) {
        m.as.welcome.protocol = any_u32(r);
        m.as.welcome.router_pid = 1 + (int32_t)(any_u32(r) >> 2);
        m.as.welcome.router_start = any_u64(r);
    }
    if (kind == MESSAGE_SUBMIT)
        fill_submit(r, &m.as.submit, a);
    if (kind == MESSAGE_CANCEL)
        m.as.cancel.id = any_u64(r);
    if (kind == MESSAGE_TOKENS) {
        struct message_tokens *t = &m.as.tokens;
        t->step = any_u64(r);
        t->n_sequences = random_below(r, 40);
        t->sequences = arena_alloc_array(a, t->n_sequences, sizeof t->sequences[0]);
        for (uint32_t i = 0; i < t->n_sequences; i++)
            fill_sequence(r, &t->sequences[i], a);
    }
    if (kind == MESSAGE_FAILED) {
        m.as.failed.id = any_u64(r);
        m.as.failed.code = (enum err)(ERR_PARSE + random_below(r, ERR_DEVICE));
        any_text(r, m.as.failed.text, sizeof m.as.failed.text);
    }
    if (kind == MESSAGE_STATS) {
        m.as.stats.n_running = any_u32(r);
        m.as.stats.n_waiting = any_u32(r);
        m.as.stats.n_steps = any_u64(r);
        m.as.stats.n_prefill_tokens = any_u64(r);
        m.as.stats.n_decode_tokens = any_u64(r);
        m.as.stats.n_preemptions = any_u64(r);
        m.as.stats.n_cancelled = any_u64(r);
        m.as.stats.is_draining = random_below(r, 2);
    }
    return m;
}

static const char *submit_difference(const struct message_submit *a, const struct message_submit *b)
{
    struct message_submit x = *a, y = *b;
    if (x.n_prompt != y.n_prompt || x.n_emitted != y.n_emitted)
        return "n_prompt, n_emitted";
    if (memcmp(x.tokens, y.tokens, ((size_t)x.n_prompt + x.n_emitted) * sizeof x.tokens[0]) != 0)
        return "tokens";
    if (memcmp(&x.sampling, &y.sampling, sizeof x.sampling) != 0)
        return "sampling";
    x.tokens = y.tokens = NULL;
    return memcmp(&x, &y, sizeof x) == 0 ? NULL : "id, root or priority";
}

static const char *emitted_difference(const struct emitted_token *a, const struct emitted_token *b)
{
    if (a->token != b->token)
        return "token";
    if (memcmp(&a->logprob, &b->logprob, sizeof a->logprob) != 0)
        return "logprob";
    if (a->n_top != b->n_top)
        return "n_top";
    return a->n_top == 0 || memcmp(a->top, b->top, a->n_top * sizeof a->top[0]) == 0 ? NULL : "top";
}

static const char *tokens_difference(const struct message_tokens *a, const struct message_tokens *b)
{
    if (a->step != b->step || a->n_sequences != b->n_sequences)
        return "step, n_sequences";
    for (uint32_t i = 0; i < a->n_sequences; i++) {
        const struct sequence_tokens *x = &a->sequences[i], *y = &b->sequences[i];
        if (x->id != y->id || x->is_admission != y->is_admission || x->n_cached != y->n_cached ||
            x->n_tokens != y->n_tokens || x->finish != y->finish)
            return "sequence head";
        for (uint32_t k = 0; k < x->n_tokens; k++) {
            const char *what = emitted_difference(&x->tokens[k], &y->tokens[k]);
            if (what)
                return what;
        }
    }
    return NULL;
}

const char *message_difference(const struct message *a, const struct message *b)
{
    if (a->kind != b->kind)
        return "kind";
    if (a->kind == MESSAGE_SUBMIT)
        return submit_difference(&a->as.submit, &b->as.submit);
    if (a->kind == MESSAGE_TOKENS)
        return tokens_difference(&a->as.tokens, &b->as.tokens);
    /* no pointers inside, and both were zeroed before they were filled */
    return memcmp(&a->as, &b->as, sizeof a->as) == 0 ? NULL : "a plain field";
}
