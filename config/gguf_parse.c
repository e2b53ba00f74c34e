/* Is this file a GGUF model, and where is everything in it? One pass from front to back over bytes
 * that may be hostile. Invariant: no byte is read, no memory allocated and no product formed before
 * its size was checked against what is left of the file, so a file of n bytes costs O(n) memory and
 * O(n log n) time. Does not know what keys and tensors mean (model_shape.c, the tokenizer do), nor
 * that the bytes are a mapping: a file cut while it is mapped is the operator's fault (SIGBUS). */
#include "config/gguf_parse.h"
#include "config/gguf_reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEY_BYTES = 65535, /* ggml specification */
    MIN_KV_BYTES = 14,     /* key length, one character, type, one byte of value */
    MIN_TENSOR_BYTES = 33, /* name length, one character, n_dims, one dim, type, offset */
};

size_t gguf_kind_bytes(enum gguf_kind kind)
{
    switch (kind) {
    case GGUF_U8:
    case GGUF_I8:
    case GGUF_BOOL:
        return 1;
    case GGUF_U16:
    case GGUF_I16:
        return 2;
    case GGUF_U32:
    case GGUF_I32:
    case GGUF_F32:
        return 4;
    case GGUF_U64:
    case GGUF_I64:
    case GGUF_F64:
        return 8;
    case GGUF_STR:
    case GGUF_ARRAY:
        return 0;
    }
    return 0;
}

int gguf_str_compare(struct gguf_str a, struct gguf_str b)
{
    int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
    return c ? c : (a.n > b.n) - (a.n < b.n);
}

/* The format knows one byte for true and one for false, and calls every other one invalid. */
static enum err check_bools(const struct gguf_reader *r, const struct gguf_kv *kv)
{
    for (uint64_t i = 0; i < kv->n; i++) {
        uint8_t b = r->g->data[kv->offset + i];
        if (b > 1)
            return gguf_reader_fault_number(r, ERR_PARSE, "value", kv->offset + i, b,
                                            "is not a boolean");
    }
    return OK;
}

static enum err parse_items(struct gguf_reader *r, struct gguf_kv *kv)
{
    enum err rc = OK;
    kv->offset = r->at;
    if (kv->kind != GGUF_STR) {
        size_t each = gguf_kind_bytes(kv->kind);
        if (kv->n > gguf_reader_left(r) / each)
            return gguf_reader_fault_number(r, ERR_PARSE, "count", r->at, kv->n,
                                            "values are more than the file has");
        r->at += (size_t)kv->n * each;
        return kv->kind == GGUF_BOOL ? check_bools(r, kv) : OK;
    }
    if (kv->n > gguf_reader_left(r) / 8)
        return gguf_reader_fault_number(r, ERR_PARSE, "count", r->at, kv->n,
                                        "texts are more than the file has");
    uint64_t *items = arena_alloc_array(r->g->arena, (size_t)kv->n, sizeof *items);
    if (!items)
        return gguf_reader_fault(r, ERR_NOMEM, "value", r->at, "no memory");
    for (uint64_t i = 0; i < kv->n; i++) {
        struct gguf_str s;
        items[i] = r->at;
        rc = gguf_reader_str(r, "value", &s);
        if (rc)
            return rc;
    }
    kv->items = items;
    return OK;
}

static enum err parse_kv(struct gguf_reader *r, size_t i, struct gguf_kv *kv)
{
    (void)snprintf(r->entry, sizeof r->entry, "key %zu", i);
    enum err rc = gguf_reader_name(r, MAX_KEY_BYTES, &kv->key);
    if (rc)
        return rc;
    gguf_reader_set_entry(r, "key", kv->key);
    uint32_t type = 0;
    size_t at = r->at;
    rc = gguf_reader_u32(r, "type", &type);
    if (rc)
        return rc;
    kv->n = 1;
    if (type == GGUF_ARRAY) {
        kv->is_array = true;
        at = r->at;
        rc = gguf_reader_u32(r, "element type", &type);
        if (!rc)
            rc = gguf_reader_u64(r, "count", &kv->n);
        if (rc)
            return rc;
        if (type == GGUF_ARRAY)
            return gguf_reader_fault(r, ERR_UNSUPPORTED, "element type", at,
                                     "arrays of arrays are refused");
    }
    if (type > GGUF_F64)
        return gguf_reader_fault_number(r, ERR_PARSE, kv->is_array ? "element type" : "type", at,
                                        type, "is no value type of the format");
    kv->kind = (enum gguf_kind)type;
    return parse_items(r, kv);
}

static int compare_kvs(const void *a, const void *b)
{
    return gguf_str_compare((*(const struct gguf_kv *const *)a)->key,
                            (*(const struct gguf_kv *const *)b)->key);
}

static enum err parse_kvs(struct gguf_reader *r, struct gguf *g)
{
    g->kvs = arena_alloc_array(g->arena, g->n_kvs, sizeof *g->kvs);
    g->kv_by_name = arena_alloc_array(g->arena, g->n_kvs, sizeof *g->kv_by_name);
    if (!g->kvs || !g->kv_by_name)
        return gguf_reader_fault(r, ERR_NOMEM, "metadata", r->at, "no memory");
    for (size_t i = 0; i < g->n_kvs; i++) {
        enum err rc = parse_kv(r, i, &g->kvs[i]);
        if (rc)
            return rc;
        g->kv_by_name[i] = &g->kvs[i];
    }
    qsort(g->kv_by_name, g->n_kvs, sizeof *g->kv_by_name, compare_kvs);
    for (size_t i = 1; i < g->n_kvs; i++) {
        const struct gguf_kv *kv = g->kv_by_name[i];
        if (gguf_str_compare(g->kv_by_name[i - 1]->key, kv->key) != 0)
            continue;
        gguf_reader_set_entry(r, "key", kv->key);
        return gguf_reader_fault(r, ERR_PARSE, "", (size_t)((const uint8_t *)kv->key.s - g->data),
                                 "stands twice in the file");
    }
    r->entry[0] = '\0';
    return OK;
}

enum err gguf_parse(struct gguf *g, struct err_info *ei)
{
    struct gguf_reader r = {.g = g, .ei = ei};
    uint32_t magic = 0, version = 0;
    enum err rc = gguf_reader_u32(&r, "magic", &magic);
    if (rc)
        return rc;
    if (memcmp(g->data, "GGUF", 4) != 0)
        return gguf_reader_fault(&r, ERR_PARSE, "magic", 0, "is not GGUF");
    rc = gguf_reader_u32(&r, "version", &version);
    if (rc)
        return rc;
    if (version == __builtin_bswap32(2) || version == __builtin_bswap32(3))
        return gguf_reader_fault(&r, ERR_UNSUPPORTED, "version", 4,
                                 "big-endian files are not read");
    if (version != 2 && version != 3)
        return gguf_reader_fault_number(&r, ERR_UNSUPPORTED, "version", 4, version,
                                        "is not 2 or 3");
    rc = gguf_reader_count(&r, "tensor_count", MIN_TENSOR_BYTES, &g->n_tensors);
    if (!rc)
        rc = gguf_reader_count(&r, "kv_count", MIN_KV_BYTES, &g->n_kvs);
    if (!rc)
        rc = parse_kvs(&r, g);
    if (!rc)
        rc = gguf_tensors_parse(&r, g);
    return rc;
}
