#pragma once
#include "config/base/err.h"
#include "config/tensor_type.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reader of GGUF model files (ggml's specification, versions 2 and 3, little endian). The file is
 * mapped read-only and every field is checked against the file's size before it is used or
 * allocated for; after a successful open all pointers stay valid until gguf_close. A failed open
 * names file, field and offset. Immutable after open: any thread may read. */

struct gguf;

struct gguf_str {
    const char *s; /* borrowed from the mapping: NOT NUL-terminated, may hold any byte */
    size_t n;
};

struct gguf_tensor {
    struct gguf_str name;
    enum tensor_type type;
    uint32_t n_dims;
    uint64_t
        dims[4]; /* ggml order: dims[0] is the contiguous one (row length); unused ones are 1 */
    const void *data;  /* in the mapping, aligned as the file says */
    size_t size_bytes; /* product of dims in the type's bytes; checked to lie within the file */
    size_t offset;     /* of data from the start of the file */
};

/* Errors: IO (cannot open, map), PARSE (malformed), LIMIT (beyond what the format allows),
 * UNSUPPORTED (version, big endian, tensor type). On success *out is the caller's. */
NODISCARD enum err gguf_open(const char *path, struct gguf **out, struct err_info *ei);
void gguf_close(struct gguf *g); /* NULL is legal */

const char *gguf_path(const struct gguf *g);
size_t gguf_file_bytes(const struct gguf *g);
/* The whole mapped file: gguf_file_bytes of it. */
const void *gguf_file_data(const struct gguf *g);

size_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name); /* NULL: none */

/* Metadata. False: the key is absent or of another kind. Integers of any width are accepted where
 * the value fits; booleans only from BOOL, floats from F32 and F64. */
bool gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out);
bool gguf_get_f32(const struct gguf *g, const char *key, float *out);
bool gguf_get_bool(const struct gguf *g, const char *key, bool *out);
bool gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out);
/* Arrays: number of elements, 0 when absent or of another element kind. Element access is O(1). */
size_t gguf_n_strs(const struct gguf *g, const char *key);
size_t gguf_n_ints(const struct gguf *g, const char *key);
size_t gguf_n_floats(const struct gguf *g, const char *key);
struct gguf_str gguf_str_at(const struct gguf *g, const char *key, size_t i);
int64_t gguf_int_at(const struct gguf *g, const char *key, size_t i);
float gguf_float_at(const struct gguf *g, const char *key, size_t i);
