#pragma once
#include "prefixcache/kv_layout.h"

/* Everything that is derived, from what is true (kv_layout.h): for a store whose lock holder died.
 * Rows that cannot be (a lost parent, an owner without lease) become free. Idempotent at every
 * instruction; allocates nothing; O(n_blocks * leases in use). Under the store's lock. */
void kv_recover_rebuild(struct kv_view *v);
