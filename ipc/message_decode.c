/* What do these bytes say? Scanned first (message_scan.c), then unpacked by msgpack-c, then read by
 * the tables of message_fields.c. Invariant: what comes out is whole, in range and in the arena;
 * whatever comes in, memory stays in proportion to it. Knows nothing of sockets. */
#include "ipc/message_fields.h"
#include "ipc/message_scan.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <msgpack.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "u32 arrays are copied as they lie");

struct decoder {
    const char *kind;   /* "SUBMIT" */
    const char *inside; /* "", or "sampling.": which map we are in */
    struct arena *arena;
    struct err_info *ei;
};

static enum err refuse(const struct decoder *d, const char *key, enum err code, const char *what)
{
    return err_set(d->ei, code, "message: %s: %s%s: %s", d->kind, d->inside, key, what);
}

static bool is_text(const msgpack_object *o, const char *s)
{
    size_t n = strlen(s);
    return o->type == MSGPACK_OBJECT_STR && o->via.str.size == n &&
           memcmp(o->via.str.ptr, s, n) == 0;
}

static enum err read_integer(const struct decoder *d, const struct message_field *f,
                             const msgpack_object *o, int64_t *out)
{
    if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER && o->via.u64 <= (uint64_t)INT64_MAX)
        *out = (int64_t)o->via.u64;
    else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        *out = o->via.i64;
    else if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        return refuse(d, f->key, ERR_LIMIT, "out of range");
    else
        return refuse(d, f->key, ERR_PARSE, "is no integer");
    if (*out < f->least || *out > f->most)
        return err_set(d->ei, ERR_LIMIT,
                       "message: %s: %s%s: %" PRId64 " is outside %" PRId64 "..%" PRId64, d->kind,
                       d->inside, f->key, *out, f->least, f->most);
    return OK;
}

/* Range before conversion: a double outside float's range must not be converted. */
static enum err read_float(const struct decoder *d, const struct message_field *f,
                           const msgpack_object *o, float *out)
{
    double v;
    if (o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64)
        v = o->via.f64;
    else if (o->type == MSGPACK_OBJECT_POSITIVE_INTEGER)
        v = (double)o->via.u64;
    else if (o->type == MSGPACK_OBJECT_NEGATIVE_INTEGER)
        v = (double)o->via.i64;
    else
        return refuse(d, f->key, ERR_PARSE, "is no number");
    if (!(v >= (double)f->least_f && v <= (double)f->most_f))
        return err_set(d->ei, ERR_LIMIT, "message: %s: %s%s: %g is outside %g..%g", d->kind,
                       d->inside, f->key, v, (double)f->least_f, (double)f->most_f);
    *out = (float)v;
    return OK;
}

static enum err read_logprob(const struct decoder *d, const char *key, const msgpack_object *o,
                             float *out)
{
    const struct message_field f = {.key = key, .least_f = -FLT_MAX, .most_f = FLT_MAX};
    bool is_float = o->type == MSGPACK_OBJECT_FLOAT32 || o->type == MSGPACK_OBJECT_FLOAT64;
    if (is_float && isinf(o->via.f64) && o->via.f64 < 0) {
        *out = -INFINITY; /* a token that the model rules out */
        return OK;
    }
    return read_float(d, &f, o, out);
}

static enum err read_fixed_bytes(const struct decoder *d, const struct message_field *f,
                                 const msgpack_object *o, char *at)
{
    if (o->type != MSGPACK_OBJECT_BIN)
        return refuse(d, f->key, ERR_PARSE, "is no bin");
    if (o->via.bin.size != f->size)
        return err_set(d->ei, ERR_PARSE, "message: %s: %s%s: %u bytes, expected %zu", d->kind,
                       d->inside, f->key, o->via.bin.size, f->size);
    memcpy(at, o->via.bin.ptr, f->size);
    return OK;
}

static enum err read_text(const struct decoder *d, const struct message_field *f,
                          const msgpack_object *o, char *at)
{
    if (o->type != MSGPACK_OBJECT_STR)
        return refuse(d, f->key, ERR_PARSE, "is no string");
    size_t n = o->via.str.size;
    if (n >= f->size)
        return err_set(d->ei, ERR_LIMIT, "message: %s: %s%s: %zu bytes, at most %zu", d->kind,
                       d->inside, f->key, n, f->size - 1);
    if (n && memchr(o->via.str.ptr, '\0', n))
        return refuse(d, f->key, ERR_PARSE, "holds a NUL");
    memcpy(at, o->via.str.ptr, n);
    at[n] = '\0';
    return OK;
}

