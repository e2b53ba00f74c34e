/* The router's share of a worker's world, for tests/node/test_worker_protocol.py: makes the node
 * store of the model and flags given (those of kvnode-worker), then answers commands from stdin,
 * one JSON line each:
 *   at start  {"root": hex of the default tenant's root key, "fingerprint": hex, "n_blocks": n}
 *   "stats"   pins, filling rows, leases and prompt tokens by source, after kv_store_check
 * At the end of its input it ends; the store stays (a worker may have to remove it), unless the
 * last line was "remove". */
#include "config/node_config.h"
#include "ipc/runtime_dir.h"
#include "prefixcache/kv_store.h"

#include <stdio.h>
#include <string.h>

enum { N_BLOCKS = 64 };

static enum err fingerprint_of(const struct node_config *c, struct fingerprint *out,
                               size_t *block_bytes, struct err_info *ei)
{
    struct gguf *g = NULL;
    struct model_shape shape;
    struct fingerprint_input in = {
        .kv_format = c->kv.format, .block_size = c->kv.block_size, .backend = "cpu", .tp = 1};
    enum err rc = gguf_open(c->model, &g, ei);
    if (!rc)
        rc = model_shape_from_gguf(g, &shape, ei);
    if (!rc)
        rc = cpu_isa_choose(c->isa, &in.isa, ei);
    if (!rc) {
        in.model = g;
        fingerprint_compute(&in, out);
        *block_bytes = c->kv.block_size * model_shape_kv_bytes_per_token(&shape, c->kv.format);
    }
    gguf_close(g);
    return rc;
}

static int answer(struct kv_store *s)
{
    struct kv_store_stats st;
    struct err_info ei = {0};
    if (kv_store_check(s, &ei) != OK) {
        fprintf(stderr, "%s\n", ei.text);
        return 1;
    }
    kv_store_get_stats(s, &st);
    printf("{\"pinned\": %u, \"filling\": %u, \"ready\": %u, \"leases\": %u, \"computed\": %llu, "
           "\"host\": %llu}\n",
           st.n_pinned, st.n_filling, st.n_ready, st.n_leases,
           (unsigned long long)st.prompt_tokens[KV_SOURCE_COMPUTED],
           (unsigned long long)st.prompt_tokens[KV_SOURCE_HOST]);
    fflush(stdout);
    return 0;
}

static int serve(struct kv_store *s, const char *name, const struct fingerprint *f)
{
    struct block_key root;
    char line[64] = "", hex[65];
    prefix_hash_root(f, "", "", &root);
    fingerprint_hex(f, hex);
    printf("{\"root\": \"");
    for (size_t i = 0; i < sizeof root.bytes; i++)
        printf("%02x", root.bytes[i]);
    printf("\", \"fingerprint\": \"%s\", \"n_blocks\": %d}\n", hex, N_BLOCKS);
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "stats\n") == 0 && answer(s) != 0)
            return 1;
        if (strcmp(line, "remove\n") == 0)
            kv_store_remove(name);
    }
    return 0;
}

int main(int argc, char **argv)
{
    struct node_config c;
    struct err_info ei = {0};
    enum node_config_action action;
    struct runtime_paths paths;
    struct kv_store_config cfg = {.n_blocks = N_BLOCKS, .max_leases = 8};
    struct kv_store *s = NULL;
    enum err rc = node_config_parse(argc, argv, &c, &action, &ei);
    if (rc) {
        fprintf(stderr, "%s\n", ei.text);
        return 1;
    }
    rc = runtime_paths_fill(c.runtime_dir, c.name, &paths, &ei);
    if (!rc)
        rc = runtime_dir_make(&paths, &ei);
    if (!rc)
        rc = fingerprint_of(&c, &cfg.fingerprint, &cfg.block_bytes, &ei);
    cfg.name = paths.store;
    cfg.block_size = c.kv.block_size;
    if (!rc)
        rc = kv_store_create(&cfg, &s, &ei);
    int code = rc ? 1 : serve(s, paths.store, &cfg.fingerprint);
    if (rc)
        fprintf(stderr, "%s\n", ei.text);
    kv_store_detach(s);
    node_config_fini(&c);
    return code;
}
