#pragma once
#include "config/base/arena.h"
#include "config/gguf.h"

/* Inside of the GGUF reader: what gguf_parse.c fills and gguf.c answers from. Nobody else includes
 * this. Immutable after gguf_parse. */

enum gguf_kind { /* value types, ggml's numbers */
                 GGUF_U8,
                 GGUF_I8,
                 GGUF_U16,
                 GGUF_I16,
                 GGUF_U32,
                 GGUF_I32,
                 GGUF_F32,
                 GGUF_BOOL,
                 GGUF_STR,
                 GGUF_ARRAY,
                 GGUF_U64,
                 GGUF_I64,
                 GGUF_F64,
};

struct gguf_kv {
    struct gguf_str key;
    bool is_array;
    enum gguf_kind kind;   /* of the value, or of the array's elements: never GGUF_ARRAY */
    uint64_t n;            /* elements; 1 for a scalar */
    size_t offset;         /* of the (first) value in the file; strings: of its length field */
    const uint64_t *items; /* kind GGUF_STR: file offset of each length field */
};

struct gguf {
    char *path;
    const uint8_t *data; /* the mapping */
    size_t size;
    struct arena *arena; /* everything below */
    size_t n_kvs, n_tensors;
    struct gguf_kv *kvs;
    struct gguf_tensor *tensors;          /* in file order */
    const struct gguf_kv **kv_by_name;    /* n_kvs, sorted by key */
    const struct gguf_tensor **t_by_name; /* n_tensors, sorted by name */
};

/* Checks all of g->data and fills the rest. On error g is only good for gguf_close. */
NODISCARD enum err gguf_parse(struct gguf *g, struct err_info *ei);
/* Its second half: r stands behind the metadata, n_tensors is set. */
struct gguf_reader;
NODISCARD enum err gguf_tensors_parse(struct gguf_reader *r, struct gguf *g);

/* Bytes of one value of a fixed-size kind; 0 for strings and arrays. */
size_t gguf_kind_bytes(enum gguf_kind kind);

/* Orders byte strings; a shorter one first where it is a prefix. */
int gguf_str_compare(struct gguf_str a, struct gguf_str b);
