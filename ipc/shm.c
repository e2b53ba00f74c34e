/* How do processes share memory? Named files in /dev/shm, reserved whole when they are made.
 * Invariant: a name that shm_create returned OK for has all its bytes; one that failed leaves no
 * name. has_huge_pages is what the kernel reports of the mapping, never what was asked for. Knows
 * nothing of what lies inside. */
#include "ipc/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14; older ones answer EINVAL */
#endif

static enum err make_path(const char *name, char out[NAME_MAX + 1], struct err_info *ei)
{
    size_t n = strlen(name);
    if (n == 0 || n >= NAME_MAX || strchr(name, '/'))
        return err_set(ei, ERR_IO, "shared memory: bad name '%.64s' (1 to %d bytes, no slash)",
                       name, NAME_MAX - 1);
    out[0] = '/';
    memcpy(out + 1, name, n + 1);
    return OK;
}

/* A tmpfs gives huge pages by its own mount option; shmem_enabled rules this mount only with
 * "force" and "deny" (kernel: admin-guide/mm/transhuge). */
static bool may_be_huge(void)
{
    char line[1024];
    bool is_huge = false;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");
    if (!f)
        return false;
    bool has_line = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    if (!has_line || strstr(line, "[deny]"))
        return false;
    if (strstr(line, "[force]"))
        return true;
    f = fopen("/proc/self/mounts", "re");
    if (!f)
        return false;
    while (fgets(line, sizeof line, f))
        if (strstr(line, " /dev/shm tmpfs "))
            is_huge = strstr(line, "huge=") && !strstr(line, "huge=never");
    fclose(f);
    return is_huge;
}

/* Bytes of the mapping at data that are mapped by huge page entries. */
static size_t huge_bytes(const void *data)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return 0;
    char line[512];
    size_t kib = 0;
    bool is_ours = false;
    while (fgets(line, sizeof line, f)) {
        uint64_t from, to;
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &from, &to) == 2)
            is_ours = from <= (uintptr_t)data && (uintptr_t)data < to;
        else if (is_ours && sscanf(line, "ShmemPmdMapped: %zu kB", &kib) == 1)
            break;
    }
    fclose(f);
    return kib * 1024;
}

