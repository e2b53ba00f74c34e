/* How does a failure become words? One formatter, so that every message is cut, terminated and on
 * one line in the same way. Knows nothing of logs: whoever handles the error logs it. */
#include "config/base/err.h"

#include <stdarg.h>
#include <stdio.h>

enum err err_set(struct err_info *ei, enum err code, const char *fmt, ...)
{
    if (!ei)
        return code;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(ei->text, sizeof ei->text, fmt, ap);
    va_end(ap);
    /* texts may quote what came from outside: keep them on one line */
    for (char *p = ei->text; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    return code;
}

const char *err_name(enum err code)
{
    switch (code) {
    case OK:
        return "OK";
    case ERR_PARSE:
        return "PARSE";
    case ERR_NOMEM:
        return "NOMEM";
    case ERR_IO:
        return "IO";
    case ERR_LIMIT:
        return "LIMIT";
    case ERR_BUSY:
        return "BUSY";
    case ERR_GONE:
        return "GONE";
    case ERR_UNSUPPORTED:
        return "UNSUPPORTED";
    case ERR_DEVICE:
        return "DEVICE";
    }
    return "UNKNOWN";
}
