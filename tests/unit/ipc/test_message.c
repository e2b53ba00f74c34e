/* Does a message come out as it went in, and is everything that is not one refused by name? */
#include "ipc/message.h"
#include "support_message.h"

#include <criterion/criterion.h>
#include <msgpack.h>
#include <string.h>
#include <sys/random.h>

TestSuite(message, .timeout = 20);

static uint64_t fresh_seed(void)
{
    uint64_t seed = 1;
    cr_assert_eq(getrandom(&seed, sizeof seed, 0), (ssize_t)sizeof seed);
    return seed;
}

static struct bytes encoded(const struct message *m)
{
    struct bytes b = {0};
    cr_assert_eq(message_encode(m, &b, NULL), OK);
    return b;
}

Test(message, random_messages_of_each_kind_come_back_equal)
{
    uint64_t seed = fresh_seed();
    struct random_source r = random_source_new(seed);
    for (int i = 0; i < 3000; i++) {
        struct arena *a = arena_new(0);
        struct err_info ei = {0};
        struct message m = random_message(&r, (enum message_kind)(1 + i % MESSAGE_STOP), a), back;
        struct bytes b = encoded(&m);
        enum err rc = message_decode(b.data, b.size, a, &back, &ei);
        const char *what = rc ? ei.text : message_difference(&m, &back);
        cr_assert_null(what, "seed %#llx, message %d, %s: %s", (unsigned long long)seed, i,
                       message_kind_name(m.kind), what);
        bytes_fini(&b);
        arena_free(a);
    }
}

Test(message, nothing_decoded_points_into_the_data)
{
    struct random_source r = random_source_new(7);
    for (enum message_kind kind = MESSAGE_HELLO; kind <= MESSAGE_STOP; kind++) {
        struct arena *a = arena_new(0);
        struct message m = random_message(&r, kind, a), back;
        struct bytes b = encoded(&m);
        cr_assert_eq(message_decode(b.data, b.size, a, &back, NULL), OK);
        memset(b.data, 0xc1, b.size);
        bytes_fini(&b);
        cr_assert_null(message_difference(&m, &back));
        arena_free(a);
    }
}

Test(message, encoding_appends_to_what_is_there)
{
    struct message m = {.kind = MESSAGE_CANCEL, .as.cancel = {.id = 1}}, back;
    struct arena *a = arena_new(0);
    struct bytes b = {0};
    bytes_append_str(&b, "head");
    cr_assert_eq(message_encode(&m, &b, NULL), OK);
    cr_assert_eq(memcmp(b.data, "head", 4), 0);
    cr_assert_eq(message_decode(b.data + 4, b.size - 4, a, &back, NULL), OK);
    bytes_fini(&b);
    arena_free(a);
}

/* The copy lies at the end of its own allocation, so that ASan sees a read past it. */
static enum err decode_exactly(const void *data, size_t n, struct err_info *ei)
{
    struct message out;
    struct arena *a = arena_new(0);
    char *copy = malloc(n ? n : 1);
    memcpy(copy, data, n);
    enum err rc = message_decode(copy, n, a, &out, ei);
    free(copy);
    arena_free(a);
    return rc;
}

Test(message, a_message_cut_at_any_byte_is_refused)
{
    struct random_source r = random_source_new(11);
    for (int i = 0; i < 5 * MESSAGE_STOP; i++) {
        struct arena *a = arena_new(0);
        struct message m = random_message(&r, (enum message_kind)(1 + i % MESSAGE_STOP), a);
        struct bytes b = encoded(&m);
        size_t step = b.size > 4000 ? b.size / 1000 : 1;
        for (size_t n = 0; n < b.size; n += step)
            cr_assert_eq(decode_exactly(b.data, n, NULL), ERR_PARSE, "%s cut to %zu of %zu",
                         message_kind_name(m.kind), n, b.size);
        bytes_append(&b, "\xc0", 1);
        cr_assert_eq(decode_exactly(b.data, b.size, NULL), ERR_PARSE, "a byte too many");
        bytes_fini(&b);
        arena_free(a);
    }
}

/* Rewrites an encoded message with one change at the k-th key, counted over all its maps. */
enum change { DROP, TWICE, NIL, UNKNOWN };

struct rewrite {
    msgpack_packer pk;
    enum change change;
    int countdown;
    char key[64]; /* the key that was changed; empty: there is no k-th */
};

static void rewrite_object(struct rewrite *w, const msgpack_object *o);

static void rewrite_pair(struct rewrite *w, const msgpack_object_kv *kv, bool is_it)
{
    if (is_it && w->change == DROP)
        return;
    msgpack_pack_object(&w->pk, kv->key);
    if (is_it && w->change == NIL)
        msgpack_pack_nil(&w->pk);
    else
        rewrite_object(w, &kv->val);
    if (is_it && w->change == TWICE) {
        msgpack_pack_object(&w->pk, kv->key);
        msgpack_pack_object(&w->pk, kv->val);
    }
    if (is_it && w->change == UNKNOWN) {
        msgpack_pack_str_with_body(&w->pk, "later", 5);
        msgpack_pack_array(&w->pk, 2);
        msgpack_pack_ext_with_body(&w->pk, "xyz", 3, 4);
        msgpack_pack_map(&w->pk, 0);
    }
}

