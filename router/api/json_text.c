/* How does text become JSON, and which JSON is too costly to parse? Keeps: what is appended is
 * valid UTF-8 and valid JSON for any input bytes. Does not parse. */
#include "router/api/json_text.h"

#include "router/text/utf8.h"

#include <math.h>
#include <stdio.h>

/* Length of the run from s that needs no escape. */
static size_t plain_run(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            break;
        if (c < 0x80) {
            i++;
            continue;
        }
        struct utf8_step step = utf8_next(s + i, n - i);
        if (step.kind != UTF8_WHOLE)
            break;
        i += step.n_bytes;
    }
    return i;
}

/* Returns how many bytes it stands for. */
static size_t append_escape(struct bytes *out, const char *s, size_t n)
{
    unsigned char c = (unsigned char)*s;
    switch (c) {
    case '"':
    case '\\':
        bytes_append(out, (char[]){'\\', (char)c}, 2);
        return 1;
    case '\n':
        bytes_append(out, "\\n", 2);
        return 1;
    case '\r':
        bytes_append(out, "\\r", 2);
        return 1;
    case '\t':
        bytes_append(out, "\\t", 2);
        return 1;
    default:
        break;
    }
    if (c < 0x80) {
        bytes_printf(out, "\\u%04x", c);
        return 1;
    }
    bytes_append_str(out, "\xef\xbf\xbd");
    return utf8_next(s, n).n_bytes;
}

void json_text_append_string(struct bytes *out, const char *s, size_t n)
{
    bytes_append(out, "\"", 1);
    while (n > 0) {
        size_t run = plain_run(s, n);
        bytes_append(out, s, run);
        s += run;
        n -= run;
        if (n == 0)
            break;
        size_t used = append_escape(out, s, n);
        s += used;
        n -= used;
    }
    bytes_append(out, "\"", 1);
}

void json_text_append_logprob(struct bytes *out, float v)
{
    if (isfinite(v) && v > -9999.0f)
        bytes_printf(out, "%.9g", (double)v);
    else
        bytes_append_str(out, "-9999.0");
}

/* Index behind the string that starts at s[i] == '"'. */
static size_t skip_string(const char *s, size_t n, size_t i)
{
    for (i++; i < n && s[i] != '"'; i++)
        i += s[i] == '\\';
    return i < n ? i + 1 : n;
}

enum err json_text_check(const char *s, size_t n, const struct json_text_limits *limits,
                         struct err_info *ei)
{
    uint32_t depth = 0, containers = 0, values = 0;
    for (size_t i = 0; i < n;) {
        if (s[i] == '"') {
            i = skip_string(s, n, i);
            continue;
        }
        if (s[i] == '[' || s[i] == '{') {
            if (++depth > limits->depth)
                return err_set(ei, ERR_LIMIT, "JSON is nested deeper than %u", limits->depth);
            if (++containers > limits->containers)
                return err_set(ei, ERR_LIMIT, "JSON has more than %u arrays and objects",
                               limits->containers);
        } else if ((s[i] == ']' || s[i] == '}') && depth > 0) {
            depth--;
        } else if (s[i] == ',' && ++values > limits->values) {
            return err_set(ei, ERR_LIMIT, "JSON has more than %u values", limits->values);
        }
        i++;
    }
    return OK;
}
