/* How is one field of a GGUF file read, and how is it named when it is wrong? A cursor over bytes
 * that may be hostile. Invariant: no byte is touched before its presence was checked, `at` never
 * passes the size, and every fault names file, entry, field and offset on one line. Knows fields,
 * not their order (gguf_parse.c, gguf_tensors.c). */
#include "config/gguf_reader.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum {
    PATH_SHOWN = 160,      /* of a path in errors: its tail, so that field and offset fit behind */
    MAX_ENTRIES = 1 << 20, /* keys or tensors: ours, a thousand times what models have */
};

uint32_t gguf_load_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

uint64_t gguf_load_u64(const uint8_t *p)
{
    return (uint64_t)gguf_load_u32(p) | (uint64_t)gguf_load_u32(p + 4) << 32;
}

/* "gguf: file: entry field at offset N: what" */
enum err gguf_reader_fault(const struct gguf_reader *r, enum err code, const char *field,
                           size_t offset, const char *what)
{
    const char *path = r->g->path;
    size_t n = strlen(path);
    bool is_cut = n > PATH_SHOWN;
    return err_set(r->ei, code, "gguf: %s%s: %s%s%s at offset %zu: %s", is_cut ? "..." : "",
                   is_cut ? path + n - PATH_SHOWN : path, r->entry, *r->entry && *field ? " " : "",
                   field, offset, what);
}

enum err gguf_reader_fault_number(const struct gguf_reader *r, enum err code, const char *field,
                                  size_t offset, uint64_t value, const char *what)
{
    char text[160];
    (void)snprintf(text, sizeof text, "%" PRIu64 " %s", value, what);
    return gguf_reader_fault(r, code, field, offset, text);
}

size_t gguf_reader_left(const struct gguf_reader *r)
{
    return r->g->size - r->at;
}

static enum err need(const struct gguf_reader *r, const char *field, uint64_t n)
{
    if (n <= gguf_reader_left(r))
        return OK;
    char what[80];
    (void)snprintf(what, sizeof what, "needs %" PRIu64 " bytes, %zu are left in the file", n,
                   gguf_reader_left(r));
    return gguf_reader_fault(r, ERR_PARSE, field, r->at, what);
}

enum err gguf_reader_u32(struct gguf_reader *r, const char *field, uint32_t *out)
{
    enum err rc = need(r, field, 4);
    if (rc)
        return rc;
    *out = gguf_load_u32(r->g->data + r->at);
    r->at += 4;
    return OK;
}

enum err gguf_reader_u64(struct gguf_reader *r, const char *field, uint64_t *out)
{
    enum err rc = need(r, field, 8);
    if (rc)
        return rc;
    *out = gguf_load_u64(r->g->data + r->at);
    r->at += 8;
    return OK;
}

enum err gguf_reader_str(struct gguf_reader *r, const char *field, struct gguf_str *out)
{
    uint64_t n = 0;
    size_t at = r->at;
    enum err rc = gguf_reader_u64(r, field, &n);
    if (rc)
        return rc;
    if (n > gguf_reader_left(r))
        return gguf_reader_fault_number(r, ERR_PARSE, field, at, n,
                                        "bytes of text are more than the file has");
    out->s = (const char *)r->g->data + r->at;
    out->n = (size_t)n;
    r->at += (size_t)n;
    return OK;
}

/* A key or a tensor's name: 1..max bytes of printable ASCII. */
enum err gguf_reader_name(struct gguf_reader *r, uint64_t max, struct gguf_str *out)
{
    uint64_t n = 0;
    size_t at = r->at;
    enum err rc = gguf_reader_u64(r, "name length", &n);
    if (rc)
        return rc;
    if (n == 0)
        return gguf_reader_fault(r, ERR_PARSE, "name", at, "is empty");
    if (n > max)
        return gguf_reader_fault_number(r, ERR_LIMIT, "name length", at, n,
                                        "is more than the format allows");
    rc = need(r, "name", n);
    if (rc)
        return rc;
    out->s = (const char *)r->g->data + r->at;
    out->n = (size_t)n;
    for (size_t i = 0; i < out->n; i++)
        if (out->s[i] < 0x20 || out->s[i] > 0x7e)
            return gguf_reader_fault(r, ERR_PARSE, "name", r->at + i,
                                     "holds a byte that is not ASCII text");
    r->at += out->n;
    return OK;
}

void gguf_reader_set_entry(struct gguf_reader *r, const char *what, struct gguf_str name)
{
    int n = name.n < GGUF_READER_NAME_SHOWN ? (int)name.n : GGUF_READER_NAME_SHOWN;
    (void)snprintf(r->entry, sizeof r->entry, "%s \"%.*s\"", what, n, name.s);
}

enum err gguf_reader_count(struct gguf_reader *r, const char *field, uint64_t each, size_t *out)
{
    uint64_t n = 0;
    size_t at = r->at;
    enum err rc = gguf_reader_u64(r, field, &n);
    if (rc)
        return rc;
    if (n > gguf_reader_left(r) / each)
        return gguf_reader_fault_number(r, ERR_PARSE, field, at, n,
                                        "entries are more than the file has");
    if (n > MAX_ENTRIES)
        return gguf_reader_fault_number(r, ERR_LIMIT, field, at, n, "is more than 1048576");
    *out = (size_t)n;
    return OK;
}
