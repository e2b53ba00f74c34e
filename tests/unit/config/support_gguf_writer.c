/* How are GGUF files for tests made? Field by field after ggml's specification, so that each test
 * can say which field it bends. Knows nothing of the reader but gguf_open. */
#include "tests/unit/config/support_gguf_writer.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void write_u32(struct bytes *b, uint32_t v)
{
    unsigned char raw[4];
    for (int i = 0; i < 4; i++)
        raw[i] = (unsigned char)(v >> (8 * i));
    bytes_append(b, raw, sizeof raw);
}

void write_u64(struct bytes *b, uint64_t v)
{
    write_u32(b, (uint32_t)v);
    write_u32(b, (uint32_t)(v >> 32));
}

void write_f32(struct bytes *b, float v)
{
    uint32_t raw;
    memcpy(&raw, &v, sizeof raw);
    write_u32(b, raw);
}

void write_str(struct bytes *b, const char *s)
{
    write_u64(b, strlen(s));
    bytes_append_str(b, s);
}

void write_header(struct bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kvs)
{
    bytes_append_str(b, "GGUF");
    write_u32(b, version);
    write_u64(b, n_tensors);
    write_u64(b, n_kvs);
}

static void write_key(struct bytes *b, const char *key, uint32_t kind)
{
    write_str(b, key);
    write_u32(b, kind);
}

void write_kv_u32(struct bytes *b, const char *key, uint32_t v)
{
    write_key(b, key, W_U32);
    write_u32(b, v);
}

void write_kv_f32(struct bytes *b, const char *key, float v)
{
    write_key(b, key, W_F32);
    write_f32(b, v);
}

void write_kv_str(struct bytes *b, const char *key, const char *v)
{
    write_key(b, key, W_STR);
    write_str(b, v);
}

void write_kv_array(struct bytes *b, const char *key, uint32_t kind, uint64_t n)
{
    write_key(b, key, W_ARRAY);
    write_u32(b, kind);
    write_u64(b, n);
}

