/* Where does a node of this name keep its sockets, and who may make and remove them? Names in,
 * paths out, one directory that only we can enter, one lock a name. Invariant: every path that
 * comes out fits a Unix socket address; a lock that was taken is of the file that bears the name.
 * Knows nothing of what is bound there. */
#include "ipc/runtime_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_BYTES_MAX = 32, LONG_PATH_BYTES = 4096, LOCK_RETRY_MS = 10 };

static bool is_node_name(const char *s)
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                                  "0123456789_-";
    size_t n = strlen(s);
    return n >= 1 && n <= NAME_BYTES_MAX && strspn(s, allowed) == n;
}

/* The XDG specification tells us to ignore a relative XDG_RUNTIME_DIR. */
static void default_dir(char *out, size_t out_bytes)
{
    const char *xdg = getenv("XDG_RUNTIME_DIR"), *tmp = getenv("TMPDIR");
    if (xdg && xdg[0] == '/')
        (void)snprintf(out, out_bytes, "%s/kvnode", xdg);
    else if (geteuid() == 0)
        (void)snprintf(out, out_bytes, "/run/kvnode");
    else
        (void)snprintf(out, out_bytes, "%s/kvnode-%u", tmp && tmp[0] == '/' ? tmp : "/tmp",
                       (unsigned)geteuid());
}

static enum err join(const char *dir, const char *name, const char *suffix,
                     char out[RUNTIME_PATH_BYTES], struct err_info *ei)
{
    char path[LONG_PATH_BYTES];
    int n = snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    if (n < 0 || n >= RUNTIME_PATH_BYTES)
        return err_set(ei, ERR_LIMIT,
                       "runtime directory: socket path is %d bytes, the system allows %d: %s", n,
                       RUNTIME_PATH_BYTES - 1, path);
    memcpy(out, path, (size_t)n + 1);
    return OK;
}

enum err runtime_paths_fill(const char *dir, const char *name, struct runtime_paths *out,
                            struct err_info *ei)
{
    char place[LONG_PATH_BYTES], data[RUNTIME_PATH_BYTES];
    *out = (struct runtime_paths){0};
    if (!is_node_name(name))
        return err_set(ei, ERR_PARSE,
                       "runtime directory: bad node name '%.64s' (1 to %d of A-Z a-z 0-9 _ -)",
                       name, NAME_BYTES_MAX);
    if (dir && *dir)
        (void)snprintf(place, sizeof place, "%s", dir);
    else
        default_dir(place, sizeof place);
    size_t n = strlen(place);
    while (n > 1 && place[n - 1] == '/')
        place[--n] = '\0';
    enum err rc = join(place, name, ".sock", out->control, ei);
    if (rc)
        return rc;
    rc = join(place, name, ".zmq", data, ei);
    if (!rc)
        rc = join(place, name, ".lock", out->lock, ei);
    if (rc)
        return rc;
    memcpy(out->dir, place, n + 1); /* shorter than the paths that were just joined */
    (void)snprintf(out->endpoint, sizeof out->endpoint, "ipc://%s", data);
    (void)snprintf(out->store, sizeof out->store, "kvnode-%s", name);
    return OK;
}

enum err runtime_dir_make(const struct runtime_paths *p, struct err_info *ei)
{
    struct stat st;
    if (mkdir(p->dir, 0700) != 0 && errno != EEXIST)
        return err_set(ei, ERR_IO,
                       "runtime directory: cannot make %s: %s (choose another with "
                       "--runtime-dir)",
                       p->dir, strerror(errno));
    /* lstat: in a directory where anyone writes, a link would lead us into another's */
    if (lstat(p->dir, &st) != 0)
        return err_set(ei, ERR_IO, "runtime directory: %s: %s", p->dir, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return err_set(ei, ERR_IO, "runtime directory: %s is not a directory", p->dir);
    if (st.st_uid != geteuid())
        return err_set(ei, ERR_IO, "runtime directory: %s belongs to user %u, not to us", p->dir,
                       (unsigned)st.st_uid);
    if ((st.st_mode & 077) != 0)
        return err_set(
            ei, ERR_IO,
            "runtime directory: %s is open to others (mode %04o): chmod 700 it or choose "
            "another with --runtime-dir",
            p->dir, (unsigned)st.st_mode & 07777);
    return OK;
}

/* Whoever released the lock has removed its file: a lock on a file without the name is worth
 * nothing. */
static bool bears_the_name(int fd, const char *path)
{
    struct stat ours, named;
    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

enum err runtime_lock_take(const struct runtime_paths *p, int wait_ms, int *fd, struct err_info *ei)
{
    for (int waited_ms = 0;; waited_ms += LOCK_RETRY_MS) {
        *fd = open(p->lock, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (*fd < 0)
            return err_set(ei, ERR_IO, "runtime directory: cannot open %s: %s", p->lock,
                           strerror(errno));
        bool is_ours = flock(*fd, LOCK_EX | LOCK_NB) == 0;
        if (is_ours && bears_the_name(*fd, p->lock))
            return OK;
        close(*fd);
        *fd = -1;
        if (waited_ms >= wait_ms)
            return err_set(ei, ERR_BUSY, "runtime directory: %s is held by another process",
                           p->lock);
        (void)poll(NULL, 0, LOCK_RETRY_MS);
    }
}

void runtime_lock_release(const struct runtime_paths *p, int fd)
{
    (void)unlink(p->lock);
    close(fd);
}
