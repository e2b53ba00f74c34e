/* Kills a process between every two instructions of the store's critical sections, without killing
 * it: a traced child runs one operation instruction by instruction (PTRACE_SINGLESTEP), and
 * whenever it holds the lock its shared memory is copied. In the copy the lock's owner is declared
 * dead, as the kernel would, and the store must recover: kv_store_check holds, all leases are
 * reaped, no row is lost, each ready block has the bytes of its key. Some copies are recovered
 * under the stepper again: the rebuilder dies at every instruction too.
 *
 *   helper_kv_stepper      exit: 0 good, 1 a violation (on stderr), 77 tracing is not allowed here
 */
#include "prefixcache/kv_layout.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK = 16, N_BLOCKS = 6, BYTES = 64, LENGTH = 5, SAMPLE = 211 };
#ifdef __SANITIZE_ADDRESS__
enum { EVERY = 16 }; /* instrumented code has many more instructions, and judging is slow */
#else
enum { EVERY = 1 };
#endif
enum { OWNER_DIED = 0x40000000, WAITERS = (int)0x80000000 }; /* futex(2), robust futexes */

struct stage {
    struct kv_store *s;      /* where operations run */
    struct kv_store *copy;   /* where deaths are recovered */
    struct kv_store *second; /* where deaths of the rebuilder are */
    struct kv_geometry g;
    struct block_key root;
    /* two chains with a common first block, and one to leave stale rows behind */
    uint32_t tokens[3][LENGTH * BLOCK];
    struct block_key keys[3][LENGTH];
    uint32_t blocks[LENGTH];
    uint32_t n_held, n_steps, n_deaths, n_rebuild_deaths;
};

static _Noreturn void die(const char *what, const char *why)
{
    fprintf(stderr, "helper_kv_stepper: %s: %s\n", what, why);
    exit(1);
}

static unsigned char *base_of(const struct stage *st, struct kv_store *s)
{
    return (unsigned char *)kv_store_data(s) - st->g.pool_at;
}

static void copy_store(const struct stage *st, struct kv_store *to, struct kv_store *from)
{
    size_t n = st->g.pins_at + st->g.max_leases * N_BLOCKS * sizeof(uint16_t);
    memcpy(base_of(st, to), base_of(st, from), n);
    memcpy(kv_store_data(to), kv_store_data(from), (size_t)N_BLOCKS * BYTES);
}

static int *lock_word(const struct stage *st, struct kv_store *s)
{
    return &((struct kv_header *)base_of(st, s))->mutex.__data.__lock;
}

static struct kv_store *new_store(void)
{
    static unsigned n;
    char name[64];
    struct kv_store *s = NULL;
    struct err_info ei = {{0}};
    snprintf(name, sizeof name, "kvnode-test-%d-step%u", (int)getpid(), n++);
    struct kv_store_config cfg = {.name = name,
                                  .block_size = BLOCK,
                                  .block_bytes = BYTES,
                                  .n_blocks = N_BLOCKS,
                                  .max_leases = 3};
    if (kv_store_create(&cfg, &s, &ei) != OK)
        die("create", ei.text);
    kv_store_remove(name);
    return s;
}

/* --- operations: run by the child ---------------------------------------------------------------
 */

static void fill(struct stage *st, uint32_t chain, uint32_t i, uint32_t block)
{
    for (size_t k = 0; k < BYTES; k += 16)
        memcpy((char *)kv_store_data(st->s) + block * BYTES + k, st->keys[chain][i].bytes, 16);
}

static void publish(struct stage *st, uint32_t chain, uint32_t i)
{
    uint32_t parent = i > 0 ? st->blocks[i - 1] : KV_BLOCK_NONE;
    fill(st, chain, i, st->blocks[i]);
    st->blocks[i] = kv_store_publish(st->s, st->blocks[i], &st->keys[chain][i], parent,
                                     st->tokens[chain] + i * BLOCK);
}

static void take(struct stage *st, uint32_t n)
{
    if (kv_store_reserve(st->s, n, st->blocks + st->n_held, NULL) != OK)
        die("reserve", "no room");
    st->n_held += n;
}

static void acquire(struct stage *st, uint32_t chain)
{
    st->n_held = kv_store_acquire(st->s, st->keys[chain], st->tokens[chain], LENGTH, st->blocks);
}

static void open_lease(struct stage *st)
{
    struct process_id dead = process_self();
    dead.start++; /* nobody: reaped in the copies, where it counts */
    if (kv_store_lease_open(st->s, dead, 0, NULL) != OK)
        die("lease", "none free");
}

/* Every row has been another block before, the first lease that of a process which lives on: what
 * is left of them must not be taken for the new ones. */
static void leave_stale_rows(struct stage *st)
{
    uint32_t all[N_BLOCKS];
    if (kv_store_lease_open(st->s, process_self(), 0, NULL) != OK)
        die("lease", "none free");
    take(st, LENGTH);
    for (uint32_t i = 0; i < LENGTH; i++)
        publish(st, 2, i);
    kv_store_release(st->s, st->blocks, LENGTH);
    if (kv_store_reserve(st->s, N_BLOCKS, all, NULL) != OK)
        die("reserve", "no room");
    kv_store_release(st->s, all, N_BLOCKS);
    kv_store_lease_close(st->s);
    st->n_held = 0;
}

