#pragma once
#include "config/base/err.h"
#include "config/node_config.h"

/* The one table of configuration keys, private to node_config*.c: flags, the YAML file, --help,
 * the example and node_config_to_argv are all made from it. */

enum node_config_kind {
    NODE_CONFIG_TEXT,   /* char *; "" is stored as NULL: the default that the note describes */
    NODE_CONFIG_WORD,   /* char *, one of choices; "" as above */
    NODE_CONFIG_COUNT,  /* uint32_t */
    NODE_CONFIG_SIZE,   /* uint64_t of bytes */
    NODE_CONFIG_SIZE32, /* uint32_t of bytes */
    NODE_CONFIG_CHOICE, /* 4 bytes: the value of one of choices */
};

struct node_config_choice {
    const char *word; /* NULL ends the list */
    uint32_t value;   /* of a NODE_CONFIG_CHOICE */
};

struct node_config_key {
    const char *path; /* "kv.memory" */
    enum node_config_kind kind;
    size_t offset;        /* of the field in struct node_config */
    const char *fallback; /* the default, as a user would write it */
    const char *note;     /* what the default means, where its text does not say: or NULL */
    uint64_t least, most; /* numbers: the range; texts: bytes */
    const struct node_config_choice *choices;
    bool is_name; /* text of A-Z a-z 0-9 _ - only */
    const char *help;
};

enum { NODE_CONFIG_FLAG_BYTES = 64 };

const struct node_config_key *node_config_keys(size_t *n);
const struct node_config_key *node_config_keys_find(const char *path); /* NULL: unknown */
/* What a section of the YAML file holds; NULL: there is no such section. */
const char *node_config_keys_section(const char *section);

/* "kv.memory" -> "--kv-memory" */
void node_config_keys_flag(const struct node_config_key *k, char out[NODE_CONFIG_FLAG_BYTES]);

/* The known name least edits away from what was written: among key and section paths, or among
 * flags (what begins with "--"). The result is written to out. */
void node_config_keys_nearest(const char *written, char out[NODE_CONFIG_FLAG_BYTES]);

/* node_config_values.c.
 * Parses text, checks it and stores it. source: "--flag" or "file:line: key", for the error. */
NODISCARD enum err node_config_values_set(struct node_config *c, const struct node_config_key *k,
                                          const char *text, const char *source,
                                          struct err_info *ei);
/* Every key at its fallback. c is zeroed first. */
NODISCARD enum err node_config_values_set_defaults(struct node_config *c, struct err_info *ei);
/* The key's value as text that node_config_values_set takes, malloc'ed; NULL when out of memory. An
 * unset text gives "". */
char *node_config_values_format(const struct node_config *c, const struct node_config_key *k);
/* Writes what is allowed: "0 to 65535", "one of auto, cpu, cuda". */
void node_config_values_describe(const struct node_config_key *k, char *out, size_t out_bytes);

/* node_config_yaml.c: sets what the file says over what c has. */
NODISCARD enum err node_config_yaml_load(struct node_config *c, const char *path,
                                         struct err_info *ei);
