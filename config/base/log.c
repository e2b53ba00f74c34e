/* Where do messages for people go? To stderr, a line each, each by one write(2). Control characters
 * are blanked, so that text from outside cannot forge a line. Does not know who reads it. */
#include "config/base/log.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static struct {
    char who[32];
    enum log_level least;
} sink = {.who = "kvnode", .least = LOG_INFO};

void log_init(const char *who, enum log_level least)
{
    (void)snprintf(sink.who, sizeof sink.who, "%s", who);
    sink.least = least;
}

void log_write(enum log_level level, const char *fmt, ...)
{
    static const char *const names[] = {"debug", "info", "warn", "error"};
    if (level < sink.least)
        return;
    char line[1024];
    struct timespec ts;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &ts);
    gmtime_r(&ts.tv_sec, &tm);
    size_t n = strftime(line, sizeof line, "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof line - n, ".%03ldZ %-5s %s: ", ts.tv_nsec / 1000000,
                          names[level], sink.who);
    va_list ap;
    va_start(ap, fmt);
    int m = vsnprintf(line + n, sizeof line - n - 1, fmt, ap);
    va_end(ap);
    size_t text_bytes = m < 0 ? 0 : (size_t)m;
    if (text_bytes > sizeof line - n - 2)
        text_bytes = sizeof line - n - 2;
    for (size_t i = n; i < n + text_bytes; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = ' ';
    n += text_bytes;
    line[n++] = '\n';
    /* nothing sensible can be done when stderr is gone */
    ssize_t written = write(STDERR_FILENO, line, n);
    (void)written;
}