static enum err read_field(const struct decoder *d, const struct message_field *f,
                           const msgpack_object *o, char *at)
{
    int64_t integer = 0;
    float real = 0;
    enum err rc = OK;
    switch (f->type) {
    case FIELD_U32:
    case FIELD_I32:
        rc = read_integer(d, f, o, &integer);
        if (rc == OK)
            memcpy(at, &integer, 4); /* in range and little-endian: the low half is the value */
        return rc;
    case FIELD_U64:
        if (o->type != MSGPACK_OBJECT_POSITIVE_INTEGER)
            return refuse(d, f->key, ERR_PARSE, "is no unsigned integer");
        memcpy(at, &o->via.u64, sizeof o->via.u64);
        return OK;
    case FIELD_F32:
        rc = read_float(d, f, o, &real);
        if (rc == OK)
            memcpy(at, &real, sizeof real);
        return rc;
    case FIELD_BOOL:
        if (o->type != MSGPACK_OBJECT_BOOLEAN)
            return refuse(d, f->key, ERR_PARSE, "is no boolean");
        memcpy(at, &o->via.boolean, sizeof(bool));
        return OK;
    case FIELD_BYTES:
        return read_fixed_bytes(d, f, o, at);
    case FIELD_TEXT:
        return read_text(d, f, o, at);
    case FIELD_OWN:
        break;
    }
    return OK;
}

/* Reads the plain fields of a map into base and notes in found[i] where each known key's value is
 * (NULL: an optional one that is absent). */
static enum err read_map(const struct decoder *d, const msgpack_object *map,
                         struct message_fields t, void *base,
                         const msgpack_object *found[MESSAGE_FIELDS_MAX])
{
    memset(found, 0, MESSAGE_FIELDS_MAX * sizeof found[0]);
    for (uint32_t i = 0; i < map->via.map.size; i++) {
        const msgpack_object_kv *kv = &map->via.map.ptr[i];
        if (kv->key.type != MSGPACK_OBJECT_STR)
            return refuse(d, "", ERR_PARSE, "a key is no string");
        for (size_t k = 0; k < t.n; k++) {
            if (!is_text(&kv->key, t.fields[k].key))
                continue;
            if (found[k])
                return refuse(d, t.fields[k].key, ERR_PARSE, "stands twice");
            found[k] = &kv->val;
            break;
        }
    }
    for (size_t k = 0; k < t.n; k++) {
        const struct message_field *f = &t.fields[k];
        if (!found[k] && !f->is_optional)
            return refuse(d, f->key, ERR_PARSE, "is missing");
        if (f->type == FIELD_OWN)
            continue;
        enum err rc = read_field(d, f, found[k], (char *)base + f->offset);
        if (rc)
            return rc;
    }
    return OK;
}

/* A bin of u32: how many. */
static enum err count_u32(const struct decoder *d, const char *key, const msgpack_object *o,
                          uint32_t *out)
{
    if (o->type != MSGPACK_OBJECT_BIN || o->via.bin.size % sizeof(uint32_t) != 0)
        return refuse(d, key, ERR_PARSE, "is no bin of 4-byte integers");
    *out = o->via.bin.size / (uint32_t)sizeof(uint32_t);
    return OK;
}

static enum err read_sampling(const struct decoder *outer, const msgpack_object *o,
                              struct sampling_params *s)
{
    const msgpack_object *found[MESSAGE_FIELDS_MAX];
    struct decoder d = *outer;
    if (o->type != MSGPACK_OBJECT_MAP)
        return refuse(outer, "sampling", ERR_PARSE, "is no map");
    d.inside = "sampling.";
    enum err rc = read_map(&d, o, message_fields_of_sampling(), s, found);
    if (rc)
        return rc;
    const msgpack_object *ids = found[SAMPLING_STOP_IDS];
    rc = count_u32(&d, "stop_ids", ids, &s->n_stop_ids);
    if (rc)
        return rc;
    if (s->n_stop_ids > MESSAGE_MAX_STOP_IDS)
        return err_set(d.ei, ERR_LIMIT, "message: %s: sampling.stop_ids: %u ids, at most %d",
                       d.kind, s->n_stop_ids, MESSAGE_MAX_STOP_IDS);
    memcpy(s->stop_ids, ids->via.bin.ptr, ids->via.bin.size);
    return OK;
}

