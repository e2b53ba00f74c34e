/* How does an administrator talk to a node? One command, one line over its control socket, one
 * answer. Invariant: exit 0 means that the node said yes; 1 that it said no or is not there, with
 * one line on stderr that names the socket; 2 that the command line is wrong. Knows no node but the
 * one behind that socket. */
#include "config/version.h"
#include "ipc/control_client.h"
#include "ipc/runtime_dir.h"
#include "ops/kvctl_status.h"

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USAGE = 2, TIMEOUT_MS = 10 * 1000 };

static const struct command {
    const char *name, *done, *help;
} commands[] = {
    {"status", NULL, "what the node does: workers, KV store, requests"},
    {"drain", "draining: /readyz says 503; what still comes is served",
     "tell load balancers to stay away (/readyz 503); serve what still comes"},
    {"undrain", "takes requests again", "take requests again"},
    {"shutdown", "shutting down: finishes what it has, then exits",
     "drain, then stop the node and its workers"},
};
enum { N_COMMANDS = sizeof commands / sizeof commands[0] };

struct options {
    const char *socket_path, *name, *runtime_dir;
    bool is_json;
    const struct command *command;
};

static void print_help(void)
{
    printf("usage: kvctl [--socket PATH | --name NAME] [--runtime-dir DIR] COMMAND\n\ncommands:\n");
    for (size_t i = 0; i < N_COMMANDS; i++)
        printf("  %-10s  %s\n", commands[i].name, commands[i].help);
    printf("\noptions:\n"
           "  --name NAME        the node's name (kvnode)\n"
           "  --runtime-dir DIR  where its socket is, as given to the node\n"
           "                     ($XDG_RUNTIME_DIR/kvnode, else /run/kvnode as root, else\n"
           "                     TMPDIR/kvnode-UID)\n"
           "  --socket PATH      the socket itself\n"
           "  --json             status: print the node's answer as it is\n"
           "  --help, --version\n"
           "\nexit status: 0 done, 1 the node said no or is not running, 2 wrong usage\n");
}

static int usage_error(const char *what, const char *which)
{
    fprintf(stderr, "kvctl: %s%s (see kvctl --help)\n", what, which);
    return EXIT_USAGE;
}

static const struct command *find_command(const char *name)
{
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0)
            return &commands[i];
    return NULL;
}

/* 0: go on; else the exit status is *status. */
static int parse_options(int argc, char **argv, struct options *o, int *status)
{
    enum { OPT_SOCKET = 256, OPT_NAME, OPT_DIR, OPT_JSON, OPT_HELP, OPT_VERSION };
    static const struct option known[] = {
        {"socket", required_argument, NULL, OPT_SOCKET},
        {"name", required_argument, NULL, OPT_NAME},
        {"runtime-dir", required_argument, NULL, OPT_DIR},
        {"json", no_argument, NULL, OPT_JSON},
        {"help", no_argument, NULL, OPT_HELP},
        {"version", no_argument, NULL, OPT_VERSION},
        {NULL, 0, NULL, 0},
    };
    int opt;
    *status = EXIT_USAGE; /* getopt has said what is wrong */
    while ((opt = getopt_long(argc, argv, "h", known, NULL)) != -1) {
        switch (opt) {
        case OPT_SOCKET:
            o->socket_path = optarg;
            break;
        case OPT_NAME:
            o->name = optarg;
            break;
        case OPT_DIR:
            o->runtime_dir = optarg;
            break;
        case OPT_JSON:
            o->is_json = true;
            break;
        case 'h':
        case OPT_HELP:
            print_help();
            *status = 0;
            return 1;
        case OPT_VERSION:
            printf("kvctl %s\n", KVNODE_VERSION);
            *status = 0;
            return 1;
        default:
            return 1;
        }
    }
    return 0;
}

static int check_options(int argc, char **argv, struct options *o)
{
    if (optind == argc)
        return usage_error("no command", "");
    o->command = find_command(argv[optind]);
    if (!o->command)
        return usage_error("unknown command: ", argv[optind]);
    if (optind + 1 < argc)
        return usage_error("too many arguments: ", argv[optind + 1]);
    if (o->socket_path && (o->name || o->runtime_dir))
        return usage_error("--socket stands alone, without --name and --runtime-dir", "");
    if (o->is_json && o->command->done)
        return usage_error("--json is for status, not for ", o->command->name);
    return 0;
}

static int show(const struct options *o, const char *socket_path, const char *line,
                const json_t *answer)
{
    struct bytes text = {0};
    if (o->command->done)
        bytes_printf(&text, "%s: %s\n", socket_path, o->command->done);
    else if (o->is_json)
        bytes_printf(&text, "%s\n", line);
    else
        kvctl_status_render(answer, &text);
    bool is_shown =
        !text.failed && fwrite(text.data, 1, text.size, stdout) == text.size && fflush(stdout) == 0;
    bytes_fini(&text);
    if (is_shown)
        return 0;
    fprintf(stderr, "kvctl: cannot write the answer\n");
    return 1;
}

static int run(const struct options *o, const char *socket_path)
{
    struct err_info ei = {0};
    char request[64], *line = NULL;
    (void)snprintf(request, sizeof request, "{\"cmd\":\"%s\"}", o->command->name);
    if (control_request(socket_path, request, TIMEOUT_MS, &line, &ei) != OK) {
        fprintf(stderr, "kvctl: %s\n", ei.text);
        return 1;
    }
    json_error_t why;
    json_t *answer = json_loads(line, 0, &why);
    int status = 1;
    if (!json_is_object(answer)) {
        fprintf(stderr, "kvctl: %s: the answer is no JSON object\n", socket_path);
    } else if (!json_is_true(json_object_get(answer, "ok"))) {
        const char *error = json_string_value(json_object_get(answer, "error"));
        (void)err_set(&ei, ERR_GONE, "%s: %s: %s", socket_path, o->command->name,
                      error ? error : "refused without a reason");
        fprintf(stderr, "kvctl: %s\n", ei.text);
    } else {
        status = show(o, socket_path, line, answer);
    }
    json_decref(answer);
    free(line);
    return status;
}

int main(int argc, char **argv)
{
    struct options o = {0};
    struct runtime_paths paths;
    struct err_info ei = {0};
    int status;
    if (parse_options(argc, argv, &o, &status))
        return status;
    status = check_options(argc, argv, &o);
    if (status)
        return status;
    if (o.socket_path)
        return run(&o, o.socket_path);
    if (runtime_paths_fill(o.runtime_dir, o.name ? o.name : "kvnode", &paths, &ei) != OK) {
        fprintf(stderr, "kvctl: %s\n", ei.text);
        return EXIT_USAGE;
    }
    return run(&o, paths.control);
}
