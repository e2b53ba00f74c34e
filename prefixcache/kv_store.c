/* Which KV blocks exist on the node, and who holds them? The public face: maps the shared file,
 * takes the lock, and strings the parts together (rows, index, eviction, leases, recovery).
 * Invariant: whatever is under the lock is changed here only between lock() and unlock(), and
 * lock() returns on a whole store even when the last holder was killed. Does not know what a
 * block's bytes mean. */
#include "prefixcache/kv_store.h"

#include "config/fingerprint.h"
#include "ipc/shm.h"
#include "prefixcache/kv_check.h"
#include "prefixcache/kv_evict.h"
#include "prefixcache/kv_index.h"
#include "prefixcache/kv_layout.h"
#include "prefixcache/kv_lease.h"
#include "prefixcache/kv_recover.h"
#include "prefixcache/kv_rows.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct kv_store {
    struct shm shm;
    struct kv_view view;
    uint32_t lease; /* KV_LEASE_NONE before open */
    int32_t pid;    /* who writes itself down as holder */
};

/* --- lock ---------------------------------------------------------------------------------------
 */

static struct kv_view *lock(struct kv_store *s)
{
    struct kv_header *h = s->view.header;
    int rc = pthread_mutex_lock(&h->mutex);
    if (rc == EOWNERDEAD) {
        kv_recover_rebuild(&s->view);
        rc = pthread_mutex_consistent(&h->mutex);
    }
    assert(rc == 0);
    atomic_store_explicit(&h->holder_pid, s->pid, memory_order_relaxed);
    return &s->view;
}

static void unlock(struct kv_store *s)
{
    struct kv_header *h = s->view.header;
    atomic_store_explicit(&h->holder_pid, 0, memory_order_relaxed);
    int rc = pthread_mutex_unlock(&h->mutex);
    assert(rc == 0);
    (void)rc;
}

/* --- mapping ------------------------------------------------------------------------------------
 */

static enum err init_mutex(pthread_mutex_t *m, struct err_info *ei)
{
    pthread_mutexattr_t attr;
    int rc = pthread_mutexattr_init(&attr);
    if (rc != 0)
        return err_set(ei, ERR_IO, "kv store: mutex: %s", strerror(rc));
    rc = pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    if (rc == 0)
        rc = pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (rc == 0)
        rc = pthread_mutex_init(m, &attr);
    pthread_mutexattr_destroy(&attr);
    return rc == 0 ? OK : err_set(ei, ERR_IO, "kv store: mutex: %s", strerror(rc));
}

/* The file is new, hence zeroed: rows are free, leases unused, pins and counters 0. */
static enum err init_store(struct kv_view *v, const struct kv_store_config *cfg,
                           struct err_info *ei)
{
    struct kv_header *h = v->header;
    h->version = KV_STORE_VERSION;
    h->block_size = v->g.block_size;
    h->n_blocks = v->g.n_blocks;
    h->max_leases = v->g.max_leases;
    h->block_bytes = v->g.block_bytes;
    h->size_bytes = v->g.size_bytes;
    memcpy(h->fingerprint, cfg->fingerprint.bytes, sizeof h->fingerprint);
    enum err rc = init_mutex(&h->mutex, ei);
    if (rc != OK)
        return rc;
    kv_recover_rebuild(v); /* of nothing: makes the free list */
    h->n_rebuilds = 0;
    atomic_store_explicit(&h->magic, KV_STORE_MAGIC, memory_order_release);
    return OK;
}

enum err kv_store_create(const struct kv_store_config *cfg, struct kv_store **out,
                         struct err_info *ei)
{
    struct kv_geometry g = {.block_size = cfg->block_size,
                            .n_blocks = cfg->n_blocks,
                            .max_leases = cfg->max_leases,
                            .block_bytes = cfg->block_bytes};
    enum err rc = kv_layout_compute(&g, ei);
    if (rc != OK)
        return rc;
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(ei, ERR_NOMEM, "kv store: no memory");
    s->lease = KV_LEASE_NONE;
    s->pid = (int32_t)getpid();
    rc = shm_create(cfg->name, (size_t)g.size_bytes, &s->shm, ei);
    if (rc != OK) {
        free(s);
        return rc;
    }
    kv_layout_view(&g, s->shm.data, &s->view);
    rc = init_store(&s->view, cfg, ei);
    if (rc != OK)
        goto fail;
    *out = s;
    return OK;
fail:
    kv_store_detach(s);
    shm_remove(cfg->name);
    return rc;
}

