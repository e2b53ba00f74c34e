/* Does the GGUF reader give what was written, and refuse what case 15 of the field cases lists? The
 * files come from support_gguf_writer.c; expected codes follow the header's contract. */
#include "config/gguf.h"
#include "tests/unit/config/support_gguf_writer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct gguf_sample sample;

static void setup(void)
{
    gguf_sample_init(&sample);
}

static void teardown(void)
{
    gguf_sample_fini(&sample);
}

TestSuite(gguf, .init = setup, .fini = teardown, .timeout = 20);

static bool str_equals(struct gguf_str s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.s, text, s.n) == 0;
}

static struct gguf *open_good(void)
{
    struct gguf *g = NULL;
    struct err_info ei = {0};
    cr_assert_eq(open_bytes(sample.file.data, sample.file.size, &g, &ei), OK, "%s", ei.text);
    return g;
}

static bool is_one_line(const char *text)
{
    return *text && !strchr(text, '\n') && !strchr(text, '\r');
}

Test(gguf, tensors_are_given_as_written)
{
    struct gguf *g = open_good();
    cr_assert_eq(gguf_n_tensors(g), 2);
    const struct gguf_tensor *a = gguf_tensor_at(g, 0), *b = gguf_find_tensor(g, "b.weight");
    cr_expect(str_equals(a->name, "a.weight") && a->type == TENSOR_F32 && a->n_dims == 2);
    cr_expect(a->dims[0] == 4 && a->dims[1] == 2 && a->dims[2] == 1 && a->dims[3] == 1);
    cr_expect(a->size_bytes == 32 && a->offset == sample.at_data);
    cr_expect(b == gguf_tensor_at(g, 1) && b->type == TENSOR_Q8_0 && b->size_bytes == 68);
    cr_expect(b->offset == sample.at_data + 64);
    cr_expect((const char *)b->data == (const char *)gguf_file_data(g) + b->offset);
    cr_expect_null(gguf_find_tensor(g, "c.weight"));
    cr_expect_null(gguf_find_tensor(g, "a.weigh"));
    cr_expect_eq(gguf_file_bytes(g), sample.file.size);
    cr_expect_not_null(strstr(gguf_path(g), "/proc/self/fd/"));
    gguf_close(g);
}

Test(gguf, scalars_are_given_only_where_kind_and_range_fit)
{
    struct gguf *g = open_good();
    uint32_t u = 0;
    float f = 0;
    bool b = false;
    struct gguf_str s;
    cr_expect(gguf_get_u32(g, "int.u8.200", &u) && u == 200);
    cr_expect(gguf_get_u32(g, "int.u16.60000", &u) && u == 60000);
    cr_expect(gguf_get_u32(g, "int.i16.7", &u) && u == 7);
    cr_expect(gguf_get_u32(g, "int.i32.9", &u) && u == 9);
    cr_expect(gguf_get_u32(g, "int.u64.11", &u) && u == 11);
    cr_expect(gguf_get_u32(g, "int.i64.13", &u) && u == 13);
    cr_expect(!gguf_get_u32(g, "int.i8.minus5", &u) && !gguf_get_u32(g, "int.u64.max", &u));
    cr_expect(!gguf_get_u32(g, "bool.true", &u) && !gguf_get_u32(g, "ints", &u));
    cr_expect(gguf_get_f32(g, "float.f32", &f) && f == 1.5F);
    cr_expect(gguf_get_f32(g, "float.f64.half", &f) && f == 0.5F);
    cr_expect(!gguf_get_f32(g, "int.i32.9", &f));
    cr_expect(gguf_get_bool(g, "bool.true", &b) && b && !gguf_get_bool(g, "int.u8.200", &b));
    cr_expect(gguf_get_str(g, "text", &s) && str_equals(s, "hello"));
    cr_expect(!gguf_get_str(g, "names", &s) && !gguf_get_str(g, "absent", &s));
    gguf_close(g);
}

