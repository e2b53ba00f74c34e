/* Where is each request, and who must hear of it? A table of sequences in flight, by id: written at
 * submit, read at every message, emptied at the end. Invariant: a sequence is here exactly as long
 * as its sink may still be called. Knows no HTTP and no text. */
#include "router/dispatch.h"

#include "config/base/log.h"
#include "ipc/channel.h"
#include "prefixcache/kv_store.h"
#include "router/fleet.h"
#include "router/metrics.h"
#include "router/placement.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_BUCKETS = 4096 };

/* Until rates are calibrated (online, per worker): only their ratios matter for placement. */
static const struct placement_rates RATES = {
    .prefill_s_per_token = 1e-3,
    .decode_s_per_sequence = 2e-3,
    .slowdown_weight = 0.1,
};

struct flight {
    struct flight *next; /* in its bucket */
    uint64_t id;
    uint32_t worker;
    uint32_t n_tokens;
    uint32_t n_uncached; /* expected prefill; 0 once its first token is here */
    uint32_t n_emitted;
    int32_t priority, pinned;
    bool is_admitted, is_retried;
    bool is_counted; /* a worker that died has admitted it */
    struct sampling_params sampling;
    struct block_key root;
    struct dispatch_sink sink;
    uint32_t tokens[];
};

struct dispatch {
    struct dispatch_config cfg;
    struct flight *buckets[N_BUCKETS];
    uint64_t last_id, n_placed;
    uint32_t n_in_flight, n_waiting;
    struct per_worker {
        uint32_t n_in_flight, n_waiting, n_decoding;
        uint64_t queued_prefill_tokens;
        uint64_t last_used;
    } * workers;
    uint32_t n_workers;
    struct placement_worker *candidates; /* [n_workers], scratch */
};

enum err dispatch_new(const struct dispatch_config *cfg, struct dispatch **out)
{
    struct dispatch *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_NOMEM;
    d->cfg = *cfg;
    d->last_id = cfg->id_base;
    d->n_workers = fleet_n_workers(cfg->fleet);
    d->workers = calloc(d->n_workers, sizeof *d->workers);
    d->candidates = calloc(d->n_workers, sizeof *d->candidates);
    if (!d->workers || !d->candidates) {
        dispatch_free(d);
        return ERR_NOMEM;
    }
    *out = d;
    return OK;
}

void dispatch_free(struct dispatch *d)
{
    if (!d)
        return;
    for (int i = 0; i < N_BUCKETS; i++) {
        while (d->buckets[i]) {
            struct flight *f = d->buckets[i];
            d->buckets[i] = f->next;
            free(f);
        }
    }
    free(d->workers);
    free(d->candidates);
    free(d);
}

/* --- the table
 * ------------------------------------------------------------------------------------ */

static struct flight **find(struct dispatch *d, uint64_t id)
{
    struct flight **p = &d->buckets[id % N_BUCKETS];
    while (*p && (*p)->id != id)
        p = &(*p)->next;
    return p;
}

/* Counts f on its worker (sign 1) or takes it off (sign -1). */
static void count(struct dispatch *d, const struct flight *f, int sign)
{
    struct per_worker *w = &d->workers[f->worker];
    uint32_t one = (uint32_t)sign; /* wraps: adding 2^32-1 takes one off */
    d->n_in_flight += one;
    w->n_in_flight += one;
    if (!f->is_admitted) {
        d->n_waiting += one;
        w->n_waiting += one;
    }
    if (f->n_emitted > 0)
        w->n_decoding += one;
    else
        w->queued_prefill_tokens += (uint64_t)((int64_t)f->n_uncached * sign);
}

static void drop(struct dispatch *d, struct flight **p)
{
    struct flight *f = *p;
    *p = f->next;
    count(d, f, -1);
    free(f);
}

struct dispatch_load dispatch_load(const struct dispatch *d, uint32_t worker)
{
    if (worker == UINT32_MAX)
        return (struct dispatch_load){d->n_in_flight, d->n_waiting};
    assert(worker < d->n_workers);
    return (struct dispatch_load){d->workers[worker].n_in_flight, d->workers[worker].n_waiting};
}

/* --- out
 * ------------------------------------------------------------------------------------------ */

