/* Which keys are there? One row a key: path, place, default, range, words for people; everything
 * that speaks of keys is derived from it, so that flags, file, help and example cannot disagree.
 * Invariant: each fallback passes its own row's checks. Does not know where a text came from, nor
 * how values are parsed (node_config_values.c). */
#include "config/node_config_keys.h"

#include <assert.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The longest path is a constant of the table; a longer one must fail to build a flag loudly. */
enum { EDIT_BYTES = 48 };

static const struct node_config_choice devices[] = {{"auto", 0}, {"cpu", 1}, {"cuda", 2}, {0}};
static const struct node_config_choice isas[] = {
    {"auto", 0}, {"plain", 1}, {"avx2", 2}, {"avx512", 3}, {0}};
static const struct node_config_choice levels[] = {
    {"debug", LOG_DEBUG}, {"info", LOG_INFO}, {"warn", LOG_WARN}, {"error", LOG_ERROR}, {0}};
static const struct node_config_choice block_sizes[] = {{"16", 16}, {"32", 32}, {0}};
static const struct node_config_choice formats[] = {
    {"f16", TENSOR_F16}, {"bf16", TENSOR_BF16}, {"f32", TENSOR_F32}, {0}};

#define KIB(n) (UINT64_C(n) << 10)
#define MIB(n) (UINT64_C(n) << 20)
#define GIB(n) (UINT64_C(n) << 30)
#define TIB(n) (UINT64_C(n) << 40)
#define PLACE(field) .offset = offsetof(struct node_config, field)
#define TEXT(field, text, max)                                                                     \
    .kind = NODE_CONFIG_TEXT, PLACE(field), .fallback = (text), .least = 1, .most = (max)
#define WORD(field, text, list)                                                                    \
    .kind = NODE_CONFIG_WORD, PLACE(field), .fallback = (text), .choices = (list)
#define CHOICE(field, text, list)                                                                  \
    .kind = NODE_CONFIG_CHOICE, PLACE(field), .fallback = (text), .choices = (list)
#define COUNT(field, text, low, high)                                                              \
    .kind = NODE_CONFIG_COUNT, PLACE(field), .fallback = (text), .least = (low), .most = (high)
#define SIZE(field, text, low, high)                                                               \
    .kind = NODE_CONFIG_SIZE, PLACE(field), .fallback = (text), .least = (low), .most = (high)
#define SIZE32(field, text, low, high)                                                             \
    .kind = NODE_CONFIG_SIZE32, PLACE(field), .fallback = (text), .least = (low), .most = (high)

/* clang-format off: one row a key, read across */
static const struct node_config_key keys[] = {
    {"model", TEXT(model, "", 4095), .note = "none: it must be given",
     .help = "path of a GGUF file; the positional argument MODEL is the same"},
    {"served_model_name", TEXT(served_model_name, "", 255), .note = "the file's name without .gguf",
     .help = "what clients call the model"},
    {"name", TEXT(name, "kvnode", 32), .is_name = true,
     .help = "name of the node; sockets and shared memory carry it"},
    {"host", TEXT(host, "127.0.0.1", 255), .help = "address to listen on"},
    {"port", COUNT(port, "8000", 0, 65535),
     .help = "port to listen on; 0 takes a free one, printed in the ready line"},
    {"device", WORD(device, "auto", devices), .help = "what computes"},
    {"isa", WORD(isa, "", isas), .note = "KVNODE_ISA of the environment, else auto",
     .help = "instruction set of the CPU kernels; all workers of a node use the same"},
    {"workers", COUNT(workers, "0", 0, 64), .note = "auto: 1 on a CPU", .help = "worker processes"},
    {"tp", COUNT(tp, "1", 1, 64), .help = "ranks that share one model (tensor parallelism)"},
    {"threads", COUNT(threads, "0", 0, 1024), .note = "auto: cores / workers",
     .help = "compute threads of one worker"},
    {"max_context", COUNT(max_context, "0", 0, 1U << 30), .note = "the model's own",
     .help = "tokens of one sequence, prompt and answer together"},
    {"runtime_dir", TEXT(runtime_dir, "", 90),
     .note = "$XDG_RUNTIME_DIR/kvnode, else /run/kvnode as root, else $TMPDIR/kvnode-UID",
     .help = "directory of the sockets, made with mode 0700"},
    {"log_level", CHOICE(log_level, "info", levels), .help = "the least that is logged"},
    {"shutdown_grace_s", COUNT(shutdown_grace_s, "30", 0, 3600),
     .help = "seconds that streams get to finish after SIGTERM"},

    {"kv.memory", SIZE(kv.memory, "0", 0, TIB(16)),
     .note = "auto: 4GiB, at most half of the free memory",
     .help = "bytes of the node's pool of KV blocks"},
    {"kv.block_size", CHOICE(kv.block_size, "16", block_sizes), .help = "tokens of a block"},
    {"kv.format", CHOICE(kv.format, "f16", formats), .help = "number format of K and V"},

    {"worker.orphan_grace_s", COUNT(worker.orphan_grace_s, "10", 1, 3600),
     .help = "seconds a worker waits for a new router when it lost its own"},
    {"worker.hang_timeout_s", COUNT(worker.hang_timeout_s, "60", 1, 3600),
     .help = "a step that lasts longer is a hang: the worker is killed"},
    {"worker.start_timeout_s", COUNT(worker.start_timeout_s, "120", 1, 3600),
     .help = "seconds from start to a worker's first message"},

    {"scheduler.max_batch_tokens", COUNT(scheduler.max_batch_tokens, "512", 1, 1U << 20),
     .help = "token budget of one step"},
    {"scheduler.max_sequences", COUNT(scheduler.max_sequences, "64", 1, 4096),
     .help = "sequences that run at once in one worker"},
    {"scheduler.max_waiting", COUNT(scheduler.max_waiting, "1024", 0, 1U << 20),
     .help = "requests that wait in the node; more get status 429"},

    {"http.max_body", SIZE(http.max_body, "8MiB", KIB(1), GIB(1)), .help = "largest request body"},
    {"http.max_header", SIZE32(http.max_header, "32KiB", KIB(1), MIB(1)),
     .help = "largest request line and headers together"},
    {"http.max_connections", COUNT(http.max_connections, "1024", 1, 1U << 20),
     .help = "open client connections"},
    {"http.idle_timeout_s", COUNT(http.idle_timeout_s, "75", 1, 86400),
     .help = "seconds a connection may stay open without a request"},
    {"http.read_timeout_s", COUNT(http.read_timeout_s, "30", 1, 86400),
     .help = "seconds from a request's first byte to its last"},
    {"http.write_buffer", SIZE(http.write_buffer, "4MiB", KIB(64), GIB(1)),
     .help = "bytes a slow reader may lag before it is cut off"},
    {"http.json_depth", COUNT(http.json_depth, "64", 4, 1024),
     .help = "nesting of a request's JSON"},
};
/* clang-format on */

