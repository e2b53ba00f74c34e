#pragma once
#include "config/base/err.h"

/* Control protocol: a Unix stream socket (0600; the peer's uid must be ours or root's), JSON lines.
 * A request is {"cmd":"status", ...}; an answer is one line, {"ok":true, ...} or
 * {"ok":false,"error":"..."}. So `socat - UNIX:NAME.sock` works too. Commands: status, drain,
 * undrain, shutdown. */

enum { CONTROL_LINE_BYTES = 64 * 1024, CONTROL_ANSWER_BYTES = 4 * 1024 * 1024 };

/* Sends one request line (without newline) and returns the answer line (malloc'ed, NUL-terminated,
 * the caller's). Blocks up to timeout_ms. Errors: GONE (no node listens there), IO, LIMIT. */
NODISCARD enum err control_request(const char *socket_path, const char *request, int timeout_ms,
                                   char **answer, struct err_info *ei);