static enum err check_header(const char *name, const struct shm *shm,
                             const struct fingerprint *want, struct kv_geometry *g,
                             struct err_info *ei)
{
    const struct kv_header *h = shm->data;
    if (shm->size_bytes < KV_HEADER_BYTES ||
        atomic_load_explicit(&h->magic, memory_order_acquire) != KV_STORE_MAGIC)
        return err_set(ei, ERR_PARSE, "kv store: %s: not a store, or not finished", name);
    if (h->version != KV_STORE_VERSION)
        return err_set(ei, ERR_PARSE, "kv store: %s: layout version %u, this program has %d", name,
                       h->version, KV_STORE_VERSION);
    *g = (struct kv_geometry){.block_size = h->block_size,
                              .n_blocks = h->n_blocks,
                              .max_leases = h->max_leases,
                              .block_bytes = h->block_bytes};
    struct err_info why = {{0}};
    if (kv_layout_compute(g, &why) != OK)
        return err_set(ei, ERR_PARSE, "kv store: %s: header: %.300s", name, why.text);
    if (g->size_bytes != h->size_bytes || g->size_bytes != shm->size_bytes)
        return err_set(ei, ERR_PARSE,
                       "kv store: %s: %zu bytes, its header says %" PRIu64 ", its sizes %" PRIu64,
                       name, shm->size_bytes, h->size_bytes, g->size_bytes);
    struct fingerprint have;
    memcpy(have.bytes, h->fingerprint, sizeof have.bytes);
    if (!fingerprint_equal(&have, want)) {
        char a[65], b[65];
        fingerprint_hex(&have, a);
        fingerprint_hex(want, b);
        return err_set(ei, ERR_UNSUPPORTED, "kv store: %s: its fingerprint is %s, ours %s", name, a,
                       b);
    }
    return OK;
}

enum err kv_store_attach(const char *name, const struct fingerprint *fingerprint,
                         struct kv_store **out, struct err_info *ei)
{
    struct kv_geometry g;
    struct kv_store *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(ei, ERR_NOMEM, "kv store: no memory");
    s->lease = KV_LEASE_NONE;
    s->pid = (int32_t)getpid();
    enum err rc = shm_open_existing(name, &s->shm, ei);
    if (rc != OK) {
        free(s);
        return rc;
    }
    rc = check_header(name, &s->shm, fingerprint, &g, ei);
    if (rc != OK)
        goto fail;
    kv_layout_view(&g, s->shm.data, &s->view);
    *out = s;
    return OK;
fail:
    kv_store_detach(s);
    return rc;
}

void kv_store_detach(struct kv_store *s)
{
    if (!s)
        return;
    shm_close(&s->shm);
    free(s);
}

void kv_store_remove(const char *name)
{
    shm_remove(name);
}

uint32_t kv_store_block_size(const struct kv_store *s)
{
    return s->view.g.block_size;
}

size_t kv_store_block_bytes(const struct kv_store *s)
{
    return (size_t)s->view.g.block_bytes;
}

uint32_t kv_store_n_blocks(const struct kv_store *s)
{
    return s->view.g.n_blocks;
}

void *kv_store_data(const struct kv_store *s)
{
    return s->view.pool;
}

/* --- leases -------------------------------------------------------------------------------------
 */

enum err kv_store_lease_open(struct kv_store *s, struct process_id owner, uint32_t tag,
                             struct err_info *ei)
{
    assert(s->lease == KV_LEASE_NONE);
    s->lease = kv_lease_open(lock(s), owner, tag);
    unlock(s);
    if (s->lease == KV_LEASE_NONE && kv_store_reap(s) > 0) {
        s->lease = kv_lease_open(lock(s), owner, tag);
        unlock(s);
    }
    if (s->lease == KV_LEASE_NONE)
        return err_set(ei, ERR_LIMIT, "kv store: all %u leases are in use", s->view.g.max_leases);
    return OK;
}

void kv_store_lease_close(struct kv_store *s)
{
    if (s->lease == KV_LEASE_NONE)
        return;
    kv_lease_close(lock(s), s->lease);
    unlock(s);
    s->lease = KV_LEASE_NONE;
}

uint32_t kv_store_lease(const struct kv_store *s)
{
    return s->lease;
}

