/* Does configuration come out as it was meant, whichever way it went in? Defaults are those of
 * node_config.h's comments; errors must name source, key, value and range. */
#include "config/node_config.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void setup(void)
{
    unsetenv("KVNODE_ISA");
}

TestSuite(node_config, .init = setup, .timeout = 10);

enum { MAX_ARGS = 8 };

/* Parses "kvnode" and the arguments, NULL-terminated. */
static enum err parse(const char *const *args, struct node_config *c,
                      enum node_config_action *action, struct err_info *ei)
{
    char *argv[MAX_ARGS + 2] = {strdup("kvnode")};
    int argc = 1;
    for (; argc <= MAX_ARGS && args[argc - 1]; argc++)
        argv[argc] = strdup(args[argc - 1]);
    enum err rc = node_config_parse(argc, argv, c, action, ei);
    while (argc)
        free(argv[--argc]);
    return rc;
}

#define ARGS(...) ((const char *const[MAX_ARGS + 1]){__VA_ARGS__})

static struct node_config parse_good(const char *const *args)
{
    struct node_config c;
    enum node_config_action action = NODE_CONFIG_HELP;
    struct err_info ei = {0};
    cr_assert_eq(parse(args, &c, &action, &ei), OK, "%s", ei.text);
    cr_assert_eq(action, NODE_CONFIG_RUN);
    return c;
}

static void expect_error(const char *const *args, enum err code, const char *text)
{
    struct node_config c;
    enum node_config_action action;
    struct err_info ei = {0};
    enum err rc = parse(args, &c, &action, &ei);
    cr_expect_eq(rc, code, "%s instead of %s: %s", err_name(rc), err_name(code), ei.text);
    cr_expect(strstr(ei.text, text), "\"%s\" lacks \"%s\"", ei.text, text);
    if (!rc)
        node_config_fini(&c);
}

/* Path of an anonymous file with this text; it lives as long as the test's process. */
static const char *file_of(const char *text, size_t n, char path[64])
{
    int fd = memfd_create("yaml", 0);
    cr_assert(fd >= 0 && write(fd, text, n) == (ssize_t)n);
    (void)snprintf(path, 64, "/proc/self/fd/%d", fd);
    return path;
}

static struct node_config parse_yaml(const char *text)
{
    char path[64];
    return parse_good(ARGS("m.gguf", "--config", file_of(text, strlen(text), path)));
}

/* says: what follows the file's name */
static void expect_yaml_error(const char *text, enum err code, const char *says)
{
    char path[64], want[256];
    (void)file_of(text, strlen(text), path);
    (void)snprintf(want, sizeof want, "%s%s", path, says);
    expect_error(ARGS("m.gguf", "--config", path), code, want);
}

static bool texts_equal(const char *a, const char *b)
{
    return (!a && !b) || (a && b && strcmp(a, b) == 0);
}

static bool configs_equal(const struct node_config *a, const struct node_config *b)
{
    return texts_equal(a->model, b->model) &&
           texts_equal(a->served_model_name, b->served_model_name) &&
           texts_equal(a->name, b->name) && texts_equal(a->host, b->host) && a->port == b->port &&
           texts_equal(a->device, b->device) && texts_equal(a->isa, b->isa) &&
           a->workers == b->workers && a->tp == b->tp && a->threads == b->threads &&
           a->max_context == b->max_context && texts_equal(a->runtime_dir, b->runtime_dir) &&
           a->log_level == b->log_level && a->shutdown_grace_s == b->shutdown_grace_s &&
           a->kv.memory == b->kv.memory && a->kv.block_size == b->kv.block_size &&
           a->kv.format == b->kv.format && a->worker.orphan_grace_s == b->worker.orphan_grace_s &&
           a->worker.hang_timeout_s == b->worker.hang_timeout_s &&
           a->worker.start_timeout_s == b->worker.start_timeout_s &&
           a->scheduler.max_batch_tokens == b->scheduler.max_batch_tokens &&
           a->scheduler.max_sequences == b->scheduler.max_sequences &&
           a->scheduler.max_waiting == b->scheduler.max_waiting &&
           a->http.max_body == b->http.max_body && a->http.max_header == b->http.max_header &&
           a->http.max_connections == b->http.max_connections &&
           a->http.idle_timeout_s == b->http.idle_timeout_s &&
           a->http.read_timeout_s == b->http.read_timeout_s &&
           a->http.write_buffer == b->http.write_buffer && a->http.json_depth == b->http.json_depth;
}

