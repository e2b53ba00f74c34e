/* Do the team's threads all run, all meet, and share the work without loss? */
#include "worker/cpu/thread_pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

TestSuite(thread_pool, .timeout = 30);

enum { MAX_THREADS = 5, UNITS = 57, PHASES = 6 };

struct meeting {
    struct thread_pool *pool;
    atomic_uint taken[PHASES][UNITS];
    atomic_uint n_arrived[PHASES];
    atomic_uint n_early;         /* threads that left a barrier before all had come */
    uint32_t plain[MAX_THREADS]; /* written before a barrier, read by others behind it */
    atomic_uint n_stale;
};

static void meet(void *ctx, uint32_t thread)
{
    struct meeting *m = ctx;
    const uint32_t n = thread_pool_n_threads(m->pool);
    for (uint32_t phase = 0; phase < PHASES; phase++) {
        uint32_t unit;
        while ((unit = thread_pool_next(m->pool)) < UNITS)
            atomic_fetch_add(&m->taken[phase][unit], 1);
        if (thread == phase % n && phase % 2) /* long enough for the others to fall asleep */
            usleep(2000);
        m->plain[thread] = phase + 1;
        atomic_fetch_add(&m->n_arrived[phase], 1);
        thread_pool_barrier(m->pool);
        if (atomic_load(&m->n_arrived[phase]) != n)
            atomic_fetch_add(&m->n_early, 1);
        for (uint32_t t = 0; t < n; t++)
            if (m->plain[t] != phase + 1)
                atomic_fetch_add(&m->n_stale, 1);
        thread_pool_barrier(m->pool);
    }
}

Test(thread_pool, each_unit_is_taken_once_and_barriers_hold)
{
    for (uint32_t n = 1; n <= MAX_THREADS; n++) {
        struct meeting m = {0};
        cr_assert_eq(thread_pool_new(n, &m.pool, NULL), OK);
        cr_assert_eq(thread_pool_n_threads(m.pool), n);
        for (int round = 1; round <= 20; round++) {
            memset(m.n_arrived, 0, sizeof m.n_arrived);
            thread_pool_run(m.pool, meet, &m);
            for (int p = 0; p < PHASES; p++)
                for (int u = 0; u < UNITS; u++)
                    cr_assert_eq(m.taken[p][u], round, "%u threads, phase %d, unit %d", n, p, u);
            cr_assert_eq(m.n_early, 0);
            cr_assert_eq(m.n_stale, 0);
        }
        thread_pool_free(m.pool);
    }
}

static void count(void *ctx, uint32_t thread)
{
    atomic_fetch_add((atomic_uint *)ctx, 1 + (thread << 8));
}

Test(thread_pool, a_team_that_slept_wakes_for_the_next_job)
{
    struct thread_pool *pool = NULL;
    cr_assert_eq(thread_pool_new(3, &pool, NULL), OK);
    for (int i = 0; i < 5; i++) {
        atomic_uint n = 0;
        usleep(3000);
        thread_pool_run(pool, count, &n);
        cr_assert_eq(n, 3 + (3 << 8));
    }
    thread_pool_free(pool);
    thread_pool_free(NULL);
}
