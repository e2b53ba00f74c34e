/* Are our bytes msgpack as others write it, and do hostile ones stay harmless? */
#include "ipc/message.h"
#include "ipc/message_scan.h"

#include <criterion/criterion.h>
#include <math.h>
#include <msgpack.h>
#include <stdlib.h>
#include <string.h>

TestSuite(message_decode, .timeout = 10);

/* Bytes of an independent writer, Python's msgpack 1.x:
 *
 *     import msgpack, struct, textwrap
 *     u32 = lambda *a: struct.pack(f"<{len(a)}I", *a)
 *     messages = {
 *         "hello": {"t": 1, "protocol": 1, "worker": 3, "rank": 0, "pid": 70000,
 *                   "pid_start": 2**40 + 1, "fingerprint": bytes(range(32)), "lease": 5,
 *                   "n_threads": 200, "isa": "avx512"},
 *         "submit": {"t": 3, "id": 2**63 + 9, "n_prompt": 3, "n_emitted": 1,
 *                    "root": bytes(range(16)), "priority": -2, "is_counted": True,
 *                    "tokens": u32(1, 49151, 65536, 7),
 *                    "sampling": {"temperature": 0.75, "top_p": 1.0, "top_k": 40, "min_p": 0.0,
 *                                 "seed": 2**64 - 1, "choice": 0, "n_logprobs": -1,
 *                                 "max_tokens": 300, "min_tokens": 2, "ignore_eos": True,
 *                                 "stop_ids": u32(2, 0)}},
 *         "tokens": {"t": 5, "step": 1000, "sequences": [
 *             {"id": 1, "finish": 0, "n_cached": 16, "tokens": b"", "logprobs": []},
 *             {"id": 2, "finish": 2, "tokens": u32(28, 2), "logprobs": [-0.5, float("-inf")],
 *              "top": [[28, -0.5, 4, -1.25], []]}]},
 *         "failed": {"t": 6, "id": 300, "text": "no blocks", "code": "BUSY"},
 *         "stop": {"t": 9},
 *     }
 *     for name, m in messages.items():
 *         packed = msgpack.packb(m, use_single_float=True).hex()
 *         print(f"static const char {name}_hex[] =")
 *         print("\n".join(f'    "{l}"' for l in textwrap.wrap(packed, 88)) + ";\n")
 */
static const char hello_hex[] =
    "8aa17401a870726f746f636f6c01a6776f726b657203a472616e6b00a3706964ce00011170a97069645f7374"
    "617274cf0000010000000001ab66696e6765727072696e74c420000102030405060708090a0b0c0d0e0f1011"
    "12131415161718191a1b1c1d1e1fa56c6561736505a96e5f74687265616473ccc8a3697361a6617678353132";

static const char submit_hex[] =
    "89a17403a26964cf8000000000000009a86e5f70726f6d707403a96e5f656d697474656401a4726f6f74c410"
    "000102030405060708090a0b0c0d0e0fa87072696f72697479feaa69735f636f756e746564c3a6746f6b656e"
    "73c41001000000ffbf00000000010007000000a873616d706c696e678bab74656d7065726174757265ca3f40"
    "0000a5746f705f70ca3f800000a5746f705f6b28a56d696e5f70ca00000000a473656564cfffffffffffffff"
    "ffa663686f69636500aa6e5f6c6f6770726f6273ffaa6d61785f746f6b656e73cd012caa6d696e5f746f6b65"
    "6e7302aa69676e6f72655f656f73c3a873746f705f696473c4080200000000000000";

static const char tokens_hex[] =
    "83a17405a473746570cd03e8a973657175656e6365739285a2696401a666696e69736800a86e5f6361636865"
    "6410a6746f6b656e73c400a86c6f6770726f62739085a2696402a666696e69736802a6746f6b656e73c4081c"
    "00000002000000a86c6f6770726f627392cabf000000caff800000a3746f7092941ccabf00000004cabfa000"
    "0090";

static const char failed_hex[] =
    "84a17406a26964cd012ca474657874a96e6f20626c6f636b73a4636f6465a442555359";

static const char stop_hex[] = "81a17409";

static struct arena *arena;

static void make_arena(void)
{
    arena = arena_new(0);
}

static void drop_arena(void)
{
    arena_free(arena);
}

static size_t from_hex(const char *hex, unsigned char *out)
{
    size_t n = strlen(hex) / 2;
    for (size_t i = 0; i < n; i++) {
        char digits[3] = {hex[2 * i], hex[2 * i + 1], '\0'};
        out[i] = (unsigned char)strtoul(digits, NULL, 16);
    }
    return n;
}

