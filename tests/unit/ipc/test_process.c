/* Is a process told from another that got its pid, and a dead one from a living one? */
#include "ipc/process.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(process, .timeout = 10);

/* A child that sleeps under this name until it is killed. */
static pid_t start_child(const char *name)
{
    int ready[2];
    char c;
    cr_assert_eq(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_NAME, name);
        if (write(ready[1], "r", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    cr_assert_gt(pid, 0);
    cr_assert_eq(read(ready[0], &c, 1), 1);
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static bool is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 2000) == 1;
}

Test(process, knows_itself)
{
    struct process_id self = process_self();
    cr_assert_eq(self.pid, getpid());
    cr_assert_gt(self.start, 0);
    cr_assert_eq(self.start, process_start_time(getpid()));
    cr_assert(process_is_alive(self));
}

/* Oracle: uptime of the machine in clock ticks, at which a child just made must have started. */
Test(process, start_time_is_in_ticks_after_boot)
{
    double uptime_s = 0;
    FILE *f = fopen("/proc/uptime", "r");
    cr_assert_not_null(f);
    cr_assert_eq(fscanf(f, "%lf", &uptime_s), 1);
    fclose(f);
    pid_t pid = start_child("child");
    double started_s = (double)process_start_time(pid) / (double)sysconf(_SC_CLK_TCK);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cr_assert(started_s > uptime_s - 1 && started_s < uptime_s + 5, "%f at %f", started_s,
              uptime_s);
}

Test(process, names_with_blanks_and_parentheses_do_not_shift_the_fields)
{
    static const char *const names[] = {"a b c", ") S 1 2 3 4 5", "((", "))))", "x) Z 0 (y", " "};
    uint64_t plain_before = process_start_time(getpid());
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        pid_t pid = start_child(names[i]);
        struct process_id p = {.pid = pid, .start = process_start_time(pid)};
        cr_expect_geq(p.start, plain_before, "'%s'", names[i]);
        cr_expect_lt(p.start, plain_before + 3600 * 100, "'%s'", names[i]);
        cr_expect(process_is_alive(p), "'%s'", names[i]);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
}

Test(process, a_zombie_is_dead_and_a_reaped_one_has_no_start_time)
{
    pid_t pid = start_child("child");
    struct process_id p = {.pid = pid, .start = process_start_time(pid)};
    siginfo_t info;
    cr_assert(process_is_alive(p));
    kill(pid, SIGKILL);
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    cr_assert_not(process_is_alive(p));
    cr_assert_eq(process_open(p), -1);
    waitpid(pid, NULL, 0);
    cr_assert_not(process_is_alive(p));
    cr_assert_eq(process_start_time(pid), 0);
}

static void *sleep_on(void *arg)
{
    pause();
    return arg;
}

/* proc(5): the state is that of the first thread. What the others share they may still write. */
Test(process, a_process_lives_until_its_last_thread_has_ended)
{
    pid_t pid = fork();
    if (pid == 0) {
        pthread_t other;
        if (pthread_create(&other, NULL, sleep_on, NULL) != 0)
            _exit(1);
        pthread_exit(NULL);
    }
    struct process_id p = {.pid = pid, .start = process_start_time(pid)};
    char path[64], text[256] = "";
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    while (!strstr(text, ") Z ")) {
        int fd = open(path, O_RDONLY);
        cr_assert_gt(read(fd, text, sizeof text - 1), 0);
        close(fd);
        cr_assert_eq(waitpid(pid, NULL, WNOHANG), 0);
        usleep(1000);
    }
    cr_expect(process_is_alive(p));
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    cr_assert_not(process_is_alive(p));
}

/* What is of a living process would be given away. */
Test(process, one_that_cannot_be_asked_is_not_dead)
{
    struct process_id self = process_self();
    struct rlimit before, none;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 0;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    bool is_alive = process_is_alive(self);
    setrlimit(RLIMIT_NOFILE, &before);
    cr_expect(is_alive);
}

Test(process, the_same_pid_with_another_start_time_is_another_process)
{
    struct process_id self = process_self(), other = self, unknown = {.pid = self.pid};
    other.start++;
    cr_assert_not(process_is_alive(other));
    cr_assert_eq(process_open(other), -1);
    cr_assert(process_is_alive(unknown), "start 0 is unknown: the pid alone counts");
}

Test(process, a_pidfd_becomes_readable_when_the_process_dies)
{
    pid_t pid = start_child("child");
    int fd = process_open((struct process_id){.pid = pid, .start = process_start_time(pid)});
    struct pollfd p = {.fd = fd, .events = POLLIN};
    cr_assert_geq(fd, 0);
    cr_assert_eq(poll(&p, 1, 0), 0);
    cr_assert(fcntl(fd, F_GETFD) & FD_CLOEXEC);
    kill(pid, SIGKILL);
    cr_assert(is_readable(fd));
    close(fd);
    waitpid(pid, NULL, 0);
}

Test(process, pids_that_cannot_be_are_nobody)
{
    static const int32_t pids[] = {0, -1, INT32_MAX};
    for (size_t i = 0; i < 3; i++) {
        struct process_id p = {.pid = pids[i]};
        cr_assert_eq(process_start_time(pids[i]), 0);
        cr_assert_not(process_is_alive(p));
        cr_assert_eq(process_open(p), -1);
    }
}
