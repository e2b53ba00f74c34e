#pragma once
#include "config/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Named shared memory (/dev/shm). Names have no slash. Memory is reserved at creation
 * (posix_fallocate), so that a full /dev/shm is an error then, not SIGBUS later. */

struct shm {
    void *data;
    size_t size_bytes;
    int fd;
    bool has_huge_pages; /* what was got, not what was asked for */
};

/* Creates name exclusively, mode 0600, zeroed. Errors: IO (exists, no space: names both sizes). */
NODISCARD enum err shm_create(const char *name, size_t size_bytes, struct shm *out,
                              struct err_info *ei);
/* Maps an existing one, read and write. Errors: GONE (no such name), IO. */
NODISCARD enum err shm_open_existing(const char *name, struct shm *out, struct err_info *ei);
/* Bytes of memory that it takes, without mapping it; 0 when there is none or it is not ours. */
uint64_t shm_size(const char *name);
void shm_close(struct shm *s);     /* unmaps; the name stays */
void shm_remove(const char *name); /* the name goes, mappings stay; no error when absent */
