/* What are we running? Defaults, then the file, then flags, each through the one table of keys.
 * Invariant: a struct node_config that came out of node_config_parse has every field within its
 * stated range, and node_config_to_argv gives flags that parse to the same struct. Does not know
 * the model nor the machine: "auto" stays what it is until someone who knows resolves it. */
#include "config/node_config.h"
#include "config/node_config_keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_SHOWN = 64 }; /* of an argument in errors */

/* A command line cut into its parts; strings are borrowed from argv. */
struct arguments {
    int argc;
    char *const *argv;
    const char *config;   /* --config */
    const char *words[2]; /* positional arguments */
    size_t n_words;       /* may exceed what words holds */
    enum node_config_action action;
};

/* One flag of the command line. */
struct flag {
    char name[NODE_CONFIG_FLAG_BYTES]; /* without "=value" */
    const char *value;                 /* NULL: there was none */
};

static enum err unknown_flag(const char *flag, struct err_info *ei)
{
    char nearest[NODE_CONFIG_FLAG_BYTES];
    node_config_keys_nearest(flag, nearest);
    return err_set(ei, ERR_PARSE, "unknown flag \"%.*s\": did you mean \"%s\"?", WORD_SHOWN, flag,
                   nearest);
}

/* Takes the argument at *i, which begins with "--", and its value, and moves *i behind them. */
static enum err take_flag(const struct arguments *a, int *i, struct flag *out, struct err_info *ei)
{
    const char *arg = a->argv[(*i)++], *equals = strchr(arg, '=');
    size_t n = equals ? (size_t)(equals - arg) : strlen(arg);
    if (n >= sizeof out->name)
        return unknown_flag(arg, ei);
    memcpy(out->name, arg, n);
    out->name[n] = '\0';
    out->value = equals ? equals + 1 : NULL;
    bool is_switch = strcmp(out->name, "--help") == 0 || strcmp(out->name, "--version") == 0;
    if (is_switch)
        return equals ? err_set(ei, ERR_PARSE, "%s: takes no value", out->name) : OK;
    if (!equals && *i < a->argc && strncmp(a->argv[*i], "--", 2) != 0)
        out->value = a->argv[(*i)++];
    return OK;
}

static const struct node_config_key *find_flag(const char *name)
{
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    for (size_t i = 0; i < n; i++) {
        char flag[NODE_CONFIG_FLAG_BYTES];
        node_config_keys_flag(&all[i], flag);
        if (strcmp(flag, name) == 0)
            return &all[i];
    }
    return NULL;
}

static enum err check_flag(struct arguments *a, const struct flag *f, struct err_info *ei)
{
    if (strcmp(f->name, "--help") == 0) {
        a->action = NODE_CONFIG_HELP;
        return OK;
    }
    if (strcmp(f->name, "--version") == 0) {
        if (a->action == NODE_CONFIG_RUN)
            a->action = NODE_CONFIG_VERSION;
        return OK;
    }
    bool is_config = strcmp(f->name, "--config") == 0;
    if (!is_config && !find_flag(f->name))
        return unknown_flag(f->name, ei);
    if (!f->value)
        return err_set(ei, ERR_PARSE, "%s: needs a value", f->name);
    if (!is_config)
        return OK;
    if (a->config)
        return err_set(ei, ERR_PARSE, "--config: \"%.*s\": stands twice", WORD_SHOWN, f->value);
    a->config = f->value;
    return OK;
}

static bool is_flag(const char *arg)
{
    return strncmp(arg, "--", 2) == 0 && arg[2];
}

static void take_word(struct arguments *a, const char *word)
{
    if (a->n_words < sizeof a->words / sizeof *a->words)
        a->words[a->n_words] = word;
    a->n_words++;
}

/* First pass: what is asked for, and is every flag known? */
static enum err scan(struct arguments *a, struct err_info *ei)
{
    bool is_over = false; /* behind "--" everything is positional */
    for (int i = 1; i < a->argc;) {
        const char *arg = a->argv[i];
        if (!is_over && strcmp(arg, "--") == 0) {
            is_over = true;
            i++;
        } else if (!is_over && is_flag(arg)) {
            struct flag f;
            enum err rc = take_flag(a, &i, &f, ei);
            if (!rc)
                rc = check_flag(a, &f, ei);
            if (rc)
                return rc;
        } else if (!is_over && strcmp(arg, "-h") == 0) {
            a->action = NODE_CONFIG_HELP;
            i++;
        } else if (!is_over && arg[0] == '-' && arg[1]) {
            return err_set(ei, ERR_PARSE, "unknown flag \"%.*s\": flags are written --key",
                           WORD_SHOWN, arg);
        } else {
            take_word(a, arg);
            i++;
        }
    }
    if (a->n_words == 2 && strcmp(a->words[0], "config") == 0 &&
        strcmp(a->words[1], "example") == 0) {
        a->n_words = 0;
        if (a->action == NODE_CONFIG_RUN)
            a->action = NODE_CONFIG_EXAMPLE;
    }
    if (a->n_words > 1)
        return err_set(ei, ERR_PARSE, "\"%.*s\": there is one MODEL, and it was \"%.*s\"",
                       WORD_SHOWN, a->words[1], WORD_SHOWN, a->words[0]);
    return OK;
}

