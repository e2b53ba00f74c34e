/* What follows from the model file and this machine? Shape, ISA path, window, size of the block
 * pool, fingerprint, tokeniser, template: resolved once, so that every later "auto" is a number. */
#include "router/node_model.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

static const uint64_t AUTO_KV_BYTES = UINT64_C(4) << 30;

static uint64_t available_memory(void)
{
    uint64_t kib = 0;
    char line[128];
    FILE *f = fopen("/proc/meminfo", "re");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    if (f)
        fclose(f);
    struct statvfs shm;
    uint64_t bytes = kib * 1024;
    if (statvfs("/dev/shm", &shm) == 0 && (uint64_t)shm.f_bavail * shm.f_frsize < bytes)
        bytes = (uint64_t)shm.f_bavail * shm.f_frsize;
    return bytes;
}

static uint32_t cpu_count(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    return 1;
}

static enum err resolve_machine(struct node_config *c, struct node_model *m, struct err_info *ei)
{
    if (strcmp(c->device, "cuda") == 0)
        return err_set(ei, ERR_UNSUPPORTED,
                       "config: device cuda: this build has no GPU worker; use --device cpu");
    if (c->tp != 1)
        return err_set(ei, ERR_UNSUPPORTED,
                       "config: tp %u: this build runs a model on one rank; use --tp 1", c->tp);
    enum err rc = cpu_isa_choose(c->isa, &m->isa, ei);
    if (rc != OK)
        return rc;
    char *isa = strdup(cpu_isa_name(m->isa));
    char *device = strdup("cpu");
    if (!isa || !device) {
        free(isa);
        free(device);
        return err_set(ei, ERR_NOMEM, "config: no memory");
    }
    free(c->isa);
    free(c->device);
    c->isa = isa;
    c->device = device;
    if (c->workers == 0)
        c->workers = 1;
    if (c->threads == 0)
        c->threads = cpu_count() / c->workers;
    if (c->threads == 0)
        c->threads = 1;
    return OK;
}

static enum err resolve_sizes(struct node_config *c, uint64_t former_store_bytes,
                              struct node_model *m, struct err_info *ei)
{
    if (c->max_context > m->shape.max_context)
        return err_set(ei, ERR_LIMIT, "config: max_context %u: the model was trained for %u tokens",
                       c->max_context, m->shape.max_context);
    if (c->max_context == 0)
        c->max_context = m->shape.max_context;
    m->max_context = c->max_context;
    m->block_bytes = c->kv.block_size * model_shape_kv_bytes_per_token(&m->shape, c->kv.format);
    uint64_t available = available_memory() + former_store_bytes;
    bool is_auto = m->is_auto_memory = c->kv.memory == 0;
    if (is_auto)
        c->kv.memory = available / 2 < AUTO_KV_BYTES ? available / 2 : AUTO_KV_BYTES;
    if (c->kv.memory > available)
        return err_set(ei, ERR_LIMIT,
                       "config: kv.memory %" PRIu64 " bytes: only %" PRIu64
                       " bytes of shared memory are free",
                       c->kv.memory, available);
    uint64_t n = c->kv.memory / m->block_bytes;
    if (n > UINT32_MAX / 2)
        n = UINT32_MAX / 2;
    m->n_blocks = (uint32_t)n;
    uint64_t need = ((uint64_t)m->max_context + c->kv.block_size - 1) / c->kv.block_size;
    if (n < need && (is_auto || n == 0))
        return err_set(ei, ERR_LIMIT,
                       "config: kv.memory %" PRIu64 " bytes holds %" PRIu64
                       " blocks of %zu bytes; one sequence of max_context %u tokens needs %" PRIu64,
                       c->kv.memory, n, m->block_bytes, m->max_context, need);
    if (n < need) {
        /* a pool smaller than the window is legal: the window shrinks to what fits */
        m->max_context = c->max_context = (uint32_t)n * c->kv.block_size;
    }
    return OK;
}

static enum err resolve_name(struct node_config *c, struct err_info *ei)
{
    if (c->served_model_name)
        return OK;
    const char *base = strrchr(c->model, '/');
    c->served_model_name = strdup(base ? base + 1 : c->model);
    if (!c->served_model_name)
        return err_set(ei, ERR_NOMEM, "config: no memory");
    size_t n = strlen(c->served_model_name);
    if (n > 5 && strcmp(c->served_model_name + n - 5, ".gguf") == 0)
        c->served_model_name[n - 5] = '\0';
    return OK;
}

/* Text of a special token for the template, NUL-terminated; "" when there is none. */
static char *token_text(const struct tokenizer *t, uint32_t id)
{
    size_t n = 0;
    const char *s = id == UINT32_MAX ? "" : tokenizer_token_bytes(t, id, &n);
    return strndup(s, n);
}

static enum err open_template(const struct gguf *g, struct node_model *m, struct err_info *ei)
{
    struct gguf_str source;
    if (!gguf_get_str(g, "tokenizer.chat_template", &source))
        return OK;
    char *bos = token_text(m->tokenizer, tokenizer_bos(m->tokenizer));
    char *eos = token_text(m->tokenizer, tokenizer_eos(m->tokenizer));
    enum err rc;
    if (bos && eos)
        rc = chat_template_new(
            &(struct chat_template_config){
                .source = source.s, .source_bytes = source.n, .bos_token = bos, .eos_token = eos},
            &m->chat_template, ei);
    else
        rc = err_set(ei, ERR_NOMEM, "model: no memory");
    free(bos);
    free(eos);
    return rc;
}

/* Who reads keys of the file does not know its name. */
static enum err add_path(enum err rc, const char *path, struct err_info *ei)
{
    struct err_info inner = *ei;
    return err_set(ei, rc, "model: %s: %s", path, inner.text);
}

static enum err open_text(const struct gguf *g, const char *path, struct node_model *m,
                          struct err_info *ei)
{
    enum err rc = tokenizer_new(g, &m->tokenizer, ei);
    if (rc == OK && tokenizer_vocab_size(m->tokenizer) > m->shape.vocab_size)
        rc = err_set(ei, ERR_PARSE, "%u tokens in the vocabulary, %u rows of embeddings",
                     tokenizer_vocab_size(m->tokenizer), m->shape.vocab_size);
    if (rc == OK)
        rc = open_template(g, m, ei);
    return rc == OK ? OK : add_path(rc, path, ei);
}

enum err node_model_open(struct node_config *config, uint64_t former_store_bytes,
                         struct node_model *out, struct err_info *ei)
{
    struct gguf *g = NULL;
    *out = (struct node_model){0};
    enum err rc = gguf_open(config->model, &g, ei);
    if (rc == OK)
        rc = model_shape_from_gguf(g, &out->shape, ei);
    if (rc == OK)
        rc = resolve_machine(config, out, ei);
    if (rc == OK)
        rc = resolve_sizes(config, former_store_bytes, out, ei);
    if (rc == OK)
        rc = resolve_name(config, ei);
    if (rc == OK)
        rc = open_text(g, config->model, out, ei);
    if (rc == OK)
        fingerprint_compute(&(struct fingerprint_input){.model = g,
                                                        .kv_format = config->kv.format,
                                                        .block_size = config->kv.block_size,
                                                        .backend = "cpu",
                                                        .isa = out->isa,
                                                        .tp = config->tp},
                            &out->fingerprint);
    gguf_close(g);
    if (rc != OK)
        node_model_fini(out);
    return rc;
}

void node_model_fini(struct node_model *m)
{
    chat_template_free(m->chat_template);
    tokenizer_free(m->tokenizer);
    *m = (struct node_model){0};
}
