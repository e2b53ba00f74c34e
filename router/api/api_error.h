#pragma once
#include "config/base/bytes.h"
#include "config/base/err.h"

#include <stdint.h>

/* What a client is told when its request fails, in OpenAI's shape. Plain data; static texts but for
 * param and message, which may hold pieces of the client's input. */

struct api_error {
    int status;           /* HTTP */
    const char *code;     /* "context_length_exceeded", ...; NULL: null */
    uint32_t retry_after; /* seconds; 0: none */
    char param[128];      /* the field, e.g. "messages[0].role"; "": null */
    char message[ERR_TEXT_BYTES];
};

/* Fills e and returns ERR_PARSE for 4xx, ERR_GONE else, so that a refusal is one line. param and
 * code may be NULL. */
enum err api_error_set(struct api_error *e, int status, const char *code, const char *param,
                       const char *fmt, ...) PRINTF_LIKE(5, 6);
/* Appends {"error":{"message","type","param","code"}}; type follows from the status. */
void api_error_render(const struct api_error *e, struct bytes *out);
