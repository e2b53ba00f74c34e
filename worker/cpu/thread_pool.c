/* How do several cores work on one step without losing it in waiting?
 * One barrier does everything: starting a job, the phases within it and its end are the same
 * meeting point, so there is one place where threads wait. Invariant: the last to arrive resets the
 * count and the work counter before it moves the epoch, so nobody sees a half-reset barrier.
 * Sleeping: a waiter announces itself before it asks the kernel to sleep on the epoch it saw, and
 * the releaser looks for announcements after moving the epoch: no wake-up is lost.
 * Knows nothing of models; who gets which unit of work must not matter to the result. */
#include "worker/cpu/thread_pool.h"

#include <assert.h>
#include <errno.h>
#include <immintrin.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    LINE_BYTES = 64,
    SPIN_TURNS = 400, /* of about 40 ns to 60 ns: longer than the usual lag between two threads */
    YIELD_TURNS = 4,
};

struct member {
    struct thread_pool *pool;
    uint32_t index;
    pthread_t thread;
};

struct thread_pool {
    atomic_uint n_threads; /* changes only when a failed start is undone */
    uint32_t n_started;    /* threads to join, of members[1..] */
    void (*fn)(void *ctx, uint32_t thread);
    void *ctx;
    bool is_stopping;
    struct member *members;
    _Alignas(LINE_BYTES) atomic_uint epoch; /* moves once a barrier; the futex */
    _Alignas(LINE_BYTES) atomic_uint n_arrived;
    _Alignas(LINE_BYTES) atomic_uint n_sleepers;
    _Alignas(LINE_BYTES) atomic_uint next_unit;
};

static void futex(atomic_uint *word, int op, unsigned value)
{
    /* EAGAIN and EINTR are answers, not failures: the caller looks at the word again */
    syscall(SYS_futex, word, op, value, NULL, NULL, 0);
}

static void wait_past(struct thread_pool *p, unsigned seen)
{
    for (int i = 0; i < SPIN_TURNS; i++) {
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen)
            return;
        _mm_pause();
    }
    for (int i = 0; i < YIELD_TURNS; i++) {
        sched_yield();
        if (atomic_load_explicit(&p->epoch, memory_order_acquire) != seen)
            return;
    }
    atomic_fetch_add(&p->n_sleepers, 1);
    while (atomic_load(&p->epoch) == seen)
        futex(&p->epoch, FUTEX_WAIT_PRIVATE, seen);
    atomic_fetch_sub(&p->n_sleepers, 1);
}

/* The epoch cannot move between reading it and arriving: it moves only once all have arrived. */
void thread_pool_barrier(struct thread_pool *p)
{
    unsigned seen = atomic_load_explicit(&p->epoch, memory_order_relaxed);
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 < p->n_threads) {
        wait_past(p, seen);
        return;
    }
    atomic_store_explicit(&p->n_arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&p->next_unit, 0, memory_order_relaxed);
    atomic_store(&p->epoch, seen + 1);
    if (atomic_load(&p->n_sleepers) > 0)
        futex(&p->epoch, FUTEX_WAKE_PRIVATE, (unsigned)p->n_threads);
}

uint32_t thread_pool_next(struct thread_pool *p)
{
    return atomic_fetch_add_explicit(&p->next_unit, 1, memory_order_relaxed);
}

static void *member_main(void *arg)
{
    struct member *m = arg;
    struct thread_pool *p = m->pool;
    for (;;) {
        thread_pool_barrier(p); /* a job, or the end */
        if (p->is_stopping)
            return NULL;
        p->fn(p->ctx, m->index);
        thread_pool_barrier(p);
    }
}

static enum err start_members(struct thread_pool *p, struct err_info *ei)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    enum err rc = OK;
    const uint32_t n_threads = p->n_threads;
    for (uint32_t i = 1; i < n_threads && rc == OK; i++) {
        p->members[i] = (struct member){.pool = p, .index = i};
        int e = pthread_create(&p->members[i].thread, NULL, member_main, &p->members[i]);
        if (e != 0)
            rc = err_set(ei, ERR_LIMIT, "thread pool: cannot start thread %u of %u: %s", i + 1,
                         n_threads, strerror(e));
        else
            p->n_started++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

enum err thread_pool_new(uint32_t n_threads, struct thread_pool **out, struct err_info *ei)
{
    assert(n_threads >= 1);
    struct thread_pool *p = aligned_alloc(LINE_BYTES, sizeof *p);
    if (!p)
        return err_set(ei, ERR_NOMEM, "thread pool: no memory");
    memset(p, 0, sizeof *p);
    atomic_init(&p->n_threads, n_threads);
    enum err rc = OK;
    p->members = calloc(n_threads, sizeof *p->members);
    if (!p->members) {
        rc = err_set(ei, ERR_NOMEM, "thread pool: no memory for %u threads", n_threads);
        goto fail;
    }
    rc = start_members(p, ei);
    if (rc != OK)
        goto fail;
    *out = p;
    return OK;
fail:
    thread_pool_free(p);
    return rc;
}

void thread_pool_free(struct thread_pool *p)
{
    if (!p)
        return;
    p->is_stopping = true;
    p->n_threads = p->n_started + 1; /* after a failed start fewer wait than were asked for */
    if (p->n_started > 0)
        thread_pool_barrier(p);
    for (uint32_t i = 1; i <= p->n_started; i++)
        pthread_join(p->members[i].thread, NULL);
    free(p->members);
    free(p);
}

uint32_t thread_pool_n_threads(const struct thread_pool *p)
{
    return p->n_threads;
}

void thread_pool_run(struct thread_pool *p, void (*fn)(void *ctx, uint32_t thread), void *ctx)
{
    p->fn = fn;
    p->ctx = ctx;
    thread_pool_barrier(p);
    fn(ctx, 0);
    thread_pool_barrier(p);
}