/* /proc is asked without the lock; the generation tells whether it is the same lease afterwards */
uint32_t kv_store_reap(struct kv_store *s)
{
    uint32_t n_reaped = 0;
    for (uint32_t l = 0; l < s->view.g.max_leases; l++) {
        if (l == s->lease || !kv_lease_is_used(&s->view, l))
            continue;
        struct kv_view *v = lock(s);
        bool is_used = kv_lease_is_used(v, l);
        struct process_id owner = kv_lease_owner(v, l);
        uint32_t generation = v->leases[l].generation;
        unlock(s);
        if (!is_used || process_is_alive(owner))
            continue;
        v = lock(s);
        if (kv_lease_is_used(v, l) && v->leases[l].generation == generation) {
            kv_lease_close(v, l);
            n_reaped++;
        }
        unlock(s);
    }
    return n_reaped;
}

uint32_t kv_store_leases(struct kv_store *s, struct kv_lease_info *out, uint32_t max)
{
    uint32_t n = 0;
    const struct kv_view *v = lock(s);
    for (uint32_t l = 0; l < v->g.max_leases && n < max; l++) {
        if (!kv_lease_is_used(v, l))
            continue;
        uint64_t n_pins = v->leases[l].n_pins;
        out[n++] =
            (struct kv_lease_info){.lease = l,
                                   .tag = v->leases[l].tag,
                                   .owner = kv_lease_owner(v, l),
                                   .n_pins = n_pins < UINT32_MAX ? (uint32_t)n_pins : UINT32_MAX,
                                   .n_filling = v->leases[l].n_filling};
    }
    unlock(s);
    return n;
}

/* --- sequences ----------------------------------------------------------------------------------
 */

/* The ready block that continues the chain after parent, or KV_BLOCK_NONE. */
static uint32_t find_next(const struct kv_view *v, const struct block_key *key,
                          const uint32_t *tokens, uint32_t parent)
{
    uint32_t b = kv_index_find(v, key);
    return b != KV_BLOCK_NONE && kv_index_is_same(v, b, tokens, parent) ? b : KV_BLOCK_NONE;
}

uint32_t kv_store_acquire(struct kv_store *s, const struct block_key *keys, const uint32_t *tokens,
                          uint32_t n_keys, uint32_t *blocks)
{
    assert(s->lease != KV_LEASE_NONE);
    uint32_t n = 0, parent = KV_BLOCK_NONE;
    struct kv_view *v = lock(s);
    uint64_t tick = ++v->header->tick;
    for (; n < n_keys; n++) {
        kv_index_prefetch(v, keys, n_keys, n, s->lease);
        uint32_t b = find_next(v, &keys[n], tokens + (size_t)n * v->g.block_size, parent);
        if (b == KV_BLOCK_NONE || !kv_rows_pin(v, b, s->lease))
            break;
        kv_rows_touch(v, b, tick);
        blocks[n] = parent = b;
    }
    unlock(s);
    return n;
}

/* Makes n rows free. False when there are not so many to be had. */
static bool make_room(struct kv_view *v, uint32_t n)
{
    const struct kv_header *h = v->header;
    if ((uint64_t)h->n_free + (h->n_ready - h->n_pinned) < n)
        return false;
    while (h->n_free < n) {
        uint32_t victim = kv_evict_victim(v);
        if (victim == KV_BLOCK_NONE) /* unpinned rows with pinned children: a caller's disorder */
            return false;
        kv_rows_evict(v, victim);
    }
    return true;
}

enum err kv_store_reserve(struct kv_store *s, uint32_t n, uint32_t *blocks, struct err_info *ei)
{
    assert(s->lease != KV_LEASE_NONE);
    struct kv_view *v = lock(s);
    bool has_room = make_room(v, n);
    for (uint32_t i = 0; has_room && i < n; i++)
        blocks[i] = kv_rows_take(v, s->lease);
    uint32_t n_free = v->header->n_free, n_evictable = v->header->n_ready - v->header->n_pinned;
    unlock(s);
    if (!has_room)
        return err_set(ei, ERR_BUSY, "kv store: no room: %u blocks wanted, %u free, %u evictable",
                       n, n_free, n_evictable);
    return OK;
}

static uint32_t publish_locked(struct kv_view *v, uint32_t block, const struct block_key *key,
                               uint32_t parent, const uint32_t *tokens)
{
    uint32_t lease = v->rows[block].lease;
    /* after a collision the parent is private, and so must be all that follows it */
    if (parent != KV_BLOCK_NONE && kv_row_state(&v->rows[parent]) != KV_ROW_READY)
        return block;
    assert(parent == KV_BLOCK_NONE || *kv_pins(v, lease, parent) > 0);
    uint32_t other = kv_index_find(v, key);
    if (other == KV_BLOCK_NONE) {
        kv_rows_publish(v, block, key, parent, tokens);
        return block;
    }
    if (!kv_index_is_same(v, other, tokens, parent) || !kv_rows_pin(v, other, lease))
        return block;
    kv_rows_touch(v, other,
                  parent == KV_BLOCK_NONE ? ++v->header->tick : v->rows[parent].last_used);
    kv_rows_give_back(v, block);
    v->header->n_deduplicated++;
    return other;
}

