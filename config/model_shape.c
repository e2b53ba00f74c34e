/* What numbers describe this model, and does the file keep to them? Reads the keys of a
 * Llama-architecture GGUF, then holds every tensor against the dims that the keys imply. Invariant:
 * after success the forward pass can index any tensor by the shape without another check, and the
 * file holds nothing that the forward pass would silently leave out. Does not look at weights'
 * values, nor at the vocabulary beyond its size. */
#include "config/model_shape.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MAX_LAYERS = 1024,
    MAX_HEAD_DIM = 256,
    MAX_HEADS = 4096,
    MAX_WIDTH = 1 << 22, /* of hidden states and FFN: products of two stay far below 2^64 */
    MAX_VOCAB = 1 << 24,
    MAX_POSITIONS = 1 << 30,
    PATH_SHOWN = 160, /* bytes of a path in errors */
};

struct shape_reader {
    const struct gguf *g;
    struct model_shape *m;
    struct err_info *ei;
};

/* For errors: the tail of a long path, so that what follows is not cut off. */
static const char *file_name(const struct gguf *g)
{
    const char *path = gguf_path(g);
    size_t n = strlen(path);
    return n > PATH_SHOWN ? path + n - PATH_SHOWN : path;
}

static enum err fault(const struct shape_reader *r, enum err code, const char *what,
                      const char *which)
{
    return err_set(r->ei, code, "model_shape: %s: %s: %s", file_name(r->g), what, which);
}

/* --- keys ---------------------------------------------------------------------------------------
 */

/* A whole number in 1..max. */
static enum err read_count(const struct shape_reader *r, const char *key, uint32_t max,
                           uint32_t *out)
{
    if (!gguf_get_u32(r->g, key, out))
        return fault(r, ERR_PARSE, key, "is missing or not a whole number");
    if (*out >= 1 && *out <= max)
        return OK;
    return err_set(r->ei, ERR_PARSE, "model_shape: %s: %s: %" PRIu32 " is not 1 to %" PRIu32,
                   file_name(r->g), key, *out, max);
}

static bool has_key(const struct gguf *g, const char *key)
{
    uint32_t u;
    float f;
    bool b;
    struct gguf_str s;
    return gguf_get_u32(g, key, &u) || gguf_get_f32(g, key, &f) || gguf_get_bool(g, key, &b) ||
           gguf_get_str(g, key, &s);
}

/* Absent: the fallback. Present: must be such a number. */
static enum err read_count_or(const struct shape_reader *r, const char *key, uint32_t max,
                              uint32_t fallback, uint32_t *out)
{
    if (has_key(r->g, key))
        return read_count(r, key, max, out);
    *out = fallback;
    return OK;
}

/* Absent: the fallback; a fallback of 0 makes the key required. Must be finite and above 0. */
static enum err read_positive(const struct shape_reader *r, const char *key, float fallback,
                              float *out)
{
    if (!has_key(r->g, key) && fallback > 0) {
        *out = fallback;
        return OK;
    }
    if (!gguf_get_f32(r->g, key, out))
        return fault(r, ERR_PARSE, key, "is missing or not a floating-point number");
    if (isfinite(*out) && *out > 0)
        return OK;
    return err_set(r->ei, ERR_PARSE, "model_shape: %s: %s: %g is not a positive number",
                   file_name(r->g), key, (double)*out);
}