static enum err read_submit(const struct decoder *d, const msgpack_object *const *found,
                            struct message_submit *s)
{
    uint32_t n = 0;
    const msgpack_object *ids = found[SUBMIT_TOKENS];
    enum err rc = count_u32(d, "tokens", ids, &n);
    if (rc)
        return rc;
    if (n > MESSAGE_MAX_TOKENS)
        return err_set(d->ei, ERR_LIMIT, "message: %s: tokens: %u ids, at most %d", d->kind, n,
                       MESSAGE_MAX_TOKENS);
    if ((uint64_t)s->n_prompt + s->n_emitted != n)
        return err_set(d->ei, ERR_PARSE, "message: %s: tokens: %u ids, n_prompt + n_emitted is %u",
                       d->kind, n, s->n_prompt + s->n_emitted);
    uint32_t *copy = arena_alloc(d->arena, ids->via.bin.size);
    if (!copy)
        return refuse(d, "tokens", ERR_NOMEM, "no memory");
    memcpy(copy, ids->via.bin.ptr, ids->via.bin.size);
    s->tokens = copy;
    return read_sampling(d, found[SUBMIT_SAMPLING], &s->sampling);
}

static enum err read_top(const struct decoder *d, const msgpack_object *o, struct emitted_token *e)
{
    const struct message_field token = {.key = "top", .most = UINT32_MAX};
    if (o->type != MSGPACK_OBJECT_ARRAY || o->via.array.size % 2 != 0)
        return refuse(d, "top", ERR_PARSE, "is no array of pairs");
    if (o->via.array.size / 2 > MESSAGE_MAX_TOP_LOGPROBS)
        return err_set(d->ei, ERR_LIMIT, "message: %s: %stop: %u alternatives, at most %d", d->kind,
                       d->inside, o->via.array.size / 2, MESSAGE_MAX_TOP_LOGPROBS);
    e->n_top = o->via.array.size / 2;
    if (e->n_top == 0)
        return OK;
    e->top = arena_alloc_array(d->arena, e->n_top, sizeof e->top[0]);
    if (!e->top)
        return refuse(d, "top", ERR_NOMEM, "no memory");
    for (uint32_t k = 0; k < e->n_top; k++) {
        int64_t id = 0;
        enum err rc = read_integer(d, &token, &o->via.array.ptr[2 * k], &id);
        if (rc)
            return rc;
        e->top[k].token = (uint32_t)id;
        rc = read_logprob(d, "top", &o->via.array.ptr[2 * k + 1], &e->top[k].logprob);
        if (rc)
            return rc;
    }
    return OK;
}

static enum err read_emitted(const struct decoder *d, const msgpack_object *const *found,
                             struct sequence_tokens *s)
{
    const msgpack_object *ids = found[SEQUENCE_TOKENS], *logprobs = found[SEQUENCE_LOGPROBS],
                         *top = found[SEQUENCE_TOP];
    enum err rc = count_u32(d, "tokens", ids, &s->n_tokens);
    if (rc)
        return rc;
    if (logprobs->type != MSGPACK_OBJECT_ARRAY || logprobs->via.array.size != s->n_tokens)
        return refuse(d, "logprobs", ERR_PARSE, "is no array of one number a token");
    if (top && (top->type != MSGPACK_OBJECT_ARRAY || top->via.array.size != s->n_tokens))
        return refuse(d, "top", ERR_PARSE, "is no array of one array a token");
    if (s->n_tokens == 0)
        return OK;
    s->tokens = arena_alloc_array(d->arena, s->n_tokens, sizeof s->tokens[0]);
    if (!s->tokens)
        return refuse(d, "tokens", ERR_NOMEM, "no memory");
    for (uint32_t i = 0; i < s->n_tokens && !rc; i++) {
        struct emitted_token *e = &s->tokens[i];
        memcpy(&e->token, ids->via.bin.ptr + i * sizeof e->token, sizeof e->token);
        rc = read_logprob(d, "logprobs", &logprobs->via.array.ptr[i], &e->logprob);
        if (!rc && top)
            rc = read_top(d, &top->via.array.ptr[i], e);
    }
    return rc;
}

static enum err read_sequence(const struct decoder *d, const msgpack_object *o,
                              struct sequence_tokens *s)
{
    const struct message_field n_cached = {.key = "n_cached", .most = MESSAGE_MAX_TOKENS};
    const msgpack_object *found[MESSAGE_FIELDS_MAX];
    if (o->type != MSGPACK_OBJECT_MAP)
        return refuse(d, "", ERR_PARSE, "is no map");
    enum err rc = read_map(d, o, message_fields_of_sequence(), s, found);
    if (rc)
        return rc;
    if (found[SEQUENCE_N_CACHED]) {
        int64_t n = 0;
        rc = read_integer(d, &n_cached, found[SEQUENCE_N_CACHED], &n);
        if (rc)
            return rc;
        s->is_admission = true;
        s->n_cached = (uint32_t)n;
    }
    return read_emitted(d, found, s);
}