Test(gguf, array_elements_are_given_as_written)
{
    struct gguf *g = open_good();
    cr_assert(gguf_n_strs(g, "names") == 3 && gguf_n_ints(g, "names") == 0);
    cr_expect(str_equals(gguf_str_at(g, "names", 0), "one"));
    cr_expect(str_equals(gguf_str_at(g, "names", 1), ""));
    cr_expect(str_equals(gguf_str_at(g, "names", 2), "three"));
    cr_assert(gguf_n_ints(g, "ints") == 2 && gguf_n_floats(g, "ints") == 0);
    cr_expect(gguf_int_at(g, "ints", 0) == 1 && gguf_int_at(g, "ints", 1) == -2);
    cr_assert(gguf_n_floats(g, "floats") == 2 && gguf_n_strs(g, "floats") == 0);
    cr_expect(gguf_float_at(g, "floats", 0) == 0.25F && gguf_float_at(g, "floats", 1) == -8);
    cr_expect(gguf_n_strs(g, "empty") == 0 && gguf_n_strs(g, "absent") == 0);
    cr_expect(gguf_n_strs(g, "text") == 0);
    gguf_close(g);
}

Test(gguf, version_2_is_read)
{
    sample.file.data[4] = 2;
    gguf_close(open_good());
}

Test(gguf, a_file_without_tensors_needs_no_data)
{
    struct bytes b = {0};
    struct gguf *g = NULL;
    write_header(&b, 3, 0, 1);
    write_kv_u32(&b, "k", 1);
    cr_assert_eq(open_bytes(b.data, b.size, &g, NULL), OK);
    cr_expect_eq(gguf_n_tensors(g), 0);
    cr_expect_null(gguf_find_tensor(g, "x"));
    gguf_close(g);
    bytes_fini(&b);
}

/* --- one change each ----------------------------------------------------------------------------
 */

struct patch {
    size_t at; /* file offset */
    int width; /* 1, 4 or 8 bytes; 0 = none */
    uint64_t value;
};

struct fault {
    const char *name;
    struct patch patches[2];
    enum err code;
    const char *says; /* part of the error: entry and field */
};

static void apply(char *file, const struct patch *p)
{
    for (int i = 0; i < p->width; i++)
        file[p->at + (size_t)i] = (char)(p->value >> (8 * i));
}

static void expect_refusal(const char *name, const void *data, size_t n, enum err code,
                           const char *says)
{
    struct gguf *g = NULL;
    struct err_info ei = {0};
    enum err rc = open_bytes(data, n, &g, &ei);
    cr_expect_eq(rc, code, "%s: %s instead of %s: %s", name, err_name(rc), err_name(code), ei.text);
    cr_expect(strstr(ei.text, says), "%s: \"%s\" lacks \"%s\"", name, ei.text, says);
    cr_expect(strstr(ei.text, "/proc/self/fd/") && strstr(ei.text, " at offset "), "%s: %s", name,
              ei.text);
    cr_expect(is_one_line(ei.text));
    cr_expect_null(g);
    gguf_close(g);
}

static void expect_faults(const struct fault *faults, size_t n)
{
    char *copy = malloc(sample.file.size);
    cr_assert_not_null(copy);
    for (size_t i = 0; i < n; i++) {
        memcpy(copy, sample.file.data, sample.file.size);
        apply(copy, &faults[i].patches[0]);
        apply(copy, &faults[i].patches[1]);
        expect_refusal(faults[i].name, copy, sample.file.size, faults[i].code, faults[i].says);
    }
    free(copy);
}

static const uint64_t two_60 = UINT64_C(1) << 60, two_62 = UINT64_C(1) << 62,
                      two_63 = UINT64_C(1) << 63;

