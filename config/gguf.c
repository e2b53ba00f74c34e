/* What does this model file say? Opens and maps the file, has it checked, then answers lookups.
 * Invariant: after gguf_open everything was validated, so nothing here can fail or leave the
 * mapping. Lookups are binary searches over sorted pointers; array elements are O(1), strings
 * through a table of offsets built once. Does not know the file's layout (gguf_parse.c). */
#include "config/gguf.h"
#include "config/gguf_parse.h"
#include "config/gguf_reader.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum err map_file(struct gguf *g, struct err_info *ei)
{
    /* non-blocking: a pipe of that name must not hang the start */
    int fd = open(g->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return err_set(ei, ERR_IO, "gguf: cannot open %s: %s", g->path, strerror(errno));
    struct stat st;
    enum err rc = OK;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        rc = err_set(ei, ERR_IO, "gguf: %s: is not a regular file", g->path);
    else if (st.st_size == 0)
        rc = err_set(ei, ERR_PARSE, "gguf: %s: magic at offset 0: the file is empty", g->path);
    if (rc)
        goto done;
    void *p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
        rc = err_set(ei, ERR_IO, "gguf: cannot map %s: %s", g->path, strerror(errno));
        goto done;
    }
    g->data = p;
    g->size = (size_t)st.st_size;
done:
    (void)close(fd);
    return rc;
}

enum err gguf_open(const char *path, struct gguf **out, struct err_info *ei)
{
    enum err rc = ERR_NOMEM;
    struct gguf *g = calloc(1, sizeof *g);
    if (!g)
        return err_set(ei, ERR_NOMEM, "gguf: no memory");
    g->path = strdup(path);
    g->arena = arena_new(0);
    if (!g->path || !g->arena) {
        (void)err_set(ei, rc, "gguf: no memory");
        goto fail;
    }
    rc = map_file(g, ei);
    if (!rc)
        rc = gguf_parse(g, ei);
    if (rc)
        goto fail;
    *out = g;
    return OK;
fail:
    gguf_close(g);
    return rc;
}

void gguf_close(struct gguf *g)
{
    if (!g)
        return;
    if (g->data)
        (void)munmap((void *)(uintptr_t)g->data, g->size);
    arena_free(g->arena);
    free(g->path);
    free(g);
}

const char *gguf_path(const struct gguf *g)
{
    return g->path;
}

size_t gguf_file_bytes(const struct gguf *g)
{
    return g->size;
}

const void *gguf_file_data(const struct gguf *g)
{
    return g->data;
}

size_t gguf_n_tensors(const struct gguf *g)
{
    return g->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, size_t i)
{
    assert(i < g->n_tensors);
    return &g->tensors[i];
}

static struct gguf_str str_of(const char *s)
{
    return (struct gguf_str){.s = s, .n = strlen(s)};
}

static int compare_to_tensor(const void *name, const void *entry)
{
    return gguf_str_compare(*(const struct gguf_str *)name,
                            (*(const struct gguf_tensor *const *)entry)->name);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *g, const char *name)
{
    struct gguf_str s = str_of(name);
    const struct gguf_tensor *const *hit =
        bsearch(&s, g->t_by_name, g->n_tensors, sizeof *g->t_by_name, compare_to_tensor);
    return hit ? *hit : NULL;
}

static int compare_to_kv(const void *key, const void *entry)
{
    return gguf_str_compare(*(const struct gguf_str *)key,
                            (*(const struct gguf_kv *const *)entry)->key);
}

static const struct gguf_kv *find_kv(const struct gguf *g, const char *key)
{
    struct gguf_str s = str_of(key);
    const struct gguf_kv *const *hit =
        bsearch(&s, g->kv_by_name, g->n_kvs, sizeof *g->kv_by_name, compare_to_kv);
    return hit ? *hit : NULL;
}

static const struct gguf_kv *find_scalar(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = find_kv(g, key);
    return kv && !kv->is_array ? kv : NULL;
}

/* Integers of all widths as a sign and a magnitude that always fits. */
struct integer {
    bool is_negative;
    uint64_t magnitude;
};

