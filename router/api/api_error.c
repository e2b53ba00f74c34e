/* How is a failure told to a client? One JSON object with all four of OpenAI's keys, always. Keeps:
 * the text is valid JSON whatever bytes the message holds. Does not decide what is an error. */
#include "router/api/api_error.h"

#include "router/api/json_text.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum err api_error_set(struct api_error *e, int status, const char *code, const char *param,
                       const char *fmt, ...)
{
    *e = (struct api_error){.status = status, .code = code};
    (void)snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e->message, sizeof e->message, fmt, ap);
    va_end(ap);
    return status < 500 ? ERR_PARSE : ERR_GONE;
}

static const char *type_of(int status)
{
    if (status == 429)
        return "rate_limit_error";
    if (status == 503)
        return "service_unavailable_error";
    bool is_ours = status >= 500 && status != 501 && status != 505; /* those: a client's wish */
    return is_ours ? "server_error" : "invalid_request_error";
}

static void append_or_null(struct bytes *out, const char *s)
{
    if (s && *s)
        json_text_append_string(out, s, strlen(s));
    else
        bytes_append_str(out, "null");
}

void api_error_render(const struct api_error *e, struct bytes *out)
{
    bytes_append_str(out, "{\"error\":{\"message\":");
    json_text_append_string(out, e->message, strlen(e->message));
    bytes_printf(out, ",\"type\":\"%s\",\"param\":", type_of(e->status));
    append_or_null(out, e->param);
    bytes_append_str(out, ",\"code\":");
    append_or_null(out, e->code);
    bytes_append_str(out, "}}");
}
