/* How are the keys told to a person? The text of --help and the example file, both from the table.
 * Invariant: every key stands in both, and the example parses to the defaults. Does not know how
 * values are parsed. */
#include "config/base/bytes.h"
#include "config/node_config_keys.h"

#include <inttypes.h>
#include <string.h>

/* "kv.memory" -> "kv"; "" for keys of the top. */
static void section_of(const struct node_config_key *k, char out[NODE_CONFIG_FLAG_BYTES])
{
    const char *dot = strchr(k->path, '.');
    size_t n = dot ? (size_t)(dot - k->path) : 0;
    memcpy(out, k->path, n);
    out[n] = '\0';
}

static const char *value_name(const struct node_config_key *k)
{
    switch (k->kind) {
    case NODE_CONFIG_TEXT:
        return "TEXT";
    case NODE_CONFIG_WORD:
    case NODE_CONFIG_CHOICE:
        return "WORD";
    case NODE_CONFIG_COUNT:
        return "N";
    case NODE_CONFIG_SIZE:
    case NODE_CONFIG_SIZE32:
        return "SIZE";
    }
    return "";
}

/* "0: auto", "8000", or the note alone where the default has no text. */
static void append_default(struct bytes *b, const struct node_config_key *k)
{
    bytes_append_str(b, *k->fallback ? k->fallback : "");
    if (k->note)
        bytes_printf(b, "%s%s", *k->fallback ? " = " : "", k->note);
}

static char *finish(struct bytes *b)
{
    bytes_append_nul(b);
    if (!b->failed)
        return b->data;
    bytes_fini(b);
    return NULL;
}

char *node_config_help(void)
{
    struct bytes b = {0};
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    bytes_append_str(&b, "usage: kvnode serve MODEL [--config FILE] [--key value]...\n"
                         "       kvnode config example    print a config file with every key\n"
                         "       kvnode --help | --version\n\n"
                         "MODEL is the path of a GGUF file. Keys stand in FILE (YAML) or as flags;"
                         " a flag wins.\n"
                         "`kv: {memory: 4GiB}` in the file is `--kv-memory 4GiB` here.\n\n");
    for (size_t i = 0; i < n; i++) {
        char flag[NODE_CONFIG_FLAG_BYTES], allowed[128];
        node_config_keys_flag(&all[i], flag);
        node_config_values_describe(&all[i], allowed, sizeof allowed);
        bytes_printf(&b, "  %s %s\n      %s\n      %s; default ", flag, value_name(&all[i]),
                     all[i].help, allowed);
        append_default(&b, &all[i]);
        bytes_append_str(&b, "\n");
    }
    return finish(&b);
}

char *node_config_example(void)
{
    struct bytes b = {0};
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    char section[NODE_CONFIG_FLAG_BYTES] = "";
    bytes_append_str(&b, "# kvnode: every key at its default. Use it with --config FILE.\n"
                         "# Sizes are bytes, or carry a unit: 512MiB, 4GiB, 1GB.\n");
    for (size_t i = 0; i < n; i++) {
        char own[NODE_CONFIG_FLAG_BYTES], allowed[128];
        section_of(&all[i], own);
        node_config_values_describe(&all[i], allowed, sizeof allowed);
        if (strcmp(own, section) != 0) {
            memcpy(section, own, sizeof section);
            bytes_printf(&b, "\n# %s\n%s:\n", node_config_keys_section(own), own);
        }
        const char *indent = *own ? "  " : "";
        bool is_text = all[i].kind == NODE_CONFIG_TEXT || all[i].kind == NODE_CONFIG_WORD;
        bytes_printf(&b, "%s# %s; %s", indent, all[i].help, allowed);
        if (all[i].note)
            bytes_printf(&b, "; %s: %s", *all[i].fallback ? all[i].fallback : "empty", all[i].note);
        bytes_printf(&b, "\n%s%s: %s%s%s\n", indent, all[i].path + (*own ? strlen(own) + 1 : 0),
                     is_text ? "\"" : "", all[i].fallback, is_text ? "\"" : "");
    }
    return finish(&b);
}