static const struct {
    const char *name, *help;
} sections[] = {
    {"kv", "the pool of KV blocks"},
    {"worker", "life of the worker processes"},
    {"scheduler", "what runs in one step"},
    {"http", "limits of the HTTP server"},
};

const struct node_config_key *node_config_keys(size_t *n)
{
    *n = sizeof keys / sizeof *keys;
    return keys;
}

const struct node_config_key *node_config_keys_find(const char *path)
{
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i].path, path) == 0)
            return &keys[i];
    return NULL;
}

const char *node_config_keys_section(const char *section)
{
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++)
        if (strcmp(sections[i].name, section) == 0)
            return sections[i].help;
    return NULL;
}

void node_config_keys_flag(const struct node_config_key *k, char out[NODE_CONFIG_FLAG_BYTES])
{
    int n = snprintf(out, NODE_CONFIG_FLAG_BYTES, "--%s", k->path);
    assert(n > 0 && n < NODE_CONFIG_FLAG_BYTES);
    for (char *p = out + 2; *p; p++)
        if (*p == '.' || *p == '_')
            *p = '-';
}

/* Levenshtein's distance of the first EDIT_BYTES bytes, one row of the matrix at a time. */
static size_t edits(const char *a, const char *b)
{
    size_t row[EDIT_BYTES + 1], n = strnlen(a, EDIT_BYTES), m = strnlen(b, EDIT_BYTES);
    for (size_t j = 0; j <= m; j++)
        row[j] = j;
    for (size_t i = 1; i <= n; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            size_t change = diagonal + (a[i - 1] != b[j - 1]);
            size_t best = change;
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[m];
}

static void keep_nearer(const char *written, const char *candidate, size_t *best,
                        char out[NODE_CONFIG_FLAG_BYTES])
{
    size_t d = edits(written, candidate);
    if (d >= *best)
        return;
    *best = d;
    (void)snprintf(out, NODE_CONFIG_FLAG_BYTES, "%s", candidate);
}

void node_config_keys_nearest(const char *written, char out[NODE_CONFIG_FLAG_BYTES])
{
    size_t best = SIZE_MAX;
    bool is_flag = strncmp(written, "--", 2) == 0;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char flag[NODE_CONFIG_FLAG_BYTES];
        node_config_keys_flag(&keys[i], flag);
        keep_nearer(written, is_flag ? flag : keys[i].path, &best, out);
    }
    static const char *const others[] = {"--config", "--help", "--version"};
    for (size_t i = 0; is_flag && i < sizeof others / sizeof *others; i++)
        keep_nearer(written, others[i], &best, out);
    for (size_t i = 0; !is_flag && i < sizeof sections / sizeof *sections; i++)
        keep_nearer(written, sections[i].name, &best, out);
}
