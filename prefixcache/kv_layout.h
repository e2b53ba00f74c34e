#pragma once
#include "config/base/err.h"
#include "prefixcache/kv_store.h"

#include <pthread.h>
#include <stdatomic.h>

/* The shared file of the node store, byte for byte. No pointers, only block ids and offsets: each
 * process maps it where it likes. Little-endian, as every machine this runs on.
 *
 *   header   struct kv_header, KV_HEADER_BYTES
 *   rows     struct kv_row [n_blocks], 64 bytes each: one cache line a block
 *   tokens   u32 [n_blocks][block_size]: the token ids of a ready row
 *   buckets  u32 [n_buckets]: head of a chain through row.next, by key   (derived)
 *   heap     u32 [n_blocks]: ids of the evictable rows, next victim first (derived)
 *   leases   struct kv_lease_slot [max_leases], 128 bytes each
 *   pins     u16 [max_leases][n_blocks]: how often that lease pins that block
 *   pool     [n_blocks][block_bytes], at a multiple of 2 MiB: K and V
 *
 * Every section starts at a multiple of 64, in this order; kv_layout_compute has the arithmetic.
 *
 * Truth and derivation. Truth is: a row's state, lease, key, tokens, last_used, parent, generations
 * and depth; a lease's state and owner; the pins. All else (marked `derived`) follows from these
 * and is rebuilt when a lock holder died (kv_recover.c). A row's truth is meaningful by its state:
 * free: none of it; filling: lease; ready: all but lease. It is written before the state that makes
 * it meaningful, by kv_row_set_state, and never changed while in that state (last_used excepted).
 *
 * "Killed between any two instructions" means that the instructions before the kill happened and
 * those after it did not (a kill is a precise exception, and the kernel orders the dead process's
 * stores before the next lock holder). So only the compiler could reorder: kv_row_set_state stops
 * it. */

enum {
    KV_STORE_VERSION = 1, /* of this page; raise with any change of it */
    KV_HEADER_BYTES = 512,
    KV_MAX_LEASES = 1024,
    KV_MAX_PINS = UINT16_MAX, /* of one block by one lease */
};
#define KV_STORE_MAGIC UINT64_C(0x65726f7473766b6e) /* "nkvstore" */
#define KV_POOL_ALIGN (UINT64_C(2) << 20)

enum kv_row_state { KV_ROW_FREE = 0, KV_ROW_FILLING = 1, KV_ROW_READY = 2 };

struct kv_row {
    _Atomic uint16_t state;     /*  0: enum kv_row_state, the commit */
    uint16_t n_tokens;          /*  2: block_size when ready (part blocks may come) */
    uint32_t lease;             /*  4: owner while filling */
    struct block_key key;       /*  8 */
    uint64_t last_used;         /* 24: header.tick then; >= that of every ready child */
    uint32_t parent;            /* 32: ready row before it in the chain, or KV_BLOCK_NONE */
    uint32_t parent_generation; /* 36: the parent's, so that a reused row is not taken for it */
    uint32_t generation;        /* 40: raised each time this row is published */
    uint32_t depth;             /* 44: index of the block in its chain */
    uint32_t n_pins;            /* 48: sum over leases (derived) */
    uint32_t n_children;        /* 52: ready rows whose parent it is (derived) */
    uint32_t heap_pos;          /* 56: index in heap, or KV_BLOCK_NONE (derived) */
    uint32_t next;              /* 60: free list when free, bucket chain when ready (derived) */
};

enum kv_lease_state { KV_LEASE_FREE = 0, KV_LEASE_USED = 1 };

struct kv_pulse_slot {
    _Atomic uint64_t phase, step, since_us;
};