static void expect_defaults(const struct node_config *c)
{
    cr_expect(texts_equal(c->name, "kvnode") && texts_equal(c->host, "127.0.0.1"));
    cr_expect(c->port == 8000 && texts_equal(c->device, "auto") && texts_equal(c->isa, "auto"));
    cr_expect(c->workers == 0 && c->tp == 1 && c->threads == 0 && c->max_context == 0);
    cr_expect(c->runtime_dir == NULL && c->log_level == LOG_INFO && c->shutdown_grace_s == 30);
    cr_expect(c->kv.memory == 0 && c->kv.block_size == 16 && c->kv.format == TENSOR_F16);
    cr_expect(c->worker.orphan_grace_s == 10 && c->worker.hang_timeout_s == 60);
    cr_expect(c->worker.start_timeout_s == 120 && c->scheduler.max_batch_tokens == 512);
    cr_expect(c->scheduler.max_sequences == 64 && c->scheduler.max_waiting == 1024);
    cr_expect(c->http.max_body == 8 << 20 && c->http.max_header == 32 << 10);
    cr_expect(c->http.max_connections == 1024 && c->http.idle_timeout_s == 75);
    cr_expect(c->http.read_timeout_s == 30 && c->http.write_buffer == 4 << 20);
    cr_expect(c->http.json_depth == 64);
}

Test(node_config, defaults_are_those_of_the_header)
{
    struct node_config c = parse_good(ARGS("models/a.b.gguf"));
    expect_defaults(&c);
    cr_expect_str_eq(c.model, "models/a.b.gguf");
    cr_expect_str_eq(c.served_model_name, "a.b");
    node_config_fini(&c);
}

/* Found by fuzzing: a derived name was longer than its own flag allowed, so workers did not start.
 */
Test(node_config, the_name_of_a_long_file_survives_the_way_to_a_worker)
{
    char path[300] = "models/", longer[300] = "models/";
    memset(path + 7, 'm', 255); /* NAME_MAX */
    memset(longer + 7, 'm', 256);
    struct node_config c = parse_good(ARGS(path));
    char **argv = node_config_to_argv(&c, "p");
    cr_assert_not_null(argv);
    struct node_config d = parse_good(ARGS(argv[1], argv[2]));
    cr_expect_str_eq(d.served_model_name, path + 7);
    node_config_free_argv(argv);
    node_config_fini(&c);
    node_config_fini(&d);
    expect_error(ARGS(longer), ERR_LIMIT, "served_model_name (of MODEL): \"mmm");
}

Test(node_config, without_a_model_there_is_none)
{
    struct node_config c = parse_good(ARGS(NULL));
    cr_expect(c.model == NULL && c.served_model_name == NULL);
    node_config_fini(&c);
}

Test(node_config, a_flag_wins_over_the_file_wherever_it_stands)
{
    char path[64];
    const char *text = "port: 1\nname: from-file\nkv: {memory: 2GiB}\nmodel: file.gguf\n";
    (void)file_of(text, strlen(text), path);
    struct node_config a = parse_good(ARGS("--port", "2", "--config", path, "--name=flag"));
    struct node_config b = parse_good(ARGS("--config", path, "--kv-memory", "1GB", "word.gguf"));
    cr_expect(a.port == 2 && a.kv.memory == UINT64_C(2) << 30);
    cr_expect_str_eq(a.name, "flag");
    cr_expect_str_eq(a.model, "file.gguf");
    cr_expect(b.port == 1 && b.kv.memory == 1000000000);
    cr_expect_str_eq(b.name, "from-file");
    cr_expect_str_eq(b.model, "word.gguf");
    node_config_fini(&a);
    node_config_fini(&b);
}