/* Decodes hex, and checks that encoding the result gives the same bytes again. */
static struct message decode_hex(const char *hex)
{
    unsigned char data[1024];
    struct message m;
    struct err_info ei = {0};
    struct bytes again = {0};
    size_t n = from_hex(hex, data);
    cr_assert_eq(message_decode(data, n, arena, &m, &ei), OK, "%s", ei.text);
    cr_assert_eq(message_encode(&m, &again, &ei), OK);
    cr_assert_eq(again.size, n);
    cr_assert_arr_eq(again.data, data, n);
    bytes_fini(&again);
    return m;
}

Test(message_decode, reads_and_writes_hello_as_python_does, .init = make_arena, .fini = drop_arena)
{
    struct message m = decode_hex(hello_hex);
    const struct message_hello *h = &m.as.hello;
    cr_assert_eq(m.kind, MESSAGE_HELLO);
    cr_assert(h->protocol == 1 && h->worker == 3 && h->rank == 0 && h->pid == 70000);
    cr_assert_eq(h->pid_start, (1ull << 40) + 1);
    for (int i = 0; i < 32; i++)
        cr_assert_eq(h->fingerprint.bytes[i], i);
    cr_assert(h->lease == 5 && h->n_threads == 200);
    cr_assert_str_eq(h->isa, "avx512");
}

Test(message_decode, reads_and_writes_submit_as_python_does, .init = make_arena, .fini = drop_arena)
{
    struct message m = decode_hex(submit_hex);
    const struct message_submit *s = &m.as.submit;
    const struct sampling_params *p = &s->sampling;
    static const uint32_t tokens[] = {1, 49151, 65536, 7};
    cr_assert_eq(m.kind, MESSAGE_SUBMIT);
    cr_assert(s->id == (1ull << 63) + 9 && s->n_prompt == 3 && s->n_emitted == 1);
    cr_assert_arr_eq(s->tokens, tokens, sizeof tokens);
    cr_assert(s->root[0] == 0 && s->root[15] == 15 && s->priority == -2 && s->is_counted);
    cr_assert(p->temperature == 0.75f && p->top_p == 1.0f && p->top_k == 40 && p->min_p == 0.0f);
    cr_assert(p->seed == UINT64_MAX && p->choice == 0 && p->n_logprobs == -1);
    cr_assert(p->max_tokens == 300 && p->min_tokens == 2 && p->ignore_eos);
    cr_assert(p->n_stop_ids == 2 && p->stop_ids[0] == 2 && p->stop_ids[1] == 0);
}

Test(message_decode, reads_and_writes_tokens_as_python_does, .init = make_arena, .fini = drop_arena)
{
    struct message m = decode_hex(tokens_hex);
    const struct message_tokens *t = &m.as.tokens;
    cr_assert(m.kind == MESSAGE_TOKENS && t->step == 1000 && t->n_sequences == 2);
    const struct sequence_tokens *first = &t->sequences[0], *second = &t->sequences[1];
    cr_assert(first->id == 1 && first->is_admission && first->n_cached == 16);
    cr_assert(first->n_tokens == 0 && first->finish == FINISH_NONE);
    cr_assert(second->id == 2 && !second->is_admission && second->finish == FINISH_LENGTH);
    cr_assert(second->n_tokens == 2 && second->tokens[0].token == 28);
    cr_assert(second->tokens[0].logprob == -0.5f && second->tokens[0].n_top == 2);
    cr_assert(second->tokens[0].top[1].token == 4 && second->tokens[0].top[1].logprob == -1.25f);
    cr_assert(second->tokens[1].token == 2 && second->tokens[1].n_top == 0);
    cr_assert(isinf(second->tokens[1].logprob) && second->tokens[1].logprob < 0);
}

Test(message_decode, reads_and_writes_failed_and_stop_as_python_does, .init = make_arena,
     .fini = drop_arena)
{
    struct message m = decode_hex(failed_hex);
    cr_assert(m.kind == MESSAGE_FAILED && m.as.failed.id == 300);
    cr_assert_eq(m.as.failed.code, ERR_BUSY);
    cr_assert_str_eq(m.as.failed.text, "no blocks");
    cr_assert_eq(decode_hex(stop_hex).kind, MESSAGE_STOP);
}

/* One of the messages above with the value behind a key replaced; both values as hex. */
static enum err decode_changed(const char *hex, const char *from, const char *to,
                               struct err_info *ei)
{
    char changed[2048];
    unsigned char data[1024];
    struct message m;
    const char *at = strstr(hex, from);
    cr_assert_not_null(at, "%s is not in the message", from);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - hex), hex, to, at + strlen(from));
    size_t n = from_hex(changed, data);
    return message_decode(data, n, arena, &m, ei);
}

/* Keys as hex: what stands before a value. */
#define TEMPERATURE "74656d7065726174757265"
#define TOP_P "746f705f70"
#define MIN_P "6d696e5f70"
#define N_LOGPROBS "6e5f6c6f6770726f6273"
#define MAX_TOKENS "6d61785f746f6b656e73"
#define N_PROMPT "6e5f70726f6d7074"
#define LOGPROBS "6c6f6770726f6273"

