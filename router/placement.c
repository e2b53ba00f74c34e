/* Where does a request run? Where it costs the least seconds, its own and those it takes from
 * others. Keeps to one rule: the answer follows from the arguments alone. Knows no sockets and no
 * processes. */
#include "router/placement.h"

static struct placement_decision cost_of(const struct placement_worker *w, uint32_t index,
                                         const struct placement_rates *rates,
                                         const struct placement_request *req)
{
    uint32_t n_uncached = req->n_tokens - req->n_cached;
    double prefill_s = n_uncached * rates->prefill_s_per_token;
    return (struct placement_decision){
        .worker = index,
        .wait_s = (double)w->queued_prefill_tokens * rates->prefill_s_per_token +
                  w->n_decoding * rates->decode_s_per_sequence,
        .prefill_s = prefill_s,
        .slowdown_s = rates->slowdown_weight * w->n_decoding * prefill_s,
    };
}

static double total_s(const struct placement_decision *d)
{
    return d->wait_s + d->prefill_s + d->slowdown_s;
}

bool placement_pick(const struct placement_worker *workers, uint32_t n_workers,
                    const struct placement_rates *rates, const struct placement_request *req,
                    struct placement_decision *out)
{
    bool is_found = false;
    for (uint32_t i = 0; i < n_workers; i++) {
        if (!workers[i].is_alive || (req->pinned >= 0 && (uint32_t)req->pinned != i))
            continue;
        struct placement_decision d = cost_of(&workers[i], i, rates, req);
        bool is_better = !is_found || total_s(&d) < total_s(out);
        bool is_tie = is_found && total_s(&d) <= total_s(out) && !is_better;
        if (is_better || (is_tie && workers[i].last_used < workers[out->worker].last_used)) {
            *out = d;
            is_found = true;
        }
    }
    return is_found;
}