Test(node_config, sizes_take_binary_and_decimal_units)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0", 0},
                {"123", 123},
                {"4GiB", UINT64_C(4294967296)},
                {"512MiB", 536870912},
                {"1GB", 1000000000},
                {"7kb", 7000},
                {"3 MiB", 3145728},
                {"16TiB", UINT64_C(17592186044416)},
                {"1TB", UINT64_C(1000000000000)},
                {"9B", 9}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct node_config c = parse_good(ARGS("--kv-memory", good[i].text));
        cr_expect_eq(c.kv.memory, good[i].bytes, "%s: %lu", good[i].text, c.kv.memory);
        node_config_fini(&c);
    }
    static const char *const bad[] = {"",       "-1",   "+1",     "4G",  "4.5GiB", "GiB",
                                      "4 GiB ", "0x10", "4  GiB", "1e9", " 4GiB"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char arg[64];
        (void)snprintf(arg, sizeof arg, "--kv-memory=%s", bad[i]);
        expect_error(ARGS(arg), ERR_PARSE, "--kv-memory: \"");
    }
    expect_error(ARGS("--kv-memory=17TiB"), ERR_LIMIT, "\"17TiB\": must be 0 to 16TiB");
    expect_error(ARGS("--kv-memory=99999999999999999999"), ERR_LIMIT, "must be 0 to 16TiB");
    expect_error(ARGS("--kv-memory=18446744073709551615TiB"), ERR_LIMIT, "must be 0 to 16TiB");
}

Test(node_config, a_bad_flag_names_itself_its_value_and_what_is_allowed)
{
    expect_error(ARGS("--port", "65536"), ERR_LIMIT, "--port: \"65536\": must be 0 to 65535");
    expect_error(ARGS("--port", "eighty"), ERR_PARSE, "--port: \"eighty\": must be 0 to 65535");
    expect_error(ARGS("--port="), ERR_PARSE, "--port: \"\"");
    expect_error(ARGS("--port", "-1"), ERR_PARSE, "--port: \"-1\"");
    expect_error(ARGS("--port", "4294967376"), ERR_LIMIT, "--port: \"4294967376\"");
    /* without any grace a worker would leave before its router can welcome it */
    expect_error(ARGS("--worker-orphan-grace-s", "0"), ERR_LIMIT, "must be 1 to 3600");
    expect_error(ARGS("--port"), ERR_PARSE, "--port: needs a value");
    expect_error(ARGS("--port", "--name", "x"), ERR_PARSE, "--port: needs a value");
    expect_error(ARGS("--isa", "sse"), ERR_PARSE, "--isa: \"sse\": must be one of auto, plain");
    expect_error(ARGS("--kv-format", "q8"), ERR_PARSE, "must be one of f16, bf16, f32");
    expect_error(ARGS("--kv-block-size", "24"), ERR_PARSE, "must be one of 16, 32");
    expect_error(ARGS("--log-level", "INFO"), ERR_PARSE, "one of debug, info, warn, error");
    expect_error(ARGS("--name", "a b"), ERR_PARSE, "--name: \"a b\": must be a name");
    expect_error(ARGS("--name", "a/b"), ERR_PARSE, "--name: \"a/b\"");
    expect_error(ARGS("--name="), ERR_LIMIT, "--name: \"\": must be a name");
    expect_error(ARGS("--name", "abcdefghijklmnopqrstuvwxyz_-01234"), ERR_LIMIT, "1 to 32");
    expect_error(ARGS("--host", "a\nb"), ERR_PARSE, "--host: \"a b\"");
    expect_error(ARGS("--device", "cuda"), ERR_UNSUPPORTED, "device: \"cuda\"");
    expect_error(ARGS("--tp", "2"), ERR_UNSUPPORTED, "tp: \"2\"");
}

Test(node_config, an_unknown_flag_names_the_nearest)
{
    expect_error(ARGS("--prt", "1"), ERR_PARSE, "unknown flag \"--prt\": did you mean \"--port\"?");
    expect_error(ARGS("--kv-memry=1"), ERR_PARSE, "did you mean \"--kv-memory\"?");
    expect_error(ARGS("--confg", "f"), ERR_PARSE, "did you mean \"--config\"?");
    expect_error(ARGS("--kv_memory", "1"), ERR_PARSE, "did you mean \"--kv-memory\"?");
    expect_error(ARGS("-p", "1"), ERR_PARSE, "unknown flag \"-p\"");
    expect_error(ARGS("a.gguf", "b.gguf"), ERR_PARSE, "\"b.gguf\": there is one MODEL");
    expect_error(ARGS("a.gguf", "b.gguf", "c"), ERR_PARSE, "\"b.gguf\": there is one MODEL");
    expect_error(ARGS("--help=yes"), ERR_PARSE, "--help: takes no value");
    expect_error(ARGS("--config", "a", "--config", "b"), ERR_PARSE, "stands twice");
    expect_error(ARGS("--config", "/nowhere.yaml"), ERR_IO, "--config: cannot open /nowhere.yaml");
    expect_error(ARGS("--config", "/"), ERR_IO, "--config: cannot read /");
}

