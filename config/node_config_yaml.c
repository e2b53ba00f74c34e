/* What does the YAML file say? Walks the document against the table of keys. Invariant: every key
 * is known and stands once, every value is one scalar, and each fault names file and line. libyaml
 * rather than libcyaml on top of it: libcyaml 1.3 loads into structs without keeping lines, so a
 * value out of range could not be placed, and its unknown-key text has no path to take the nearest
 * name from. Does not know what values mean (node_config_values.c). */
#include "config/node_config_keys.h"

#include <yaml.h>

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FILE_BYTES_MAX = 64 * 1024, /* the example is a tenth of that */
    PATH_SHOWN = 160,           /* tail of the file's name in errors */
    KEY_BYTES = 64,             /* longer ones are unknown anyway */
};

struct walk {
    struct node_config *config;
    const char *file; /* as shown in errors */
    yaml_document_t *document;
    uint64_t seen; /* one bit a row of the table */
    struct err_info *ei;
};

static enum err fault(const struct walk *w, const yaml_node_t *at, const char *key,
                      const char *what)
{
    return err_set(w->ei, ERR_PARSE, "%s:%zu: \"%.*s\": %s", w->file, at->start_mark.line + 1,
                   KEY_BYTES, key, what);
}

/* The text of a scalar, "" for a plain null. NULL: not a scalar, or a text with a NUL inside. */
static const char *scalar_text(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *s = (const char *)node->data.scalar.value;
    if (strlen(s) != node->data.scalar.length)
        return NULL;
    bool is_plain = node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return is_plain && (strcmp(s, "~") == 0 || strcmp(s, "null") == 0) ? "" : s;
}

static enum err unknown_key(const struct walk *w, const yaml_node_t *at, const char *path)
{
    char nearest[NODE_CONFIG_FLAG_BYTES];
    node_config_keys_nearest(path, nearest);
    return err_set(w->ei, ERR_PARSE, "%s:%zu: unknown key \"%s\": did you mean \"%s\"?", w->file,
                   at->start_mark.line + 1, path, nearest);
}

static enum err set_key(struct walk *w, const yaml_node_t *at, const yaml_node_t *value,
                        const char *path)
{
    const struct node_config_key *k = node_config_keys_find(path);
    size_t n;
    if (!k)
        return unknown_key(w, at, path);
    uint64_t bit = UINT64_C(1) << (k - node_config_keys(&n));
    if (w->seen & bit)
        return fault(w, at, path, "stands twice in the file");
    w->seen |= bit;
    const char *text = scalar_text(value);
    if (!text)
        return fault(w, at, path, "must be one value on its line");
    char source[PATH_SHOWN + KEY_BYTES + 40];
    (void)snprintf(source, sizeof source, "%s:%zu: %s", w->file, value->start_mark.line + 1,
                   k->path);
    return node_config_values_set(w->config, k, text, source, w->ei);
}

/* Keys of one mapping; section "" is the top. Sections do not nest, so the walk is bounded however
 * a hostile document's aliases point at each other. */
static enum err walk_mapping(struct walk *w, const yaml_node_t *map, const char *section)
{
    const yaml_node_pair_t *pair = map->data.mapping.pairs.start;
    for (; pair < map->data.mapping.pairs.top; pair++) {
        const yaml_node_t *key = yaml_document_get_node(w->document, pair->key);
        const yaml_node_t *value = yaml_document_get_node(w->document, pair->value);
        const char *name = scalar_text(key);
        if (!name)
            return fault(w, key, *section ? section : "the file", "has a key that is not a word");
        char path[2 * KEY_BYTES];
        (void)snprintf(path, sizeof path, "%.*s%s%.*s", KEY_BYTES - 2, section, *section ? "." : "",
                       KEY_BYTES, name);
        enum err rc;
        if (*section || !node_config_keys_section(path))
            rc = set_key(w, key, value, path);
        else if (value->type == YAML_MAPPING_NODE)
            rc = walk_mapping(w, value, path);
        else if (scalar_text(value) && !*scalar_text(value))
            rc = OK; /* a section whose keys are all commented out */
        else
            rc = fault(w, key, path, "is a section: its keys stand below it, indented");
        if (rc)
            return rc;
    }
    return OK;
}

static enum err walk_document(struct walk *w)
{
    const yaml_node_t *root = yaml_document_get_root_node(w->document);
    if (!root || (scalar_text(root) && !*scalar_text(root)))
        return OK; /* empty: all defaults */
    if (root->type != YAML_MAPPING_NODE)
        return err_set(w->ei, ERR_PARSE, "%s:%zu: must be lines of \"key: value\"", w->file,
                       root->start_mark.line + 1);
    return walk_mapping(w, root, "");
}

static enum err yaml_fault(const struct walk *w, const yaml_parser_t *p)
{
    if (p->error == YAML_MEMORY_ERROR)
        return err_set(w->ei, ERR_NOMEM, "%s: no memory", w->file);
    return err_set(w->ei, ERR_PARSE, "%s:%zu: %s", w->file, p->problem_mark.line + 1,
                   p->problem ? p->problem : "is not YAML");
}

static enum err load(struct walk *w, const char *text, size_t n)
{
    yaml_parser_t parser;
    yaml_document_t document, second;
    if (!yaml_parser_initialize(&parser))
        return err_set(w->ei, ERR_NOMEM, "%s: no memory", w->file);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, n);
    enum err rc = OK;
    if (!yaml_parser_load(&parser, &document)) {
        rc = yaml_fault(w, &parser);
        goto done;
    }
    w->document = &document;
    rc = walk_document(w);
    bool is_empty = !yaml_document_get_root_node(&document);
    yaml_document_delete(&document);
    w->document = NULL;
    if (rc || is_empty)
        goto done;
    if (!yaml_parser_load(&parser, &second)) {
        rc = yaml_fault(w, &parser);
        goto done;
    }
    if (yaml_document_get_root_node(&second))
        rc = err_set(w->ei, ERR_PARSE, "%s:%zu: a second document: one file is one document",
                     w->file, second.start_mark.line + 1);
    yaml_document_delete(&second);
done:
    yaml_parser_delete(&parser);
    return rc;
}

enum err node_config_yaml_load(struct node_config *c, const char *path, struct err_info *ei)
{
    size_t length = strlen(path);
    struct walk w = {
        .config = c, .file = length > PATH_SHOWN ? path + length - PATH_SHOWN : path, .ei = ei};
    char *text = NULL;
    size_t n = 0;
    enum err rc = OK;
    FILE *f = fopen(path, "re");
    if (!f)
        return err_set(ei, ERR_IO, "--config: cannot open %s: %s", w.file, strerror(errno));
    text = malloc(FILE_BYTES_MAX + 1);
    if (!text) {
        rc = err_set(ei, ERR_NOMEM, "%s: no memory", w.file);
        goto done;
    }
    n = fread(text, 1, FILE_BYTES_MAX + 1, f);
    if (ferror(f))
        rc = err_set(ei, ERR_IO, "--config: cannot read %s: %s", w.file, strerror(errno));
    else if (n > FILE_BYTES_MAX)
        rc = err_set(ei, ERR_LIMIT, "%s: is larger than %d bytes", w.file, FILE_BYTES_MAX);
    else
        rc = load(&w, text, n);
done:
    free(text);
    fclose(f);
    return rc;
}