static bool str_is(struct gguf_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

/* Copies as much as fits without cutting a UTF-8 sequence; control bytes become '?'. */
static void copy_text(char *out, size_t capacity, const char *s, size_t n)
{
    if (n >= capacity) {
        n = capacity - 1;
        while (n && ((unsigned char)s[n] & 0xc0) == 0x80)
            n--;
    }
    for (size_t i = 0; i < n; i++)
        out[i] = (unsigned char)s[i] < 0x20 || s[i] == 0x7f ? '?' : s[i];
    out[n] = '\0';
}

static enum err read_names(const struct shape_reader *r)
{
    struct gguf_str s;
    if (!gguf_get_str(r->g, "general.architecture", &s))
        return fault(r, ERR_PARSE, "general.architecture", "is missing or not a text");
    copy_text(r->m->arch, sizeof r->m->arch, s.s, s.n);
    if (!str_is(s, "llama"))
        return err_set(r->ei, ERR_UNSUPPORTED,
                       "model_shape: %s: general.architecture: \"%s\" is not llama",
                       file_name(r->g), r->m->arch);
    if (!gguf_get_str(r->g, "general.name", &s) || s.n == 0) {
        const char *slash = strrchr(gguf_path(r->g), '/');
        s.s = slash ? slash + 1 : gguf_path(r->g);
        s.n = strlen(s.s);
    }
    copy_text(r->m->name, sizeof r->m->name, s.s, s.n);
    return OK;
}

static enum err read_heads(const struct shape_reader *r)
{
    struct model_shape *m = r->m;
    enum err rc = read_count(r, "llama.attention.head_count", MAX_HEADS, &m->n_heads);
    if (!rc)
        rc = read_count_or(r, "llama.attention.head_count_kv", MAX_HEADS, m->n_heads,
                           &m->n_kv_heads);
    if (!rc && m->n_heads % m->n_kv_heads)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: llama.attention.head_count: %" PRIu32
                       " is not a multiple of head_count_kv %" PRIu32,
                       file_name(r->g), m->n_heads, m->n_kv_heads);
    if (!rc && !has_key(r->g, "llama.attention.key_length") && m->dim % m->n_heads)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: llama.embedding_length: %" PRIu32
                       " is not a multiple of head_count %" PRIu32,
                       file_name(r->g), m->dim, m->n_heads);
    if (!rc)
        rc = read_count_or(r, "llama.attention.key_length", MAX_HEAD_DIM, m->dim / m->n_heads,
                           &m->head_dim);
    uint32_t value_dim = 0;
    if (!rc)
        rc =
            read_count_or(r, "llama.attention.value_length", MAX_HEAD_DIM, m->head_dim, &value_dim);
    if (rc)
        return rc;
    if (m->head_dim % 2 || m->head_dim == 0 || m->head_dim > MAX_HEAD_DIM)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: llama.attention.key_length: a head of %" PRIu32
                       " values is not even and 2 to 256",
                       file_name(r->g), m->head_dim);
    if (value_dim != m->head_dim)
        return err_set(r->ei, ERR_UNSUPPORTED,
                       "model_shape: %s: llama.attention.value_length: %" PRIu32
                       " differs from key_length %" PRIu32,
                       file_name(r->g), value_dim, m->head_dim);
    return OK;
}

/* Linear scaling has two spellings: rope.scaling.{type,factor}, and the older rope.scale_linear. */
static enum err read_rope(const struct shape_reader *r)
{
    struct model_shape *m = r->m;
    enum err rc = read_positive(r, "llama.rope.freq_base", 10000.0F, &m->rope_base);
    if (!rc)
        rc =
            read_count_or(r, "llama.rope.dimension_count", MAX_HEAD_DIM, m->head_dim, &m->rope_dim);
    if (rc)
        return rc;
    if (m->rope_dim != m->head_dim)
        return err_set(r->ei, ERR_UNSUPPORTED,
                       "model_shape: %s: llama.rope.dimension_count: %" PRIu32
                       " differs from the head's %" PRIu32,
                       file_name(r->g), m->rope_dim, m->head_dim);
    m->rope_scale = 1;
    const char *key = "llama.rope.scaling.type";
    struct gguf_str type = {0};
    bool is_typed = gguf_get_str(r->g, key, &type);
    if (!is_typed && has_key(r->g, key))
        return fault(r, ERR_PARSE, key, "is not a text");
    if (is_typed && str_is(type, "none"))
        return OK;
    if (is_typed && !str_is(type, "linear"))
        return err_set(r->ei, ERR_UNSUPPORTED,
                       "model_shape: %s: %s: \"%.*s\" is not none or linear", file_name(r->g), key,
                       type.n < 32 ? (int)type.n : 32, type.s);
    rc = read_positive(r, "llama.rope.scale_linear", 1, &m->rope_scale);
    if (!rc)
        rc = read_positive(r, "llama.rope.scaling.factor", m->rope_scale, &m->rope_scale);
    return rc;
}

/* Keys that would change the arithmetic in ways the forward pass does not know. */
static enum err refuse_foreign_keys(const struct shape_reader *r)
{
    static const char *const keys[] = {
        "llama.attention.scale",          "llama.attention.sliding_window",
        "llama.attention.clamp_kqv",      "llama.logit_scale",
        "llama.embedding_scale",          "llama.residual_scale",
        "llama.rope.scaling.attn_factor",
    };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (has_key(r->g, keys[i]))
            return fault(r, ERR_UNSUPPORTED, keys[i], "this build does not compute it");
    uint32_t n_experts = 0;
    if (has_key(r->g, "llama.expert_count") &&
        (!gguf_get_u32(r->g, "llama.expert_count", &n_experts) || n_experts > 0))
        return fault(r, ERR_UNSUPPORTED, "llama.expert_count", "mixtures of experts are not read");
    return OK;
}