Test(node_config, behind_two_dashes_everything_is_positional)
{
    struct node_config c = parse_good(ARGS("--port=9", "--", "--odd.gguf"));
    cr_expect_eq(c.port, 9);
    cr_expect_str_eq(c.model, "--odd.gguf");
    node_config_fini(&c);
}

Test(node_config, actions_come_before_everything_that_needs_a_file)
{
    const struct {
        const char *const *args;
        enum node_config_action action;
    } cases[] = {
        {ARGS("--help"), NODE_CONFIG_HELP},
        {ARGS("-h"), NODE_CONFIG_HELP},
        {ARGS("m.gguf", "--port", "1", "--help"), NODE_CONFIG_HELP},
        {ARGS("--version"), NODE_CONFIG_VERSION},
        {ARGS("--config", "/nowhere", "--version"), NODE_CONFIG_VERSION},
        {ARGS("config", "example"), NODE_CONFIG_EXAMPLE},
        {ARGS("config", "example", "--help"), NODE_CONFIG_HELP},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct node_config c;
        enum node_config_action action = NODE_CONFIG_RUN;
        cr_assert_eq(parse(cases[i].args, &c, &action, NULL), OK);
        cr_expect_eq(action, cases[i].action, "case %zu", i);
        node_config_fini(&c);
    }
}

Test(node_config, the_isa_comes_from_the_environment_unless_asked_for)
{
    setenv("KVNODE_ISA", "plain", 1);
    struct node_config a = parse_good(ARGS(NULL)), b = parse_good(ARGS("--isa", "auto"));
    cr_expect_str_eq(a.isa, "plain");
    cr_expect_str_eq(b.isa, "auto");
    node_config_fini(&a);
    node_config_fini(&b);
    setenv("KVNODE_ISA", "sse9", 1);
    expect_error(ARGS(NULL), ERR_PARSE, "KVNODE_ISA: \"sse9\": must be one of auto");
}

/* --- the file -----------------------------------------------------------------------------------
 */

Test(node_config, yaml_sets_keys_in_block_and_flow_style)
{
    struct node_config c = parse_yaml("# comment\n"
                                      "port: 81\nname: \"n-1\"\nserved_model_name: 'Smol: \"x\"'\n"
                                      "kv:\n  memory: 512MiB\n  format: bf16\n"
                                      "http: {max_body: 1MiB, json_depth: 9}\n"
                                      "worker:\nscheduler: ~\nisa: ''\nlog_level: warn\n");
    cr_expect(c.port == 81 && c.kv.memory == 512 << 20 && c.kv.format == TENSOR_BF16);
    cr_expect(c.http.max_body == 1 << 20 && c.http.json_depth == 9 && c.log_level == LOG_WARN);
    cr_expect_str_eq(c.name, "n-1");
    cr_expect_str_eq(c.served_model_name, "Smol: \"x\"");
    cr_expect_str_eq(c.isa, "auto");
    node_config_fini(&c);
}

Test(node_config, an_empty_file_gives_the_defaults)
{
    static const char *const texts[] = {"", "# nothing\n", "---\n", "{}", "~\n"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct node_config c = parse_yaml(texts[i]);
        expect_defaults(&c);
        node_config_fini(&c);
    }
}