Test(gguf, a_wrong_header_field_is_named)
{
    const struct fault faults[] = {
        {"magic", {{0, 1, 'g'}}, ERR_PARSE, "magic at offset 0"},
        {"version 1", {{4, 4, 1}}, ERR_UNSUPPORTED, "version at offset 4: 1 "},
        {"version 99", {{4, 4, 99}}, ERR_UNSUPPORTED, "version at offset 4: 99 "},
        {"big endian", {{4, 4, 0x03000000}}, ERR_UNSUPPORTED, "big-endian"},
        {"tensors 2^60", {{8, 8, two_60}}, ERR_PARSE, "tensor_count at offset 8: 1152921504"},
        {"tensors 2^64-1", {{8, 8, UINT64_MAX}}, ERR_PARSE, "tensor_count at offset 8"},
        {"tensors + 1", {{8, 8, 3}}, ERR_PARSE, "tensor 2"},
        {"keys 2^60", {{16, 8, two_60}}, ERR_PARSE, "kv_count at offset 16: 1152921504"},
        /* the first tensor is taken for a key: its two dimensions for an UINT16 */
        {"keys + 1", {{16, 8, 19}}, ERR_LIMIT, "tensor 0 name length"},
    };
    expect_faults(faults, sizeof faults / sizeof *faults);
}

Test(gguf, a_wrong_metadata_field_is_named)
{
    const size_t key = sample.at_first_key;
    const struct fault faults[] = {
        {"key length 2^63", {{key, 8, two_63}}, ERR_LIMIT, "key 0 name length at offset 24"},
        {"key length 65536", {{key, 8, 65536}}, ERR_LIMIT, "key 0 name length at offset 24"},
        {"key length 60000", {{key, 8, 60000}}, ERR_PARSE, "key 0 name at offset 32"},
        {"empty key", {{key, 8, 0}}, ERR_PARSE, "key 0 name at offset 24: is empty"},
        {"NUL in key", {{key + 10, 1, 0}}, ERR_PARSE, "key 0 name at offset 34"},
        {"UTF-8 in key", {{key + 10, 1, 0xc3}}, ERR_PARSE, "key 0 name at offset 34"},
        {"type 255", {{key + 28, 4, 255}}, ERR_PARSE, "\"general.architecture\" type at offset 52"},
        {"type 13", {{key + 28, 4, 13}}, ERR_PARSE, "\"general.architecture\" type at offset 52"},
        {"bool 2", {{sample.at_bool, 1, 2}}, ERR_PARSE, "key \"bool.true\" value at"},
        {"text 2^63", {{sample.at_text, 8, two_63}}, ERR_PARSE, "key \"text\" value at"},
        {"text 2^64-1", {{sample.at_text, 8, UINT64_MAX}}, ERR_PARSE, "key \"text\" value at"},
        {"array in array",
         {{sample.at_names_kind, 4, W_ARRAY}},
         ERR_UNSUPPORTED,
         "\"names\" element"},
        {"array type 255", {{sample.at_names_kind, 4, 255}}, ERR_PARSE, "\"names\" element type"},
        {"array 2^60", {{sample.at_names_count, 8, two_60}}, ERR_PARSE, "\"names\" count"},
        {"array 2^61", {{sample.at_names_count, 8, two_60 * 2}}, ERR_PARSE, "\"names\" count"},
        {"element 2^63", {{sample.at_name_0, 8, two_63}}, ERR_PARSE, "\"names\" value"},
        {"ints 2^62", {{sample.at_ints_count, 8, two_62 + 1}}, ERR_PARSE, "\"ints\" count"},
        {"alignment 0", {{sample.at_alignment, 4, 0}}, ERR_PARSE, "\"general.alignment\" value"},
        {"alignment 3", {{sample.at_alignment, 4, 3}}, ERR_PARSE, "\"general.alignment\" value"},
        {"alignment 4", {{sample.at_alignment, 4, 4}}, ERR_PARSE, "\"general.alignment\" value"},
        {"alignment 2^31", {{sample.at_alignment, 4, 1U << 31}}, ERR_PARSE, "\"b.weight\" offset"},
        {"alignment i32", {{sample.at_alignment_type, 4, W_I32}}, ERR_PARSE, "must be UINT32"},
    };
    expect_faults(faults, sizeof faults / sizeof *faults);
}

