#pragma once
#include "config/base/err.h"
#include "ipc/message.h"
#include "prefixcache/prefix_hash.h"

#include <stdbool.h>
#include <stdint.h>

/* Requests in flight: from the API's validated request to a worker and back. Picks the worker
 * (placement), sends SUBMIT, hands TOKENS to the request's sink, sends CANCEL, and when a worker
 * dies retries once what has sent nothing to its client and fails the rest. One owner thread: the
 * router's event loop. */

struct dispatch;

enum dispatch_failure {
    DISPATCH_WORKER_LOST, /* its worker died after tokens were sent: 500-kind error object in the
                             stream */
    DISPATCH_UNAVAILABLE, /* no worker lives, or draining: 503 + Retry-After */
    DISPATCH_OVERLOADED,  /* waiting queue full: 429 + Retry-After */
    DISPATCH_REJECTED,    /* the worker refused it: 400/500 by err */
};

/* What a request hears. All calls come from the event loop, never from within dispatch_submit.
 * After a finish or on_failed nothing comes any more and the id is dead. */
struct dispatch_sink {
    /* s is valid during the call; s->is_admission may come with no tokens. */
    void (*on_tokens)(void *ctx, const struct sequence_tokens *s);
    void (*on_failed)(void *ctx, enum dispatch_failure why, enum err code, const char *text);
    /* Its worker died after tokens were handed over. True: none of them has left for the client,
     * all are forgotten, the request may run once more from its start. NULL: never. */
    bool (*on_restart)(void *ctx);
    void *ctx;
};

struct dispatch_request {
    const uint32_t *tokens; /* [n_tokens] prompt; copied */
    uint32_t n_tokens;
    struct sampling_params sampling; /* copied */
    const char *tenant, *salt;       /* "" = default, none */
    int32_t priority;
    int32_t pinned_worker; /* x-data-parallel-rank; -1 = free choice */
};

/* Errors: GONE (no worker lives, or the pinned one does not: 503), BUSY (too many waiting: 429),
 * LIMIT (pinned worker out of range: 400), NOMEM. On success *id names it until its end. */
NODISCARD enum err dispatch_submit(struct dispatch *d, const struct dispatch_request *req,
                                   const struct dispatch_sink *sink, uint64_t *id,
                                   struct err_info *ei);
/* The client went away, or a stop string was hit: nothing more is heard of id; the worker frees its
 * blocks within one step. Unknown ids are ignored. */
void dispatch_cancel(struct dispatch *d, uint64_t id);

/* --- for the router core -------------------------------------------------------------------------
 */

struct channel;
struct fleet;
struct kv_store;
struct metrics;

struct dispatch_config {
    struct channel *channel; /* SUBMIT and CANCEL leave through it */
    struct fleet *fleet;     /* who lives */
    struct kv_store *store;  /* read only: how much of a prompt is cached */
    struct metrics *metrics;
    struct fingerprint fingerprint;
    uint32_t max_waiting; /* dispatched but not admitted, in the whole node */
    uint64_t id_base;     /* ids count up from here: another one in each life of the router, so that
                             an adopted worker's last words for its predecessor fit no request */
};

NODISCARD enum err dispatch_new(const struct dispatch_config *cfg, struct dispatch **out);
void dispatch_free(struct dispatch *d); /* NULL is legal; sinks hear nothing */

/* From the channel: hands tokens and failures to their sinks. Ids nobody waits for are ignored. */
void dispatch_on_tokens(struct dispatch *d, uint32_t worker, const struct message_tokens *m);
void dispatch_on_failed(struct dispatch *d, uint32_t worker, const struct message_failed *m);
/* Worker process is gone: its requests are retried once where nothing was sent, else they fail. */
void dispatch_worker_lost(struct dispatch *d, uint32_t worker);

struct dispatch_load {
    uint32_t n_in_flight; /* submitted, not ended */
    uint32_t n_waiting;   /* of those, not admitted yet */
};
/* worker UINT32_MAX: of all. */
struct dispatch_load dispatch_load(const struct dispatch *d, uint32_t worker);