Test(node_config, an_unknown_yaml_key_names_its_line_and_the_nearest)
{
    expect_yaml_error("port: 1\nkv:\n  block_size: 16\n  memry: 4GiB\n", ERR_PARSE,
                      ":4: unknown key \"kv.memry\": did you mean \"kv.memory\"?");
    expect_yaml_error("\nprot: 1\n", ERR_PARSE, ":2: unknown key \"prot\": did you mean \"port\"?");
    expect_yaml_error("schedular:\n  max_waiting: 1\n", ERR_PARSE,
                      ":1: unknown key \"schedular\": did you mean \"scheduler\"?");
    expect_yaml_error("http: {port: 1}\n", ERR_PARSE, ":1: unknown key \"http.port\"");
    expect_yaml_error("<<: {port: 1}\n", ERR_PARSE, ":1: unknown key \"<<\"");
}

Test(node_config, a_bad_yaml_value_names_its_line_key_value_and_range)
{
    expect_yaml_error("name: x\nport: 70000\n", ERR_LIMIT,
                      ":2: port: \"70000\": must be 0 to 65535");
    expect_yaml_error("http:\n  max_header: 2GiB\n", ERR_LIMIT,
                      ":2: http.max_header: \"2GiB\": must be 1KiB to 1MiB");
    expect_yaml_error("port: [80]\n", ERR_PARSE, ":1: \"port\": must be one value");
    expect_yaml_error("port: {a: 1}\n", ERR_PARSE, ":1: \"port\": must be one value");
    expect_yaml_error("port:\n", ERR_PARSE, ":1: port: \"\": must be 0 to 65535");
    expect_yaml_error("port: 0x10\n", ERR_PARSE, ":1: port: \"0x10\"");
    expect_yaml_error("name: \"a\\0b\"\n", ERR_PARSE, ":1: \"name\": must be one value");
    expect_yaml_error("kv: 4GiB\n", ERR_PARSE, ":1: \"kv\": is a section");
    expect_yaml_error("port: 1\nname: a\nport: 2\n", ERR_PARSE, ":3: \"port\": stands twice");
    expect_yaml_error("kv: {memory: 1}\nkv: {memory: 2}\n", ERR_PARSE, ":2: \"kv.memory\": stands");
}

Test(node_config, what_is_not_our_yaml_is_refused_with_its_line)
{
    expect_yaml_error("port: 1\n  name: [\n", ERR_PARSE, ":2: ");
    expect_yaml_error("port 1\n", ERR_PARSE, ":1: must be lines of");
    expect_yaml_error("- port\n", ERR_PARSE, ":1: must be lines of");
    expect_yaml_error("port: 1\n---\nport: 2\n", ERR_PARSE, ":2: a second document");
    expect_yaml_error("? [a]\n: 1\n", ERR_PARSE, ":1: ");
    expect_yaml_error("a: &a [*a]\n", ERR_PARSE, ":1: unknown key \"a\"");
    expect_yaml_error("kv: &a {memory: *a}\n", ERR_PARSE, ":1: \"kv.memory\": must be one value");
    char path[64], *big = malloc(70000);
    cr_assert_not_null(big);
    memset(big, '#', 70000);
    expect_error(ARGS("--config", file_of(big, 70000, path)), ERR_LIMIT, "larger than 65536");
    free(big);
}

/* --- derived texts ------------------------------------------------------------------------------
 */

Test(node_config, the_example_has_every_key_and_parses_to_the_defaults)
{
    char *example = node_config_example();
    cr_assert_not_null(example);
    struct node_config c = parse_yaml(example);
    expect_defaults(&c);
    cr_expect_str_eq(c.model, "m.gguf");
    cr_expect_str_eq(c.served_model_name, "m");
    struct node_config d = parse_good(ARGS("m.gguf"));
    cr_expect(configs_equal(&c, &d));
    node_config_fini(&c);
    node_config_fini(&d);
    free(example);
}

