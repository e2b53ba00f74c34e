#pragma once
#include "config/base/err.h"

/* One line a message on stderr: time, level, process, text. The sink is the one global that STYLE
 * allows. Any thread; a line is written by one write(2), so lines of several processes do not mix.
 */

enum log_level { LOG_DEBUG, LOG_INFO, LOG_WARN, LOG_ERROR };

/* who: "router", "worker 0", ...: copied. Call once, in main, before threads start. */
void log_init(const char *who, enum log_level least);

void log_write(enum log_level level, const char *fmt, ...) PRINTF_LIKE(2, 3);

#define log_debug(...) log_write(LOG_DEBUG, __VA_ARGS__)
#define log_info(...) log_write(LOG_INFO, __VA_ARGS__)
#define log_warn(...) log_write(LOG_WARN, __VA_ARGS__)
#define log_error(...) log_write(LOG_ERROR, __VA_ARGS__)