/* Tokens of f's prompt that the node store holds; at least one token is always computed. */
static enum err count_cached(struct dispatch *d, const struct flight *f, uint32_t *n_cached)
{
    uint32_t block_size = kv_store_block_size(d->cfg.store);
    uint32_t n_keys = (f->n_tokens - 1) / block_size;
    *n_cached = 0;
    if (n_keys == 0)
        return OK;
    struct block_key *keys = malloc(n_keys * sizeof *keys);
    if (!keys)
        return ERR_NOMEM;
    prefix_hash_chain(&f->root, f->tokens, (size_t)n_keys * block_size, block_size, keys);
    *n_cached = kv_store_match(d->cfg.store, keys, f->tokens, n_keys) * block_size;
    free(keys);
    return OK;
}

static enum err place(struct dispatch *d, struct flight *f, struct err_info *ei)
{
    uint32_t n_cached;
    if (count_cached(d, f, &n_cached) != OK)
        return err_set(ei, ERR_NOMEM, "dispatch: no memory for the keys of %u tokens", f->n_tokens);
    for (uint32_t i = 0; i < d->n_workers; i++)
        d->candidates[i] = (struct placement_worker){
            .is_alive = fleet_worker_at(d->cfg.fleet, i)->state == FLEET_READY,
            .queued_prefill_tokens = d->workers[i].queued_prefill_tokens,
            .n_decoding = d->workers[i].n_decoding,
            .last_used = d->workers[i].last_used,
        };
    struct placement_request req = {f->n_tokens, n_cached, f->pinned};
    struct placement_decision decision;
    if (!placement_pick(d->candidates, d->n_workers, &RATES, &req, &decision))
        return f->pinned >= 0 ? err_set(ei, ERR_GONE, "worker %d is not running now", f->pinned)
                              : err_set(ei, ERR_GONE, "no worker is running now");
    f->worker = decision.worker;
    f->n_uncached = f->n_tokens - n_cached;
    return OK;
}

static enum err send_submit(struct dispatch *d, const struct flight *f, struct err_info *ei)
{
    struct message m = {
        .kind = MESSAGE_SUBMIT,
        .as.submit = {.id = f->id,
                      .n_prompt = f->n_tokens,
                      .n_emitted = 0,
                      .tokens = f->tokens,
                      .priority = f->priority,
                      .is_counted = f->is_counted,
                      .sampling = f->sampling},
    };
    memcpy(m.as.submit.root, f->root.bytes, sizeof m.as.submit.root);
    struct channel_peer to = {f->worker, fleet_worker_at(d->cfg.fleet, f->worker)->process.pid};
    return channel_send(d->cfg.channel, &to, &m, ei);
}

/* Places and sends f, and counts it in. Nothing has changed on error. */
static enum err launch(struct dispatch *d, struct flight *f, struct err_info *ei)
{
    enum err rc = place(d, f, ei);
    if (rc == OK)
        rc = send_submit(d, f, ei);
    if (rc != OK)
        return rc;
    d->workers[f->worker].last_used = ++d->n_placed;
    count(d, f, 1);
    return OK;
}

enum err dispatch_submit(struct dispatch *d, const struct dispatch_request *req,
                         const struct dispatch_sink *sink, uint64_t *id, struct err_info *ei)
{
    assert(req->n_tokens >= 1);
    if (req->pinned_worker >= (int64_t)d->n_workers)
        return err_set(ei, ERR_LIMIT, "worker %d does not exist: this node has workers 0 to %u",
                       req->pinned_worker, d->n_workers - 1);
    if (d->n_waiting >= d->cfg.max_waiting)
        return err_set(ei, ERR_BUSY, "%u requests are waiting already (scheduler.max_waiting)",
                       d->n_waiting);
    struct flight *f = malloc(sizeof *f + (size_t)req->n_tokens * sizeof *f->tokens);
    if (!f)
        return err_set(ei, ERR_NOMEM, "dispatch: no memory for %u tokens", req->n_tokens);
    *f = (struct flight){
        .id = ++d->last_id,
        .n_tokens = req->n_tokens,
        .priority = req->priority,
        .pinned = req->pinned_worker,
        .sampling = req->sampling,
        .sink = *sink,
    };
    memcpy(f->tokens, req->tokens, (size_t)req->n_tokens * sizeof *f->tokens);
    prefix_hash_root(&d->cfg.fingerprint, req->tenant, req->salt, &f->root);
    enum err rc = launch(d, f, ei);
    if (rc != OK) {
        free(f);
        return rc;
    }
    f->next = d->buckets[f->id % N_BUCKETS];
    d->buckets[f->id % N_BUCKETS] = f;
    *id = f->id;
    return OK;
}