static enum err map(const char *name, struct shm *s, struct err_info *ei)
{
    s->data = mmap(NULL, s->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
    if (s->data == MAP_FAILED) {
        s->data = NULL;
        return err_set(ei, ERR_IO, "shared memory: %s: cannot map %zu bytes: %s", name,
                       s->size_bytes, strerror(errno));
    }
    if (!may_be_huge() || madvise(s->data, s->size_bytes, MADV_HUGEPAGE) != 0)
        return OK;
    /* huge pages come with the first touch of a mapping that asked for them; a refusal here (full,
     * old kernel) costs only speed: the reservation below is what counts */
    if (madvise(s->data, s->size_bytes, MADV_POPULATE_WRITE) == 0)
        s->has_huge_pages = huge_bytes(s->data) >= s->size_bytes / 2;
    return OK;
}

static enum err no_room(const char *name, const struct shm *s, const struct statvfs *fs,
                        struct err_info *ei)
{
    return err_set(ei, ERR_IO,
                   "shared memory: %s: cannot reserve %zu bytes: /dev/shm has %" PRIu64
                   " bytes, %" PRIu64 " free",
                   name, s->size_bytes, (uint64_t)fs->f_blocks * fs->f_frsize,
                   (uint64_t)fs->f_bavail * fs->f_frsize);
}

/* Asked before anything is touched: filling memory only to learn that it is not enough takes
 * seconds and starves others. f_blocks is 0 for a tmpfs without a limit. */
static enum err check_room(const char *name, const struct shm *s, struct err_info *ei)
{
    struct statvfs fs;
    if (fstatvfs(s->fd, &fs) == 0 && fs.f_blocks > 0 &&
        s->size_bytes > (uint64_t)fs.f_bavail * fs.f_frsize)
        return no_room(name, s, &fs, ei);
    return OK;
}

/* The guarantee: from here on every byte has its page. */
static enum err reserve(const char *name, const struct shm *s, struct err_info *ei)
{
    struct statvfs fs;
    int code;
    do
        code = posix_fallocate(s->fd, 0, (off_t)s->size_bytes);
    while (code == EINTR);
    if (code == 0)
        return OK;
    if (code == ENOSPC && fstatvfs(s->fd, &fs) == 0)
        return no_room(name, s, &fs, ei);
    return err_set(ei, ERR_IO, "shared memory: %s: cannot reserve %zu bytes: %s", name,
                   s->size_bytes, strerror(code));
}

enum err shm_create(const char *name, size_t size_bytes, struct shm *out, struct err_info *ei)
{
    char path[NAME_MAX + 1];
    *out = (struct shm){.fd = -1};
    enum err rc = make_path(name, path, ei);
    if (rc)
        return rc;
    if (size_bytes == 0 || size_bytes > INT64_MAX)
        return err_set(ei, ERR_IO, "shared memory: %s: cannot be %zu bytes", name, size_bytes);
    struct shm s = {.size_bytes = size_bytes};
    s.fd = shm_open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (s.fd < 0)
        return err_set(ei, ERR_IO, "shared memory: %s: cannot create (%zu bytes): %s", name,
                       size_bytes, strerror(errno));
    rc = check_room(name, &s, ei);
    if (rc)
        goto fail;
    if (ftruncate(s.fd, (off_t)size_bytes) != 0) {
        rc = err_set(ei, ERR_IO, "shared memory: %s: cannot be %zu bytes: %s", name, size_bytes,
                     strerror(errno));
        goto fail;
    }
    rc = map(name, &s, ei);
    if (rc)
        goto fail;
    rc = reserve(name, &s, ei);
    if (rc)
        goto fail;
    *out = s;
    return OK;
fail:
    shm_close(&s);
    (void)shm_unlink(path);
    return rc;
}

enum err shm_open_existing(const char *name, struct shm *out, struct err_info *ei)
{
    char path[NAME_MAX + 1];
    struct stat st;
    *out = (struct shm){.fd = -1};
    enum err rc = make_path(name, path, ei);
    if (rc)
        return rc;
    struct shm s = {.fd = shm_open(path, O_RDWR | O_CLOEXEC, 0)};
    if (s.fd < 0)
        return err_set(ei, errno == ENOENT ? ERR_GONE : ERR_IO,
                       "shared memory: %s: cannot open: %s", name, strerror(errno));
    if (fstat(s.fd, &st) != 0) {
        rc = err_set(ei, ERR_IO, "shared memory: %s: %s", name, strerror(errno));
        goto fail;
    }
    if (st.st_uid != geteuid()) {
        rc = err_set(ei, ERR_IO, "shared memory: %s: belongs to user %u, not to us", name,
                     (unsigned)st.st_uid);
        goto fail;
    }
    if (st.st_size <= 0) {
        rc = err_set(ei, ERR_IO, "shared memory: %s: is empty (0 bytes): its creation was cut off",
                     name);
        goto fail;
    }
    s.size_bytes = (size_t)st.st_size;
    rc = map(name, &s, ei);
    if (rc)
        goto fail;
    *out = s;
    return OK;
fail:
    shm_close(&s);
    return rc;
}

uint64_t shm_size(const char *name)
{
    char path[NAME_MAX + 1];
    struct stat st = {0};
    if (make_path(name, path, NULL) != OK)
        return 0;
    int fd = shm_open(path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return 0;
    bool is_ours = fstat(fd, &st) == 0 && st.st_uid == geteuid();
    (void)close(fd);
    return is_ours ? (uint64_t)st.st_blocks * 512 : 0;
}

void shm_close(struct shm *s)
{
    if (s->data)
        (void)munmap(s->data, s->size_bytes);
    if (s->fd >= 0)
        (void)close(s->fd);
    *s = (struct shm){.fd = -1};
}

void shm_remove(const char *name)
{
    char path[NAME_MAX + 1];
    if (make_path(name, path, NULL) == OK)
        (void)shm_unlink(path);
}
