/* Which process is it, and is it alive? Answers from /proc/PID/stat and pidfds. Invariant: a pid is
 * never trusted alone; whatever is said holds for (pid, start time). Knows nothing of workers or
 * of waiting: a caller that must know at once watches the pidfd. */
#include "ipc/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct stat_fields {
    char state; /* of the first thread */
    uint64_t n_threads, start;
};

enum { STAT_BYTES = 4096, STATE_FIELD = 3, THREADS_FIELD = 20, START_FIELD = 22 };

/* The second field, the command, is in parentheses and may itself hold spaces and parentheses: what
 * follows the last ')' is regular (proc(5)). */
static bool parse_stat(const char *text, struct stat_fields *out)
{
    const char *p = strrchr(text, ')');
    if (!p || p[1] != ' ' || p[2] == '\0')
        return false;
    p += 2;
    out->state = *p;
    for (int field = STATE_FIELD + 1; field <= START_FIELD; field++) {
        p = strchr(p, ' ');
        if (!p)
            return false;
        p++;
        if (field == THREADS_FIELD)
            out->n_threads = strtoull(p, NULL, 10);
    }
    char *end;
    errno = 0;
    out->start = strtoull(p, &end, 10);
    return errno == 0 && end != p;
}

/* GONE: there is no such process. IO: it could not be asked (no descriptor left, say). */
static enum err read_stat(pid_t pid, struct stat_fields *out)
{
    char path[64], text[STAT_BYTES];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT || errno == ESRCH ? ERR_GONE : ERR_IO;
    ssize_t n;
    do
        n = read(fd, text, sizeof text - 1);
    while (n < 0 && errno == EINTR);
    enum err rc = n < 0 && errno == ESRCH ? ERR_GONE : ERR_IO;
    close(fd);
    if (n <= 0)
        return rc;
    text[n] = '\0';
    return parse_stat(text, out) ? OK : ERR_IO;
}

uint64_t process_start_time(pid_t pid)
{
    struct stat_fields f;
    return pid > 0 && read_stat(pid, &f) == OK ? f.start : 0;
}

struct process_id process_self(void)
{
    pid_t pid = getpid();
    return (struct process_id){.pid = pid, .start = process_start_time(pid)};
}

bool process_is_alive(struct process_id p)
{
    struct stat_fields f;
    if (p.pid <= 0)
        return false;
    enum err rc = read_stat(p.pid, &f);
    if (rc != OK)
        return rc != ERR_GONE; /* a death is confirmed, never guessed */
    if (p.start != 0 && p.start != f.start)
        return false;
    /* a first thread may be a zombie while others still run, and write to what they share */
    return (f.state != 'Z' && f.state != 'X' && f.state != 'x') || f.n_threads > 1;
}

int process_open(struct process_id p)
{
    if (p.pid <= 0)
        return -1;
    int fd = (int)syscall(SYS_pidfd_open, p.pid, 0);
    if (fd < 0)
        return -1;
    /* looked at after opening: from here on the pid cannot be reused unnoticed */
    if (process_is_alive(p))
        return fd;
    close(fd);
    return -1;
}
