/* Does the store survive its processes? Three ways to die: real processes killed at random while
 * they use the store (helper_kv_walker), deaths simulated between any two instructions
 * (helper_kv_stepper), and damage that no death of ours can do but a rebuild must not choke on. */
#include "prefixcache/kv_layout.h"
#include "support_store.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { N_WALKERS = 4, N_KILLS = 48, WALK_BLOCKS = 40, WALK_BYTES = 1024 };

TestSuite(kv_recover, .timeout = 60);

extern char **environ;

static pid_t spawn_helper(const char *name, char *store, uint64_t seed, char *n_steps)
{
    char path[256], text[32];
    const char *build = getenv("KVNODE_BUILD");
    snprintf(path, sizeof path, "%s/tests/%s", build ? build : "build", name);
    snprintf(text, sizeof text, "%llu", (unsigned long long)seed);
    char *argv[] = {path, store, text, n_steps, NULL};
    pid_t pid;
    int rc = posix_spawn(&pid, path, NULL, NULL, argv, environ);
    cr_assert_eq(rc, 0, "%s: %d", path, rc);
    return pid;
}

static struct kv_store *walked_store(const char *name)
{
    struct err_info ei = {{0}};
    struct kv_store *s = NULL;
    struct kv_store_config cfg = {.name = name,
                                  .block_size = SUPPORT_BLOCK,
                                  .block_bytes = WALK_BYTES,
                                  .n_blocks = WALK_BLOCKS,
                                  .max_leases = N_WALKERS + 1,
                                  .fingerprint = support_fingerprint()};
    cr_assert_eq(kv_store_create(&cfg, &s, &ei), OK, "%s", ei.text);
    return s;
}

static void sleep_us(unsigned us)
{
    struct timespec ts = {.tv_nsec = us * 1000l};
    nanosleep(&ts, NULL);
}

static void kill_walker(struct kv_store *s, pid_t pid)
{
    int status;
    cr_assert_eq(kill(pid, SIGKILL), 0);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    /* a walker that ends by itself found wrong bytes (3), could not start (2) or broke an assertion
     */
    cr_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "status %x", (unsigned)status);
    support_check(s);
}

/* None of the dead holds anything, and what is cached is whole. */
static void expect_clean(struct kv_store *s, char *name)
{
    int status;
    char n_steps[] = "2000"; /* of a walker that verifies what it acquires */
    (void)kv_store_reap(s);
    support_check(s);
    struct kv_store_stats st = support_stats(s);
    cr_expect_eq(st.n_leases, 0);
    cr_expect_eq(st.n_filling + st.n_pinned, 0);
    cr_expect_eq(st.n_free + st.n_ready, WALK_BLOCKS);
    pid_t pid = spawn_helper("helper_kv_walker", name, 4711, n_steps);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0, "status %x", (unsigned)status);
    support_check(s);
}

Test(kv_recover, processes_killed_at_random_leave_no_pin_and_no_wrong_byte)
{
    pid_t pids[N_WALKERS];
    unsigned seed = 20250611;
    char name[64];
    snprintf(name, sizeof name, "%s", support_name());
    struct kv_store *s = walked_store(name);
    printf("kv_recover: seed %u\n", seed);
    srand(seed);
    for (unsigned i = 0; i < N_WALKERS; i++)
        pids[i] = spawn_helper("helper_kv_walker", name, i + 1, NULL);
    for (unsigned i = 0; i < N_KILLS; i++) {
        sleep_us(15000 + (unsigned)rand() % 15000);
        unsigned victim = (unsigned)rand() % N_WALKERS;
        kill_walker(s, pids[victim]);
        if (i % 3 > 0) /* else left to the others, or to the next to open a lease */
            (void)kv_store_reap(s);
        support_check(s);
        pids[victim] = spawn_helper("helper_kv_walker", name, 1000 + i, NULL);
    }
    for (unsigned i = 0; i < N_WALKERS; i++)
        kill_walker(s, pids[i]);
    struct kv_store_stats st = support_stats(s);
    printf("kv_recover: %llu published, %llu evicted, %llu rebuilds\n",
           (unsigned long long)st.n_published, (unsigned long long)st.n_evicted,
           (unsigned long long)st.n_rebuilds);
    cr_expect_gt(st.n_published, 1000);
    cr_expect_gt(st.n_evicted, 1000);
    expect_clean(s, name);
    kv_store_remove(name);
    kv_store_detach(s);
}