static enum err read_keys(const struct shape_reader *r)
{
    struct model_shape *m = r->m;
    enum err rc = read_names(r);
    if (!rc)
        rc = read_count(r, "llama.block_count", MAX_LAYERS, &m->n_layers);
    if (!rc)
        rc = read_count(r, "llama.embedding_length", MAX_WIDTH, &m->dim);
    if (!rc)
        rc = read_count(r, "llama.feed_forward_length", MAX_WIDTH, &m->ffn_dim);
    if (!rc)
        rc = read_count(r, "llama.context_length", MAX_POSITIONS, &m->max_context);
    if (!rc)
        rc = read_positive(r, "llama.attention.layer_norm_rms_epsilon", 0, &m->norm_eps);
    if (!rc)
        rc = read_heads(r);
    if (!rc)
        rc = read_rope(r);
    if (!rc)
        rc = refuse_foreign_keys(r);
    return rc;
}

/* --- tensors ------------------------------------------------------------------------------------
 */

/* What a tensor must be. rows 0: one-dimensional. */
struct expected {
    const char *name;
    uint64_t columns, rows;
};

/* The tensors of a layer, in no order that matters: blk.N.NAME.weight. */
enum { N_LAYER_TENSORS = 9 };

static void describe_layer(const struct model_shape *m, struct expected out[N_LAYER_TENSORS])
{
    uint64_t dim = m->dim, q = (uint64_t)m->n_heads * m->head_dim;
    uint64_t kv = (uint64_t)m->n_kv_heads * m->head_dim, ffn = m->ffn_dim;
    const struct expected all[N_LAYER_TENSORS] = {
        {"attn_norm", dim, 0},  {"attn_q", dim, q},      {"attn_k", dim, kv},
        {"attn_v", dim, kv},    {"attn_output", q, dim}, {"ffn_norm", dim, 0},
        {"ffn_gate", dim, ffn}, {"ffn_up", dim, ffn},    {"ffn_down", ffn, dim},
    };
    memcpy(out, all, sizeof all);
}

static enum err check_dims(const struct shape_reader *r, const struct gguf_tensor *t,
                           const struct expected *want)
{
    uint32_t n_dims = want->rows ? 2 : 1;
    uint64_t rows = want->rows ? want->rows : 1;
    if (t->n_dims != n_dims || t->dims[0] != want->columns || t->dims[1] != rows)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: tensor %s: dims [%" PRIu64 ", %" PRIu64 ", %" PRIu64
                       ", %" PRIu64 "] of %" PRIu32 " should be [%" PRIu64 ", %" PRIu64
                       "] of %" PRIu32,
                       file_name(r->g), want->name, t->dims[0], t->dims[1], t->dims[2], t->dims[3],
                       t->n_dims, want->columns, rows, n_dims);
    /* norms and frequencies are a few kilobytes that every format keeps whole */
    if (n_dims == 1 && t->type != TENSOR_F32)
        return err_set(r->ei, ERR_UNSUPPORTED, "model_shape: %s: tensor %s: type %s is not F32",
                       file_name(r->g), want->name, tensor_type_name(t->type));
    return OK;
}

static enum err add_tensor(const struct shape_reader *r, const struct expected *want, size_t *n)
{
    const struct gguf_tensor *t = gguf_find_tensor(r->g, want->name);
    if (!t)
        return err_set(r->ei, ERR_PARSE, "model_shape: %s: tensor %s: is missing", file_name(r->g),
                       want->name);
    enum err rc = check_dims(r, t, want);
    if (rc)
        return rc;
    r->m->weight_bytes += t->size_bytes;
    if (strcmp(want->name, "rope_freqs.weight") != 0) /* computed from the configuration */
        r->m->n_parameters += want->columns * (want->rows ? want->rows : 1);
    (*n)++;
    return OK;
}

static enum err add_layer(const struct shape_reader *r, uint32_t layer, size_t *n)
{
    struct expected all[N_LAYER_TENSORS];
    describe_layer(r->m, all);
    for (size_t i = 0; i < N_LAYER_TENSORS; i++) {
        char name[64];
        (void)snprintf(name, sizeof name, "blk.%" PRIu32 ".%.32s.weight", layer, all[i].name);
        all[i].name = name;
        enum err rc = add_tensor(r, &all[i], n);
        if (rc)
            return rc;
    }
    return OK;
}