Test(gguf, a_wrong_tensor_field_is_named)
{
    const size_t n_dims = sample.at_a_n_dims, dims = sample.at_a_dims, type = sample.at_a_type;
    const size_t offset = sample.at_a_offset;
    const struct fault faults[] = {
        {"name 65", {{sample.at_a, 8, 65}}, ERR_LIMIT, "tensor 0 name length at"},
        {"empty name", {{sample.at_a, 8, 0}}, ERR_PARSE, "tensor 0 name at"},
        {"same name", {{sample.at_b + 8, 1, 'a'}}, ERR_PARSE, "tensor \"a.weight\" at"},
        {"n_dims 0", {{n_dims, 4, 0}}, ERR_LIMIT, "\"a.weight\" n_dims at"},
        {"n_dims 5", {{n_dims, 4, 5}}, ERR_LIMIT, "\"a.weight\" n_dims at"},
        {"n_dims 2^32-1", {{n_dims, 4, UINT32_MAX}}, ERR_LIMIT, "\"a.weight\" n_dims at"},
        {"dim 0", {{dims, 8, 0}}, ERR_LIMIT, "\"a.weight\" dims at"},
        {"second dim 0", {{dims + 8, 8, 0}}, ERR_LIMIT, "\"a.weight\" dims at"},
        {"dim 2^63", {{dims, 8, two_63}}, ERR_LIMIT, "\"a.weight\" dims at"},
        {"wraps to 4", {{dims, 8, two_62 + 1}, {dims + 8, 8, 4}}, ERR_LIMIT, "\"a.weight\" dims"},
        {"bytes wrap", {{dims, 8, two_62 + 1}, {dims + 8, 8, 1}}, ERR_LIMIT, "\"a.weight\" dims"},
        {"too many rows", {{dims + 8, 8, 999}}, ERR_PARSE, "\"a.weight\" data at"},
        {"type 255", {{type, 4, 255}}, ERR_UNSUPPORTED, "\"a.weight\" type at"},
        {"type Q5_0", {{type, 4, 6}}, ERR_UNSUPPORTED, "Q5_0"},
        {"type Q4_K", {{type, 4, 12}}, ERR_UNSUPPORTED, "Q4_K"},
        {"half a block", {{type, 4, TENSOR_Q4_0}}, ERR_PARSE, "\"a.weight\" dims at"},
        {"offset unaligned", {{offset, 8, 1}}, ERR_PARSE, "\"a.weight\" offset at"},
        {"offset half aligned", {{offset, 8, 32}}, ERR_PARSE, "\"a.weight\" offset at"},
        {"offset 2^40", {{offset, 8, UINT64_C(1) << 40}}, ERR_PARSE, "\"a.weight\" data at"},
        {"offset wraps", {{offset, 8, UINT64_MAX - 63}}, ERR_PARSE, "\"a.weight\" data at"},
        {"data past end", {{sample.at_b_offset, 8, 128}}, ERR_PARSE, "\"b.weight\" data at"},
        {"overlap", {{sample.at_b_offset, 8, 0}}, ERR_PARSE, "overlaps"},
    };
    expect_faults(faults, sizeof faults / sizeof *faults);
}

Test(gguf, a_huge_alignment_leaves_the_data_outside_the_file)
{
    /* the second tensor's offset of 64 is not a multiple either: make it 0 with one tensor less */
    const struct patch alignment = {sample.at_alignment, 4, 1U << 31}, count = {8, 8, 1};
    apply(sample.file.data, &alignment);
    apply(sample.file.data, &count);
    expect_refusal("alignment 2^31", sample.file.data, sample.file.size, ERR_PARSE,
                   "\"a.weight\" data at");
}

