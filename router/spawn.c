/* How does a worker process come to be? posix_spawn of the program beside ours, with the whole
 * config as flags, so that a worker can also be started by hand. Knows nothing of its later life.
 */
#include "router/spawn.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VARIABLE_BYTES = 64 };

/* The process's environment without a variable of own's name, then own. The vector is the caller's.
 */
static char **make_environment(char *own)
{
    size_t n = 0, used = 0, name_bytes = (size_t)(strchr(own, '=') - own) + 1;
    while (environ[n])
        n++;
    char **env = calloc(n + 2, sizeof *env);
    if (!env)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], own, name_bytes) != 0)
            env[used++] = environ[i];
    env[used] = own;
    return env;
}

static int spawn(const char *program, char **argv, char **env, pid_t *pid)
{
    posix_spawnattr_t attr;
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int rc = posix_spawnattr_init(&attr);
    if (rc != 0)
        return rc;
    posix_spawnattr_setsigdefault(&attr, &all);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    rc = posix_spawn(pid, program, NULL, &attr, argv, env);
    posix_spawnattr_destroy(&attr);
    return rc;
}

enum err spawn_worker(const char *program, const struct node_config *config, uint32_t index,
                      pid_t *pid, struct err_info *ei)
{
    char own[VARIABLE_BYTES];
    (void)snprintf(own, sizeof own, "KVNODE_WORKER_INDEX=%u", index);
    char **env = make_environment(own);
    char **argv = node_config_to_argv(config, program);
    enum err rc = OK;
    if (!env || !argv)
        rc = err_set(ei, ERR_NOMEM, "spawn: worker %u: no memory", index);
    else {
        int e = spawn(program, argv, env, pid);
        if (e != 0)
            rc = err_set(ei, ERR_IO, "spawn: cannot start %s: %s", program, strerror(e));
    }
    free(env);
    node_config_free_argv(argv);
    return rc;
}

enum err spawn_find_worker(char *path, size_t path_bytes, struct err_info *ei)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0)
        return err_set(ei, ERR_IO, "spawn: cannot read /proc/self/exe: %s", strerror(errno));
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    int len = snprintf(path, path_bytes, "%.*s/kvnode-worker", (int)(slash - self), self);
    if (len < 0 || (size_t)len >= path_bytes)
        return err_set(ei, ERR_LIMIT, "spawn: the path of %s is too long", self);
    if (access(path, X_OK) != 0)
        return err_set(ei, ERR_IO, "spawn: no worker program at %s", path);
    return OK;
}