/* The embedding's rows are the vocabulary; what else speaks of its size must agree. */
static enum err read_vocab_size(const struct shape_reader *r)
{
    struct model_shape *m = r->m;
    const struct gguf_tensor *t = gguf_find_tensor(r->g, "token_embd.weight");
    if (!t)
        return fault(r, ERR_PARSE, "tensor token_embd.weight", "is missing");
    if (t->dims[1] > MAX_VOCAB)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: tensor token_embd.weight: %" PRIu64
                       " rows are not 1 to %d",
                       file_name(r->g), t->dims[1], MAX_VOCAB);
    m->vocab_size = (uint32_t)t->dims[1];
    uint32_t stated = 0;
    enum err rc = read_count_or(r, "llama.vocab_size", MAX_VOCAB, m->vocab_size, &stated);
    if (rc)
        return rc;
    if (stated != m->vocab_size)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: llama.vocab_size: %" PRIu32
                       " differs from token_embd.weight's %" PRIu32 " rows",
                       file_name(r->g), stated, m->vocab_size);
    size_t n_tokens = gguf_n_strs(r->g, "tokenizer.ggml.tokens");
    if (n_tokens > m->vocab_size)
        return err_set(r->ei, ERR_PARSE,
                       "model_shape: %s: tokenizer.ggml.tokens: %zu tokens exceed "
                       "token_embd.weight's %" PRIu32 " rows",
                       file_name(r->g), n_tokens, m->vocab_size);
    return OK;
}

static bool is_layer_tensor(const struct model_shape *m, struct gguf_str name)
{
    struct expected all[N_LAYER_TENSORS];
    describe_layer(m, all);
    for (size_t i = 0; i < N_LAYER_TENSORS; i++) {
        uint32_t layer = 0;
        char text[65] = "", want[65];
        memcpy(text, name.s, name.n < sizeof text ? name.n : 0);
        if (sscanf(text, "blk.%9" SCNu32, &layer) != 1 || layer >= m->n_layers)
            return false;
        (void)snprintf(want, sizeof want, "blk.%" PRIu32 ".%.32s.weight", layer, all[i].name);
        if (strcmp(text, want) == 0)
            return true;
    }
    return false;
}

/* A bias, an expert or an adapter that nobody reads would make wrong answers, not slow ones. */
static enum err refuse_foreign_tensors(const struct shape_reader *r, size_t n_known)
{
    if (gguf_n_tensors(r->g) == n_known)
        return OK;
    for (size_t i = 0; i < gguf_n_tensors(r->g); i++) {
        struct gguf_str s = gguf_tensor_at(r->g, i)->name;
        if (str_is(s, "token_embd.weight") || str_is(s, "output_norm.weight") ||
            str_is(s, "output.weight") || str_is(s, "rope_freqs.weight") ||
            is_layer_tensor(r->m, s))
            continue;
        return err_set(r->ei, ERR_UNSUPPORTED,
                       "model_shape: %s: tensor %.*s: is not one that this build computes with",
                       file_name(r->g), (int)s.n, s.s);
    }
    return OK;
}

static enum err check_tensors(const struct shape_reader *r)
{
    struct model_shape *m = r->m;
    size_t n = 0;
    enum err rc = read_vocab_size(r);
    if (rc)
        return rc;
    m->tied_embeddings = !gguf_find_tensor(r->g, "output.weight");
    const struct expected whole[] = {
        {"token_embd.weight", m->dim, m->vocab_size},
        {"output_norm.weight", m->dim, 0},
        {"output.weight", m->dim, m->vocab_size},
        {"rope_freqs.weight", m->rope_dim / 2, 0},
    };
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++) {
        bool is_optional = i >= 2;
        if (is_optional && !gguf_find_tensor(r->g, whole[i].name))
            continue;
        rc = add_tensor(r, &whole[i], &n);
        if (rc)
            return rc;
    }
    for (uint32_t layer = 0; layer < m->n_layers; layer++) {
        rc = add_layer(r, layer, &n);
        if (rc)
            return rc;
    }
    return refuse_foreign_tensors(r, n);
}

enum err model_shape_from_gguf(const struct gguf *g, struct model_shape *out, struct err_info *ei)
{
    struct model_shape m = {0};
    const struct shape_reader r = {.g = g, .m = &m, .ei = ei};
    enum err rc = read_keys(&r);
    if (!rc)
        rc = check_tensors(&r);
    if (!rc)
        *out = m;
    return rc;
}

size_t model_shape_kv_bytes_per_token(const struct model_shape *m, enum tensor_type kv_format)
{
    return 2 * tensor_type_row_bytes(kv_format, (size_t)m->n_layers * m->n_kv_heads * m->head_dim);
}