Test(gguf, a_file_cut_at_any_byte_is_refused)
{
    for (size_t n = 0; n < sample.file.size; n++) {
        char name[32];
        (void)snprintf(name, sizeof name, "cut at %zu", n);
        expect_refusal(name, sample.file.data, n, ERR_PARSE, "gguf: ");
    }
}

Test(gguf, arrays_of_arrays_64_deep_are_refused)
{
    struct bytes b = {0};
    write_header(&b, 3, 0, 1);
    write_kv_array(&b, "deep", W_ARRAY, 1);
    for (int i = 0; i < 63; i++) {
        write_u32(&b, W_ARRAY);
        write_u64(&b, 1);
    }
    expect_refusal("deep", b.data, b.size, ERR_UNSUPPORTED, "key \"deep\" element type");
    bytes_fini(&b);
}

Test(gguf, a_key_that_stands_twice_is_refused)
{
    struct bytes b = {0};
    write_header(&b, 3, 0, 3);
    write_kv_u32(&b, "twice", 1);
    write_kv_u32(&b, "once", 1);
    write_kv_u32(&b, "twice", 2);
    expect_refusal("twice", b.data, b.size, ERR_PARSE, "key \"twice\" at offset");
    bytes_fini(&b);
}

Test(gguf, what_is_no_regular_file_is_an_io_error)
{
    struct gguf *g = NULL;
    struct err_info ei = {0};
    char fifo[] = "/tmp/kvnode-test-XXXXXX";
    cr_expect_eq(gguf_open("/nowhere/model.gguf", &g, &ei), ERR_IO);
    cr_expect(strstr(ei.text, "/nowhere/model.gguf") && is_one_line(ei.text));
    cr_expect_eq(gguf_open("/", &g, NULL), ERR_IO);
    cr_assert(mkdtemp(fifo));
    cr_assert_eq(rmdir(fifo), 0);
    cr_assert_eq(mkfifo(fifo, 0600), 0);
    cr_expect_eq(gguf_open(fifo, &g, NULL), ERR_IO);
    cr_expect_eq(unlink(fifo), 0);
    cr_expect_null(g);
    gguf_close(NULL);
}

/* --- random changes -----------------------------------------------------------------------------
 */

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Reads everything that the reader hands out, so that ASan sees a bad pointer. */
static unsigned touch(const struct gguf *g)
{
    unsigned sum = 0;
    for (size_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        for (size_t k = 0; k < t->size_bytes; k++)
            sum += ((const unsigned char *)t->data)[k];
        for (size_t k = 0; k < t->name.n; k++)
            sum += (unsigned char)t->name.s[k];
    }
    for (size_t i = 0; i < gguf_n_strs(g, "names"); i++) {
        struct gguf_str s = gguf_str_at(g, "names", i);
        for (size_t k = 0; k < s.n; k++)
            sum += (unsigned char)s.s[k];
    }
    for (size_t i = 0; i < gguf_n_ints(g, "ints"); i++)
        sum += (unsigned)gguf_int_at(g, "ints", i);
    return sum;
}

Test(gguf, random_changes_load_or_are_refused_with_one_line)
{
    uint64_t seed = 15, state = seed;
    char *copy = malloc(sample.file.size);
    cr_assert_not_null(copy);
    size_t n_refused = 0;
    for (int round = 0; round < 4000; round++) {
        memcpy(copy, sample.file.data, sample.file.size);
        for (uint64_t k = 1 + next(&state) % 3; k; k--)
            copy[next(&state) % sample.at_data] = (char)next(&state);
        struct gguf *g = NULL;
        struct err_info ei = {0};
        if (open_bytes(copy, sample.file.size, &g, &ei) == OK)
            (void)touch(g);
        else
            n_refused++;
        cr_assert(g || is_one_line(ei.text), "seed %lu round %d", (unsigned long)seed, round);
        gguf_close(g);
    }
    free(copy);
    cr_expect(n_refused > 1000 && n_refused < 4000, "%zu refused", n_refused);
}
