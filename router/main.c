/* kvnode: the router and supervisor of a node. Parses what it shall run, hands it to struct node,
 * says in one line why when it cannot. */
#include "config/base/log.h"
#include "config/node_config.h"
#include "config/version.h"
#include "router/node.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_text(char *text)
{
    if (!text)
        return 1;
    fputs(text, stdout);
    free(text);
    return 0;
}

static int usage(const char *problem)
{
    fprintf(stderr,
            "kvnode: %s\nusage: kvnode serve MODEL [--key value]...   serve a model\n"
            "       kvnode config example                  print a config file with every key\n"
            "       kvnode --help | --version\n",
            problem);
    return 2;
}

static int serve(int argc, char **argv)
{
    struct node_config config;
    enum node_config_action action;
    struct err_info ei = {0};
    if (node_config_parse(argc, argv, &config, &action, &ei) != OK) {
        fprintf(stderr, "kvnode: %s\n", ei.text);
        return 2;
    }
    int code = 0;
    struct node *node = NULL;
    switch (action) {
    case NODE_CONFIG_HELP:
        code = print_text(node_config_help());
        break;
    case NODE_CONFIG_VERSION:
        puts("kvnode " KVNODE_VERSION);
        break;
    case NODE_CONFIG_EXAMPLE:
        code = print_text(node_config_example());
        break;
    case NODE_CONFIG_RUN:
        if (!config.model) {
            code = usage("no model: give the path of a GGUF file");
            break;
        }
        log_init("router", config.log_level);
        signal(SIGPIPE, SIG_IGN);
        if (node_open(&config, &node, &ei) != OK || node_run(node, &ei) != OK) {
            fprintf(stderr, "kvnode: %s\n", ei.text);
            code = 1;
        }
        node_close(node);
        break;
    }
    node_config_fini(&config);
    return code;
}

int main(int argc, char **argv)
{
    if (argc < 2)
        return usage("nothing to do");
    if (strcmp(argv[1], "serve") == 0)
        return serve(argc - 1, argv + 1);
    if (strcmp(argv[1], "config") == 0) {
        if (argc == 3 && strcmp(argv[2], "example") == 0)
            return print_text(node_config_example());
        return usage("config: the one thing it can print is `config example`");
    }
    if (argv[1][0] == '-')
        return serve(argc, argv);
    return usage("unknown command");
}