Test(kv_recover, a_death_between_any_two_instructions_under_the_lock_is_recovered)
{
    int status;
    pid_t pid = spawn_helper("helper_kv_stepper", NULL, 0, NULL);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
        cr_skip_test("this machine does not allow ptrace");
    cr_expect_eq(status, 0, "status %x", (unsigned)status);
}

/* --- damage -------------------------------------------------------------------------------------
 */

/* The mapping behind a pair of support_pair(8, 3) */
static struct kv_view view_of(struct kv_store *s)
{
    struct kv_view v;
    struct kv_geometry g = {
        .block_size = SUPPORT_BLOCK, .n_blocks = 8, .max_leases = 3, .block_bytes = 64};
    cr_assert_eq(kv_layout_compute(&g, NULL), OK);
    kv_layout_view(&g, (unsigned char *)kv_store_data(s) - g.pool_at, &v);
    return v;
}

static void declare_holder_dead(struct kv_view *v)
{
    v->header->mutex.__data.__lock = 0x40000000; /* FUTEX_OWNER_DIED, futex(2) */
}

Test(kv_recover, rows_without_parent_or_owner_become_free)
{
    struct store_pair p = support_pair(8, 3);
    struct kv_view v = view_of(p.a);
    struct chain c, d;
    uint32_t b[4], e[2], f[1];
    support_chain(&c, 1, 64, 0);
    support_chain(&d, 2, 64, 0);
    support_cache(p.a, &c, 4, b);
    support_cache(p.a, &d, 2, e);
    cr_assert_eq(kv_store_reserve(p.a, 1, f, NULL), OK);
    kv_row_set_state(&v.rows[b[1]], KV_ROW_FREE);
    v.rows[e[0]].generation++;
    v.rows[f[0]].lease = 2; /* not in use */
    v.header->heap_size = v.header->n_free = 77;
    declare_holder_dead(&v);
    cr_expect_eq(support_match(p.b, &c, 4), 1);
    cr_expect_eq(support_match(p.b, &d, 2), 1);
    support_check(p.b);
    struct kv_store_stats st = support_stats(p.a);
    cr_expect_eq(st.n_rebuilds, 1);
    cr_expect_eq(st.n_ready, 2);
    cr_expect_eq(st.n_free, 6);
    cr_expect_eq(st.n_filling, 0);
    support_pair_free(&p);
}

Test(kv_recover, a_rebuild_keeps_pins_filling_rows_and_the_order_of_eviction)
{
    struct store_pair p = support_pair(8, 3);
    struct kv_view v = view_of(p.a);
    struct chain c, d;
    uint32_t b[3], e[3], f[2];
    support_chain(&c, 1, 64, 0);
    support_chain(&d, 2, 64, 0);
    support_cache(p.a, &c, 3, b);
    support_cache(p.a, &d, 3, e);
    cr_assert_eq(support_acquire(p.b, &c, 1, b), 1);
    cr_assert_eq(kv_store_reserve(p.a, 1, f, NULL), OK);
    declare_holder_dead(&v);
    support_check(p.a);
    struct kv_store_stats st = support_stats(p.a);
    cr_expect_eq(st.n_ready, 6);
    cr_expect_eq(st.n_pinned, 1);
    cr_expect_eq(st.n_filling, 1);
    cr_assert_eq(kv_store_reserve(p.a, 2, f, NULL), OK); /* one is free, one is evicted */
    support_check(p.a);
    cr_expect_eq(support_match(p.a, &c, 3), 2); /* c's tail was used before d */
    cr_expect_eq(support_match(p.a, &d, 3), 3);
    support_pair_free(&p);
}
