#pragma once
#include "config/base/err.h"

#include <stddef.h>

/* Checks that data holds exactly one whole msgpack object whose every count and length fits the
 * bytes that follow it, nested at most MESSAGE_DEPTH_MAX deep. What passes holds at most size_bytes
 * objects, so unpacking it allocates in proportion to it. Reads only; allocates nothing. Errors:
 * PARSE, LIMIT, each with the offset. Any thread. Source: the msgpack specification. */
enum { MESSAGE_DEPTH_MAX = 16 };

NODISCARD enum err message_scan(const void *data, size_t size_bytes, struct err_info *ei);
