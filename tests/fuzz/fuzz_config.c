/* libFuzzer target: may any file or command line crash the configuration? The first byte chooses:
 * even, the rest is a YAML file; odd, it is arguments, one a line. What parses must survive
 * node_config_to_argv and a second parse. Does not judge values (unit tests do). */
#include "config/node_config.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

enum { MAX_ARGS = 32 };

static void check_round_trip(const struct node_config *c)
{
    struct node_config again;
    enum node_config_action action;
    char **argv = node_config_to_argv(c, "p");
    int argc = 0;
    while (argv && argv[argc])
        argc++;
    if (!argv || node_config_parse(argc, argv, &again, &action, NULL) != OK)
        abort();
    char **second = node_config_to_argv(&again, "p");
    for (int i = 0; i < argc; i++)
        if (!second || !second[i] || strcmp(argv[i], second[i]) != 0)
            abort();
    node_config_free_argv(second);
    node_config_free_argv(argv);
    node_config_fini(&again);
}

static void parse(int argc, char **argv)
{
    struct node_config c;
    enum node_config_action action;
    struct err_info ei = {{0}};
    enum err rc = node_config_parse(argc, argv, &c, &action, &ei);
    if (rc == ERR_NOMEM || (rc != OK && (!*ei.text || strchr(ei.text, '\n'))))
        abort();
    if (rc != OK)
        return;
    if (action == NODE_CONFIG_RUN)
        check_round_trip(&c);
    node_config_fini(&c);
}

static void parse_file(const uint8_t *data, size_t n)
{
    char path[64], program[] = "kvnode", flag[] = "--config";
    char *argv[] = {program, flag, path, NULL};
    int fd = memfd_create("yaml", MFD_CLOEXEC);
    if (fd < 0 || write(fd, data, n) != (ssize_t)n)
        abort();
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    parse(3, argv);
    (void)close(fd);
}

static void parse_arguments(const uint8_t *data, size_t n)
{
    char program[] = "kvnode", *argv[MAX_ARGS + 2] = {program}, *rest = NULL;
    char *text = malloc(n + 1);
    if (!text)
        abort();
    memcpy(text, data, n);
    text[n] = '\0';
    int argc = 1;
    for (char *p = strtok_r(text, "\n", &rest); p && argc <= MAX_ARGS;
         p = strtok_r(NULL, "\n", &rest))
        argv[argc++] = p;
    parse(argc, argv);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n == 0)
        return 0;
    if (data[0] % 2 == 0)
        parse_file(data + 1, n - 1);
    else
        parse_arguments(data + 1, n - 1);
    return 0;
}
