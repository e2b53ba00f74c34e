/* Where is each tensor's data, and does it lie in the file? The second half of the GGUF reader.
 * Invariant: after success every tensor has 1..4 non-zero dims, a type that this build reads, and
 * bytes of its own, aligned and inside the file; names are unique. Does not know which tensors a
 * model needs (model_shape.c). */
#include "config/gguf_parse.h"
#include "config/gguf_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_TENSOR_NAME_BYTES = 64, /* ggml specification */
    MAX_DIMS = 4,
    MIN_ALIGNMENT = 8,      /* ggml specification: a multiple of 8 */
    DEFAULT_ALIGNMENT = 32, /* ggml specification */
};

/* general.alignment: what tensor data is aligned to. */
static enum err read_alignment(struct gguf_reader *r, uint32_t *out)
{
    *out = DEFAULT_ALIGNMENT;
    const struct gguf_str name = {"general.alignment", strlen("general.alignment")};
    for (size_t i = 0; i < r->g->n_kvs; i++) {
        const struct gguf_kv *kv = &r->g->kvs[i];
        if (gguf_str_compare(kv->key, name) != 0)
            continue;
        gguf_reader_set_entry(r, "key", name);
        if (kv->is_array || kv->kind != GGUF_U32)
            return gguf_reader_fault(r, ERR_PARSE, "type", kv->offset, "must be UINT32");
        uint32_t v = gguf_load_u32(r->g->data + kv->offset);
        if (v < MIN_ALIGNMENT || (v & (v - 1)) != 0)
            return gguf_reader_fault_number(r, ERR_PARSE, "value", kv->offset, v,
                                            "is not a power of two of at least 8");
        *out = v;
    }
    r->entry[0] = '\0';
    return OK;
}

static enum err parse_dims(struct gguf_reader *r, struct gguf_tensor *t, uint64_t *n_values)
{
    size_t at = r->at;
    enum err rc = gguf_reader_u32(r, "n_dims", &t->n_dims);
    if (rc)
        return rc;
    if (t->n_dims < 1 || t->n_dims > MAX_DIMS)
        return gguf_reader_fault_number(r, ERR_LIMIT, "n_dims", at, t->n_dims, "is not 1 to 4");
    *n_values = 1;
    for (uint32_t d = 0; d < MAX_DIMS; d++) {
        t->dims[d] = 1;
        if (d >= t->n_dims)
            continue;
        at = r->at;
        rc = gguf_reader_u64(r, "dims", &t->dims[d]);
        if (rc)
            return rc;
        if (t->dims[d] == 0 || t->dims[d] > INT64_MAX)
            return gguf_reader_fault_number(r, ERR_LIMIT, "dims", at, t->dims[d],
                                            "is not 1 to 2^63 - 1");
        if (__builtin_mul_overflow(*n_values, t->dims[d], n_values))
            return gguf_reader_fault_number(r, ERR_LIMIT, "dims", at, t->dims[d],
                                            "makes the tensor exceed 2^64 values");
    }
    return OK;
}

