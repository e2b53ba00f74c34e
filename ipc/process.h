#pragma once
#include "config/base/err.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Which process is it, and is it alive? pids are reused, so a process is (pid, start time). */

struct process_id {
    int32_t pid;
    uint64_t start; /* field 22 of /proc/PID/stat, clock ticks after boot; 0 = unknown */
};

struct process_id process_self(void);
/* Start time of pid, or 0 when there is none such. */
uint64_t process_start_time(pid_t pid);
/* True while any thread of that very process may run, and when that cannot be found out. */
bool process_is_alive(struct process_id p);
/* pidfd (readable when it has died), or -1 when it is gone or another. The caller closes it. */
int process_open(struct process_id p);