struct kv_lease_slot {
    _Atomic uint32_t state; /*  0: enum kv_lease_state, written last at opening and closing */
    uint32_t tag;           /*  4 */
    int32_t pid;            /*  8: with start: whose it is */
    uint32_t generation;    /* 12: raised at each opening */
    uint64_t start;         /* 16 */
    uint64_t n_pins;        /* 24: sum of its pins (derived) */
    uint32_t n_filling;     /* 32: filling rows of it (derived) */
    uint32_t reserved[7];   /* 36 */
    /* lock-free: pulse[pulse_seq & 1] is valid; the owner writes the other one, then pulse_seq */
    _Atomic uint64_t pulse_seq;    /* 64 */
    struct kv_pulse_slot pulse[2]; /* 72 */
    uint64_t reserved2;            /* 120 */
};

struct kv_header {
    _Atomic uint64_t magic;  /*  0: written last at creation */
    uint32_t version;        /*  8 */
    uint32_t block_size;     /* 12: tokens */
    uint32_t n_blocks;       /* 16 */
    uint32_t max_leases;     /* 20 */
    uint64_t block_bytes;    /* 24 */
    uint64_t size_bytes;     /* 32: of the file */
    uint64_t reserved[3];    /* 40 */
    uint8_t fingerprint[32]; /* 64 */
    uint64_t reserved2[4];   /* 96 */
    /* the lock, and who holds it (0: nobody): for whoever looks at a store that does not move */
    pthread_mutex_t mutex;      /* 128: robust, process-shared; 40 bytes */
    _Atomic int32_t holder_pid; /* 168 */
    uint32_t reserved3[5];      /* 172 */
    /* under the lock */
    uint64_t tick;           /* 192: logical time of use */
    uint32_t free_head;      /* 200: first free row (derived) */
    uint32_t heap_size;      /* 204 (derived) */
    uint32_t n_free;         /* 208 (derived) */
    uint32_t n_filling;      /* 212 (derived) */
    uint32_t n_ready;        /* 216 (derived) */
    uint32_t n_pinned;       /* 220: ready rows with pins (derived) */
    uint64_t n_published;    /* 224 */
    uint64_t n_deduplicated; /* 232 */
    uint64_t n_evicted;      /* 240 */
    uint64_t n_rebuilds;     /* 248 */
    /* without the lock */
    _Atomic uint64_t prompt_tokens[KV_N_SOURCES]; /* 256 */
};

struct kv_geometry {
    uint32_t block_size, n_blocks, max_leases, n_buckets;
    uint64_t block_bytes;
    uint64_t rows_at, tokens_at, buckets_at, heap_at, leases_at, pins_at, pool_at, size_bytes;
};

/* A mapping of it. The geometry is this process's own copy, so that a damaged header cannot send it
 * out of the mapping. */
struct kv_view {
    struct kv_geometry g;
    struct kv_header *header;
    struct kv_row *rows;
    uint32_t *tokens, *buckets, *heap;
    struct kv_lease_slot *leases;
    uint16_t *pins;
    unsigned char *pool;
};

/* Offsets from block_size, n_blocks, max_leases and block_bytes of g. Errors: LIMIT (names the size
 * that is out of range). Pure. */
NODISCARD enum err kv_layout_compute(struct kv_geometry *g, struct err_info *ei);
/* base: start of a mapping of g->size_bytes. */
void kv_layout_view(const struct kv_geometry *g, void *base, struct kv_view *out);

static inline enum kv_row_state kv_row_state(const struct kv_row *r)
{
    return (enum kv_row_state)atomic_load_explicit(&r->state, memory_order_acquire);
}

/* The commit: nothing written before it in the program comes after it, nor the reverse. */
static inline void kv_row_set_state(struct kv_row *r, enum kv_row_state state)
{
    atomic_signal_fence(memory_order_seq_cst);
    atomic_store_explicit(&r->state, (uint16_t)state, memory_order_release);
    atomic_signal_fence(memory_order_seq_cst);
}

static inline uint16_t *kv_pins(const struct kv_view *v, uint32_t lease, uint32_t block)
{
    return v->pins + (size_t)lease * v->g.n_blocks + block;
}

static inline uint32_t *kv_tokens(const struct kv_view *v, uint32_t block)
{
    return v->tokens + (size_t)block * v->g.block_size;
}
