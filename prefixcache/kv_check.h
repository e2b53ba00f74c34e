#pragma once
#include "prefixcache/kv_layout.h"

/* Walks all invariants. counts: scratch [n_blocks]. Errors: PARSE with the first violation. Changes
 * nothing, trusts nothing: every id is range-checked before use. Under the store's lock. */
NODISCARD enum err kv_check_walk(const struct kv_view *v, uint32_t *counts, struct err_info *ei);