static const struct {
    const char *hex, *from, *to, *names;
    enum err code;
} changes[] = {
    /* float32 of 0.75 becomes -1, NaN, inf; float64 too large for a float; an integer is a number
     */
    {submit_hex, TEMPERATURE "ca3f400000", TEMPERATURE "cabf800000", "sampling.temperature",
     ERR_LIMIT},
    {submit_hex, TEMPERATURE "ca3f400000", TEMPERATURE "ca7fc00000", "sampling.temperature",
     ERR_LIMIT},
    {submit_hex, TEMPERATURE "ca3f400000", TEMPERATURE "ca7f800000", "sampling.temperature",
     ERR_LIMIT},
    {submit_hex, TEMPERATURE "ca3f400000", TEMPERATURE "cb7fe0000000000000", "sampling.temperature",
     ERR_LIMIT},
    {submit_hex, TEMPERATURE "ca3f400000", TEMPERATURE "01", NULL, OK},
    {submit_hex, TOP_P "ca3f800000", TOP_P "00", "sampling.top_p", ERR_LIMIT},
    {submit_hex, TOP_P "ca3f800000", TOP_P "ca3f800001", "sampling.top_p", ERR_LIMIT},
    {submit_hex, TOP_P "ca3f800000", TOP_P "ca7fc00000", "sampling.top_p", ERR_LIMIT},
    {submit_hex, MIN_P "ca00000000", MIN_P "ca3f800001", "sampling.min_p", ERR_LIMIT},
    {submit_hex, N_LOGPROBS "ff", N_LOGPROBS "fe", "sampling.n_logprobs", ERR_LIMIT},
    {submit_hex, N_LOGPROBS "ff", N_LOGPROBS "14", NULL, OK},
    {submit_hex, N_LOGPROBS "ff", N_LOGPROBS "15", "sampling.n_logprobs", ERR_LIMIT},
    {submit_hex, MAX_TOKENS "cd012c", MAX_TOKENS "00", "sampling.max_tokens", ERR_LIMIT},
    {submit_hex, MAX_TOKENS "cd012c", MAX_TOKENS "cf0000000100000000", "sampling.max_tokens",
     ERR_LIMIT},
    {submit_hex, MAX_TOKENS "cd012c", MAX_TOKENS "cfffffffffffffffff", "sampling.max_tokens",
     ERR_LIMIT},
    {submit_hex, N_PROMPT "03", N_PROMPT "00", "n_prompt", ERR_LIMIT},
    {submit_hex, N_PROMPT "03", N_PROMPT "04", "tokens", ERR_PARSE},
    {submit_hex, N_PROMPT "03", N_PROMPT "ce00400001", "n_prompt", ERR_LIMIT},
    /* logprobs: NaN, +inf; -inf stands in the message itself */
    {tokens_hex, LOGPROBS "92cabf000000", LOGPROBS "92ca7fc00000", "sequences.logprobs", ERR_LIMIT},
    {tokens_hex, LOGPROBS "92cabf000000", LOGPROBS "92ca7f800000", "sequences.logprobs", ERR_LIMIT},
    {tokens_hex, LOGPROBS "90", LOGPROBS "9100", "sequences.logprobs", ERR_PARSE},
    {tokens_hex, "66696e69736802", "66696e69736803", "sequences.finish", ERR_LIMIT},
    {failed_hex, "a442555359", "a24f4b", "code", ERR_PARSE}, /* "OK" is no failure */
    {failed_hex, "a442555359", "a462757379", "code", ERR_PARSE},
    {hello_hex, "a6617678353132", "a6617600353132", "isa", ERR_PARSE}, /* NUL in a text */
    {hello_hex, "a6617678353132",
     "b0"
     "61616161616161616161616161616161",
     "isa", ERR_LIMIT},
    {stop_hex, "09", "0a", "t: is no known kind", ERR_PARSE},
    {stop_hex, "09", "00", "t: is no known kind", ERR_PARSE},
    {stop_hex, "81a17409", "9409090909", "is no map", ERR_PARSE},
    {stop_hex, "81a174", "8101", "t: is missing", ERR_PARSE},
    {stop_hex, "81a17409", "82a174090102", "a key is no string", ERR_PARSE},
};

Test(message_decode, values_out_of_range_are_refused_by_name, .init = make_arena,
     .fini = drop_arena)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct err_info ei = {0};
        enum err rc = decode_changed(changes[i].hex, changes[i].from, changes[i].to, &ei);
        cr_assert_eq(rc, changes[i].code, "row %zu: %s %s", i, err_name(rc), ei.text);
        if (changes[i].names)
            cr_assert_not_null(strstr(ei.text, changes[i].names), "row %zu: %s", i, ei.text);
    }
}