/* Types that others write and this build does not read: for the error's sake. "" for no name. */
static const char *foreign_type_name(uint32_t type)
{
    static const char *const names[] = {
        [6] = "Q5_0",    [7] = "Q5_1",     [9] = "Q8_1",   [10] = "Q2_K",   [11] = "Q3_K",
        [12] = "Q4_K",   [13] = "Q5_K",    [14] = "Q6_K",  [15] = "Q8_K",   [16] = "IQ2_XXS",
        [17] = "IQ2_XS", [18] = "IQ3_XXS", [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",
        [22] = "IQ2_S",  [23] = "IQ4_XS",  [24] = "I8",    [25] = "I16",    [26] = "I32",
        [27] = "I64",    [28] = "F64",     [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",
        [39] = "MXFP4",
    };
    return type < sizeof names / sizeof *names && names[type] ? names[type] : "";
}

static enum err parse_type(struct gguf_reader *r, struct gguf_tensor *t)
{
    uint32_t type = 0;
    size_t at = r->at;
    enum err rc = gguf_reader_u32(r, "type", &type);
    if (rc)
        return rc;
    if (!tensor_type_is_known(type)) {
        const char *name = foreign_type_name(type);
        char what[96];
        (void)snprintf(what, sizeof what,
                       "%" PRIu32 "%s%s is none of F32, F16, BF16, Q8_0, Q4_0, Q4_1", type,
                       *name ? " " : "", name);
        return gguf_reader_fault(r, ERR_UNSUPPORTED, "type", at, what);
    }
    t->type = (enum tensor_type)type;
    return OK;
}

/* The offset field counts from the start of the data section, which is only known when all tensor
 * entries are read: t->offset holds the raw field until place_tensors. */
static enum err parse_tensor(struct gguf_reader *r, size_t i, uint32_t alignment,
                             struct gguf_tensor *t)
{
    (void)snprintf(r->entry, sizeof r->entry, "tensor %zu", i);
    enum err rc = gguf_reader_name(r, MAX_TENSOR_NAME_BYTES, &t->name);
    if (rc)
        return rc;
    gguf_reader_set_entry(r, "tensor", t->name);
    uint64_t n_values = 0, offset = 0, size_bytes = 0;
    size_t at = r->at;
    rc = parse_dims(r, t, &n_values);
    if (!rc)
        rc = parse_type(r, t);
    if (rc)
        return rc;
    uint32_t per_block = tensor_type_block_values(t->type);
    if (t->dims[0] % per_block)
        return gguf_reader_fault_number(r, ERR_PARSE, "dims", at + 4, t->dims[0],
                                        "is not a multiple of the type's block of 32 values");
    if (__builtin_mul_overflow(n_values / per_block, (uint64_t)tensor_type_block_bytes(t->type),
                               &size_bytes))
        return gguf_reader_fault_number(r, ERR_LIMIT, "dims", at + 4, n_values,
                                        "values exceed 2^64 bytes");
    at = r->at;
    rc = gguf_reader_u64(r, "offset", &offset);
    if (rc)
        return rc;
    if (offset % alignment)
        return gguf_reader_fault_number(r, ERR_PARSE, "offset", at, offset, "is not aligned");
    t->offset = offset;
    t->size_bytes = size_bytes;
    return OK;
}

static int compare_names(const void *a, const void *b)
{
    return gguf_str_compare((*(const struct gguf_tensor *const *)a)->name,
                            (*(const struct gguf_tensor *const *)b)->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Turns offsets into addresses: [offset, offset + size) must lie in the file, r->at being the end
 * of the tensor entries. */
static enum err place_tensors(struct gguf_reader *r, struct gguf *g, uint32_t alignment)
{
    size_t start = (r->at + alignment - 1) & ~((size_t)alignment - 1);
    for (size_t i = 0; i < g->n_tensors; i++) {
        struct gguf_tensor *t = &g->tensors[i];
        gguf_reader_set_entry(r, "tensor", t->name);
        if (start > g->size || t->offset > g->size - start)
            return gguf_reader_fault_number(r, ERR_PARSE, "data", start, t->offset,
                                            "bytes further is beyond the end of the file");
        t->offset += start;
        if (t->size_bytes > g->size - t->offset)
            return gguf_reader_fault_number(r, ERR_PARSE, "data", t->offset, t->size_bytes,
                                            "bytes are more than the file has");
        t->data = g->data + t->offset;
    }
    return OK;
}

static enum err index_tensors(struct gguf_reader *r, struct gguf *g)
{
    for (size_t i = 0; i < g->n_tensors; i++)
        g->t_by_name[i] = &g->tensors[i];
    qsort(g->t_by_name, g->n_tensors, sizeof *g->t_by_name, compare_offsets);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *a = g->t_by_name[i - 1], *b = g->t_by_name[i];
        gguf_reader_set_entry(r, "tensor", b->name);
        if (b->offset - a->offset < a->size_bytes)
            return gguf_reader_fault(r, ERR_PARSE, "data", b->offset, "overlaps another tensor's");
    }
    qsort(g->t_by_name, g->n_tensors, sizeof *g->t_by_name, compare_names);
    for (size_t i = 1; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = g->t_by_name[i];
        gguf_reader_set_entry(r, "tensor", t->name);
        if (gguf_str_compare(g->t_by_name[i - 1]->name, t->name) == 0)
            return gguf_reader_fault(r, ERR_PARSE, "",
                                     (size_t)((const uint8_t *)t->name.s - g->data),
                                     "stands twice in the file");
    }
    return OK;
}

enum err gguf_tensors_parse(struct gguf_reader *r, struct gguf *g)
{
    uint32_t alignment = 0;
    enum err rc = read_alignment(r, &alignment);
    if (rc)
        return rc;
    g->tensors = arena_alloc_array(g->arena, g->n_tensors, sizeof *g->tensors);
    g->t_by_name = arena_alloc_array(g->arena, g->n_tensors, sizeof *g->t_by_name);
    if (!g->tensors || !g->t_by_name)
        return gguf_reader_fault(r, ERR_NOMEM, "tensors", r->at, "no memory");
    for (size_t i = 0; i < g->n_tensors; i++) {
        rc = parse_tensor(r, i, alignment, &g->tensors[i]);
        if (rc)
            return rc;
    }
    rc = place_tensors(r, g, alignment);
    return rc ? rc : index_tensors(r, g);
}