uint32_t kv_store_publish(struct kv_store *s, uint32_t block, const struct block_key *key,
                          uint32_t parent, const uint32_t *tokens)
{
    assert(block < s->view.g.n_blocks);
    assert(parent == KV_BLOCK_NONE || parent < s->view.g.n_blocks);
    struct kv_view *v = lock(s);
    assert(kv_row_state(&v->rows[block]) == KV_ROW_FILLING && v->rows[block].lease == s->lease);
    uint32_t out = publish_locked(v, block, key, parent, tokens);
    unlock(s);
    return out;
}

void kv_store_release(struct kv_store *s, const uint32_t *blocks, uint32_t n)
{
    if (n == 0)
        return;
    struct kv_view *v = lock(s);
    uint64_t tick = ++v->header->tick;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t b = blocks[i];
        assert(b < v->g.n_blocks);
        if (kv_row_state(&v->rows[b]) == KV_ROW_READY) {
            kv_rows_touch(v, b, tick);
            kv_rows_unpin(v, b, s->lease, 1);
        } else {
            assert(v->rows[b].lease == s->lease);
            kv_rows_give_back(v, b);
        }
    }
    unlock(s);
}

/* --- looking on ---------------------------------------------------------------------------------
 */

uint32_t kv_store_match(struct kv_store *s, const struct block_key *keys, const uint32_t *tokens,
                        uint32_t n_keys)
{
    uint32_t n = 0, parent = KV_BLOCK_NONE;
    const struct kv_view *v = lock(s);
    for (; n < n_keys; n++) {
        kv_index_prefetch(v, keys, n_keys, n, KV_LEASE_NONE);
        parent = find_next(v, &keys[n], tokens + (size_t)n * v->g.block_size, parent);
        if (parent == KV_BLOCK_NONE)
            break;
    }
    unlock(s);
    return n;
}

void kv_store_count_prompt(struct kv_store *s, enum kv_source source, uint64_t n_tokens)
{
    assert(source < KV_N_SOURCES);
    atomic_fetch_add_explicit(&s->view.header->prompt_tokens[source], n_tokens,
                              memory_order_relaxed);
}

void kv_store_get_stats(struct kv_store *s, struct kv_store_stats *out)
{
    const struct kv_view *v = lock(s);
    struct kv_header *h = v->header;
    *out = (struct kv_store_stats){
        .n_blocks = v->g.n_blocks,
        .n_free = h->n_free,
        .n_filling = h->n_filling,
        .n_ready = h->n_ready,
        .n_pinned = h->n_pinned,
        .n_published = h->n_published,
        .n_deduplicated = h->n_deduplicated,
        .n_evicted = h->n_evicted,
        .n_rebuilds = h->n_rebuilds,
        .has_huge_pages = s->shm.has_huge_pages,
    };
    for (uint32_t l = 0; l < v->g.max_leases; l++)
        out->n_leases += kv_lease_is_used(v, l);
    unlock(s);
    for (unsigned i = 0; i < KV_N_SOURCES; i++)
        out->prompt_tokens[i] = atomic_load_explicit(&h->prompt_tokens[i], memory_order_relaxed);
}

enum err kv_store_check(struct kv_store *s, struct err_info *ei)
{
    uint32_t *counts = calloc(s->view.g.n_blocks, sizeof *counts);
    if (!counts)
        return err_set(ei, ERR_NOMEM, "kv store: no memory for a check");
    enum err rc = kv_check_walk(lock(s), counts, ei);
    unlock(s);
    free(counts);
    return rc;
}

/* --- liveness -----------------------------------------------------------------------------------
 */

void kv_store_pulse(struct kv_store *s, enum worker_phase phase, uint64_t step, uint64_t now_us)
{
    assert(s->lease != KV_LEASE_NONE);
    kv_lease_write_pulse(&s->view, s->lease,
                         &(struct worker_pulse){.phase = phase, .step = step, .since_us = now_us});
}

bool kv_store_read_pulse(struct kv_store *s, uint32_t lease, struct worker_pulse *out)
{
    return kv_lease_read_pulse(&s->view, lease, out);
}
