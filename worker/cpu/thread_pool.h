#pragma once
#include "config/base/err.h"

#include <stdint.h>

/* A fixed team of threads for one step of arithmetic: all run the same function and meet at
 * barriers. Waiting spins for some microseconds, then sleeps in the kernel, so a busy neighbour on
 * the same core costs its share and no more. Owner: the thread that made it, which is thread 0 of
 * the team. */

struct thread_pool;

/* n_threads >= 1, the caller's included; signals are blocked in the others. Errors: NOMEM, LIMIT
 * (the system gives no more threads). */
NODISCARD enum err thread_pool_new(uint32_t n_threads, struct thread_pool **out,
                                   struct err_info *ei);
void thread_pool_free(struct thread_pool *p); /* joins the threads; NULL is legal */
uint32_t thread_pool_n_threads(const struct thread_pool *p);

/* fn(ctx, thread) on every thread of the team, thread = 0..n_threads-1; returns when all are done.
 * Owner only. */
void thread_pool_run(struct thread_pool *p, void (*fn)(void *ctx, uint32_t thread), void *ctx);

/* Within fn: nobody passes before everybody has arrived; what was written before is seen after. */
void thread_pool_barrier(struct thread_pool *p);

/* Within fn: the next unit of work of this phase: 0, 1, 2, ... each handed out once. A phase ends
 * at a barrier, which starts the count again; whoever sees a number past its last unit stops. */
uint32_t thread_pool_next(struct thread_pool *p);
