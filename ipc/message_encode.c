/* How does a message become bytes? Plain fields by the tables of message_fields.c, the few with a
 * shape of their own by hand, through msgpack-c's packer. Invariant: what is written here,
 * message_decode reads back; on failure out is as it was. Knows nothing of sockets. */
#include "ipc/message_fields.h"

#include <assert.h>
#include <msgpack.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "u32 arrays are copied as they lie");

static int append(void *to, const char *data, size_t n)
{
    struct bytes *b = to;
    bytes_append(b, data, n);
    return b->failed ? -1 : 0;
}

/* Failures of the packer stay in bytes.failed, which message_encode checks once. */
static void pack_text(msgpack_packer *pk, const char *s, size_t n)
{
    (void)msgpack_pack_str(pk, n);
    (void)msgpack_pack_str_body(pk, s, n);
}

static void pack_key(msgpack_packer *pk, const char *key)
{
    pack_text(pk, key, strlen(key));
}

static void pack_bin(msgpack_packer *pk, const void *data, size_t n)
{
    (void)msgpack_pack_bin(pk, n);
    (void)msgpack_pack_bin_body(pk, data, n);
}

static void pack_bool(msgpack_packer *pk, bool v)
{
    (void)(v ? msgpack_pack_true(pk) : msgpack_pack_false(pk));
}

static void pack_field(msgpack_packer *pk, const struct message_field *f, const char *at)
{
    uint32_t u32;
    uint64_t u64;
    int32_t i32;
    float f32;
    bool flag;
    pack_key(pk, f->key);
    switch (f->type) {
    case FIELD_U32:
        memcpy(&u32, at, sizeof u32);
        (void)msgpack_pack_uint32(pk, u32);
        break;
    case FIELD_U64:
        memcpy(&u64, at, sizeof u64);
        (void)msgpack_pack_uint64(pk, u64);
        break;
    case FIELD_I32:
        memcpy(&i32, at, sizeof i32);
        (void)msgpack_pack_int32(pk, i32);
        break;
    case FIELD_F32:
        memcpy(&f32, at, sizeof f32);
        (void)msgpack_pack_float(pk, f32);
        break;
    case FIELD_BOOL:
        memcpy(&flag, at, sizeof flag);
        pack_bool(pk, flag);
        break;
    case FIELD_BYTES:
        pack_bin(pk, at, f->size);
        break;
    case FIELD_TEXT:
        pack_text(pk, at, strnlen(at, f->size - 1));
        break;
    case FIELD_OWN:
        break;
    }
}

static void pack_plain_fields(msgpack_packer *pk, struct message_fields t, const void *base)
{
    for (size_t i = 0; i < t.n; i++)
        if (t.fields[i].type != FIELD_OWN)
            pack_field(pk, &t.fields[i], (const char *)base + t.fields[i].offset);
}

static void pack_sampling(msgpack_packer *pk, const struct sampling_params *s)
{
    struct message_fields t = message_fields_of_sampling();
    assert(s->n_stop_ids <= MESSAGE_MAX_STOP_IDS);
    (void)msgpack_pack_map(pk, t.n);
    pack_plain_fields(pk, t, s);
    pack_key(pk, t.fields[SAMPLING_STOP_IDS].key);
    pack_bin(pk, s->stop_ids, s->n_stop_ids * sizeof s->stop_ids[0]);
}

static void pack_submit(msgpack_packer *pk, const struct message_submit *s)
{
    struct message_fields t = message_fields_of(MESSAGE_SUBMIT);
    size_t n = (size_t)s->n_prompt + s->n_emitted;
    assert(s->n_prompt >= 1 && n <= MESSAGE_MAX_TOKENS);
    pack_key(pk, t.fields[SUBMIT_TOKENS].key);
    pack_bin(pk, s->tokens, n * sizeof s->tokens[0]);
    pack_key(pk, t.fields[SUBMIT_SAMPLING].key);
    pack_sampling(pk, &s->sampling);
}

static void pack_top(msgpack_packer *pk, const struct sequence_tokens *s)
{
    (void)msgpack_pack_array(pk, s->n_tokens);
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        const struct emitted_token *e = &s->tokens[i];
        assert(e->n_top <= MESSAGE_MAX_TOP_LOGPROBS);
        (void)msgpack_pack_array(pk, 2 * (size_t)e->n_top);
        for (uint32_t k = 0; k < e->n_top; k++) {
            (void)msgpack_pack_uint32(pk, e->top[k].token);
            (void)msgpack_pack_float(pk, e->top[k].logprob);
        }
    }
}

static void pack_sequence(msgpack_packer *pk, const struct sequence_tokens *s)
{
    struct message_fields t = message_fields_of_sequence();
    bool has_top = false;
    for (uint32_t i = 0; i < s->n_tokens; i++)
        has_top |= s->tokens[i].n_top > 0;
    (void)msgpack_pack_map(pk, t.n - !has_top - !s->is_admission);
    pack_plain_fields(pk, t, s);
    if (s->is_admission) {
        pack_key(pk, t.fields[SEQUENCE_N_CACHED].key);
        (void)msgpack_pack_uint32(pk, s->n_cached);
    }
    pack_key(pk, t.fields[SEQUENCE_TOKENS].key);
    (void)msgpack_pack_bin(pk, (size_t)s->n_tokens * sizeof s->tokens[0].token);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        (void)msgpack_pack_bin_body(pk, &s->tokens[i].token, sizeof s->tokens[i].token);
    pack_key(pk, t.fields[SEQUENCE_LOGPROBS].key);
    (void)msgpack_pack_array(pk, s->n_tokens);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        (void)msgpack_pack_float(pk, s->tokens[i].logprob);
    if (has_top) {
        pack_key(pk, t.fields[SEQUENCE_TOP].key);
        pack_top(pk, s);
    }
}

static void pack_own_fields(msgpack_packer *pk, const struct message *m)
{
    struct message_fields t = message_fields_of(m->kind);
    const char *code = m->kind == MESSAGE_FAILED ? err_name(m->as.failed.code) : NULL;
    if (m->kind == MESSAGE_SUBMIT)
        pack_submit(pk, &m->as.submit);
    if (m->kind == MESSAGE_TOKENS) {
        assert(m->as.tokens.n_sequences <= MESSAGE_MAX_SEQUENCES);
        pack_key(pk, t.fields[TOKENS_SEQUENCES].key);
        (void)msgpack_pack_array(pk, m->as.tokens.n_sequences);
        for (uint32_t i = 0; i < m->as.tokens.n_sequences; i++)
            pack_sequence(pk, &m->as.tokens.sequences[i]);
    }
    if (code) {
        pack_key(pk, t.fields[FAILED_CODE].key);
        pack_text(pk, code, strlen(code));
    }
}

enum err message_encode(const struct message *m, struct bytes *out, struct err_info *ei)
{
    struct message copy = *m; /* message_fields_base gives a writable pointer */
    struct message_fields t = message_fields_of(m->kind);
    size_t before = out->size;
    msgpack_packer pk;
    msgpack_packer_init(&pk, out, append);
    (void)msgpack_pack_map(&pk, 1 + t.n);
    pack_key(&pk, "t");
    (void)msgpack_pack_uint32(&pk, (uint32_t)m->kind);
    pack_plain_fields(&pk, t, message_fields_base(&copy));
    pack_own_fields(&pk, m);
    if (!out->failed)
        return OK;
    out->size = before;
    return err_set(ei, ERR_NOMEM, "message: %s: no memory", message_kind_name(m->kind));
}