/* Chain 0 published and released: 3 cached blocks of 6. */
static void cache_chain(struct stage *st)
{
    take(st, 3);
    for (uint32_t i = 0; i < 3; i++)
        publish(st, 0, i);
    kv_store_release(st->s, st->blocks, 3);
    st->n_held = 0;
}

static void op_open(struct stage *st)
{
    open_lease(st);
}

static void op_reserve(struct stage *st)
{
    take(st, 2);
}

static void op_publish(struct stage *st)
{
    publish(st, 0, 0);
    publish(st, 0, 1);
}

static void op_acquire(struct stage *st)
{
    acquire(st, 0);
}

static void op_evict(struct stage *st)
{
    take(st, 5);
}

static void op_twin(struct stage *st)
{
    publish(st, 0, 0);
}

static void op_fork(struct stage *st)
{
    publish(st, 1, 1);
}

static void op_release(struct stage *st)
{
    kv_store_release(st->s, st->blocks, st->n_held);
}

static void op_release_tail(struct stage *st)
{
    kv_store_release(st->s, st->blocks + 2, 1); /* the last of its chain, its parents held */
}

static void op_close(struct stage *st)
{
    kv_store_lease_close(st->s);
}

static void op_reap(struct stage *st)
{
    (void)kv_store_reap(st->s);
}

static void op_rebuild(struct stage *st)
{
    struct kv_store_stats stats;
    kv_store_get_stats(st->s, &stats); /* takes the lock, whose owner is dead */
}

/* --- what each operation starts from ------------------------------------------------------------
 */

static void from_nothing(struct stage *st)
{
    (void)st;
}

static void from_filling(struct stage *st)
{
    open_lease(st);
    take(st, 2);
}

static void from_lease(struct stage *st)
{
    open_lease(st);
}

static void from_cached(struct stage *st)
{
    open_lease(st);
    cache_chain(st);
}

static void from_twin(struct stage *st)
{
    from_cached(st);
    take(st, 1);
}

static void from_fork(struct stage *st)
{
    from_cached(st);
    acquire(st, 1);
    take(st, 1);
}

static void from_held(struct stage *st)
{
    from_cached(st);
    acquire(st, 0);
    take(st, 2);
}

/* a lease of the dead, and a handle without one to reap it */
static void from_orphans(struct stage *st)
{
    from_held(st);
    copy_store(st, st->copy, st->s);
    kv_store_detach(st->s);
    st->s = new_store();
    copy_store(st, st->s, st->copy);
}

/* --- judging a copy -----------------------------------------------------------------------------
 */

static void check(struct kv_store *s, const char *op, const char *when)
{
    struct err_info ei = {{0}};
    char what[128];
    snprintf(what, sizeof what, "%s: %s", op, when);
    if (kv_store_check(s, &ei) != OK)
        die(what, ei.text);
}

static void verify_bytes(struct stage *st, struct kv_store *s, const char *op)
{
    uint32_t blocks[LENGTH];
    for (uint32_t c = 0; c < 2; c++) {
        uint32_t n = kv_store_acquire(s, st->keys[c], st->tokens[c], LENGTH, blocks);
        for (uint32_t i = 0; i < n; i++) {
            for (size_t k = 0; k < BYTES; k += 16) {
                if (memcmp((char *)kv_store_data(s) + blocks[i] * BYTES + k, st->keys[c][i].bytes,
                           16) != 0)
                    die(op, "wrong bytes");
            }
        }
        kv_store_release(s, blocks, n);
    }
}

static uint32_t count_ready(const struct kv_view *v)
{
    uint32_t n = 0;
    for (uint32_t b = 0; b < N_BLOCKS; b++)
        n += kv_row_state(&v->rows[b]) == KV_ROW_READY;
    return n;
}

/* A ready row's key is the hash of its parent's key and its own tokens. */
static void verify_keys(const struct stage *st, const struct kv_view *v, const char *op)
{
    for (uint32_t b = 0; b < N_BLOCKS; b++) {
        const struct kv_row *r = &v->rows[b];
        struct block_key key;
        if (kv_row_state(r) != KV_ROW_READY)
            continue;
        prefix_hash_chain(r->parent == KV_BLOCK_NONE ? &st->root : &v->rows[r->parent].key,
                          kv_tokens(v, b), BLOCK, BLOCK, &key);
        if (memcmp(&key, &r->key, sizeof key) != 0)
            die(op, "a ready row's key is not that of its tokens");
    }
}

