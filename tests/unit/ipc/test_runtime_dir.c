/* Do router, workers and kvctl find the same place, and is it ours alone? */
#include "ipc/runtime_dir.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(runtime_dir, .timeout = 5);

Test(runtime_dir, everything_carries_the_name)
{
    struct runtime_paths p;
    cr_assert_eq(runtime_paths_fill("/var/x/", "blue-1_B", &p, NULL), OK);
    cr_assert_str_eq(p.dir, "/var/x");
    cr_assert_str_eq(p.control, "/var/x/blue-1_B.sock");
    cr_assert_str_eq(p.endpoint, "ipc:///var/x/blue-1_B.zmq");
    cr_assert_str_eq(p.store, "kvnode-blue-1_B");
}

/* As config/node_config.h says: $XDG_RUNTIME_DIR/kvnode, else /run/kvnode as root, else
 * TMPDIR/kvnode-UID. A relative XDG_RUNTIME_DIR is ignored (XDG base directory specification). */
Test(runtime_dir, the_default_place)
{
    struct runtime_paths p;
    char expected[64] = "/run/kvnode";
    setenv("XDG_RUNTIME_DIR", "/run/user/1", 1);
    setenv("TMPDIR", "/scratch", 1);
    cr_assert_eq(runtime_paths_fill(NULL, "n", &p, NULL), OK);
    cr_assert_str_eq(p.control, "/run/user/1/kvnode/n.sock");
    setenv("XDG_RUNTIME_DIR", "relative", 1);
    if (geteuid() != 0)
        snprintf(expected, sizeof expected, "/scratch/kvnode-%u", (unsigned)geteuid());
    cr_assert_eq(runtime_paths_fill(NULL, "n", &p, NULL), OK);
    cr_assert_str_eq(p.dir, expected);
    unsetenv("XDG_RUNTIME_DIR");
    cr_assert_eq(runtime_paths_fill("", "n", &p, NULL), OK);
    cr_assert_str_eq(p.dir, expected);
}

Test(runtime_dir, names_that_could_lead_elsewhere_are_refused)
{
    static const char *const bad[] = {
        "", ".", "..", "a/b", "a b", "a.b", "\xc3\xa4", "a\n", "123456789012345678901234567890123"};
    struct runtime_paths p;
    struct err_info ei = {0};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        cr_assert_eq(runtime_paths_fill("/x", bad[i], &p, &ei), ERR_PARSE, "'%s'", bad[i]);
    cr_assert_eq(runtime_paths_fill("/x", "12345678901234567890123456789012", &p, &ei), OK);
}

Test(runtime_dir, a_path_too_long_for_a_socket_is_an_error_that_says_it)
{
    char dir[6000];
    struct runtime_paths p;
    struct err_info ei = {0};
    memset(dir, 'd', sizeof dir);
    dir[0] = '/';
    dir[sizeof dir - 1] = '\0';
    cr_assert_eq(runtime_paths_fill(dir, "n", &p, &ei), ERR_LIMIT);
    /* sun_path holds 108 bytes (unix(7)): 100 + "/n.sock" + NUL fit, one more does not */
    dir[101] = '\0';
    cr_assert_eq(runtime_paths_fill(dir, "n", &p, &ei), ERR_LIMIT);
    cr_assert_not_null(strstr(ei.text, dir), "%s", ei.text);
    dir[100] = '\0';
    cr_assert_eq(runtime_paths_fill(dir, "n", &p, &ei), OK);
    cr_assert_eq(strlen(p.control), RUNTIME_PATH_BYTES - 1);
}

Test(runtime_dir, is_made_for_us_alone_and_found_again)
{
    char base[] = "/tmp/kvnode-rt-XXXXXX", dir[64];
    struct runtime_paths p;
    struct stat st;
    struct err_info ei = {0};
    cr_assert_not_null(mkdtemp(base));
    snprintf(dir, sizeof dir, "%s/d", base);
    cr_assert_eq(runtime_paths_fill(dir, "n", &p, NULL), OK);
    umask(0);
    cr_assert_eq(runtime_dir_make(&p, &ei), OK, "%s", ei.text);
    cr_assert_eq(stat(dir, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    cr_assert_eq(runtime_dir_make(&p, &ei), OK, "%s", ei.text);
    cr_assert_eq(chmod(dir, 0750), 0);
    cr_assert_eq(runtime_dir_make(&p, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, dir), "%s", ei.text);
    rmdir(dir);
    rmdir(base);
}

Test(runtime_dir, a_link_a_file_and_a_missing_parent_are_refused)
{
    char base[] = "/tmp/kvnode-rt-XXXXXX", dir[64], target[64];
    struct runtime_paths p;
    struct err_info ei = {0};
    cr_assert_not_null(mkdtemp(base));
    snprintf(dir, sizeof dir, "%s/d", base);
    snprintf(target, sizeof target, "%s/t", base);
    cr_assert_eq(mkdir(target, 0700), 0);
    cr_assert_eq(symlink(target, dir), 0);
    cr_assert_eq(runtime_paths_fill(dir, "n", &p, NULL), OK);
    cr_assert_eq(runtime_dir_make(&p, &ei), ERR_IO);
    unlink(dir);
    rmdir(target);
    fclose(fopen(dir, "w"));
    cr_assert_eq(runtime_dir_make(&p, &ei), ERR_IO);
    unlink(dir);
    rmdir(base);
    cr_assert_eq(runtime_dir_make(&p, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, dir), "%s", ei.text);
}

Test(runtime_dir, a_name_has_one_holder_who_leaves_no_file)
{
    char base[] = "/tmp/kvnode-rt-XXXXXX";
    struct runtime_paths p;
    struct err_info ei = {0};
    int first, second;
    cr_assert_not_null(mkdtemp(base));
    cr_assert_eq(runtime_paths_fill(base, "n", &p, NULL), OK);
    cr_assert_eq(runtime_lock_take(&p, 0, &first, &ei), OK, "%s", ei.text);
    cr_assert_eq(runtime_lock_take(&p, 20, &second, &ei), ERR_BUSY);
    cr_assert_not_null(strstr(ei.text, p.lock), "%s", ei.text);
    runtime_lock_release(&p, first);
    cr_assert_neq(access(p.lock, F_OK), 0);
    cr_assert_eq(runtime_lock_take(&p, 0, &second, NULL), OK);
    runtime_lock_release(&p, second);
    cr_assert_eq(rmdir(base), 0);
    cr_assert_eq(runtime_lock_take(&p, 20, &second, &ei), ERR_IO);
}

/* The holder removes the file and goes: whoever had opened it before must not take the lock of a
 * file that nobody else finds any more. */
Test(runtime_dir, a_lock_without_its_name_is_not_taken)
{
    char base[] = "/tmp/kvnode-rt-XXXXXX";
    struct runtime_paths p;
    struct stat ours, named;
    int fd;
    cr_assert_not_null(mkdtemp(base));
    cr_assert_eq(runtime_paths_fill(base, "n", &p, NULL), OK);
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        if (child == 0) {
            int other;
            if (runtime_lock_take(&p, 1000, &other, NULL) == OK)
                runtime_lock_release(&p, other);
            _exit(0);
        }
        cr_assert_eq(runtime_lock_take(&p, 1000, &fd, NULL), OK);
        cr_assert_eq(fstat(fd, &ours), 0);
        cr_assert_eq(stat(p.lock, &named), 0);
        cr_assert_eq(ours.st_ino, named.st_ino);
        runtime_lock_release(&p, fd);
        cr_assert_eq(waitpid(child, NULL, 0), child);
    }
    cr_assert_eq(rmdir(base), 0);
}