/* Every flag that to_argv writes is in the help, and its last word in the example. */
Test(node_config, help_and_example_list_every_key)
{
    struct node_config c = parse_good(ARGS("m.gguf"));
    char **argv = node_config_to_argv(&c, "p"), *help = node_config_help();
    char *example = node_config_example();
    cr_assert(argv && help && example);
    size_t n = 0;
    for (char **p = argv + 1; *p; p++, n++) {
        char entry[80], key[80];
        int length = (int)strcspn(*p, "=");
        (void)snprintf(entry, sizeof entry, "\n  %.*s ", length, *p);
        cr_expect(strstr(help, entry), "help lacks %s", *p);
        (void)snprintf(key, sizeof key, "%.*s: ", length - 2, *p + 2);
        for (char *q = key; *q; q++)
            *q = *q == '-' ? '_' : *q;
        const char *tail = key; /* "kv_memory: " stands as "memory: " in its section */
        while (tail && !strstr(example, tail))
            tail = strchr(tail, '_') ? strchr(tail, '_') + 1 : NULL;
        cr_expect(tail, "example lacks %s", *p);
    }
    cr_expect_eq(n, 30, "%zu keys: node_config.h has 30 fields", n);
    node_config_free_argv(argv);
    node_config_free_argv(NULL);
    node_config_fini(&c);
    free(help);
    free(example);
}

/* --- round trip ---------------------------------------------------------------------------------
 */

static uint64_t next(uint64_t *state) /* splitmix64 */
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t between(uint64_t *s, uint64_t low, uint64_t high)
{
    return (uint32_t)(low + next(s) % (high - low + 1));
}

static char *random_text(uint64_t *s, const char *letters, size_t most)
{
    size_t n = 1 + next(s) % most;
    char *text = calloc(n + 1, 1);
    for (size_t i = 0; text && i < n; i++)
        text[i] = letters[next(s) % strlen(letters)];
    return text;
}

static struct node_config random_config(uint64_t *s)
{
    static const char any[] = "abc XYZ-=_./:\"'#{}[]~\\\xc3\xa9";
    static const char name[] = "abcXYZ019_-";
    static const char *const isas[] = {"auto", "plain", "avx2", "avx512"};
    static const enum tensor_type formats[] = {TENSOR_F16, TENSOR_BF16, TENSOR_F32};
    struct node_config c = {
        .model = random_text(s, any, 40),
        .served_model_name = random_text(s, any, 40),
        .name = random_text(s, name, 32),
        .host = random_text(s, any, 40),
        .port = between(s, 0, 65535),
        .device = strdup(next(s) % 2 ? "auto" : "cpu"),
        .isa = strdup(isas[next(s) % 4]),
        .workers = between(s, 0, 64),
        .tp = 1,
        .threads = between(s, 0, 1024),
        .max_context = between(s, 0, 1 << 30),
        .runtime_dir = next(s) % 2 ? random_text(s, any, 80) : NULL,
        .log_level = (enum log_level)(next(s) % 4),
        .shutdown_grace_s = between(s, 0, 3600),
        .kv = {next(s) % (UINT64_C(1) << 44), next(s) % 2 ? 16 : 32, formats[next(s) % 3]},
        .worker = {between(s, 0, 3600), between(s, 1, 3600), between(s, 1, 3600)},
        .scheduler = {between(s, 1, 1 << 20), between(s, 1, 4096), between(s, 0, 1 << 20)},
        .http = {between(s, 1024, 1 << 30), between(s, 1024, 1 << 20), between(s, 1, 1 << 20),
                 between(s, 1, 86400), between(s, 1, 86400), between(s, 65536, 1 << 30),
                 between(s, 4, 1024)},
    };
    if (next(s) % 2) /* a round size, so that units are written */
        c.kv.memory = (uint64_t)between(s, 0, 1023) << (10 * between(s, 0, 3));
    return c;
}

Test(node_config, flags_made_from_a_config_parse_to_an_equal_one)
{
    uint64_t seed = 20, state = seed;
    for (int round = 0; round < 500; round++) {
        struct node_config want = random_config(&state), got;
        enum node_config_action action = NODE_CONFIG_HELP;
        struct err_info ei = {0};
        char **argv = node_config_to_argv(&want, "kvnode-worker");
        cr_assert_not_null(argv);
        int argc = 0;
        while (argv[argc])
            argc++;
        enum err rc = node_config_parse(argc, argv, &got, &action, &ei);
        cr_assert_eq(rc, OK, "seed %lu round %d: %s", (unsigned long)seed, round, ei.text);
        cr_expect(action == NODE_CONFIG_RUN && configs_equal(&want, &got), "seed %lu round %d",
                  (unsigned long)seed, round);
        cr_expect_str_eq(argv[0], "kvnode-worker");
        node_config_free_argv(argv);
        node_config_fini(&want);
        node_config_fini(&got);
    }
}
