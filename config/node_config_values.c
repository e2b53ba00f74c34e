/* What does the text of one value mean, and is it allowed? Parsing, range checks and the way back
 * to text, for every kind of key. Invariant: what node_config_values_format writes,
 * node_config_values_set reads to the same value. Does not know which keys exist. */
#include "config/node_config_keys.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static_assert(sizeof(enum log_level) == 4 && sizeof(enum tensor_type) == 4,
              "a NODE_CONFIG_CHOICE is stored as four bytes");

enum { VALUE_SHOWN = 64 }; /* bytes of a refused value in its error */

static const struct unit {
    const char *name;
    uint64_t bytes;
} units[] = {
    /* binary ones first and largest first: formatting takes the first that divides */
    {"TiB", UINT64_C(1) << 40}, {"GiB", UINT64_C(1) << 30},      {"MiB", UINT64_C(1) << 20},
    {"KiB", UINT64_C(1) << 10}, {"TB", UINT64_C(1000000000000)}, {"GB", UINT64_C(1000000000)},
    {"MB", UINT64_C(1000000)},  {"KB", UINT64_C(1000)},          {"B", 1},
};

static void format_size(uint64_t bytes, char *out, size_t out_bytes)
{
    for (size_t i = 0; bytes && i < 4; i++)
        if (bytes % units[i].bytes == 0) {
            (void)snprintf(out, out_bytes, "%" PRIu64 "%s", bytes / units[i].bytes, units[i].name);
            return;
        }
    (void)snprintf(out, out_bytes, "%" PRIu64, bytes);
}

void node_config_values_describe(const struct node_config_key *k, char *out, size_t out_bytes)
{
    char low[32], high[32];
    size_t n = 0;
    switch (k->kind) {
    case NODE_CONFIG_TEXT:
        (void)snprintf(out, out_bytes, "%s of %" PRIu64 " to %" PRIu64 " bytes",
                       k->is_name ? "a name (A-Z a-z 0-9 _ -)" : "a text", k->least, k->most);
        return;
    case NODE_CONFIG_COUNT:
        (void)snprintf(out, out_bytes, "%" PRIu64 " to %" PRIu64, k->least, k->most);
        return;
    case NODE_CONFIG_SIZE:
    case NODE_CONFIG_SIZE32:
        format_size(k->least, low, sizeof low);
        format_size(k->most, high, sizeof high);
        (void)snprintf(out, out_bytes, "%s to %s (bytes, or with KiB MiB GiB TiB KB MB GB TB)", low,
                       high);
        return;
    case NODE_CONFIG_WORD:
    case NODE_CONFIG_CHOICE:
        *out = '\0';
        for (const struct node_config_choice *c = k->choices; c->word && n < out_bytes; c++)
            n += (size_t)snprintf(out + n, out_bytes - n, "%s%s", n ? ", " : "one of ", c->word);
        return;
    }
}

static enum err refuse(const struct node_config_key *k, enum err code, const char *text,
                       const char *source, struct err_info *ei)
{
    char allowed[128];
    node_config_values_describe(k, allowed, sizeof allowed);
    return err_set(ei, code, "%s: \"%.*s\": must be %s", source, VALUE_SHOWN, text, allowed);
}

/* Decimal digits, then for sizes an optional blank and unit. PARSE: not a number; LIMIT: more than
 * 64 bits. */
static enum err parse_number(const char *text, bool is_size, uint64_t *out)
{
    uint64_t v = 0;
    bool is_huge = false;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++)
        is_huge |= __builtin_mul_overflow(v, UINT64_C(10), &v) ||
                   __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v);
    if (p == text)
        return ERR_PARSE;
    if (*p && is_size) {
        const struct unit *unit = NULL;
        p += *p == ' ';
        for (size_t i = 0; i < sizeof units / sizeof *units; i++)
            if (strcasecmp(p, units[i].name) == 0)
                unit = &units[i];
        if (!unit)
            return ERR_PARSE;
        is_huge |= __builtin_mul_overflow(v, unit->bytes, &v);
    } else if (*p) {
        return ERR_PARSE;
    }
    *out = v;
    return is_huge ? ERR_LIMIT : OK;
}

