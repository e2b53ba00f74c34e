/* Writes the seeds of fuzz_gguf and fuzz_config into the two folders that it is given: valid files,
 * which the fuzzer bends. */
#include "config/node_config.h"
#include "tests/unit/config/support_gguf_writer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int write_seed(const char *folder, const char *name, const void *data, size_t n)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    if (!f) {
        perror(path);
        return 1;
    }
    size_t written = fwrite(data, 1, n, f);
    return fclose(f) != 0 || written != n;
}

static int write_gguf_seeds(const char *folder)
{
    struct gguf_sample sample;
    struct bytes llama = {0};
    gguf_sample_init(&sample);
    write_llama(&llama, &(struct llama_change){0});
    int failed = write_seed(folder, "sample.gguf", sample.file.data, sample.file.size) |
                 write_seed(folder, "llama.gguf", llama.data, llama.size);
    gguf_sample_fini(&sample);
    bytes_fini(&llama);
    return failed;
}

static int write_config_seeds(const char *folder)
{
    static const char flags[] = "1m.gguf\n--kv-memory\n4GiB\n--port=0\n--isa=plain\n--\nx";
    struct bytes yaml = {0};
    char *example = node_config_example();
    bytes_append_str(&yaml, "0");
    bytes_append_str(&yaml, example ? example : "");
    int failed = write_seed(folder, "example.yaml", yaml.data, yaml.size) |
                 write_seed(folder, "flags", flags, strlen(flags));
    bytes_fini(&yaml);
    free(example);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: seed_gguf GGUF_FOLDER CONFIG_FOLDER\n");
        return 2;
    }
    return write_gguf_seeds(argv[1]) | write_config_seeds(argv[2]);
}
