#pragma once
#include "config/base/err.h"
#include "config/base/log.h"
#include "config/cpu_isa.h"
#include "config/tensor_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What are we running? One struct for router and workers, filled from defaults, then a YAML file,
 * then flags; the same keys everywhere: `kv: {memory: 4GiB}` in YAML is `--kv-memory 4GiB` on the
 * command line (dots and underscores become dashes). Validated once, here. Plain data; strings are
 * owned. */

struct node_config {
    char *model; /* path of a GGUF file (positional argument MODEL, key `model`); NULL: not given */
    char *served_model_name; /* `model` of the API; default: the file's name without .gguf; NULL
                                only with model */
    char *name; /* node name [A-Za-z0-9_-]{1,32}; everything the node owns carries it. "kvnode" */
    char *host; /* "127.0.0.1" */
    uint32_t port;        /* 8000; 0 = a free one, printed in the ready line */
    char *device;         /* "auto" | "cpu" | "cuda" (cuda: UNSUPPORTED until built with it) */
    char *isa;            /* "auto" | "plain" | "avx2" | "avx512"; default from KVNODE_ISA */
    uint32_t workers;     /* worker processes; 0 = auto (on a CPU: 1) */
    uint32_t tp;          /* ranks of a worker; 1 */
    uint32_t threads;     /* compute threads of one worker; 0 = cores / workers, at least 1 */
    uint32_t max_context; /* tokens of one sequence; 0 = the model's own */
    char *runtime_dir;    /* sockets, created 0700; NULL = $XDG_RUNTIME_DIR/kvnode, else /run/kvnode
                             as root, else TMPDIR/kvnode-UID (runtime_paths_fill decides) */
    enum log_level log_level;
    uint32_t shutdown_grace_s; /* how long SIGTERM lets streams finish; 30 */

    struct {
        uint64_t memory;     /* bytes of the node's block pool; 0 = auto: 4 GiB, at most half of the
                                memory that is free */
        uint32_t block_size; /* tokens; 16 or 32 */
        enum tensor_type format; /* f16 | bf16 | f32 */
    } kv;
    struct {
        uint32_t orphan_grace_s;  /* 10: how long a worker waits for a new router */
        uint32_t hang_timeout_s;  /* 60: a step that lasts longer is a hang: the worker is killed */
        uint32_t start_timeout_s; /* 120: from exec to HELLO */
    } worker;
    struct {
        uint32_t max_batch_tokens; /* token budget of a step: 512 */
        uint32_t max_sequences;    /* running at once in one worker: 64 */
        uint32_t max_waiting; /* requests in the node that have not been admitted: 1024; then 429 */
    } scheduler;
    struct {
        uint64_t max_body;        /* bytes: 8 MiB */
        uint32_t max_header;      /* bytes of request line and headers: 32 KiB */
        uint32_t max_connections; /* 1024 */
        uint32_t idle_timeout_s;  /* keep-alive connection without a request: 75 */
        uint32_t read_timeout_s;  /* absolute, from first byte to whole request: 30 */
        uint64_t write_buffer;    /* bytes a slow reader may lag before it is cut: 4 MiB */
        uint32_t json_depth;      /* 64 */
    } http;
};

enum node_config_action {
    NODE_CONFIG_RUN,     /* go on */
    NODE_CONFIG_HELP,    /* print node_config_help and exit 0 */
    NODE_CONFIG_VERSION, /* print the version and exit 0 */
    NODE_CONFIG_EXAMPLE, /* print node_config_example and exit 0 */
};

/* Fills *out from defaults, `--config FILE`, and flags (`--key value` or `--key=value`); a flag
 * wins over the file wherever it stands. argv[0] is skipped; one positional argument is the model.
 * Errors (PARSE/LIMIT/IO): one line naming source ("--flag", or "file:line"), key, value and the
 * allowed range; an unknown key or flag also names the nearest known one. On failure *out needs no
 * fini. */
NODISCARD enum err node_config_parse(int argc, char *const *argv, struct node_config *out,
                                     enum node_config_action *action, struct err_info *ei);
void node_config_fini(struct node_config *c);

/* Flags that make another process's node_config_parse give the same config (how the router hands
 * its config to workers). NULL-terminated vector, argv[0] = program; the caller's:
 * node_config_free_argv. */
char **node_config_to_argv(const struct node_config *c, const char *program);
void node_config_free_argv(char **argv);

/* The text of --help: every key with its default, made from the same table as the parser. And a
 * YAML file with every key at its default and a comment; parsing it gives the defaults (`kvnode
 * config example`). Malloc'ed, the caller's; NULL when out of memory. */
char *node_config_help(void);
char *node_config_example(void);