static enum err set_number(void *field, const struct node_config_key *k, const char *text,
                           const char *source, struct err_info *ei)
{
    uint64_t v = 0;
    enum err rc = parse_number(text, k->kind != NODE_CONFIG_COUNT, &v);
    if (rc == OK && (v < k->least || v > k->most))
        rc = ERR_LIMIT;
    if (rc)
        return refuse(k, rc, text, source, ei);
    if (k->kind == NODE_CONFIG_SIZE) {
        memcpy(field, &v, sizeof v);
    } else {
        uint32_t narrow = (uint32_t)v; /* the row's range is within it */
        memcpy(field, &narrow, sizeof narrow);
    }
    return OK;
}

static const struct node_config_choice *find_choice(const struct node_config_key *k,
                                                    const char *text)
{
    for (const struct node_config_choice *c = k->choices; c->word; c++)
        if (strcmp(c->word, text) == 0)
            return c;
    return NULL;
}

/* Bytes that would break a line of output or a path have no place in any text of ours. */
static bool is_clean(const struct node_config_key *k, const char *text)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    if (k->is_name)
        return strspn(text, letters) == strlen(text);
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        if (*p < 0x20 || *p == 0x7f)
            return false;
    return true;
}

static enum err set_text(char **field, const struct node_config_key *k, const char *text,
                         const char *source, struct err_info *ei)
{
    bool is_default = !*text && !*k->fallback;
    char *copy = NULL;
    if (!is_default) {
        size_t n = strlen(text);
        if (k->kind == NODE_CONFIG_WORD && !find_choice(k, text))
            return refuse(k, ERR_PARSE, text, source, ei);
        if (k->kind == NODE_CONFIG_TEXT && (n < k->least || n > k->most))
            return refuse(k, ERR_LIMIT, text, source, ei);
        if (k->kind == NODE_CONFIG_TEXT && !is_clean(k, text))
            return refuse(k, ERR_PARSE, text, source, ei);
        copy = strdup(text);
        if (!copy)
            return err_set(ei, ERR_NOMEM, "%s: no memory", source);
    }
    free(*field);
    *field = copy;
    return OK;
}

enum err node_config_values_set(struct node_config *c, const struct node_config_key *k,
                                const char *text, const char *source, struct err_info *ei)
{
    void *field = (char *)c + k->offset;
    const struct node_config_choice *choice = NULL;
    switch (k->kind) {
    case NODE_CONFIG_TEXT:
    case NODE_CONFIG_WORD:
        return set_text(field, k, text, source, ei);
    case NODE_CONFIG_COUNT:
    case NODE_CONFIG_SIZE:
    case NODE_CONFIG_SIZE32:
        return set_number(field, k, text, source, ei);
    case NODE_CONFIG_CHOICE:
        choice = find_choice(k, text);
        if (!choice)
            return refuse(k, ERR_PARSE, text, source, ei);
        memcpy(field, &choice->value, sizeof choice->value);
        return OK;
    }
    return OK;
}

enum err node_config_values_set_defaults(struct node_config *c, struct err_info *ei)
{
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < n; i++) {
        enum err rc = node_config_values_set(c, &all[i], all[i].fallback, all[i].path, ei);
        if (rc)
            return rc;
    }
    return OK;
}

char *node_config_values_format(const struct node_config *c, const struct node_config_key *k)
{
    const void *field = (const char *)c + k->offset;
    uint64_t wide;
    uint32_t narrow;
    char text[32] = "";
    switch (k->kind) {
    case NODE_CONFIG_TEXT:
    case NODE_CONFIG_WORD: {
        char *s;
        memcpy(&s, field, sizeof s);
        return strdup(s ? s : "");
    }
    case NODE_CONFIG_SIZE:
        memcpy(&wide, field, sizeof wide);
        format_size(wide, text, sizeof text);
        return strdup(text);
    case NODE_CONFIG_COUNT:
    case NODE_CONFIG_SIZE32:
        memcpy(&narrow, field, sizeof narrow);
        if (k->kind == NODE_CONFIG_COUNT)
            (void)snprintf(text, sizeof text, "%" PRIu32, narrow);
        else
            format_size(narrow, text, sizeof text);
        return strdup(text);
    case NODE_CONFIG_CHOICE:
        memcpy(&narrow, field, sizeof narrow);
        for (const struct node_config_choice *choice = k->choices; choice->word; choice++)
            if (choice->value == narrow)
                return strdup(choice->word);
        assert(!"a value that no text gives");
    }
    return NULL;
}