/* False: not an integer kind. */
static bool load_integer(const struct gguf *g, const struct gguf_kv *kv, size_t i,
                         struct integer *out)
{
    const uint8_t *p = g->data + kv->offset + i * gguf_kind_bytes(kv->kind);
    int64_t v = 0;
    switch (kv->kind) {
    case GGUF_U8:
        v = p[0];
        break;
    case GGUF_I8:
        v = (int8_t)p[0];
        break;
    case GGUF_U16:
        v = p[0] | p[1] << 8;
        break;
    case GGUF_I16:
        v = (int16_t)(p[0] | p[1] << 8);
        break;
    case GGUF_U32:
        v = gguf_load_u32(p);
        break;
    case GGUF_I32:
        v = (int32_t)gguf_load_u32(p);
        break;
    case GGUF_U64:
        *out = (struct integer){.magnitude = gguf_load_u64(p)};
        return true;
    case GGUF_I64:
        v = (int64_t)gguf_load_u64(p);
        break;
    case GGUF_F32:
    case GGUF_F64:
    case GGUF_BOOL:
    case GGUF_STR:
    case GGUF_ARRAY:
        return false;
    }
    *out = (struct integer){.is_negative = v < 0, .magnitude = v < 0 ? -(uint64_t)v : (uint64_t)v};
    return true;
}

/* False: not a floating-point kind. */
static bool load_float(const struct gguf *g, const struct gguf_kv *kv, size_t i, double *out)
{
    const uint8_t *p = g->data + kv->offset + i * gguf_kind_bytes(kv->kind);
    if (kv->kind == GGUF_F32) {
        uint32_t bits = gguf_load_u32(p);
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = (double)f;
        return true;
    }
    if (kv->kind == GGUF_F64) {
        uint64_t bits = gguf_load_u64(p);
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    return false;
}

bool gguf_get_u32(const struct gguf *g, const char *key, uint32_t *out)
{
    const struct gguf_kv *kv = find_scalar(g, key);
    struct integer v;
    if (!kv || !load_integer(g, kv, 0, &v) || v.is_negative || v.magnitude > UINT32_MAX)
        return false;
    *out = (uint32_t)v.magnitude;
    return true;
}

bool gguf_get_f32(const struct gguf *g, const char *key, float *out)
{
    const struct gguf_kv *kv = find_scalar(g, key);
    double v;
    if (!kv || !load_float(g, kv, 0, &v))
        return false;
    *out = (float)v;
    return true;
}

bool gguf_get_bool(const struct gguf *g, const char *key, bool *out)
{
    const struct gguf_kv *kv = find_scalar(g, key);
    if (!kv || kv->kind != GGUF_BOOL)
        return false;
    *out = g->data[kv->offset] != 0;
    return true;
}

static struct gguf_str load_str(const struct gguf *g, const struct gguf_kv *kv, size_t i)
{
    const uint8_t *p = g->data + kv->items[i];
    return (struct gguf_str){.s = (const char *)p + 8, .n = (size_t)gguf_load_u64(p)};
}

bool gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *out)
{
    const struct gguf_kv *kv = find_scalar(g, key);
    if (!kv || kv->kind != GGUF_STR)
        return false;
    *out = load_str(g, kv, 0);
    return true;
}

size_t gguf_n_strs(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = find_kv(g, key);
    return kv && kv->is_array && kv->kind == GGUF_STR ? (size_t)kv->n : 0;
}

size_t gguf_n_ints(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = find_kv(g, key);
    struct integer v;
    return kv && kv->is_array && kv->n && load_integer(g, kv, 0, &v) ? (size_t)kv->n : 0;
}

size_t gguf_n_floats(const struct gguf *g, const char *key)
{
    const struct gguf_kv *kv = find_kv(g, key);
    double v;
    return kv && kv->is_array && kv->n && load_float(g, kv, 0, &v) ? (size_t)kv->n : 0;
}

struct gguf_str gguf_str_at(const struct gguf *g, const char *key, size_t i)
{
    assert(i < gguf_n_strs(g, key));
    return load_str(g, find_kv(g, key), i);
}

/* An unsigned value beyond the signed range is given as the largest signed one. */
int64_t gguf_int_at(const struct gguf *g, const char *key, size_t i)
{
    assert(i < gguf_n_ints(g, key));
    struct integer v = {0};
    (void)load_integer(g, find_kv(g, key), i, &v);
    if (v.is_negative)
        return (int64_t)-v.magnitude;
    return v.magnitude > INT64_MAX ? INT64_MAX : (int64_t)v.magnitude;
}

float gguf_float_at(const struct gguf *g, const char *key, size_t i)
{
    assert(i < gguf_n_floats(g, key));
    double v = 0;
    (void)load_float(g, find_kv(g, key), i, &v);
    return (float)v;
}
