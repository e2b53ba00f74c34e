#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

/* Unicode normal form C. */

/* Appends the NFC of n bytes of valid UTF-8. Linear in n for any input (long runs of combining
 * marks included). Errors: NOMEM. Any thread. Source: Unicode Standard Annex 15. */
NODISCARD enum err nfc_append(const char *text, size_t n, struct bytes *out, struct err_info *ei);