void write_tensor(struct bytes *b, const char *name, const uint64_t dims[2], uint32_t type,
                  uint64_t offset)
{
    uint32_t n_dims = dims[1] ? 2 : 1;
    write_str(b, name);
    write_u32(b, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        write_u64(b, dims[d]);
    write_u32(b, type);
    write_u64(b, offset);
}

void write_padding(struct bytes *b, size_t alignment)
{
    while (b->size % alignment)
        bytes_append(b, "", 1);
}

static void write_zeros(struct bytes *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        bytes_append(b, "", 1);
}

/* Integers of every width: the value is in the key's name. */
static void write_integers(struct bytes *b)
{
    write_key(b, "int.u8.200", W_U8);
    bytes_append(b, "\xc8", 1);
    write_key(b, "int.i8.minus5", W_I8);
    bytes_append(b, "\xfb", 1);
    write_key(b, "int.u16.60000", W_U16);
    bytes_append(b, "\x60\xea", 2);
    write_key(b, "int.i16.7", W_I16);
    bytes_append(b, "\x07\x00", 2);
    write_key(b, "int.i32.9", W_I32);
    write_u32(b, 9);
    write_key(b, "int.u64.11", W_U64);
    write_u64(b, 11);
    write_key(b, "int.u64.max", W_U64);
    write_u64(b, UINT64_MAX);
    write_key(b, "int.i64.13", W_I64);
    write_u64(b, 13);
    write_key(b, "float.f64.half", W_F64);
    write_u64(b, UINT64_C(0x3fe0000000000000)); /* 0.5, IEEE 754 binary64 */
}

static void write_sample_keys(struct gguf_sample *s)
{
    struct bytes *b = &s->file;
    s->at_first_key = b->size;
    write_kv_str(b, "general.architecture", "test");
    write_str(b, "general.alignment");
    s->at_alignment_type = b->size;
    write_u32(b, W_U32);
    s->at_alignment = b->size;
    write_u32(b, 64);
    write_key(b, "bool.true", W_BOOL);
    s->at_bool = b->size;
    bytes_append(b, "\x01", 1);
    write_key(b, "text", W_STR);
    s->at_text = b->size;
    write_str(b, "hello");
    write_key(b, "names", W_ARRAY);
    s->at_names_kind = b->size;
    write_u32(b, W_STR);
    s->at_names_count = b->size;
    write_u64(b, 3);
    s->at_name_0 = b->size;
    write_str(b, "one");
    write_str(b, "");
    write_str(b, "three");
    write_key(b, "ints", W_ARRAY);
    write_u32(b, W_I32);
    s->at_ints_count = b->size;
    write_u64(b, 2);
    write_u32(b, 1);
    write_u32(b, (uint32_t)-2);
    write_kv_array(b, "floats", W_F32, 2);
    write_f32(b, 0.25F);
    write_f32(b, -8);
    write_kv_array(b, "empty", W_STR, 0);
    write_kv_f32(b, "float.f32", 1.5F);
    write_integers(b);
}

void gguf_sample_init(struct gguf_sample *s)
{
    *s = (struct gguf_sample){0};
    struct bytes *b = &s->file;
    write_header(b, 3, 2, 18);
    write_sample_keys(s);
    s->at_a = b->size;
    s->at_a_n_dims = b->size + 8 + strlen("a.weight");
    s->at_a_dims = s->at_a_n_dims + 4;
    s->at_a_type = s->at_a_dims + 16;
    s->at_a_offset = s->at_a_type + 4;
    write_tensor(b, "a.weight", (const uint64_t[2]){4, 2}, TENSOR_F32, 0);
    s->at_b = b->size;
    write_tensor(b, "b.weight", (const uint64_t[2]){32, 2}, TENSOR_Q8_0, 64);
    s->at_b_offset = b->size - 8;
    write_padding(b, 64);
    s->at_data = b->size;
    write_zeros(b, 64 + 2 * 34); /* Q8_0: 34 bytes for 32 values */
}

void gguf_sample_fini(struct gguf_sample *s)
{
    bytes_fini(&s->file);
}

/* --- a Llama ------------------------------------------------------------------------------------
 */

/* A list of entries in the making. */
struct entries {
    struct bytes bytes;
    uint64_t n, data_bytes;
    const struct llama_change *change;
    bool is_changed;
};

static bool is_same(const char *a, const char *b)
{
    return a && strcmp(a, b) == 0;
}

static void add_changed_key(struct entries *e)
{
    const struct llama_change *c = e->change;
    e->is_changed = true;
    e->n++;
    if (c->str)
        write_kv_str(&e->bytes, c->key, c->str);
    else if (c->f32 != 0)
        write_kv_f32(&e->bytes, c->key, c->f32);
    else
        write_kv_u32(&e->bytes, c->key, c->u32);
}

static void add_u32(struct entries *e, const char *key, uint32_t v)
{
    if (is_same(e->change->omit, key))
        return;
    if (is_same(e->change->key, key)) {
        add_changed_key(e);
        return;
    }
    write_kv_u32(&e->bytes, key, v);
    e->n++;
}

static void add_tensor(struct entries *e, const char *name, uint64_t columns, uint64_t rows)
{
    uint64_t dims[2] = {columns, rows};
    uint32_t type = TENSOR_F32;
    if (is_same(e->change->omit, name))
        return;
    if (is_same(e->change->tensor, name)) {
        e->is_changed = true;
        memcpy(dims, e->change->dims, sizeof dims);
        type = e->change->type;
    }
    write_tensor(&e->bytes, name, dims, type, e->data_bytes);
    e->data_bytes += (dims[0] * (dims[1] ? dims[1] : 1) * 4 + 31) / 32 * 32;
    e->n++;
}

static void add_llama_keys(struct entries *e)
{
    const struct llama_change *c = e->change;
    if (is_same(c->key, "general.architecture"))
        add_changed_key(e);
    else if (!is_same(c->omit, "general.architecture")) {
        write_kv_str(&e->bytes, "general.architecture", "llama");
        e->n++;
    }
    add_u32(e, "llama.block_count", 1);
    add_u32(e, "llama.embedding_length", 8);
    add_u32(e, "llama.feed_forward_length", 12);
    add_u32(e, "llama.context_length", 32);
    add_u32(e, "llama.attention.head_count", 4);
    add_u32(e, "llama.attention.head_count_kv", 2);
    add_u32(e, "llama.vocab_size", 10);
    if (is_same(c->key, "llama.attention.layer_norm_rms_epsilon"))
        add_changed_key(e);
    else if (!is_same(c->omit, "llama.attention.layer_norm_rms_epsilon")) {
        write_kv_f32(&e->bytes, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
        e->n++;
    }
    if (c->key && !e->is_changed)
        add_changed_key(e);
}

static void add_llama_tensors(struct entries *e)
{
    add_tensor(e, "token_embd.weight", 8, 10);
    add_tensor(e, "output_norm.weight", 8, 0);
    add_tensor(e, "output.weight", 8, 10);
    add_tensor(e, "blk.0.attn_norm.weight", 8, 0);
    add_tensor(e, "blk.0.attn_q.weight", 8, 8);
    add_tensor(e, "blk.0.attn_k.weight", 8, 4);
    add_tensor(e, "blk.0.attn_v.weight", 8, 4);
    add_tensor(e, "blk.0.attn_output.weight", 8, 8);
    add_tensor(e, "blk.0.ffn_norm.weight", 8, 0);
    add_tensor(e, "blk.0.ffn_gate.weight", 8, 12);
    add_tensor(e, "blk.0.ffn_up.weight", 8, 12);
    add_tensor(e, "blk.0.ffn_down.weight", 12, 8);
    if (e->change->tensor && !e->is_changed)
        add_tensor(e, e->change->tensor, 1, 1); /* dims are the change's */
}

void write_llama(struct bytes *b, const struct llama_change *change)
{
    struct entries keys = {.change = change}, tensors = {.change = change};
    add_llama_keys(&keys);
    add_llama_tensors(&tensors);
    write_header(b, 3, tensors.n, keys.n);
    bytes_append(b, keys.bytes.data, keys.bytes.size);
    bytes_append(b, tensors.bytes.data, tensors.bytes.size);
    write_padding(b, 32);
    write_zeros(b, tensors.data_bytes);
    bytes_fini(&keys.bytes);
    bytes_fini(&tensors.bytes);
}

enum err open_bytes(const void *data, size_t n, struct gguf **out, struct err_info *ei)
{
    char path[64];
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        return err_set(ei, ERR_IO, "test: no anonymous file");
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    enum err rc = gguf_open(path, out, ei);
    (void)close(fd);
    return rc;
}