/* s: a copy whose lock's owner is dead. */
static void recover(struct stage *st, struct kv_store *s, const char *op)
{
    struct kv_store_stats before, after;
    struct kv_view v;
    kv_layout_view(&st->g, base_of(st, s), &v);
    uint32_t n_ready = count_ready(&v);
    kv_store_get_stats(s, &before);
    if (before.n_rebuilds == 0)
        die(op, "the store did not notice the death");
    if (before.n_ready != n_ready)
        die(op, "the rebuild dropped a ready row");
    verify_keys(st, &v, op);
    check(s, op, "after the death");
    (void)kv_store_reap(s);
    check(s, op, "after reaping");
    kv_store_get_stats(s, &after);
    if (after.n_filling + after.n_pinned + after.n_leases != 0)
        die(op, "something is still held");
    if (after.n_free + after.n_ready != N_BLOCKS || after.n_ready != before.n_ready)
        die(op, "blocks were lost");
    if (kv_store_lease_open(s, process_self(), 0, NULL) != OK)
        die(op, "no lease");
    verify_bytes(st, s, op);
    kv_store_lease_close(s);
    check(s, op, "in the end");
}

static void declare_dead(const struct stage *st, struct kv_store *s)
{
    int *word = lock_word(st, s);
    *word = (*word & WAITERS) | OWNER_DIED;
}

/* --- stepping -----------------------------------------------------------------------------------
 */

static pid_t start_child(struct stage *st, void (*op)(struct stage *))
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork", "failed");
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGSTOP);
        op(st);
        _exit(0);
    }
    return pid;
}

/* Runs op in a child; calls on_step after every instruction during which the lock was held. */
static void single_step(struct stage *st, void (*op)(struct stage *), const char *name,
                        void (*on_step)(struct stage *, const char *))
{
    int status;
    pid_t pid = start_child(st, op);
    for (;;) {
        if (waitpid(pid, &status, 0) != pid)
            die(name, "waitpid");
        if (WIFEXITED(status))
            break;
        if (!WIFSTOPPED(status))
            die(name, "the child was killed");
        int sig = WSTOPSIG(status);
        if (sig != SIGSTOP && sig != SIGTRAP)
            die(name, "the child failed");
        if ((*lock_word(st, st->s) & ~(OWNER_DIED | WAITERS)) == pid)
            on_step(st, name);
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, NULL) != 0) {
            kill(pid, SIGKILL);
            (void)waitpid(pid, &status, 0);
            exit(77);
        }
    }
    if (WEXITSTATUS(status) != 0)
        exit(WEXITSTATUS(status));
}

static void on_rebuild_step(struct stage *st, const char *name)
{
    if (st->n_steps++ % EVERY != 0)
        return;
    st->n_rebuild_deaths++;
    copy_store(st, st->second, st->s);
    declare_dead(st, st->second);
    recover(st, st->second, name);
}

static void on_step(struct stage *st, const char *name)
{
    if (st->n_steps++ % EVERY != 0)
        return;
    st->n_deaths++;
    copy_store(st, st->copy, st->s);
    declare_dead(st, st->copy);
    if (st->n_deaths % SAMPLE == 0) {
        struct stage again = *st;
        again.s = st->copy;
        single_step(&again, op_rebuild, "rebuild", on_rebuild_step);
        st->n_rebuild_deaths = again.n_rebuild_deaths;
        copy_store(st, st->copy, st->s);
        declare_dead(st, st->copy);
    }
    recover(st, st->copy, name);
}

static void init_stage(struct stage *st)
{
    st->g = (struct kv_geometry){
        .block_size = BLOCK, .n_blocks = N_BLOCKS, .max_leases = 3, .block_bytes = BYTES};
    if (kv_layout_compute(&st->g, NULL) != OK)
        die("layout", "refused");
    st->root = (struct block_key){{9}};
    for (uint32_t c = 0; c < 3; c++) {
        for (uint32_t i = 0; i < LENGTH * BLOCK; i++)
            st->tokens[c][i] = i < BLOCK && c < 2 ? i : i + 1000 * c;
        prefix_hash_chain(&st->root, st->tokens[c], LENGTH * BLOCK, BLOCK, st->keys[c]);
    }
    st->copy = new_store();
    st->second = new_store();
}

int main(void)
{
    static const struct {
        const char *name;
        void (*prepare)(struct stage *), (*op)(struct stage *);
    } cases[] = {
        {"lease open", from_nothing, op_open},
        {"reserve", from_lease, op_reserve},
        {"publish", from_filling, op_publish},
        {"acquire", from_cached, op_acquire},
        {"evict", from_cached, op_evict},
        {"publish a twin", from_twin, op_twin},
        {"publish a fork", from_fork, op_fork},
        {"release", from_held, op_release},
        {"release a tail", from_held, op_release_tail},
        {"lease close", from_held, op_close},
        {"reap", from_orphans, op_reap},
    };
    struct stage st = {0};
    init_stage(&st);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t n = st.n_deaths;
        st.n_held = 0;
        st.s = new_store();
        leave_stale_rows(&st);
        cases[i].prepare(&st);
        single_step(&st, cases[i].op, cases[i].name, on_step);
        if (st.n_deaths == n)
            die(cases[i].name, "never held the lock");
        kv_store_detach(st.s);
    }
    kv_store_detach(st.copy);
    kv_store_detach(st.second);
    printf("helper_kv_stepper: %u deaths of a lock holder, %u of a rebuilder\n", st.n_deaths,
           st.n_rebuild_deaths);
    return st.n_rebuild_deaths > 0 ? 0 : 1;
}
