#pragma once
#include "prefixcache/kv_layout.h"

/* Who pins and fills? All but the pulse under the store's lock. */

/* A free slot for this owner, or KV_LEASE_NONE. */
uint32_t kv_lease_open(struct kv_view *v, struct process_id owner, uint32_t tag);
/* Frees its filling rows, drops its pins, then frees the slot. */
void kv_lease_close(struct kv_view *v, uint32_t lease);
bool kv_lease_is_used(const struct kv_view *v, uint32_t lease);
struct process_id kv_lease_owner(const struct kv_view *v, uint32_t lease);

/* Without the lock. One writer a lease. */
void kv_lease_write_pulse(struct kv_view *v, uint32_t lease, const struct worker_pulse *pulse);
/* False when the lease is not in use, or changes too fast to be read. */
bool kv_lease_read_pulse(const struct kv_view *v, uint32_t lease, struct worker_pulse *out);