/* A map with t = kind and one more key, whose value is given as a header that lies. */
static enum err decode_claim(unsigned kind, const char *key, const char *value_hex,
                             struct err_info *ei)
{
    unsigned char data[256] = {0x82, 0xa1, 't', (unsigned char)kind};
    struct message m;
    size_t n = 4;
    data[n++] = (unsigned char)(0xa0 | strlen(key));
    memcpy(data + n, key, strlen(key));
    n += strlen(key);
    n += from_hex(value_hex, data + n);
    return message_decode(data, n, arena, &m, ei);
}

Test(message_decode, a_count_beyond_the_bytes_is_refused_before_memory_is_taken, .init = make_arena,
     .fini = drop_arena)
{
    static const char *const claims[] = {
        "ddffffffff",           /* array32 of 2^32-1 */
        "ddffffffff0101",       /* ... with a few of them there */
        "dfffffffff",           /* map32 of 2^32-1 */
        "df80000000",           /* 2 * 2^31 must not wrap */
        "c6ffffffff",           /* bin32 */
        "dbffffffff",           /* str32 */
        "c9ffffffff01",         /* ext32 */
        "dcffff",               /* array16 */
        "9191919191dd7fffffff", /* further down */
        "d8",                   /* fixext16 without its bytes */
        "cf000000",             /* uint64 cut off */
        "c1",                   /* a type that msgpack never uses */
    };
    for (size_t i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        struct err_info ei = {0};
        cr_assert_eq(decode_claim(MESSAGE_TOKENS, "sequences", claims[i], &ei), ERR_PARSE, "%s",
                     claims[i]);
        cr_assert_not_null(strstr(ei.text, "byte"), "%s", ei.text);
        cr_assert_eq(decode_claim(MESSAGE_STOP, "unknown", claims[i], &ei), ERR_PARSE);
    }
}

Test(message_decode, deep_nesting_is_refused)
{
    unsigned char deep[64];
    memset(deep, 0x91, sizeof deep);
    deep[MESSAGE_DEPTH_MAX] = 0xc0;
    cr_assert_eq(message_scan(deep, MESSAGE_DEPTH_MAX + 1, NULL), OK);
    deep[MESSAGE_DEPTH_MAX] = 0x91;
    deep[MESSAGE_DEPTH_MAX + 1] = 0xc0;
    cr_assert_eq(message_scan(deep, MESSAGE_DEPTH_MAX + 2, NULL), ERR_LIMIT);
}

static bool has_wide_count(const unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (data[i] >= 0xdc && data[i] <= 0xdf) /* array16, array32, map16, map32 */
            return true;
    return false;
}

/* The scan must step over every format exactly as the library does, or what it lets through is not
 * what is unpacked. The library is the oracle: every first byte, with random bytes behind. */
Test(message_decode, the_scan_agrees_with_the_library_on_every_format)
{
    unsigned state = 12345, n_valid = 0;
    for (unsigned type = 0; type < 256; type++) {
        for (int round = 0; round < 96; round++) {
            unsigned char data[48];
            size_t n = 1 + (size_t)round % sizeof data, offset = 0;
            for (size_t i = 0; i < sizeof data; i++) {
                state = state * 1103515245u + 12345u;
                /* mostly small positive integers, so that counts are often met */
                data[i] = (unsigned char)(state >> 28 ? state >> 16 & 0x0f : state >> 8);
            }
            data[0] = (unsigned char)type;
            enum err rc = message_scan(data, n, NULL);
            if (rc != OK && has_wide_count(data, n))
                continue; /* the library would allocate for it, which is why there is a scan */
            msgpack_unpacked u;
            msgpack_unpacked_init(&u);
            msgpack_unpack_return got = msgpack_unpack_next(&u, (const char *)data, n, &offset);
            bool is_whole = got == MSGPACK_UNPACK_SUCCESS && offset == n;
            cr_assert_eq(rc == OK, is_whole, "type %#x, %zu bytes: scan %s, library %d at %zu",
                         type, n, err_name(rc), got, offset);
            n_valid += is_whole;
            msgpack_unpacked_destroy(&u);
        }
    }
    cr_assert_gt(n_valid, 250, "%u valid", n_valid);
}

Test(message_decode, an_arena_that_is_full_is_an_error)
{
    unsigned char data[1024];
    struct message m;
    struct arena *small = arena_new(8);
    size_t n = from_hex(submit_hex, data);
    cr_assert_eq(message_decode(data, n, small, &m, NULL), ERR_NOMEM);
    n = from_hex(tokens_hex, data);
    cr_assert_eq(message_decode(data, n, small, &m, NULL), ERR_NOMEM);
    arena_free(small);
}
