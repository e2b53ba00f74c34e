/* Do two mappings of one name show the same bytes, and is a lack of room an error in time? */
#include "ipc/shm.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3 * 1024 * 1024 + 4096 };

static char name[64];

static void set_up(void)
{
    snprintf(name, sizeof name, "kvnode-test-%d", (int)getpid());
}

static void tear_down(void)
{
    shm_remove(name);
}

TestSuite(shm, .init = set_up, .fini = tear_down, .timeout = 10);

static struct shm create(void)
{
    struct shm s;
    struct err_info ei = {0};
    cr_assert_eq(shm_create(name, SIZE, &s, &ei), OK, "%s", ei.text);
    return s;
}

Test(shm, what_is_made_is_zeroed_private_and_reserved)
{
    struct stat st;
    struct shm s = create();
    const char *bytes = s.data;
    cr_assert_eq(s.size_bytes, SIZE);
    cr_assert(bytes[0] == 0 && memcmp(bytes, bytes + 1, SIZE - 1) == 0);
    cr_assert_eq(fstat(s.fd, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_geq(st.st_blocks * 512, SIZE);
    cr_assert(fcntl(s.fd, F_GETFD) & FD_CLOEXEC);
    shm_close(&s);
}

Test(shm, another_process_sees_what_was_written)
{
    struct shm s = create();
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        struct shm other;
        if (shm_open_existing(name, &other, NULL) != OK || other.size_bytes != SIZE)
            _exit(1);
        memcpy((char *)other.data + SIZE - 6, "hello", 6);
        shm_close(&other);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0);
    cr_assert_str_eq((char *)s.data + SIZE - 6, "hello");
    shm_close(&s);
}

Test(shm, a_name_is_made_once)
{
    struct shm s = create(), second;
    struct err_info ei = {0};
    cr_assert_eq(shm_create(name, SIZE, &second, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, name));
    cr_assert(second.data == NULL && second.fd == -1);
    cr_assert_eq(shm_open_existing(name, &second, NULL), OK, "the first one is still there");
    shm_close(&second);
    shm_close(&s);
}

Test(shm, a_removed_name_is_gone_but_its_mapping_stays)
{
    struct shm s = create(), second;
    shm_remove(name);
    shm_remove(name);
    ((char *)s.data)[SIZE - 1] = 1;
    cr_assert_eq(shm_open_existing(name, &second, NULL), ERR_GONE);
    cr_assert_eq(second.fd, -1);
    shm_close(&s);
    cr_assert(s.data == NULL && s.fd == -1);
    shm_close(&s);
}

Test(shm, more_than_there_is_names_both_sizes_and_leaves_no_name)
{
    struct shm s;
    struct err_info ei = {0};
    size_t size_bytes = (size_t)1 << 46; /* more than any /dev/shm */
    cr_assert_eq(shm_create(name, size_bytes, &s, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, "70368744177664 bytes"), "%s", ei.text);
    cr_assert_not_null(strstr(ei.text, " free"), "%s", ei.text);
    cr_assert_eq(shm_open_existing(name, &s, NULL), ERR_GONE);
    cr_assert_eq(shm_create(name, 0, &s, &ei), ERR_IO);
    cr_assert_eq(shm_create(name, SIZE_MAX, &s, &ei), ERR_IO);
    cr_assert_eq(shm_open_existing(name, &s, NULL), ERR_GONE);
}

Test(shm, names_that_are_no_names_are_refused)
{
    char long_name[400];
    struct shm s;
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = '\0';
    const char *const bad[] = {"", "a/b", "/a", "../a", long_name};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(shm_create(bad[i], SIZE, &s, NULL), ERR_IO);
        cr_assert_eq(shm_open_existing(bad[i], &s, NULL), ERR_IO);
        shm_remove(bad[i]);
    }
}

Test(shm, one_whose_making_was_cut_off_is_refused)
{
    char path[80];
    struct shm s;
    struct err_info ei = {0};
    snprintf(path, sizeof path, "/%s", name);
    int fd = shm_open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    cr_assert_geq(fd, 0);
    close(fd);
    cr_assert_eq(shm_open_existing(name, &s, &ei), ERR_IO);
    cr_assert_not_null(strstr(ei.text, "empty"), "%s", ei.text);
}

/* The kernel's own account of the mapping is the oracle. */
Test(shm, huge_pages_are_reported_only_when_they_are_there)
{
    struct shm s = create();
    char line[512];
    size_t kib = 0, from, to;
    bool is_ours = false;
    memset(s.data, 1, SIZE);
    FILE *f = fopen("/proc/self/smaps", "r");
    cr_assert_not_null(f);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%zx-%zx ", &from, &to) == 2)
            is_ours = from == (size_t)s.data;
        else if (is_ours)
            (void)sscanf(line, "ShmemPmdMapped: %zu", &kib);
    }
    fclose(f);
    cr_assert_eq(s.has_huge_pages, kib * 1024 >= SIZE / 2, "%zu KiB are huge", kib);
    shm_close(&s);
}
