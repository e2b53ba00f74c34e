/* Which process holds what, and how is it? Invariant: a free slot has no pins and owns no filling
 * row; a slot in use names one process, and its state is written last at opening and at closing, so
 * that a kill in between leaves either nothing or a lease to be reaped. Does not know whether a
 * process lives: kv_store.c asks, without the lock. */
#include "prefixcache/kv_lease.h"
#include "prefixcache/kv_rows.h"

#include <assert.h>

static void set_state(struct kv_lease_slot *l, enum kv_lease_state state)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&l->state, (uint32_t)state, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

bool kv_lease_is_used(const struct kv_view *v, uint32_t lease)
{
    return lease < v->g.max_leases &&
           atomic_load_explicit(&v->leases[lease].state, memory_order_acquire) == KV_LEASE_USED;
}

struct process_id kv_lease_owner(const struct kv_view *v, uint32_t lease)
{
    return (struct process_id){.pid = v->leases[lease].pid, .start = v->leases[lease].start};
}

uint32_t kv_lease_open(struct kv_view *v, struct process_id owner, uint32_t tag)
{
    uint32_t lease = 0;
    while (lease < v->g.max_leases && kv_lease_is_used(v, lease))
        lease++;
    if (lease == v->g.max_leases)
        return KV_LEASE_NONE;
    struct kv_lease_slot *l = &v->leases[lease];
    l->tag = tag;
    l->pid = owner.pid;
    l->start = owner.start;
    l->generation++;
    l->n_pins = 0;
    l->n_filling = 0;
    kv_lease_write_pulse(v, lease, &(struct worker_pulse){.phase = PHASE_STARTING});
    set_state(l, KV_LEASE_USED);
    return lease;
}

void kv_lease_close(struct kv_view *v, uint32_t lease)
{
    struct kv_lease_slot *l = &v->leases[lease];
    assert(kv_lease_is_used(v, lease));
    for (uint32_t b = 0; b < v->g.n_blocks && l->n_filling > 0; b++) {
        if (kv_row_state(&v->rows[b]) == KV_ROW_FILLING && v->rows[b].lease == lease)
            kv_rows_give_back(v, b);
    }
    for (uint32_t b = 0; b < v->g.n_blocks && l->n_pins > 0; b++) {
        uint16_t n = *kv_pins(v, lease, b);
        if (n > 0)
            kv_rows_unpin(v, b, lease, n);
    }
    assert(l->n_filling == 0 && l->n_pins == 0);
    set_state(l, KV_LEASE_FREE);
}

void kv_lease_write_pulse(struct kv_view *v, uint32_t lease, const struct worker_pulse *pulse)
{
    struct kv_lease_slot *l = &v->leases[lease];
    uint64_t seq = atomic_load_explicit(&l->pulse_seq, memory_order_relaxed) + 1;
    struct kv_pulse_slot *p = &l->pulse[seq & 1];
    /* a reader that sees any of these sees the previous seq at its second look */
    atomic_thread_fence(memory_order_release);
    atomic_store_explicit(&p->phase, (uint64_t)pulse->phase, memory_order_relaxed);
    atomic_store_explicit(&p->step, pulse->step, memory_order_relaxed);
    atomic_store_explicit(&p->since_us, pulse->since_us, memory_order_relaxed);
    atomic_store_explicit(&l->pulse_seq, seq, memory_order_release);
}

bool kv_lease_read_pulse(const struct kv_view *v, uint32_t lease, struct worker_pulse *out)
{
    enum { MAX_TRIES = 100 };
    if (!kv_lease_is_used(v, lease))
        return false;
    struct kv_lease_slot *l = &v->leases[lease];
    for (unsigned i = 0; i < MAX_TRIES; i++) {
        uint64_t seq = atomic_load_explicit(&l->pulse_seq, memory_order_acquire);
        struct kv_pulse_slot *p = &l->pulse[seq & 1];
        out->phase = (enum worker_phase)atomic_load_explicit(&p->phase, memory_order_relaxed);
        out->step = atomic_load_explicit(&p->step, memory_order_relaxed);
        out->since_us = atomic_load_explicit(&p->since_us, memory_order_relaxed);
        atomic_thread_fence(memory_order_acquire);
        if (atomic_load_explicit(&l->pulse_seq, memory_order_relaxed) == seq)
            return true;
    }
    return false;
}
