#pragma once
#include "config/base/bytes.h"

#include <jansson.h>

/* Appends what a person wants to read of a status answer: node, one row a worker, KV store, prompt
 * tokens, requests. A field that is missing or of another type shows as "-", a section that is
 * missing is left out: a kvctl of another version stays useful. Control characters never reach the
 * terminal. Out of memory: out->failed. */
void kvctl_status_render(const json_t *answer, struct bytes *out);
