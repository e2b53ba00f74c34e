/* Who runs, who waits, and who is first? Keeps both in the order of their claim (priority, then
 * arrival): a preempted sequence comes to the front of its priority by itself, and the last one
 * that runs is always the one to preempt. Decides nothing and knows no blocks. */
#include "worker/sequence_queue.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum err sequence_queue_init(struct sequence_queue *q, uint32_t max_running, struct err_info *ei)
{
    *q = (struct sequence_queue){.max_running = max_running};
    q->running = calloc(max_running, sizeof(struct sequence *));
    if (!q->running)
        return err_set(ei, ERR_NOMEM, "scheduler: no memory for %u sequences", max_running);
    return OK;
}

void sequence_queue_fini(struct sequence_queue *q)
{
    assert(q->n_running == 0);
    while (q->waiting)
        sequence_free(sequence_queue_first_waiting(q));
    free(q->running);
    *q = (struct sequence_queue){0};
}

void sequence_queue_wait_take(struct sequence_queue *q, struct sequence *s)
{
    struct sequence **at = &q->waiting;
    while (*at && sequence_goes_before(*at, s))
        at = &(*at)->next;
    s->next = *at;
    *at = s;
    q->n_waiting++;
}

void sequence_queue_run_take(struct sequence_queue *q, struct sequence *s)
{
    assert(q->n_running < q->max_running);
    uint32_t at = q->n_running++;
    for (; at > 0 && sequence_goes_before(s, q->running[at - 1]); at--)
        q->running[at] = q->running[at - 1];
    q->running[at] = s;
}

struct sequence *sequence_queue_stop_running(struct sequence_queue *q, uint32_t at)
{
    assert(at < q->n_running);
    struct sequence *s = q->running[at];
    q->n_running--;
    memmove(&q->running[at], &q->running[at + 1], (q->n_running - at) * sizeof s);
    return s;
}

struct sequence *sequence_queue_stop_waiting(struct sequence_queue *q, uint64_t id)
{
    for (struct sequence **at = &q->waiting; *at; at = &(*at)->next) {
        struct sequence *s = *at;
        if (s->id != id)
            continue;
        *at = s->next;
        s->next = NULL;
        q->n_waiting--;
        return s;
    }
    return NULL;
}

struct sequence *sequence_queue_first_waiting(struct sequence_queue *q)
{
    return q->waiting ? sequence_queue_stop_waiting(q, q->waiting->id) : NULL;
}

uint32_t sequence_queue_find_running(const struct sequence_queue *q, uint64_t id)
{
    uint32_t at = 0;
    while (at < q->n_running && q->running[at]->id != id)
        at++;
    return at;
}

bool sequence_queue_has(const struct sequence_queue *q, uint64_t id)
{
    if (sequence_queue_find_running(q, id) < q->n_running)
        return true;
    for (const struct sequence *s = q->waiting; s; s = s->next)
        if (s->id == id)
            return true;
    return false;
}

enum err sequence_queue_check(const struct sequence_queue *q, struct err_info *ei)
{
    for (uint32_t i = 1; i < q->n_running; i++)
        if (!sequence_goes_before(q->running[i - 1], q->running[i]))
            return err_set(ei, ERR_PARSE, "scheduler: running sequence %u is out of order", i);
    uint32_t n = 0;
    for (const struct sequence *s = q->waiting; s; s = s->next, n++)
        if (s->next && !sequence_goes_before(s, s->next))
            return err_set(ei, ERR_PARSE, "scheduler: waiting sequence %u is out of order", n);
    if (n != q->n_waiting)
        return err_set(ei, ERR_PARSE, "scheduler: %u wait, %u are counted", n, q->n_waiting);
    return OK;
}