/* Second pass: flags that the first one has checked. */
static enum err apply_flags(const struct arguments *a, struct node_config *c, struct err_info *ei)
{
    for (int i = 1; i < a->argc && strcmp(a->argv[i], "--") != 0;) {
        if (!is_flag(a->argv[i])) {
            i++;
            continue;
        }
        struct flag f;
        enum err rc = take_flag(a, &i, &f, ei);
        const struct node_config_key *k = rc ? NULL : find_flag(f.name);
        if (k)
            rc = node_config_values_set(c, k, f.value, f.name, ei);
        if (rc)
            return rc;
    }
    return a->n_words
               ? node_config_values_set(c, node_config_keys_find("model"), a->words[0], "MODEL", ei)
               : OK;
}

/* The model's file name without .gguf; through the table, since it must pass as a flag later. */
static enum err derive_served_name(struct node_config *c, struct err_info *ei)
{
    const char *slash = strrchr(c->model, '/');
    char *base = strdup(slash ? slash + 1 : c->model);
    if (!base)
        return err_set(ei, ERR_NOMEM, "served_model_name: no memory");
    size_t n = strlen(base), end = strlen(".gguf");
    if (n > end && strcmp(base + n - end, ".gguf") == 0)
        base[n - end] = '\0';
    enum err rc = node_config_values_set(c, node_config_keys_find("served_model_name"), base,
                                         "served_model_name (of MODEL)", ei);
    free(base);
    return rc;
}

/* Defaults that follow from other things than the table: see the notes there. */
static enum err fill_derived(struct node_config *c, struct err_info *ei)
{
    if (!c->isa) {
        const char *env = getenv("KVNODE_ISA");
        enum err rc = node_config_values_set(c, node_config_keys_find("isa"),
                                             env && *env ? env : "auto", "KVNODE_ISA", ei);
        if (rc)
            return rc;
    }
    if (c->model && !c->served_model_name)
        return derive_served_name(c, ei);
    return OK;
}

static enum err check_built(const struct node_config *c, struct err_info *ei)
{
    if (strcmp(c->device, "cuda") == 0)
        return err_set(ei, ERR_UNSUPPORTED, "device: \"cuda\": this build computes on the CPU");
    if (c->tp != 1)
        return err_set(ei, ERR_UNSUPPORTED, "tp: \"%u\": this build runs one rank a worker", c->tp);
    return OK;
}

enum err node_config_parse(int argc, char *const *argv, struct node_config *out,
                           enum node_config_action *action, struct err_info *ei)
{
    struct arguments a = {.argc = argc, .argv = argv, .action = NODE_CONFIG_RUN};
    struct node_config c = {0};
    *out = (struct node_config){0};
    enum err rc = scan(&a, ei);
    if (!rc)
        rc = node_config_values_set_defaults(&c, ei);
    if (!rc && a.action == NODE_CONFIG_RUN && a.config)
        rc = node_config_yaml_load(&c, a.config, ei);
    if (!rc && a.action == NODE_CONFIG_RUN)
        rc = apply_flags(&a, &c, ei);
    if (!rc && a.action == NODE_CONFIG_RUN)
        rc = fill_derived(&c, ei);
    if (!rc && a.action == NODE_CONFIG_RUN)
        rc = check_built(&c, ei);
    if (rc)
        goto fail;
    *out = c;
    *action = a.action;
    return OK;
fail:
    node_config_fini(&c);
    return rc;
}

void node_config_fini(struct node_config *c)
{
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    for (size_t i = 0; i < n; i++) {
        if (all[i].kind != NODE_CONFIG_TEXT && all[i].kind != NODE_CONFIG_WORD)
            continue;
        char *text;
        memcpy(&text, (char *)c + all[i].offset, sizeof text);
        free(text);
    }
    *c = (struct node_config){0};
}

/* "--flag=value"; NULL when out of memory. */
static char *make_argument(const struct node_config *c, const struct node_config_key *k)
{
    char flag[NODE_CONFIG_FLAG_BYTES], *arg = NULL;
    node_config_keys_flag(k, flag);
    char *value = node_config_values_format(c, k);
    if (value && asprintf(&arg, "%s=%s", flag, value) < 0)
        arg = NULL;
    free(value);
    return arg;
}

char **node_config_to_argv(const struct node_config *c, const char *program)
{
    size_t n;
    const struct node_config_key *all = node_config_keys(&n);
    char **argv = calloc(n + 2, sizeof *argv);
    if (!argv)
        return NULL;
    argv[0] = strdup(program);
    if (!argv[0])
        goto fail;
    for (size_t i = 0; i < n; i++) {
        argv[i + 1] = make_argument(c, &all[i]);
        if (!argv[i + 1])
            goto fail;
    }
    return argv;
fail:
    node_config_free_argv(argv);
    return NULL;
}

void node_config_free_argv(char **argv)
{
    for (char **p = argv; p && *p; p++)
        free(*p);
    free(argv);
}