static void rewrite_map(struct rewrite *w, const msgpack_object *o)
{
    uint32_t n = o->via.map.size, hit = UINT32_MAX;
    if (w->countdown >= 0 && (uint32_t)w->countdown < n) {
        hit = (uint32_t)w->countdown;
        const msgpack_object_str *s = &o->via.map.ptr[hit].key.via.str;
        snprintf(w->key, sizeof w->key, "%.*s", (int)s->size, s->ptr);
    }
    w->countdown = hit != UINT32_MAX ? -1 : w->countdown - (int)n;
    uint32_t n_after = n;
    if (hit != UINT32_MAX && w->change != NIL)
        n_after += w->change == DROP ? -1 : 1;
    msgpack_pack_map(&w->pk, n_after);
    for (uint32_t i = 0; i < n; i++)
        rewrite_pair(w, &o->via.map.ptr[i], i == hit);
}

static void rewrite_object(struct rewrite *w, const msgpack_object *o)
{
    if (o->type == MSGPACK_OBJECT_MAP) {
        rewrite_map(w, o);
    } else if (o->type == MSGPACK_OBJECT_ARRAY) {
        msgpack_pack_array(&w->pk, o->via.array.size);
        for (uint32_t i = 0; i < o->via.array.size; i++)
            rewrite_object(w, &o->via.array.ptr[i]);
    } else {
        msgpack_pack_object(&w->pk, *o);
    }
}

static enum err decode_rewritten(const struct bytes *b, enum change change, int k, char key[64],
                                 struct err_info *ei)
{
    msgpack_sbuffer out;
    msgpack_unpacked u;
    struct rewrite w = {.change = change, .countdown = k};
    msgpack_sbuffer_init(&out);
    msgpack_unpacked_init(&u);
    msgpack_packer_init(&w.pk, &out, msgpack_sbuffer_write);
    cr_assert_eq(msgpack_unpack_next(&u, b->data, b->size, NULL), MSGPACK_UNPACK_SUCCESS);
    rewrite_object(&w, &u.data);
    enum err rc = decode_exactly(out.data, out.size, ei);
    msgpack_unpacked_destroy(&u);
    msgpack_sbuffer_destroy(&out);
    memcpy(key, w.key, sizeof w.key);
    return rc;
}

/* Calls judge for each key of a random message of each kind; at least as many as the kinds have. */
static void for_each_key(enum change change, void (*judge)(enum err, const char *kind,
                                                           const char *key, const char *text))
{
    struct random_source r = random_source_new(23);
    int n_keys = 0;
    for (int i = 0; i < 4 * MESSAGE_STOP; i++) {
        struct arena *a = arena_new(0);
        struct message m = random_message(&r, (enum message_kind)(1 + i % MESSAGE_STOP), a);
        struct bytes b = encoded(&m);
        for (int k = 0;; k++) {
            char key[64];
            struct err_info ei = {0};
            enum err rc = decode_rewritten(&b, change, k, key, &ei);
            if (!key[0])
                break;
            judge(rc, message_kind_name(m.kind), key, ei.text);
            n_keys++;
        }
        bytes_fini(&b);
        arena_free(a);
    }
    cr_assert_gt(n_keys, 4 * 60);
}

static void must_name(enum err rc, const char *kind, const char *key, const char *text)
{
    cr_assert_eq(rc, ERR_PARSE, "%s without a good %s gave %s", kind, key, err_name(rc));
    cr_assert_not_null(strstr(text, key), "%s: %s: %s", kind, key, text);
    if (strcmp(key, "t") != 0)
        cr_assert_not_null(strstr(text, kind), "%s: %s: %s", kind, key, text);
}

static void must_name_unless_optional(enum err rc, const char *kind, const char *key,
                                      const char *text)
{
    if (strcmp(key, "n_cached") == 0 || strcmp(key, "top") == 0)
        cr_assert_eq(rc, OK, "%s: %s", key, text);
    else
        must_name(rc, kind, key, text);
}

static void must_pass(enum err rc, const char *kind, const char *key, const char *text)
{
    cr_assert_eq(rc, OK, "%s: after %s: %s", kind, key, text);
}

Test(message, a_missing_key_is_refused_by_name)
{
    for_each_key(DROP, must_name_unless_optional);
}

Test(message, a_key_that_stands_twice_is_refused_by_name)
{
    for_each_key(TWICE, must_name);
}

Test(message, a_value_of_another_type_is_refused_by_name)
{
    for_each_key(NIL, must_name);
}

Test(message, unknown_keys_are_ignored)
{
    for_each_key(UNKNOWN, must_pass);
}
