#pragma once
#include "config/base/bytes.h"
#include "config/gguf.h"

/* Writer of small GGUF files in memory, right ones and wrong ones, for tests and fuzz seeds.
 * Written after ggml's specification, not after the reader. */

enum { /* value types of the specification */
       W_U8,
       W_I8,
       W_U16,
       W_I16,
       W_U32,
       W_I32,
       W_F32,
       W_BOOL,
       W_STR,
       W_ARRAY,
       W_U64,
       W_I64,
       W_F64,
};

/* Raw fields, little endian. */
void write_u32(struct bytes *b, uint32_t v);
void write_u64(struct bytes *b, uint64_t v);
void write_f32(struct bytes *b, float v);
void write_str(struct bytes *b, const char *s);
void write_header(struct bytes *b, uint32_t version, uint64_t n_tensors, uint64_t n_kvs);
/* A key with its value. */
void write_kv_u32(struct bytes *b, const char *key, uint32_t v);
void write_kv_f32(struct bytes *b, const char *key, float v);
void write_kv_str(struct bytes *b, const char *key, const char *v);
void write_kv_array(struct bytes *b, const char *key, uint32_t kind, uint64_t n); /* no elements */
void write_tensor(struct bytes *b, const char *name, const uint64_t dims[2], uint32_t type,
                  uint64_t offset);
void write_padding(struct bytes *b, size_t alignment);

/* A valid file of 2 tensors and keys of every kind, with the places of its fields. */
struct gguf_sample {
    struct bytes file;
    size_t at_first_key, at_alignment_type, at_alignment, at_bool, at_text, at_names_kind,
        at_names_count, at_name_0, at_ints_count, at_a, at_a_n_dims, at_a_dims, at_a_type,
        at_a_offset, at_b, at_b_offset, at_data;
};
void gguf_sample_init(struct gguf_sample *s);
void gguf_sample_fini(struct gguf_sample *s);

/* A valid one-layer Llama file, with at most one thing changed. */
struct llama_change {
    const char *omit;   /* key or tensor that is left out */
    const char *key;    /* key that is set to, or added with, one of: */
    const char *str;    /* when not NULL */
    float f32;          /* when not 0 */
    uint32_t u32;       /* else */
    const char *tensor; /* tensor that is given, or added with, these dims and type */
    uint64_t dims[2];
    uint32_t type;
};
void write_llama(struct bytes *b, const struct llama_change *change);

/* gguf_open of bytes, through an anonymous file. */
enum err open_bytes(const void *data, size_t n, struct gguf **out, struct err_info *ei);
