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

/* A signal that comes while the node opens waits until its handler stands: else it would end the
 * process there and then, and files stay behind. */
static int run(struct node_config *config)
{
    struct node *node = NULL;
    struct err_info ei = {0};
    sigset_t stops;
    sigemptyset(&stops);
    sigaddset(&stops, SIGTERM);
    sigaddset(&stops, SIGINT);
    sigprocmask(SIG_BLOCK, &stops, NULL);
    enum err rc = node_open(config, &node, &ei);
    sigprocmask(SIG_UNBLOCK, &stops, NULL);
    if (rc == OK)
        rc = node_run(node, &ei);
    if (rc != OK)
        fprintf(stderr, "kvnode: %s\n", ei.text);
    node_close(node);
    return rc == OK ? 0 : 1;
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
        code = run(&config);
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