static enum err read_sequences(const struct decoder *outer, const msgpack_object *o,
                               struct message_tokens *m)
{
    struct decoder d = *outer;
    if (o->type != MSGPACK_OBJECT_ARRAY)
        return refuse(outer, "sequences", ERR_PARSE, "is no array");
    if (o->via.array.size > MESSAGE_MAX_SEQUENCES)
        return err_set(d.ei, ERR_LIMIT, "message: %s: sequences: %u, at most %d", d.kind,
                       o->via.array.size, MESSAGE_MAX_SEQUENCES);
    m->sequences = arena_alloc_array(d.arena, o->via.array.size, sizeof m->sequences[0]);
    if (!m->sequences)
        return refuse(outer, "sequences", ERR_NOMEM, "no memory");
    m->n_sequences = o->via.array.size;
    d.inside = "sequences.";
    for (uint32_t i = 0; i < m->n_sequences; i++) {
        enum err rc = read_sequence(&d, &o->via.array.ptr[i], &m->sequences[i]);
        if (rc)
            return rc;
    }
    return OK;
}

static enum err read_code(const struct decoder *d, const msgpack_object *o, enum err *out)
{
    for (enum err code = ERR_PARSE; code <= ERR_DEVICE; code++) {
        if (is_text(o, err_name(code))) {
            *out = code;
            return OK;
        }
    }
    return refuse(d, "code", ERR_PARSE, "is no known error");
}

/* "t", wherever it stands. Never reads past the map: the scan has counted it. */
static enum err read_kind(struct decoder *d, const msgpack_object *o, enum message_kind *out)
{
    const msgpack_object *kind = NULL;
    if (o->type != MSGPACK_OBJECT_MAP)
        return err_set(d->ei, ERR_PARSE, "message: is no map");
    for (uint32_t i = 0; i < o->via.map.size; i++) {
        if (!is_text(&o->via.map.ptr[i].key, "t"))
            continue;
        if (kind)
            return refuse(d, "t", ERR_PARSE, "stands twice");
        kind = &o->via.map.ptr[i].val;
    }
    if (!kind)
        return refuse(d, "t", ERR_PARSE, "is missing");
    if (kind->type != MSGPACK_OBJECT_POSITIVE_INTEGER || kind->via.u64 < MESSAGE_HELLO ||
        kind->via.u64 > MESSAGE_STOP)
        return refuse(d, "t", ERR_PARSE, "is no known kind");
    *out = (enum message_kind)kind->via.u64;
    d->kind = message_kind_name(*out);
    return OK;
}

static enum err read_message(struct decoder *d, const msgpack_object *o, struct message *m)
{
    const msgpack_object *found[MESSAGE_FIELDS_MAX];
    enum err rc = read_kind(d, o, &m->kind);
    if (rc)
        return rc;
    rc = read_map(d, o, message_fields_of(m->kind), message_fields_base(m), found);
    if (rc)
        return rc;
    if (m->kind == MESSAGE_SUBMIT)
        return read_submit(d, found, &m->as.submit);
    if (m->kind == MESSAGE_TOKENS)
        return read_sequences(d, found[TOKENS_SEQUENCES], &m->as.tokens);
    if (m->kind == MESSAGE_FAILED)
        return read_code(d, found[FAILED_CODE], &m->as.failed.code);
    return OK;
}

enum err message_decode(const void *data, size_t size_bytes, struct arena *arena,
                        struct message *out, struct err_info *ei)
{
    struct decoder d = {.kind = "?", .inside = "", .arena = arena, .ei = ei};
    size_t offset = 0;
    memset(out, 0, sizeof *out); /* all of the union, which {0} does not promise */
    enum err rc = message_scan(data, size_bytes, ei);
    if (rc)
        return rc;
    msgpack_unpacked unpacked;
    msgpack_unpacked_init(&unpacked);
    switch (msgpack_unpack_next(&unpacked, data, size_bytes, &offset)) {
    case MSGPACK_UNPACK_SUCCESS:
    case MSGPACK_UNPACK_EXTRA_BYTES:
        rc = read_message(&d, &unpacked.data, out);
        break;
    case MSGPACK_UNPACK_NOMEM_ERROR:
        rc = err_set(ei, ERR_NOMEM, "message: no memory");
        break;
    case MSGPACK_UNPACK_CONTINUE:
    case MSGPACK_UNPACK_PARSE_ERROR:
        rc = err_set(ei, ERR_PARSE, "message: msgpack refuses it at byte %zu", offset);
        break;
    }
    msgpack_unpacked_destroy(&unpacked);
    return rc;
}