void dispatch_cancel(struct dispatch *d, uint64_t id)
{
    struct flight **p = find(d, id);
    if (!*p)
        return;
    uint32_t worker = (*p)->worker;
    struct message m = {.kind = MESSAGE_CANCEL, .as.cancel = {.id = id}};
    struct channel_peer to = {worker, fleet_worker_at(d->cfg.fleet, worker)->process.pid};
    struct err_info ei = {0};
    if (channel_send(d->cfg.channel, &to, &m, &ei) != OK)
        log_debug("dispatch: cancel of %llu: %s", (unsigned long long)id, ei.text);
    drop(d, p);
}

/* --- in
 * ------------------------------------------------------------------------------------------- */

static void on_sequence(struct dispatch *d, uint32_t worker, const struct sequence_tokens *s)
{
    struct flight **p = find(d, s->id);
    struct flight *f = *p;
    if (!f || f->worker != worker)
        return; /* cancelled meanwhile */
    count(d, f, -1);
    f->is_admitted = f->is_admitted || s->is_admission || s->n_tokens > 0;
    f->n_emitted += s->n_tokens;
    count(d, f, 1);
    struct dispatch_sink sink = f->sink;
    if (s->finish != FINISH_NONE)
        drop(d, p); /* before the call: the sink may submit or cancel */
    sink.on_tokens(sink.ctx, s);
}

void dispatch_on_tokens(struct dispatch *d, uint32_t worker, const struct message_tokens *m)
{
    for (uint32_t i = 0; i < m->n_sequences; i++)
        on_sequence(d, worker, &m->sequences[i]);
}

void dispatch_on_failed(struct dispatch *d, uint32_t worker, const struct message_failed *m)
{
    struct flight **p = find(d, m->id);
    if (!*p || (*p)->worker != worker)
        return;
    struct dispatch_sink sink = (*p)->sink;
    drop(d, p);
    sink.on_failed(sink.ctx, DISPATCH_REJECTED, m->code, m->text);
}

/* f (counted out, off the table) lost its worker: sends it to another one, or says why not. */
static bool retry(struct dispatch *d, struct flight *f, enum dispatch_failure *why,
                  struct err_info *ei)
{
    const struct dispatch_sink *sink = &f->sink;
    if (f->is_retried || (f->n_emitted > 0 && !(sink->on_restart && sink->on_restart(sink->ctx)))) {
        *why = DISPATCH_WORKER_LOST;
        err_set(ei, ERR_GONE, "the worker process serving this request died");
        return false;
    }
    f->is_retried = true;
    f->is_counted = f->is_counted || f->is_admitted;
    f->is_admitted = false;
    f->n_emitted = 0; /* the seed is the request's: the same tokens come again */
    if (launch(d, f, ei) != OK) {
        *why = DISPATCH_UNAVAILABLE;
        return false;
    }
    metrics_retried(d->cfg.metrics);
    return true;
}

/* Takes id off its dead worker: to another one, or to its sink as a failure. */
static void rescue(struct dispatch *d, uint64_t id)
{
    struct flight **p = find(d, id);
    struct flight *f = *p;
    *p = f->next;
    count(d, f, -1);
    enum dispatch_failure why = DISPATCH_WORKER_LOST;
    struct err_info ei = {0};
    if (retry(d, f, &why, &ei)) {
        f->next = d->buckets[id % N_BUCKETS];
        d->buckets[id % N_BUCKETS] = f;
        return;
    }
    struct dispatch_sink sink = f->sink;
    free(f);
    sink.on_failed(sink.ctx, why, ERR_GONE, ei.text);
}

static struct flight *first_of(struct flight *f, uint32_t worker)
{
    while (f && f->worker != worker)
        f = f->next;
    return f;
}

/* Allocates nothing: no request may be forgotten. Each pass takes one flight off the worker, and
 * none comes back, for it is not ready any more. */
void dispatch_worker_lost(struct dispatch *d, uint32_t worker)
{
    for (int i = 0; i < N_BUCKETS; i++) {
        struct flight *f;
        while ((f = first_of(d->buckets[i], worker)) != NULL)
            rescue(d, f->id);
    }
    assert(d->workers[worker].n_in_flight == 0);
}
